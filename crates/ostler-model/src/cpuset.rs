//! A set of CPUs, in the kernel's list notation (`0-3,7`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::CpuId;

/// The largest number of CPUs a set can name. The set is a value of fixed size so that hot paths copy it without allocating.
pub const MAX_CPUS: u32 = 1024;

const WORDS: usize = MAX_CPUS as usize / 64;

/// A set of CPUs with ids below [`MAX_CPUS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CpuSet {
    words: [u64; WORDS],
}

/// Why a text is no set of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseCpuSetError {
    /// A part is neither `N` nor `N-M`.
    #[error("`{0}` is neither a CPU number nor a range like 0-3")]
    Part(String),
    /// A range runs backwards.
    #[error("the range `{0}` runs backwards; write the smaller CPU first")]
    Backwards(String),
    /// A CPU is out of range.
    #[error("CPU {0} is beyond the {MAX_CPUS} CPUs that ostler can name")]
    TooLarge(u64),
}

impl CpuSet {
    /// The set without any CPU.
    pub const EMPTY: CpuSet = CpuSet { words: [0; WORDS] };

    /// The CPUs `start..end`; ids at or above [`MAX_CPUS`] are left out.
    pub fn range(start: u32, end: u32) -> CpuSet {
        (start..end.min(MAX_CPUS)).map(CpuId).collect()
    }

    /// The set of a single CPU.
    #[inline]
    pub fn single(cpu: CpuId) -> CpuSet {
        let mut set = CpuSet::EMPTY;
        set.insert(cpu);
        set
    }

    /// Adds a CPU; says whether it was new. A CPU at or above [`MAX_CPUS`] is not added.
    #[inline]
    pub fn insert(&mut self, cpu: CpuId) -> bool {
        let Some(word) = self.words.get_mut(cpu.0 as usize / 64) else {
            return false;
        };
        let bit = 1 << (cpu.0 % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Removes a CPU; says whether it was there.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) -> bool {
        let Some(word) = self.words.get_mut(cpu.0 as usize / 64) else {
            return false;
        };
        let bit = 1 << (cpu.0 % 64);
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// Whether the CPU is in the set.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words
            .get(cpu.0 as usize / 64)
            .is_some_and(|word| word & (1 << (cpu.0 % 64)) != 0)
    }

    /// How many CPUs are in the set.
    #[inline]
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether there is no CPU in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.iter().fold(0, |all, word| all | word) == 0
    }

    /// The CPU with the lowest number.
    pub fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// The CPUs in either set.
    #[inline]
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        self.zip(other, |a, b| a | b)
    }

    /// The CPUs in both sets.
    #[inline]
    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        self.zip(other, |a, b| a & b)
    }

    /// The CPUs in this set that are not in the other.
    #[inline]
    #[must_use]
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        self.zip(other, |a, b| a & !b)
    }

    /// Adds the CPUs of the other set: a union in place.
    #[inline]
    pub fn unite(&mut self, other: &CpuSet) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    /// Whether no CPU is in both sets.
    #[inline]
    pub fn is_disjoint(&self, other: &CpuSet) -> bool {
        self.none(other, |a, b| a & b)
    }

    /// Whether every CPU of this set is in the other.
    #[inline]
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.none(other, |a, b| a & !b)
    }

    /// The CPUs in ascending order.
    #[inline]
    pub fn iter(&self) -> CpuSetIter {
        CpuSetIter {
            words: self.words,
            word: 0,
        }
    }

    /// Whether `op` leaves no bit of any word. Not the first one that it leaves ends the loop: sixteen words are few, and without an end in
    /// their midst the compiler takes several at a time.
    #[inline]
    fn none(&self, other: &CpuSet, op: impl Fn(u64, u64) -> u64) -> bool {
        let words = self.words.iter().zip(&other.words);
        words.fold(0, |all, (&a, &b)| all | op(a, b)) == 0
    }

    #[inline]
    fn zip(&self, other: &CpuSet, op: impl Fn(u64, u64) -> u64) -> CpuSet {
        let mut out = CpuSet::EMPTY;
        for (out, (&a, &b)) in out
            .words
            .iter_mut()
            .zip(self.words.iter().zip(&other.words))
        {
            *out = op(a, b);
        }
        out
    }
}

impl Default for CpuSet {
    fn default() -> CpuSet {
        CpuSet::EMPTY
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> CpuSet {
        let mut set = CpuSet::EMPTY;
        set.extend(cpus);
        set
    }
}

impl Extend<CpuId> for CpuSet {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

impl IntoIterator for &CpuSet {
    type Item = CpuId;
    type IntoIter = CpuSetIter;

