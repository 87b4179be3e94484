//! A host for tests: every thread has a core of its own, which can be taken from it for a while; interrupts have cores of theirs, one after the other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use ostler_model::{Cpu, CpuId, CpuSet, Nanos, NodeId, Topology};

use super::{Tenants, TenantsSpec};
use crate::check::messages::Messages;
use crate::check::threads::Watched;
use crate::event::Queue;
use crate::random::Stream;
use crate::work::{Effect, Effects, Next, ThreadId, Work};

enum Event {
    Alarm(u64),
    Done(usize),
    Interrupt(CpuId, u64),
    /// A thread loses its core for so long, again and again.
    Take(usize, Nanos),
    Give(usize),
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Asleep,
    On(Nanos, Next),
    /// It has work and no core.
    Off,
    Gone,
}

struct Thread {
    state: State,
    taken: bool,
}

pub struct Driver {
    pub work: Watched<Tenants>,
    pub messages: Arc<Mutex<Messages>>,
    queue: Queue<Event>,
    threads: Vec<Thread>,
    /// Until when each core is busy with interrupts.
    busy: Vec<Nanos>,
    out: Effects,
    stream: Stream,
    /// The first so many threads lose their cores to whom of them they wake, for so long.
    gives_way: (usize, Nanos),
}

/// Interrupts' cores.
pub const IRQ_CORES: u32 = 4;

/// The first `IRQ_CORES` cores are interrupts'; the others threads', two to a cache group, eight to a node.
pub fn topology(cores: u32) -> Topology {
    let cpu = |id: u32| Cpu {
        id: CpuId(id),
        node: NodeId(id / 8),
        core: CpuId(id),
        cache_group: CpuId(id / 2 * 2),
    };
    Topology {
        cpus: (0..cores).map(cpu).collect(),
    }
}

impl Driver {
    pub fn new(mut spec: TenantsSpec) -> Driver {
        spec.irq_cores = CpuSet::range(0, IRQ_CORES);
        let threads: u32 = spec.guests.iter().map(|g| g.vcpus + g.queues).sum();
        let topology = topology(IRQ_CORES + threads);
        let seed = spec.seed;
        let mut tenants = Tenants::new(spec, &topology).expect("tenants that can be");
        let messages = Arc::new(Mutex::new(Messages::default()));
        let sink = Arc::clone(&messages);
        tenants.net.watch(Box::new(move |now, note| {
            sink.lock()
                .expect("no test panics while it is told")
                .note(now, note);
        }));
        let mut driver = Driver {
            threads: (0..tenants.owners().len())
                .map(|_| Thread {
                    state: State::Asleep,
                    taken: false,
                })
                .collect(),
            work: Watched::new(tenants),
            messages,
            queue: Queue::default(),
            busy: vec![Nanos::ZERO; topology.cpus.len()],
            out: Effects::default(),
            stream: Stream::new(seed, "driver", 0),
            gives_way: (0, Nanos::ZERO),
        };
        driver.work.inner.begin(&mut driver.out);
        driver.carry_out();
        driver
    }

    pub fn now(&self) -> Nanos {
        self.queue.now()
    }

    /// Takes cores away for so long, about as often as they are left.
    pub fn harass(&mut self, time: Nanos) {
        for thread in 0..self.threads.len() {
            let at = Nanos(self.stream.below(2 * time.0));
            self.queue.at(at, Event::Take(thread, time));
        }
    }

    /// Whoever of the first so many threads wakes another of them loses its core for so long.
    pub fn give_way(&mut self, threads: usize, time: Nanos) {
        self.gives_way = (threads, time);
    }

    /// Takes a thread's core until somebody gives it back.
    fn take(&mut self, thread: usize) {
        self.threads[thread].taken = true;
        if let State::On(..) = self.threads[thread].state {
            self.reckon(thread);
            self.threads[thread].state = State::Off;
            self.queue.clear(thread as u32);
            let id = ThreadId(thread as u32);
            self.work
                .left(id, cpu(thread), self.queue.now(), &mut self.out);
        }
    }

    /// Has something done to the tenants.
    pub fn act<T>(&mut self, act: impl FnOnce(&mut Tenants, Nanos, &mut Effects) -> T) -> T {
        let now = self.now();
        let done = act(&mut self.work.inner, now, &mut self.out);
        self.carry_out();
        done
    }

