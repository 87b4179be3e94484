//! What the host's scheduler goes by, from the table of costs.

use ostler_model::Nanos;

use crate::costs::{self, INSTRUCTION_NS, emulated, host as table};

/// Idle states that a core has.
pub const IDLE_STATES: usize = 3;

/// Which kernel a host has, as far as its scheduler goes by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Linux 6.12, preempting voluntarily. Papers' hosts had older ones, which are no lazier.
    Linux6_12,
    /// Linux 7.3, preempting lazily: the lab's.
    Linux7_3,
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kernel::Linux6_12 => "6.12",
            Kernel::Linux7_3 => "7.3",
        })
    }
}

impl Kernel {
    /// Whether a core's threads are in one queue, whatever their cgroups ([`super::flat`]).
    pub fn is_flat(self) -> bool {
        self == Kernel::Linux7_3
    }

    /// Whether slices end by a timer of their own, not at ticks alone ([`super::preempt`]).
    pub fn times_slices(self) -> bool {
        self == Kernel::Linux7_3
    }

    /// Whether a core that has run out of threads throws a die for looking for one ([`super::newly`]).
    pub fn throws_for_looks(self) -> bool {
        self == Kernel::Linux7_3
    }

    /// Whether the time of interrupts is nobody's (`CONFIG_IRQ_TIME_ACCOUNTING`, which Debian's kernels aren't built with); else it is the thread's whose core they take, and no core is less for them
    /// ([`super::capacity`]).
    pub fn tells_interrupts_apart(self) -> bool {
        self == Kernel::Linux6_12
    }

    /// Whether it preempts lazily ([`super::preempt`]).
    pub fn is_lazy(self) -> bool {
        self == Kernel::Linux7_3
    }
}

/// What cores and the scheduler cost, and its settings; ns where nothing else is said.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCosts {
    /// Whose scheduler it is.
    pub kernel: Kernel,
    /// A switch of threads.
    pub switch: u64,
    /// What one takes beyond that whose thread was in its guest, whoever made it: on its way out, and where it wasn't known that it would make room as it comes back; 0: no more than any.
    pub stop: u64,
    /// From when another core's thread wakes one that is to have a core, to the switch, where a guest's thread has that.
    pub stop_woken: u64,
    /// What its guest's tick takes beyond that, if one came meanwhile.
    pub missed_tick: u64,
    /// What an interrupt takes of a vCPU that it brings out of its guest, beyond what it takes of any core.
    pub interrupt_exit: u64,
    /// What of a device's interrupt is before and after its handler.
    pub unseen: u64,
    /// What of waking up is in the handler of the interrupt that another core's thread has it by.
    pub woken: u64,
    /// From a guest's tick to the end of the exit by which it sets the next.
    pub tick_exit: u64,
    /// What others take beyond a switch by the boost scheduler.
    pub switch_boost: u64,
    /// An event of IO, and a tick, under it.
    pub boost_event: u64,
    /// See there.
    pub boost_tick: u64,
    /// A thread's first run on another core, and on one of another last-level cache.
    pub migration: u64,
    /// See there.
    pub migration_far: u64,
    /// Being interrupted by another core.
    pub ipi: u64,
    /// Between ticks.
    pub tick: u64,
    /// A slice, on this many cores.
    pub slice: u32,
    /// Whoever ran more recently is hot.
    pub hot: u64,
    /// What another group of cores must be heavier by, percent.
    pub imbalance_percent: u64,
    /// Balances that fail before heat counts for nothing.
    pub cache_nice_tries: u32,
    /// A busy core balances so many times more seldom.
    pub busy_factor: u64,
    /// Threads moved at once.
    pub balance_batch: u32,
    /// Softirqs go before threads for so long.
    pub softirq_time: u64,
    /// One of them at the most for so long.
    pub softirq_budget: u64,
    /// And so many rounds.
    pub softirq_restart: u32,
    /// How long work takes beside a busy sibling, parts of [`crate::work::FULL_SPEED`].
    pub smt: u32,
    /// Leaving each idle state for a thread.
    pub idle_exit: [u64; IDLE_STATES],
    /// And for an interrupt.
    pub idle_interrupt: [u64; IDLE_STATES],
    /// From the end of interrupts that came into the idle loop to the switch, for a thread that has come meanwhile; 0: nothing beyond the switch.
    pub idle_leave: u64,
    /// The shortest stay that is worth it.
    pub idle_stay: [u64; IDLE_STATES],
    /// What a core takes in each, mW.
    pub idle_power: [u64; IDLE_STATES],
    /// What it takes when it does anything, mW.
    pub busy_power: u64,
}

