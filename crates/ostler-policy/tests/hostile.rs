//! What holds of every plan when what is seen can't be: clocks that hardly move or go back, counters and agents that say anything, figures that are none.

use ostler_check::check;
use ostler_model::testing::{World, layered};
use ostler_model::{AgentState, Nanos, Plan, Snapshot, State};
use ostler_policy::Decider;
use proptest::prelude::*;
use proptest::sample::select;

/// What is wrong with a snapshot.
#[derive(Clone, Debug)]
struct Mess {
    /// So long after the snapshot before, or ever.
    at: Nanos,
    interval: Nanos,
    /// How late the decision is.
    late: Nanos,
    /// What every thread ran, every response took.
    ran: Option<u64>,
    /// What every figure is.
    figure: Option<f64>,
    /// What agents say.
    agents: Option<u32>,
}

fn nanos() -> impl Strategy<Value = u64> {
    prop_oneof![
        select(vec![0, 1, 50_000_000, 100_000_000, 1 << 40, 1 << 53]),
        0..2_000_000_000_u64,
    ]
}

fn mess() -> impl Strategy<Value = Mess> {
    let figure = select(vec![
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -1.0,
        0.0,
        1e-300,
        1e300,
    ]);
    (
        nanos(),
        nanos(),
        nanos(),
        proptest::option::of(nanos()),
        proptest::option::of(figure),
        proptest::option::of(select(vec![0, 1, 2, 1023, u32::MAX])),
    )
        .prop_map(|(at, interval, late, ran, figure, agents)| Mess {
            at: Nanos(at),
            interval: Nanos(interval),
            late: Nanos(late),
            ran,
            figure,
            agents,
        })
}

fn spoil(snapshot: &mut Snapshot, mess: &Mess) {
    snapshot.interval = mess.interval;
    for guest in &mut snapshot.guests {
        if let Some(ran) = mess.ran {
            let vcpus = guest.vcpus.iter_mut().map(|vcpu| &mut vcpu.usage);
            let workers = guest.vhost.iter_mut().map(|worker| &mut worker.usage);
            for usage in vcpus.chain(workers) {
                (usage.run, usage.wait) = (Nanos(ran), Nanos(ran));
            }
            if let Some(latency) = &mut guest.latency {
                (latency.p50, latency.p95, latency.p99) = (Nanos(ran), Nanos(ran), Nanos(ran));
                latency.responses = ran;
            }
        }
        if let (Some(said), Some(agent)) = (mess.agents, &mut guest.agent) {
            agent.state = Some(AgentState {
                vcpus_online: vec![said; 3],
                vcpus_active: vec![said, 0, 0],
                queues: said,
                queues_max: said,
            });
        }
    }
    if let Some(ran) = mess.ran {
        for cpu in &mut snapshot.cpus {
            (cpu.busy, cpu.irq, cpu.softirq) = (Nanos(ran), Nanos(ran), Nanos(ran));
            cpu.yielding = Some(Nanos(ran));
        }
    }
    if let Some(figure) = mess.figure {
        for socket in &mut snapshot.sockets {
            (socket.l3_hit, socket.cycle_loss, socket.ipc) = (figure, figure, figure);
        }
        for flow in &mut snapshot.flows {
            flow.packets_per_s = figure;
            for hop in &mut flow.hops {
                hop.packets_per_s = Some(figure);
            }
        }
        for files in &mut snapshot.files {
            files.arrivals_per_s = figure;
        }
        for memory in &mut snapshot.memory {
            memory.llc_misses_per_s = Some(figure);
            memory.io_interrupts_per_s = Some(figure);
        }
    }
}

/// Decides for spoilt snapshots, one after the other in time or not, and what the checker says of each plan.
fn wrong(world: &World, messes: &[Mess], ordered: bool) -> Vec<String> {
    let mut decider = Decider::default();
    let (mut state, mut previous) = (State::default(), None::<Plan>);
    let mut wrong = Vec::new();
    for (snapshot, mess) in world.snapshots.iter().zip(messes) {
        let mut snapshot = snapshot.clone();
        spoil(&mut snapshot, mess);
        let before = previous.as_ref().map_or(Nanos::ZERO, |plan| plan.at);
        snapshot.at = if ordered {
            Nanos(before.0 + mess.at.0.max(1))
        } else {
            mess.at
        };
        let now = snapshot.at.saturating_add(mess.late);
        let (facts, intent) = (&world.facts, &world.intent);
        let decision = decider.decide(facts, &snapshot, intent, &state, now, &mut || 7);
        let violations = check(facts, &snapshot, intent, previous.as_ref(), &decision.plan);
        wrong.extend(violations.iter().map(|violation| format!("{violation:?}")));
        // What a record couldn't hold couldn't be replayed.
        let text = serde_json::to_string(&decision.state).unwrap();
        match serde_json::from_str::<State>(&text) {
            Ok(read) if read == decision.state => {}
            Ok(_) => wrong.push("the state is read as another one".to_owned()),
            Err(error) => wrong.push(format!("the state can't be read: {error}")),
        }
        (state, previous) = (decision.state, Some(decision.plan));
    }
    wrong
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_plan_is_wrong_whatever_is_seen(
        world in layered(6),
        messes in proptest::collection::vec(mess(), 6),
    ) {
        let wrong = wrong(&world, &messes, true);
        prop_assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// Sensing's clock is monotonic. If it weren't, sections of the future would be refused, and nothing worse.
    #[test]
    fn nothing_breaks_where_the_clock_goes_back(
        world in layered(6),
        messes in proptest::collection::vec(mess(), 6),
    ) {
        wrong(&world, &messes, false);
    }
}
