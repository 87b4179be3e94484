//! The page's rules, one step at a time.

use super::*;

const COST: Cost = Cost::from_ps(1000);
const QUANTUM: i64 = 1000;

fn page() -> &'static Page {
    Box::leak(Box::default())
}

fn join(page: &'static Page, me: usize) -> Option<Fused> {
    Fused::join(page, me, 2, QUANTUM, 2000)
}

#[test]
fn each_place_is_taken_once() {
    let page = page();
    let first = join(page, 0).expect("it is free");
    assert!(join(page, 0).is_none(), "taken");
    assert!(join(page, MACHINES).is_none(), "there is no such place");
    assert!(join(page, 1).is_some() && first.me() == 0);
    let old = self::page();
    old.magic.store(7, Ordering::SeqCst);
    assert!(join(old, 0).is_none(), "another version's");
    assert!(Fused::join(self::page(), 0, CORES + 1, QUANTUM, 2000).is_none());
}

#[test]
fn who_has_not_started_holds_all_and_who_has_ended_nobody() {
    let page = page();
    let first = join(page, 0).expect("it is free");
    let held = Some(Behind {
        machine: 1,
        time: 0,
    });
    assert_eq!(first.behind(QUANTUM), None);
    assert_eq!(first.behind(QUANTUM + 1), held, "before it has even come");
    let second = join(page, 1).expect("it is free");
    assert_eq!(first.behind(QUANTUM + 1), held);
    second.started();
    assert_eq!(first.behind(i64::MAX / 2), None, "idle, with no timer");
    second.timer(Some(5000));
    assert_eq!(first.behind(6000), None);
    assert_eq!(first.behind(6001).map(|b| b.time), Some(5000));
    second.ended();
    assert_eq!(first.behind(6001), None);
    assert_eq!(second.lost(), None, "it is this very process");
}

#[test]
fn what_is_rung_holds_the_ringer_until_it_is_delivered() {
    let page = page();
    let (first, second) = (join(page, 0).expect("free"), join(page, 1).expect("free"));
    first.started();
    second.started();
    assert!(first.ring(1, 1, 500) && first.ring(1, 1, 400));
    assert!(!first.ring(1, 2, 500), "no such core");
    assert!(!first.ring(MACHINES, 0, 500), "no such machine");
    assert_eq!((second.bell(0), second.bell(1)), (None, Some(2400)));
    assert_eq!(first.behind(3400), None);
    assert!(first.behind(3401).is_some());
    let mut delivered = Vec::new();
    second.deliver(1, 2399, 512, |at| delivered.push(at));
    assert_eq!(delivered, [], "not yet");
    second.deliver(1, 2400, 512, |at| {
        assert!(first.behind(3401).is_some(), "not before its core is awake");
        delivered.push(at);
    });
    assert_eq!((delivered, second.bell(1)), (vec![2400], Some(2500)));
    second.deliver(1, 9000, 512, |_| {});
    assert_eq!(second.bell(1), None);
    assert_eq!(second.rings.delivered.load(Ordering::SeqCst), 2);
    assert_eq!(second.rings.late.load(Ordering::SeqCst), 1);
    assert_eq!(second.rings.most_late_ns.load(Ordering::SeqCst), 6500);
}

#[test]
fn too_many_rings_at_once_are_heard_as_one() {
    let page = page();
    let (first, second) = (join(page, 0).expect("free"), join(page, 1).expect("free"));
    for time in 0..100 {
        assert!(first.ring(1, 0, time));
    }
    assert_eq!(
        first.rings.merged.load(Ordering::SeqCst),
        100 - BELLS as u64
    );
    let mut times = 0;
    second.deliver(0, 9000, 512, |at| {
        assert_eq!(at, 2000);
        times += 1;
    });
    assert_eq!((times, second.bell(0)), (1, None));
}

#[test]
fn the_largest_quantum_that_fits_a_latency_is_told() {
    assert_eq!(fits(992, 2000, COST), Ok(()));
    assert_eq!(fits(993, 2000, COST), Err(992));
    assert_eq!(fits(100, 400, COST), Err(-74), "not even a block fits");
    assert_eq!(fits(992, 2000, Cost::from_ps(500)), Ok(()));
}

#[test]
fn a_process_that_is_gone_is_seen() {
    assert!(lives(std::process::id()));
    let mut child = std::process::Command::new("true")
        .spawn()
        .expect("it starts");
    let id = child.id();
    // A zombie is as good as gone; and so is a process that was never there.
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    while lives(id) {
        assert!(std::time::Instant::now() < deadline, "it never ended");
        std::thread::yield_now();
    }
    child.wait().expect("it is a child of ours");
    assert!(!lives(id));
}
