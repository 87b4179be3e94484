//! Sets of vCPUs as bit maps: vCPU `i` is bit `i % 8` of byte `i / 8`, and the last byte is never zero.

use thiserror::Error;

/// A bit map that isn't a set of vCPUs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BitsError {
    /// It ends in a zero byte, so the same set could be written in two ways.
    #[error("the vCPU set isn't in its shortest form; drop its trailing zero bytes")]
    NotShortest,
    /// It names a vCPU that can't be.
    #[error("the vCPU set names vCPU {vcpu}, but there are only {count}")]
    OutOfRange {
        /// The highest vCPU named.
        vcpu: u64,
        /// How many there are.
        count: u32,
    },
}

/// The bit map of `ids`, in any order, repeated or not.
pub fn from_ids(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut map = Vec::new();
    for id in ids {
        let byte = id as usize / 8;
        if map.len() <= byte {
            map.resize(byte + 1, 0);
        }
        map[byte] |= 1 << (id % 8);
    }
    map
}

/// The ids in `map`, ascending; each is below `count`.
pub fn to_ids(map: &[u8], count: u32) -> Result<Vec<u32>, BitsError> {
    let Some(&last) = map.last() else {
        return Ok(Vec::new());
    };
    if last == 0 {
        return Err(BitsError::NotShortest);
    }
    let highest = map.len() as u64 * 8 - 1 - u64::from(last.leading_zeros());
    if highest >= u64::from(count) {
        return Err(BitsError::OutOfRange {
            vcpu: highest,
            count,
        });
    }
    Ok((0..count)
        .take_while(|&id| u64::from(id) <= highest)
        .filter(|&id| map[id as usize / 8] & (1 << (id % 8)) != 0)
        .collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sets_round_trip(ids in prop::collection::btree_set(0_u32..1024, 0..100)) {
            let back = to_ids(&from_ids(ids.iter().copied()), 1024).unwrap();
            prop_assert_eq!(back.into_iter().collect::<BTreeSet<_>>(), ids);
        }

        #[test]
        fn any_bytes_are_one_set_or_refused(map in prop::collection::vec(any::<u8>(), 0..40), count in 0_u32..400) {
            match to_ids(&map, count) {
                Ok(ids) => {
                    prop_assert!(ids.iter().all(|&id| id < count));
                    prop_assert_eq!(from_ids(ids), map);
                }
                Err(BitsError::NotShortest) => prop_assert_eq!(map.last(), Some(&0)),
                Err(BitsError::OutOfRange { vcpu, .. }) => prop_assert!(vcpu >= u64::from(count)),
            }
        }
    }
}
