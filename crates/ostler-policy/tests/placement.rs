//! Placements, against a search of all there are, which is written apart from them, and against a linear program where there are too many.

use good_lp::{
    Expression, Solution as _, SolverModel as _, constraint, microlp, variable, variables,
};
use ostler_model::CpuId;
use ostler_policy::placement::{
    Core, Flow, Index, Placement, Placer, Policy, Pool, Problem, Queue, Refusal, Sample, Settings,
    Socket, Stage, Thread, Weights, calibrate,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

/// A problem that owns what it is made of.
#[derive(Clone, Debug)]
struct Case {
    cores: Vec<Core>,
    sockets: Vec<Socket>,
    distances: Vec<f64>,
    kinds: Vec<Weights>,
    pools: Vec<(Vec<Index>, Option<u32>)>,
    threads: Vec<Thread>,
    queues: Vec<(Index, Vec<Owned>)>,
}

/// A flow likewise: packets, priority, stages.
type Owned = (f64, bool, Vec<Stage>);

impl Case {
    fn with<T>(&self, then: impl FnOnce(&Problem<'_>) -> T) -> T {
        let flows = self.queues.iter().map(|(_, flows)| {
            let flows = flows.iter();
            flows
                .map(|(packets, priority, stages)| Flow {
                    packets: *packets,
                    priority: *priority,
                    stages,
                })
                .collect::<Vec<_>>()
        });
        let flows: Vec<Vec<Flow<'_>>> = flows.collect();
        let queues: Vec<Queue<'_>> = self
            .queues
            .iter()
            .zip(&flows)
            .map(|((socket, _), flows)| Queue {
                socket: *socket,
                flows,
            })
            .collect();
        let pools: Vec<Pool<'_>> = self
            .pools
            .iter()
            .map(|(cores, most)| Pool { cores, most: *most })
            .collect();
        then(&Problem {
            cores: &self.cores,
            sockets: &self.sockets,
            distances: &self.distances,
            kinds: &self.kinds,
            pools: &pools,
            threads: &self.threads,
            queues: &queues,
        })
    }

    fn place(&self, policy: Policy, margin: f64) -> Result<Placement, Refusal> {
        self.with(|problem| {
            let mut placer = Placer::default();
            placer.place(problem, Settings { policy, margin }).cloned()
        })
    }

    /// Never kept, so that what the policy finds is seen.
    fn found(&self, policy: Policy) -> Placement {
        self.place(policy, -1.0).expect("it can be placed")
    }
}

/// How busy cores are as queues are placed one after another, and what a chain costs then: the definition, by hand.
struct Oracle<'a> {
    case: &'a Case,
    busy: Vec<f64>,
}

impl Oracle<'_> {
    fn new(case: &Case) -> Oracle<'_> {
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

    fn cost(&self, nic: Index, stages: &[Stage], demands: &[f64], cores: &[Index]) -> f64 {
        let each = (0..stages.len()).map(|at| {
            let before = at.checked_sub(1).map(|at| cores[at]);
            self.step(nic, stages, demands, at, before, cores[at])
        });
        each.sum()
    }

    /// What a chain's stage costs on a core, coming from another.
    fn step(
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
    fn least_of_program(
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
    fn least(&self, nic: Index, stages: &[Stage], demands: &[f64], may: &[Vec<Index>]) -> f64 {
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

fn dominant(flows: &[Owned]) -> Option<&Owned> {
    let first =
        |best: &&Owned, flow: &&Owned| (flow.1 && !best.1) || (flow.1 == best.1 && flow.0 > best.0);
    flows
        .iter()
        .reduce(|best, flow| if first(&best, &flow) { flow } else { best })
}

/// Goes through a placement queue by queue, and holds each chain against the search.
fn holds(case: &Case, placement: &Placement) -> Result<(), TestCaseError> {
    holds_against(case, placement, By::Search)
}

/// Who says what the least cost of a chain is.
#[derive(Clone, Copy)]
enum By {
    Search,
    Program,
}

fn holds_against(case: &Case, placement: &Placement, by: By) -> Result<(), TestCaseError> {
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

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}

fn weights() -> impl Strategy<Value = Weights> {
    // Coarse, so that ties and zeros come up.
    vec(0..5_u8, 6).prop_map(|w| Weights {
        cache: f64::from(w[0]),
        memory: f64::from(w[1]),
        interconnect: f64::from(w[2]),
        remote: f64::from(w[3]),
        crossing: f64::from(w[4]) / 4.0,
        load: f64::from(w[5]),
    })
}

fn socket() -> impl Strategy<Value = Socket> {
    (1..=10_u8, 0..=10_u8, 1..30_u8).prop_map(|(hit, loss, ipc)| Socket {
        l3_hit: f64::from(hit) / 10.0,
        cycle_loss: f64::from(loss) / 10.0,
        ipc: f64::from(ipc) / 10.0,
    })
}

/// Small problems of every shape: pools that overlap, threads that several queues share, empty chains, cores beyond full.
fn case() -> impl Strategy<Value = Case> {
    (
        1..=3_usize,
        1..=7_usize,
        1..=3_usize,
        1..=5_usize,
        0..=4_usize,
    )
        .prop_flat_map(|(sockets, cores, pools, threads, queues)| {
            let socket_at = 0..u32::try_from(sockets).expect("few");
            let core_at = 0..u32::try_from(cores).expect("few");
            let all: Vec<u32> = core_at.clone().collect();
            let place = (socket_at.clone(), 0..2_u32, 0..=4_u8);
            let thread = (
                0..u32::try_from(pools).expect("few"),
                0..=5_u8,
                proptest::option::of(core_at),
            );
            let chain = subsequence(
                (0..u32::try_from(threads).expect("few")).collect::<Vec<_>>(),
                0..=threads.min(4),
            )
            .prop_shuffle();
            let stages = (chain, vec(0..2_u32, 4)).prop_map(|(threads, kinds)| {
                let both = threads.into_iter().zip(kinds);
                both.map(|(thread, kind)| Stage { kind, thread })
                    .collect::<Vec<_>>()
            });
            let flow = (
                (0..=6_u8).prop_map(|k| f64::from(k) * 1e5),
                any::<bool>(),
                stages,
            );
            (
                vec(place, cores),
                vec(socket(), sockets),
                vec((0..3_u8).prop_map(f64::from), sockets * sockets),
                vec(weights(), 2),
                vec(subsequence(all, 1..=cores), pools),
                vec(thread, threads),
                vec((socket_at, vec(flow, 0..3)), queues),
            )
                .prop_map(
                    |(places, sockets, distances, kinds, pools, threads, queues)| Case {
                        cores: (10..)
                            .zip(places)
                            .map(|(id, (socket, cache, busy))| Core {
                                id: CpuId(id),
                                socket,
                                cache,
                                utilisation: f64::from(busy) / 4.0,
                            })
                            .collect(),
                        sockets,
                        distances,
                        kinds,
                        pools: pools.into_iter().map(|cores| (cores, None)).collect(),
                        threads: threads
                            .into_iter()
                            .map(|(pool, demand, now)| Thread {
                                pool,
                                demand: f64::from(demand) / 10.0,
                                now,
                            })
                            .collect(),
                        queues,
                    },
                )
        })
}

/// Many cores that are alike, with queues enough to fill them: of what is alike, some must be left out, and the right ones.
fn alike() -> impl Strategy<Value = Case> {
    (
        case(),
        vec(0..=2_u8, 7),
        1..=2_u32,
        vec(1..=4_u8, 8),
        any::<u8>(),
    )
        .prop_map(|(mut case, busy, caches, demands, cut)| {
            case.sockets.truncate(1);
            case.distances = vec![0.0];
            case.cores = (0..7_u32)
                .zip(busy)
                .map(|(at, busy)| Core {
                    id: CpuId(10 + at),
                    socket: 0,
                    cache: at % caches,
                    utilisation: f64::from(busy) / 7.0,
                })
                .collect();
            let cut = u32::from(cut % 7);
            case.pools = vec![((0..7).collect(), None), ((cut..7).collect(), None)];
            for kind in &mut case.kinds {
                kind.load += 1.0;
            }
            case.threads = (0..)
                .zip(demands)
                .map(|(at, demand)| Thread {
                    pool: at % 2,
                    demand: f64::from(demand) / 30.0,
                    now: None,
                })
                .collect();
            let chain = |threads: &[u32], packets: f64| {
                let stages = threads.iter().map(|&thread| Stage {
                    kind: thread % 2,
                    thread,
                });
                (0, vec![(packets, false, stages.collect())])
            };
            // The last ones' ends are where earlier queues have put them.
            case.queues = vec![
                chain(&[0, 1, 2], 1.3e6),
                chain(&[3, 4, 5], 1.2e6),
                chain(&[0, 6, 3], 1.1e6),
                chain(&[2, 7, 5], 1e6),
            ];
            case
        })
}

/// Chains of eight stages, on sixteen cores in two sockets: hundreds of millions of ways for the first; the second goes through cores where the first has put its threads.
fn long() -> impl Strategy<Value = Case> {
    let cores = vec(0..=8_u8, 16);
    (
        cores,
        vec(socket(), 2),
        vec(weights(), 2),
        vec(1..=4_u8, 12),
        vec(0..2_u32, 16),
    )
        .prop_map(|(busy, sockets, kinds, demands, on)| {
            let chain = |threads: std::ops::Range<u32>, packets: f64| {
                let stages = threads.zip(&on);
                let stages = stages.map(|(thread, &kind)| Stage { kind, thread });
                (0, vec![(packets, false, stages.collect())])
            };
            Case {
                cores: (0..16_u32)
                    .zip(busy)
                    .map(|(at, busy)| Core {
                        id: CpuId(10 + at),
                        socket: at / 8,
                        cache: at % 8 / 4,
                        utilisation: f64::from(busy) / 9.0,
                    })
                    .collect(),
                sockets,
                distances: vec![0.0, 1.0, 1.0, 0.0],
                kinds,
                pools: vec![((0..16).collect(), None), ((3..13).collect(), None)],
                threads: (0..)
                    .zip(demands)
                    .map(|(at, demand)| Thread {
                        pool: at % 2,
                        demand: f64::from(demand) / 10.0,
                        now: None,
                    })
                    .collect(),
                queues: vec![chain(0..8, 1.1e6), chain(4..12, 1e6)],
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Where no search of all there are would end.
    #[test]
    fn long_chains_are_what_a_linear_program_finds(case in long()) {
        holds_against(&case, &case.found(Policy::Chains), By::Program)?;
    }

    /// The program is the search, where that ends.
    #[test]
    fn the_program_finds_what_the_search_finds(case in alike()) {
        holds_against(&case, &case.found(Policy::Chains), By::Program)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn each_queues_chain_is_the_best_of_all_there_are(case in case()) {
        holds(&case, &case.found(Policy::Chains))?;
        holds(&case, &case.found(Policy::AllCores))?;
    }

    #[test]
    fn it_is_found_among_cores_that_are_alike_too(case in alike()) {
        holds(&case, &case.found(Policy::Chains))?;
    }

    #[test]
    fn what_was_placed_is_kept(case in case()) {
        let first = case.found(Policy::Chains);
        let number = |id: CpuId| case.cores.iter().position(|core| core.id == id);
        let mut told = case.clone();
        // As if they ran there: their cores are as busy as they make them.
        let mut busy = Oracle::new(&case).busy;
        for (thread, core) in told.threads.iter_mut().zip(&first.cores) {
            thread.now = core.and_then(number).map(|at| Index::try_from(at).expect("few"));
        }
        for (_, flows) in &case.queues {
            if let Some(flow) = dominant(flows) {
                let all: f64 = flows.iter().map(|flow| flow.0).sum();
                for stage in &flow.2 {
                    let thread = &told.threads[stage.thread as usize];
                    busy[thread.now.expect("it is placed") as usize] += thread.demand * all / 1e6;
                }
            }
        }
        prop_assume!(busy.iter().all(|busy| *busy <= 1.0));
        for (core, busy) in told.cores.iter_mut().zip(busy) {
            core.utilisation = busy;
        }
        let again = told.place(Policy::Chains, 0.05).expect("it can be placed");
        if !again.kept {
            // Of cores that are the same to a queue, rounding may choose another this time, and that may be better for those that come after it.
            prop_assert!(again.slowdown < 0.95 * first.slowdown, "{again:?} {first:?}");
            return Ok(());
        }
        prop_assert_eq!(&again.cores, &first.cores);
        prop_assert!(close(again.slowdown, first.slowdown));
    }

    #[test]
    fn baselines_place_every_thread_where_it_may_be(case in case(), aware in any::<bool>()) {
        let policy = if aware { Policy::NumaAware } else { Policy::ContentionAware };
        let placement = case.found(policy);
        for (thread, core) in case.threads.iter().zip(&placement.cores) {
            let Some(core) = core else { continue };
            let at = case.cores.iter().position(|c| c.id == *core).expect("it is one of them");
            let pool = &case.pools[thread.pool as usize].0;
            prop_assert!(pool.contains(&Index::try_from(at).expect("few")));
        }
        // Each queue by itself is no better than the best there is; with several, what the first takes may leave the next better off.
        if placement.queues.len() == 1 {
            let best = case.found(Policy::Chains);
            prop_assert!(best.slowdown <= placement.slowdown + 1e-9);
        }
    }

    #[test]
    fn nothing_makes_it_panic(
        case in case(),
        odd in vec(any::<f64>(), 6),
        at in vec(any::<u32>(), 4),
        most in proptest::option::of(any::<u32>()),
    ) {
        let mut case = case;
        case.cores[0].utilisation = odd[0];
        case.sockets[0] = Socket { l3_hit: odd[1], cycle_loss: odd[2], ipc: odd[3] };
        case.kinds[0].load = odd[4];
        case.threads[0].demand = odd[5];
        case.threads[0].now = Some(at[0]);
        case.cores[0].socket = at[1] % 5;
        case.pools[0].1 = most;
        case.pools[0].0.push(at[2] % 9);
        if let Some((_, flows)) = case.queues.first_mut() && let Some(flow) = flows.first_mut() {
            flow.2.push(Stage { kind: at[3] % 3, thread: at[3] % 7 });
        }
        let _ = case.place(Policy::Chains, 0.05);
        let _ = case.place(Policy::NumaAware, f64::NAN);
    }

    #[test]
    fn weights_are_found_again_from_what_they_make(
        planted in vec(0.0..5.0_f64, 4),
        sockets in vec((socket(), socket(), 0..3_u8), 12..40),
    ) {
        let samples: Vec<Sample> = sockets
            .into_iter()
            .map(|(from, to, distance)| {
                let distance = f64::from(distance);
                let slowdown = planted[0] / to.l3_hit
                    + planted[1] * from.cycle_loss
                    + planted[2] * to.cycle_loss * distance
                    + planted[3] * from.ipc / to.ipc;
                Sample { from, to, distance, slowdown }
            })
            .collect();
        let found = calibrate(&samples).expect("so many differ");
        let found = [found.cache, found.memory, found.interconnect, found.remote];
        for (found, planted) in found.iter().zip(&planted) {
            prop_assert!((found - planted).abs() < 1e-5, "{found:?} for {planted:?}");
        }
    }
}

const EVEN: Socket = Socket {
    l3_hit: 0.8,
    cycle_loss: 0.2,
    ipc: 1.0,
};

/// Two sockets of two cores, the NIC on the first and the guest's vCPU on the last core of the second; a softirq and a vhost worker may be anywhere else.
fn two_sockets() -> Case {
    let stage = |kind, thread| Stage { kind, thread };
    Case {
        cores: (0..4)
            .map(|id| Core {
                id: CpuId(id),
                socket: id / 2,
                cache: id / 2,
                utilisation: 0.0,
            })
            .collect(),
        sockets: vec![EVEN, EVEN],
        distances: vec![0.0, 1.0, 1.0, 0.0],
        kinds: [0.5, 1.0, 2.0]
            .map(|interconnect| Weights {
                interconnect,
                ..Weights::default()
            })
            .to_vec(),
        pools: vec![(vec![0, 1, 2], None), (vec![3], None)],
        threads: [0, 0, 1]
            .map(|pool| Thread {
                pool,
                demand: 0.0,
                now: None,
            })
            .to_vec(),
        queues: vec![(
            0,
            vec![(1e5, false, vec![stage(0, 0), stage(1, 1), stage(2, 2)])],
        )],
    }
}

fn sockets_of(case: &Case, placement: &Placement) -> Vec<u32> {
    let cores = placement.cores.iter().flatten();
    cores.map(|id| case.cores[id.0 as usize].socket).collect()
}

#[test]
fn the_link_is_crossed_where_that_costs_least() {
    // The paper's patterns: the interconnect must be crossed once, at the softirq, at the worker or at the vCPU.
    for (crosses, expected) in [(0, [1, 1, 1]), (1, [0, 1, 1]), (2, [0, 0, 1])] {
        let mut case = two_sockets();
        for (kind, weights) in case.kinds.iter_mut().enumerate() {
            weights.interconnect = if kind == crosses { 0.5 } else { 2.0 };
        }
        let placement = case.found(Policy::Chains);
        assert_eq!(sockets_of(&case, &placement), expected);
        assert!(close(placement.slowdown, 0.5 * 0.2), "{placement:?}");
    }
    let case = two_sockets();
    assert_eq!(sockets_of(&case, &case.found(Policy::NumaAware)), [1, 1, 1]);
}

#[test]
fn a_crowded_destination_is_shunned_by_all_but_the_numa_aware() {
    let mut case = two_sockets();
    case.sockets[1] = Socket {
        l3_hit: 0.1,
        ..EVEN
    };
    for kind in &mut case.kinds {
        kind.cache = 1.0;
    }
    assert_eq!(sockets_of(&case, &case.found(Policy::Chains)), [0, 0, 1]);
    assert_eq!(
        sockets_of(&case, &case.found(Policy::ContentionAware)),
        [0, 0, 1]
    );
    assert_eq!(sockets_of(&case, &case.found(Policy::NumaAware)), [1, 1, 1]);
}

#[test]
fn queues_spread_as_cores_fill() {
    let mut case = two_sockets();
    for (kind, thread) in case.kinds.iter_mut().zip(&mut case.threads) {
        *kind = Weights {
            load: 1.0,
            ..Weights::default()
        };
        thread.demand = 3.0;
    }
    let flow = case.queues[0].1[0].clone();
    case.threads.extend([case.threads[0], case.threads[1]]);
    let second = [3, 4, 2].iter().zip(flow.2);
    let second = second.map(|(thread, stage)| Stage {
        thread: *thread,
        ..stage
    });
    case.queues.push((0, vec![(1e5, false, second.collect())]));
    let placement = case.found(Policy::Chains);
    let cores: Vec<_> = placement.cores.iter().flatten().map(|id| id.0).collect();
    // Four threads on three cores: no core has three.
    let most = (0..3)
        .map(|core| [0, 1, 3, 4].iter().filter(|t| cores[**t] == core).count())
        .max();
    assert_eq!(most, Some(2), "{cores:?}");
}

#[test]
fn a_pool_takes_its_least_busy_cores() {
    let mut case = two_sockets();
    case.cores[0].utilisation = 0.9;
    case.cores[1].utilisation = 0.8;
    case.pools[0].1 = Some(1);
    let placement = case.found(Policy::Chains);
    assert_eq!(
        placement.cores[0],
        Some(CpuId(2)),
        "though it is the far one"
    );
}

#[test]
fn a_present_placement_that_is_hardly_worse_is_kept() {
    let mut case = two_sockets();
    let place = |case: &mut Case, cores: [u32; 3]| {
        for (thread, core) in case.threads.iter_mut().zip(cores) {
            thread.now = Some(core);
        }
    };
    // Crossing at the worker costs twice what crossing at the softirq does.
    place(&mut case, [0, 2, 3]);
    let moved = case.place(Policy::Chains, 0.3).expect("it can be placed");
    assert!(!moved.kept && moved.present.is_some_and(|present| close(present, 0.2)));
    assert!(close(moved.slowdown, 0.1));
    let kept = case.place(Policy::Chains, 0.6).expect("it can be placed");
    assert!(kept.kept && close(kept.slowdown, 0.2));
    assert_eq!(kept.cores, [0, 2, 3].map(|core| Some(CpuId(core))));
    // One that is where it may not be is no placement to keep.
    place(&mut case, [3, 2, 3]);
    let moved = case.place(Policy::Chains, 0.9).expect("it can be placed");
    assert_eq!((moved.present, moved.kept), (None, false));
}

#[test]
fn what_cannot_be_placed_is_told() {
    let told = |change: &dyn Fn(&mut Case)| {
        let mut case = two_sockets();
        change(&mut case);
        case.place(Policy::Chains, 0.0)
            .expect_err("it can't be placed")
            .to_string()
    };
    let of = |what: &str, change: &dyn Fn(&mut Case)| {
        let error = told(change);
        assert!(error.contains(what), "{error}");
    };
    of("core 0 names socket 7, and there are 2", &|case| {
        case.cores[0].socket = 7;
    });
    of(
        "core 1 has NaN as utilisation, which is to be from 0 to 1",
        &|case| {
            case.cores[1].utilisation = f64::NAN;
        },
    );
    of("socket 0 has 0 as L3 hit rate", &|case| {
        case.sockets[0].l3_hit = 0.0;
    });
    of("3 distances between 2 sockets", &|case| {
        case.distances.truncate(3);
    });
    of("kind of stages 2 has -1 as weight", &|case| {
        case.kinds[2].load = -1.0;
    });
    of("pool 1 has no core", &|case| case.pools[1].0.clear());
    of("pool 0 has core 0 twice", &|case| case.pools[0].0.push(0));
    of("pool 1 names core 4", &|case| case.pools[1].0[0] = 4);
    of("thread 1 names pool 2", &|case| case.threads[1].pool = 2);
    of("thread 2 has inf as demand", &|case| {
        case.threads[2].demand = f64::INFINITY;
    });
    of("queue 0 names socket 2", &|case| case.queues[0].0 = 2);
    of("a chain of queue 0 names thread 9", &|case| {
        case.queues[0].1[0].2[0].thread = 9;
    });
    of("a chain of queue 0 has thread 1 twice", &|case| {
        case.queues[0].1[0].2[2].thread = 1;
    });
    of("9 stages of a chain are too many: up to 8", &|case| {
        case.queues[0].1[0].2 = vec![Stage { kind: 0, thread: 0 }; 9];
    });
}

#[test]
fn samples_that_tell_nothing_are_refused() {
    let sample = Sample {
        from: EVEN,
        to: EVEN,
        distance: 1.0,
        slowdown: 2.0,
    };
    let refused = |samples: &[Sample], what: &str| {
        let error = calibrate(samples)
            .expect_err("they tell nothing")
            .to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(&[sample; 3], "fewer than weights");
    refused(&[sample; 8], "went with others");
    let odd = Sample {
        slowdown: f64::NAN,
        ..sample
    };
    refused(&[sample, odd, sample, sample], "a figure that is none");
}
