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

impl Oracle<'_> {
    pub fn new(case: &Case) -> Oracle<'_> {
        let mut busy: Vec<f64> = case.cores.iter().map(|core| core.utilisation).collect();
        let mut shares = vec![0.0; case.threads.len()];
        for (_, flows) in &case.queues {
            if let Some(flow) = dominant(flows) {
                let all: f64 = flows.iter().map(|flow| flow.0).sum();
                for stage in &flow.2 {
                    let thread = stage.thread as usize;
                    shares[thread] += case.threads[thread].demand * all / 1e6;
                }
            }
        }
        for (thread, share) in case.threads.iter().zip(shares) {
            if let Some(now) = thread.now {
                busy[now as usize] = (busy[now as usize] - share).max(0.0);
            }
        }
        Oracle { case, busy }
    }

    pub fn cost(&self, nic: Index, stages: &[Stage], demands: &[f64], cores: &[Index]) -> f64 {
        let each = (0..stages.len()).map(|at| {
            let before = at.checked_sub(1).map(|at| cores[at]);
            self.step(nic, stages, demands, at, before, cores[at])
        });
        each.sum()
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
        let mut sum = weights.cache / here.l3_hit;
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
        let busy = busy.min(0.999);
        sum + weights.load * busy / (1.0 - busy)
    }

    /// The same least cost as of a linear program: a unit flows from stage to stage, from each core as much as comes there, and pays for its way. Such a program has a solution
    /// in which all of it goes one way.
    pub fn least_of_program(
        &self,
        nic: Index,
        stages: &[Stage],
        demands: &[f64],
        may: &[Vec<Index>],
    ) -> f64 {
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
                    cost += self.step(nic, stages, demands, at, before, v) * share;
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
    pub fn least(&self, nic: Index, stages: &[Stage], demands: &[f64], may: &[Vec<Index>]) -> f64 {
        let mut least = f64::INFINITY;
        let mut at = vec![0; stages.len()];
        loop {
            let cores: Vec<Index> = may.iter().zip(&at).map(|(may, at)| may[*at]).collect();
            least = least.min(self.cost(nic, stages, demands, &cores));
            let Some(next) = (0..at.len()).find(|i| at[*i] + 1 < may[*i].len()) else {
                return least;
            };
            at[next] += 1;
            at[..next].fill(0);
        }
    }
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
    holds_against(case, placement, By::Search)
}

/// Who says what the least cost of a chain is.
#[derive(Clone, Copy)]
pub enum By {
    Search,
    Program,
}

pub fn holds_against(case: &Case, placement: &Placement, by: By) -> Result<(), TestCaseError> {
    let mut oracle = Oracle::new(case);
    let mut placed = vec![None; case.threads.len()];
    let number = |id: CpuId| {
        let at = case.cores.iter().position(|core| core.id == id);
        Index::try_from(at.expect("it is one of them")).expect("few")
    };
    let mut last = (true, f64::INFINITY);
    for queue in &placement.queues {
        let (nic, flows) = &case.queues[queue.queue as usize];
        let flow = &flows[queue.flow as usize];
        prop_assert_eq!(Some(flow), dominant(flows));
        let all: f64 = flows.iter().map(|flow| flow.0).sum();
        prop_assert!((flow.1, all) <= last, "queues go by priority, then traffic");
        last = (flow.1, all);
        let demand = |stage: &Stage| case.threads[stage.thread as usize].demand * all / 1e6;
        let demands: Vec<f64> = flow.2.iter().map(demand).collect();
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
        let cost = oracle.cost(*nic, &flow.2, &demands, &cores);
        prop_assert!(close(cost, queue.slowdown), "{cost} {}", queue.slowdown);
        let optimum = match by {
            By::Search => oracle.least(*nic, &flow.2, &demands, &may),
            By::Program => oracle.least_of_program(*nic, &flow.2, &demands, &may),
        };
        prop_assert!(
            close(optimum, queue.slowdown),
            "{optimum} {}",
            queue.slowdown
        );
        for ((stage, core), demand) in flow.2.iter().zip(cores).zip(demands) {
            oracle.busy[core as usize] += demand;
            placed[stage.thread as usize] = Some(core);
        }
    }
    Ok(())
}

pub fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}
