use std::sync::atomic::Ordering::Relaxed;

use super::*;

fn parts(carver: &mut Carver) -> (Area<AtomicU8>, Area<AtomicU64>, Area<[AtomicU32; 3]>) {
    (carver.area(5), carver.area(40), carver.area(2))
}

#[test]
fn areas_lie_where_they_were_measured_and_never_in_each_other() {
    let mut measuring = Carver::measuring();
    parts(&mut measuring);
    assert_eq!(measuring.bytes(), 128 + 3 * 128 + 128);
    let mut carver = Carver::heap(measuring.bytes()).expect("there is memory");
    let (bytes, words, threes) = parts(&mut carver);
    assert_eq!(carver.bytes(), measuring.bytes());
    assert_eq!((bytes.len(), words.len(), threes.len()), (5, 40, 2));
    assert_eq!(words.as_ptr().addr() % ALIGN, 0);
    for word in words.iter() {
        assert_eq!(word.swap(u64::MAX, Relaxed), 0);
    }
    assert!(bytes.iter().all(|byte| byte.load(Relaxed) == 0));
    assert!(threes.iter().flatten().all(|word| word.load(Relaxed) == 0));
    drop(carver);
    assert_eq!(
        words[39].load(Relaxed),
        u64::MAX,
        "an area keeps its memory"
    );
}

#[test]
#[should_panic(expected = "an area of 320 bytes at 128 of 256")]
fn an_area_beyond_the_memory_is_none() {
    parts(&mut Carver::heap(256).expect("there is memory"));
}

#[test]
fn what_cant_be_had_is_refused() {
    let mut measuring = Carver::measuring();
    measuring.area::<AtomicU64>(usize::MAX / 2);
    assert!(Carver::heap(measuring.bytes()).is_none());
    assert!(Carver::heap(usize::MAX / 4).is_none());
}

#[test]
fn a_ring_is_indexed_by_the_lowest_bits_and_never_empty() {
    let mut measuring = Carver::measuring();
    let ring: Ring<AtomicU64> = measuring.ring(8);
    assert_eq!(measuring.bytes(), ALIGN);
    assert!(
        std::ptr::eq(ring.at(0), ring.at(usize::MAX)),
        "there is one"
    );
    let mut carver = Carver::heap(2 * ALIGN).expect("there is memory");
    let (ring, one) = (carver.ring::<AtomicU64>(8), carver.one::<AtomicU64>());
    for number in [0, 3, 7, 8, 15, usize::MAX] {
        ring.at(number).fetch_add(1, Relaxed);
    }
    let counts: Vec<u64> = ring.all().iter().map(|word| word.load(Relaxed)).collect();
    assert_eq!(counts, [2, 0, 0, 1, 0, 0, 0, 3]);
    assert_eq!(one.first().load(Relaxed), 0);
}
