//! Placements, against a search of all there are, which is written apart from them, and against a linear program where there are too many.

#[path = "placement/case.rs"]
mod case;
#[path = "placement/oracle.rs"]
mod oracle;

use ostler_model::CpuId;
use ostler_policy::placement::{
    Core, Index, Placement, Policy, Sample, Socket, Stage, Thread, Weights, calibrate,
};
use proptest::collection::vec;
use proptest::prelude::*;

use case::{Case, alike, case, long, socket};
use oracle::{By, Oracle, close, dominant, holds, holds_against};

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
