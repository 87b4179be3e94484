//! The way of a packet, and a guest's kernel.
//!
//! The papers print few costs, but print where things saturate, and that says as much: whoever is the bottleneck of a way takes one over the rate. What
//! no source tells is *assumed*, says so, and is small beside what one does. What the host's scheduler costs isn't here
//! ([`super::host`]).

use super::costs;

costs! {
    /// The way of a packet, and a guest's kernel.
    PATH:

    /// One way between a client and the NIC.
    WIRE = 5000.0 Nanos, "assumed, no table or figure: a switch and two cables of 10 Gbit/s";
    /// When a request that was lost is sent again, the first time.
    RTO_MIN = 200_000_000.0 Nanos, "include/net/tcp.h: TCP_RTO_MIN; it is twice as long each further time";
    /// And no later than this.
    RTO_MAX = 120_000_000_000.0 Nanos, "include/net/tcp.h: TCP_RTO_MAX";
    /// After so long an answer is acknowledged by itself ([`crate::load::acks`]).
    DELACK = 40_000_000.0 Nanos, "include/net/tcp.h: TCP_DELACK_MIN and TCP_ATO_MIN, a 25th of a second; no more than that while round trips are shorter (net/ipv4/tcp_output.c, tcp_send_delayed_ack)";
    /// A hard interrupt.
    HARDIRQ = 683.0 Nanos, "Landau et al., SplitX (HotOS 2011), table 1: an exit's direct cost is 2000 cycles at 2.93 GHz, which an interrupt is for a core with a guest; assumed for others";
    /// Softirq of a message, and of its answer's completion.
    SOFTIRQ = 3800.0 Nanos, "vSPACE, fig. 11: a core that does this alone is busy for 95.3 % at 250,000 requests/s";
    /// What RPS leaves of that to the interrupt's core.
    STEER = 1900.0 Nanos, "assumed: half of vSPACE's fig. 11";
    /// What it costs more on another node than the NIC's.
    NIC_FAR = 248.0 Nanos, "vFlowComb, fig. 5: 1.20 million packets/s (mapping G), 833 ns, for 1.71 million, 585 ns";
    /// vhost, a message in a direction.
    VHOST = 2250.0 Nanos, "vSPACE, fig. 2: one core with both queues saturates at 120,000 requests/s: 8333 ns for softirq and vhost both ways";
    /// Any stage of a packet in bulk.
    BULK = 585.0 Nanos, "vFlowComb, fig. 5: 1.71 million packets/s with all stages near";
    /// A message from a stage on another node.
    HANDOFF_FAR = 105.0 Nanos, "vFlowComb, fig. 5: 1.45 million packets/s (mapping E), 690 ns, for 585 ns";
    /// What a message from another node takes, in times of that, where as many guests are at a node as [`CROWD_GUESTS`].
    CROWD = 3.8 Number, "vFlowComb, fig. 5: 1.02 million packets/s (mapping E) with five guests at it, 980 ns, for 690 and 585 ns";
    /// See there; fewer are assumed to rise evenly from one, and more to be no worse.
    CROWD_GUESTS = 5.0 Number, "vFlowComb, fig. 5: five VMs";
    /// Guests whose messages come within so long are at a node together.
    CROWD_TIME = 1_000_000.0 Nanos, "assumed: what it takes to fill the last-level cache of vFlowComb's table I, 18 MB, at 18 GB/s";
    /// From another cache group.
    HANDOFF_NODE = 37.0 Nanos, "CPS, table 1, for vFlowComb's fig. 5: (210 - 141) / (337 - 141) of 105 ns";
    /// A request in a guest.
    REQUEST = 32000.0 Nanos, "vSPACE, fig. 4: 8 vCPUs saturate at 250,000 requests/s";
    /// What of it is the guest's kernel's, a direction.
    GUEST_STACK = 1900.0 Nanos, "assumed as the host's for the same packet: half of vSPACE's fig. 11";
    /// nginx's way and work, for memcached's.
    NGINX = 1.668 Number, "vSPACE, fig. 11: 95.4 % at 150,000 requests/s";
    /// An exit that tells a device.
    EXIT = 619.0 Nanos, "Dall et al., ARM Virtualization (ISCA 2016), table II: hypercall, 1300 cycles at 2.1 GHz";
    /// An interrupt in a guest.
    INTERRUPT = 741.0 Nanos, "Dall et al., table II: virtual IRQ completion, 1556 cycles";
    /// To send an IPI in a guest.
    IPI = 1135.0 Nanos, "Dall et al., table II: interrupt controller trap, 2384 cycles";
    /// To choose a vCPU: HVM.
    CHOOSE_HVM = 103.29 Nanos, "CPS, table 2";
    /// PVM.
    CHOOSE_PVM = 1835.45 Nanos, "CPS, table 2";
    /// Pload.
    CHOOSE_PLOAD = 706.6 Nanos, "CPS, table 2";
    /// `CGsched`.
    CHOOSE_CGSCHED = 1090.84 Nanos, "CPS, table 2";
    /// A cache line from a core of the same group.
    LINE_GROUP = 141.2 Nanos, "CPS, table 1: 7.08 million increments/s";
    /// Of the same node.
    LINE_NODE = 210.1 Nanos, "CPS, table 1: 4.76 million";
    /// Of another node. Those of a socket, 4.45 million, are nearer to a node's; a topology here has no sockets.
    LINE_FAR = 336.7 Nanos, "CPS, table 1: 2.97 million between sockets";
    /// An entry of a directory that is read, where nobody else reads it (FxMark's MRDM).
    FX_ENTRY = 176.0 Nanos, "bench/paper/src/bin/calls.rs: a tmpfs, Linux 6.18, x86-64; the least of 51 runs";
    /// A write of 4 KiB over what is there, likewise (DWOM, DWOL).
    FX_WRITE = 345.0 Nanos, "bench/paper/src/bin/calls.rs; FxMark's own log of ext4 on an older machine has 627 ns (logs/2019-03-25-21-07-45.640181, DWOL, one core)";
    /// What of it is the call's, and so is done without the file's lock.
    FX_CALL = 142.0 Nanos, "bench/paper/src/bin/calls.rs: the same write to /dev/null";
    /// A disk's block.
    DISK = 100_000.0 Nanos, "assumed, no table or figure: 4 KiB of a data centre's NVMe";
    /// What a guest's kernel takes to ask for a block, and again when it comes.
    BLOCK = 1900.0 Nanos, "assumed: as for a packet, half of vSPACE's fig. 11";
    /// From when a guest boots to when the next does, and from when its vCPUs are up to when its tasks begin.
    START = 1_000_000.0 Nanos, "assumed, no table or figure: to start a program";
    /// A file's work from memory.
    FILE = 3_320_000_000.0 Nanos, "Hylics, section 5.3 with table 3: 3.32 s";
    /// What a disk takes more.
    FILE_DISK = 700_000_000.0 Nanos, "Hylics, section 5.3 with table 3: 4.02 s from a disk";
}
