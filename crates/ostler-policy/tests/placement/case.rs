//! Problems that are drawn: small ones of every shape, ones with many cores that are alike, and ones with long chains.

use ostler_model::{CpuId, Trust};
use ostler_policy::placement::{
    Core, Flow, Index, Placement, Placer, Policy, Pool, Problem, Queue, Refusal, Settings, Socket,
    Stage, Thread, Weights,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

/// A problem that owns what it is made of.
#[derive(Clone, Debug)]
pub struct Case {
    pub cores: Vec<Core>,
    pub sockets: Vec<Socket>,
    pub distances: Vec<f64>,
    pub kinds: Vec<Weights>,
    pub pools: Vec<(Vec<Index>, Option<u32>)>,
    pub threads: Vec<Thread>,
    pub queues: Vec<(Index, Vec<Owned>)>,
}

/// A flow likewise: packets, priority, stages.
pub type Owned = (f64, bool, Vec<Stage>);

impl Case {
    pub fn with<T>(&self, then: impl FnOnce(&Problem<'_>) -> T) -> T {
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

    pub fn place(&self, policy: Policy, margin: f64) -> Result<Placement, Refusal> {
        self.place_after(policy, margin, Trust::default())
    }

    pub fn place_after(
        &self,
        policy: Policy,
        margin: f64,
        trust: Trust,
    ) -> Result<Placement, Refusal> {
        let by = Settings {
            policy,
            margin,
            trust,
        };
        self.with(|problem| Placer::default().place(problem, by).cloned())
    }

    /// Never kept, so that what the policy finds is seen.
    pub fn found(&self, policy: Policy) -> Placement {
        self.place(policy, -1.0).expect("it can be placed")
    }
}

pub fn weights() -> impl Strategy<Value = Weights> {
    // Coarse, so that ties and zeros come up.
    vec(0..5_u8, 7).prop_map(|w| Weights {
        cache: f64::from(w[0]),
        memory: f64::from(w[1]),
        interconnect: f64::from(w[2]),
        remote: f64::from(w[3]),
        crossing: f64::from(w[4]) / 4.0,
        load: f64::from(w[5]),
        base: f64::from(w[6]) / 4.0,
    })
}

pub fn socket() -> impl Strategy<Value = Socket> {
    (1..=10_u8, 0..=10_u8, 1..30_u8).prop_map(|(hit, loss, ipc)| Socket {
        l3_hit: f64::from(hit) / 10.0,
        cycle_loss: f64::from(loss) / 10.0,
        ipc: f64::from(ipc) / 10.0,
    })
}

/// Small problems of every shape: pools that overlap, threads that several queues share, empty chains, cores beyond full.
pub fn case() -> impl Strategy<Value = Case> {
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
pub fn alike() -> impl Strategy<Value = Case> {
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
pub fn long() -> impl Strategy<Value = Case> {
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
