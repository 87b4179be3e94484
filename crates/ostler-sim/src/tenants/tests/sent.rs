//! Interrupts of transmit rings.

use std::collections::BTreeSet;

use super::*;
use crate::net::nic::Napi;
use crate::work::{Effect, Effects, Kind};

/// A guest of four queue pairs and vCPUs that is asked at even times, behind a NIC of four queues.
fn asked(rate: f64, nic: NicSpec, sent: Nanos) -> Driver {
    let program = Program::Serve {
        tasks: 4,
        sharing: Sharing::Connection,
        service: Time::Fixed(Nanos::from_micros(28)),
    };
    let costs = Costs {
        sent,
        driver: crate::path::Driver {
            tap_learns: true,
            ..crate::path::Driver::default()
        },
        ..Costs::default()
    };
    let nic = NicSpec { queues: 4, ..nic };
    let loads = vec![load(&[0], rate, 4.0, Arrivals::Even)];
    world_by(nic, vec![guest(4, 4, program)], loads, costs, 1)
}

fn told(world: &Driver) -> (Vec<u64>, u64) {
    let tenants = &world.work.inner;
    let senders = tenants.nic.senders.iter();
    let each = senders.map(|sender| sender.interrupts).collect();
    (each, tenants.clients[0].books.answered)
}

#[test]
fn each_answer_that_leaves_alone_has_its_rings_interrupt_where_rings_have_vectors() {
    let own = NicSpec {
        sends: true,
        ..NicSpec::default()
    };
    let mut with = asked(100.0, own, Nanos::from_micros(5));
    with.run(secs(5));
    let (each, answered) = told(&with);
    assert_eq!(each.iter().sum::<u64>(), answered);
    assert!(
        each.iter().all(|count| *count > 0),
        "by guests' queues: {each:?}"
    );
    // As many as asked for, and to those who have packets to send and no others.
    let cores: Vec<CpuId> = with
        .work
        .inner
        .workers
        .iter()
        .map(|worker| worker.cpu)
        .collect();
    let mut steered = asked(
        100.0,
        NicSpec {
            sends: true,
            ..NicSpec::default()
        },
        Nanos::from_micros(5),
    );
    let sets = [
        CpuSet::EMPTY,
        CpuSet::EMPTY,
        cores.iter().copied().collect(),
        CpuSet::EMPTY,
    ];
    steered.act(|tenants, _, _| tenants.nic.send_by(&sets));
    steered.run(secs(5));
    let (each, answered) = told(&steered);
    assert_eq!(each, [0, 0, answered, 0], "XPS");

    let mut without = asked(100.0, NicSpec::default(), Nanos::from_micros(5));
    without.run(secs(5));
    assert_eq!(told(&without), (Vec::new(), answered));
}

#[test]
fn what_leaves_while_a_ring_is_seen_to_or_within_the_moderation_time_shares_an_interrupt() {
    let count = |moderation, sent| {
        let nic = NicSpec {
            sends: true,
            moderation,
            ..NicSpec::default()
        };
        let mut world = asked(20_000.0, nic, sent);
        world.run(secs(5));
        let (each, answered) = told(&world);
        (each.iter().sum::<u64>(), answered)
    };
    let (alone, answered) = count(Nanos::ZERO, Nanos::ZERO);
    // Four rings, each at most once a millisecond for four seconds and what comes after.
    let (seldom, all) = count(Nanos::from_millis(1), Nanos::ZERO);
    assert_eq!(all, answered);
    assert!(
        seldom <= 4 * 4001 && seldom > 4 * 3900,
        "{seldom} of {alone}"
    );
    // Seen to for two milliseconds each time.
    let (long, all) = count(Nanos::ZERO, Nanos::from_millis(2));
    assert_eq!(all, answered);
    assert!(long <= 4 * 2001 && long > 4 * 1000, "{long} of {alone}");
    assert!(alone > answered / 2, "{alone} for {answered}");
}

#[test]
fn a_rings_interrupts_go_where_they_are_told() {
    let nic = NicSpec {
        sends: true,
        ..NicSpec::default()
    };
    let mut world = asked(1000.0, nic, Nanos::from_micros(5));
    world.run(secs(1));
    world.act(|tenants, _, _| {
        for queue in 0..4 {
            tenants.set_irq(Ring::Transmit, queue, CpuId(3));
            // Of none: nothing changes.
            tenants.set_irq(Ring::Transmit, queue, CpuId(1000));
        }
    });
    world.run(secs(2));
    let senders = &world.work.inner.nic.senders;
    assert!(
        senders.iter().all(|sender| sender.cpu == CpuId(3)),
        "{senders:?}"
    );
    let receive = &world.work.inner.nic.steering;
    assert!(receive.iter().any(|queue| queue.irq != CpuId(3)));
}

