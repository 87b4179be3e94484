//! What the way of a packet and a guest's kernel cost in a world, and how near its cores are to each other. The figures and their sources:
//! [`crate::costs::path`].

use crate::costs::{INSTRUCTION_NS, emulated, host, path as table};
use crate::load::end::EndCosts;
use crate::load::{PACKETS, PACKETS_NGINX};
use ostler_model::{CpuId, Nanos, NodeId, Topology};

/// How near two cores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// The same core.
    Same,
    /// They share a last-level cache.
    Group,
    /// Or only a node.
    Node,
    /// Or nothing.
    Far,
}

/// Costs of a packet's way and of a guest's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// One way between a client and the NIC.
    pub wire: Nanos,
    /// What a client's own machine takes, if that takes anything.
    pub end: EndCosts,
    /// A hard interrupt.
    pub hardirq: Nanos,
    /// What a poll of a queue takes, from its interrupt on, however many messages it finds; where they go up one by one, if it finds any.
    pub poll: Nanos,
    /// What a poll takes that sees what was sent, however many messages, where transmit rings have interrupts of their own.
    pub sent: Nanos,
    /// Softirq of a message: driver, stack, switch, tap; and the completion of what is sent back.
    pub softirq: Nanos,
    /// What it takes besides to wake a worker for one.
    pub tap_wake: Nanos,
    /// Of it, what is left to the interrupt's core if another core does the rest (RPS).
    pub steer: Nanos,
    /// Its penalty on another node than the NIC's.
    pub nic_far: Nanos,
    /// A message into a guest.
    pub vhost_rx: Nanos,
    /// Where a worker takes messages one at a time, what it takes to take one that it is to send.
    pub vhost_take: Nanos,
    /// A message out of a guest, with the host's stack and the driver.
    pub vhost_tx: Nanos,
    /// And what a message takes that way once it has left, before the guest is told and the next one leaves; zero: all is done before, and a worker takes all that there is at once.
    pub vhost_sent: Nanos,
    /// And once all that it had taken has left.
    pub vhost_flush: Nanos,
    /// What a worker takes then before it tells its guest.
    pub vhost_done: Nanos,
    /// To interrupt the guest.
    pub vhost_tell: Nanos,
    /// And more to wake a vCPU that sleeps.
    pub vhost_tell_wakes: Nanos,
    /// What a message costs more if the stage before was on a core of this distance.
    pub handoff: [Nanos; 4],
    /// An exit of a guest by which it tells a device.
    pub exit: Nanos,
    /// What a vCPU that slept takes beyond the switch and its interrupt before it goes on; all that it finds to do then shares that.
    pub vcpu_wake: Nanos,
    /// And what it takes to sleep again, when it has nothing to do.
    pub vcpu_sleep: Nanos,
    /// What a vhost worker that slept takes beyond the switch, all of it when it has nothing more to do.
    pub vhost_sleep: Nanos,
    /// Between ticks that a guest's vCPU keeps when it sleeps; zero: it stops them.
    pub guest_tick: Nanos,
    /// How long after a message its connection's timer is due, where a guest's kernel lets it be when it answers; zero: it wakes nobody.
    pub delayed_ack: Nanos,
    /// How long a vCPU that answers requests is in its guest at a time, in the mean; zero: exits that aren't in the path are as if there were none.
    pub serving_stay: Nanos,
    /// To set a guest's timer.
    pub set_timer: Nanos,
    /// What memcached's thread takes that sees to its lists, each time that it looks; zero: there is none.
    pub upkeep: Nanos,
    /// What a guest's agent takes each time that the steward asks how the guest is; zero: nothing.
    pub agent: Nanos,
    /// Between two of these.
    pub agent_asked: Nanos,
    /// An interrupt in a guest.
    pub interrupt: Nanos,
    /// What it takes more to bring a vCPU that runs out of its guest for it, by an interrupt of its core.
    pub kick: Nanos,
    /// What it takes more where it is a tick that has woken a vCPU.
    pub tick: Nanos,
    /// What sending an IPI takes of the sender.
    pub ipi: Nanos,
    /// How long a guest's kernel spins for a lock before its vCPU sleeps; zero: whoever has one is never held up with it.
    pub lock_spin: Nanos,
    /// A message through a guest's softirq.
    pub guest_rx: Nanos,
    /// So much later a thread's timer is due than it has asked for.
    pub timer_slack: Nanos,
    /// What an idle vCPU takes to balance for all that are.
    pub balances: Nanos,
    /// A message's sending in a guest.
    pub guest_tx: Nanos,
    /// A request in a guest, with the kernel's ways in and out.
    pub request: Nanos,
    /// What nginx does for a request, beside the kernel's ways in and out.
    pub nginx: Nanos,
    /// What the way of its messages costs, in parts of 1024 of memcached's.
    pub nginx_packets: u32,
    /// Of a request, what is left to do when it has been answered.
    pub answered: Nanos,
    /// What a thread that answers takes to be woken and to sleep again, as it goes to sleep; all requests that it answers meanwhile share that.
    pub rest: Nanos,
    /// To choose a vCPU for a woken task, by rule: HVM, PVM, Pload, `CGsched`.
    pub choose: [Nanos; 4],
    /// To have a cache line from a core of this distance.
    pub line: [Nanos; 4],
    /// What a disk takes for a block.
    pub disk: Nanos,
    /// What a guest's kernel takes to ask for a block, and again when it comes.
    pub block: Nanos,
    /// From when a guest boots to when the next does, and from when its vCPUs are up to when its tasks begin.
    pub start: Nanos,
    /// What its drivers do.
    pub driver: Driver,
}

