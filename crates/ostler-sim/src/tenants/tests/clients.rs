//! Clients of so many connections.

use super::*;

fn bounded(connections: u32, depth: u32, rate: f64, seconds: f64) -> LoadSpec {
    LoadSpec {
        connections,
        depth: Some(depth),
        ..load(&[0], rate, seconds, Arrivals::Poisson)
    }
}

fn one(load: &LoadSpec, service: Nanos) -> Driver {
    let guests = vec![guest(1, 1, serve(1, Time::Fixed(service)))];
    let mut world = world(guests, vec![load.clone()], Costs::default(), 3);
    let steps = [Step {
        rate: load.steps[0].rate,
        seconds: load.steps[0].seconds,
    }];
    let record = Record::new(Nanos::ZERO, &steps, None);
    world.work.inner.keep(record, &[0]);
    world
}

/// What was due, sent, answered in time, and not, by second.
fn windows(world: &mut Driver) -> Vec<[u64; 4]> {
    let lines = world.work.inner.records[0].lines("memcached", 1, 1, 1);
    let windows = lines.into_iter().filter_map(|line| match line {
        ostler_load::lines::Line::Window(window) => Some(window.figures),
        _ => None,
    });
    windows
        .map(|figures| {
            [
                figures.due,
                figures.sent,
                figures.completed,
                figures.timeouts,
            ]
        })
        .collect()
}

#[test]
fn no_more_requests_are_on_their_way_than_connections_have_room_for() {
    // Twice of what the server can.
    let load = bounded(4, 2, 2000.0, 4.0);
    let mut world = one(&load, Nanos::from_millis(1));
    for ms in 1..4000 {
        world.run(Nanos::from_millis(ms));
        let on_their_way = world.work.inner.net.in_flight().count();
        assert!(on_their_way <= 8, "{on_their_way} at {ms} ms");
        if ms > 100 {
            assert!(on_their_way >= 7, "{on_their_way} at {ms} ms");
        }
    }
}

#[test]
fn what_has_waited_too_long_is_never_sent_and_others_are_answered_as_fast_as_can_be() {
    let mut world = one(&bounded(4, 2, 2000.0, 4.0), Nanos::from_millis(1));
    world.run(secs(6));
    let books = &world.work.inner.clients[0].books;
    // A second after the last was due nothing is worth sending any more; until then the server never rests, and does nothing in vain but for the few on their way.
    assert!((4700..5000).contains(&books.answered), "{}", books.answered);
    assert!(books.sent - books.answered <= 8);
    let seconds = windows(&mut world);
    for [due, sent, completed, timeouts] in &seconds {
        assert_eq!(*due, completed + timeouts);
        assert!(sent - completed <= 8, "{seconds:?}");
    }
    let completed: u64 = seconds.iter().map(|second| second[2]).sum();
    assert!(completed >= 4650, "{seconds:?}");
    assert!(seconds[3][3] > 500, "{seconds:?}");
}

#[test]
fn who_has_room_for_all_is_as_one_without_bounds() {
    let mean = |load: LoadSpec| {
        let mut world = one(&load, Nanos::from_millis(1));
        world.run(secs(42));
        let books = &world.work.inner.clients[0].books;
        assert_eq!(books.sent, books.answered);
        books.all.mean().0 as f64
    };
    let free = load(&[0], 500.0, 40.0, Arrivals::Poisson);
    let many = bounded(64, 64, 500.0, 40.0);
    let ratio = mean(free) / mean(many);
    assert!((ratio - 1.0).abs() < 0.03, "{ratio}");
}

#[test]
fn a_request_waits_with_its_client_as_long_as_it_would_wait_with_the_server() {
    // One server, one connection: where a request waits makes no difference but for the way.
    let mean = |connections| {
        let mut world = one(&bounded(connections, 1, 700.0, 40.0), Nanos::from_millis(1));
        world.run(secs(45));
        world.work.inner.clients[0].books.all.mean().0 as f64
    };
    let (few, many) = (mean(1), mean(1000));
    assert!(few > many, "it goes to and fro for each");
    assert!(few < 1.2 * many, "{few} and {many}");
}

#[test]
fn what_is_lost_on_its_way_goes_again_until_it_is_answered() {
    // More at once than any queue takes.
    let mut world = one(&bounded(64, 128, 1e6, 0.01), Nanos::from_micros(1));
    world.run(secs(60));
    let (sent, _, lost) = world.work.inner.net.totals();
    let lost: u64 = lost.iter().sum();
    assert!(lost > 100, "{lost}");
    let books = &world.work.inner.clients[0].books;
    assert_eq!((books.sent, books.lost), (books.answered, 0));
    assert_eq!(sent, books.sent + lost);
    assert!(books.all.quantile(1000) >= Nanos::from_millis(200));
}

#[test]
fn whom_nobody_answers_sends_ever_more_seldom_and_no_others() {
    let mut world = one(&bounded(4, 1, 1000.0, 20.0), Nanos::from_micros(10));
    world.run(secs(1));
    world.act(|tenants, now, out| tenants.kill(0, now, out));
    world.run(secs(25));
    let tenants = &world.work.inner;
    let books = &tenants.clients[0].books;
    assert_eq!(books.sent - books.answered, 4, "one on each connection");
    let (sent, _, _) = tenants.net.totals();
    // At 0.2 s, 0.6, 1.4, 3, 6.2, 12.6.
    assert_eq!(sent - books.sent, 4 * 6);
}
