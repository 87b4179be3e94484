//! Cores and the host's scheduler.

use super::costs;

costs! {
    /// Cores and the host's scheduler.
    HOST:

    /// A switch of threads.
    SWITCH = 3350.0 Instructions, "bench/boost: a whole message between two threads, which is two switches, takes 6700 instructions under EEVDF";
    /// What a switch takes beyond that where the boost scheduler makes it.
    SWITCH_BOOST = 2245.0 Instructions, "bench/boost and docs/decisions/0015: a sleep and a wake-up pass hooks of 4490 instructions together";
    /// An event of IO, for the boost scheduler.
    BOOST_EVENT = 760.0 Instructions, "bench/boost: an interrupt in KVM costs 760 instructions more with the scheduler loaded";
    /// A tick, likewise.
    BOOST_TICK = 440.0 Instructions, "bench/boost: a tick costs 440";
    /// A thread's first run on another core, beyond the switch: its cache lines come from there. 32 KiB of a first cache, a line of 64 bytes each, at what a line from the shared cache takes.
    MIGRATION = 8500.0 Nanos, "Stramash, table 4.2: Xeon Gold's L3 50 cycles a line of the 512 of a first cache, one after the other at 3 GHz";
    /// The same where the last-level cache is another: lines come from memory.
    MIGRATION_FAR = 51200.0 Nanos, "Stramash, table 4.2: Xeon Gold's memory 300 cycles a line, likewise";
    /// An interrupt between cores, taken by the one that is woken or told to reschedule.
    IPI = 2150.0 Instructions, "LAB notes: a byte to another core and back takes 11.0 us at 1 ns an instruction (bench/machine-time, wake-l1, 95th percentile); half of what of that isn't the two switches of bench/boost's message";

    /// The time between ticks.
    TICK = 4_000_000.0 Nanos, "kernel/Kconfig.hz: HZ=250, Debian's and the default; docs/anubis.md has turns end at ticks four milliseconds apart";
    /// A slice on one core.
    SLICE_BASE = 750_000.0 Nanos, "kernel/sched/fair.c: sysctl_sched_base_slice, scaled by min(1 + log2(cores), 4)";
    /// The same in Linux 7.3.
    SLICE_BASE_7_3 = 700_000.0 Nanos, "kernel/sched/fair.c of 7.2: sysctl_sched_base_slice, scaled likewise";
    /// Whoever ran more recently is hot where it was.
    HOT = 500_000.0 Nanos, "kernel/sched/fair.c: sysctl_sched_migration_cost";
    /// How much heavier another group of cores must be to be relieved, percent.
    IMBALANCE_PERCENT = 117.0 Number, "kernel/sched/topology.c: sd_init, imbalance_pct";
    /// Balances that fail before cache heat counts for nothing.
    CACHE_NICE_TRIES = 1.0 Number, "kernel/sched/topology.c: sd_init, cache_nice_tries";
    /// A core that is busy balances so many times more seldom.
    BUSY_FACTOR = 16.0 Number, "kernel/sched/topology.c: sd_init, busy_factor";
    /// Threads moved at once at the most.
    BALANCE_BATCH = 32.0 Number, "kernel/sched/core.c: sysctl_sched_nr_migrate";

    /// One that receives packets is over after so long at the most, whatever is left.
    SOFTIRQ_BUDGET = 8_000_000.0 Nanos, "net/core/hotdata.c: netdev_budget_usecs, 2 * USEC_PER_SEC / HZ; HZ is 250, Debian's";
    /// Softirqs have a core before all threads for so long, then ksoftirqd has them.
    SOFTIRQ_TIME = 2_000_000.0 Nanos, "kernel/softirq.c: MAX_SOFTIRQ_TIME";
    /// Or for so many rounds.
    SOFTIRQ_RESTART = 10.0 Number, "kernel/softirq.c: MAX_SOFTIRQ_RESTART";

    /// What two SMT siblings do together, in 1024ths of one alone.
    SMT_GAIN = 1178.0 Number, "kernel/sched/topology.c (until 5.2): sd_init, smt_gain";

    /// Leaving the first idle state, and the shortest stay that is worth it.
    C1_EXIT = 2000.0 Nanos, "drivers/idle/intel_idle.c: skx_cstates, C1, exit_latency";
    /// See there.
    C1_STAY = 2000.0 Nanos, "drivers/idle/intel_idle.c: skx_cstates, C1, target_residency";
    /// The second.
    C1E_EXIT = 10000.0 Nanos, "drivers/idle/intel_idle.c: skx_cstates, C1E, exit_latency";
    /// See there.
    C1E_STAY = 20000.0 Nanos, "drivers/idle/intel_idle.c: skx_cstates, C1E, target_residency";
    /// The deepest.
    C6_EXIT = 133_000.0 Nanos, "drivers/idle/intel_idle.c: skx_cstates, C6, exit_latency";
    /// See there.
    C6_STAY = 600_000.0 Nanos, "drivers/idle/intel_idle.c: skx_cstates, C6, target_residency";

    /// What a core takes while it does anything. What is compared is ratios.
    POWER_BUSY = 4000.0 Milliwatts, "AgileWatts (MICRO 2022), table 1: a Skylake server's core in C0 about 4 W";
    /// In the first idle state.
    POWER_C1 = 1440.0 Milliwatts, "AgileWatts (MICRO 2022), table 1: C1 1.44 W a core";
    /// In the second.
    POWER_C1E = 880.0 Milliwatts, "AgileWatts (MICRO 2022), table 1: C1E 0.88 W a core";
    /// In the deepest.
    POWER_C6 = 100.0 Milliwatts, "AgileWatts (MICRO 2022), table 1: C6 about 0.1 W a core";
}
