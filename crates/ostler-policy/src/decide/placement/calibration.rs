//! What stages of packets' ways took where they were: the samples that weights are found from ([`calibrate`]).
//!
//! The paper alters where softirqs, workers and guests are and how much comes for them, and measures. Here whatever a host has done is looked through, interval by interval:
//! what a packet took of a thread, on its core and waiting for that, where the layer's own way to see packets says that it was. Where a thread's packets come
//! from several places its factors are their mean by packets, as the index is linear in them.
//!
//! How slow a stage was is told by its own thread at its best under about as much load, as threads of a kind differ by what their guests do, and a packet takes the less the more
//! come with it. (The paper, too, alters places under one number of flows, and then takes another.) An interval in which anything has moved tells nothing of either place, nor one
//! on a core that has no time left: what packets wait and are lost there has no end (`slowdown`).

use std::collections::BTreeMap;
use std::sync::Arc;

use ostler_model::{
    Facts, GuestId, Intent, Nanos, PartitionState, Plan, Snapshot, StageSettings, ThreadUsage,
    Trust,
};

use super::lay::per_packet;
use super::{Layered, Scene, Whose, limit, weights};
use crate::partition::Partition;
use crate::placement::{BUSY_MAX, Calibrated, Factors, Index, Refusal, Sample, calibrate};
use crate::{Roster, Seen};

/// Fewer packets in an interval tell nothing.
const PACKETS_MIN: f64 = 100.0;
/// Counters of sockets and packets are of the last second: so long a plan must have been in force.
const COUNTED: Nanos = Nanos::from_secs(1);

/// Fewer samples than this fit whatever weights.
const SAMPLES_MIN: usize = 100;

/// A kind of stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StageKind {
    /// A queue's softirq.
    Softirq,
    /// A vhost worker.
    Vhost,
    /// A vCPU.
    Vcpu,
}

impl StageKind {
    /// All, in the order in which packets come by them.
    pub const ALL: [StageKind; 3] = [StageKind::Softirq, StageKind::Vhost, StageKind::Vcpu];
}

/// Whose times at their best are compared with each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doer {
    /// A NIC's driver and what comes after it, on any core.
    Softirq(String),
    Worker(GuestId, u32),
    Vcpu(GuestId, u32),
}

/// A stage in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Interval {
    factors: Factors,
    /// What a packet took, ns.
    packet_ns: f64,
}

/// What a kind of stage came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCalibrated {
    /// Its weights, and how well they fit.
    pub calibrated: Calibrated,
    /// What a packet took at the median, of all samples.
    pub packet: Nanos,
    /// How many samples there were.
    pub samples: usize,
}

impl StageCalibrated {
    /// It as a host's configuration says it.
    #[must_use]
    pub fn settings(&self) -> StageSettings {
        let weights = &self.calibrated.weights;
        StageSettings {
            packet: self.packet,
            cache: weights.cache,
            memory: weights.memory,
            interconnect: weights.interconnect,
            remote: weights.remote,
            crossing: weights.crossing,
            load: weights.load,
            base: weights.base,
        }
    }
}

/// Gathers samples.
#[derive(Debug, Default)]
pub struct Calibration {
    layered: Layered,
    /// The plan in force, and since when nothing of it is another.
    in_force: Option<(Arc<Plan>, Nanos)>,
    /// The snapshot that was seen last.
    last: u64,
    /// By thread and how much came to it, in halves of octaves.
    seen: BTreeMap<(StageKind, Doer, u64), Vec<Interval>>,
    /// By thread: packets a second, and its factors by these.
    sums: Vec<(f64, [f64; Factors::COUNT])>,
}

impl Calibration {
    /// The next period doesn't follow the last: it is of another time.
    pub fn pause(&mut self) {
        self.in_force = None;
    }

