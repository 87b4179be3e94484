//! What the lab's emulated host takes, where that was counted.
//!
//! A paper's host takes cycles, many of which wait for memory, and prints where it saturates, where hardly anything is woken. The lab's host takes instructions, and its kernel tells when each thread is
//! woken, by whom, and when it sleeps: so what a request takes and what a wake-up takes, whosever requests that serves, are told apart there (`bench/sim/src/bin/request.rs`). What a wake-up takes is shared by
//! all requests that come together. Where an instruction takes as long as [`FROM`] a host is the lab's, and these stand for the papers'.

use super::costs;

costs! {
    /// What the lab's emulated host takes.
    EMULATED:

    /// Hosts whose instructions take so long are emulated: the lab's take 4 to 10 ns, 1 unless told, and a core of 3 GHz takes a third.
    FROM = 1.0 Nanos, "docs/sim.md and scenarios/README.md: instruction_ns";
    /// A poll of a NIC's queue, from its interrupt on.
    POLL = 4648.0 Instructions, "bench/sim/src/bin/request.rs: softirqs of queues' cores by requests and interrupts, 395 seconds; standard error 60";
    /// An interrupt of the NIC comes at most once in this time, and again when it is over.
    MODERATION = 200_704.0 Nanos, "drivers/net/ethernet/intel/igb/igb_main.c, igb_update_ring_itr: IGB_20K_ITR (196) where packets are small; hw/net/igb_core.c of QEMU 10.0: times 1024 ns. Interrupts of a ring are 200 to 220 us apart most often (irq:irq_handler_entry, one run of vspace-ramp's P)";
    /// An interrupt, until its softirq.
    HARDIRQ = 874.0 Instructions, "bench/sim/src/bin/request.rs softirqs: time in interrupts of queues' cores by interrupts of all of the NIC's rings, 45 seconds of vspace-ramp's P, E and R; 700 at 2400 requests a second to 1070 at 400";
    /// What it takes of a vCPU that it brings out of its guest besides.
    INTERRUPT_EXIT = 2050.0 Instructions, "Landau et al., SplitX (HotOS 2011), table 1: an exit's direct cost is 2000 cycles at 2.93 GHz, 683 ns; with HARDIRQ 2924, and bench/sim/src/bin/stops.rs has 2921 to 3418 of vCPUs that serve in vspace-ramp's P";
    /// A poll that sees what was sent, where the ring's vector is its own.
    SENT = 1597.0 Instructions, "bench/sim/src/bin/request.rs polls: mean of 25,595 polls between an interrupt of `eth0-tx-*` and the softirq's end, one run of vspace-ramp's P; standard error 17. Of 25,555 for what was received it is 4791";
    /// A message in it, and its answer.
    SOFTIRQ = 590.0 Instructions, "bench/sim/src/bin/request.rs, likewise; standard error 90";
    /// What RPS leaves of it to the interrupt's core.
    STEER = 295.0 Instructions, "assumed: half, as of vSPACE's fig. 11";
    /// A request of memcached in its guest: the kernel's ways in and out, the thread's work, and the exit that tells the device.
    REQUEST = 42_900.0 Instructions, "bench/sim/src/bin/request.rs stretches: one run of vspace-ramp's E at 400 requests a second, median of 351 of the guest's vCPUs that received one, told a worker and slept, 55,600, less the 12,700 of those that were woken for what was sent and slept";
    /// One of nginx, likewise; its messages take in the host what memcached's do, one packet each way.
    REQUEST_NGINX = 60_000.0 Instructions, "bench/sim/src/bin/request.rs stretches: one run of vspace-nginx's E at 200 requests a second (two seconds; d420f31), median of 220 that received one, told a worker and slept, 74,200, less the 14,200 of those that were woken for what was sent and slept; there a worker takes 19,300 instructions to send one and 4700 to receive one, memcached's 20,700 and 6400";
    /// Of memcached's, what a message takes in the guest's softirq, whether that wakes anybody or not.
    GUEST_RX = 9400.0 Instructions, "bench/sim/src/bin/request.rs stretches, likewise: median of 202 that received something and slept, 22,100, less as much";
    /// Of it, the exit that tells the device, where its worker isn't at the queue already.
    DOORBELL = 11_300.0 Instructions, "bench/sim/src/bin/request.rs stretches, at 1200 a second: median of 845 that another vCPU woke and that told a worker, 46,900, less that of 680 that told none, 35,600";
    /// What sending an IPI takes of the sender.
    IPI = 10_200.0 Instructions, "bench/sim/src/bin/request.rs stretches, likewise: median of 336 that received something and told another vCPU, 32,300, less the 22,100 of GUEST_RX";
    /// What a tick takes that has woken a vCPU, beside the wake-up.
    TICK = 11_400.0 Instructions, "bench/sim/src/bin/request.rs stretches, at 400 a second: median of 445 that a timer woke, 24,100, less the 12,700 of REQUEST";
    /// To wake a vCPU that sleeps, until it sleeps again, on its core: KVM's ways out of and into its wait, the switch, the interrupt, and the guest's ways out of and into idle.
    VCPU_WAKE = 14_400.0 Instructions, "bench/sim/src/bin/request.rs stretches, likewise: mean of 356 that were woken for what was sent and slept, 16,477, less the IPI that the host charges besides (kernel/sched/core.c, `ttwu_queue`)";
    /// Of that, what it takes to sleep again: from the exit by which it halts to the switch.
    VCPU_SLEEP = 8773.0 Instructions, "bench/sim/src/bin/stops.rs: mean of 6210 of the four vCPUs of the guest that answers, one run of vspace-ramp's P; means of 8407 to 8919";
    /// A request or an answer in the client's thread, on the same emulated machine.
    CLIENT_MESSAGE = 7618.0 Instructions, "bench/sim/src/bin/request.rs client: half of what goes with a request, 15,236, in 8 seconds of vspace-ramp's P and E (R2 0.972); standard error of that 1219";
    /// To wake that thread.
    CLIENT_WAKE = 9308.0 Instructions, "bench/sim/src/bin/request.rs client, likewise; standard error 1063";
    /// Between ticks that a vCPU keeps when it sleeps.
    GUEST_TICK = 4_000_000.0 Nanos, "kernel/Kconfig.hz: HZ=250, Debian's; kernel/sched/idle.c: without a driver for idle states a CPU keeps its tick until that wakes it (f4c31b07b136), which the lab's guest does";
    /// A message in vhost's worker, to its guest.
    VHOST_RX = 640.0 Instructions, "bench/sim/src/bin/request.rs stretches, of the run of REQUEST: means of 651 and 229 workers that an interrupt woke, 8000 and 8882, less VHOST_WAKE";
    /// From its guest, until it leaves.
    VHOST_TX = 2181.0 Instructions, "bench/sim/src/bin/request.rs stretches, of a trace with the host's interrupts, which are none of them: means of 109 and 664 workers that a vCPU woke (vspace-ramp's E at 400 and 1200 requests a second, three seconds each; 203d37b), until they hand it to the NIC, 5521 and 5531, less the switch (2590 with the interrupts)";
    /// And what it takes then.
    VHOST_SENT = 8217.0 Instructions, "bench/sim/src/bin/request.rs stretches, of that run: until those sleep, 19,002 and 17,793, less VHOST_WAKE and VHOST_TX (10,370 with the interrupts that came meanwhile)";
    /// To stop a vCPU in its guest for another thread, the switch among it, whichever scheduler makes that: from an interrupt's exit to the switch, beyond what such an exit takes that stops nobody, and
    /// from the switch back to it to its entry.
    STOP = 9783.0 Instructions, "bench/sim/src/bin/stops.rs: mean of six vCPUs that compute, of anubis-small's traced run at 2a9c808, 13,451 stops under the kernel's scheduler (9719 to 9987) and ours (9446 to 9899)";
    /// From the waking of one, by another core, that is to have a core which a vCPU has that computes in its guest, to the switch to it: what the waker takes until it interrupts that, the interrupt, and STOP.
    STOP_WOKEN = 16_700.0 Instructions, "bench/sim/src/bin/request.rs tails: one run of vspace-nginx's P (2 seconds at 200 requests a second, 3 at 600; d420f31), medians of 217 and 530 wake-ups where no timer of a slice is left, 17,300 and 17,800, less what an event's tracing takes, 900";
    /// A guest's tick that came while its vCPU was stopped, which it has when it comes back: the exit that sets the next. (What the guest's kernel does in it wasn't counted, and is left out.)
    MISSED_TICK = 4468.0 Instructions, "bench/sim/src/bin/stops.rs: exits for an MSR of the six vCPUs of STOP, of which each has about 300 a second whatever it has of a core; means of 4014 to 4902";
    /// What a guest's kernel does in a tick until it sets the next.
    TICK_HANDLER = 4954.0 Instructions, "bench/sim/src/bin/stops.rs: from an entry to the exit that sets the next, mean of 4092 of the four vCPUs of a guest that computes, one run of vspace-ramp's P (kvm:kvm_exit, kvm:kvm_entry); means of 4574 to 5648";
    /// Between exits of a vCPU that answers requests.
    SERVING_STAY = 14_108.0 Instructions, "bench/sim/src/bin/stops.rs, likewise: time on cores of the four vCPUs of the guest that answers, by their 25,403 exits";
    /// What memcached's thread takes that sees to its lists, each time that it looks.
    UPKEEP = 19_600.0 Instructions, "bench/sim/src/bin/request.rs stretches, at 400 and 1200 a second: means of vCPUs that a timer woke, 27,437 and 34,668, where of every hundred in the second 55 are this thread's (a simulated run): 40,600, less VCPU_WAKE as it was there, 16,477, and the exit that sets the next (MISSED_TICK)";
    /// The share of requests that ask for an item which is cold and has been asked for before, so that it is to be warm.
    UPKEEP_WARMED = 0.138 Number, "docs/sim.md: memcached's `stats` in the lab's guest: 2852 of `moves_to_warm` by 20,644 of `cmd_get`, in vspace-ramp under time sharing with four queues, by hand; 0.12 to 0.17 of each four seconds";
    /// The share that write.
    UPKEEP_WRITTEN = 0.0323 Number, "docs/sim.md; crates/ostler-load/src/proto/keyspace.rs: one in 31";
    /// What a guest's vCPUs take to tell the steward how it is, when it asks their agent, and to see to it that whoever is to stay on some of them does.
    AGENT = 559_000.0 Instructions, "bench/sim/src/bin/request.rs asks: one run of bench/sim/asks.toml (878ebe5), mean of 70, 584,724 ± 25,938 (three policies: 463,170 to 667,396), less VCPU_WAKE and TICK, as the simulator has it woken by a timer";
    /// Between questions.
    AGENT_ASKED = 500_000_000.0 Nanos, "crates/ostler-guest/src/host/mod.rs: Timing::state_interval";
    /// How long a guest's kernel spins for a lock before its vCPU sleeps.
    LOCK_SPIN = 196_608.0 Instructions, "kernel/locking/qspinlock_paravirt.h, pv_wait_head_or_lock: SPIN_THRESHOLD, 2^15 turns, of six instructions each in Debian's 7.3.4 (objdump); docs/sim.md: in the lab's traces vCPUs are on their cores for 2.27 ms at the median where whoever woke them lost its core to them";
    /// From the waking of one whose core sleeps to the switch to it.
    IDLE_EXIT = 6300.0 Instructions, "bench/sim/src/bin/request.rs tails: median of 3016 wake-ups on cores that slept, one run of vspace-ramp's E at 400 requests a second, 7200, less what an event's tracing takes: 8100 of 3057 where one more was traced";
    /// What a vCPU takes from the doorbell of an answer, where it sleeps then, to the switch. What it is beyond VCPU_SLEEP is a part of REQUEST: memcached reads again, finds nothing and waits for events.
    ANSWERED = 25_000.0 Instructions, "bench/sim/src/bin/request.rs tails, likewise: median of 516 vCPUs that told one worker and slept, 25,900, less as much";
    /// To wake a worker, with the switch.
    VHOST_WAKE = 7565.0 Instructions, "bench/sim/src/bin/request.rs wakes: CPU time of the guest's workers by requests and wake-ups, 16 seconds at 1200 and 2400 a second (bench/sim/request.toml, R2 0.974); standard error 1100, and of a request's 13,740, which are VHOST_RX, VHOST_TX and VHOST_SENT, 800";
}
