//! What a simulated memory access costs for real, beside what one would write first: the textbook's model behind a lock.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use bench_harness::{Args, compare};
use ostler_machine_memory::{Kind, Level, Policy, System};

#[path = "../../../machine/memory/tests/common/reference.rs"]
#[allow(unused, reason = "it is the tests' reference, and has what they need")]
mod reference;
#[path = "../../../machine/memory/tests/common/shape.rs"]
#[allow(unused, reason = "likewise")]
mod shape;

use reference::Reference;
use shape::{NODE_BYTES, Pool, Shape};

/// Sixteen cores in two sockets, with caches as large as a server's of today, four cores to an L3.
const SERVER: Shape = Shape {
    sockets: 2,
    cores: 8,
    group_cores: 4,
    l1i: (64, 8),
    l1d: (64, 8),
    l2: (1024, 8),
    l3: Some(((16_384, 16), Policy::Victim)),
    pool: Pool::Plain,
};

// The walk through memory stays in its node.
const _: () = assert!(NODE_BYTES >= 64 << 22);

/// The case that doesn't walk at random.
const IN_ORDER: &str = "memory, one line after the other";

/// One of the two sides.
trait Model: Sync {
    fn access(&self, core: usize, kind: Kind, address: u64, now_ps: u64) -> Level;
}

impl Model for System {
    fn access(&self, core: usize, kind: Kind, address: u64, now_ps: u64) -> Level {
        System::access(self, core, kind, address, || now_ps).level
    }
}

impl Model for Mutex<Reference> {
    fn access(&self, core: usize, kind: Kind, address: u64, _: u64) -> Level {
        let mut all = self.lock().expect("nobody panics with it");
        all.access(core, kind, address)
    }
}

/// Lines to walk through, in an order without rhyme: a full period of a linear congruence modulo a power of two.
struct Walk {
    core: usize,
    kind: Kind,
    /// Where they begin.
    start: u64,
    lines: u64,
    /// Bytes between two of them.
    stride: u64,
    /// From one to the next: times this, and that more.
    next: (u64, u64),
    at: u64,
    now_ps: u64,
}

impl Walk {
    fn new(kind: Kind, lines: u64, stride: u64) -> Walk {
        assert!(lines.is_power_of_two(), "for a full period");
        Walk {
            core: 0,
            kind,
            start: 0,
            lines,
            stride,
            next: (5, 12_345),
            at: 0,
            now_ps: 0,
        }
    }

    /// The same, one line after the other.
    fn in_order(self) -> Walk {
        Walk {
            next: (1, 1),
            ..self
        }
    }

    /// The same by the other socket's first core in that socket's memory.
    fn far(self) -> Walk {
        Walk {
            core: SERVER.cores,
            start: NODE_BYTES,
            ..self
        }
    }

    fn step(&mut self, model: &impl Model) -> Level {
        let (times, more) = self.next;
        self.at = (self.at.wrapping_mul(times) + more) & (self.lines - 1);
        self.now_ps += 100_000;
        let address = self.start + self.at * self.stride;
        model.access(self.core, self.kind, address, self.now_ps)
    }

    /// Nobody times these.
    fn warm(&mut self, model: &impl Model, steps: u64) {
        for _ in 0..steps {
            self.step(model);
        }
    }

    /// Nanoseconds of one access; each of them must be served where the case says.
    fn measure(&mut self, model: &impl Model, accesses: u64, level: Level) -> f64 {
        let mut elsewhere = 0;
        let start = Instant::now();
        for _ in 0..accesses {
            elsewhere += u64::from(self.step(model) != level);
        }
        let took = start.elapsed().as_nanos() as f64;
        assert!(
            elsewhere * 20 <= accesses,
            "{elsewhere} of {accesses} weren't served by {level:?}"
        );
        took / accesses as f64
    }
}

/// Two threads that walk at once, each in its own memory: nanoseconds of one access of one of them.
fn both(walks: &mut [Walk; 2], model: &impl Model, accesses: u64, level: Level) -> f64 {
    let start = Barrier::new(walks.len());
    let took: Vec<f64> = std::thread::scope(|scope| {
        let threads = walks.each_mut().map(|walk| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                walk.measure(model, accesses, level)
            })
        });
        let took = threads.into_iter().map(ScopedJoinHandle::join);
        took.map(|took| took.expect("it doesn't panic")).collect()
    });
    took.iter().sum::<f64>() / took.len() as f64
}

