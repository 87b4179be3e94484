//! What requests that come together share, and packets that only acknowledge.

use super::*;

const SERVICE: Nanos = Nanos::from_micros(40);
const COPY: Nanos = Nanos::from_micros(6);
const VCPU_WAKE: Nanos = Nanos::from_micros(27);
const VHOST_WAKE: Nanos = Nanos::from_micros(8);

/// What the threads of a guest of one vCPU have run for each request, where so many come at once, every 10 ms.
fn each(together: u64) -> f64 {
    let costs = Costs {
        vhost_rx: COPY,
        vhost_tx: COPY,
        vcpu_wake: VCPU_WAKE,
        vhost_sleep: VHOST_WAKE,
        ..free()
    };
    let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
    let bursts = 50;
    let one = |nth| LoadSpec {
        start: Nanos(nth),
        ..load(&[0], 100.0, bursts as f64 / 100.0 + 0.001, Arrivals::Even)
    };
    let mut world = world(guests, (0..together).map(one).collect(), costs, 5);
    // Before the first come all that there is has come up.
    world.run(Nanos::from_millis(9));
    let ran = |world: &Driver| {
        let tenants = &world.work.inner;
        let vcpu = tenants.guests[0].vcpus[0].accounts.total();
        (vcpu.0 + tenants.workers[0].ran.0) as f64
    };
    let before = ran(&world);
    world.run(secs(2));
    world.check();
    let (_, answered, _) = world.work.inner.net.totals();
    assert_eq!(answered, together * bursts, "{together}");
    (ran(&world) - before) / answered as f64
}

#[test]
fn more_requests_at_a_time_never_cost_more_each() {
    let alone = each(1);
    // Its vCPU is woken once, its worker once for each way: or the answer comes before that sleeps.
    let work = (SERVICE.0 + 2 * COPY.0) as f64;
    let woken = (VCPU_WAKE.0 + 2 * VHOST_WAKE.0) as f64;
    assert!((alone - work - woken).abs() < 10.0, "{alone}");
    let mut before = alone;
    for together in [2, 3, 4, 8, 16, 64] {
        let now = each(together);
        assert!(now <= before, "{now} each of {together}, {before} of fewer");
        assert!(now > work, "{now} each of {together}");
        before = now;
    }
    // Answers come one after the other, slower than they are copied: each wakes the worker.
    let answer = work + VHOST_WAKE.0 as f64;
    assert!(before < answer + 0.1 * woken, "{before} each of 64");
}

/// Packets that only acknowledged, and requests, of a client of so many connections.
fn packets(connections: u32, rate: f64) -> (u64, u64) {
    let load = LoadSpec {
        connections,
        depth: Some(1),
        acknowledged: true,
        ..load(&[0], rate, 20.0, Arrivals::Even)
    };
    let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
    let costs = Costs {
        wire: Nanos::from_micros(5),
        guest_rx: COPY,
        ..free()
    };
    let mut world = world(guests, vec![load], costs, 3);
    world.run(secs(25));
    world.check();
    let tenants = &world.work.inner;
    let (sent, answered, _) = tenants.net.totals();
    let taken = tenants.net.taken();
    assert_eq!(sent, answered + taken, "all have come");
    assert_eq!(
        tenants.clients[0].books.answered, answered,
        "nobody answers an acknowledgement"
    );
    (taken, answered)
}

#[test]
fn a_connection_that_is_asked_every_fifty_milliseconds_acknowledges_by_itself_and_one_of_thirty_never_does()
 {
    // In turn, a connection of eight is asked every eighth time.
    let (taken, answered) = packets(8, 160.0);
    assert_eq!((taken, answered), (3199, 3199));
    let (taken, answered) = packets(8, 266.0);
    assert_eq!((taken, answered), (8, 5320), "but for the last of each");
    let (taken, answered) = packets(1, 1000.0);
    assert_eq!((taken, answered), (1, 19_999));
}

#[test]
fn an_acknowledgement_that_is_lost_is_not_sent_again() {
    let load = LoadSpec {
        connections: 1,
        depth: Some(1),
        acknowledged: true,
        ..load(&[0], 10.0, 1.0, Arrivals::Even)
    };
    let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
    let mut world = world(guests, vec![load], free(), 3);
    world.run(Nanos::from_millis(120));
    world.act(|tenants, now, out| tenants.kill(0, now, out));
    world.run(Nanos::from_millis(150));
    let net = &world.work.inner.net;
    let (sent, answered, lost) = net.totals();
    assert_eq!((sent, answered, net.taken()), (2, 1, 0));
    assert_eq!(lost.iter().sum::<u64>(), 1);
    world.run(secs(30));
    world.check();
    let (sent, answered, lost) = world.work.inner.net.totals();
    let lost: u64 = lost.iter().sum();
    assert_eq!((answered, lost), (1, sent - 1));
    let books = &world.work.inner.clients[0].books;
    // At 0.2 s, 0.6, 1.4, 3, 6.2, 12.6, 25.4: the one request that went on, and no acknowledgement.
    assert_eq!((books.sent, sent), (2, 3 + 7));
}

