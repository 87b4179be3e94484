//! What a simulated host costs: an event of its, beside the same number of events that only go through the queue; and its memory.

#![allow(
    clippy::cast_possible_truncation,
    reason = "guests are numbered in 32 bits"
)]

mod full;
mod plain;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use bench_harness::{Args, Line, compare};
use ostler_model::{BoostPlan, BoostSettings, Cpu, CpuId, CpuSet, Nanos, NodeId, Topology};
use ostler_sim::event::Queue;
use ostler_sim::host::Event;
use ostler_sim::random::Stream;
use ostler_sim::work::{ThreadId, Work};
use ostler_sim::world::World;
use rustix::time::{ClockId, clock_gettime};

const CORES: u32 = 128;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Counts what this thread asks for and has.
struct Counting;

#[allow(unsafe_code, reason = "an allocator is made of unsafe functions")]
// SAFETY: all is handed on to the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get().wrapping_add(layout.size() as u64));
        // SAFETY: the caller's word for it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get().wrapping_sub(layout.size() as u64));
        // SAFETY: the caller's word for it.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn topology() -> Topology {
    Topology {
        cpus: (0..CORES)
            .map(|id| Cpu {
                id: CpuId(id),
                node: NodeId(id / 64),
                core: CpuId(id - id % 2),
                cache_group: CpuId(id - id % 16),
            })
            .collect(),
    }
}

/// Has the boost scheduler have all these threads, with domains of a cache group each.
fn boost<W: Work>(world: &mut World<W>, members: &[(ThreadId, bool)]) {
    let plan = BoostPlan {
        settings: BoostSettings::default(),
        domains: (0..CORES / 16)
            .map(|at| CpuSet::range(16 * at, 16 * (at + 1)))
            .collect(),
        workers: true,
        guests: Vec::new(),
    };
    world
        .act(|host, scene| host.set_boost(Some(&plan), members, scene))
        .expect("time goes on");
}

/// What this thread has had of a core, ns: whoever else is on the machine has the others.
fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Events that only go through the queue, as many of them at once as a world has waiting; ns for each.
fn queue_alone(waiting: usize, events: u32) -> f64 {
    let mut queue: Queue<Event> = Queue::default();
    let mut random = Stream::new(2, "baseline", 0);
    for _ in 0..waiting {
        queue.at(Nanos(random.below(1_000_000)), Event::Alarm(0));
    }
    let start = cpu_time();
    for _ in 0..events {
        let event = queue.take(Nanos(u64::MAX)).expect("there are some");
        queue.after(Nanos(random.below(1_000_000)), black_box(event));
    }
    (cpu_time() - start) / f64::from(events)
}

/// Measures a world of so many guests, as long at a time.
fn measure<W: Work>(
    args: &Args,
    (name, guests): (&str, u32),
    span: Nanos,
    build: impl FnOnce() -> World<W>,
) {
    let before = BYTES.get();
    let mut world = build();
    // It comes to rest: queues have the room that they need.
    world.run(Nanos(2 * span.0)).expect("time goes on");
    let memory = BYTES.get().wrapping_sub(before) / u64::from(guests);
    let waiting = world.queue.len();
    let mut until = world.now();
    let mut per_second = 0.0;
    let (mut allocations, mut counted) = (0, 0.0);
    let case = format!("{name}, {guests} guests on {CORES} cores");
    let line = compare(
        "sim",
        &case,
        "ns/event",
        args.runs(7, 1),
        || {
            let (taken, allocated) = (world.queue.taken(), ALLOCATIONS.get());
            until = until.saturating_add(span);
            let start = cpu_time();
            world.run(until).expect("time goes on");
            let past = cpu_time() - start;
            let events = (world.queue.taken() - taken) as f64;
            per_second = events / span.as_secs_f64();
            allocations = ALLOCATIONS.get() - allocated;
            counted = events;
            past / events
        },
        || queue_alone(waiting, if args.quick { 1000 } else { 500_000 }),
    );
    line.print(args);
    let hour = per_second * 3600.0 * line.ours / 1e9;
    // Beside a second for each simulated one.
    Line::of(
        "sim",
        &format!("{case}, an hour"),
        "s",
        vec![hour],
        vec![3600.0],
    )
    .print(args);
    Line::of(
        "sim",
        &format!("{case}, memory a guest"),
        "bytes",
        vec![memory as f64],
        vec![(2 * size_of::<CpuSet>()) as f64],
    )
    .print(args);
    Line::of(
        "sim",
        &format!("{case}, allocations in a million events"),
        "allocations",
        vec![allocations as f64 * 1e6 / counted],
        vec![0.0],
    )
    .print(args);
}

fn main() {
    let args = Args::parse();
    let (guests, span) = if args.quick { (40, 20) } else { (1000, 500) };
    for (name, computes, boosted) in [
        ("light", 0, false),
        ("crowded", 1, false),
        ("crowded-boost", 1, true),
    ] {
        measure(&args, (name, guests), Nanos::from_millis(span), || {
            plain::world(guests, computes, boosted)
        });
    }
    let (guests, span) = if args.quick { (12, 20) } else { (200, 250) };
    for (name, boosted) in [("full", false), ("full-boost", true)] {
        measure(&args, (name, guests), Nanos::from_millis(span), || {
            full::world(guests, boosted)
        });
    }
}