/// What Linux's drivers at both ends of a guest's NIC do today. Papers' hosts have what those papers count, of whichever kernels, and none of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// A tap puts a flow's packets into the queue on which the guest last sent one of it (drivers/net/tun.c).
    pub tap_learns: bool,
    /// A guest is interrupted for what it sent, when that is gone (drivers/net/virtio_net.c, `napi_tx`, the default since Linux 5.3).
    pub completes: bool,
    /// Where a guest has more queues than vCPUs in use, each of these has several to send on (crates/ostler-guest/src/agent/nics.rs; drivers/net/virtio_net.c, `virtnet_set_affinity`), and a flow's packets take one by
    /// their hash (net/core/dev.c, `__get_xps_queue_idx`).
    pub spreads: bool,
}

/// What nginx does for a request where memcached's takes so much, its kernel's ways in and out among it: as much more as [`table::NGINX`] says.
fn nginx(request: Nanos, way_in: Nanos, way_out: Nanos) -> Nanos {
    let kernel = way_in.saturating_add(way_out);
    let own = request.saturating_sub(kernel).0 as f64;
    crate::round::nanos(own * table::NGINX.value)
}

impl Default for Costs {
    fn default() -> Costs {
        let ns = |cost: crate::costs::Cost| cost.nanos(INSTRUCTION_NS);
        Costs {
            wire: ns(table::WIRE),
            end: EndCosts::default(),
            hardirq: ns(table::HARDIRQ),
            // In all else, as below.
            poll: Nanos::ZERO,
            sent: Nanos::ZERO,
            softirq: ns(table::SOFTIRQ),
            tap_wake: Nanos::ZERO,
            steer: ns(table::STEER),
            nic_far: ns(table::NIC_FAR),
            vhost_rx: ns(table::VHOST),
            vhost_tx: ns(table::VHOST),
            vhost_take: Nanos::ZERO,
            vhost_sent: Nanos::ZERO,
            vhost_flush: Nanos::ZERO,
            vhost_done: Nanos::ZERO,
            vhost_tell: Nanos::ZERO,
            vhost_tell_wakes: Nanos::ZERO,
            handoff: [
                Nanos::ZERO,
                Nanos::ZERO,
                ns(table::HANDOFF_NODE),
                ns(table::HANDOFF_FAR),
            ],
            exit: ns(table::EXIT),
            // Papers' figures are of where hosts saturate, and have it in all else, as far as it is there.
            vcpu_wake: Nanos::ZERO,
            vcpu_sleep: Nanos::ZERO,
            vhost_sleep: Nanos::ZERO,
            guest_tick: Nanos::ZERO,
            delayed_ack: Nanos::ZERO,
            serving_stay: Nanos::ZERO,
            set_timer: Nanos::ZERO,
            upkeep: Nanos::ZERO,
            agent: Nanos::ZERO,
            agent_asked: Nanos::ZERO,
            interrupt: ns(table::INTERRUPT),
            kick: Nanos::ZERO,
            tick: Nanos::ZERO,
            ipi: ns(table::IPI),
            lock_spin: Nanos::ZERO,
            guest_rx: ns(table::GUEST_STACK),
            timer_slack: Nanos::ZERO,
            balances: Nanos::ZERO,
            guest_tx: ns(table::GUEST_STACK),
            request: ns(table::REQUEST),
            nginx: nginx(
                ns(table::REQUEST),
                ns(table::GUEST_STACK),
                ns(table::GUEST_STACK),
            ),
            nginx_packets: PACKETS_NGINX,
            answered: Nanos::ZERO,
            rest: Nanos::ZERO,
            choose: [
                ns(table::CHOOSE_HVM),
                ns(table::CHOOSE_PVM),
                ns(table::CHOOSE_PLOAD),
                ns(table::CHOOSE_CGSCHED),
            ],
            line: [
                Nanos::ZERO,
                ns(table::LINE_GROUP),
                ns(table::LINE_NODE),
                ns(table::LINE_FAR),
            ],
            disk: ns(table::DISK),
            block: ns(table::BLOCK),
            start: ns(table::START),
            driver: Driver::default(),
        }
    }
}