/// A guest of one vCPU that is asked three times, a millisecond after each tenth of a second.
fn thrice(costs: &Costs) -> Driver {
    let one = |nth: u64| LoadSpec {
        start: Nanos::from_millis(100 * nth),
        ..load(&[0], 1000.0, 0.0015, Arrivals::Even)
    };
    let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
    world(guests, (0..3_u64).map(one).collect(), *costs, 5)
}

/// What it takes to sleep comes after what there was to do, once for each time that it was woken, and no answer waits for it.
#[test]
fn no_answer_waits_for_its_vcpu_to_sleep() {
    let sleep = Nanos::from_millis(1);
    let costs = Costs {
        vcpu_wake: VCPU_WAKE,
        vcpu_sleep: sleep,
        ..free()
    };
    let mut world = thrice(&costs);
    let done = |world: &Driver| {
        let tenants = &world.work.inner;
        let answered: u64 = tenants.clients.iter().map(|c| c.books.answered).sum();
        (answered, tenants.guests[0].vcpus[0].accounts.exits)
    };
    for nth in 0..3_u64 {
        world.run(Nanos(nth * 100_000_000 + 1_200_000));
        assert_eq!(done(&world).0, nth + 1);
        world.run(Nanos(nth * 100_000_000 + 50_000_000));
        let each = VCPU_WAKE.0 + sleep.0;
        assert_eq!(done(&world), (nth + 1, Nanos((nth + 1) * each)));
    }
    world.check();
}

/// Nor for its worker to sleep, or for what that or its vCPU has left to do when it is sent: all is done once, after it, and takes nothing more.
#[test]
fn no_answer_waits_for_what_comes_after_it() {
    const TAKE: Nanos = Nanos::from_micros(1);
    const SENT: Nanos = Nanos::from_micros(9);
    // Of a request no more than three quarters come after its answer.
    let before = SERVICE.0 - SERVICE.0 / 4 * 3;
    let costs = Costs {
        vhost_rx: COPY,
        vhost_take: TAKE,
        vhost_tx: COPY,
        vhost_sent: SENT,
        vhost_sleep: VHOST_WAKE,
        answered: Nanos::from_millis(2),
        ..free()
    };
    let mut world = thrice(&costs);
    let answered = |world: &Driver| -> u64 {
        let clients = world.work.inner.clients.iter();
        clients.map(|client| client.books.answered).sum()
    };
    for nth in 0..3_u64 {
        let at = nth * 100_000_000 + 1_000_000 + 2 * COPY.0 + TAKE.0 + before;
        world.run(Nanos(at - 10));
        assert_eq!(answered(&world), nth);
        world.run(Nanos(at + 10));
        assert_eq!(answered(&world), nth + 1);
        world.run(Nanos(at + 50_000_000));
        let tenants = &world.work.inner;
        // The worker has slept again when it is to send the answer: it sleeps twice.
        let each = 2 * (COPY.0 + VHOST_WAKE.0) + TAKE.0 + SENT.0;
        assert_eq!(tenants.workers[0].ran, Nanos((nth + 1) * each));
        assert!(!tenants.workers[0].awake);
        let vcpu = tenants.guests[0].vcpus[0].accounts.total();
        assert_eq!(vcpu, Nanos((nth + 1) * SERVICE.0));
    }
    world.check();
}

/// What a worker sends leaves in order, once all that there is has been taken, each when what was to do for the one before is done; the guest is told once, after all of it.
#[test]
fn answers_that_come_together_leave_one_after_the_other() {
    const TAKE: Nanos = Nanos::from_micros(1);
    const SENT: Nanos = Nanos::from_micros(9);
    let costs = Costs {
        vhost_take: TAKE,
        vhost_tx: COPY,
        vhost_sent: SENT,
        driver: crate::path::Driver {
            completes: true,
            ..crate::path::Driver::default()
        },
        ..free()
    };
    for together in [1, 2, 5] {
        let guests = vec![guest(8, 1, serve(8, Time::Fixed(SERVICE)))];
        let one = |nth| LoadSpec {
            start: Nanos(1_000_000 + nth),
            ..load(&[0], 10.0, 0.15, Arrivals::Even)
        };
        let loads = (0..together).map(one).collect();
        let mut world = world(guests, loads, costs, 5);
        world.run(secs(2));
        world.check();
        let tenants = &world.work.inner;
        let clients = tenants.clients.iter();
        let mut times: Vec<f64> = clients
            .map(|client| client.books.latency().expect("an answer").mean)
            .collect();
        times.sort_by(f64::total_cmp);
        let us = |time: Nanos| time.0 as f64 / 1e3;
        for (nth, time) in times.iter().enumerate() {
            let taken = together as f64 * us(TAKE);
            let wanted = us(SERVICE) + taken + us(COPY) + nth as f64 * us(Nanos(COPY.0 + SENT.0));
            assert!((time - wanted).abs() < 0.1, "{times:?} for {wanted}");
        }
        // Each came alone, and took the shortest that anything does.
        let interrupts = tenants.workers[0].interrupts;
        assert_eq!(
            interrupts,
            together + 1,
            "one for each, and one for what was sent"
        );
        assert_eq!(
            tenants.workers[0].ran.0,
            together * (TAKE.0 + COPY.0 + SENT.0) + together
        );
    }
}

