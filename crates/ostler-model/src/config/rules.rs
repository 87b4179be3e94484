//! The rules that give guests their class, and what they may not say together.

use std::ops::Range;

use toml::de::DeValue;

use super::error::{Errors, Problem};
use super::read as value;
use super::schema::CLASSES;
use super::section::{Located, Section};
use super::terms;
use crate::{Class, GuestMatch, GuestRule, Nanos};

/// The longest objective that is taken seriously.
const SLO_MAX: Nanos = Nanos::from_secs(60);

/// All rules, in order.
pub(super) fn read(root: &mut Section<'_, '_>, errors: &mut Errors<'_>) -> Vec<GuestRule> {
    let Some(raw) = root.raw("guest") else {
        return Vec::new();
    };
    let DeValue::Array(items) = raw.get_ref() else {
        errors.at(
            raw.span(),
            Problem::new(
                format!(
                    "`guest` must be a list of tables, not {}",
                    value::kind(raw.get_ref())
                ),
                "write each rule under its own [[guest]] header",
            ),
        );
        return Vec::new();
    };
    let mut rules: Vec<GuestRule> = Vec::new();
    for item in items {
        let DeValue::Table(table) = item.get_ref() else {
            errors.at(
                item.span(),
                Problem::new(
                    format!(
                        "a guest rule must be a table, not {}",
                        value::kind(item.get_ref())
                    ),
                    "write each rule under its own [[guest]] header",
                ),
            );
            continue;
        };
        let mut section = Section::new("[[guest]]", table, item.span());
        let matched = read_match(&mut section, errors);
        let rule = read_class(&mut section, errors);
        let boost = section.get(errors, "boost", value::boolean);
        if let (Some(_), Some((Class::Unmanaged, _))) = (&boost, &rule) {
            says_nothing(&mut section, errors, "boost");
        }
        let terms = terms::read(&mut section, errors, rule.map(|(class, _)| class));
        section.finish(errors);
        let Some(matched) = matched else { continue };
        if let Some(earlier) = rules
            .iter()
            .position(|rule| covers(&rule.matches, &matched.value))
        {
            errors.at(
                matched.span.clone(),
                Problem::new(
                    format!(
                        "this rule never applies: rule {} matches the same guests, and the first that matches wins",
                        earlier + 1
                    ),
                    "take it out, or move it above the other",
                ),
            );
        }
        let (class, slo) = rule.unwrap_or((Class::Unmanaged, None));
        rules.push(GuestRule {
            matches: matched.value,
            class,
            slo,
            boost: boost.is_none_or(|boost| boost.value),
            terms,
        });
    }
    rules
}

/// A key that has no meaning for a guest that is left alone.
pub(super) fn says_nothing(
    section: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
    key: &'static str,
) {
    let Some(raw) = section.raw(key) else { return };
    errors.at(
        raw.span(),
        Problem::new(
            format!("nothing of an unmanaged guest is touched, so `{key}` says nothing"),
            format!("take `{key}` out, or give the guest another class"),
        ),
    );
}

/// Whether every guest that `later` matches is sure to be matched by `earlier`.
fn covers(earlier: &GuestMatch, later: &GuestMatch) -> bool {
    match earlier {
        GuestMatch::Name(pattern) if is_stars(pattern.as_str()) => true,
        _ => earlier == later,
    }
}

fn is_stars(pattern: &str) -> bool {
    !pattern.is_empty() && pattern.bytes().all(|byte| byte == b'*')
}

fn read_match(
    section: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
) -> Option<Located<GuestMatch>> {
    let present: Vec<&str> = ["name", "uuid", "metadata"]
        .into_iter()
        .filter(|key| section.raw(key).is_some())
        .collect();
    let name = section.get(errors, "name", value::text("a name or pattern", "web-*"));
    let uuid = section.get(errors, "uuid", value::uuid);
    let metadata = section.get(errors, "metadata", read_label);
    match present.as_slice() {
        [] => {
            errors.at(
                section.span.clone(),
                Problem::new(
                    "this rule says of no guest",
                    "add name = \"...\" (where * stands for any text), uuid = \"...\" or metadata = { key = \"value\" }",
                ),
            );
            return None;
        }
        [_] => {}
        [first, rest @ ..] => {
            for key in rest {
                errors.at(
                    section.key_span(key),
                    Problem::new(
                        format!("this rule has both `{first}` and `{key}`"),
                        "a rule matches by one of name, uuid and metadata: write two rules",
                    ),
                );
            }
            return None;
        }
    }
    let located = |span: Range<usize>, value| Some(Located { value, span });
    match (name, uuid, metadata) {
        (Some(name), _, _) => located(name.span, GuestMatch::Name(name.value.into())),
        (_, Some(uuid), _) => located(uuid.span, GuestMatch::Uuid(uuid.value)),
        (_, _, Some(label)) => {
            let (key, value) = label.value;
            located(label.span, GuestMatch::Metadata { key, value })
        }
        _ => None,
    }
}

fn read_label(value: &DeValue<'_>) -> Result<(String, String), Problem> {
    let remedy = "write one label, such as { tier = \"web\" }";
    let DeValue::Table(table) = value else {
        return Err(Problem::new(
            format!("must be a table, not {}", value::kind(value)),
            remedy,
        ));
    };
    let mut labels = table.iter();
    match (labels.next(), labels.next()) {
        (Some((key, value)), None) if !key.get_ref().is_empty() => {
            let value = value::text("a label's value", "web")(value.get_ref())?;
            Ok((key.get_ref().to_string(), value))
        }
        _ => Err(Problem::new("must have exactly one label", remedy)),
    }
}

/// A rule's class and objective; nothing where they contradict each other or can't be read.
fn read_class(
    section: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
) -> Option<(Class, Option<Nanos>)> {
    let class = section.get(errors, "class", value::choice(CLASSES));
    let slo = section.get(errors, "slo", read_slo);
    let Some(class) = class else {
        if section.raw("class").is_none() {
            errors.at(
                section.span.clone(),
                Problem::new(
                    "this rule gives its guests no class",
                    "add class = \"latency-critical\", \"best-effort\" or \"unmanaged\"",
                ),
            );
        }
        return None;
    };
    if class.value == Class::LatencyCritical {
        if section.raw("slo").is_none() {
            errors.at(
                class.span,
                Problem::new(
                    "a latency-critical guest needs an objective",
                    "add slo = \"...\", the P95 response time that must not be exceeded, such as \"1ms\"",
                ),
            );
        }
        // An objective that can't be read was reported.
        return slo.map(|slo| (class.value, Some(slo.value)));
    }
    if section.raw("slo").is_some() {
        errors.at(
            section.key_span("slo"),
            Problem::new(
                format!("a guest that is {} has no objective", class.value),
                "take `slo` out, or set class to \"latency-critical\"",
            ),
        );
    }
    Some((class.value, None))
}

fn read_slo(toml: &DeValue<'_>) -> Result<Nanos, Problem> {
    let span = value::duration(Nanos::ZERO..=Nanos(u64::MAX), "1ms")(toml)?;
    let impossible = |why: &str| {
        Err(Problem::new(
            format!("is {}, {why}", toml.as_str().unwrap_or_default()),
            "write the P95 response time that must not be exceeded, above zero and up to 60s, such as \"1ms\"",
        ))
    };
    if span == Nanos::ZERO {
        return impossible("which no guest can meet");
    }
    if span > SLO_MAX {
        return impossible("which no one waits for");
    }
    Ok(span)
}
