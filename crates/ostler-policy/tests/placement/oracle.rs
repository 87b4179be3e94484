//! What the least cost of a chain is, written apart from what is tested: by a search of all there are, and by a linear program where there are too many.

use good_lp::{
    Expression, Solution as _, SolverModel as _, constraint, microlp, variable, variables,
};
use ostler_model::CpuId;
use ostler_policy::placement::{Index, Placement, Stage};
use proptest::prelude::*;

use super::case::{Case, Owned};

/// How busy cores are as queues are placed one after another, and what a chain costs then: the definition, by hand.
pub struct Oracle<'a> {
    pub case: &'a Case,
    pub busy: Vec<f64>,
}

/// A chain whose turn it is.
pub struct Chain<'a> {
    pub nic: Index,
    pub stages: &'a [Stage],
    /// How much of a core each stage takes.
    pub demands: Vec<f64>,
    /// What it counts as that each leaves the core where it is.
    pub leaving: Vec<Option<(Index, f64)>>,
}

impl Chain<'_> {
    /// What its moves count as.
    pub fn moves(&self, cores: &[Index]) -> f64 {
        (0..cores.len()).map(|at| self.moving(at, cores[at])).sum()
    }

    fn moving(&self, at: usize, to: Index) -> f64 {
        self.leaving[at].map_or(0.0, |(now, leaving)| if now == to { 0.0 } else { leaving })
    }
}

