//! The hot loop allocates nothing per request: a promise, so it is counted.

// A global allocator is an unsafe trait; this one only counts and passes on.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostler_load::driver::{Driver, Shape};
use ostler_load::ledger::Limits;
use ostler_load::proto::{Echo, KeyMix, Keyspace, Memcached, Ping, Protocol, Redis};
use ostler_load::schedule::{Plan, SECOND_NS};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which upholds the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, with this `layout`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Answers each request at once, for three seconds; returns how many allocations the last two of them took.
fn allocations<P: Protocol>(
    protocol: P,
    mut answer: impl FnMut(&[u8], &mut dyn FnMut(&[u8])),
) -> u64 {
    let plan = Plan::parse("50000x3").unwrap();
    let limits = Limits {
        drain_ns: SECOND_NS,
        late_ns: 1_000,
        slo_ns: None,
    };
    let shape = Shape {
        lanes: 8,
        depth: 4,
        queue: 1_000,
        seed: 1,
        stream: 0,
    };
    let mut driver = Driver::new(protocol, &plan, shape, limits);
    for lane in 0..shape.lanes {
        driver.lane_opened(lane);
    }
    let mut sent = Vec::with_capacity(1 << 16);
    let (mut now_ns, mut settled, mut at_first_second) = (0, 0, 0);
    while !driver.is_done() {
        driver.advance(now_ns);
        while let Some(lane) = driver.take_dirty() {
            sent.clear();
            sent.extend_from_slice(driver.unsent(lane));
            driver.wrote(lane, sent.len());
            answer(&sent, &mut |reply| {
                driver.received(lane, reply, now_ns).unwrap();
            });
        }
        while let Some(window) = driver.settle(now_ns) {
            settled += window.completed;
            if at_first_second == 0 {
                at_first_second = ALLOCATIONS.load(Ordering::Relaxed);
            }
        }
        now_ns += 20_000;
    }
    assert!(settled > 140_000, "{settled}");
    ALLOCATIONS.load(Ordering::Relaxed) - at_first_second
}

#[test]
fn allocations_grow_with_seconds_not_with_requests() {
    let keys = Arc::new(Keyspace::new(1_000, 1_000, 1).unwrap());
    let gets = KeyMix {
        set_share: 0.0,
        key_skew: 0.99,
    };
    let lines = |sent: &[u8]| sent.windows(2).filter(|&w| w == b"\r\n").count();
    // One test, and one thread: the count is the whole program's.
    let counts = [
        allocations(
            Memcached::new(Arc::clone(&keys), gets).unwrap(),
            |sent, reply| (0..lines(sent)).for_each(|_| reply(b"END\r\n")),
        ),
        // A get of redis is five lines.
        allocations(Redis::new(keys, gets).unwrap(), |sent, reply| {
            (0..lines(sent) / 5).for_each(|_| reply(b"$-1\r\n"));
        }),
        allocations(Echo, |sent, reply| reply(sent)),
        allocations(Ping, |sent, reply| {
            for request in sent.chunks(64) {
                let mut datagram = [0; 64];
                datagram[1..].copy_from_slice(&request[1..]);
                reply(&datagram);
            }
        }),
    ];
    assert!(
        counts.iter().all(|&count| count < 50),
        "{counts:?} allocations in two seconds of 50000 requests each"
    );
}