/// Two vCPUs in use of a guest with four queues have two each to send on.
#[test]
fn all_queues_are_sent_on_whatever_vcpus_are_in_use() {
    let senders = |spreads| {
        let mut world = asked(2000.0, NicSpec::default(), Nanos::ZERO);
        world.work.inner.costs.driver.spreads = spreads;
        world.act(|tenants, _, out| assert!(tenants.ask_vcpus(0, 2, out)));
        world.run(secs(5));
        let tenants = &world.work.inner;
        assert!(tenants.clients[0].books.answered > 7900);
        let guest = &tenants.guests[0];
        for v in 0..4 {
            let used: BTreeSet<u32> = (0..=u32::MAX)
                .step_by(1 << 20)
                .map(|hash| guest.sends_on(v, hash))
                .collect();
            let own = (0..4).filter(|queue| queue % 2 == v % 2).collect();
            assert_eq!(used, own, "of vCPU {v}");
        }
        let workers = tenants.workers.iter();
        workers.map(|worker| worker.kicks > 0).collect::<Vec<_>>()
    };
    assert_eq!(senders(true), [true; 4]);
    assert_eq!(senders(false), [true, true, false, false]);
}

/// QEMU's igb: each interrupt comes once more when its moderation time is over, whatever has come; and that one has no other.
#[test]
fn an_interrupt_has_one_echo_where_the_nic_makes_them() {
    let poll = Nanos::from_micros(7);
    let count = |echoes, rate: f64| {
        let nic = NicSpec {
            sends: true,
            moderation: Nanos::from_micros(200),
            echoes,
            ..NicSpec::default()
        };
        let mut world = asked(rate, nic, Nanos::from_micros(5));
        world.work.inner.costs.poll = poll;
        world.run(secs(5));
        let (sent, answered) = told(&world);
        let polls = world.work.inner.nic.pollers[..4].iter();
        let received: u64 = polls.map(|poller| poller.interrupts).sum();
        (received, sent.iter().sum::<u64>(), answered)
    };
    // Ten milliseconds apart nothing shares one.
    let (received, sent, answered) = count(true, 100.0);
    assert_eq!((received, sent), (2 * answered, 2 * answered));
    assert_eq!(count(false, 100.0), (answered, answered, answered));
    // What comes within the time waits for the echo: of two in turn the second is one.
    let (received, _, answered) = count(true, 20_000.0);
    let rings = 4.0 * 4.0 * 2.0 / 200e-6;
    assert!(answered > 79_000, "{answered}");
    assert!(
        (received as f64) < rings && received > 20_000,
        "{received} of {rings}"
    );
}

/// The echo keeps nothing back: what comes after it interrupts at once, and has its own.
#[test]
fn what_comes_after_an_echo_interrupts_at_once() {
    let nic = NicSpec {
        sends: true,
        moderation: Nanos::from_micros(200),
        echoes: true,
        ..NicSpec::default()
    };
    let tenants = &mut asked(100.0, nic, Nanos::ZERO).work.inner;
    // What comes of it, if anything: whether an interrupt, and when the alarm is.
    let came = |out: &mut Effects| {
        let interrupts = out
            .0
            .iter()
            .any(|of| matches!(of, Effect::Interrupt { .. }));
        let alarm = out.0.iter().find_map(|of| match of {
            Effect::Alarm { at, .. } => Some(at.0 / 1000),
            _ => None,
        });
        out.0.clear();
        (interrupts, alarm)
    };
    let mut out = Effects::default();
    let us = Nanos::from_micros;
    let seen = |tenants: &mut Tenants, at, out: &mut Effects| {
        tenants.sees_sent(0, out);
        tenants.saw_sent(0, us(at), out);
    };
    tenants.sends(CpuId(0), 0, us(0), &mut out);
    assert_eq!(came(&mut out), (true, Some(200)));
    seen(tenants, 10, &mut out);
    came(&mut out);
    tenants.sends(CpuId(0), 0, us(50), &mut out);
    assert_eq!(came(&mut out), (false, None), "within the time");
    tenants.may_say_sent(0, us(200), &mut out);
    assert_eq!(came(&mut out), (true, None), "the echo, which has none");
    seen(tenants, 210, &mut out);
    came(&mut out);
    tenants.sends(CpuId(0), 0, us(250), &mut out);
    assert_eq!(came(&mut out), (true, Some(450)));
}

