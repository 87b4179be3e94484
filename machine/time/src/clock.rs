//! From instructions to nanoseconds.
//!
//! A core's own time is `cost x instructions + offset`. Instructions only grow, and so does the offset: a core that was
//! halted is moved on to the time at which it is woken. All arithmetic is in integers: a figure that is to be the same on every
//! machine must not depend on how a sum was rounded on the way.

/// What an instruction costs, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost(u64);

impl Cost {
    /// A cost of so many picoseconds.
    pub const fn from_ps(ps: u64) -> Cost {
        Cost(ps)
    }

    /// In picoseconds.
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// Reads nanoseconds with up to three decimals: `1`, `0.5`, `1.125`.
    pub fn parse(text: &str) -> Option<Cost> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty()
            || whole.len() > 6
            || decimals.len() > 3
            || !digits(whole)
            || !digits(decimals)
        {
            return None;
        }
        let whole: u64 = whole.parse().ok()?;
        let thousandths: u64 = format!("{decimals:0<3}").parse().ok()?;
        Some(Cost(whole * 1000 + thousandths))
    }

    /// What so many instructions take, in ns, rounded down.
    pub fn ns(self, instructions: u64) -> i64 {
        // Each reading of the clock comes here: a wide division is a call, and for half a year of machine time there is no need for one.
        if let Some(ps) = instructions.checked_mul(self.0) {
            return (ps / 1000).cast_signed();
        }
        let ns = u128::from(instructions) * u128::from(self.0) / 1000;
        // 2^63 ns are 292 years.
        i64::try_from(ns).unwrap_or(i64::MAX)
    }

    /// How many whole instructions fit into `ns`.
    pub fn instructions(self, ns: i64) -> u64 {
        let (ns, each) = (ns.max(0).unsigned_abs(), self.0.max(1));
        if let Some(ps) = ns.checked_mul(1000) {
            return ps / each;
        }
        let ps = u128::from(ns) * 1000;
        u64::try_from(ps / u128::from(each)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimals_are_thousandths() {
        assert_eq!(Cost::parse("1"), Some(Cost::from_ps(1000)));
        assert_eq!(Cost::parse("0.5"), Some(Cost::from_ps(500)));
        assert_eq!(Cost::parse("1.125"), Some(Cost::from_ps(1125)));
        for bad in [
            "", ".", ".5", "1.1234", "-1", "+1", "1e3", "1 ", "0x1", "9999999",
        ] {
            assert_eq!(Cost::parse(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn time_only_grows_and_loses_less_than_a_nanosecond(ps in 50..100_000_u64, n in 0..1_u64 << 50, more in 0..1_u64 << 40) {
            let cost = Cost::from_ps(ps);
            prop_assert!(cost.ns(n + more) >= cost.ns(n));
            let exact = u128::from(n) * u128::from(ps);
            let got = u128::try_from(cost.ns(n)).expect("not negative") * 1000;
            prop_assert!(got <= exact && exact < got + 1000);
        }

        #[test]
        fn as_many_instructions_as_fit(ps in 50..100_000_u64, ns in 1..1_i64 << 60) {
            let cost = Cost::from_ps(ps);
            let n = cost.instructions(ns);
            prop_assume!(n < u64::MAX);
            prop_assert!(u128::from(n) * u128::from(ps) <= u128::from(ns.unsigned_abs()) * 1000);
            prop_assert!(u128::from(n + 1) * u128::from(ps) > u128::from(ns.unsigned_abs()) * 1000);
        }
    }
}
