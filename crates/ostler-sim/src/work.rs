//! What the host's scheduler and those who give its threads work say to each other.
//!
//! The scheduler has threads and cores and knows nothing of guests. Whoever owns a thread (a guest's vCPU, a vhost worker, a load) is asked
//! what it has to do when the thread gets a core ([`Work::next`]), and told what was done of it whenever that is reckoned up ([`Work::ran`]): when it is
//! finished, when the core is taken away, when something new has come up. What owners want of the scheduler they say by [`Effects`],
//! which the world carries out after the call: nothing is ever entered twice.
//!
//! Work is in nanoseconds of a core at its full speed. How long that takes is the host's affair: a slower core, a busy sibling, memory that is far
//! ([`Work::slowdown`]).

use ostler_model::{CpuId, Nanos};

use crate::ftrace::Tracer;

/// A thread of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// What a thread has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// So much, then ask again.
    Run(Nanos),
    /// It spins, or computes without end: until its owner says that something has come up ([`Effect::Notify`]), or the core is taken away.
    Spin,
    /// Nothing: it sleeps until it is notified.
    Sleep,
}

/// What an interrupt is of, for when it is done and for the accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A device's: a hard interrupt.
    Device,
    /// A timer's that somebody set: likewise, but counted apart, as the kernel does (`LOC` in `/proc/interrupts`).
    Timer,
    /// A softirq, which is done when hard interrupts are.
    Softirq,
}

/// Work of a core that goes before all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// What it is, for its owner.
    pub token: u64,
    /// How much work it is.
    pub work: Nanos,
    /// What it is of.
    pub kind: Kind,
}

/// What came of an IO event of a vCPU, for a scheduler that goes by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoEvent {
    /// The guest's task that the event is for or from; 0 where nobody can tell.
    pub task: u64,
    /// Where a device's interrupt or a rescheduling IPI comes for the vCPU; otherwise the vCPU itself touches a device.
    pub arrives: bool,
}

/// What an owner of threads wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What the thread has to do has changed: one that sleeps is woken, one that runs is asked again at once, one that waits is asked when it has a core.
    Notify {
        /// Which thread.
        thread: ThreadId,
        /// The core on which that was caused, for wake-up affinity.
        from: Option<CpuId>,
    },
    /// An IO event of a vCPU. It says nothing of whether the vCPU has anything to do: that is `Notify`.
    Io {
        /// The vCPU's thread.
        thread: ThreadId,
        /// What it was.
        event: IoEvent,
    },
    /// An interrupt for a core.
    Interrupt {
        /// Which core.
        cpu: CpuId,
        /// What it does there.
        interrupt: Interrupt,
    },
    /// The thread is no more.
    Exit(ThreadId),
    /// [`Work::alarm`] is to be called with this token at a time.
    Alarm {
        /// When.
        at: Nanos,
        /// What for.
        token: u64,
    },
}

/// What owners want, in order; and where somebody traces, what they do.
#[derive(Clone, Debug, Default)]
pub struct Effects(pub Vec<Effect>, Option<Box<Tracer>>);

impl Effects {
    /// Somebody traces from now on.
    pub fn trace(&mut self) {
        self.1.get_or_insert_default();
    }

    /// Who traces, if anybody does.
    #[inline]
    pub fn tracer(&mut self) -> Option<&mut Tracer> {
        self.1.as_deref_mut()
    }

    /// What was wanted from one on is an interrupt's.
    #[inline]
    pub fn of_interrupt(&mut self, from: usize) {
        if let Some(tracer) = self.1.as_deref_mut() {
            tracer.of_interrupt(&self.0, from);
        }
    }

    /// The thread has something else to do, for a cause that has no core.
    pub fn notify(&mut self, thread: ThreadId) {
        self.0.push(Effect::Notify { thread, from: None });
    }

    /// Likewise, caused on a core.
    pub fn notify_from(&mut self, thread: ThreadId, cpu: CpuId) {
        self.0.push(Effect::Notify {
            thread,
            from: Some(cpu),
        });
    }

    /// A device interrupts a core.
    pub fn interrupt(&mut self, cpu: CpuId, token: u64, work: Nanos) {
        self.of(Kind::Device, cpu, token, work);
    }

