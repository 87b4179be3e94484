//! What tests hold pages against: a reader of HTML that is well-formed XML, written apart from the writer.

/// Follows tags like an XML parser that knows no entities but ours; says where it fails.
pub fn well_formed(page: &str) -> Result<usize, String> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").ok_or("no doctype")?;
    let mut open: Vec<&str> = Vec::new();
    let mut elements = 0;
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        check_text(text)?;
        let end = rest[start..].find('>').ok_or("a tag without end")? + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes nothing"));
            }
            continue;
        }
        elements += 1;
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        let attributes = tag[name.len()..].trim_end_matches('/');
        check_attributes(attributes)?;
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    check_text(rest)?;
    if open.is_empty() {
        Ok(elements)
    } else {
        Err(format!("left open: {open:?}"))
    }
}

fn check_text(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        if !known.iter().any(|k| text[at..].starts_with(k)) {
            return Err(format!("a bare & in {text:?}"));
        }
    }
    if text
        .chars()
        .any(|c| c.is_control() && c != '\n' && c != '\t')
    {
        return Err("a control character".to_owned());
    }
    Ok(())
}

fn check_attributes(mut text: &str) -> Result<(), String> {
    let mut names = Vec::new();
    while let Some(name_end) = text.find("=\"") {
        let name = text[..name_end].trim_start();
        if name.is_empty()
            || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            || names.contains(&name)
        {
            return Err(format!("attribute name {name:?}"));
        }
        names.push(name);
        text = &text[name_end + 2..];
        let value_end = text.find('"').ok_or("an attribute without end")?;
        check_text(&text[..value_end])?;
        text = &text[value_end + 1..];
    }
    if text.trim().is_empty() {
        Ok(())
    } else {
        Err(format!("stray {text:?} in a tag"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checker_itself_finds_faults() {
        let page = |body: &str| format!("<!DOCTYPE html>\n{body}");
        assert_eq!(
            well_formed(&page("<a b=\"c\"><meta d=\"e\"/>f &amp; g</a>")),
            Ok(2)
        );
        for bad in [
            "<a>",
            "<a></b>",
            "</a>",
            "<a>&</a>",
            "<a b=\"&x;\"></a>",
            "<a b></a>",
            "<a b=\"1\" b=\"2\"></a>",
            "<a>\u{1}</a>",
        ] {
            assert!(well_formed(&page(bad)).is_err(), "{bad}");
        }
    }
}