impl Oracle<'_> {
    pub fn new(case: &Case) -> Oracle<'_> {
        let mut busy: Vec<f64> = case.cores.iter().map(|core| core.utilisation).collect();
        for (at, thread) in case.threads.iter().enumerate() {
            if let Some(now) = thread.now {
                busy[now as usize] = (busy[now as usize] - share(case, at)).max(0.0);
            }
        }
        // Those that have no choice are there before all others.
        for at in 0..case.threads.len() {
            if let Some(core) = fixed(case, at) {
                busy[core as usize] += share(case, at);
            }
        }
        Oracle { case, busy }
    }

    /// What a chain costs, without its moves.
    pub fn cost(&self, chain: &Chain<'_>, cores: &[Index]) -> f64 {
        let each = (0..cores.len()).map(|at| {
            let before = at.checked_sub(1).map(|at| cores[at]);
            self.step(
                chain.nic,
                chain.stages,
                &chain.demands,
                at,
                before,
                cores[at],
            )
        });
        each.sum()
    }

    /// The chain of those whose threads aren't placed yet; what it counts as that they leave where they are is a share of what each meets there by itself.
    pub fn chain<'b>(
        &self,
        nic: Index,
        stages: &'b [Stage],
        placed: &[Option<Index>],
        margin: f64,
    ) -> Chain<'b> {
        // One that is somewhere already loads its core there with all that it does.
        let is = |stage: &Stage| placed[stage.thread as usize].is_some();
        let demand = |stage: &Stage| {
            if is(stage) {
                0.0
            } else {
                share(self.case, stage.thread as usize)
            }
        };
        let mut chain = Chain {
            nic,
            stages,
            demands: stages.iter().map(demand).collect(),
            leaving: vec![None; stages.len()],
        };
        let now = |at: usize| self.case.threads[stages[at].thread as usize].now;
        for at in 0..stages.len() {
            let before = if at == 0 {
                Some(None)
            } else {
                now(at - 1).map(Some)
            };
            let (Some(before), Some(now)) = (before, now(at)) else {
                continue;
            };
            if is(&stages[at]) {
                continue;
            }
            let mut alone = vec![0.0; stages.len()];
            alone[at] = chain.demands[at];
            let meets = self.step(nic, stages, &alone, at, before, now);
            chain.leaving[at] = Some((now, margin * meets));
        }
        chain
    }

    /// What a chain's stage costs on a core, coming from another.
    pub fn step(
        &self,
        nic: Index,
        stages: &[Stage],
        demands: &[f64],
        at: usize,
        before: Option<Index>,
        v: Index,
    ) -> f64 {
        let case = self.case;
        let weights = &case.kinds[stages[at].kind as usize];
        let (to, from) = (
            case.cores[v as usize].socket,
            before.map_or(nic, |u| case.cores[u as usize].socket),
        );
        let (here, there) = (&case.sockets[to as usize], &case.sockets[from as usize]);
        let far = case.distances[from as usize * case.sockets.len() + to as usize];
        let mut sum = weights.base + weights.cache / here.l3_hit;
        sum += weights.memory * there.cycle_loss;
        sum += weights.interconnect * here.cycle_loss * far;
        sum += weights.remote * there.ipc / here.ipc;
        let mut busy = self.busy[v as usize] + demands[at];
        if let Some(u) = before {
            let (a, b) = (&case.cores[u as usize], &case.cores[v as usize]);
            if a.socket == b.socket && a.cache != b.cache {
                sum += weights.crossing;
            }
            if u == v {
                busy += demands[at - 1];
            }
        }
        if busy < 0.8 {
            sum + weights.load * busy / (1.0 - busy)
        } else {
            sum + weights.load * 4.0 + (busy - 0.8) * 400.0
        }
    }

    /// The same least cost as of a linear program: a unit flows from stage to stage, from each core as much as comes there, and pays for its way. Such a program has a solution
    /// in which all of it goes one way.
    pub fn least_of_program(&self, chain: &Chain<'_>, may: &[Vec<Index>]) -> f64 {
        let (stages, demands) = (chain.stages, &chain.demands);
        let mut all = variables!();
        let mut cost = Expression::from(0.0);
        let mut links = Vec::new();
        // What comes to each of a stage's cores.
        let mut there: Vec<Expression> = Vec::new();
        for at in 0..stages.len() {
            let mut here = vec![Expression::from(0.0); may[at].len()];
            let befores: Vec<Option<Index>> = match at.checked_sub(1) {
                None => vec![None],
                Some(before) => may[before].iter().copied().map(Some).collect(),
            };
            for (from, before) in befores.into_iter().enumerate() {
                let mut leaves = Expression::from(0.0);
                for (to, &v) in may[at].iter().enumerate() {
                    let share = all.add(variable().min(0.0));
                    let step = self.step(chain.nic, stages, demands, at, before, v);
                    cost += (step + chain.moving(at, v)) * share;
                    leaves += share;
                    here[to] += share;
                }
                let comes = there.get(from).cloned().unwrap_or_else(|| 1.0.into());
                links.push(constraint!(leaves == comes));
            }
            there = here;
        }
        let problem = all.minimise(cost.clone()).using(microlp);
        let solved = problem.with_all(links).solve().expect("there is a way");
        solved.eval(cost)
    }

    /// The least cost of all chains there are.
    pub fn least(&self, chain: &Chain<'_>, may: &[Vec<Index>]) -> f64 {
        let mut least = f64::INFINITY;
        each(may, |cores| {
            least = least.min(self.cost(chain, cores) + chain.moves(cores));
        });
        least
    }

    /// Whether one of the cheapest chains asks too much of a core by itself, and another costs less where each stage meets all of its chain's load on its core.
    fn excused(
        &self,
        chain: &Chain<'_>,
        may: &[Vec<Index>],
        optimum: f64,
        other: &[Index],
    ) -> bool {
        let (stages, demands) = (chain.stages, &chain.demands);
        let own = |cores: &[Index], core: Index| -> (usize, f64) {
            let there = cores.iter().zip(demands).filter(|(at, _)| **at == core);
            let loads = there
                .map(|(_, demand)| *demand)
                .filter(|demand| *demand > 0.0);
            (loads.clone().count(), loads.sum())
        };
        let crowds = |cores: &[Index]| {
            cores.iter().any(|core| {
                let (count, all) = own(cores, *core);
                count > 1 && self.busy[*core as usize] + all > 0.8
            })
        };
        let together = |cores: &[Index]| -> f64 {
            let each = (0..stages.len()).map(|at| {
                // All of it as if it were this stage's, and nobody else's.
                let mut met = vec![0.0; demands.len()];
                met[at] = own(cores, cores[at]).1;
                let before = at.checked_sub(1).map(|at| cores[at]);
                self.step(chain.nic, stages, &met, at, before, cores[at])
            });
            each.sum::<f64>() + chain.moves(cores)
        };
        let better = together(other);
        let mut found = false;
        each(may, |cores| {
            let cheapest = close(self.cost(chain, cores) + chain.moves(cores), optimum);
            found |= cheapest && crowds(cores) && together(cores) > better;
        });
        found
    }
}

