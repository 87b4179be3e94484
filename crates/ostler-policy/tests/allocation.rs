//! How many cores, and which.

use ostler_model::testing::topology;
use ostler_model::{CpuSet, CpuUsage, Facts, Groups, Nanos, NodeId, Topology};
use ostler_policy::partition::allocate::{
    Ask, DEADBAND, Energy, QUIET, Split, energy, performance, proportional, steady_performance,
    whole,
};
use ostler_policy::partition::cores::{Cores, Usage};
use proptest::collection::vec;
use proptest::prelude::*;

fn ask(total: u32) -> impl Strategy<Value = Ask> {
    (0.0..f64::from(total), 0.05..0.95_f64, 0..=total).prop_map(|(busy, threshold, previous)| Ask {
        busy,
        threshold,
        previous,
    })
}

/// A host's cores and two groups that fit it.
fn asks() -> impl Strategy<Value = (u32, Ask, Ask)> {
    (2..300_u32).prop_flat_map(|total| {
        (Just(total), ask(total), ask(total)).prop_map(|(total, vcpu, mut nq)| {
            nq.previous = nq.previous.min(total - vcpu.previous);
            (total, vcpu, nq)
        })
    })
}

fn more(ask: Ask, extra: f64) -> Ask {
    Ask {
        busy: ask.busy + extra,
        ..ask
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_sum_is_total((total, vcpu, nq) in asks()) {
        let (Ok(split) | Err(split)) = performance(total, vcpu, nq);
        prop_assert_eq!(split.sum(), total);
        prop_assert!(split.vcpu >= 1 && split.nq >= 1);
    }

    /// Algorithm 1, where neither share is within a rounding error of a half and both are a core at least.
    #[test]
    fn performance_equals_algorithm_1((total, vcpu, nq) in asks()) {
        let required = vcpu.required() + nq.required();
        let exact = f64::from(total) * vcpu.required() / required;
        prop_assume!(required >= QUIET && (exact.fract() - 0.5).abs() > 1e-6);
        let round = |req: f64| (f64::from(total) * req / required).round();
        prop_assume!(round(vcpu.required()) >= 1.0 && round(nq.required()) >= 1.0);
        let split = performance(total, vcpu, nq).unwrap();
        prop_assert_eq!(split.vcpu, whole(round(vcpu.required())));
        prop_assert_eq!(split.nq, whole(round(nq.required())));
    }

    /// A host that is too quiet to measure keeps its split; one that had nothing of one group, as no guest was there, has none to keep.
    #[test]
    fn a_quiet_host_keeps_a_split_that_there_was((total, vcpu, nq) in asks(), had in 0..3_u32) {
        let quiet = |ask: Ask, previous| Ask { busy: 0.0, previous, ..ask };
        let (mine, theirs) = (vcpu.previous.clamp(1, total - 1), total - vcpu.previous.clamp(1, total - 1));
        let split = |mine, theirs| performance(total, quiet(vcpu, mine), quiet(nq, theirs)).unwrap_err();
        prop_assert_eq!(split(mine, theirs), Split { vcpu: mine, nq: theirs });
        let even = proportional(total, 0.0, 0.0);
        prop_assert!(even.vcpu.abs_diff(even.nq) <= 1);
        prop_assert_eq!(split(0, had), even);
        prop_assert_eq!(split(had, 0), even);
    }

    /// P on averages: all cores, no group below its peak where both peaks fit, within the dead band of the paper's share otherwise, and at
    /// rest once there.
    #[test]
    fn steady_performance_is_algorithm_1_at_rest((total, vcpu, nq) in asks(), above in (1.0..3.0_f64, 1.0..3.0_f64)) {
        let peak = (more(vcpu, vcpu.busy * (above.0 - 1.0)), more(nq, nq.busy * (above.1 - 1.0)));
        let (Ok(split) | Err(split)) = steady_performance(total, (vcpu, nq), peak);
        prop_assert_eq!(split.sum(), total);
        prop_assert!(split.vcpu >= 1 && split.nq >= 1);
        let (least, most) = (peak.0.bare(), total.saturating_sub(peak.1.bare()));
        if least <= most {
            prop_assert!((least..=most).contains(&split.vcpu));
        }
        let required = vcpu.required() + nq.required();
        if required >= QUIET {
            let exact = (f64::from(total) * vcpu.required() / required).clamp(1.0, f64::from(total - 1));
            let free = (f64::from(split.vcpu) - exact).abs() <= 0.5 + DEADBAND + 1e-9;
            let bound = least <= most && (split.vcpu == least || split.vcpu == most);
            // Two groups that are used up tell nothing of what they want.
            let full = |ask: Ask| ask.busy >= 0.98 * f64::from(ask.previous);
            let kept = full(vcpu) && full(nq) && split.vcpu == vcpu.previous;
            prop_assert!(free || bound || kept, "{:?} for a share of {}", split, exact);
        }
        let at = |ask: Ask, previous| Ask { previous, ..ask };
        let again = |ask: (Ask, Ask)| (at(ask.0, split.vcpu), at(ask.1, split.nq));
        let (Ok(next) | Err(next)) = steady_performance(total, again((vcpu, nq)), again(peak));
        prop_assert_eq!(next, split);
    }

    /// However the thresholds differ, an overload that uses up both groups moves no core between them.
    #[test]
    fn an_overload_of_both_groups_moves_nothing((total, vcpu, nq) in asks(), split in 0.0..1.0_f64) {
        let mine = whole((split * f64::from(total)).round()).clamp(1, total - 1);
        let full = |ask: Ask, cores: u32| Ask { busy: f64::from(cores), previous: cores, ..ask };
        let both = (full(vcpu, mine), full(nq, total - mine));
        // What is used up asks for more than there is, whatever it had at its peak.
        prop_assume!(both.0.bare() + both.1.bare() > total);
        let (Ok(next) | Err(next)) = steady_performance(total, both, both);
        prop_assert_eq!(next.vcpu, mine);
    }

    /// Algorithm 2 line by line, where it does not do what the module's head says is changed.
    #[test]
    fn energy_equals_algorithm_2((total, vcpu, nq) in asks(), margin in 1.0..1.5_f64) {
        let req = |ask: Ask| (ask.busy / ask.threshold).ceil();
        prop_assume!([vcpu, nq].iter().all(|a| req(*a) >= 1.0 && (a.required().fract() - 0.5).abs() < 0.49));
        let (req_vcpu, req_nq) = (req(vcpu), req(nq));
        let split = energy(total, vcpu, nq, margin).next;
        if req_vcpu + req_nq > f64::from(total) {
            let exact = f64::from(total) * req_vcpu / (req_vcpu + req_nq);
            prop_assume!((exact.fract() - 0.5).abs() > 1e-6 && exact >= 0.5 && f64::from(total) - exact >= 0.5);
            prop_assert_eq!(split.vcpu, whole(exact.round()));
            prop_assert_eq!(split.nq, whole((f64::from(total) * req_nq / (req_vcpu + req_nq)).round()));
        } else {
            let next = |ask: Ask| {
                if f64::from(ask.previous) > req(ask) {
                    (margin * ask.busy / ask.threshold - 1e-9).ceil()
                } else {
                    req(ask)
                }
            };
            let fits = next(vcpu) + next(nq) <= f64::from(total);
            let shrinks = [vcpu, nq].iter().all(|a| next(*a) <= f64::from(a.previous).max(req(*a)));
            if fits && shrinks {
                prop_assert_eq!((split.vcpu, split.nq), (whole(next(vcpu)), whole(next(nq))));
            }
        }
    }

    #[test]
    fn energy_never_exceeds_total((total, vcpu, nq) in asks(), margin in 1.0..1.5_f64) {
        let Energy { next, bare, contended, .. } = energy(total, vcpu, nq, margin);
        prop_assert!(next.sum() <= total && next.vcpu >= 1 && next.nq >= 1);
        if !contended {
            prop_assert!(next.vcpu >= bare.vcpu && next.nq >= bare.nq);
        }
    }

    #[test]
    fn a_shrinking_group_never_grows((total, vcpu, nq) in asks(), margin in 1.0..3.0_f64) {
        let energy = energy(total, vcpu, nq, margin);
        for (ask, bare, next) in [
            (vcpu, energy.bare.vcpu, energy.next.vcpu),
            (nq, energy.bare.nq, energy.next.nq),
        ] {
            if !energy.contended && bare <= ask.previous {
                prop_assert!(next <= ask.previous);
            }
        }
    }

    #[test]
    fn monotone_in_demand((total, vcpu, nq) in asks(), extra in 0.0..50.0_f64, margin in 1.0..1.5_f64) {
        let busier = more(vcpu, extra);
        prop_assert!(busier.required() >= vcpu.required() && busier.bare() >= vcpu.bare());
        prop_assert!(busier.with_margin(margin) >= vcpu.with_margin(margin));
        let (before, after) = (energy(total, vcpu, nq, margin), energy(total, busier, nq, margin));
        prop_assert!(after.next.vcpu >= before.next.vcpu, "{:?} {:?}", before, after);
        let before = proportional(total, vcpu.required(), nq.required());
        let after = proportional(total, busier.required(), nq.required());
        prop_assert!(after.vcpu >= before.vcpu && after.nq <= before.nq);
        let busier = more(nq, extra);
        let (before, after) = (energy(total, vcpu, nq, margin), energy(total, vcpu, busier, margin));
        prop_assert!(after.next.nq >= before.next.nq, "{:?} {:?}", before, after);
    }

    /// Deciding again on the same measurement moves nothing, from the second time on.
    #[test]
    fn energy_settles_at_once((total, vcpu, nq) in asks(), margin in 1.0..1.5_f64) {
        let again = |split: Split| {
            let with = |ask: Ask, previous| Ask { previous, ..ask };
            energy(total, with(vcpu, split.vcpu), with(nq, split.nq), margin).next
        };
        let first = energy(total, vcpu, nq, margin).next;
        prop_assert_eq!(again(first), first);
    }
}

/// A host, and a sequence of splits that fit it.
fn moves() -> impl Strategy<Value = (Topology, Vec<Split>, Vec<NodeId>)> {
    topology().prop_flat_map(|topology| {
        let facts = host(&topology);
        let total = Cores::new(&facts, &topology.online()).total();
        let split = (0..=total, 0..=total).prop_map(move |(vcpu, nq)| Split {
            vcpu,
            nq: nq.min(total - vcpu),
        });
        let near = vec((0..3_u32).prop_map(NodeId), 0..2);
        (Just(topology), vec(split, 1..8), near)
    })
}

fn host(topology: &Topology) -> Facts {
    Facts {
        topology: topology.clone(),
        ..Facts::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn assignment_keeps_all_it_can((topology, splits, near) in moves()) {
        let available = topology.online();
        let cores = Cores::new(&host(&topology), &available);
        let mut before: Option<Groups> = None;
        for split in splits {
            let assignment = cores.assign(before.as_ref(), split, &near);
            let groups = Groups {
                vcpu: assignment.vcpu.iter().copied().collect(),
                nq: assignment.nq.iter().copied().collect(),
                ..Groups::default()
            };
            prop_assert!(groups.vcpu.is_disjoint(&groups.nq));
            prop_assert_eq!((cores.within(&groups.vcpu), cores.within(&groups.nq)), (split.vcpu, split.nq));
            if let Some(before) = before {
                let kept = |a: &CpuSet, b: &CpuSet| cores.within(&a.intersection(b));
                let had = |set: &CpuSet| cores.within(set);
                prop_assert_eq!(kept(&before.vcpu, &groups.vcpu), had(&before.vcpu).min(split.vcpu));
                prop_assert_eq!(kept(&before.nq, &groups.nq), had(&before.nq).min(split.nq));
            }
            // The order is a function of the sets: the same split again gives the same queue the same core.
            prop_assert_eq!(&cores.assign(Some(&groups), split, &near), &assignment);
            before = Some(groups);
        }
    }

    #[test]
    fn smt_siblings_stay_together((topology, splits, near) in moves()) {
        let cores = Cores::new(&host(&topology), &topology.online());
        prop_assume!(cores.are_whole());
        for split in splits {
            let assignment = cores.assign(None, split, &near);
            let vcpu: CpuSet = assignment.vcpu.iter().copied().collect();
            let nq: CpuSet = assignment.nq.iter().copied().collect();
            for cpu in &topology.cpus {
                let siblings = topology.siblings(cpu.id);
                for group in [vcpu, nq] {
                    prop_assert!(siblings.is_subset(&group) || siblings.is_disjoint(&group));
                }
            }
        }
    }

    #[test]
    fn queues_take_near_cores_first((topology, splits, near) in moves()) {
        let cores = Cores::new(&host(&topology), &topology.online());
        for split in splits {
            let nq = cores.assign(None, split, &near).nq;
            let is_near: Vec<bool> = nq
                .iter()
                .map(|cpu| near.contains(&topology.cpus.iter().find(|c| c.id == *cpu).unwrap().node))
                .collect();
            prop_assert!(is_near.windows(2).all(|pair| pair[0] || !pair[1]));
        }
    }

    #[test]
    fn a_group_is_busy_for_its_cores_at_most(
        topology in topology(),
        busy in vec(0..=200_u64, 36),
    ) {
        let cores = Cores::new(&host(&topology), &topology.online());
        let usage: Vec<CpuUsage> = topology
            .cpus
            .iter()
            .zip(busy)
            .map(|(cpu, ms)| CpuUsage { cpu: cpu.id, busy: Nanos::from_millis(ms), irq: Nanos::ZERO, softirq: Nanos::ZERO, yielding: None })
            .collect();
        let busy = cores.busy(&topology.online(), &Usage::new(&usage, Nanos::from_millis(100)));
        prop_assert!(busy <= f64::from(cores.total()) + 1e-9);
    }
}

#[test]
fn a_growing_group_takes_what_is_idle_first() {
    let facts = host(&Topology {
        cpus: (0..8)
            .map(|id| ostler_model::Cpu {
                id: ostler_model::CpuId(id),
                node: NodeId(0),
                core: ostler_model::CpuId(id),
                cache_group: ostler_model::CpuId(0),
            })
            .collect(),
    });
    let cores = Cores::new(&facts, &facts.topology.online());
    let before = cores.assign(None, Split { vcpu: 4, nq: 1 }, &[]);
    let groups = Groups {
        vcpu: before.vcpu.iter().copied().collect(),
        nq: before.nq.iter().copied().collect(),
        ..Groups::default()
    };
    assert_eq!(
        (groups.vcpu, groups.nq),
        ("0-3".parse().unwrap(), "7".parse().unwrap())
    );
    let after = cores.assign(Some(&groups), Split { vcpu: 2, nq: 3 }, &[]);
    let nq: CpuSet = after.nq.into_iter().collect();
    assert_eq!(nq, "5-7".parse().unwrap());
}

#[test]
fn siblings_stay_together_even_where_firmware_tells_them_apart() {
    let cpu = |id: u32, core: u32, cache_group: u32| ostler_model::Cpu {
        id: ostler_model::CpuId(id),
        node: NodeId(0),
        core: ostler_model::CpuId(core),
        cache_group: ostler_model::CpuId(cache_group),
    };
    let facts = host(&Topology {
        cpus: vec![cpu(0, 0, 0), cpu(1, 1, 0), cpu(2, 0, 2), cpu(3, 1, 2)],
    });
    let cores = Cores::new(&facts, &facts.topology.online());
    assert_eq!((cores.total(), cores.cpu_count()), (2, 4));
    let assignment = cores.assign(None, Split { vcpu: 1, nq: 1 }, &[]);
    let nq: CpuSet = assignment.nq.into_iter().collect();
    assert_eq!(nq, "1,3".parse().unwrap());
}
