//! A figure of several rounds: its median, and how far the rounds lay apart.

use serde::{Deserialize, Serialize};

/// A figure over several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle round (the mean of the two middle ones when there is an even number).
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of the rounds that have a value; `None` when none has.
    pub fn of(rounds: impl IntoIterator<Item = Option<f64>>) -> Option<Self> {
        let mut values: Vec<f64> = rounds
            .into_iter()
            .flatten()
            .filter(|v| v.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        // Halved before adding, so that two huge values don't overflow.
        let median = if values.len() % 2 == 1 {
            upper
        } else {
            values[middle - 1] / 2.0 + upper / 2.0
        };
        Some(Self {
            median,
            min: values[0],
            max: values[values.len() - 1],
        })
    }

    /// The same, unless something in it is not a number.
    #[must_use]
    pub fn finite(self) -> Option<Self> {
        [self.median, self.min, self.max]
            .iter()
            .all(|v| v.is_finite())
            .then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_extremes_ignore_what_was_not_measured() {
        assert_eq!(Spread::of([None, Some(f64::NAN)]), None);
        assert_eq!(
            Spread::of([Some(3.0), None, Some(1.0), Some(2.0)]),
            Some(Spread {
                median: 2.0,
                min: 1.0,
                max: 3.0
            })
        );
        assert_eq!(
            Spread::of([Some(4.0), Some(2.0)]).map(|s| s.median),
            Some(3.0)
        );
    }
}