impl HostCosts {
    /// Of a host of so many cores, an instruction of which takes so long, ns: the lab's kernel is on hosts that are as slow as its own ([`emulated`]).
    pub fn new(cores: u32, instruction_ns: f64) -> HostCosts {
        let time = |cost: costs::Cost| cost.nanos(instruction_ns).0;
        let number = |cost: costs::Cost| cost.value as u64;
        // kernel/sched/fair.c: get_update_sysctl_factor().
        let factor = (1 + cores.max(1).ilog2()).min(4);
        let (kernel, slice) = if instruction_ns < emulated::FROM.value {
            (Kernel::Linux6_12, table::SLICE_BASE)
        } else {
            (Kernel::Linux7_3, table::SLICE_BASE_7_3)
        };
        let states = [table::C1_EXIT, table::C1E_EXIT, table::C6_EXIT].map(time);
        HostCosts {
            kernel,
            switch: time(table::SWITCH),
            stop: match kernel {
                Kernel::Linux6_12 => 0,
                Kernel::Linux7_3 => time(emulated::STOP) - time(table::SWITCH),
            },
            stop_woken: match kernel {
                Kernel::Linux6_12 => 0,
                Kernel::Linux7_3 => time(emulated::STOP_WOKEN),
            },
            missed_tick: time(emulated::MISSED_TICK),
            interrupt_exit: match kernel {
                Kernel::Linux6_12 => 0,
                Kernel::Linux7_3 => time(emulated::INTERRUPT_EXIT),
            },
            unseen: match kernel {
                Kernel::Linux6_12 => 0,
                Kernel::Linux7_3 => time(emulated::HARDIRQ) - time(emulated::HANDLER),
            },
            woken: match kernel {
                Kernel::Linux6_12 => 0,
                Kernel::Linux7_3 => time(emulated::WOKEN),
            },
            tick_exit: match kernel {
                Kernel::Linux6_12 => 0,
                Kernel::Linux7_3 => time(emulated::TICK_HANDLER) + time(emulated::MISSED_TICK),
            },
            switch_boost: time(table::SWITCH_BOOST),
            boost_event: time(table::BOOST_EVENT),
            boost_tick: time(table::BOOST_TICK),
            migration: time(table::MIGRATION),
            migration_far: time(table::MIGRATION_FAR),
            // What it takes is in IDLE_EXIT and in STOP_WOKEN, which are from the waking to the switch.
            ipi: match kernel {
                Kernel::Linux6_12 => time(table::IPI),
                Kernel::Linux7_3 => 0,
            },
            tick: time(table::TICK),
            slice: time(slice) as u32 * factor,
            hot: time(table::HOT),
            imbalance_percent: number(table::IMBALANCE_PERCENT),
            cache_nice_tries: number(table::CACHE_NICE_TRIES) as u32,
            busy_factor: number(table::BUSY_FACTOR),
            balance_batch: number(table::BALANCE_BATCH) as u32,
            softirq_time: time(table::SOFTIRQ_TIME),
            softirq_budget: time(table::SOFTIRQ_BUDGET),
            softirq_restart: number(table::SOFTIRQ_RESTART) as u32,
            smt: (2 * 1024 * 1024 / number(table::SMT_GAIN)) as u32,
            idle_exit: match kernel {
                Kernel::Linux6_12 => states,
                Kernel::Linux7_3 => [time(emulated::IDLE_EXIT); IDLE_STATES],
            },
            // An emulated core has no states to come out of.
            idle_interrupt: match kernel {
                Kernel::Linux6_12 => states,
                Kernel::Linux7_3 => [0; IDLE_STATES],
            },
            idle_leave: match kernel {
                Kernel::Linux6_12 => 0,
                Kernel::Linux7_3 => time(emulated::IDLE_LEAVE),
            },
            idle_stay: [table::C1_STAY, table::C1E_STAY, table::C6_STAY].map(time),
            idle_power: [table::POWER_C1, table::POWER_C1E, table::POWER_C6].map(number),
            busy_power: number(table::POWER_BUSY),
        }
    }

    /// Of a host of so many cores of 3 GHz.
    pub fn of(cores: u32) -> HostCosts {
        HostCosts::new(cores, INSTRUCTION_NS)
    }

    /// The slice as a time.
    pub fn slice(&self) -> Nanos {
        Nanos(u64::from(self.slice))
    }
}