    /// A timer interrupts a core.
    pub fn timer(&mut self, cpu: CpuId, token: u64, work: Nanos) {
        self.of(Kind::Timer, cpu, token, work);
    }

    /// A softirq for a core.
    pub fn softirq(&mut self, cpu: CpuId, token: u64, work: Nanos) {
        self.of(Kind::Softirq, cpu, token, work);
    }

    fn of(&mut self, kind: Kind, cpu: CpuId, token: u64, work: Nanos) {
        let interrupt = Interrupt { token, work, kind };
        self.0.push(Effect::Interrupt { cpu, interrupt });
    }

    /// [`Work::alarm`] is to be called at a time.
    pub fn alarm(&mut self, at: Nanos, token: u64) {
        self.0.push(Effect::Alarm { at, token });
    }
}

/// Those who own the threads.
pub trait Work {
    /// `thread` has the core `cpu`: what does it do? Asked again whenever it was told what was done, and goes on.
    fn next(&mut self, thread: ThreadId, cpu: CpuId, now: Nanos, out: &mut Effects) -> Next;

    /// `thread` has done so much on `cpu` since it was last asked or told: of [`Next::Run`] never more than was said, of
    /// [`Next::Spin`] what it spun.
    fn ran(&mut self, thread: ThreadId, cpu: CpuId, work: Nanos, now: Nanos, out: &mut Effects);

    /// `thread` no longer has the core `cpu`: another has, or it sleeps. Told after what it did there ([`Work::ran`]), so that an owner knows which of
    /// its threads are on cores: a guest sees which of its vCPUs are preempted. Work of interrupts is no reason: the thread keeps its core meanwhile.
    fn left(&mut self, _thread: ThreadId, _cpu: CpuId, _now: Nanos, _out: &mut Effects) {}

    /// The guest's task that `thread`, a vCPU, runs now; 0 where nobody can tell. For a scheduler that goes by it.
    fn task(&self, _thread: ThreadId) -> u64 {
        0
    }

    /// Whether `thread` works in the kernel until it sleeps, as a vhost worker does: it never returns to a guest or to user mode meanwhile. For a kernel that
    /// looks there who is to have the core.
    fn in_kernel(&self, _thread: ThreadId) -> bool {
        false
    }

    /// Whether what interrupts bring waits until `thread`, which has a core and stays in the kernel, is over with what it does there, as no softirq runs there meanwhile (`local_bh_disable`). Nor does another
    /// thread have the core before.
    fn holds_softirqs(&self, _thread: ThreadId) -> bool {
        false
    }

    /// How often `thread` has left its guest so far: by itself, or because an interrupt came for it. For such a kernel.
    fn exits(&self, _thread: ThreadId) -> u64 {
        0
    }

    /// When `thread`, which has a core, leaves its guest next for a timer of the guest's, after `now`. For such a kernel.
    fn leaves_at(&self, _thread: ThreadId, _now: Nanos) -> Option<Nanos> {
        None
    }

    /// How long `thread`, which has a core, is in its guest at a time for what it does there, its ticks apart; zero: until something comes. For such a kernel.
    fn stays(&self, _thread: ThreadId) -> Nanos {
        Nanos::ZERO
    }

    /// An interrupt's work is done. A softirq that isn't over with that says how much more it does before it is looked at what else there is, as a poll that goes from one packet to the next; a hard interrupt never does.
    fn interrupted(
        &mut self,
        cpu: CpuId,
        token: u64,
        now: Nanos,
        out: &mut Effects,
    ) -> Option<Nanos>;

    /// A time that was asked for has come.
    fn alarm(&mut self, token: u64, now: Nanos, out: &mut Effects);

    /// How long `thread`'s work takes on `cpu`, in parts of [`FULL_SPEED`] of its time at full speed; asked when it gets the core, and again after
    /// a `Notify`. Where its memory lies and how crowded that is; not what the scheduler knows by itself.
    fn slowdown(&self, thread: ThreadId, cpu: CpuId) -> u32;
}

/// No slowdown.
pub const FULL_SPEED: u32 = 1024;
