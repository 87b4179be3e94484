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
    /// What a poll of a NIC's queue takes that has found packets, once the last is up.
    POLL = 1468.0 Instructions, "bench/sim/src/bin/request.rs polls: 40,457 polls of three runs of bench/sim/busy.toml at 400 to 3200 requests a second (43541f1), least squares; standard error 70";
    /// An interrupt of the NIC comes at most once in this time, and again when it is over.
    MODERATION = 200_704.0 Nanos, "drivers/net/ethernet/intel/igb/igb_main.c, igb_update_ring_itr: IGB_20K_ITR (196) where packets are small; hw/net/igb_core.c of QEMU 10.0: times 1024 ns. Interrupts of a ring are 200 to 220 us apart most often (irq:irq_handler_entry, one run of vspace-ramp's P)";
    /// An interrupt, until its softirq.
    HARDIRQ = 1080.0 Instructions, "docs/sim.md: instructions of what 14,526 interrupts of the NIC's rings went through on a queue's core (`ostler lab run --profile`, 1200 requests a second; debaab1), by hand; bench/sim/src/bin/request.rs received has 942 for the way there and back, standard error 68. (874 stood here, of the steward's accounts, which see the handler alone, and other interrupts')";
    /// Of it, the handler, as the steward counts it: from when it reads the time before that until it does behind.
    HANDLER = 270.0 Instructions, "docs/sim.md: of those of HARDIRQ, what is between the steward's programs, by hand";
    /// What it takes of a vCPU that it brings out of its guest besides.
    INTERRUPT_EXIT = 2050.0 Instructions, "Landau et al., SplitX (HotOS 2011), table 1: an exit's direct cost is 2000 cycles at 2.93 GHz, 683 ns; with HARDIRQ 2924, and bench/sim/src/bin/stops.rs has 2921 to 3418 of vCPUs that serve in vspace-ramp's P";
    /// An interrupt of a guest's whose vCPU runs: the exit that brings it out, the one in which it is ready for that, and the one that ends it.
    BROUGHT_OUT = 4300.0 Instructions, "docs/sim.md: exits of two vCPUs at 2400 requests a second (bench/sim/busy.toml; 43541f1): 6453 for interrupts take 2063, 5281 until the guest is ready for one 1366, and 2588 that end one 2687, by hand";
    /// A poll that sees what was sent, where the ring's vector is its own.
    SENT = 1176.0 Instructions, "bench/sim/src/bin/request.rs polls, likewise; standard error 28";
    /// A packet in it: driver, stack, switch, tap.
    SOFTIRQ = 4374.0 Instructions, "bench/sim/src/bin/request.rs polls, likewise; standard error 42. (4961 stood here, with 266 instructions for an event that is traced of an interrupt or a softirq, which takes 628)";
    /// To wake a worker for one.
    TAP_WAKE = 2149.0 Instructions, "bench/sim/src/bin/request.rs polls, likewise; standard error 60";
    /// What RPS leaves of it to the interrupt's core.
    STEER = 2480.0 Instructions, "assumed: half, as of vSPACE's fig. 11";
    /// A request of memcached in its guest: the kernel's ways in and out, the thread's work, and the exit that tells the device.
    REQUEST = 42_762.0 Instructions, "bench/sim/src/bin/request.rs stretches: one run of bench/sim/busy.toml at 400 requests a second (ca34284), mean of 642 stretches that a worker woke for what was received, that told a worker and slept, 57,601, less VCPU_WAKE. (One interrupt and one request on a guest's only vCPU: 57,863, mean of 539; bench/sim/batches.toml, 5ac959b)";
    /// Of it, what its thread takes to be woken and to sleep again, which all requests share that it answers meanwhile.
    THREAD_WAKE = 12_100.0 Instructions, "bench/sim/src/bin/request.rs batches: in one run of bench/sim/batches.toml (5ac959b) stretches of the guest's only vCPU that answered two and three requests took 74,648 and 90,855 (means of 145 and 33), so one takes 16,500 more, and 15,000 of REQUEST less DOORBELL are there once; no more than is left to do after an answer, ANSWERED less VCPU_SLEEP. nginx's is taken to be the same";
    /// One of nginx, likewise; its messages take in the host what memcached's do, one packet each way.
    REQUEST_NGINX = 59_361.0 Instructions, "bench/sim/src/bin/request.rs stretches: one run of vspace-nginx's E at 200 requests a second (two seconds; d420f31), median of 220 that received one, told a worker and slept, 74,200, less VCPU_WAKE (batches, of batches.toml with nginx instead, has 72,697, mean of 383; 5ac959b); there a worker takes 19,300 instructions to send one and 4700 to receive one, memcached's 20,700 and 6400";
    /// Of memcached's, what a message takes in the guest's softirq, whether that wakes anybody or not.
    GUEST_RX = 11_857.0 Instructions, "bench/sim/src/bin/request.rs stretches, of the run of REQUEST: 57,601 less what a vCPU takes that another woke and that told a worker and slept, 45,744, mean of 1130. (9400 stood here, of those that received something and woke nobody, an acknowledgement most often)";
    /// So much later a thread's timer is due than it has asked for.
    TIMER_SLACK = 50_000.0 Nanos, "include/linux/sched.h, task_struct.timer_slack_ns: every thread begins with what init/init_task.c has, 50 us";
    /// What an idle vCPU takes to balance for others, once it is awake.
    BALANCES = 2534.0 Instructions, "docs/sim.md: vCPUs that their guest doesn't use (bench/sim/busy.toml at 1200, 2400 and 3200 requests a second; 43541f1): medians of 19,100, 18,200 and 17,200 from the switch until they sleep, by hand, less an event's tracing, 827, and VCPU_WAKE";
    /// Of it, the exit that tells the device, where its worker isn't at the queue already.
    DOORBELL = 11_300.0 Instructions, "bench/sim/src/bin/request.rs stretches, at 1200 a second: median of 845 that another vCPU woke and that told a worker, 46,900, less that of 680 that told none, 35,600";
    /// What sending an IPI takes of the sender.
    IPI = 4500.0 Instructions, "bench/sim/src/bin/request.rs stretches, likewise: median of 972 that received something and told another vCPU, 28,800 (means have those in it that received several), less medians of VCPU_WAKE's, 12,700, and of GUEST_RX, 55,200 less 43,600. (10,200 stood here, which was GUEST_RX of those that wake somebody)";
    /// What a tick takes that has woken a vCPU, beside the wake-up.
    TICK = 10_536.0 Instructions, "bench/sim/src/bin/request.rs batches: of batches.toml's run, mean of 1013 that the guest's tick woke, 25,375, less VCPU_WAKE";
    /// To wake a vCPU that sleeps, until it sleeps again, on its core: KVM's ways out of and into its wait, the switch, the interrupt, and the guest's ways out of and into idle.
    VCPU_WAKE = 14_839.0 Instructions, "bench/sim/src/bin/request.rs stretches, of the run of REQUEST: mean of 1701 that were woken for what was sent and slept; with the IPI to a core that sleeps, which is a part of IDLE_EXIT. (Of 356 of batches.toml's 16,477)";
    /// Of that, what it takes to sleep again: from the exit by which it halts to the switch.
    VCPU_SLEEP = 8773.0 Instructions, "bench/sim/src/bin/stops.rs: mean of 6210 of the four vCPUs of the guest that answers, one run of vspace-ramp's P; means of 8407 to 8919";
    /// What the client's thread takes to send a request until its NIC's driver has it.
    CLIENT_SEND = 4798.0 Instructions, "bench/sim/src/bin/request.rs client: one run of bench/sim/busy.toml at 400, 2400 and 3200 requests a second (43541f1), from a request that is sent until the driver has the next, mean of 2896. (7618 stood here for whatever it sends or reads, half of what went with a request in its time)";
    /// And from then on, until it can send another.
    CLIENT_SENT = 4848.0 Instructions, "bench/sim/src/bin/request.rs client, likewise: mean of 8410";
    /// Before it sends the first of those that are due.
    CLIENT_BEGIN = 3140.0 Instructions, "bench/sim/src/bin/request.rs client, likewise: from when it knows what there is until the driver has a request, 7345 (2990), and from an answer that it has read, 8640 (2525), less CLIENT_SEND";
    /// To read an answer.
    CLIENT_READ = 2553.0 Instructions, "bench/sim/src/bin/request.rs client, likewise: until it has read an answer, from when it knows what there is, 1970 (4282), and from the one before, 3157 (4129)";
    /// To look for what is to be done next.
    CLIENT_LOOK = 2224.0 Instructions, "bench/sim/src/bin/request.rs client, likewise: from a request that is sent until it looks, 1602 (5515), or from an answer that it has read, 1748 (1756), and from there until it knows, 587 (4243)";
    /// From when a request is due to the switch to the thread, where that sleeps.
    CLIENT_DUE = 5124.0 Instructions, "bench/sim/src/bin/request.rs client, likewise: median of 1825";
    /// From the switch until it is at it.
    CLIENT_RUNS = 918.0 Instructions, "bench/sim/src/bin/request.rs client, likewise: mean of 3322";
    /// What is due so soon it waits for awake.
    CLIENT_SPIN = 20_000.0 Nanos, "crates/ostler-load/src/net.rs, SPIN_NS";
    /// What an emulated NIC and its peer take from one driver to the other's interrupt.
    DEVICE = 5310.0 Instructions, "from net_dev_start_xmit to irq_handler_entry of a ring that was quiet for 0.3 ms, means of 5600 to 6700 (both ways, four runs of bench/sim/busy.toml; 43541f1), of all 20,566 6137, less an event's tracing, 827, by hand";
    /// Between ticks that a vCPU keeps when it sleeps.
    GUEST_TICK = 4_000_000.0 Nanos, "kernel/Kconfig.hz: HZ=250, Debian's; kernel/sched/idle.c: without a driver for idle states a CPU keeps its tick until that wakes it (f4c31b07b136), which the lab's guest does";
    /// A message in vhost's worker, to its guest.
    VHOST_RX = 2180.0 Instructions, "bench/sim/src/bin/request.rs received: 6379 stretches of workers that send nothing, of the runs of POLL, least squares; standard error 100. (640 stood here, of stretches with one, from which what is there once can't be told apart)";
    /// From its guest, until it leaves.
    VHOST_TX = 2323.0 Instructions, "bench/sim/src/bin/request.rs stretches, of bench/sim/busy.toml (43541f1): from the switch until it hands it to the NIC, medians of 5673 at 400 and 1200 requests a second (mean of 3492: 5754), less the switch";
    /// Of that, what it takes to take one, before it turns to what is next in the ring.
    VHOST_TAKE = 525.0 Instructions, "bench/sim/src/bin/request.rs stretches, of bench/sim/busy.toml (ca34284): from the switch to the first that leaves, means of 86, 106, 95 and 73 workers that a vCPU woke and that sent one to four and told it once, 5290, 6022, 6516 and 6875; slope";
    /// And what it takes then, before the next one leaves that it has taken with it.
    VHOST_SENT = 2916.0 Instructions, "bench/sim/src/bin/request.rs stretches, of bench/sim/busy.toml (43541f1): from one that leaves to the next, of the second and later ones of those that sent three and four, 4714 (mean of 1394 at 1200, 2400 and 3200 a second), less VHOST_TX but for VHOST_TAKE";
    /// And once all that it had taken has left.
    VHOST_FLUSH = 2445.0 Instructions, "bench/sim/src/bin/request.rs batches: one run of batches.toml (43541f1), 7684 a message that leaves alone (3477 stretches), less VHOST_TX and VHOST_SENT";
    /// To stop a vCPU in its guest for another thread, the switch among it, whichever scheduler makes that: from an interrupt's exit to the switch, beyond what such an exit takes that stops nobody, and
    /// from the switch back to it to its entry.
    STOP = 9783.0 Instructions, "bench/sim/src/bin/stops.rs: mean of six vCPUs that compute, of anubis-small's traced run at 2a9c808, 13,451 stops under the kernel's scheduler (9719 to 9987) and ours (9446 to 9899)";
    /// From the waking of one, by another core, that is to have a core which a vCPU has that computes in its guest, to the switch to it: what the waker takes until it interrupts that, the interrupt, and STOP.
    STOP_WOKEN = 16_700.0 Instructions, "bench/sim/src/bin/request.rs tails: one run of vspace-nginx's P (2 seconds at 200 requests a second, 3 at 600; d420f31), medians of 217 and 530 wake-ups where no timer of a slice is left, 17,300 and 17,800, less what an event's tracing takes, 827";
    /// A guest's tick that came while its vCPU was stopped, which it has when it comes back: the exit that sets the next. (What the guest's kernel does in it wasn't counted, and is left out.)
    MISSED_TICK = 4468.0 Instructions, "bench/sim/src/bin/stops.rs: exits for an MSR of the six vCPUs of STOP, of which each has about 300 a second whatever it has of a core; means of 4014 to 4902";
    /// What a guest's kernel does in a tick until it sets the next.
    TICK_HANDLER = 4954.0 Instructions, "bench/sim/src/bin/stops.rs: from an entry to the exit that sets the next, mean of 4092 of the four vCPUs of a guest that computes, one run of vspace-ramp's P (kvm:kvm_exit, kvm:kvm_entry); means of 4574 to 5648";
    /// Between exits of a vCPU that answers requests.
    SERVING_STAY = 14_108.0 Instructions, "bench/sim/src/bin/stops.rs, likewise: time on cores of the four vCPUs of the guest that answers, by their 25,403 exits";
    /// What memcached's thread takes that sees to its lists, each time that it looks.
    UPKEEP = 13_819.0 Instructions, "bench/sim/src/bin/request.rs batches: of batches.toml's run, mean of 770 that a timer between ticks woke and nothing else, 33,126, less VCPU_WAKE and the exit that sets the next (MISSED_TICK)";
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
    IDLE_EXIT = 6573.0 Instructions, "bench/sim/src/bin/request.rs tails: median of 7336 wake-ups on cores that slept, one run of bench/sim/busy.toml at 400 requests a second (43541f1), 7400, less what an event's tracing takes, 827";
    /// Of it, the handler of the interrupt between cores that has the thread queued there, as the steward counts it.
    WOKEN = 2400.0 Instructions, "docs/sim.md: instructions of queuing a thread and of the interrupt around it, of the run of HARDIRQ, by hand; the steward sees 2700 of interrupts on vCPUs' cores for each wake-up";
    /// From the end of a softirq that came into the idle loop to the switch to the thread that it has woken there.
    IDLE_LEAVE = 1876.0 Instructions, "bench/sim/src/bin/request.rs polls, of the runs of POLL: mean of 6947";
    /// What a vCPU takes from the doorbell of an answer, where it sleeps then, to the switch. What it is beyond VCPU_SLEEP and THREAD_WAKE is a part of REQUEST.
    ANSWERED = 20_900.0 Instructions, "bench/sim/src/bin/request.rs stretches: medians of vCPUs that told one worker and slept, 20,600 and 21,000 (vspace-ramp's E at 400 and 1200 requests a second) and 21,200 (bench/sim/batches.toml at 200), from the doorbell that wakes a worker to the switch. (25,000 stood here, which the tails of all vCPUs have)";
    /// What it takes before the guest is told that all is sent.
    VHOST_DONE = 1726.0 Instructions, "bench/sim/src/bin/request.rs stretches: from what a worker sends alone until it wakes the vCPU for it, mean of 1244 (bench/sim/busy.toml at 400 requests a second; 43541f1), 7087, less VHOST_SENT and VHOST_FLUSH";
    /// To interrupt the guest, of a worker's.
    VHOST_TELL = 1284.0 Instructions, "bench/sim/src/bin/request.rs received, as of VHOST_RX; standard error 257";
    /// And more to wake it.
    VHOST_TELL_WAKES = 725.0 Instructions, "bench/sim/src/bin/request.rs received, as of VHOST_RX; standard error 164";
    /// To wake a worker, with the switch.
    VHOST_WAKE = 4791.0 Instructions, "bench/sim/src/bin/request.rs received, as of VHOST_RX; standard error 275";
}