impl Costs {
    /// Costs on a host whose instructions take so long: all that is code takes longer in proportion, since papers tell its time on a host of 3 GHz. What
    /// wires, disks and caches take doesn't.
    #[must_use]
    pub fn at(self, instruction_ns: f64) -> Costs {
        let code =
            |time: Nanos| crate::round::nanos(time.0 as f64 * instruction_ns / INSTRUCTION_NS);
        Costs {
            hardirq: code(self.hardirq),
            poll: code(self.poll),
            sent: code(self.sent),
            softirq: code(self.softirq),
            tap_wake: code(self.tap_wake),
            steer: code(self.steer),
            vhost_rx: code(self.vhost_rx),
            vhost_tx: code(self.vhost_tx),
            vhost_take: code(self.vhost_take),
            vhost_sent: code(self.vhost_sent),
            vhost_flush: code(self.vhost_flush),
            vhost_done: code(self.vhost_done),
            vhost_tell: code(self.vhost_tell),
            vhost_tell_wakes: code(self.vhost_tell_wakes),
            exit: code(self.exit),
            vcpu_wake: code(self.vcpu_wake),
            vcpu_sleep: code(self.vcpu_sleep),
            vhost_sleep: code(self.vhost_sleep),
            answered: code(self.answered),
            rest: code(self.rest),
            set_timer: code(self.set_timer),
            upkeep: code(self.upkeep),
            agent: code(self.agent),
            start: code(self.start),
            interrupt: code(self.interrupt),
            kick: code(self.kick),
            tick: code(self.tick),
            ipi: code(self.ipi),
            guest_rx: code(self.guest_rx),
            balances: code(self.balances),
            guest_tx: code(self.guest_tx),
            request: code(self.request),
            nginx: nginx(code(self.request), code(self.guest_rx), code(self.guest_tx)),
            choose: self.choose.map(code),
            block: code(self.block),
            ..self
        }
    }

