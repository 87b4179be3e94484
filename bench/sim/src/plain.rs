//! A host under owners of threads that cost next to nothing themselves: what is left is the host.

use ostler_model::{CpuId, Nanos};
use ostler_sim::host::{HostCosts, Spawn};
use ostler_sim::random::Stream;
use ostler_sim::work::{Effect, Effects, FULL_SPEED, IoEvent, Next, ThreadId, Work};
use ostler_sim::world::World;

use super::{CORES, boost, topology};

/// Guests of a vCPU and a vhost worker each. Requests come to each at random: an interrupt and its softirq on some core wake the worker, that wakes the
/// vCPU, which works. One guest in four computes without end instead.
pub struct Guests {
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

    fn interrupted(
        &mut self,
        cpu: CpuId,
        token: u64,
        _: Nanos,
        out: &mut Effects,
    ) -> Option<Nanos> {
        let (guest, softirq) = ((token >> 1) as u32, token & 1 == 1);
        if softirq {
            let worker = self.thread(guest, true);
            *self.left(worker) += WORKER_NS;
            out.notify_from(worker, cpu);
        } else {
            out.softirq(cpu, token | 1, Nanos(1500));
        }
        None
    }

    fn alarm(&mut self, token: u64, now: Nanos, out: &mut Effects) {
        let cpu = CpuId((token % 8) as u32);
        out.interrupt(cpu, token << 1, Nanos(700));
        self.come(token as u32, now, out);
    }

    fn slowdown(&self, _: ThreadId, _: CpuId) -> u32 {
        FULL_SPEED
    }
}

/// So many guests, of which so many of four compute without end.
pub fn world(guests: u32, computes: u32, boosted: bool) -> World<Guests> {
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
    if boosted {
        boost(&mut world, &members);
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
