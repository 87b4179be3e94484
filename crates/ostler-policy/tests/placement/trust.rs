//! Whether moves bring what they were made for, and what becomes of the margin.

use ostler_model::{CpuId, Trust};
use ostler_policy::placement::Policy;

use super::oracle::close;
use super::two_sockets;

/// Wherever the worker goes, that socket's cache serves less for it: how often it moves in so many decisions.
fn flees(decisions: usize, learns: bool) -> Vec<usize> {
    let mut case = two_sockets();
    for kind in &mut case.kinds {
        kind.cache = 1.0;
    }
    case.pools[0].0 = vec![1, 2];
    case.threads.truncate(1);
    case.threads[0].now = Some(1);
    case.queues[0].1[0].2.truncate(1);
    let mut trust = Trust::default();
    let mut moves = Vec::new();
    for decision in 0..decisions {
        let now = case.threads[0].now.expect("it is somewhere");
        let there = (now / 2) as usize;
        case.sockets[there].l3_hit = 0.6;
        case.sockets[1 - there].l3_hit = 0.8;
        let placement = case
            .place_after(Policy::Chains, 0.05, trust)
            .expect("it can be placed");
        let next = placement.cores[0].expect("it is placed").0;
        if next != now {
            moves.push(decision);
        }
        case.threads[0].now = Some(next);
        if learns {
            trust = placement.trust;
        }
    }
    moves
}

#[test]
fn threads_that_flee_in_vain_stay() {
    assert_eq!(flees(64, false).len(), 64);
    let moves = flees(64, true);
    assert!(moves.len() < 12, "{moves:?}");
    // It is tried again, now and then.
    assert!(moves.iter().any(|at| *at >= 32), "{moves:?}");
}

/// However often moves brought nothing, a core that has no time for a thread is left.
#[test]
fn a_core_that_lacks_time_is_left_without_trust() {
    let mut case = two_sockets();
    for kind in &mut case.kinds {
        kind.base = 1.0;
    }
    case.pools[0].0 = vec![0, 1];
    case.threads.truncate(1);
    case.threads[0].demand = 2.0;
    case.threads[0].now = Some(0);
    case.queues[0].1[0].2.truncate(1);
    case.cores[0].utilisation = 1.0;
    let trust = Trust {
        wary: 16.0,
        promised: None,
    };
    for margin in [0.05, 0.3, 0.5] {
        let placement = case.place_after(Policy::Chains, margin, trust);
        let placement = placement.expect("it can be placed");
        assert_eq!(placement.cores[0], Some(CpuId(1)), "{margin}");
    }
    // For less it stays.
    case.cores[0].utilisation = 0.7;
    case.kinds[0].load = 0.1;
    for (trust, stays) in [(trust, true), (Trust::default(), false)] {
        let placement = case.place_after(Policy::Chains, 0.05, trust);
        assert_eq!(placement.expect("it can be placed").kept, stays);
    }
}

#[test]
fn moves_that_bring_what_they_promise_are_trusted() {
    let mut case = two_sockets();
    for kind in &mut case.kinds {
        kind.base = 1.0;
    }
    case.threads
        .iter_mut()
        .zip([0, 2, 3])
        .for_each(|(thread, core)| thread.now = Some(core));
    let judged = |present: f64, wary, promised| {
        let trust = Trust {
            wary,
            promised: Some(promised),
        };
        let placement = case.place_after(Policy::Chains, 0.0, trust);
        let placement = placement.expect("it can be placed");
        assert!(placement.present.is_some_and(|told| close(told, present)));
        placement.trust.wary
    };
    // 3.2 is what it has come to.
    for (wary, promised, expected) in [
        (8.0, [4.0, 3.0], 6.0),
        (8.0, [3.5, 3.0], 6.0),
        (8.0, [3.3, 3.0], 16.0),
        (16.0, [3.1, 3.0], 16.0),
        (1.0, [4.0, 3.0], 1.0),
        // Nobody promises that it will be worse, and a record may say anything.
        (8.0, [3.0, 4.0], 7.6),
        (f64::NAN, [4.0, 3.0], 1.0),
        (1e300, [3.3, 3.0], 16.0),
        (8.0, [f64::NAN, 3.0], 7.6),
    ] {
        let found = judged(3.2, wary, promised);
        assert!(close(found, expected), "{found} after {wary} {promised:?}");
    }
    // What is found now is what is promised.
    let placement = case.place(Policy::Chains, 0.0).expect("it can be placed");
    let promised = placement.trust.promised.expect("threads move");
    assert!(
        close(promised[0], 3.2) && close(promised[1], 3.1),
        "{promised:?}"
    );
    let kept = case.place(Policy::Chains, 0.5).expect("it can be placed");
    assert_eq!((kept.kept, kept.trust.promised), (true, None));
}