    /// Has a look at a period: what was seen, and the plan that came of it, if it was adopted.
    pub fn see(
        &mut self,
        facts: &Facts,
        snapshot: &Snapshot,
        intent: &Intent,
        plan: &Arc<Plan>,
        adopted: bool,
    ) {
        let before = self.in_force.take();
        let before = before.filter(|_| snapshot.seq == self.last.wrapping_add(1));
        self.last = snapshot.seq;
        if let Some((old, since)) = &before
            && snapshot.at >= since.saturating_add(COUNTED)
        {
            self.look(facts, snapshot, intent, old);
        }
        self.in_force = match before {
            Some((old, since)) if !adopted || old.same_wishes(plan) => Some((old, since)),
            _ => adopted.then(|| (Arc::clone(plan), snapshot.at)),
        };
    }

    fn look(&mut self, facts: &Facts, snapshot: &Snapshot, intent: &Intent, plan: &Plan) {
        let roster = Roster::new(snapshot, intent);
        let seen = Seen {
            facts,
            snapshot,
            intent,
            roster: &roster,
            now: snapshot.at,
        };
        // Guests of the plan are those of the snapshot, or it isn't of this one.
        let members = roster.members().iter().map(|member| &member.view.id);
        if !members.eq(plan.guests.iter().map(|guest| &guest.guest)) {
            return;
        }
        let settings = intent.placement.clone().unwrap_or_default();
        let mut partition = Partition {
            guests: plan.guests.clone(),
            nics: plan.nics.clone(),
            memory: PartitionState::default(),
        };
        // Where threads are is what was seen: a steward that observes carries no plan out.
        for guest in &mut partition.guests {
            guest.vcpu_pins.clear();
        }
        let scene = Scene {
            seen: &seen,
            settings: &settings,
            groups: &plan.groups,
            partition: &partition,
            before: None,
            trust: Trust::default(),
        };
        let layered = &mut self.layered;
        if layered
            .lay(&scene, limit(&seen, &settings), &mut Vec::new())
            .is_err()
        {
            return;
        }
        layered.sum_up(&mut self.sums);
        for (thread, (packets, sums)) in self.sums.iter().enumerate() {
            let packets_seen = packets * snapshot.interval.as_secs_f64();
            if packets_seen < PACKETS_MIN {
                continue;
            }
            let core = layered.threads[thread].now;
            if core.is_none_or(|core| layered.cores[core as usize].utilisation >= BUSY_MAX) {
                continue;
            }
            let Some((kind, doer, packet_ns)) = layered.took(&scene, thread) else {
                continue;
            };
            let factors = Factors(sums.map(|sum| sum / packets));
            // Its exponent and the first digit behind that.
            let load = packets.to_bits() >> 51;
            let known = self.seen.entry((kind, doer, load)).or_default();
            known.push(Interval { factors, packet_ns });
        }
    }

    /// The samples of a kind.
    #[must_use]
    pub fn samples(&self, kind: StageKind) -> Vec<Sample> {
        let of_kind = self.seen.iter().filter(|((of, ..), _)| *of == kind);
        let doers = of_kind.map(|(_, intervals)| {
            let times = intervals.iter().map(|interval| interval.packet_ns);
            (intervals, times.fold(f64::INFINITY, f64::min))
        });
        let samples = doers.flat_map(|(intervals, best)| {
            intervals.iter().map(move |interval| Sample {
                factors: interval.factors,
                slowdown: interval.packet_ns / best,
            })
        });
        samples.collect()
    }

