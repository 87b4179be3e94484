//! Which core for each thread on a packet's way (vFlowComb).
//!
//! A packet goes from a queue of the NIC through a softirq, perhaps a virtual switch, a vhost worker and a vCPU, and perhaps through those of more guests.
//! Each stage reads what the one before has written. So where a thread runs best depends on where its predecessor runs, and on who else has that socket's cache and
//! memory: all on one socket is crowded, each on the quietest is far apart, and the best is neither.
//!
//! 1. Each queue's chain is placed for its dominant guest; queues in order of priority and traffic ([`queues`](self)).
//! 2. For each in turn the chain of least slowdown is found by dynamic programming (`chain`), by the slowdown index (`slowdown`).
//! 3. The cores that it loads are busier from then on, for the next queue (`ground`). A thread that serves several queues stays where the first has put it, and
//!    loads that core with what it does for all of them. One that has but one core to be on loads that from the beginning.
//! 4. Threads of other flows than dominant ones follow, chain by chain.
//!
//! | paper | here |
//! |---|---|
//! | flow F_k with weight w_k, stages S_1..S_N | [`Flow`], [`Stage`] |
//! | source s | [`Queue::socket`] |
//! | performance slowdown index o(u, v) | `slowdown`: LC, MC, IC, RL are [`Weights`]' first four |
//! | aggregated slowdown delta_j(s, v) | `chain` |
//! | ksoftirq and vhost core pools kC, vC | [`Pool`] |
//! | dominant target VNF, priority queue | `queues` |
//! | DPBM, CTS | [`Policy::Chains`] |
//! | policies A and B | [`Policy::NumaAware`], [`Policy::ContentionAware`] |
//!
//! **Whether to move at all.** Moving threads costs their caches, and what is hardly better isn't worth that. Counters are never the same twice, and cores that are alike are many: found anew, a placement
//! has nearly all threads elsewhere each time, for nothing. So that a thread leaves its core counts as a share, the margin, of what it meets there, and each goes where it gains more than that.
//! Then the present placement is reckoned by the same measure, where all threads are somewhere, and kept unless the new one is better with all that counted. Where cores are wanted for more than they
//! have, the mean of all packets tells little: it is left for one that leaves less wanting, by that share of a core, and never for one that leaves more. Moves that don't bring what they were made for
//! make the margin wider (`trust`).
//!
//! Time: O(queues x stages x caches x sockets) after O(cores log cores + pools); no allocation once buffers have grown.

mod baselines;
mod calibrate;
mod chain;
mod ground;
mod problem;
mod queues;
mod slowdown;
mod trust;

use chain::{Chains, Step, World};
use ground::Ground;
use ostler_model::{CpuId, Trust};
use queues::Turn;
use slowdown::Slowdowns;

pub use calibrate::{Calibrated, Sample, calibrate};
pub use problem::{
    Core, Flow, Index, Pool, Problem, Queue, Refusal, STAGES_MAX, Socket, Stage, Thread, Weights,
};
pub use slowdown::{BUSY_MAX, Factors};

/// How cores are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The chain of least slowdown.
    Chains,
    /// The same, looking at every core though others be like it: what the symmetry is measured against.
    AllCores,
    /// All threads on the destination's socket (the paper's A).
    NumaAware,
    /// Each thread where it is slowed down least by itself (the paper's B).
    ContentionAware,
}

/// How a placement is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How cores are chosen.
    pub policy: Policy,
    /// A thread leaves its core where it is slowed down less by more than this share, and a placement by which cores lack less is one to leave for from this share of a core on; negative: that
    /// threads leave counts for nothing, and the present placement is never kept.
    pub margin: f64,
    /// What is known of the moves of before.
    pub trust: Trust,
}

impl Default for Settings {
    /// Chains, and threads move for a twentieth.
    fn default() -> Settings {
        Settings {
            policy: Policy::Chains,
            margin: 0.05,
            trust: Trust::default(),
        }
    }
}

/// Where threads are to run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// By thread; none for one that no chain needs.
    pub cores: Vec<Option<CpuId>>,
    /// By chain, in the order in which they were placed.
    pub chains: Vec<Placed>,
    /// Mean slowdown of a packet on these.
    pub slowdown: f64,
    /// The same of the present placement, where all threads are somewhere they may be.
    pub present: Option<f64>,
    /// The present placement is kept.
    pub kept: bool,
    /// What is known of moves by now, for the next time.
    pub trust: Trust,
}

/// What became of a queue's chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed {
    /// Which, in [`Problem::queues`].
    pub queue: Index,
    /// For which of its flows.
    pub flow: Index,
    /// The slowdown along its chain.
    pub slowdown: f64,
}

/// What all chains come to, in the mean of packets.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    slowdown: f64,
    /// What it counts as that threads leave where they are.
    moves: f64,
}

/// Finds placements. It keeps its buffers, so one that goes on placing allocates nothing.
#[derive(Debug, Default)]
pub struct Placer {
    ground: Ground,
    slowdowns: Slowdowns,
    chains: Chains,
    order: Vec<Turn>,
    present: Vec<f64>,
    /// By thread: the only core that it may be on, if chains need it.
    fixed: Vec<Option<Index>>,
    /// Where the present placement has threads, and what becomes of chains there.
    before: (Vec<Option<Index>>, Vec<Placed>),
    placed: Vec<Option<Index>>,
    steps: Vec<Step>,
    found: Vec<Index>,
    seen: Vec<u32>,
    answer: Placement,
}