    /// Costs on a host whose instructions take so long: of the lab's, where it is one ([`emulated`]), what was counted there.
    #[must_use]
    pub fn on(self, instruction_ns: f64) -> Costs {
        let costs = self.at(instruction_ns);
        if instruction_ns < emulated::FROM.value {
            return costs;
        }
        let ns = |cost: crate::costs::Cost| cost.nanos(instruction_ns);
        let beyond = |wake, part: Nanos| ns(wake).saturating_sub(part);
        let switch = ns(host::SWITCH);
        let rest = ns(emulated::THREAD_WAKE);
        Costs {
            hardirq: ns(emulated::HARDIRQ),
            poll: ns(emulated::POLL),
            sent: ns(emulated::SENT),
            softirq: ns(emulated::SOFTIRQ),
            tap_wake: ns(emulated::TAP_WAKE),
            steer: ns(emulated::STEER),
            request: beyond(emulated::REQUEST, ns(emulated::DOORBELL)).saturating_sub(rest),
            nginx: beyond(emulated::REQUEST_NGINX, ns(emulated::DOORBELL))
                .saturating_sub(rest)
                .saturating_sub(ns(emulated::GUEST_RX).saturating_add(costs.guest_tx)),
            // One packet each way, as memcached's.
            nginx_packets: PACKETS,
            exit: ns(emulated::DOORBELL),
            guest_rx: ns(emulated::GUEST_RX),
            timer_slack: ns(emulated::TIMER_SLACK),
            balances: ns(emulated::BALANCES),
            tick: ns(emulated::TICK),
            guest_tick: ns(emulated::GUEST_TICK),
            delayed_ack: ns(table::DELACK),
            serving_stay: ns(emulated::SERVING_STAY),
            set_timer: ns(emulated::MISSED_TICK),
            upkeep: ns(emulated::UPKEEP),
            agent: ns(emulated::AGENT),
            agent_asked: ns(emulated::AGENT_ASKED),
            ipi: ns(emulated::IPI),
            kick: ns(emulated::BROUGHT_OUT),
            lock_spin: ns(emulated::LOCK_SPIN),
            vcpu_wake: beyond(emulated::VCPU_WAKE, switch)
                .saturating_sub(costs.interrupt.saturating_add(ns(emulated::VCPU_SLEEP))),
            vcpu_sleep: ns(emulated::VCPU_SLEEP),
            wire: Nanos::ZERO,
            end: EndCosts {
                device: ns(emulated::DEVICE),
                look: ns(emulated::CLIENT_LOOK),
                begin: ns(emulated::CLIENT_BEGIN),
                send: ns(emulated::CLIENT_SEND),
                sent: ns(emulated::CLIENT_SENT),
                read: ns(emulated::CLIENT_READ),
                due: ns(emulated::CLIENT_DUE).saturating_add(ns(emulated::CLIENT_RUNS)),
                wake: ns(emulated::TAP_WAKE)
                    .saturating_add(ns(emulated::IDLE_LEAVE))
                    .saturating_add(ns(emulated::CLIENT_RUNS)),
                spin: ns(emulated::CLIENT_SPIN),
                interrupt: ns(emulated::HARDIRQ)
                    .saturating_add(ns(emulated::POLL))
                    .saturating_add(ns(emulated::SOFTIRQ)),
                packet: ns(emulated::SOFTIRQ),
                told: ns(emulated::HARDIRQ).saturating_add(ns(emulated::SENT)),
                moderation: ns(emulated::MODERATION),
            },
            vhost_rx: ns(emulated::VHOST_RX),
            vhost_take: ns(emulated::VHOST_TAKE),
            vhost_tx: beyond(emulated::VHOST_TX, ns(emulated::VHOST_TAKE)),
            vhost_sent: ns(emulated::VHOST_SENT),
            vhost_flush: ns(emulated::VHOST_FLUSH),
            vhost_done: ns(emulated::VHOST_DONE),
            vhost_tell: ns(emulated::VHOST_TELL),
            vhost_tell_wakes: ns(emulated::VHOST_TELL_WAKES),
            vhost_sleep: beyond(emulated::VHOST_WAKE, switch),
            answered: beyond(emulated::ANSWERED, ns(emulated::VCPU_SLEEP)).saturating_sub(rest),
            rest,
            driver: Driver {
                tap_learns: true,
                completes: true,
                spreads: true,
            },
            ..costs
        }
    }

    /// Whether a worker takes messages as vhost does, each when the one before is done: where what comes before a message leaves and after that are told apart.
    pub fn one_at_a_time(&self) -> bool {
        self.vhost_sent > Nanos::ZERO
    }

    /// A message's softirq where nobody answers it, so that nothing sent is completed: half, as what steering leaves of it is assumed to be.
    pub fn softirq_alone(&self) -> Nanos {
        // Where what is sent is seen to by itself it is in no message's.
        if self.sent > Nanos::ZERO {
            return self.softirq;
        }
        self.softirq.saturating_sub(self.steer)
    }

    /// Costs of bulk packets: those of a stage in which interrupts and wake-ups are shared by many.
    pub fn bulk() -> Costs {
        let stage = table::BULK.nanos(INSTRUCTION_NS);
        // A guest that sends packets on is one stage, with a way in and a way out.
        let half = Nanos(stage.0 / 2);
        Costs {
            softirq: stage,
            steer: half,
            vhost_rx: stage,
            vhost_tx: stage,
            guest_rx: half,
            guest_tx: half,
            ..Costs::default()
        }
    }
}

/// Which core is where, by number.
#[derive(Clone, Debug, Default)]
pub struct Ground {
    cores: Vec<(u32, u32, bool)>,
}

