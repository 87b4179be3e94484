//! A tree of elements, written as HTML that is well-formed XML too.
//!
//! Text and attribute values are escaped here and nowhere else, so a guest that calls itself `<script>` stays a name. Characters
//! that neither XML nor HTML allows become U+FFFD. Coordinates go through [`Node::num`], which knows no NaN.

use std::fmt::Write;

/// An element.
#[derive(Debug, Clone)]
pub struct Node {
    tag: &'static str,
    attributes: Vec<(&'static str, String)>,
    children: Vec<Child>,
}

#[derive(Debug, Clone)]
enum Child {
    Node(Node),
    Text(String),
    /// Our own CSS and JavaScript: constants, and free of `<` and `&`.
    Constant(&'static str),
}

/// An empty element.
pub fn el(tag: &'static str) -> Node {
    Node {
        tag,
        attributes: Vec::new(),
        children: Vec::new(),
    }
}

impl Node {
    /// Adds an attribute.
    #[must_use]
    pub fn attr(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }

    /// Adds a numeric attribute.
    #[must_use]
    pub fn num(self, name: &'static str, value: f64) -> Self {
        self.attr(name, coordinate(value))
    }

    /// Adds a class.
    #[must_use]
    pub fn class(self, value: impl Into<String>) -> Self {
        self.attr("class", value)
    }

    /// Adds text.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.children.push(Child::Text(text.into()));
        self
    }

    /// Adds a child.
    #[must_use]
    pub fn child(mut self, node: Node) -> Self {
        self.children.push(Child::Node(node));
        self
    }

    /// Adds children.
    #[must_use]
    pub fn children(mut self, nodes: impl IntoIterator<Item = Node>) -> Self {
        self.children.extend(nodes.into_iter().map(Child::Node));
        self
    }

    /// Adds a constant as it is, for `style` and `script`.
    #[must_use]
    pub(crate) fn constant(mut self, text: &'static str) -> Self {
        self.children.push(Child::Constant(text));
        self
    }

    /// Puts a prefix to every id in the tree, and to every reference to one, so that two trees can stand on one page.
    #[must_use]
    pub fn prefix_ids(mut self, prefix: &str) -> Self {
        for (name, value) in &mut self.attributes {
            *value = match (*name, value.strip_prefix('#')) {
                ("id" | "for", _) => format!("{prefix}{value}"),
                ("href", Some(id)) => format!("#{prefix}{id}"),
                ("aria-labelledby" | "aria-describedby", _) => value
                    .split(' ')
                    .map(|id| format!("{prefix}{id}"))
                    .collect::<Vec<_>>()
                    .join(" "),
                _ => value.replace("url(#", &format!("url(#{prefix}")),
            };
        }
        self.children = self
            .children
            .into_iter()
            .map(|child| match child {
                Child::Node(node) => Child::Node(node.prefix_ids(prefix)),
                other => other,
            })
            .collect();
        self
    }

    /// Writes the tree.
    pub fn write(&self, out: &mut String) {
        out.push('<');
        out.push_str(self.tag);
        for (name, value) in &self.attributes {
            out.push(' ');
            out.push_str(name);
            out.push_str("=\"");
            escape(value, out);
            out.push('"');
        }
        if matches!(self.tag, "meta" | "br" | "col") {
            out.push_str("/>");
            return;
        }
        out.push('>');
        for child in &self.children {
            match child {
                Child::Node(node) => node.write(out),
                Child::Text(text) => escape(text, out),
                Child::Constant(text) => out.push_str(text),
            }
        }
        out.push_str("</");
        out.push_str(self.tag);
        out.push('>');
        if matches!(
            self.tag,
            "section"
                | "figure"
                | "tr"
                | "svg"
                | "g"
                | "details"
                | "p"
                | "style"
                | "script"
                | "div"
        ) {
            out.push('\n');
        }
    }
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

/// A coordinate with at most two decimals. What isn't finite can't be drawn; callers leave such data out, and should one forget,
/// the mark lands at 0 instead of breaking the page.
pub fn coordinate(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{:.2}", value.clamp(-1e6, 1e6));
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

/// The `d` of a path, built point by point.
#[derive(Debug, Clone, Default)]
pub struct Path(String);

impl Path {
    /// Moves without drawing.
    pub fn move_to(&mut self, x: f64, y: f64) {
        self.op('M', &[x, y]);
    }

    /// Draws a straight line.
    pub fn line_to(&mut self, x: f64, y: f64) {
        self.op('L', &[x, y]);
    }

    /// Draws a horizontal line.
    pub fn across_to(&mut self, x: f64) {
        self.op('H', &[x]);
    }

    /// Draws a vertical line.
    pub fn down_to(&mut self, y: f64) {
        self.op('V', &[y]);
    }

    /// Back to the last move's start.
    pub fn close(&mut self) {
        self.0.push('Z');
    }

    /// Whether nothing was drawn.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn op(&mut self, letter: char, numbers: &[f64]) {
        self.0.push(letter);
        for (i, &number) in numbers.iter().enumerate() {
            let gap = if i > 0 { " " } else { "" };
            // Writing to a string can't fail.
            let _ = write!(self.0, "{gap}{}", coordinate(number));
        }
    }

    /// As an element.
    pub fn node(self) -> Node {
        el("path").attr("d", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(node: &Node) -> String {
        let mut out = String::new();
        node.write(&mut out);
        out
    }

    #[test]
    fn names_stay_names() {
        let node = el("b")
            .attr("title", "a\"b'<&>")
            .text("<script>alert(1)</script>\u{1}\u{ffff}");
        insta::assert_snapshot!(written(&node), @"<b title=\"a&quot;b&#39;&lt;&amp;&gt;\">&lt;script&gt;alert(1)&lt;/script&gt;��</b>");
    }

    #[test]
    fn coordinates_are_short_and_finite() {
        let texts = [
            1.0,
            1.5,
            1.0 / 3.0,
            -0.001,
            100.0,
            f64::NAN,
            f64::INFINITY,
            1e300,
        ]
        .map(coordinate);
        assert_eq!(texts, ["1", "1.5", "0.33", "0", "100", "0", "0", "1000000"]);
    }
}