/// Two threads that store to one line each in turn: nanoseconds of one store, waiting for the other thread left out as far as
/// it goes: each does a burst while the other only reads the clock.
fn ping_pong(model: &impl Model, accesses: u64) -> f64 {
    let turn = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let spent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for core in [0_u64, 8] {
            let (turn, done, spent) = (&turn, &done, &spent);
            scope.spawn(move || {
                let core_number = usize::try_from(core).expect("small");
                let mut mine = 0;
                while !done.load(Ordering::Relaxed) {
                    // Whose turn it is, is told by parity.
                    let now = turn.load(Ordering::Acquire);
                    if now >= accesses {
                        done.store(true, Ordering::Relaxed);
                    } else if now % 2 == core / 8 {
                        let start = Instant::now();
                        let level = model.access(core_number, Kind::Store, 4096, now * 100_000);
                        mine += u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                        black_box(level);
                        turn.store(now + 1, Ordering::Release);
                    } else {
                        std::thread::yield_now();
                    }
                }
                spent.fetch_add(mine, Ordering::Relaxed);
            });
        }
    });
    spent.into_inner() as f64 / accesses as f64
}

fn main() {
    let args = Args::parse();
    let runs = args.runs(51, 3);
    let accesses = if args.quick { 2_000 } else { 100_000 };
    for (case, kind, lines, stride, level) in [
        ("L1 hit, load", Kind::Load, 64, 64, Level::L1),
        ("L1 hit, store", Kind::Store, 64, 64, Level::L1),
        ("L1 hit, fetch", Kind::Fetch, 64, 64, Level::L1),
        (
            "L1 hit, another line of the set each time",
            Kind::Load,
            256,
            64,
            Level::L1,
        ),
        ("L2 hit", Kind::Load, 4096, 64, Level::L2),
        (
            "L3 hit, all in one set of L2",
            Kind::Load,
            32,
            65_536,
            Level::L3,
        ),
        ("L3 hit", Kind::Load, 65_536, 64, Level::L3),
        ("memory", Kind::Load, 1 << 22, 64, Level::Local),
        (IN_ORDER, Kind::Load, 1 << 22, 64, Level::Local),
    ] {
        let (system, textbook) = (SERVER.system(), Mutex::new(Reference::new(&SERVER)));
        let walk = || {
            let walk = Walk::new(kind, lines, stride);
            if case == IN_ORDER {
                walk.in_order()
            } else {
                walk
            }
        };
        let (mut ours, mut theirs) = (walk(), walk());
        // Once around, so that everything is where the case wants it; memory is where nothing is.
        if level != Level::Local {
            ours.warm(&system, 2 * lines);
            theirs.warm(&textbook, 2 * lines);
        }
        compare(
            "memory",
            case,
            "ns",
            runs,
            || ours.measure(&system, accesses, level),
            || theirs.measure(&textbook, accesses, level),
        )
        .print(&args);
    }
    for (case, lines, level) in [
        ("L2 hit, two threads", 4096, Level::L2),
        ("memory, two threads", 1 << 22, Level::Local),
    ] {
        let (system, textbook) = (SERVER.system(), Mutex::new(Reference::new(&SERVER)));
        let walk = || Walk::new(Kind::Load, lines, 64);
        let (mut ours, mut theirs) = ([walk(), walk().far()], [walk(), walk().far()]);
        if level != Level::Local {
            for walk in &mut ours {
                walk.warm(&system, 2 * lines);
            }
            for walk in &mut theirs {
                walk.warm(&textbook, 2 * lines);
            }
        }
        compare(
            "memory",
            case,
            "ns",
            args.runs(21, 3),
            || both(&mut ours, &system, accesses, level),
            || both(&mut theirs, &textbook, accesses, level),
        )
        .print(&args);
    }
    let (system, textbook) = (SERVER.system(), Mutex::new(Reference::new(&SERVER)));
    let accesses = accesses / 10;
    compare(
        "memory",
        "a line to and fro between two threads",
        "ns",
        args.runs(21, 3),
        || ping_pong(&system, accesses),
        || ping_pong(&textbook, accesses),
    )
    .print(&args);
}
