//! The two ways the kernel writes sets of CPUs: lists (`0-3,8`) and hexadecimal masks (`00000000,0000010f`).

use std::fmt::Write as _;

use ostler_abi::guest::VCPUS_MAX;

/// The CPUs of a list, ascending; `None` where it isn't one or names a CPU past [`VCPUS_MAX`].
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= VCPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// The list of `cpus`, which are ascending, as the kernel would print it.
pub fn format_list(cpus: &[u32]) -> String {
    let mut text = String::new();
    for run in cpus.chunk_by(|a, b| a + 1 == *b) {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a String can't fail.
        let _ = match run {
            [one] => write!(text, "{comma}{one}"),
            _ => write!(text, "{comma}{}-{}", run[0], run[run.len() - 1]),
        };
    }
    text
}

/// The CPUs of a mask, ascending; `None` where it isn't one or names a CPU past [`VCPUS_MAX`].
pub fn parse_mask(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for (group, word) in text.trim().rsplit(',').enumerate() {
        let word = u32::from_str_radix(word, 16).ok()?;
        let base = u32::try_from(group).ok()?.checked_mul(32)?;
        cpus.extend(
            (0..32)
                .filter(|bit| word & (1 << bit) != 0)
                .map(|bit| base + bit),
        );
    }
    cpus.last()
        .is_none_or(|&last| last < VCPUS_MAX)
        .then_some(cpus)
}

/// The mask of `cpus`, in as many words as they need.
pub fn format_mask(cpus: &[u32]) -> String {
    let words = cpus.iter().max().map_or(1, |&max| max as usize / 32 + 1);
    let mut mask = vec![0_u32; words];
    for &cpu in cpus {
        mask[cpu as usize / 32] |= 1 << (cpu % 32);
    }
    let words: Vec<String> = mask
        .iter()
        .rev()
        .map(|word| format!("{word:08x}"))
        .collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_and_masks_round_trip(cpus in prop::collection::btree_set(0..VCPUS_MAX, 0..80)) {
            let cpus: Vec<u32> = cpus.into_iter().collect();
            prop_assert_eq!(parse_list(&format_list(&cpus)), Some(cpus.clone()));
            prop_assert_eq!(parse_mask(&format_mask(&cpus)), Some(cpus));
        }

        #[test]
        fn no_text_panics_or_names_a_cpu_past_the_bound(text in "[0-9a-fx,\\- \n]{0,40}") {
            for cpus in [parse_list(&text), parse_mask(&text)].into_iter().flatten() {
                prop_assert!(cpus.iter().all(|&cpu| cpu < VCPUS_MAX));
                prop_assert!(cpus.is_sorted());
            }
        }
    }

    #[test]
    fn the_kernels_own_spellings() {
        assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(format_list(&[0, 1, 2, 3, 8]), "0-3,8");
        assert_eq!(parse_mask("00000001,80000001\n"), Some(vec![0, 31, 32]));
        assert_eq!(parse_list("0-4294967295"), None);
    }
}