impl Placer {
    /// Places all threads.
    ///
    /// # Errors
    ///
    /// What is wrong with the problem.
    pub fn place(
        &mut self,
        problem: &Problem<'_>,
        settings: Settings,
    ) -> Result<&Placement, Refusal> {
        problem.check(&mut self.seen)?;
        queues::order(problem.queues, &mut self.order);
        self.slowdowns.fill(problem);
        self.weigh(problem);
        self.ground.fill(problem, &self.present, &self.fixed);
        let present = self.walk(problem, None, 0.0);
        let present = present.map(|walk| walk.slowdown);
        self.answer.trust = trust::judged(settings.trust, present);
        let margin = trust::margin(self.answer.trust, settings.margin);
        let lacked = self.ground.lack();
        std::mem::swap(&mut self.before.0, &mut self.placed);
        std::mem::swap(&mut self.before.1, &mut self.answer.chains);
        let found = self.walk(problem, Some(settings.policy), margin);
        // It is always there: only the present placement may not be one.
        let Walk { slowdown, moves } = found.unwrap_or_default();
        let lacks = self.ground.lack();
        let kept = present.filter(|present| {
            let better = slowdown + moves < *present && lacks <= lacked;
            settings.margin >= 0.0 && !better && lacks >= lacked - settings.margin
        });
        if kept.is_some() {
            std::mem::swap(&mut self.before.0, &mut self.placed);
            std::mem::swap(&mut self.before.1, &mut self.answer.chains);
        }
        self.answer.slowdown = kept.unwrap_or(slowdown);
        self.answer.present = present;
        self.answer.kept = kept.is_some();
        if kept.is_none() {
            self.answer.trust.promised = present.map(|present| [present, slowdown]);
        }
        self.answer.cores.clear();
        let cores = self.placed.iter();
        let named = cores.map(|core| core.map(|core| problem.cores[core as usize].id));
        self.answer.cores.extend(named);
        Ok(&self.answer)
    }

    /// How much of its core each thread takes, by all that comes to it, and which have but one to be on.
    fn weigh(&mut self, problem: &Problem<'_>) {
        self.present.clear();
        self.present.resize(problem.threads.len(), 0.0);
        self.fixed.clear();
        self.fixed.resize(problem.threads.len(), None);
        for flow in problem.queues.iter().flat_map(|queue| queue.flows) {
            for stage in flow.stages {
                let at = stage.thread as usize;
                let thread = &problem.threads[at];
                // Whatever comes to it, it has a core at the most.
                let share = self.present[at] + thread.demand * flow.packets / 1e6;
                self.present[at] = share.min(1.0);
                if let &[core] = problem.pools[thread.pool as usize].cores {
                    self.fixed[at] = Some(core);
                }
            }
        }
    }

    /// Goes through all chains in order, and has each chain where the policy puts it, or, without one, where it is; none, where some thread is nowhere, or where it may not be. That
    /// a thread leaves its core counts as the `margin`'s share of what it meets there.
    fn walk(&mut self, problem: &Problem<'_>, policy: Option<Policy>, margin: f64) -> Option<Walk> {
        let plain = policy == Some(Policy::AllCores);
        self.ground.begin(plain);
        self.placed.clone_from(&self.fixed);
        self.answer.chains.clear();
        // All at once: there are two such lists, and the other one may have had no use for its room.
        self.answer.chains.reserve(self.order.len());
        let mut sum = Walk::default();
        let mut all = 0.0;
        for turn in &self.order {
            let queue = &problem.queues[turn.queue as usize];
            let flow = &queue.flows[turn.flow as usize];
            let world = World {
                problem,
                slowdowns: &self.slowdowns,
                ground: &self.ground,
            };
            self.steps.clear();
            let mut before = Some(Err(queue.socket));
            for &stage in flow.stages {
                let placed = self.placed[stage.thread as usize];
                let now = problem.threads[stage.thread as usize].now;
                let mut step = Step {
                    stage,
                    // Where it is it loads its core already.
                    demand: placed.map_or(self.present[stage.thread as usize], |_| 0.0),
                    placed,
                    now,
                    leaving: 0.0,
                };
                if let (None, Some(before), Some(now)) = (placed, before, now) {
                    step.leaving = margin * world.slowdown(before, &step, now);
                }
                self.steps.push(step);
                before = now.map(|core| Ok((core, 0.0)));
            }
            if !turn.dominant && self.steps.iter().all(|step| step.placed.is_some()) {
                continue;
            }
            match policy {
                None => {
                    self.found.clear();
                    for step in &self.steps {
                        let thread = problem.threads[step.stage.thread as usize];
                        let may = problem.pools[thread.pool as usize].cores;
                        self.found.push(thread.now.filter(|now| may.contains(now))?);
                    }
                }
                Some(Policy::Chains | Policy::AllCores) => {
                    let (nic, found) = (queue.socket, &mut self.found);
                    self.chains.find(&world, nic, &self.steps, found);
                }
                Some(Policy::NumaAware) => baselines::numa(&world, &self.steps, &mut self.found),
                Some(Policy::ContentionAware) => {
                    baselines::contention(&world, &self.steps, &mut self.found);
                }
            }
            let slowdown = world.chain(queue.socket, &self.steps, &self.found);
            for (step, &core) in self.steps.iter().zip(&self.found) {
                match policy {
                    Some(_) => self.ground.add(core, step.demand),
                    None => self.ground.load(core, step.demand),
                }
                self.placed[step.stage.thread as usize] = Some(core);
            }
            self.answer.chains.push(Placed {
                queue: turn.queue,
                flow: turn.flow,
                slowdown,
            });
            let moves = self.steps.iter().zip(&self.found);
            let moves: f64 = moves.map(|(step, core)| step.moving(*core)).sum();
            sum.slowdown += slowdown * flow.packets;
            sum.moves += moves * flow.packets;
            all += flow.packets;
        }
        if all > 0.0 {
            sum.slowdown /= all;
            sum.moves /= all;
        }
        Some(sum)
    }
}
