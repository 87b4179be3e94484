//! How numbers and names are said to people.

/// How something is said that is not a number.
pub const MISSING: &str = "\u{2013}";

/// A number in at most about four characters of digits, with k, M, G.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return MISSING.to_owned();
    }
    if value.abs() >= 1e15 {
        return format!("{value:.1e}");
    }
    let (value, suffix) = match value.abs() {
        x if x >= 1e9 => (value / 1e9, "G"),
        x if x >= 1e6 => (value / 1e6, "M"),
        x if x >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = match value.abs() {
        x if x >= 100.0 || x == 0.0 => format!("{value:.0}"),
        x if x >= 10.0 => format!("{value:.1}"),
        x if x >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.1e}"),
    };
    let text = if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{suffix}")
}

/// A duration given in microseconds, in the unit in which people would say it.
pub fn micros(us: f64) -> String {
    match us.abs() {
        x if !x.is_finite() => MISSING.to_owned(),
        x if x >= 1e6 => format!("{} s", short(us / 1e6)),
        x if x >= 1e3 => format!("{} ms", short(us / 1e3)),
        _ => format!("{} \u{b5}s", short(us)),
    }
}

/// A share, in per cent.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if !percent.is_finite() {
        return MISSING.to_owned();
    }
    // 99.96 % must not read as 100: the missing part is the news.
    let decimals = usize::from((percent - percent.round()).abs() > 1e-9);
    let shown = if percent < 100.0 {
        percent.min(99.9)
    } else {
        percent
    };
    format!("{shown:.decimals$} %")
}

/// "0.25x", but never a zero for something that happened.
pub fn times(ratio: f64) -> String {
    match ratio {
        r if !r.is_finite() || r >= 1e6 => format!("{}\u{d7}", short(r)),
        r if r > 0.0 && r < 0.001 => "<0.001\u{d7}".to_owned(),
        r if r < 0.1 => format!(
            "{}\u{d7}",
            format!("{r:.3}")
                .trim_end_matches('0')
                .trim_end_matches('.')
        ),
        r => format!("{r:.2}\u{d7}"),
    }
}

/// At most `max` characters, said to be cut where it is.
pub fn clipped(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max - 1).chain(['\u{2026}']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ratios_are_not_rounded_to_nothing() {
        assert_eq!(
            [0.0, 0.0002, 0.004, 0.05, 0.25, 1.0, 3.456].map(times),
            [
                "0\u{d7}",
                "<0.001\u{d7}",
                "0.004\u{d7}",
                "0.05\u{d7}",
                "0.25\u{d7}",
                "1.00\u{d7}",
                "3.46\u{d7}"
            ]
        );
    }

    #[test]
    fn numbers_read_as_people_say_them() {
        let texts = [0.0, 0.5, 9_999.0, 12_345.0, 2_500_000.0, 100.0, 1e-7].map(short);
        assert_eq!(
            texts,
            ["0", "0.5", "9999", "12.3k", "2.5M", "100", "1.0e-7"]
        );
        assert_eq!(
            [870.0, 1_000.0, 1_250_000.0].map(micros),
            ["870 \u{b5}s", "1 ms", "1.25 s"]
        );
        assert_eq!([1.0, 0.9996, 0.5].map(percent), ["100 %", "99.9 %", "50 %"]);
    }
}
