//! What a placement costs, beside the same dynamic programming without the symmetry of cores, and beside the paper's figure.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bench_harness::{Args, compare, ns_per_call};
use bench_placement::World;
use ostler_policy::placement::{Placer, Policy, Settings};

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

/// Counts what this thread asks for.
struct Counting;

#[allow(unsafe_code, reason = "an allocator is made of unsafe functions")]
// SAFETY: all is handed on to the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
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

/// Times a world's placement, which both ways to look at cores come to the same answer in, or nearly.
fn measure(args: &Args, name: &str, world: &World, calls: usize, exact: bool) {
    world.with(|problem| {
        let by = |policy| Settings {
            policy,
            ..Settings::default()
        };
        let (mut ours, mut plain) = (Placer::default(), Placer::default());
        let best = |placer: &mut Placer, policy| {
            let placed = placer.place(problem, by(policy));
            placed.expect("it can be placed").slowdown
        };
        let (few, all) = (
            best(&mut ours, Policy::Chains),
            best(&mut plain, Policy::AllCores),
        );
        assert!(
            !exact || (few - all).abs() < 1e-9 * all,
            "the same answer: {few}, {all}"
        );
        let before = ALLOCATED.get();
        best(&mut ours, Policy::Chains);
        assert_eq!(
            ALLOCATED.get(),
            before,
            "a second decision allocates nothing"
        );
        let calls = if args.quick { 1 } else { calls };
        compare(
            "placement",
            name,
            "us",
            args.runs(101, 3),
            || ns_per_call(calls, || best(&mut ours, Policy::Chains)) / 1e3,
            || ns_per_call(calls, || best(&mut plain, Policy::AllCores)) / 1e3,
        )
        .print(args);
    });
}

fn main() {
    let args = Args::parse();
    for (cores, queues, calls) in [(128, 32, 20), (1024, 256, 2)] {
        let name = format!("{cores} cores, {queues} queues");
        measure(&args, &name, &World::new(cores, queues), calls, true);
        // Of places that are as good each way to look may find another, and the next queue another place for it.
        let placed = World::new(cores, queues).placed();
        measure(&args, &format!("{name}, placed"), &placed, calls, false);
        // Where chains spread, it is by a search that need not end where another does.
        let full = World::full(cores, queues);
        measure(&args, &format!("{name}, full"), &full, 1, false);
    }
}
