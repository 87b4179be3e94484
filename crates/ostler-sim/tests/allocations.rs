//! A world that has come to rest allocates nothing.

#[allow(dead_code, reason = "what is done to worlds is others' tests' to do")]
mod worlds;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ostler_model::Nanos;
use worlds::{Class, crowded};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what this thread asks for.
struct Counting;

#[allow(unsafe_code, reason = "an allocator is made of unsafe functions")]
// SAFETY: all is handed on to the system's. What isn't written here is made of these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's word for it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's word for it.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A queue that gets longer than it ever was has to have more room, whenever that is. So what is promised is that it is seldom.
#[test]
fn a_world_that_has_come_to_rest_allocates_for_less_than_one_event_in_twenty_thousand() {
    for class in [Class::Fair, Class::Boost, Class::BoostWorkers] {
        let (mut world, _) = crowded(1, class);
        let mut until = |ms| {
            let before = (ALLOCATIONS.get(), world.queue.taken());
            assert_eq!(world.run(Nanos::from_millis(ms)), Ok(None));
            let now = (ALLOCATIONS.get(), world.queue.taken());
            (now.0 - before.0, now.1 - before.1)
        };
        let (first, _) = until(10);
        assert!(first > 20, "{first}: nothing is counted");
        until(1200);
        let (allocations, events) = until(2400);
        assert!(
            allocations * 20_000 < events,
            "{class:?}: {allocations} in {events} events"
        );
    }
}
