//! The steward of a simulated host: the loop of the daemon, around the same `decide()`.
//!
//! Each period it sees what the daemon would: differences of counters, and nothing that a host can't tell (who exits guests, what machines
//! count). It has the plan judged by `ostler_check`, and carries out what has changed of it ([`Steward::turn`]); a plan that breaks a rule is not acted on. What acting costs comes by itself: threads that are moved
//! come to cold caches, suspended guests do nothing. A world without a steward is the vanilla one.
//!
//! Who owns the host's threads shows the rest by [`Steered`]: agents, response times on taps, NICs.

#![allow(
    clippy::cast_possible_truncation,
    reason = "guests, queues and threads are numbered in 32 bits"
)]

mod act;
mod house;
mod sense;

use std::sync::Arc;

use ostler_model::{
    ActMode, AgentHealth, AgentState, CpuId, CpuSet, Facts, GuestId, Intent, LatencyView, Nanos,
    Plan, Reason, Ring, Snapshot, State,
};
use ostler_policy::decide;
use ostler_record::{Cost, Period, Wall};

pub use house::house;

use crate::host::{CoreTime, Counters, GroupId, Handled, ThreadTime};
use crate::random::Stream;
use crate::work::{Effects, ThreadId, Work};
use crate::world::{World, WorldError};

/// What a steward sees and asks of those who own the host's threads, beside what its host tells.
pub trait Steered: Work {
    /// Whether a guest is still there.
    fn lives(&self, guest: u32) -> bool;

    /// Response times on its taps since this was last asked; `None` where there were none.
    fn latency(&mut self, guest: u32) -> Option<LatencyView>;

    /// What its agent says, and how it is; `None`: it has none.
    fn agent(&self, guest: u32) -> Option<(AgentHealth, Option<AgentState>)>;

    /// Its agent is asked to use so many vCPUs.
    fn ask_vcpus(&mut self, guest: u32, vcpus: u32, out: &mut Effects);

    /// Its agent is asked to use so many queue pairs.
    fn ask_queues(&mut self, guest: u32, queues: u32);

    /// Queues that a NIC spreads packets over.
    fn nic_queues(&self, nic: u32) -> u32;

    /// The core that a ring of a NIC's queue interrupts, and how often it has; `None`: it has no vector of its own.
    fn nic_irq(&self, nic: u32, ring: Ring, queue: u32) -> Option<(CpuId, u64)>;

    /// A NIC is to spread packets over its first so many queues.
    fn set_nic_queues(&mut self, nic: u32, queues: u32);

    /// A ring of a queue is to interrupt this core.
    fn set_nic_irq(&mut self, nic: u32, ring: Ring, queue: u32, cpu: CpuId);

    /// Cores in these sets send by these queues, in order.
    fn set_nic_xps(&mut self, nic: u32, sets: &[CpuSet]);

    /// These cores share a queue's softirq work; none: the interrupted one does it.
    fn set_nic_rps(&mut self, nic: u32, queue: u32, cpus: &CpuSet);

    /// Which of its vCPUs a guest asks to keep in their cache groups, in order; none: it asks nothing.
    fn pins(&self, _guest: u32) -> Vec<bool> {
        Vec::new()
    }

    /// Puts in whatever else is sensed of them: memory, packets by queue, wishes, files.
    fn fill(&mut self, _snapshot: &mut Snapshot) {}

    /// Carries out what else a plan asks: memory, hints, files.
    fn carry(&mut self, _plan: &Plan, _now: Nanos, _out: &mut Effects) {}
}

/// A guest, as its host knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StewardGuest {
    /// Its id.
    pub id: GuestId,
    /// Its name.
    pub name: String,
    /// Its number with [`Steered`].
    pub number: u32,
    /// Its cgroup.
    pub group: GroupId,
    /// What that weighs as it is found.
    pub weight: u32,
    /// Its vCPUs' threads, in order.
    pub vcpus: Vec<ThreadId>,
    /// Its vhost workers', in order of queue.
    pub vhost: Vec<ThreadId>,
}

/// What a turn of the loop came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// What was seen.
    pub snapshot: Arc<Snapshot>,
    /// What was remembered before.
    pub before: Arc<State>,
    /// The seed of what was drawn.
    pub seed: u64,
    /// What was decided.
    pub plan: Arc<Plan>,
    /// Why.
    pub reasons: Arc<[Reason]>,
    /// What the checker had against it.
    pub violations: Vec<String>,
    /// Whether it asks for something else than the one before.
    pub changes: bool,
}