/// Goes through all chains there are.
fn each(may: &[Vec<Index>], mut see: impl FnMut(&[Index])) {
    let mut at = vec![0; may.len()];
    loop {
        let cores: Vec<Index> = may.iter().zip(&at).map(|(may, at)| may[*at]).collect();
        see(&cores);
        let Some(next) = (0..at.len()).find(|i| at[*i] + 1 < may[*i].len()) else {
            return;
        };
        at[next] += 1;
        at[..next].fill(0);
    }
}

/// How much of a core a thread takes, by all the flows that it is on.
pub fn share(case: &Case, thread: usize) -> f64 {
    let flows = case.queues.iter().flat_map(|(_, flows)| flows);
    let through = |flow: &&Owned| flow.2.iter().any(|stage| stage.thread as usize == thread);
    let packets: f64 = flows.filter(through).map(|flow| flow.0).sum();
    (case.threads[thread].demand * packets / 1e6).min(1.0)
}

/// The core that a thread is on if it has no other and is on any way.
pub fn fixed(case: &Case, thread: usize) -> Option<Index> {
    let flows = case.queues.iter().flat_map(|(_, flows)| flows);
    let mut stages = flows.flat_map(|flow| &flow.2);
    let pool = &case.pools[case.threads[thread].pool as usize].0;
    let named = stages.any(|stage| stage.thread as usize == thread);
    (named && pool.len() == 1).then(|| pool[0])
}

pub fn dominant(flows: &[Owned]) -> Option<&Owned> {
    let first =
        |best: &&Owned, flow: &&Owned| (flow.1 && !best.1) || (flow.1 == best.1 && flow.0 > best.0);
    flows
        .iter()
        .reduce(|best, flow| if first(&best, &flow) { flow } else { best })
}

/// Goes through a placement queue by queue, and holds each chain against the search.
pub fn holds(case: &Case, placement: &Placement) -> Result<(), TestCaseError> {
    holds_against(case, placement, 0.0, By::Search)
}

/// What threads that are somewhere come to, chain by chain in the order in which a placement has them: the mean slowdown of packets, with what it counts as that
/// threads leave their cores, and what cores lack.
pub fn reckoned(case: &Case, order: &Placement, at: &[Option<Index>], margin: f64) -> (f64, f64) {
    let mut oracle = Oracle::new(case);
    let mut placed: Vec<Option<Index>> =
        (0..case.threads.len()).map(|at| fixed(case, at)).collect();
    let (mut sum, mut packets) = (0.0, 0.0);
    for chain in &order.chains {
        let (nic, flows) = &case.queues[chain.queue as usize];
        let flow = &flows[chain.flow as usize];
        let turn = oracle.chain(*nic, &flow.2, &placed, margin);
        let core = |stage: &Stage| at[stage.thread as usize].expect("it is somewhere");
        let cores: Vec<Index> = flow.2.iter().map(core).collect();
        sum += flow.0 * (oracle.cost(&turn, &cores) + turn.moves(&cores));
        packets += flow.0;
        for ((stage, core), demand) in flow.2.iter().zip(cores).zip(&turn.demands) {
            oracle.busy[core as usize] += demand;
            placed[stage.thread as usize] = Some(core);
        }
    }
    let lack = oracle.busy.iter().map(|busy| (busy - 0.8).max(0.0)).sum();
    (if packets > 0.0 { sum / packets } else { 0.0 }, lack)
}