    fn into_iter(self) -> CpuSetIter {
        self.iter()
    }
}

/// The CPUs of a [`CpuSet`], in ascending order.
#[derive(Clone, Debug)]
pub struct CpuSetIter {
    words: [u64; WORDS],
    word: usize,
}

impl Iterator for CpuSetIter {
    type Item = CpuId;

    #[inline]
    fn next(&mut self) -> Option<CpuId> {
        while let Some(bits) = self.words.get_mut(self.word) {
            if *bits == 0 {
                self.word += 1;
                continue;
            }
            let bit = bits.trailing_zeros();
            *bits &= *bits - 1;
            let base = u32::try_from(self.word * 64).unwrap_or(MAX_CPUS);
            return Some(CpuId(base + bit));
        }
        None
    }
}

impl fmt::Display for CpuSet {
    /// The kernel's list notation; the empty set is the empty text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().map(|cpu| cpu.0).peekable();
        let mut first = true;
        while let Some(start) = cpus.next() {
            let mut end = start;
            while cpus.next_if_eq(&(end + 1)).is_some() {
                end += 1;
            }
            if !first {
                f.write_str(",")?;
            }
            first = false;
            match end - start {
                0 => write!(f, "{start}")?,
                _ => write!(f, "{start}-{end}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<CpuSet, ParseCpuSetError> {
        let mut set = CpuSet::EMPTY;
        for part in text.trim().split(',').map(str::trim) {
            if part.is_empty() && text.trim().is_empty() {
                continue;
            }
            let number = |text: &str| {
                // `parse` takes a leading plus sign, which the kernel does not.
                if !text.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(ParseCpuSetError::Part(part.to_owned()));
                }
                let n: u64 = text
                    .parse()
                    .map_err(|_| ParseCpuSetError::Part(part.to_owned()))?;
                u32::try_from(n)
                    .ok()
                    .filter(|&n| n < MAX_CPUS)
                    .ok_or(ParseCpuSetError::TooLarge(n))
            };
            let (start, end) = match part.split_once('-') {
                Some((start, end)) => (number(start)?, number(end)?),
                None => (number(part)?, number(part)?),
            };
            if end < start {
                return Err(ParseCpuSetError::Backwards(part.to_owned()));
            }
            set.extend((start..=end).map(CpuId));
        }
        Ok(set)
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CpuSet, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ids() -> impl Strategy<Value = BTreeSet<u32>> {
        proptest::collection::btree_set(0..MAX_CPUS, 0..80)
    }

    fn set(ids: &BTreeSet<u32>) -> CpuSet {
        ids.iter().copied().map(CpuId).collect()
    }

    proptest! {
        #[test]
        fn text_round_trips(ids in ids()) {
            let set = set(&ids);
            prop_assert_eq!(set.to_string().parse::<CpuSet>(), Ok(set));
            prop_assert_eq!(set.iter().map(|cpu| cpu.0).collect::<BTreeSet<_>>(), ids);
        }

        #[test]
        fn algebra_agrees_with_a_tree_set(a in ids(), b in ids()) {
            let (sa, sb) = (set(&a), set(&b));
            prop_assert_eq!(sa.union(&sb), set(&a.union(&b).copied().collect()));
            prop_assert_eq!(sa.intersection(&sb), set(&a.intersection(&b).copied().collect()));
            prop_assert_eq!(sa.difference(&sb), set(&a.difference(&b).copied().collect()));
            let mut both = sa;
            both.unite(&sb);
            prop_assert_eq!(both, sa.union(&sb));
            prop_assert!(sa.is_subset(&both) && sa.is_disjoint(&sb.difference(&sa)));
            prop_assert_eq!(sa.is_subset(&sb), a.is_subset(&b));
            prop_assert_eq!(sa.is_disjoint(&sb), a.is_disjoint(&b));
            prop_assert_eq!(sa.is_empty(), a.is_empty());
            prop_assert_eq!(sa.len() as usize, a.len());
        }

        #[test]
        fn any_text_is_a_set_or_an_error(text in "[0-9,\\- +]{0,20}") {
            if let Ok(set) = text.parse::<CpuSet>() {
                prop_assert_eq!(set.to_string().parse::<CpuSet>(), Ok(set));
            }
        }
    }

    #[test]
    fn refuses_what_the_kernel_refuses() {
        assert_eq!(
            "3-1".parse::<CpuSet>(),
            Err(ParseCpuSetError::Backwards("3-1".into()))
        );
        assert_eq!(
            "1024".parse::<CpuSet>(),
            Err(ParseCpuSetError::TooLarge(1024))
        );
        for text in ["x", "1,,2", "1-", "-1", "+1", "1-2-3", ","] {
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
        assert_eq!("".parse::<CpuSet>(), Ok(CpuSet::EMPTY));
        assert_eq!(CpuSet::range(0, 4).to_string(), "0-3");
    }
}
