//! Placements, against a search of all there are, which is written apart from them, and against a linear program where there are too many.

#[path = "placement/case.rs"]
mod case;
#[path = "placement/oracle.rs"]
mod oracle;
#[path = "placement/trust.rs"]
mod trust;

use ostler_model::CpuId;
use ostler_policy::placement::{
    Core, Factors, Index, Placement, Policy, Sample, Socket, Stage, Thread, Weights, calibrate,
};
use proptest::collection::vec;
use proptest::prelude::*;

use case::{Case, alike, case, long, socket};
use oracle::{By, Oracle, close, fixed, holds, holds_against, reckoned, share};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Where no search of all there are would end.
    #[test]
    fn long_chains_are_what_a_linear_program_finds(case in long()) {
        holds_against(&case, &case.found(Policy::Chains), 0.0, By::Program)?;
    }

    /// The program is the search, where that ends.
    #[test]
    fn the_program_finds_what_the_search_finds(case in alike()) {
        holds_against(&case, &case.found(Policy::Chains), 0.0, By::Program)?;
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
        for (at, thread) in told.threads.iter().enumerate() {
            if let Some(now) = thread.now.filter(|_| fixed(&case, at).is_none()) {
                busy[now as usize] += share(&case, at);
            }
        }
        prop_assume!(busy.iter().all(|busy| *busy <= 1.0));
        for (core, busy) in told.cores.iter_mut().zip(busy) {
            core.utilisation = busy;
        }
        let again = told.place(Policy::Chains, 0.05).expect("it can be placed");
        if !again.kept {
            // Of cores that are the same to a queue, rounding may choose another this time, and that may be better for those that come after it; and a chain that asks too much of a core
            // spreads from where it is.
            prop_assert!(again.slowdown < first.slowdown, "{again:?} {first:?}");
            return Ok(());
        }
        prop_assert_eq!(&again.cores, &first.cores);
        prop_assert!(close(again.slowdown, first.slowdown));
    }

    /// Threads that are somewhere go elsewhere for what that gains, less what it counts as that they leave.
    #[test]
    fn threads_leave_their_cores_for_what_they_gain(
        case in case(),
        percent in 1..=100_u8,
    ) {
        let margin = f64::from(percent) / 100.0;
        for policy in [Policy::Chains, Policy::AllCores] {
            let placement = case.place(policy, margin).expect("it can be placed");
            if !placement.kept {
                holds_against(&case, &placement, margin, By::Search)?;
            }
        }
    }

    /// Whatever has found another one.
    #[test]
    fn a_present_placement_is_left_for_what_is_better_with_all_moves(
        case in case(),
        seats in vec(any::<prop::sample::Index>(), 16),
        percent in 1..=100_u8,
    ) {
        let mut case = case;
        for (at, seat) in seats.iter().enumerate().take(case.threads.len()) {
            let pool = &case.pools[case.threads[at].pool as usize].0;
            case.threads[at].now = Some(pool[seat.index(pool.len())]);
        }
        let margin = f64::from(percent) / 100.0;
        let now: Vec<Option<Index>> = case.threads.iter().map(|thread| thread.now).collect();
        for policy in [Policy::Chains, Policy::NumaAware, Policy::ContentionAware] {
            let found = case.found(policy);
            let placement = case.place(policy, margin).expect("it can be placed");
            let (present, lacked) = reckoned(&case, &found, &now, margin);
            prop_assert!(placement.present.is_some_and(|told| close(told, present)), "{present}");
            if placement.kept {
                continue;
            }
            let number = |id: CpuId| case.cores.iter().position(|core| core.id == id);
            let index = |at: usize| Index::try_from(at).expect("few");
            let at: Vec<Option<Index>> =
                placement.cores.iter().map(|core| core.and_then(number).map(index)).collect();
            let (all, lacks) = reckoned(&case, &found, &at, margin);
            let better = all < present + 1e-9 && lacks <= lacked + 1e-9;
            prop_assert!(better || lacks < lacked - margin + 1e-9, "{all} {lacks} for {present} {lacked}");
        }
    }

    /// Of cores that are alike one that is as busy as the others may be the one where a thread is.
    #[test]
    fn they_do_among_cores_that_are_alike_too(
        case in alike(),
        now in vec(proptest::option::of(0..7_u32), 8),
        percent in 1..=100_u8,
    ) {
        let mut case = case;
        for (thread, now) in case.threads.iter_mut().zip(now) {
            thread.now = now;
        }
        let margin = f64::from(percent) / 100.0;
        let placement = case.place(Policy::Chains, margin).expect("it can be placed");
        if !placement.kept {
            holds_against(&case, &placement, margin, By::Search)?;
        }
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
        if placement.chains.len() == 1 {
            let chain = &placement.chains[0];
            let (nic, flows) = &case.queues[chain.queue as usize];
            let stages = &flows[chain.flow as usize].2;
            let threads: Vec<usize> = stages.iter().map(|stage| stage.thread as usize).collect();
            let placed: Vec<Option<Index>> = (0..case.threads.len()).map(|at| fixed(&case, at)).collect();
            let oracle = Oracle::new(&case);
            let turn = oracle.chain(*nic, stages, &placed, 0.0);
            let pool = |thread: &usize| case.pools[case.threads[*thread].pool as usize].0.clone();
            let may: Vec<Vec<Index>> = threads.iter().map(pool).collect();
            let best = oracle.least(&turn, &may);
            prop_assert!(best <= chain.slowdown + 1e-9);
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
        planted in vec(0.0..5.0_f64, 7),
        places in vec((socket(), socket(), 0..3_u8, any::<bool>(), 0.0..1.2_f64), 24..60),
    ) {
        let samples: Vec<Sample> = places
            .into_iter()
            .map(|(from, to, distance, crosses, busy)| {
                let distance = f64::from(distance);
                let waits = if busy < 0.8 { busy / (1.0 - busy) } else { 4.0 };
                let slowdown = planted[0] / to.l3_hit
                    + planted[1] * from.cycle_loss
                    + planted[2] * to.cycle_loss * distance
                    + planted[3] * from.ipc / to.ipc
                    + planted[4] * f64::from(u8::from(crosses))
                    + planted[5] * waits
                    + planted[6];
                Sample { factors: Factors::new(&from, &to, distance, crosses, busy), slowdown }
            })
            .collect();
        let found = calibrate(&samples, &Weights::default()).expect("so many differ");
        for (found, planted) in found.weights.all().iter().zip(&planted) {
            prop_assert!((found - planted).abs() < 1e-5, "{found:?} for {planted:?}");
        }
        prop_assert!(found.error < 1e-4, "{found:?}");
    }

    /// What weights are found from is what the index is made of: of one stage that has one core to be on.
    #[test]
    fn factors_are_those_of_the_index(
        weights in vec(0.0..5.0_f64, 7),
        (from, to, distance) in (socket(), socket(), 0..3_u8),
        (same, busy) in (any::<bool>(), 0.0..0.8_f64),
    ) {
        let mut case = two_sockets();
        let [cache, memory, interconnect, remote, crossing, load, base] = weights[..] else { unreachable!() };
        case.kinds[1] = Weights { cache, memory, interconnect, remote, crossing, load, base };
        case.kinds[0] = Weights::default();
        case.sockets = vec![from, to];
        case.distances = vec![0.0, f64::from(distance), f64::from(distance), 0.0];
        case.cores[1].cache = 7;
        case.cores[1].utilisation = busy;
        case.cores[2].utilisation = busy;
        let there = if same { 1 } else { 2 };
        case.pools = vec![(vec![0], None), (vec![there], None)];
        case.threads.truncate(2);
        case.threads[1].pool = 1;
        case.queues[0].1[0].2.truncate(2);
        let found = case.found(Policy::Chains);
        let (to, far) = if same { (&from, 0.0) } else { (&to, f64::from(distance)) };
        let factors = Factors::new(&from, to, far, same, busy).0;
        let sum: f64 = factors.iter().zip(&weights).map(|(factor, weight)| factor * weight).sum();
        prop_assert!(close(found.slowdown, sum), "{} {sum}", found.slowdown);
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
    for kind in &mut case.kinds {
        kind.base = 1.0;
    }
    // Crossing at the worker costs twice what crossing at the softirq does: that has 1 where it is, and gains 0.1 by leaving.
    place(&mut case, [0, 2, 3]);
    let moved = case.place(Policy::Chains, 0.09).expect("it can be placed");
    assert!(!moved.kept && moved.present.is_some_and(|present| close(present, 3.2)));
    assert!(close(moved.slowdown, 3.1));
    let kept = case.place(Policy::Chains, 0.11).expect("it can be placed");
    assert!(kept.kept && close(kept.slowdown, 3.2));
    assert_eq!(kept.cores, [0, 2, 3].map(|core| Some(CpuId(core))));
    // One that is where it may not be is no placement to keep.
    place(&mut case, [3, 2, 3]);
    let moved = case.place(Policy::Chains, 0.9).expect("it can be placed");
    assert_eq!((moved.present, moved.kept), (None, false));
}

/// One of two queues has a better place: the other's threads stay, though other cores are as good.
#[test]
fn threads_that_gain_nothing_stay() {
    let mut case = two_sockets();
    for kind in &mut case.kinds {
        kind.base = 1.0;
    }
    let stage = |kind, thread| Stage { kind, thread };
    let thread = |pool, now| Thread {
        pool,
        demand: 2.0,
        now: Some(now),
    };
    case.cores = (0..16)
        .map(|id| Core {
            id: CpuId(id),
            socket: id / 8,
            cache: id / 8,
            utilisation: 0.0,
        })
        .collect();
    case.pools = vec![
        ((0..14).collect(), None),
        (vec![14], None),
        (vec![15], None),
    ];
    case.threads = vec![
        thread(0, 12),
        thread(0, 13),
        thread(1, 14),
        thread(0, 3),
        thread(0, 10),
        thread(2, 15),
    ];
    let chain = |first: u32| vec![stage(0, first), stage(1, first + 1), stage(2, first + 2)];
    // The busier one crosses at the worker, which costs twice what it does at the softirq.
    case.queues = vec![
        (0, vec![(2e5, false, chain(3))]),
        (0, vec![(1e5, false, chain(0))]),
    ];
    for at in [3, 10, 15] {
        case.cores[at].utilisation = 0.4;
    }
    for at in [12, 13, 14] {
        case.cores[at].utilisation = 0.2;
    }
    let cores = |placement: &Placement| -> Vec<u32> {
        let cores = placement.cores.iter().flatten();
        cores.map(|cpu| cpu.0).collect()
    };
    let placement = case.place(Policy::Chains, 0.05).expect("it can be placed");
    assert!(!placement.kept, "{placement:?}");
    let [a, b, _, softirq, worker, _] = cores(&placement)[..] else {
        panic!("all are placed: {placement:?}");
    };
    assert_eq!((a, b, worker), (12, 13, 10), "{placement:?}");
    assert_eq!(case.cores[softirq as usize].socket, 1, "{placement:?}");
    // From nothing, all are somewhere else.
    let anew = cores(&case.found(Policy::Chains));
    assert!(anew[0] != 12 && anew[1] != 13, "{anew:?}");
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
    let of = |to: &Socket, crosses, busy| Sample {
        factors: Factors::new(&EVEN, to, 1.0, crosses, busy),
        slowdown: 2.0,
    };
    let sample = of(&EVEN, false, 0.0);
    let refused = |samples: &[Sample], what: &str| {
        let error = calibrate(samples, &Weights::default())
            .expect_err("they tell nothing")
            .to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(&[sample; 8], "same in all");
    let half = Socket {
        l3_hit: 0.4,
        ..EVEN
    };
    let two = [sample, of(&half, false, 0.0)];
    assert!(calibrate(&two, &Weights::default()).is_ok());
    // Its load is another weight to be found.
    refused(&[two[0], of(&half, false, 0.5)], "fewer than weights");
    // Caches and cycles tell the same.
    let worse = Socket {
        l3_hit: 0.4,
        ipc: 0.5,
        ..EVEN
    };
    refused(
        &[sample, of(&worse, false, 0.0), sample],
        "went with others",
    );
    let odd = Sample {
        slowdown: f64::NAN,
        ..sample
    };
    refused(&[sample, odd, sample, sample], "a figure that is none");
}

#[test]
fn weights_that_no_sample_tells_of_stay() {
    let sockets = (1..8).map(|at| f64::from(at) / 8.0).map(|share| Socket {
        l3_hit: share,
        cycle_loss: share * share,
        ipc: 1.0 + share.sqrt(),
    });
    let samples: Vec<Sample> = sockets
        .map(|to| Sample {
            factors: Factors::new(&EVEN, &to, 1.0, false, 0.0),
            slowdown: 1.0 / to.l3_hit,
        })
        .collect();
    let before = Weights {
        crossing: 0.3,
        load: 0.7,
        ..Weights::default()
    };
    let found = calibrate(&samples, &before)
        .expect("the paper's four differ")
        .weights;
    assert!((found.cache - 1.0).abs() < 1e-6, "{found:?}");
    assert!(
        [found.crossing, found.load].iter().eq(&[0.3, 0.7]),
        "{found:?}"
    );
}

/// A thread with more to do than a core can is where least else is.
#[test]
fn of_cores_that_are_asked_for_too_much_the_emptiest_is_taken() {
    let mut case = two_sockets();
    for (kind, thread) in case.kinds.iter_mut().zip(&mut case.threads) {
        *kind = Weights {
            interconnect: 1.0,
            load: 1.0,
            ..Weights::default()
        };
        thread.demand = 12.0;
    }
    case.cores[0].utilisation = 0.4;
    case.cores[1].utilisation = 0.3;
    case.threads.truncate(2);
    case.queues[0].1[0].2.truncate(2);
    let placement = case.found(Policy::Chains);
    let mut cores: Vec<_> = placement.cores.iter().flatten().map(|id| id.0).collect();
    cores.sort_unstable();
    assert_eq!(
        cores,
        [1, 2],
        "the busiest has none, though one link more is crossed"
    );
}

/// Of two guests of one queue the second has threads of its own, which aren't left to float.
#[test]
fn threads_of_other_flows_follow() {
    let mut case = two_sockets();
    for kind in &mut case.kinds {
        kind.load = 1.0;
    }
    for thread in &mut case.threads {
        thread.demand = 2.0;
    }
    case.threads.extend([case.threads[1], case.threads[1]]);
    let stage = |kind, thread| Stage { kind, thread };
    let own = case.queues[0].1[0].2.clone();
    case.queues[0]
        .1
        .push((5e4, false, vec![own[0], stage(1, 3), own[2]]));
    case.queues[0]
        .1
        .push((7e4, false, vec![own[0], stage(1, 4)]));
    case.queues[0].1.push((6e4, false, own.clone()));
    let placement = case.found(Policy::Chains);
    let flows: Vec<Index> = placement.chains.iter().map(|chain| chain.flow).collect();
    assert_eq!(flows, [0, 2, 1], "the last flow has nobody of its own");
    assert!(placement.cores.iter().all(Option::is_some), "{placement:?}");
}

/// The last queue's vCPU has one core to be on, which the first queue's threads find taken.
#[test]
fn who_has_one_core_is_there_before_all_others() {
    let mut case = two_sockets();
    let stage = |kind, thread| Stage { kind, thread };
    let thread = |pool, demand| Thread {
        pool,
        demand,
        now: None,
    };
    case.pools = vec![(vec![2, 3], None), (vec![3], None)];
    case.threads = vec![thread(0, 6.0), thread(0, 1.0), thread(1, 6.0)];
    case.queues = vec![
        (0, vec![(1.1e5, false, vec![stage(0, 0)])]),
        (0, vec![(1e5, false, vec![stage(1, 1), stage(2, 2)])]),
    ];
    // The other core is a little busier than the vCPU's without that.
    case.cores[2].utilisation = 0.05;
    for policy in [Policy::Chains, Policy::NumaAware, Policy::ContentionAware] {
        let placement = case.found(policy);
        assert_eq!(placement.cores[0], Some(CpuId(2)), "{policy:?}");
        assert_eq!(placement.cores[2], Some(CpuId(3)), "{policy:?}");
    }
}

/// One of many chains lacks a core, which the mean tells little of.
#[test]
fn a_present_placement_that_lacks_a_core_is_not_kept() {
    let mut case = two_sockets();
    let stage = |thread| Stage { kind: 0, thread };
    case.pools = vec![(vec![0, 1, 2], None), (vec![3], None)];
    case.kinds[0] = Weights {
        base: 1.0,
        ..Weights::default()
    };
    let thread = |pool, now, demand| Thread { pool, demand, now };
    case.threads = vec![thread(0, Some(0), 6.0), thread(0, Some(0), 6.0)];
    case.queues = vec![
        (0, vec![(1e5, false, vec![stage(0)])]),
        (0, vec![(1e5, false, vec![stage(1)])]),
    ];
    // Ten thousand times as many packets come to whoever needs nothing.
    case.threads.push(thread(1, Some(3), 0.0));
    case.queues.push((0, vec![(1e9, false, vec![stage(2)])]));
    case.cores[0].utilisation = 1.0;
    let moved = case.place(Policy::Chains, 0.05).expect("it can be placed");
    assert!(moved.slowdown > 0.95 * moved.present.expect("all are somewhere"));
    assert!(!moved.kept && moved.cores[0] != moved.cores[1], "{moved:?}");
    // Where no core can have both, they stay as they are.
    case.pools[0].0 = vec![0];
    let kept = case.place(Policy::Chains, 0.05).expect("it can be placed");
    assert!(kept.kept, "{kept:?}");
}

/// Three workers of one chain, each of which finds the same core emptiest.
#[test]
fn a_chain_asks_no_more_of_a_core_than_it_has() {
    let mut case = two_sockets();
    let stage = |kind, thread| Stage { kind, thread };
    for kind in &mut case.kinds {
        *kind = Weights {
            load: 1.0,
            ..Weights::default()
        };
    }
    case.pools = vec![(vec![0, 1, 2], None), (vec![3], None)];
    let thread = |pool, demand| Thread {
        pool,
        demand,
        now: None,
    };
    case.threads = vec![
        thread(0, 5.0),
        thread(1, 0.0),
        thread(0, 5.0),
        thread(1, 0.0),
        thread(0, 5.0),
    ];
    let chain = (0..5).map(|at| stage(at % 2, at)).collect();
    case.queues = vec![(0, vec![(1e5, false, chain)])];
    for (core, busy) in case.cores.iter_mut().zip([0.0, 0.1, 0.1]) {
        core.utilisation = busy;
    }
    for policy in [
        Policy::Chains,
        Policy::AllCores,
        Policy::NumaAware,
        Policy::ContentionAware,
    ] {
        let placement = case.found(policy);
        let mut cores: Vec<u32> = [0, 2, 4]
            .map(|at: usize| placement.cores[at].expect("it is placed").0)
            .to_vec();
        cores.sort_unstable();
        let apart = if policy == Policy::NumaAware {
            // There are but two cores of a socket.
            [0, 0, 1]
        } else {
            [0, 1, 2]
        };
        assert_eq!(cores, apart, "{policy:?}");
    }
}