/// The loop of a host's steward.
#[derive(Clone, Debug)]
pub struct Steward {
    facts: Arc<Facts>,
    intent: Arc<Intent>,
    guests: Vec<StewardGuest>,
    state: State,
    /// The plan in force.
    plan: Option<Arc<Plan>>,
    seed: u64,
    seq: u64,
    at: Nanos,
    cores: Vec<(CoreTime, Handled)>,
    threads: Vec<ThreadTime>,
    /// How often each of a NIC's rings had interrupted by then: of receive rings and of transmit rings.
    irqs: Vec<[Vec<u64>; 2]>,
    counters: Counters,
    latency: Vec<Option<(LatencyView, Nanos)>>,
    /// Plans that asked for something else than the one before.
    pub plan_changes: u64,
    /// Plans that broke a rule.
    pub refused: u64,
}

impl Steward {
    /// Of a host. The numbers of its NICs with [`Steered`] are their places in its facts. It acts, whatever is intended, as the lab's does (`ostler run --act`).
    pub fn new(
        facts: Facts,
        mut intent: Intent,
        mut guests: Vec<StewardGuest>,
        seed: u64,
    ) -> Steward {
        intent.act.mode = ActMode::Act;
        guests.sort_by(|one, other| one.id.cmp(&other.id));
        let irqs = facts
            .nics
            .iter()
            .map(|nic| [(); 2].map(|()| vec![0; nic.queues_max as usize]));
        let irqs = irqs.collect();
        Steward {
            facts: Arc::new(facts),
            intent: Arc::new(intent),
            irqs,
            latency: vec![None; guests.len()],
            guests,
            state: State::default(),
            plan: None,
            seed,
            seq: 0,
            at: Nanos::ZERO,
            cores: Vec::new(),
            threads: Vec::new(),
            counters: Counters::default(),
            plan_changes: 0,
            refused: 0,
        }
    }

    /// What the host is.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The plan in force.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_deref()
    }

    /// A period is over: sees, decides, has that judged, and acts.
    pub fn turn<W: Steered>(&mut self, world: &mut World<W>) -> Result<Turn, WorldError> {
        let snapshot = self.sense(world);
        let seed = Stream::new(self.seed, "decide", self.seq).bits();
        let mut stream = Stream::new(seed, "decision", 0);
        let mut random = || stream.bits();
        let now = snapshot.at;
        let decision = decide(
            &self.facts,
            &snapshot,
            &self.intent,
            &self.state,
            now,
            &mut random,
        );
        let found = ostler_check::check(
            &self.facts,
            &snapshot,
            &self.intent,
            self.plan.as_deref(),
            &decision.plan,
        );
        let plan = Arc::new(decision.plan);
        let changes = self.plan.as_ref().is_none_or(|old| !old.same_wishes(&plan));
        let before = Arc::new(self.state.clone());
        if found.is_empty() {
            self.act(&plan, &snapshot, world)?;
            self.plan_changes += u64::from(changes);
            self.plan = Some(Arc::clone(&plan));
            self.state = decision.state;
        } else {
            self.refused += 1;
        }
        Ok(Turn {
            snapshot: Arc::new(snapshot),
            before,
            seed,
            plan,
            reasons: decision.reasons.into(),
            violations: found.iter().map(ToString::to_string).collect(),
            changes,
        })
    }

    /// A turn as the log of a run has it. The wall's clock is the world's.
    pub fn period(&self, turn: &Turn) -> Period {
        Period {
            wall: Wall(turn.snapshot.at.0),
            facts: Arc::clone(&self.facts),
            intent: Arc::clone(&self.intent),
            snapshot: Arc::clone(&turn.snapshot),
            before: Some(Arc::clone(&turn.before)),
            now: turn.snapshot.at,
            seed: turn.seed,
            plan: Arc::clone(&turn.plan),
            reasons: Arc::clone(&turn.reasons),
            violations: turn.violations.clone(),
            adopted: turn.violations.is_empty(),
            outcome: None,
            cost: Cost::default(),
        }
    }
}

#[cfg(test)]
mod tests;
