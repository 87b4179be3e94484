//! The host that placements are timed on: what `bench/placement` and `bench/paper` share.

use ostler_model::CpuId;
use ostler_policy::placement::{
    Core, Flow, Placer, Pool, Problem, Queue, Settings, Socket, Stage, Thread, Weights,
};

/// What comes to a queue each second, or a little more.
const PACKETS: f64 = 1e5;

/// Eight cores to a cache, up to 128 to a socket; a NIC's queues for guests on all sockets, a softirq and a vhost worker for each queue.
pub struct World {
    cores: Vec<Core>,
    sockets: Vec<Socket>,
    distances: Vec<f64>,
    pools: Vec<(Vec<u32>, Option<u32>)>,
    threads: Vec<Thread>,
    stages: Vec<Vec<Stage>>,
}

impl World {
    /// So many cores, and queues with a chain each.
    pub fn new(cores: u32, queues: u32) -> World {
        let sockets = cores.div_ceil(64).max(2);
        let each = cores / sockets;
        let busy = |at: u32| f64::from(at * 7919 % 100) / 250.0;
        let half = |which: u32| (0..cores).filter(|core| core / 8 % 2 == which).collect();
        let mut pools: Vec<(Vec<u32>, Option<u32>)> = vec![(half(0), None), (half(1), None)];
        let mut threads = Vec::new();
        let mut stages = Vec::new();
        for queue in 0..queues {
            let first = queue * 3;
            // Where the guest's vCPU is.
            pools.push((vec![queue * 37 % cores], None));
            for pool in [0, 1, 2 + queue] {
                threads.push(Thread {
                    pool,
                    demand: 0.5,
                    now: None,
                });
            }
            let chain = [0, 1, 2].map(|kind| Stage {
                kind,
                thread: first + kind,
            });
            stages.push(chain.to_vec());
        }
        World {
            cores: (0..cores)
                .map(|at| Core {
                    id: CpuId(at),
                    socket: at / each,
                    cache: at / 8,
                    utilisation: busy(at),
                })
                .collect(),
            sockets: (0..sockets)
                .map(|at| Socket {
                    l3_hit: 0.6 + 0.05 * f64::from(at % 4),
                    cycle_loss: 0.1 + 0.07 * f64::from(at % 5),
                    ipc: 0.8 + 0.1 * f64::from(at % 3),
                })
                .collect(),
            distances: (0..sockets * sockets)
                .map(|at| if at % (sockets + 1) == 0 { 0.0 } else { 1.0 })
                .collect(),
            pools,
            threads,
            stages,
        }
    }

    /// The same with more to do than it can: chains of eight threads each, all of which may be anywhere and have a quarter of a core to do.
    pub fn full(cores: u32, queues: u32) -> World {
        let mut world = World::new(cores, queues);
        for core in &mut world.cores {
            core.utilisation = 0.7;
        }
        world.pools = vec![((0..cores).collect(), None)];
        let thread = Thread {
            pool: 0,
            demand: 2.5,
            now: None,
        };
        world.threads = vec![thread; 8 * queues as usize];
        for (queue, stages) in (0..).zip(&mut world.stages) {
            let chain = (0..8).map(|at| Stage {
                kind: at % 3,
                thread: 8 * queue + at,
            });
            *stages = chain.collect();
        }
        world
    }

    /// The same a second later: threads are where they were placed, and sockets' counters are each other's by now.
    ///
    /// # Panics
    ///
    /// Where it can't be placed, as no such world is.
    #[must_use]
    pub fn placed(mut self) -> World {
        let mut placer = Placer::default();
        let found = self.with(|problem| {
            let placement = placer.place(problem, Settings::default());
            placement.expect("it can be placed").cores.clone()
        });
        for (thread, core) in self.threads.iter_mut().zip(found) {
            thread.now = core.map(|core| core.0);
            if let Some(core) = core {
                self.cores[core.0 as usize].utilisation += thread.demand * PACKETS / 1e6;
            }
        }
        for core in &mut self.cores {
            core.utilisation = core.utilisation.min(1.0);
        }
        self.sockets.rotate_left(1);
        self
    }

    /// Hands the problem on.
    pub fn with<T>(&self, then: impl FnOnce(&Problem<'_>) -> T) -> T {
        let weights = |cache, memory| Weights {
            cache,
            memory,
            interconnect: 1.0,
            remote: 0.5,
            crossing: 0.2,
            base: 0.0,
            load: 1.0,
        };
        let kinds = [weights(2.0, 1.0), weights(1.0, 2.0), weights(1.0, 1.0)];
        let pools = self.pools.iter();
        let pools: Vec<Pool<'_>> = pools
            .map(|(cores, most)| Pool { cores, most: *most })
            .collect();
        let flows: Vec<[Flow<'_>; 1]> = (1..)
            .zip(&self.stages)
            .map(|(at, stages)| {
                [Flow {
                    packets: PACKETS + f64::from(at * 4391 % 1000),
                    priority: at % 8 == 0,
                    stages,
                }]
            })
            .collect();
        let queues: Vec<Queue<'_>> = (0..)
            .zip(&flows)
            .map(|(at, flows)| Queue {
                socket: at % u32::try_from(self.sockets.len()).unwrap_or(1),
                flows,
            })
            .collect();
        then(&Problem {
            cores: &self.cores,
            sockets: &self.sockets,
            distances: &self.distances,
            kinds: &kinds,
            pools: &pools,
            threads: &self.threads,
            queues: &queues,
        })
    }
}
