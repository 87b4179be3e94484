use super::*;

/// A cache with memory of its own.
fn l1(sets: usize, ways: usize) -> L1 {
    let mut measuring = Carver::measuring();
    L1::new(sets, ways, &mut measuring);
    let mut carver = Carver::heap(measuring.bytes()).expect("there is memory");
    L1::new(sets, ways, &mut carver)
}

#[test]
fn a_word_is_its_line_only_with_a_state() {
    for (sets, ways) in [(1, 1), (64, 8), (64, 12), (2, 16)] {
        let l1 = l1(sets, ways);
        let end = L1::end(sets as u64);
        assert!(l1.above(end - 1).is_some() && l1.above(end).is_none());
        for line in [0, 1, 5, end - 1 - sets as u64] {
            let set = l1.set(line);
            assert_eq!(l1.content(set, 0), None);
            let states = [State::Shared, State::Exclusive, State::Modified];
            let words = states.map(|state| l1.word(line, state));
            for (state, word) in states.into_iter().zip(words) {
                assert_ne!(word, 0);
                assert_eq!(l1.content(set, word), Some((line, state)));
                let other = l1.word(line ^ sets as u64, state);
                assert_eq!(l1.content(set, other), Some((line ^ sets as u64, state)));
                assert!(!words.contains(&other));
            }
        }
    }
}

/// What no cache could hold is never found, though its lowest bits are those of a line that is there.
#[test]
fn a_line_beyond_all_memory_is_nowhere() {
    let l1 = l1(64, 8);
    for line in [0, 5, 64] {
        l1.put(line, State::Modified);
        for beyond in [L1::end(64), 1 << 36, 1 << 37, 1 << 57] {
            assert!(!l1.hit(line + beyond, false) && !l1.hit(line + beyond, true));
            assert_eq!(l1.take(line + beyond), None);
        }
        assert!(l1.hit(line, true));
    }
}

#[test]
fn a_store_needs_the_line_for_itself_and_says_that_it_changed_it() {
    let l1 = l1(4, 2);
    assert!(!l1.hit(8, false));
    l1.put(8, State::Shared);
    assert!(l1.hit(8, false) && !l1.hit(8, true));
    l1.put(8, State::Exclusive);
    assert!(l1.hit(8, true));
    assert_eq!(
        l1.share(8),
        Some(State::Modified),
        "whoever shares it learns of the store"
    );
    assert!(!l1.hit(8, true));
    assert_eq!(l1.take(8), Some(State::Shared));
    assert_eq!(l1.take(8), None);
}

/// A store without a lock races with somebody who takes the line away: one of them is first, and both know which.
#[test]
fn a_store_and_a_theft_at_once_agree_on_who_was_first() {
    let l1 = l1(1, 1);
    let (mut before, mut after) = (0, 0);
    for _ in 0..2_000 {
        l1.put(1, State::Exclusive);
        let (stored, stolen) = std::thread::scope(|scope| {
            let thief = scope.spawn(|| l1.take(1));
            (l1.hit(1, true), thief.join().expect("it doesn't panic"))
        });
        match (stored, stolen) {
            (true, Some(State::Modified)) => before += 1,
            (false, Some(State::Exclusive)) => after += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(before + after, 2_000);
}

/// The same, with the worst of moments chosen: the line goes between the look and the store.
#[test]
fn a_store_to_a_line_that_has_just_gone_changes_nothing() {
    let l1 = l1(1, 1);
    let seen = l1.word(1, State::Exclusive);
    l1.put(1, State::Exclusive);
    assert_eq!(l1.take(1), Some(State::Exclusive));
    assert!(!l1.own(l1.tag(0, 0), seen));
    assert!(!l1.hit_in(1, true, 0, 0) && !l1.hit_in(1, false, 0, 0));
    assert!(l1.contents().is_empty(), "no stale copy");
    l1.put(1, State::Exclusive);
    assert_eq!(l1.share(1), Some(State::Exclusive));
    assert!(!l1.own(l1.tag(0, 0), seen));
    assert_eq!(l1.contents(), [(1, State::Shared)]);
}
