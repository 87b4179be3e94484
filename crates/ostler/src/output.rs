//! How things are shown to people: times, spans, colours where there is a terminal, and JSON where it is asked for.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::bail;
pub use ostler_lab::stdout::print;
use ostler_lab::stdout::quiet_pipe;
use ostler_model::{CpuSet, Nanos};
use ostler_record::Wall;
use serde::Serialize;

/// Whether colours are wanted: on a terminal, unless NO_COLOR says otherwise.
pub fn colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A colour for a word, or none.
#[derive(Clone, Copy)]
pub struct Paint(pub bool);

impl Paint {
    fn wrap(self, code: &str, text: impl fmt::Display) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }

    /// For headings.
    pub fn bold(self, text: impl fmt::Display) -> String {
        self.wrap("1", text)
    }

    /// For what is well.
    pub fn good(self, text: impl fmt::Display) -> String {
        self.wrap("32", text)
    }

    /// For what is not.
    pub fn bad(self, text: impl fmt::Display) -> String {
        self.wrap("31", text)
    }

    /// For what matters less.
    pub fn faint(self, text: impl fmt::Display) -> String {
        self.wrap("2", text)
    }
}

/// Prints a value as JSON: indented on a terminal, else on one line.
pub fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let result = if io::stdout().is_terminal() {
        serde_json::to_writer_pretty(&mut out, value)
    } else {
        serde_json::to_writer(&mut out, value)
    };
    result
        .map_err(io::Error::from)
        .and_then(|()| writeln!(out))
        .or_else(quiet_pipe)
}

/// Text that a guest's owner chose, safe for a terminal: control characters are replaced, length is bounded.
pub fn tame(text: &str) -> String {
    text.chars()
        .take(64)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// A span at a sensible precision.
pub fn span(span: Nanos) -> String {
    let nanos = span.0;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", span.as_micros_f64()),
        1_000_000..1_000_000_000 => format!("{:.2} ms", span.as_millis_f64()),
        1_000_000_000..120_000_000_000 => format!("{:.1} s", span.as_secs_f64()),
        _ => format!("{:.0} min", span.as_secs_f64() / 60.0),
    }
}

/// A set of CPUs, or a dash.
pub fn cpus(cpus: &CpuSet) -> String {
    if cpus.is_empty() {
        "-".to_owned()
    } else {
        cpus.to_string()
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// A time in UTC, to the millisecond: `2026-11-21T21:47:03.120Z`.
pub fn time(wall: Wall) -> String {
    let seconds = wall.0 / NANOS_PER_SECOND;
    let millis = wall.0 % NANOS_PER_SECOND / 1_000_000;
    let (year, month, day) = civil(seconds / SECONDS_PER_DAY);
    let in_day = seconds % SECONDS_PER_DAY;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{millis:03}Z",
        in_day / 3600,
        in_day / 60 % 60,
        in_day % 60
    )
}

/// Year, month and day of a day since 1970 (Hinnant's `civil_from_days`, for days after 1970 only).
fn civil(day: u64) -> (u64, u64, u64) {
    let z = day + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// Day since 1970 of a date (Hinnant's `days_from_civil`).
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = year.checked_sub(u64::from(month <= 2))?;
    let era = year / 400;
    let year_of_era = year % 400;
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

/// Reads a time as people write it: `2026-11-21T21:47:03.5Z`, `21:47:03` (today), `-30s` or `5min` (ago), `@1795297623` (seconds since 1970), `now`.
/// All in UTC.
pub fn parse_time(text: &str, now: Wall) -> anyhow::Result<Wall> {
    let text = text.trim();
    let parsed = if text == "now" {
        Some(now)
    } else if let Some(seconds) = text.strip_prefix('@') {
        decimal(seconds).map(Wall)
    } else if text.contains(':') {
        let (date, clock) = text.split_once(['T', ' ']).unwrap_or(("", text));
        clock_of(clock).zip(day_of(date, now)).map(|(clock, day)| {
            Wall(
                day.saturating_mul(SECONDS_PER_DAY * NANOS_PER_SECOND)
                    .saturating_add(clock),
            )
        })
    } else {
        ago(text).map(|span| now.saturating_sub(span))
    };
    match parsed.filter(|wall| *wall <= Wall::MAX) {
        Some(wall) => Ok(wall),
        None => bail!(
            "`{text}` is no time: write 2026-11-21T21:47:03Z, 21:47:03 (today), -30s (ago) or @SECONDS (since 1970), all in UTC"
        ),
    }
}

/// Seconds, with a fraction or without, in nanoseconds.
fn decimal(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty()
        || !whole
            .bytes()
            .chain(fraction.bytes())
            .all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let nanos: u64 = format!("{fraction:0<9.9}").parse().ok()?;
    whole.checked_mul(NANOS_PER_SECOND)?.checked_add(nanos)
}

/// A time of day in nanoseconds.
fn clock_of(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let mut parts = text.splitn(3, ':');
    let part = |text: Option<&str>, below: u64| {
        text.filter(|text| text.len() == 2)
            .and_then(|text| text.parse::<u64>().ok())
            .filter(|&n| n < below)
    };
    let hours = part(parts.next(), 24)?;
    let minutes = part(parts.next(), 60)?;
    let seconds = decimal(parts.next().unwrap_or("0"))?;
    (seconds < 60 * NANOS_PER_SECOND)
        .then_some((hours * 3600 + minutes * 60) * NANOS_PER_SECOND + seconds)
}

/// A day since 1970; today where there is no date.
fn day_of(text: &str, now: Wall) -> Option<u64> {
    if text.is_empty() {
        return Some(now.0 / (NANOS_PER_SECOND * SECONDS_PER_DAY));
    }
    let mut parts = text.splitn(3, '-').map(str::parse::<u64>);
    let (year, month, day) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    let since =
        ((1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day))
            .then(|| days(year, month, day))
            .flatten()?;
    // The 31st of February comes out as another date.
    (civil(since) == (year, month, day)).then_some(since)
}

/// A span before now: `-30s`, `30s`, `5min`.
fn ago(text: &str) -> Option<Nanos> {
    let text = text.strip_prefix('-').unwrap_or(text);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "ms" => 1_000_000,
        "s" => NANOS_PER_SECOND,
        "m" | "min" => 60 * NANOS_PER_SECOND,
        "h" => 3600 * NANOS_PER_SECOND,
        "d" => SECONDS_PER_DAY * NANOS_PER_SECOND,
        _ => return None,
    };
    let nanos = u128::from(decimal(number)?) * u128::from(scale) / u128::from(NANOS_PER_SECOND);
    u64::try_from(nanos).ok().map(Nanos)
}

/// A table whose columns are as wide as they need to be.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Begins with these headings.
    pub fn new(headings: &[&str]) -> Table {
        Table {
            rows: vec![headings.iter().map(|&heading| heading.to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, its headings in bold.
    pub fn render(&self, paint: Paint) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                self.rows
                    .iter()
                    .filter_map(|row| row.get(column))
                    .map(|cell| visible(cell))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width - visible(cell)));
            }
            let line = line.trim_end();
            if at == 0 {
                out.push_str(&paint.bold(line));
            } else {
                out.push_str(line);
            }
            out.push('\n');
        }
        out
    }
}

