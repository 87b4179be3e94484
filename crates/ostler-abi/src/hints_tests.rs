use proptest::prelude::*;

use super::*;

fn page(words: &[u32]) -> [AtomicU32; PINS_WORDS] {
    std::array::from_fn(|at| AtomicU32::new(words.get(at).copied().unwrap_or(0)))
}

fn told() -> impl Strategy<Value = Told> {
    let number = || prop::option::of(0..400_u16);
    let core = prop::option::of(0..40_u16);
    (number(), core, any::<bool>()).prop_map(|(group, core, low)| Told { group, core, low })
}

proptest! {
    #[test]
    fn a_table_tells_what_it_was_told_and_of_nobody_else(
        before in prop::collection::vec(told(), 0..40),
        after in prop::collection::vec(told(), 0..40),
        groups in 0..=256_u32,
    ) {
        let mut table = Table::empty();
        table.tell(256, before.iter().copied()).unwrap();
        let sequence = table.header.sequence;
        table.tell(groups, after.iter().copied()).unwrap();
        prop_assert_eq!(table.header.sequence, sequence + 2);
        prop_assert_eq!(table.header.vcpus as usize, after.len());
        for vcpu in 0..VCPUS_MAX {
            let row = table.vcpu[vcpu];
            let told = after.get(vcpu).copied().unwrap_or_default();
            let known = told.group.map(u32::from).filter(|group| *group < groups);
            prop_assert_eq!(table.topology[row.topology.row as usize], known.unwrap_or(NONE));
            // The first on its core has its row for all of them, and says what that one was told.
            let first = told.core.map_or(vcpu, usize::from).min(vcpu);
            prop_assert_eq!(usize::from(row.load.row), first);
            let low = after.get(first).is_some_and(|told| told.low);
            prop_assert_eq!(table.load[first], u32::from(!low));
        }
        let bytes = table.as_bytes().to_vec();
        prop_assert_eq!(&Table::read_from_bytes(&bytes).unwrap(), &*table);
    }

    #[test]
    fn of_what_a_guest_writes_no_more_is_taken_than_yes_or_no_of_its_vcpus(
        words in prop::collection::vec(prop_oneof![Just(0), Just(1), any::<u32>()], 0..100),
        vcpus in 0..2000_usize,
    ) {
        let mut reader = PinReader::new(10);
        prop_assert!(reader.read(&page(&words), vcpus, 5));
        for vcpu in 0..3000 {
            let asked = vcpu < vcpus && words.get(vcpu) == Some(&1);
            prop_assert_eq!(reader.wishes(vcpu), asked);
        }
        let nonsense = words.iter().take(vcpus).filter(|word| **word > 1).count();
        prop_assert_eq!(reader.nonsense(), nonsense as u64);
    }

    #[test]
    fn a_guest_is_looked_at_once_in_an_interval(steps in prop::collection::vec(0..30_u64, 1..100)) {
        let mut reader = PinReader::new(10);
        let (mut now, mut looked) = (0, Vec::new());
        for step in steps {
            now += step;
            if reader.read(&page(&[]), 4, now) {
                looked.push(now);
            }
        }
        prop_assert!(looked.windows(2).all(|two| two[1] - two[0] >= 10));
        // And none is put off beyond it.
        prop_assert!(now - looked.last().unwrap() < 10);
    }
}

#[test]
fn a_sequence_that_wraps_is_never_that_of_nothing_written() {
    let mut table = Table::empty();
    table.header.sequence = u32::MAX - 1;
    table.tell(1, [Told::default()].into_iter()).unwrap();
    assert_eq!(table.header.sequence, 2);
}

#[test]
fn what_doesnt_fit_is_refused_and_nothing_is_written() {
    let mut table = Table::empty();
    let before = table.clone();
    let many = vec![Told::default(); VCPUS_MAX + 1];
    assert_eq!(
        table.tell(1, many.into_iter()),
        Err(TableError::Vcpus(VCPUS_MAX + 1))
    );
    assert_eq!(
        table.tell(257, [Told::default()].into_iter()),
        Err(TableError::Groups(257))
    );
    assert_eq!(table, before);
}
