//! What a simulated host costs: an event of its, beside the same number of events that only go through the queue; and its memory.

#![allow(
    clippy::cast_possible_truncation,
    reason = "guests are numbered in 32 bits"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use bench_harness::{Args, Line, compare};
use ostler_model::{BoostPlan, BoostSettings, Cpu, CpuId, CpuSet, Nanos, NodeId, Topology};
use ostler_sim::event::Queue;
use ostler_sim::host::{HostCosts, Spawn};
use ostler_sim::random::Stream;
use ostler_sim::work::{Effect, Effects, FULL_SPEED, Interrupt, IoEvent, Next, ThreadId, Work};
use ostler_sim::world::World;

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

/// Guests of a vCPU and a vhost worker each. Requests come to each at random: an interrupt and its softirq on some core wake the worker, that wakes the
/// vCPU, which works. One guest in four computes without end instead.
struct Guests {
    first: u32,
    count: u32,
    /// What each thread has yet to do.
    left: Vec<u64>,
    random: Stream,
    per_second: f64,
    computes: u32,
}

impl Guests {
    fn thread(&self, guest: u32, worker: bool) -> ThreadId {
        ThreadId(self.first + 2 * guest + u32::from(worker))
    }

    fn left(&mut self, thread: ThreadId) -> &mut u64 {
        &mut self.left[(thread.0 - self.first) as usize]
    }

    fn computing(&self, guest: u32) -> bool {
        guest % 4 < self.computes
    }

    fn come(&mut self, guest: u32, now: Nanos, out: &mut Effects) {
        let gap = self.random.gap(self.per_second);
        out.alarm(now.saturating_add(gap), u64::from(guest));
    }
}

const WORKER_NS: u64 = 5_000;
const VCPU_NS: u64 = 40_000;

impl Work for Guests {
    fn next(&mut self, thread: ThreadId, _: CpuId, _: Nanos, _: &mut Effects) -> Next {
        let guest = (thread.0 - self.first) / 2;
        if (thread.0 - self.first).is_multiple_of(2) && self.computing(guest) {
            return Next::Spin;
        }
        match *self.left(thread) {
            0 => Next::Sleep,
            left => Next::Run(Nanos(left)),
        }
    }

    fn ran(&mut self, thread: ThreadId, cpu: CpuId, work: Nanos, _: Nanos, out: &mut Effects) {
        let left = self.left(thread);
        if *left == 0 {
            return;
        }
        *left = left.saturating_sub(work.0);
        if *left == 0 && !(thread.0 - self.first).is_multiple_of(2) {
            let vcpu = ThreadId(thread.0 - 1);
            *self.left(vcpu) += VCPU_NS;
            out.0.push(Effect::Io {
                thread: vcpu,
                event: IoEvent {
                    task: 1,
                    arrives: true,
                },
            });
            out.notify_from(vcpu, cpu);
        }
    }

    fn interrupted(&mut self, cpu: CpuId, token: u64, _: Nanos, out: &mut Effects) {
        let (guest, softirq) = ((token >> 1) as u32, token & 1 == 1);
        if softirq {
            let worker = self.thread(guest, true);
            *self.left(worker) += WORKER_NS;
            out.notify_from(worker, cpu);
        } else {
            out.0.push(Effect::Interrupt {
                cpu,
                interrupt: Interrupt {
                    token: token | 1,
                    work: Nanos(1500),
                    softirq: true,
                },
            });
        }
    }

    fn alarm(&mut self, token: u64, now: Nanos, out: &mut Effects) {
        out.0.push(Effect::Interrupt {
            cpu: CpuId((token % 8) as u32),
            interrupt: Interrupt {
                token: token << 1,
                work: Nanos(700),
                softirq: false,
            },
        });
        self.come(token as u32, now, out);
    }

    fn slowdown(&self, _: ThreadId, _: CpuId) -> u32 {
        FULL_SPEED
    }
}

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

fn world(guests: u32, computes: u32, boost: bool) -> World<Guests> {
    let work = Guests {
        first: CORES,
        count: guests,
        left: vec![0; 2 * guests as usize],
        random: Stream::new(1, "bench", 0),
        per_second: 200.0,
        computes,
    };
    let mut world = World::new(&topology(), HostCosts::of(CORES), work);
    let mut members = Vec::new();
    for _ in 0..guests {
        let group = world.host.add_group();
        for works in [false, true] {
            let spawn = Spawn {
                group: Some(group),
                ..Spawn::default()
            };
            members.push((world.host.spawn(spawn, Nanos::ZERO), works));
        }
    }
    if boost {
        let plan = BoostPlan {
            settings: BoostSettings::default(),
            domains: (0..CORES / 16)
                .map(|at| CpuSet::range(16 * at, 16 * (at + 1)))
                .collect(),
            workers: true,
            guests: Vec::new(),
        };
        world
            .act(|host, scene| host.set_boost(Some(&plan), &members, scene))
            .expect("time goes on");
    }
    world
        .act(|host, scene| {
            for guest in 0..scene.work.count {
                if scene.work.computing(guest) {
                    let thread = scene.work.thread(guest, false);
                    host.carry_out(Effect::Notify { thread, from: None }, scene);
                } else {
                    let now = scene.queue.now();
                    scene.work.come(guest, now, scene.out);
                }
            }
        })
        .expect("time goes on");
    world
}

fn main() {
    let args = Args::parse();
    let guests = if args.quick { 40 } else { 1000 };
    let span = Nanos::from_millis(if args.quick { 20 } else { 500 });
    for (name, computes, boost) in [
        ("light", 0, false),
        ("crowded", 1, false),
        ("crowded-boost", 1, true),
    ] {
        let before = BYTES.get();
        let mut world = world(guests, computes, boost);
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
                let start = Instant::now();
                world.run(until).expect("time goes on");
                let past = start.elapsed().as_nanos() as f64;
                let events = (world.queue.taken() - taken) as f64;
                per_second = events / span.as_secs_f64();
                allocations = ALLOCATIONS.get() - allocated;
                counted = events;
                past / events
            },
            || {
                let mut queue: Queue<ostler_sim::host::Event> = Queue::default();
                let mut random = Stream::new(2, "baseline", 0);
                for _ in 0..waiting {
                    queue.at(
                        Nanos(random.below(1_000_000)),
                        ostler_sim::host::Event::Alarm(0),
                    );
                }
                let events = if args.quick { 1000 } else { 500_000 };
                let start = Instant::now();
                for _ in 0..events {
                    let event = queue.take(Nanos(u64::MAX)).expect("there are some");
                    queue.after(Nanos(random.below(1_000_000)), event);
                }
                start.elapsed().as_nanos() as f64 / f64::from(events)
            },
        );
        line.print(&args);
        let hour = per_second * 3600.0 * line.ours / 1e9;
        // Beside a second for each simulated one.
        Line::of(
            "sim",
            &format!("{case}, an hour"),
            "s",
            vec![hour],
            vec![3600.0],
        )
        .print(&args);
        Line::of(
            "sim",
            &format!("{case}, memory a guest"),
            "bytes",
            vec![memory as f64],
            vec![(2 * size_of::<CpuSet>()) as f64],
        )
        .print(&args);
        // What is left are guests' queues on cores that they come to for the first time.
        assert!(
            args.quick || allocations as f64 * 100.0 < counted,
            "{case}: {allocations} allocations in {counted} events"
        );
    }
}