/// How many characters of a text are seen: colours are not.
fn visible(text: &str) -> usize {
    let mut count = 0;
    let mut escaped = false;
    for c in text.chars() {
        match (escaped, c) {
            (false, '\x1b') => escaped = true,
            (false, _) => count += 1,
            (true, 'm') => escaped = false,
            (true, _) => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_and_read_alike() {
        // Every eleven hours and some from 1970 to 2100: leap years, month ends, the lot.
        for seconds in (0..4_102_444_800_u64).step_by(40_009) {
            let wall = Wall(seconds * NANOS_PER_SECOND + 120_000_000);
            let text = time(wall);
            assert_eq!(parse_time(&text, Wall(0)).ok(), Some(wall), "{text}");
        }
        assert_eq!(
            time(Wall(951_782_400 * NANOS_PER_SECOND)),
            "2000-02-29T00:00:00.000Z"
        );
    }

    #[test]
    fn people_write_times_in_many_ways() {
        let now = Wall(1_795_297_623 * NANOS_PER_SECOND);
        let read = |text| parse_time(text, now).ok().map(|wall| wall.0);
        assert_eq!(read("now"), Some(now.0));
        assert_eq!(read("-30s"), Some(now.0 - 30 * NANOS_PER_SECOND));
        assert_eq!(read("1.5min"), Some(now.0 - 90 * NANOS_PER_SECOND));
        assert_eq!(read("@12.5"), Some(12_500_000_000));
        let midnight = now.0 / NANOS_PER_SECOND / SECONDS_PER_DAY * SECONDS_PER_DAY;
        assert_eq!(read("00:01"), Some((midnight + 60) * NANOS_PER_SECOND));
        for text in [
            "",
            "soon",
            "25:00",
            "2026-02-30T00:00:00Z",
            "12",
            "-5parsecs",
            "@x",
            "1969-01-01T00:00:00Z",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn columns_line_up_with_colours_or_without() {
        for paint in [Paint(false), Paint(true)] {
            let mut table = Table::new(&["GUEST", "P95"]);
            table.row(vec![paint.good("a"), "1 ms".to_owned()]);
            table.row(vec!["longer".to_owned(), paint.bad("2 ms")]);
            let text = table.render(paint);
            let starts: Vec<usize> = text
                .lines()
                .map(|line| {
                    let plain: String = strip(line);
                    plain
                        .find("P95")
                        .or_else(|| plain.find("1 ms"))
                        .or_else(|| plain.find("2 ms"))
                        .unwrap_or(0)
                })
                .collect();
            assert_eq!(starts, [8, 8, 8], "{text}");
        }
    }

    fn strip(text: &str) -> String {
        let mut out = String::new();
        let mut escaped = false;
        for c in text.chars() {
            match (escaped, c) {
                (false, '\x1b') => escaped = true,
                (false, c) => out.push(c),
                (true, 'm') => escaped = false,
                (true, _) => {}
            }
        }
        out
    }

    #[test]
    fn a_guests_name_cannot_move_the_cursor() {
        assert_eq!(tame("web\x1b[2J\n"), "web\u{fffd}[2J\u{fffd}");
        assert_eq!(tame(&"x".repeat(500)).len(), 64);
    }
}
