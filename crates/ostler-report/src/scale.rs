//! From data to pixels, and where the ticks go.
//!
//! Linear ticks are 1, 2 or 5 times a power of ten (Heckbert, "Nice numbers for graph labels", Graphics Gems 1990); logarithmic ticks
//! are whole decades, with 2 and 5 between them when there are few.

/// Beyond this, adding one tick step to a value would no longer change it.
const MAGNITUDE_MAX: f64 = 1e12;
/// No axis has more ticks.
const TICKS_MAX: usize = 40;

/// What lies between data and pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    log: bool,
    domain: (f64, f64),
    range: (f64, f64),
}

/// The finite values' extent.
pub fn extent(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values
        .into_iter()
        .filter(|v| v.is_finite())
        .map(|v| v.clamp(-MAGNITUDE_MAX, MAGNITUDE_MAX))
        .fold(None, |extent, v| {
            Some(extent.map_or((v, v), |(lo, hi): (f64, f64)| (lo.min(v), hi.max(v))))
        })
}

impl Scale {
    /// A linear scale; without an extent, 0 to 1.
    pub fn linear(extent: Option<(f64, f64)>, range: (f64, f64)) -> Self {
        let (lo, mut hi) = extent.unwrap_or((0.0, 1.0));
        if hi - lo <= (lo.abs() + hi.abs()) * 1e-9 {
            hi = lo + lo.abs().max(1.0);
        }
        Self {
            log: false,
            domain: (lo, hi),
            range,
        }
    }

    /// A linear scale from zero to a whole tick above the data.
    pub fn from_zero(max: Option<f64>, ticks: usize, range: (f64, f64)) -> Self {
        let max = max
            .filter(|m| m.is_finite() && *m > 0.0)
            .unwrap_or(1.0)
            .clamp(1e-6, MAGNITUDE_MAX);
        let step = nice_step(max / ticks as f64);
        Self {
            log: false,
            domain: (0.0, (max / step - 1e-9).ceil() * step),
            range,
        }
    }

    /// A logarithmic scale; what isn't positive is left out of the extent.
    pub fn log(values: impl IntoIterator<Item = f64>, range: (f64, f64)) -> Self {
        let (lo, hi) = extent(values.into_iter().filter(|v| *v > 0.0)).unwrap_or((1.0, 10.0));
        // Rounded out to 1, 2 or 5 of a decade, so that no mark touches the frame.
        let lo = lo.max(1e-9);
        let hi = hi.max(lo);
        let below = |x: f64| {
            let decade = 10_f64.powf(x.log10().floor());
            [5.0, 2.0, 1.0]
                .into_iter()
                .map(|m| m * decade)
                .find(|t| *t <= x * 0.999)
                .unwrap_or(decade / 2.0)
        };
        let above = |x: f64| {
            let decade = 10_f64.powf(x.log10().floor());
            [2.0, 5.0, 10.0]
                .into_iter()
                .map(|m| m * decade)
                .find(|t| *t >= x * 1.001)
                .unwrap_or(decade * 20.0)
        };
        Self {
            log: true,
            domain: (below(lo), above(hi)),
            range,
        }
    }

    /// Where a value goes; `None` when it can't be shown. Values outside the domain are held at its ends.
    pub fn at(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.log && value <= 0.0) {
            return None;
        }
        let (lo, hi) = self.domain;
        let value = value.clamp(lo, hi);
        let share = if self.log {
            (value / lo).ln() / (hi / lo).ln()
        } else {
            (value - lo) / (hi - lo)
        };
        Some(self.range.0 + share * (self.range.1 - self.range.0))
    }

    /// About `count` round values within the domain.
    pub fn ticks(&self, count: usize) -> Vec<f64> {
        let (lo, hi) = self.domain;
        if self.log {
            let decades = (hi / lo).log10();
            let crowded = decades * 3.0 > count as f64 * 1.5;
            let steps: &[f64] = if crowded { &[1.0] } else { &[1.0, 2.0, 5.0] };
            #[allow(clippy::cast_possible_truncation)]
            let (first, last) = (lo.log10().floor() as i32, hi.log10().ceil() as i32);
            return (first..=last)
                .flat_map(|power| steps.iter().map(move |s| s * 10_f64.powi(power)))
                .filter(|t| (lo * 0.999..=hi * 1.001).contains(t))
                .take(TICKS_MAX)
                .collect();
        }
        let step = nice_step((hi - lo) / count.max(1) as f64);
        let first = (lo / step - 1e-9).ceil();
        (0..TICKS_MAX)
            .map(|i| (first + i as f64) * step)
            .take_while(|t| *t <= hi + step * 1e-6)
            .collect()
    }
}

/// The smallest of 1, 2, 5 times a power of ten that is at least `raw`.
fn nice_step(raw: f64) -> f64 {
    let decade = 10_f64.powf(raw.max(1e-12).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * decade)
        .find(|s| *s >= raw * (1.0 - 1e-9))
        .unwrap_or(decade * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let ticks = |scale: Scale| scale.ticks(5);
        assert_eq!(
            ticks(Scale::linear(Some((0.0, 97.0)), (0.0, 1.0))),
            [0.0, 20.0, 40.0, 60.0, 80.0]
        );
        assert_eq!(
            ticks(Scale::from_zero(Some(6.0), 6, (0.0, 1.0))).last(),
            Some(&6.0)
        );
        assert_eq!(
            ticks(Scale::log([120.0, 4_000.0], (0.0, 1.0))),
            [100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0]
        );
        assert!(ticks(Scale::linear(Some((5.0, 5.0)), (0.0, 1.0))).len() > 1);
        for wild in [f64::NAN, f64::INFINITY, -1e300, 1e300, 0.0] {
            let scales = [
                Scale::linear(extent([wild]), (0.0, 1.0)),
                Scale::from_zero(Some(wild), 5, (0.0, 1.0)),
                Scale::log([wild], (0.0, 1.0)),
            ];
            for scale in scales {
                let ticks = scale.ticks(5);
                assert!((1..=TICKS_MAX).contains(&ticks.len()), "{wild}: {ticks:?}");
                assert!(
                    ticks
                        .iter()
                        .all(|t| t.is_finite() && scale.at(*t).is_some_and(f64::is_finite)),
                    "{wild}"
                );
            }
        }
    }
}
