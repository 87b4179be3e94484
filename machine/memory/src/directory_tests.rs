use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

proptest! {
    /// Few places and many removals, so that entries stand far from home and gaps must close.
    #[test]
    fn the_table_is_a_map(steps in proptest::collection::vec((0_u64..40, 0_u64..4), 0..400)) {
        let mut table = Directory::new(12, 2);
        let mut map = BTreeMap::new();
        for (line, cores) in steps {
            let line = line << 2 | 1;
            if map.len() >= 12 && !map.contains_key(&line) {
                continue;
            }
            let entry = Entry { cores, ..Entry::default() };
            table.put(line, entry);
            if cores == 0 {
                map.remove(&line);
            } else {
                map.insert(line, entry);
            }
            let all: BTreeMap<u64, Entry> = table.contents().collect();
            prop_assert_eq!(&all, &map);
            for line in 0..160 {
                prop_assert_eq!(table.get(line), map.get(&line).copied().unwrap_or_default());
            }
        }
    }
}
