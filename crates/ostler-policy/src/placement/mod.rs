//! Which core for each thread on a packet's way (vFlowComb).
//!
//! A packet goes from a queue of the NIC through a softirq, perhaps a virtual switch, a vhost worker and a vCPU, and perhaps through those of more guests.
//! Each stage reads what the one before has written. So where a thread runs best depends on where its predecessor runs, and on who else has that socket's cache and
//! memory: all on one socket is crowded, each on the quietest is far apart, and the best is neither.
//!
//! 1. Each queue's chain is placed for its dominant guest; queues in order of priority and traffic ([`queues`](self)).
//! 2. For each in turn the chain of least slowdown is found by dynamic programming (`chain`), by the slowdown index (`slowdown`).
//! 3. The cores that it loads are busier from then on, for the next queue (`ground`). A thread that serves several queues stays where the first has put it, and
//!    loads that core with what it does for all of them.
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
//! **Whether to move at all.** Moving threads costs their caches, and a placement that is hardly better isn't worth that. Where all threads of a chain are placed already, the present
//! placement is reckoned by the same measure, and kept unless the new one is better by a margin. So it is where cores are wanted for more than they have, of which the mean of all packets tells little:
//! unless the new one leaves less wanting, by that share of a core; and never is it left for one that leaves more. All is reckoned with the neighbours' load, so the quietest answer may be to leave it.
//!
//! Time: O(queues x stages x caches x sockets) after O(cores log cores + pools); no allocation once buffers have grown.

mod baselines;
mod calibrate;
mod chain;
mod ground;
mod problem;
mod queues;
mod slowdown;

use chain::{Chains, Step, World};
use ground::Ground;
use ostler_model::CpuId;
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
    /// The present placement is kept unless the other's slowdown is less by this share of it, or what cores lack by this share of a core; negative: it is never kept.
    pub margin: f64,
}

impl Default for Settings {
    /// Chains, and one moves for a twentieth.
    fn default() -> Settings {
        Settings {
            policy: Policy::Chains,
            margin: 0.05,
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

/// Finds placements. It keeps its buffers, so one that goes on placing allocates nothing.
#[derive(Debug, Default)]
pub struct Placer {
    ground: Ground,
    slowdowns: Slowdowns,
    chains: Chains,
    order: Vec<Turn>,
    present: Vec<f64>,
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
        self.ground.fill(problem, &self.present);
        let present = self.walk(problem, None);
        let lacked = self.ground.lack();
        std::mem::swap(&mut self.before.0, &mut self.placed);
        std::mem::swap(&mut self.before.1, &mut self.answer.chains);
        let slowdown = self.walk(problem, Some(settings.policy));
        // It is always there: only the present placement may not be one.
        let slowdown = slowdown.unwrap_or_default();
        let lacks = self.ground.lack();
        let kept = present.filter(|present| {
            let better = slowdown < present * (1.0 - settings.margin) && lacks <= lacked;
            settings.margin >= 0.0 && !better && lacks >= lacked - settings.margin
        });
        if kept.is_some() {
            std::mem::swap(&mut self.before.0, &mut self.placed);
            std::mem::swap(&mut self.before.1, &mut self.answer.chains);
        }
        self.answer.slowdown = kept.unwrap_or(slowdown);
        self.answer.present = present;
        self.answer.kept = kept.is_some();
        self.answer.cores.clear();
        let cores = self.placed.iter();
        let named = cores.map(|core| core.map(|core| problem.cores[core as usize].id));
        self.answer.cores.extend(named);
        Ok(&self.answer)
    }

    /// How much of its core each thread takes, by all that comes to it.
    fn weigh(&mut self, problem: &Problem<'_>) {
        self.present.clear();
        self.present.resize(problem.threads.len(), 0.0);
        for flow in problem.queues.iter().flat_map(|queue| queue.flows) {
            for stage in flow.stages {
                let thread = stage.thread as usize;
                self.present[thread] += problem.threads[thread].demand * flow.packets / 1e6;
            }
        }
    }

    /// Goes through all chains in order, and has each chain where the policy puts it, or, without one, where it is. The mean slowdown; none, where some
    /// thread is nowhere, or where it may not be.
    fn walk(&mut self, problem: &Problem<'_>, policy: Option<Policy>) -> Option<f64> {
        let plain = policy == Some(Policy::AllCores);
        self.ground.begin(plain);
        self.placed.clear();
        self.placed.resize(problem.threads.len(), None);
        self.answer.chains.clear();
        // All at once: there are two such lists, and the other one may have had no use for its room.
        self.answer.chains.reserve(self.order.len());
        let (mut sum, mut all) = (0.0, 0.0);
        for turn in &self.order {
            let queue = &problem.queues[turn.queue as usize];
            let flow = &queue.flows[turn.flow as usize];
            self.steps.clear();
            for &stage in flow.stages {
                let placed = self.placed[stage.thread as usize];
                self.steps.push(Step {
                    stage,
                    // Where it is it loads its core already.
                    demand: placed.map_or(self.present[stage.thread as usize], |_| 0.0),
                    placed,
                });
            }
            if !turn.dominant && self.steps.iter().all(|step| step.placed.is_some()) {
                continue;
            }
            let world = World {
                problem,
                slowdowns: &self.slowdowns,
                ground: &self.ground,
            };
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
            sum += slowdown * flow.packets;
            all += flow.packets;
        }
        Some(if all > 0.0 { sum / all } else { 0.0 })
    }
}