impl Ground {
    /// Of a host.
    pub fn new(topology: &Topology) -> Ground {
        let count = topology.cpus.iter().map(|cpu| cpu.id.0 + 1).max();
        let mut cores = vec![(0, 0, false); count.unwrap_or(0) as usize];
        for cpu in &topology.cpus {
            cores[cpu.id.0 as usize] = (cpu.node.0, cpu.cache_group.0, true);
        }
        Ground { cores }
    }

    /// One past the highest core.
    pub fn len(&self) -> usize {
        self.cores.len()
    }

    /// One past the highest node that has cores.
    pub fn nodes(&self) -> usize {
        let there = self.cores.iter().filter(|core| core.2);
        there.map(|core| core.0 as usize + 1).max().unwrap_or(0)
    }

    /// Whether there are no cores.
    pub fn is_empty(&self) -> bool {
        self.cores.is_empty()
    }

    /// Whether there is such a core.
    pub fn has(&self, cpu: CpuId) -> bool {
        self.cores.get(cpu.0 as usize).is_some_and(|core| core.2)
    }

    /// The node of a core; the first where nobody knows it.
    pub fn node(&self, cpu: CpuId) -> NodeId {
        NodeId(self.cores.get(cpu.0 as usize).map_or(0, |core| core.0))
    }

    /// How near two cores are; as far as can be where one isn't known.
    pub fn distance(&self, a: CpuId, b: CpuId) -> Distance {
        let (Some(first), Some(second)) =
            (self.cores.get(a.0 as usize), self.cores.get(b.0 as usize))
        else {
            return Distance::Far;
        };
        if a == b {
            Distance::Same
        } else if first.0 != second.0 {
            Distance::Far
        } else if first.1 == second.1 {
            Distance::Group
        } else {
            Distance::Node
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labs_host_takes_what_was_counted_there_and_a_papers_what_the_paper_says() {
        let paper = Costs::default();
        for ns in [INSTRUCTION_NS, 0.3333, 0.99] {
            assert_eq!(paper.on(ns), paper.at(ns));
        }
        let lab = paper.on(10.0);
        let ns = |cost: crate::costs::Cost| cost.nanos(10.0).0;
        assert_eq!(
            lab.request.0 + lab.exit.0 + lab.rest.0,
            ns(emulated::REQUEST)
        );
        let kernel = lab.guest_rx.0 + lab.guest_tx.0 + lab.exit.0 + lab.rest.0;
        assert_eq!(lab.nginx.0 + kernel, ns(emulated::REQUEST_NGINX));
        let packets = (paper.nginx_packets, lab.nginx_packets);
        assert_eq!(packets, (PACKETS_NGINX, PACKETS));
        assert!(lab.end.there() && !paper.end.there());
        // A wake-up is that in all: the host's switch and the interrupt are charged where they are.
        let switch = ns(host::SWITCH);
        let vcpu = lab.vcpu_wake.0 + lab.vcpu_sleep.0 + lab.interrupt.0 + switch;
        assert_eq!(vcpu, ns(emulated::VCPU_WAKE));
        let worker = lab.vhost_sleep.0 + switch;
        assert_eq!(worker, ns(emulated::VHOST_WAKE));
        // And what comes after an answer is a part of its request, but for the thread's and the vCPU's way to sleep.
        let sleeps = lab.rest.0 + lab.vcpu_sleep.0;
        assert_eq!(lab.answered.0 + sleeps, ns(emulated::ANSWERED));
        assert!(lab.answered.0 + lab.guest_rx.0 + lab.guest_tx.0 < lab.request.0);
        // Means of stretches of a worker that a vCPU has woken, by how many messages it sends, one by one, and whether it wakes a vCPU (bench/sim/batches.toml, 900 requests a second; 43541f1).
        for (messages, wakes, mean) in [
            (1, false, 14_461),
            (2, false, 23_029),
            (3, false, 31_106),
            (4, false, 35_898),
            (1, true, 16_833),
            (2, true, 24_624),
            (3, true, 31_402),
            (4, true, 38_599),
        ] {
            let each = lab.vhost_take.0 + lab.vhost_tx.0 + lab.vhost_sent.0 + lab.vhost_flush.0;
            let once = lab.vhost_sleep.0 + switch + lab.vhost_done.0;
            let told = u64::from(wakes) * (lab.vhost_tell.0 + lab.vhost_tell_wakes.0);
            let all = once + messages * each + told;
            assert!(
                all.abs_diff(mean * 10) < mean * 10 / 15,
                "{messages}, {wakes}: {all} for {mean} instructions"
            );
        }
    }
}