    pub fn run(&mut self, until: Nanos) {
        while let Some(event) = self.queue.take(until) {
            let now = self.now();
            match event {
                Event::Alarm(token) => self.work.alarm(token, now, &mut self.out),
                Event::Interrupt(cpu, token) => {
                    self.work.interrupted(cpu, token, now, &mut self.out);
                }
                Event::Done(thread) => {
                    self.reckon(thread);
                    self.ask(thread);
                }
                Event::Take(thread, time) => {
                    self.take(thread);
                    let until = self.stream.below(2 * time.0) + 1;
                    self.queue.after(Nanos(until), Event::Give(thread));
                    let again = until + self.stream.below(2 * time.0) + 1;
                    self.queue.after(Nanos(again), Event::Take(thread, time));
                }
                Event::Give(thread) => {
                    self.threads[thread].taken = false;
                    if self.threads[thread].state == State::Off {
                        self.ask(thread);
                    }
                }
            }
            self.carry_out();
        }
        // Time goes on to the end, and what was done until then is reckoned up.
        self.queue.at(until, Event::Alarm(0));
        self.queue.take(until);
        for thread in 0..self.threads.len() {
            if let State::On(..) = self.threads[thread].state {
                self.reckon(thread);
                self.ask(thread);
            }
        }
        self.carry_out();
        self.check();
    }

    /// Everything that must hold.
    pub fn check(&self) {
        let messages = self
            .messages
            .lock()
            .expect("no test panics while it is told");
        if let Err(e) = messages.check(&self.work.inner, self.now()) {
            panic!("{e}");
        }
        if let Err(e) = self.work.check() {
            panic!("{e}");
        }
    }

    fn reckon(&mut self, thread: usize) {
        let now = self.now();
        if let State::On(since, next) = self.threads[thread].state {
            let elapsed = now.saturating_sub(since);
            let work = match next {
                Next::Run(most) => elapsed.min(most),
                _ => elapsed,
            };
            self.threads[thread].state = State::On(now, Next::Sleep);
            let id = ThreadId(thread as u32);
            self.work.ran(id, cpu(thread), work, now, &mut self.out);
        }
    }

    fn ask(&mut self, thread: usize) {
        let now = self.now();
        let id = ThreadId(thread as u32);
        let next = self.work.next(id, cpu(thread), now, &mut self.out);
        let entry = &mut self.threads[thread];
        entry.state = State::On(now, next);
        match next {
            Next::Run(work) => {
                assert!(work > Nanos::ZERO);
                let at = now.saturating_add(work);
                self.queue.set(thread as u32, at, Event::Done(thread));
            }
            Next::Spin => self.queue.clear(thread as u32),
            Next::Sleep => {
                self.queue.clear(thread as u32);
                entry.state = State::Asleep;
                self.work.left(id, cpu(thread), now, &mut self.out);
            }
        }
    }

    fn carry_out(&mut self) {
        let mut wishes: VecDeque<Effect> = VecDeque::new();
        loop {
            wishes.extend(self.out.0.drain(..));
            let Some(wish) = wishes.pop_front() else {
                break;
            };
            let now = self.now();
            match wish {
                Effect::Notify { thread, from } => {
                    let at = thread.0 as usize;
                    let (those, time) = self.gives_way;
                    let waker = from.and_then(|cpu| cpu.0.checked_sub(IRQ_CORES));
                    let waker = waker.map(|waker| waker as usize);
                    if let Some(waker) = waker.filter(|waker| *waker < those && at < those)
                        && self.threads[at].state == State::Asleep
                        && matches!(self.threads[waker].state, State::On(..))
                    {
                        self.take(waker);
                        self.queue.after(time, Event::Give(waker));
                    }
                    match self.threads[at].state {
                        State::Asleep if self.threads[at].taken => {
                            self.threads[at].state = State::Off;
                        }
                        State::Asleep => self.ask(at),
                        State::On(..) => {
                            self.reckon(at);
                            self.ask(at);
                        }
                        State::Off | State::Gone => {}
                    }
                }
                Effect::Io { .. } => {}
                Effect::Interrupt { cpu, interrupt } => {
                    let busy = &mut self.busy[cpu.0 as usize];
                    *busy = now.max(*busy).saturating_add(interrupt.work);
                    self.queue.at(*busy, Event::Interrupt(cpu, interrupt.token));
                }
                Effect::Exit(thread) => {
                    let at = thread.0 as usize;
                    self.reckon(at);
                    self.threads[at].state = State::Gone;
                    self.queue.clear(at as u32);
                }
                Effect::Alarm { at, token } => self.queue.at(at, Event::Alarm(token)),
            }
        }
    }
}

/// A thread's core.
pub fn cpu(thread: usize) -> CpuId {
    CpuId(IRQ_CORES + thread as u32)
}
