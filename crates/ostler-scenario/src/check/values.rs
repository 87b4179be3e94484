//! Single values: numbers within bounds, names, sizes and times with their units.

use ostler_model::{Bytes, Nanos};
use toml::Spanned;

use super::{Checker, ScenarioError};
use crate::{Time, Wait};

/// The longest time that a scenario can name: a year.
pub(super) const TIME_MAX: Nanos = Nanos::from_secs(366 * 86_400);

impl Checker<'_> {
    pub(super) fn between(
        &self,
        value: &Spanned<u32>,
        key: &str,
        least: u32,
        most: u32,
    ) -> Result<u32, ScenarioError> {
        let number = *value.get_ref();
        if (least..=most).contains(&number) {
            return Ok(number);
        }
        self.refuse(
            value,
            format!("{key} = {number}"),
            format!("write {least} to {most}"),
        )
    }

    /// A share of something, with or without the ends.
    pub(super) fn share(
        &self,
        value: &Spanned<f64>,
        key: &str,
        above_zero: bool,
    ) -> Result<f64, ScenarioError> {
        let share = *value.get_ref();
        if (0.0..=1.0).contains(&share) && !(above_zero && share <= 0.0) {
            return Ok(share);
        }
        let least = if above_zero { "above 0" } else { "0" };
        self.refuse(
            value,
            format!("{key} = {share}"),
            format!("write {least} to 1: it is a share"),
        )
    }

    pub(super) fn name(&self, name: &Spanned<String>, at_most: usize) -> Result<(), ScenarioError> {
        let text = name.get_ref();
        let plain = text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if !text.is_empty() && text.len() <= at_most && plain && !text.starts_with('-') {
            return Ok(());
        }
        self.refuse(
            name,
            format!("`{text}` is no name"),
            format!("write at most {at_most} lower-case letters, digits and dashes"),
        )
    }

    pub(super) fn mebibytes(&self, size: &Spanned<String>) -> Result<u64, ScenarioError> {
        let text = size.get_ref();
        let (number, unit) = text.split_at(text.trim_end_matches(['M', 'G']).len());
        let factor = match unit {
            "M" => 1,
            "G" => 1024,
            _ => 0,
        };
        match number.parse::<u64>() {
            Ok(number) if factor > 0 && (1..1 << 20).contains(&number) => Ok(number * factor),
            _ => self.refuse(
                size,
                format!("`{text}` is no size"),
                "write a whole number of M or G, like \"256M\"",
            ),
        }
    }

    /// A size of something smaller than memories.
    pub(super) fn bytes(&self, size: &Spanned<String>) -> Result<Bytes, ScenarioError> {
        let text = size.get_ref();
        let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
        let shift = match unit {
            "B" => Some(0),
            "K" => Some(10),
            "M" => Some(20),
            "G" => Some(30),
            _ => None,
        };
        match (number.parse::<u64>(), shift) {
            (Ok(number), Some(shift)) if (1..=1 << 40 >> shift).contains(&number) => {
                Ok(Bytes(number << shift))
            }
            _ => self.refuse(
                size,
                format!("`{text}` is no size"),
                "write a whole number of B, K, M or G, like \"16K\"; a terabyte at most",
            ),
        }
    }

    pub(super) fn micros(&self, time: &Spanned<String>) -> Result<u64, ScenarioError> {
        let text = time.get_ref();
        let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
        let factor = match unit {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            _ => 0,
        };
        match number.parse::<u64>() {
            Ok(number) if factor > 0 && (1..1 << 32).contains(&number) => Ok(number * factor),
            _ => self.refuse(
                time,
                format!("`{text}` is no time"),
                "write a whole number of us, ms or s, like \"20ms\"",
            ),
        }
    }

    /// A time, which may be none at all.
    pub(super) fn nanos(&self, time: &Spanned<String>) -> Result<Nanos, ScenarioError> {
        match nanos(time.get_ref()) {
            Some(nanos) => Ok(nanos),
            None => self.no_time(time, time.get_ref()),
        }
    }

    fn no_time<T>(&self, at: &Spanned<impl Sized>, text: &str) -> Result<T, ScenarioError> {
        self.refuse(
            at,
            format!("`{text}` is no time"),
            "write a whole number of ns, us, ms, s, min or h, like \"20ms\"; a year at most",
        )
    }

    /// How long something takes each time: one time, or a distribution.
    pub(super) fn time(&self, value: &Spanned<toml::Value>) -> Result<Time, ScenarioError> {
        let table = match value.get_ref() {
            toml::Value::String(text) => {
                return match nanos(text) {
                    Some(nanos) => Ok(Time::Fixed(nanos)),
                    None => self.no_time(value, text),
                };
            }
            toml::Value::Table(table) => table,
            other => return self.no_time(value, &other.to_string()),
        };
        let time = |key: &str| table.get(key)?.as_str().and_then(nanos);
        let number = |key: &str| match table.get(key)? {
            toml::Value::Float(number) => Some(*number),
            toml::Value::Integer(number) => i32::try_from(*number).ok().map(f64::from),
            _ => None,
        };
        let keys: Vec<&str> = table.keys().map(String::as_str).collect();
        let known = match keys[..] {
            ["mean"] => time("mean").map(|mean| Time::Exponential { mean }),
            ["median", "sigma"] => match (time("median"), number("sigma")) {
                (Some(median), Some(sigma)) if (0.0..=10.0).contains(&sigma) => {
                    Some(Time::LogNormal { median, sigma })
                }
                _ => None,
            },
            ["rare", "share", "usual"] => match (time("rare"), number("share"), time("usual")) {
                (Some(rare), Some(share), Some(usual)) if (0.0..=1.0).contains(&share) => {
                    Some(Time::Either { usual, rare, share })
                }
                _ => None,
            },
            _ => None,
        };
        match known {
            Some(time) => Ok(time),
            None => self.refuse(
                value,
                format!("`{}` says no times", toml::Value::Table(table.clone())),
                "write one time, like \"50us\", or { mean = \"50us\" } for exponential ones, { median = \"50us\", sigma = 0.5 } for log-normal \
                 ones (sigma 0 to 10), or { usual = \"50us\", rare = \"5ms\", share = 0.01 }",
            ),
        }
    }

    pub(super) fn wait(
        &self,
        wait: Option<&Spanned<String>>,
        unless_said: Wait,
    ) -> Result<Wait, ScenarioError> {
        let Some(wait) = wait else {
            return Ok(unless_said);
        };
        match wait.get_ref().as_str() {
            "block" => Ok(Wait::Block),
            "spin" => Ok(Wait::Spin),
            text => match nanos(text) {
                Some(nanos) => Ok(Wait::SpinFor(nanos)),
                None => self.refuse(
                    wait,
                    format!("wait = \"{text}\""),
                    "write \"block\", \"spin\", or how long to spin before blocking, like \"50us\"",
                ),
            },
        }
    }
}

/// A time with its unit.
fn nanos(text: &str) -> Option<Nanos> {
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let factor = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let nanos = number.parse::<u64>().ok()?.checked_mul(factor)?;
    (nanos <= TIME_MAX.0).then_some(Nanos(nanos))
}
