//! How each kind of value is read: with its unit, within its range, and with a remedy when it is neither.

use std::ops::RangeInclusive;

use toml::de::DeValue;

use super::error::Problem;
use super::section::nearest;
use crate::{Bytes, CpuSet, CpuWeight, Nanos, SharedCores};

/// A value's type, for messages.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn wrong_type(value: &DeValue<'_>, wanted: &str, remedy: impl Into<String>) -> Problem {
    Problem::new(format!("must be {wanted}, not {}", kind(value)), remedy)
}

/// Units of time, the largest first.
const TIME_UNITS: &[(&str, u64)] = &[
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Units of memory, the largest first.
const SIZE_UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// A number with its unit, such as `1.5ms`, in the smallest unit.
fn quantity(text: &str, units: &[(&str, u64)], example: &str) -> Result<u64, Problem> {
    let known = || {
        let mut names: Vec<&str> = units.iter().map(|&(name, _)| name).collect();
        names.reverse();
        names.join(", ")
    };
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    if number.is_empty() {
        return Err(Problem::new(
            format!(
                "is `{}`, which does not begin with a number",
                text.escape_debug()
            ),
            format!("write a number and its unit, such as \"{example}\""),
        ));
    }
    if unit.is_empty() {
        return Err(Problem::new(
            format!("is `{number}`, which has no unit"),
            format!(
                "write a number and its unit, such as \"{example}\"; units: {}",
                known()
            ),
        ));
    }
    let Some(&(_, scale)) = units.iter().find(|&&(name, _)| name == unit) else {
        return Err(Problem::new(
            format!(
                "has the unit `{}`, which is not known here",
                unit.escape_debug()
            ),
            format!("units: {}", known()),
        ));
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let too_large = || {
        Problem::new(
            format!(
                "is `{}`, which is more than can be counted",
                text.escape_debug()
            ),
            "write a smaller one",
        )
    };
    let malformed = || {
        Problem::new(
            format!("is `{}`, which is no number", text.escape_debug()),
            format!("write a number and its unit, such as \"{example}\""),
        )
    };
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(malformed());
    }
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut total = whole.checked_mul(scale).ok_or_else(too_large)?;
    let mut scale = scale;
    for digit in fraction.trim_end_matches('0').bytes() {
        if scale % 10 != 0 {
            return Err(Problem::new(
                format!(
                    "is `{}`, which is finer than can be counted",
                    text.escape_debug()
                ),
                "write fewer digits or a smaller unit",
            ));
        }
        scale /= 10;
        total = total
            .checked_add(u64::from(digit - b'0') * scale)
            .ok_or_else(too_large)?;
    }
    Ok(total)
}

/// Writes a number in the largest unit that needs no fraction.
fn write_quantity(amount: u64, units: &[(&str, u64)]) -> String {
    units
        .iter()
        .find(|&&(_, scale)| amount != 0 && amount.is_multiple_of(scale))
        .or(units.last())
        .map_or_else(String::new, |&(name, scale)| {
            format!("{}{name}", amount / scale)
        })
}

/// A duration as the configuration writes it.
pub(super) fn write_duration(span: Nanos) -> String {
    write_quantity(span.0, TIME_UNITS)
}

/// A size as the configuration writes it.
pub(super) fn write_size(size: Bytes) -> String {
    write_quantity(size.0, SIZE_UNITS)
}

/// A duration: a string with its unit, within bounds.
pub(super) fn duration(
    bounds: RangeInclusive<Nanos>,
    example: &'static str,
) -> impl Fn(&DeValue<'_>) -> Result<Nanos, Problem> {
    move |value| {
        let Some(text) = value.as_str() else {
            return Err(wrong_type(
                value,
                "a duration in quotes",
                format!("write a number and its unit, such as \"{example}\""),
            ));
        };
        let span = Nanos(quantity(text, TIME_UNITS, example)?);
        if bounds.contains(&span) {
            return Ok(span);
        }
        let (least, most) = (
            write_duration(*bounds.start()),
            write_duration(*bounds.end()),
        );
        Err(Problem::new(
            format!("is {text}, outside {least} to {most}"),
            format!("write a duration from {least} to {most}, such as \"{example}\""),
        ))
    }
}

/// A size: a string with its unit, within bounds.
pub(super) fn size(
    bounds: RangeInclusive<Bytes>,
    example: &'static str,
) -> impl Fn(&DeValue<'_>) -> Result<Bytes, Problem> {
    move |value| {
        let Some(text) = value.as_str() else {
            return Err(wrong_type(
                value,
                "a size in quotes",
                format!("write a number and its unit, such as \"{example}\""),
            ));
        };
        let size = Bytes(quantity(text, SIZE_UNITS, example)?);
        if bounds.contains(&size) {
            return Ok(size);
        }
        let (least, most) = (write_size(*bounds.start()), write_size(*bounds.end()));
        Err(Problem::new(
            format!("is {text}, outside {least} to {most}"),
            format!("write a size from {least} to {most}, such as \"{example}\""),
        ))
    }
}

/// A plain number within bounds.
pub(super) fn number(
    bounds: RangeInclusive<f64>,
    example: &'static str,
) -> impl Fn(&DeValue<'_>) -> Result<f64, Problem> {
    move |value| {
        let parsed: Option<f64> = match value {
            DeValue::Float(float) => float.as_str().replace('_', "").parse().ok(),
            DeValue::Integer(_) => integer(value)
                .and_then(|n| i32::try_from(n).ok())
                .map(f64::from),
            _ => {
                return Err(wrong_type(
                    value,
                    "a number",
                    format!("write a number without quotes, such as {example}"),
                ));
            }
        };
        in_bounds(parsed, &bounds, example)
    }
}

/// A share of a whole: `0.7` or `"70%"`.
pub(super) fn share(
    bounds: RangeInclusive<f64>,
    example: &'static str,
) -> impl Fn(&DeValue<'_>) -> Result<f64, Problem> {
    move |value| match value.as_str() {
        Some(text) => {
            let percent = text
                .trim()
                .strip_suffix('%')
                .map(str::trim_end)
                .filter(|number| {
                    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.')
                })
                .and_then(|number| number.parse::<f64>().ok());
            let Some(percent) = percent else {
                return Err(Problem::new(
                    format!("is `{}`, which is no share", text.escape_debug()),
                    format!(
                        "write a fraction without quotes or a percentage with them, such as {example}"
                    ),
                ));
            };
            in_bounds(Some(percent / 100.0), &bounds, example)
        }
        None => number(bounds.clone(), example)(value),
    }
}

fn in_bounds(
    value: Option<f64>,
    bounds: &RangeInclusive<f64>,
    example: &str,
) -> Result<f64, Problem> {
    let (least, most) = (bounds.start(), bounds.end());
    match value.filter(|value| value.is_finite()) {
        Some(value) if bounds.contains(&value) => Ok(value),
        Some(value) => Err(Problem::new(
            format!("is {value}, outside {least} to {most}"),
            format!("write a number from {least} to {most}, such as {example}"),
        )),
        None => Err(Problem::new(
            "is not a finite number",
            format!("write a number from {least} to {most}, such as {example}"),
        )),
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
}

/// A whole number within bounds.
pub(super) fn count(
    bounds: RangeInclusive<u32>,
    example: &'static str,
) -> impl Fn(&DeValue<'_>) -> Result<u32, Problem> {
    move |value| {
        let (least, most) = (bounds.start(), bounds.end());
        let remedy = format!("write a whole number from {least} to {most}, such as {example}");
        let DeValue::Integer(shown) = value else {
            return Err(wrong_type(value, "a whole number", remedy));
        };
        integer(value)
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| bounds.contains(n))
            .ok_or_else(|| Problem::new(format!("is {shown}, outside {least} to {most}"), remedy))
    }
}

/// `true` or `false`.
pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, Problem> {
    value.as_bool().ok_or_else(|| {
        wrong_type(
            value,
            "true or false",
            "write true or false, without quotes",
        )
    })
}

/// Text that is not empty, without control characters.
pub(super) fn text(
    wanted: &'static str,
    example: &'static str,
) -> impl Fn(&DeValue<'_>) -> Result<String, Problem> {
    move |value| {
        let remedy = format!("write {wanted} in quotes, such as \"{example}\"");
        let Some(text) = value.as_str() else {
            return Err(wrong_type(value, wanted, remedy));
        };
        if text.is_empty() {
            return Err(Problem::new("is empty", remedy));
        }
        if text.chars().any(char::is_control) {
            return Err(Problem::new("has a control character in it", remedy));
        }
        Ok(text.to_owned())
    }
}

/// An absolute path.
pub(super) fn path(example: &'static str) -> impl Fn(&DeValue<'_>) -> Result<String, Problem> {
    move |value| {
        let path = text("an absolute path", example)(value)?;
        if !path.starts_with('/') {
            return Err(Problem::new(
                format!("is `{path}`, which does not begin with a slash"),
                format!("write an absolute path, such as \"{example}\""),
            ));
        }
        Ok(path)
    }
}

/// One of a few words.
pub(super) fn choice<T: Copy>(
    choices: &'static [(&'static str, T)],
) -> impl Fn(&DeValue<'_>) -> Result<T, Problem> {
    move |value| {
        let names: Vec<&str> = choices.iter().map(|&(name, _)| name).collect();
        let all = names
            .iter()
            .map(|name| format!("\"{name}\""))
            .collect::<Vec<_>>()
            .join(", ");
        let Some(text) = value.as_str() else {
            return Err(wrong_type(
                value,
                "a word in quotes",
                format!("one of {all}"),
            ));
        };
        if let Some(&(_, value)) = choices.iter().find(|&&(name, _)| name == text) {
            return Ok(value);
        }
        let remedy = match nearest(text, &names) {
            Some(near) => format!("did you mean \"{near}\"? One of {all}"),
            None => format!("one of {all}"),
        };
        Err(Problem::new(
            format!("is `{}`, which is not known", text.escape_debug()),
            remedy,
        ))
    }
}