#[test]
fn an_interrupt_that_finds_nothing_takes_what_it_takes_to_look() {
    let poll = Nanos::from_micros(7);
    let mut world = asked(100.0, NicSpec::default(), Nanos::ZERO);
    let tenants = &mut world.work.inner;
    tenants.costs.poll = poll;
    let mut out = Effects::default();
    tenants.begin_poll(0, Nanos::ZERO, &mut out);
    let [Effect::Interrupt { interrupt, .. }] = out.0[..] else {
        panic!("{:?}", out.0);
    };
    assert_eq!((interrupt.kind, interrupt.work), (Kind::Softirq, poll));
    // And then it is over.
    out.0.clear();
    assert_eq!(tenants.polled(0, CpuId(0), poll, &mut out), None);
    assert!(out.0.is_empty() && tenants.nic.pollers[0].napi == Napi::Idle);
}

#[test]
fn where_packets_go_up_one_by_one_workers_are_woken_at_once_and_a_poll_goes_on_until_there_is_none()
{
    let us = Nanos::from_micros;
    let echoes = NicSpec {
        moderation: us(200),
        echoes: true,
        ..NicSpec::default()
    };
    let mut world = asked(100.0, echoes, Nanos::ZERO);
    let tenants = &mut world.work.inner;
    let costs = &mut tenants.costs;
    (costs.poll, costs.softirq, costs.tap_wake) = (us(10), us(40), us(20));
    costs.vhost_sent = us(1);
    let mut out = Effects::default();
    let send = |tenants: &mut Tenants, at, out: &mut Effects| {
        let message = tenants.net.send(us(at), 0, 7, us(at), PACKETS);
        tenants.net.message_mut(message).hash = 0;
        tenants.comes_in(message, us(at), out);
    };
    let device = |out: &mut Effects| {
        let of = |effect: &Effect| match effect {
            Effect::Interrupt { interrupt, .. } => Some((interrupt.kind, interrupt.work)),
            _ => None,
        };
        let all: Vec<_> = out.0.iter().filter_map(of).collect();
        let wakes = out.0.iter().any(|e| matches!(e, Effect::Notify { .. }));
        out.0.clear();
        (all, wakes)
    };
    let hard = (Kind::Device, tenants.costs.hardirq);
    send(tenants, 0, &mut out);
    assert_eq!(device(&mut out), (vec![hard], false));
    send(tenants, 1, &mut out);
    assert_eq!(device(&mut out), (vec![], false), "within the time");
    // The first of two: its own.
    tenants.begin_poll(0, us(2), &mut out);
    assert_eq!(device(&mut out), (vec![(Kind::Softirq, us(40))], false));
    assert_eq!(
        tenants.polled(0, CpuId(0), us(42), &mut out),
        Some(us(20 + 40)),
        "the worker is woken, and there is another"
    );
    assert_eq!(device(&mut out), (vec![], true));
    let worker = tenants.workers.iter().find(|worker| !worker.tap.is_empty());
    assert_eq!(worker.expect("one has it").tap.len(), 1);
    // When the time is over the next interrupt comes, whoever polls: no second softirq, and another look.
    tenants.alarmed(0, us(100), &mut out);
    assert_eq!(device(&mut out), (vec![hard], false));
    tenants.begin_poll(0, us(101), &mut out);
    assert_eq!(device(&mut out), (vec![], false));
    let last = tenants.polled(0, CpuId(0), us(102), &mut out);
    let ends = "it looks, which takes nothing beside what comes after the last of them";
    assert_eq!(last, Some(us(10)), "{ends}");
    assert_eq!(device(&mut out), (vec![], false), "its worker is awake");
    assert_eq!(tenants.polled(0, CpuId(0), us(112), &mut out), None);
    let poller = &tenants.nic.pollers[0];
    assert_eq!((poller.napi, poller.interrupts), (Napi::Idle, 2));
    // And what comes then has one at once: the echo was the last.
    send(tenants, 120, &mut out);
    assert_eq!(device(&mut out), (vec![hard], false));
}