    /// The weights of a kind; those that nothing tells of stay as in `intent`.
    ///
    /// # Errors
    ///
    /// Fewer than a hundred samples, or such from which weights can't be told apart.
    pub fn weights(&self, kind: StageKind, intent: &Intent) -> Result<StageCalibrated, Refusal> {
        let settings = intent.placement.clone().unwrap_or_default();
        let usual = match kind {
            StageKind::Softirq => settings.softirq,
            StageKind::Vhost => settings.vhost,
            StageKind::Vcpu => settings.vcpu,
        };
        let samples = self.samples(kind);
        if samples.len() < SAMPLES_MIN {
            return Err(Refusal::Samples {
                samples: samples.len(),
                why: "there are fewer than a hundred",
            });
        }
        let calibrated = calibrate(&samples, &weights(&usual))?;
        let of_kind = self.seen.iter().filter(|((of, ..), _)| *of == kind);
        let times = of_kind.flat_map(|(_, intervals)| intervals);
        let mut times: Vec<f64> = times.map(|interval| interval.packet_ns).collect();
        times.sort_unstable_by(f64::total_cmp);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a time that was measured"
        )]
        let packet = Nanos(times[times.len() / 2].round() as u64);
        Ok(StageCalibrated {
            calibrated,
            packet,
            samples: samples.len(),
        })
    }
}

impl Layered {
    /// By thread: packets a second that came to it from places that are known, and its factors by these.
    fn sum_up(&self, sums: &mut Vec<(f64, [f64; Factors::COUNT])>) {
        sums.clear();
        sums.resize(self.threads.len(), Default::default());
        for queue in &self.queues {
            for flow in &self.flows[queue.flows.0..queue.flows.1] {
                let mut before = Some(Err(queue.socket));
                for stage in &self.stages[flow.stages.0..flow.stages.1] {
                    let now = self.threads[stage.thread as usize].now;
                    let (packets, sum) = &mut sums[stage.thread as usize];
                    if let (Some(before), Some(now)) = (before, now) {
                        *packets += flow.packets;
                        for (sum, factor) in sum.iter_mut().zip(self.factors(before, now).0) {
                            *sum += flow.packets * factor;
                        }
                    }
                    before = now.map(Ok);
                }
            }
        }
    }

    /// Those of a stage on a core, whose predecessor is on another one, or the NIC of a socket.
    fn factors(&self, before: Result<Index, Index>, now: Index) -> Factors {
        let to = &self.cores[now as usize];
        let before = before.map(|core| &self.cores[core as usize]);
        let from = before.map_or_else(|socket| socket, |core| core.socket);
        let crosses = before.is_ok_and(|core| core.socket == to.socket && core.cache != to.cache);
        let distance = from as usize * self.sockets.len() + to.socket as usize;
        Factors::new(
            &self.sockets[from as usize],
            &self.sockets[to.socket as usize],
            self.distances[distance],
            crosses,
            to.utilisation,
        )
    }

    /// Whose thread it is, and what a packet took of it, ns, on its core and waiting for that.
    fn took(&self, scene: &Scene<'_>, thread: usize) -> Option<(StageKind, Doer, f64)> {
        let interval = scene.seen.snapshot.interval;
        let members = scene.seen.roster.members();
        let of = |guest: usize, place: usize, usage: ThreadUsage| {
            let packets = self.packets[self.starts[guest] + place];
            per_packet(usage.run.saturating_add(usage.wait), packets, interval)
        };
        match self.whose[thread] {
            Whose::Softirq { nic, .. } => {
                let core = self.threads[thread].now? as usize;
                let packets = self.softirq_packets[core];
                let took = per_packet(self.softirq_time[core]?, packets, interval)?;
                let name = scene.partition.nics[nic].name.clone();
                Some((StageKind::Softirq, Doer::Softirq(name), took))
            }
            Whose::Worker { guest, at } => {
                let view = members[guest].view;
                let took = of(guest, at as usize, view.vhost[at as usize].usage)?;
                Some((StageKind::Vhost, Doer::Worker(view.id.clone(), at), took))
            }
            Whose::Vcpu { guest, at } => {
                let view = members[guest].view;
                let place = view.vhost.len() + at as usize;
                let took = of(guest, place, view.vcpus[at as usize].usage)?;
                Some((StageKind::Vcpu, Doer::Vcpu(view.id.clone(), at), took))
            }
        }
    }
}
