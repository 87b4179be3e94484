use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A machine's cores and groups, and what becomes of which line.
type Steps = (usize, usize, Vec<(u64, Entry)>);

/// Entries of the narrowest and the widest machines.
fn steps() -> impl Strategy<Value = Steps> {
    let machine = prop_oneof![
        Just((1_usize, 1_usize)),
        Just((8, 7)),
        Just((8, 8)),
        Just((24, 7)),
        Just((24, 8)),
        Just((52, 11)),
        Just((60, 4)),
        Just((64, 1)),
        Just((64, 64))
    ];
    machine.prop_flat_map(|(cores, groups)| {
        let mask = |bits: usize| u64::MAX >> (64 - bits);
        let lines = prop_oneof![0_u64..40, 4090_u64..4100, 9_990_u64..10_000];
        let entry = (any::<u64>(), any::<u64>(), any::<bool>(), any::<bool>());
        let entry = entry.prop_map(move |(some, others, exclusive, gone)| {
            if gone {
                return Entry::default();
            }
            Entry {
                cores: some & mask(cores),
                groups: others & mask(groups),
                exclusive,
            }
        });
        let steps = proptest::collection::vec((lines, entry), 0..200);
        (Just(cores), Just(groups), steps)
    })
}

proptest! {
    #[test]
    fn the_directory_is_a_map((cores, groups, steps) in steps()) {
        let mut measuring = Carver::measuring();
        Directory::new(10_000, cores, groups, &mut measuring);
        let mut carver = Carver::heap(measuring.bytes()).expect("there is memory");
        let directory = Directory::new(10_000, cores, groups, &mut carver);
        let mut map = BTreeMap::new();
        for (line, entry) in steps {
            directory.put(line, entry);
            if entry == Entry::default() {
                map.remove(&line);
            } else {
                map.insert(line, entry);
            }
        }
        let all: BTreeMap<u64, Entry> = directory.contents().collect();
        prop_assert_eq!(&all, &map);
        for line in (0..50).chain(4080..4110).chain(9980..10_000) {
            prop_assert_eq!(directory.get(line), map.get(&line).copied().unwrap_or_default());
        }
    }
}
