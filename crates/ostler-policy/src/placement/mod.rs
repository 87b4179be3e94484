//! Which core for each thread on a packet's way (vFlowComb).
//!
//! A packet goes from a queue of the NIC through a softirq, perhaps a virtual switch, a vhost worker and a vCPU, and perhaps through those of more guests.
//! Each stage reads what the one before has written. So where a thread runs best depends on where its predecessor runs, and on who else has that socket's cache and
//! memory: all on one socket is crowded, each on the quietest is far apart, and the best is neither.
//!
//! 1. Each queue's chain is placed for its dominant guest; queues in order of priority and traffic ([`queues`](self)).
//! 2. For each in turn the chain of least slowdown is found by dynamic programming (`chain`), by the slowdown index (`slowdown`).
//! 3. The cores that it loads are busier from then on, for the next queue (`ground`). A thread that serves several queues stays where the first has put it.
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
//! placement is reckoned by the same measure, and kept unless the new one is better by a margin. All is reckoned with the neighbours' load, so the quietest answer may be to leave it.
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

pub use calibrate::{Sample, calibrate};
pub use problem::{
    Core, Flow, Index, Pool, Problem, Queue, Refusal, STAGES_MAX, Socket, Stage, Thread, Weights,
};

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
    /// The present placement is kept unless the other's slowdown is less by this share of it; negative: it is never kept.
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
    /// By queue, in the order in which they were placed.
    pub queues: Vec<Placed>,
    /// Mean slowdown of a packet, by the traffic of its queue.
    pub slowdown: f64,
    /// The same of the present placement, where all threads are somewhere they may be.
    pub present: Option<f64>,
    /// The present placement is kept.
    pub kept: bool,
}

/// What became of a queue.
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
    /// Where the present placement has threads, and what becomes of queues there.
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
        std::mem::swap(&mut self.before.0, &mut self.placed);
        std::mem::swap(&mut self.before.1, &mut self.answer.queues);
        let slowdown = self.walk(problem, Some(settings.policy));
        // It is always there: only the present placement may not be one.
        let slowdown = slowdown.unwrap_or_default();
        let kept = present.filter(|present| {
            settings.margin >= 0.0 && slowdown >= present * (1.0 - settings.margin)
        });
        if kept.is_some() {
            std::mem::swap(&mut self.before.0, &mut self.placed);
            std::mem::swap(&mut self.before.1, &mut self.answer.queues);
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

    /// How much of its core each thread takes, by the chains that it is on.
    fn weigh(&mut self, problem: &Problem<'_>) {
        self.present.clear();
        self.present.resize(problem.threads.len(), 0.0);
        for turn in &self.order {
            let queue = &problem.queues[turn.queue as usize];
            for stage in queue.flows[turn.flow as usize].stages {
                self.present[stage.thread as usize] += demand(problem, *stage, turn.packets);
            }
        }
    }

    /// Goes through all queues in order, and has each chain where the policy puts it, or, without one, where it is. The mean slowdown; none, where some
    /// thread is nowhere, or where it may not be.
    fn walk(&mut self, problem: &Problem<'_>, policy: Option<Policy>) -> Option<f64> {
        let plain = policy == Some(Policy::AllCores);
        self.ground.begin(plain);
        self.placed.clear();
        self.placed.resize(problem.threads.len(), None);
        self.answer.queues.clear();
        // All at once: there are two such lists, and the other one may have had no use for its room.
        self.answer.queues.reserve(self.order.len());
        let (mut sum, mut all) = (0.0, 0.0);
        for at in 0..self.order.len() {
            let Turn {
                queue: number,
                flow,
                packets,
                ..
            } = self.order[at];
            let queue = &problem.queues[number as usize];
            self.steps.clear();
            for &stage in queue.flows[flow as usize].stages {
                self.steps.push(Step {
                    stage,
                    demand: demand(problem, stage, packets),
                    placed: self.placed[stage.thread as usize],
                });
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
            self.answer.queues.push(Placed {
                queue: number,
                flow,
                slowdown,
            });
            sum += slowdown * packets;
            all += packets;
        }
        Some(if all > 0.0 { sum / all } else { 0.0 })
    }
}

/// How much of a core a stage takes for so many packets a second.
fn demand(problem: &Problem<'_>, stage: Stage, packets: f64) -> f64 {
    problem.threads[stage.thread as usize].demand * packets / 1e6
}