/// Who says what the least cost of a chain is.
#[derive(Clone, Copy)]
pub enum By {
    Search,
    Program,
}

pub fn holds_against(
    case: &Case,
    placement: &Placement,
    margin: f64,
    by: By,
) -> Result<(), TestCaseError> {
    let mut oracle = Oracle::new(case);
    let mut placed: Vec<Option<Index>> =
        (0..case.threads.len()).map(|at| fixed(case, at)).collect();
    let number = |id: CpuId| {
        let at = case.cores.iter().position(|core| core.id == id);
        Index::try_from(at.expect("it is one of them")).expect("few")
    };
    let mut last = (true, true, f64::INFINITY);
    let (mut sum, mut packets) = (0.0, 0.0);
    for chain in &placement.chains {
        let (nic, flows) = &case.queues[chain.queue as usize];
        let flow = &flows[chain.flow as usize];
        let own = std::ptr::eq(flow, dominant(flows).expect("it has one"));
        let all: f64 = flows.iter().map(|flow| flow.0).sum();
        let rank = (own, flow.1, if own { all } else { flow.0 });
        prop_assert!(
            rank <= last,
            "queues' own chains go first, by priority, then traffic"
        );
        last = rank;
        let new = |stage: &Stage| placed[stage.thread as usize].is_none();
        prop_assert!(own || flow.2.iter().any(new), "it was placed for nobody");
        let turn = oracle.chain(*nic, &flow.2, &placed, margin);
        let may: Vec<Vec<Index>> = flow
            .2
            .iter()
            .map(|stage| match placed[stage.thread as usize] {
                Some(core) => vec![core],
                None => case.pools[case.threads[stage.thread as usize].pool as usize]
                    .0
                    .clone(),
            })
            .collect();
        let cores: Vec<Index> = flow
            .2
            .iter()
            .map(|stage| number(placement.cores[stage.thread as usize].expect("it is placed")))
            .collect();
        for (core, may) in cores.iter().zip(&may) {
            prop_assert!(may.contains(core), "a thread is where it may be");
        }
        let cost = oracle.cost(&turn, &cores);
        prop_assert!(close(cost, chain.slowdown), "{cost} {}", chain.slowdown);
        let found = cost + turn.moves(&cores);
        let optimum = match by {
            By::Search => oracle.least(&turn, &may),
            By::Program => oracle.least_of_program(&turn, &may),
        };
        prop_assert!(optimum <= found + 1e-9 * (1.0 + found.abs()));
        if !close(optimum, found) {
            // The cheapest chain asks too much of a core by itself, which isn't in this measure.
            let all: f64 = turn.demands.iter().sum();
            let full = |core: &Index| oracle.busy[*core as usize] + all > 0.8;
            let excused = match by {
                By::Search => oracle.excused(&turn, &may, optimum, &cores),
                By::Program => may.iter().flatten().any(full),
            };
            prop_assert!(excused, "{optimum} {found}");
        }
        for ((stage, core), demand) in flow.2.iter().zip(cores).zip(&turn.demands) {
            oracle.busy[core as usize] += demand;
            placed[stage.thread as usize] = Some(core);
        }
        sum += flow.0 * cost;
        packets += flow.0;
    }
    let own = placement.chains.iter().map(|chain| chain.queue);
    let mut own: Vec<Index> = own.collect();
    own.sort_unstable();
    own.dedup();
    let queues = case.queues.iter().filter(|(_, flows)| !flows.is_empty());
    prop_assert_eq!(own.len(), queues.count(), "each queue has its chain");
    for (thread, placed) in placed.iter().enumerate() {
        let named = case.queues.iter().flat_map(|(_, flows)| flows);
        let mut named = named.flat_map(|flow| &flow.2);
        let named = named.any(|stage| stage.thread as usize == thread);
        prop_assert_eq!(named, placed.is_some(), "thread {}", thread);
    }
    let mean = if packets > 0.0 { sum / packets } else { 0.0 };
    prop_assert!(close(mean, placement.slowdown), "{mean} {placement:?}");
    Ok(())
}

pub fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}
