use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;

fn pages() -> Vec<AtomicU64> {
    (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect()
}

const HEADER: Header = Header {
    cores: 3,
    nodes: 2,
    caches: true,
};

fn counts() -> impl Strategy<Value = Counts> {
    prop::collection::vec(any::<u64>(), COUNTS_WORDS)
        .prop_map(|words| Counts::of(&words.try_into().expect("as many as there are")))
}

proptest! {
    #[test]
    fn what_is_written_is_read(all in prop::collection::vec((0..3_usize, counts()), 1..20)) {
        let pages = pages();
        begin(&pages, HEADER);
        let mut last = [Counts::default(); 3];
        for (core, counts) in all {
            write(&pages, core, &counts);
            last[core] = counts;
            for (core, expected) in last.iter().enumerate() {
                prop_assert_eq!(&read(&pages, core).expect("it is there"), expected);
            }
        }
    }

    #[test]
    fn no_bytes_break_a_reader(words in prop::collection::vec(any::<u64>(), 0..400), valid in any::<bool>(), core in any::<usize>()) {
        let pages: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
        if let (true, [magic, version, ..]) = (valid, &pages[..]) {
            magic.store(MAGIC, Ordering::Relaxed);
            version.store(VERSION, Ordering::Relaxed);
        }
        let _ = read(&pages, core);
    }
}

/// Each record that is read is one that was written, never halves of two.
#[test]
fn a_reader_never_sees_half_a_record() {
    let pages = pages();
    begin(&pages, HEADER);
    let done = AtomicBool::new(false);
    let uniform = |value: u64| Counts::of(&[value; COUNTS_WORDS]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 1..=200_000 {
                write(&pages, 1, &uniform(value));
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut last = 0;
        loop {
            let ends = done.load(Ordering::SeqCst);
            match read(&pages, 1) {
                Ok(counts) => {
                    assert_eq!(counts, uniform(counts.time_ns), "torn");
                    assert!(counts.time_ns >= last, "older than what was read before");
                    last = counts.time_ns;
                }
                Err(error) => assert_eq!(error, PmuError::Restless(1)),
            }
            if ends {
                break;
            }
        }
        assert_eq!(last, 200_000);
    });
}

/// A writer that is stopped in the midst of a record holds no reader up.
#[test]
fn a_stopped_writer_leaves_the_last_record() {
    let pages = pages();
    begin(&pages, HEADER);
    let counts = Counts {
        time_ns: 7,
        instructions: 8,
        ..Counts::default()
    };
    write(&pages, 2, &counts);
    let record = &pages[HEADER_WORDS + 2 * RECORD_WORDS..][..RECORD_WORDS];
    for word in &copy(record, 2)[..COPY_WORDS / 2] {
        word.store(99, Ordering::Relaxed);
    }
    assert_eq!(read(&pages, 2), Ok(counts));
}

#[test]
fn what_isnt_a_machines_counters_is_named() {
    let pages = pages();
    assert_eq!(read(&pages, 0), Err(PmuError::NotOurs(0)));
    assert_eq!(header(&[]), Err(PmuError::NotOurs(0)));
    begin(&pages, HEADER);
    assert_eq!(header(&pages), Ok(HEADER));
    assert_eq!(read(&pages, 3), Err(PmuError::NoCore(3)));
    pages[1].store(1, Ordering::Relaxed);
    assert_eq!(header(&pages), Err(PmuError::Version(1)));
    pages[1].store(VERSION, Ordering::Relaxed);
    pages[2].store(65, Ordering::Relaxed);
    assert!(matches!(
        header(&pages),
        Err(PmuError::Size { cores: 65, .. })
    ));
    // Half of it: two records fit in, and it says three.
    pages[2].store(3, Ordering::Relaxed);
    let cut = &pages[..HEADER_WORDS + 3 * RECORD_WORDS - 1];
    assert!(matches!(header(cut), Err(PmuError::Size { cores: 3, .. })));
}

#[test]
fn a_difference_counts_what_was_done_between() {
    let then = Counts::of(&std::array::from_fn(|at| at as u64));
    let now = Counts::of(&std::array::from_fn(|at| 3 * at as u64));
    assert_eq!(
        now.since(&then),
        Counts::of(&std::array::from_fn(|at| 2 * at as u64))
    );
    assert_eq!(now.accesses(), (10..42).map(|at| 3 * at).sum::<u64>());
    assert_eq!(now.at(0), 3 * (10 + 18 + 26 + 34));
}

#[test]
fn vcpus_are_told_by_whose_they_are() {
    let pages = pages();
    begin(&pages, HEADER);
    assert_eq!(read_vcpus(&pages), Ok(Vec::new()));
    let counts = |instructions| Counts {
        instructions,
        ..Counts::default()
    };
    write_vcpu(&pages, 0, 0x7000, &counts(1));
    write_vcpu(&pages, VCPUS_MAX - 1, 0x9000, &counts(2));
    write(&pages, 0, &counts(3));
    let expected = vec![(0x7000, counts(1)), (0x9000, counts(2))];
    assert_eq!(read_vcpus(&pages), Ok(expected));
    // Given to another.
    write_vcpu(&pages, 0, 0x8000, &counts(0));
    assert_eq!(read_vcpus(&pages).map(|all| all[0].0), Ok(0x8000));
    assert_eq!(
        read(&pages, 0),
        Ok(counts(3)),
        "cores have places of their own"
    );
    assert_eq!(
        read_vcpus(&pages[..HEADER_WORDS + 4 * RECORD_WORDS]),
        Ok(Vec::new())
    );
}