/// One of a few words, or a CPU weight below that of others.
pub(super) fn weight_or(
    choices: &'static [(&'static str, SharedCores)],
) -> impl Fn(&DeValue<'_>) -> Result<SharedCores, Problem> {
    move |value| match value {
        DeValue::Integer(shown) => {
            let bounds = CpuWeight::MIN..CpuWeight::DEFAULT;
            let (least, most) = (bounds.start, bounds.end - 1);
            integer(value)
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| bounds.contains(n))
                .map(SharedCores::Weight)
                .ok_or_else(|| {
                    Problem::new(
                        format!("is {shown}, outside {least} to {most}"),
                        format!(
                            "write a weight below the {} of other guests, from {least} to {most}, or one of the words \"idle\" and \"equal\"",
                            CpuWeight::DEFAULT
                        ),
                    )
                })
        }
        _ => choice(choices)(value).map_err(|problem| Problem {
            remedy: format!(
                "{}, or a weight from {} to {}",
                problem.remedy,
                CpuWeight::MIN,
                CpuWeight::DEFAULT - 1
            ),
            ..problem
        }),
    }
}

/// A set of CPUs in the kernel's notation, each named once.
pub(super) fn cpus(value: &DeValue<'_>) -> Result<CpuSet, Problem> {
    let remedy = "write CPUs as the kernel does, such as \"0-3,7\"";
    let Some(text) = value.as_str() else {
        return Err(wrong_type(value, "a list of CPUs in quotes", remedy));
    };
    let set: CpuSet = text
        .parse()
        .map_err(|error| Problem::new(format!("is no list of CPUs: {error}"), remedy))?;
    // Each part alone is known to be good now.
    let mut seen = CpuSet::EMPTY;
    for part in text.split(',') {
        let part: CpuSet = part.trim().parse().unwrap_or_default();
        let twice = seen.intersection(&part);
        if !twice.is_empty() {
            return Err(Problem::new(
                format!("names CPU {twice} twice"),
                "name each CPU once",
            ));
        }
        seen = seen.union(&part);
    }
    Ok(set)
}