#[test]
fn a_poll_of_a_queue_costs_as_much_however_many_messages_it_finds() {
    let last = |poll: Nanos, together: u64| {
        let costs = Costs {
            poll,
            softirq: Nanos::from_micros(3),
            ..free()
        };
        let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
        let one = |_| load(&[0], 1000.0, 0.0015, Arrivals::Even);
        let mut world = world(guests, (0..together).map(one).collect(), costs, 5);
        world.run(secs(1));
        world.check();
        let clients = world.work.inner.clients.iter();
        clients
            .map(|client| client.books.all.quantile(1000).0)
            .max()
    };
    for together in [1, 2, 8] {
        let poll = Nanos::from_micros(500);
        let (with, without) = (last(poll, together), last(Nanos::ZERO, together));
        let more = with.zip(without).map(|(with, without)| with - without);
        let more = more.expect("answers") as f64;
        let off = more / poll.0 as f64 - 1.0;
        assert!(off.abs() < 0.1, "{together}: {more}");
    }
}

/// A client whose thread takes 100 us for each that it sends or reads has three requests due 60 us apart, each answered 40 us after it has left: the first is read before the third is sent, as that
/// falls due while the second is.
#[test]
fn a_client_sends_all_that_is_due_and_then_reads_all_that_has_come() {
    let costs = Costs {
        end: crate::load::end::EndCosts {
            send: Nanos::from_micros(100),
            read: Nanos::from_micros(100),
            ..crate::load::end::EndCosts::default()
        },
        ..free()
    };
    let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
    let start = Nanos::from_millis(1);
    for depth in [None, Some(1)] {
        let load = LoadSpec {
            depth,
            start,
            ..load(&[0], 1e6 / 60.0, 0.000_2, Arrivals::Even)
        };
        let mut world = world(guests.clone(), vec![load], costs, 5);
        world.run(Nanos::from_millis(10));
        let books = &world.work.inner.clients[0].books;
        assert_eq!((books.sent, books.answered), (3, 3));
        let mean = books.latency().expect("answers").mean;
        let wanted = f64::from(300 + 440 + 480) / 3.0;
        assert!((mean - wanted).abs() < 0.1, "{mean} for {wanted}");
    }
}

/// Two requests due 60 us apart, each answered 40 us after it has left: where the thread isn't on the core that receives, what interrupts it for the first that it has sent is before the second, and the first
/// answer has come by then.
#[test]
fn what_a_client_has_sent_interrupts_its_thread_where_it_does_not_receive() {
    let us = Nanos::from_micros;
    let costs = Costs {
        end: crate::load::end::EndCosts {
            send: us(100),
            told: us(50),
            ..crate::load::end::EndCosts::default()
        },
        ..free()
    };
    let mean = |seed| {
        let load = LoadSpec {
            depth: Some(1),
            start: Nanos::from_millis(1),
            ..load(&[0], 1e6 / 60.0, 0.000_13, Arrivals::Even)
        };
        let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
        let mut world = world(guests, vec![load], costs, seed);
        world.run(Nanos::from_millis(10));
        let books = &world.work.inner.clients[0].books;
        assert_eq!((books.sent, books.answered), (2, 2));
        // A core does nothing in less than a nanosecond.
        format!("{:.1}", books.latency().expect("answers").mean)
    };
    let means: std::collections::BTreeSet<String> = (1..=12).map(mean).collect();
    let of = |first, second| format!("{:.1}", f64::midpoint(first, second));
    assert_eq!(means, [of(200.0, 180.0), of(150.0, 240.0)].into());
}

/// Of requests half a service apart the second and third come while the vCPU runs. What that takes of it is in none that sleeps.
#[test]
fn an_interrupt_takes_more_of_a_vcpu_that_runs() {
    const KICK: Nanos = Nanos::from_micros(3);
    let ran = |kick, apart: Nanos| {
        let costs = Costs { kick, ..free() };
        let guests = vec![guest(1, 1, serve(1, Time::Fixed(SERVICE)))];
        let rate = 1e9 / apart.0 as f64;
        let load = LoadSpec {
            start: Nanos::from_millis(1),
            ..load(&[0], rate, 3.3 / rate, Arrivals::Even)
        };
        let mut world = world(guests, vec![load], costs, 5);
        world.run(Nanos::from_millis(10));
        let tenants = &world.work.inner;
        assert_eq!(tenants.clients[0].books.answered, 3);
        tenants.guests[0].vcpus[0].accounts.total().0
    };
    let takes = |apart| ran(KICK, apart) - ran(Nanos::ZERO, apart);
    assert_eq!(takes(Nanos(SERVICE.0 * 2)), 0);
    assert_eq!(takes(Nanos(SERVICE.0 / 2)), 2 * KICK.0);
}