/// The name of a network interface.
pub(super) fn interface(value: &DeValue<'_>) -> Result<String, Problem> {
    let name = text("the name of a network interface", "eth0")(value)?;
    // The kernel's own rule (dev_valid_name): such a name is also safe as a component of a path.
    let valid = name.len() < 16
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
    if valid {
        return Ok(name);
    }
    Err(Problem::new(
        format!("is `{name}`, which no network interface can be called"),
        "write the name of a network interface, such as \"eth0\" (`ip link` lists them)",
    ))
}

/// A UUID.
pub(super) fn uuid(value: &DeValue<'_>) -> Result<String, Problem> {
    let example = "c7a5fdbd-edaf-9455-926a-d65c16db1809";
    let uuid = text("a UUID", example)(value)?;
    let groups: Vec<&str> = uuid.split('-').collect();
    let valid = groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups
            .iter()
            .all(|group| group.bytes().all(|b| b.is_ascii_hexdigit()));
    if valid {
        return Ok(uuid.to_ascii_lowercase());
    }
    Err(Problem::new(
        format!("is `{uuid}`, which is no UUID"),
        format!("write 32 hexadecimal digits in five groups, such as \"{example}\""),
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_duration_is_read_as_it_is_written(nanos in any::<u64>()) {
            let text = write_duration(Nanos(nanos));
            prop_assert_eq!(quantity(&text, TIME_UNITS, "1s").ok(), Some(nanos), "{}", text);
        }

        #[test]
        fn a_size_is_read_as_it_is_written(bytes in any::<u64>()) {
            let text = write_size(Bytes(bytes));
            prop_assert_eq!(quantity(&text, SIZE_UNITS, "1B").ok(), Some(bytes), "{}", text);
        }

        #[test]
        fn any_text_is_a_quantity_or_a_problem(text in "[0-9.a-zA-Z% -]{0,24}") {
            let _ = quantity(&text, TIME_UNITS, "1s");
            let _ = quantity(&text, SIZE_UNITS, "1B");
        }
    }

    #[test]
    fn fractions_are_exact_or_refused() {
        let read = |text| quantity(text, TIME_UNITS, "1s").ok();
        assert_eq!(read("1.5ms"), Some(1_500_000));
        assert_eq!(read("0.25 us"), Some(250));
        assert_eq!(read("1.50000000s"), Some(1_500_000_000));
        for text in [
            "1.5ns",
            "1.",
            ".5s",
            "1..5s",
            "1.5.5s",
            "5",
            "ms",
            "-1s",
            "99999999999d",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
