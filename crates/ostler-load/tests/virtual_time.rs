//! The driver against servers that live in virtual time: nothing here sleeps or looks at a clock.

use std::collections::VecDeque;
use std::sync::Arc;

use ostler_load::driver::{Driver, Shape};
use ostler_load::ledger::{Limits, Window};
use ostler_load::proto::{Http, KeyMix, Keyspace, Memcached, Ping, Protocol};
use ostler_load::schedule::{Plan, SECOND_NS, Schedule, Step};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const LIMITS: Limits = Limits {
    drain_ns: 10 * SECOND_NS,
    late_ns: MS,
    slo_ns: Some(MS),
};

/// What a server does with a request that reaches it at an instant: when it answers, if ever.
type Answer<'a> = &'a dyn Fn(u64) -> Option<u64>;

/// One reply per request, in order, on each lane. Windows come with the time at which they were settled.
fn run<P: Protocol>(
    protocol: P,
    reply: &[u8],
    plan: &Plan,
    shape: Shape,
    limits: Limits,
    answer: Answer,
) -> Vec<(u64, Window)> {
    let mut driver = Driver::new(protocol, plan, shape, limits);
    let mut replies: Vec<VecDeque<u64>> = vec![VecDeque::new(); shape.lanes];
    for lane in 0..shape.lanes {
        driver.lane_opened(lane);
    }
    let mut windows = Vec::new();
    let mut now_ns = 0;
    while !driver.is_done() {
        for (lane, replies) in replies.iter_mut().enumerate() {
            while replies.front().is_some_and(|&at| at <= now_ns) {
                replies.pop_front();
                driver.received(lane, reply, now_ns).unwrap();
            }
        }
        driver.advance(now_ns);
        while let Some(lane) = driver.take_dirty() {
            let requests = driver
                .unsent(lane)
                .windows(4)
                .filter(|w| w == b"\r\n\r\n")
                .count();
            driver.wrote(lane, driver.unsent(lane).len());
            for _ in 0..requests {
                // Never answered is the same as answered after the end of time.
                let at = answer(now_ns).unwrap_or(u64::MAX);
                let after_previous = replies[lane].back().copied().unwrap_or(0);
                replies[lane].push_back(at.max(after_previous));
            }
        }
        while let Some(window) = driver.settle(now_ns) {
            windows.push((now_ns, window));
        }
        let next_reply = replies.iter().filter_map(|r| r.front()).copied().min();
        let Some(next) = driver
            .next_wake_ns(now_ns)
            .into_iter()
            .chain(next_reply)
            .min()
        else {
            break;
        };
        now_ns = next.max(now_ns + 1);
    }
    windows
}

fn run_http(plan: &Plan, shape: Shape, limits: Limits, answer: Answer) -> Vec<Window> {
    settled_http(plan, shape, limits, answer)
        .into_iter()
        .map(|(_, window)| window)
        .collect()
}

fn settled_http(plan: &Plan, shape: Shape, limits: Limits, answer: Answer) -> Vec<(u64, Window)> {
    let http = Http::new("h", "/", 1, None).unwrap();
    run(
        http,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        plan,
        shape,
        limits,
        answer,
    )
}

fn shape(lanes: usize, seed: u64) -> Shape {
    Shape {
        lanes,
        depth: 1,
        queue: 1 << 20,
        seed,
        stream: 0,
    }
}

fn plan(rate_per_s: f64, seconds: u64) -> Plan {
    Plan::new(vec![Step {
        rate_per_s,
        duration_ns: seconds * SECOND_NS,
    }])
    .unwrap()
}

#[test]
fn requests_due_in_a_stall_are_charged_for_it() {
    // The server answers in 100 us, but for two seconds from t = 3 s it does nothing at all. One closed-loop client per connection
    // would see four slow requests; the two thousand clients that were due in the stall waited too.
    let (stall_start, stall_end) = (3 * SECOND_NS, 5 * SECOND_NS);
    let answer = |now: u64| {
        let ready = now + 100_000;
        Some(if (stall_start..stall_end).contains(&ready) {
            stall_end + 100_000
        } else {
            ready
        })
    };
    let plan = plan(1_000.0, 8);
    let windows = run_http(&plan, shape(4, 11), LIMITS, &answer);
    let due_in_stall: Vec<u64> = Schedule::new(plan, 11, 0)
        .map(|a| a.intended_ns)
        .filter(|due| (stall_start..stall_end).contains(due))
        .collect();
    for (second, window) in (0_u64..).zip(&windows) {
        let expected = due_in_stall
            .iter()
            .filter(|due| *due / SECOND_NS == second)
            .count() as u64;
        assert_eq!(window.due, window.completed, "all were answered in the end");
        if expected > 0 {
            assert_eq!(window.due, expected);
            // Each waited at least from its own time to the end of the stall.
            let mut least: Vec<u64> = due_in_stall
                .iter()
                .filter(|d| *d / SECOND_NS == second)
                .map(|d| stall_end - d)
                .collect();
            least.sort_unstable();
            for percent in [10, 50, 90, 99] {
                let floor = least[least.len() * percent / 100];
                let seen = window
                    .latency_ns
                    .value_at_quantile(percent as f64 / 100.0 + 0.005);
                assert!(
                    seen as f64 >= floor as f64 * 0.995,
                    "second {second}, percentile {percent}: {seen} < {floor}"
                );
            }
            assert!(window.over_slo as f64 > 0.99 * window.due as f64);
        }
    }
    let calm = &windows[1];
    assert!(
        calm.latency_ns.value_at_quantile(0.95) < MS,
        "the stall must not colour seconds before it"
    );
    let over: u64 = windows.iter().map(|w| w.over_slo).sum();
    assert!(
        over >= due_in_stall.len() as u64 - 10,
        "{over} of {}",
        due_in_stall.len()
    );
}

#[test]
fn a_window_is_settled_as_soon_as_it_is_over_and_answered() {
    // The pause leaves nothing due that could wake the loop by chance.
    let plan = Plan::parse("100x1,0x3,100x0.5").unwrap();
    let settled = settled_http(&plan, shape(4, 1), LIMITS, &|now| Some(now + 100_000));
    for (at_ns, window) in settled {
        assert!(
            at_ns <= window.span.end_ns + MS,
            "{:?} at {at_ns}",
            window.span
        );
    }
}

#[test]
fn a_server_that_never_answers_costs_every_request_its_age() {
    let limits = Limits {
        drain_ns: SECOND_NS,
        ..LIMITS
    };
    let windows = run_http(&plan(300.0, 3), shape(2, 5), limits, &|_| None);
    for window in &windows {
        assert_eq!((window.completed, window.timeouts), (0, window.due));
        assert_eq!(window.latency_ns.len(), window.due);
        assert!(window.latency_ns.min() >= limits.drain_ns * 999 / 1000);
        assert!(window.latency_ns.max() <= (limits.drain_ns + SECOND_NS) * 1001 / 1000);
    }
    assert!(windows.iter().map(|w| w.due).sum::<u64>() > 700);
}

#[test]
fn an_overload_does_not_outlive_its_drain_time() {
    // 100 per second can be served; two seconds ask for 1000 per second. Without throwing the backlog away the calm steps after
    // them would pay for eighteen more seconds.
    let plan = Plan::parse("50x2,1000x2,50x6").unwrap();
    let busy_until = std::cell::Cell::new(0_u64);
    let answer = |now: u64| {
        busy_until.set(busy_until.get().max(now) + 10 * MS);
        Some(busy_until.get())
    };
    let limits = Limits {
        drain_ns: SECOND_NS,
        ..LIMITS
    };
    let windows = run_http(&plan, shape(8, 2), limits, &answer);
    assert!(windows[2].timeouts + windows[3].timeouts > 1_000);
    let last = windows.last().unwrap();
    assert_eq!(last.timeouts, 0);
    assert!(
        last.latency_ns.value_at_quantile(0.5) < 100 * MS,
        "{}",
        last.latency_ns.value_at_quantile(0.5)
    );
}

#[test]
fn a_full_queue_drops_but_still_charges() {
    let shape = Shape {
        queue: 10,
        ..shape(1, 3)
    };
    let limits = Limits {
        drain_ns: SECOND_NS,
        ..LIMITS
    };
    let windows = run_http(&plan(500.0, 2), shape, limits, &|_| None);
    let dropped: u64 = windows.iter().map(|w| w.dropped).sum();
    assert!(dropped > 900, "{dropped}");
    for window in &windows {
        assert_eq!(window.latency_ns.len(), window.due);
        assert!(window.latency_ns.min() >= limits.drain_ns * 999 / 1000);
    }
}

#[test]
fn a_lost_connection_fails_what_was_in_flight_and_takes_requests_again() {
    let plan = plan(1_000.0, 1);
    let http = Http::new("h", "/", 1, None).unwrap();
    let mut driver = Driver::new(
        http,
        &plan,
        Shape {
            depth: 2,
            ..shape(1, 9)
        },
        LIMITS,
    );
    driver.lane_opened(0);
    driver.advance(SECOND_NS / 2);
    assert!(driver.received(0, b"garbage\r\n", SECOND_NS / 2).is_err());
    driver.lane_closed(0, SECOND_NS / 2);
    assert!(driver.unsent(0).is_empty());
    driver.advance(SECOND_NS / 2 + 1);
    assert!(
        driver.unsent(0).is_empty(),
        "nothing is written to a closed lane"
    );
    driver.lane_opened(0);
    let mut now_ns = SECOND_NS / 2 + 2;
    let mut windows = Vec::new();
    while windows.is_empty() {
        driver.advance(now_ns);
        let requests = driver
            .unsent(0)
            .windows(4)
            .filter(|w| w == b"\r\n\r\n")
            .count();
        assert!(requests <= 2, "depth");
        driver.wrote(0, driver.unsent(0).len());
        for _ in 0..requests {
            driver
                .received(0, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", now_ns)
                .unwrap();
        }
        windows.extend(driver.settle(now_ns));
        now_ns += MS;
    }
    assert_eq!(windows[0].errors, 2);
    assert_eq!(windows[0].completed, windows[0].due - 2);
    // The failed ones are charged to the deadline, so failing fast is not fast.
    assert!(windows[0].latency_ns.max() > 9 * SECOND_NS);
}

const PING_BYTES: usize = 64;

/// What a kernel answers to a ping.
fn pong(request: &[u8]) -> [u8; PING_BYTES] {
    let mut reply: [u8; PING_BYTES] = request.try_into().unwrap();
    reply[0] = 0;
    reply
}

#[test]
fn a_lost_reply_is_charged_once_and_its_slot_is_used_again() {
    // One slot, and the reply to the first request is lost.
    let plan = plan(5.0, 4);
    let limits = Limits {
        drain_ns: SECOND_NS / 2,
        ..LIMITS
    };
    let mut driver = Driver::new(Ping, &plan, shape(1, 3), limits);
    driver.lane_opened(0);
    let (mut now_ns, mut requests, mut windows) = (0, 0, Vec::new());
    while !driver.is_done() {
        driver.advance(now_ns);
        let sent = driver.unsent(0).to_vec();
        driver.wrote(0, sent.len());
        for request in sent.chunks(PING_BYTES) {
            requests += 1;
            if requests > 1 {
                driver.received(0, &pong(request), now_ns).unwrap();
            }
        }
        while let Some(window) = driver.settle(now_ns) {
            windows.push(window);
        }
        now_ns += MS;
    }
    assert!(windows[0].timeouts >= 1 && windows[0].completed == 0);
    let answered: u64 = windows.iter().map(|w| w.completed).sum();
    assert_eq!(answered, requests - 1, "all but the lost one");
    assert!(answered >= 5, "{answered}");
    for window in &windows {
        assert_eq!(window.due, window.completed + window.timeouts);
        assert_eq!(window.latency_ns.len(), window.due);
    }
}

#[test]
fn who_answers_late_twice_or_in_another_order_is_counted_once_for_each_request() {
    let plan = plan(100.0, 1);
    let deep = Shape {
        depth: 4,
        ..shape(1, 5)
    };
    let mut driver = Driver::new(Ping, &plan, deep, LIMITS);
    driver.lane_opened(0);
    let mut now_ns = 0;
    let mut sent = Vec::new();
    while sent.len() < 4 * PING_BYTES {
        now_ns += MS;
        driver.advance(now_ns);
        sent.extend_from_slice(driver.unsent(0));
        driver.wrote(0, driver.unsent(0).len());
    }
    // The last first, each of them twice, and noise between them.
    for request in sent.chunks(PING_BYTES).rev() {
        for _ in 0..2 {
            driver.received(0, &pong(request), now_ns).unwrap();
            driver.received(0, b"noise", now_ns).unwrap();
        }
    }
    // All four slots are free again, and four more requests go out; none of those is answered.
    now_ns = 2 * SECOND_NS;
    driver.advance(now_ns);
    assert_eq!(driver.unsent(0).len(), 4 * PING_BYTES);
    let window = driver.settle(12 * SECOND_NS).unwrap();
    assert_eq!(window.completed, 4);
    assert_eq!(window.due, window.completed + window.timeouts);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a guest sends to whoever pings it, requests end in one way each, and only its own reply completes one.
    #[test]
    fn datagrams_of_any_kind_lose_no_request(
        seed: u64, depth in 1..5_usize, lanes in 1..4_usize,
        does in prop::collection::vec(0..6_u8, 1..40), noise in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let shape = Shape { lanes, depth, ..shape(1, seed) };
        let limits = Limits { drain_ns: SECOND_NS / 3, ..LIMITS };
        let mut driver = Driver::new(Ping, &plan(60.0, 3), shape, limits);
        for lane in 0..lanes {
            driver.lane_opened(lane);
        }
        let mut does = does.into_iter().cycle();
        let (mut now_ns, mut answered, mut completed) = (0, 0, 0);
        let mut late: Vec<(usize, [u8; PING_BYTES])> = Vec::new();
        while !driver.is_done() {
            driver.advance(now_ns);
            for lane in 0..lanes {
                let sent = driver.unsent(lane).to_vec();
                driver.wrote(lane, sent.len());
                for request in sent.chunks(PING_BYTES) {
                    let reply = pong(request);
                    let mut damaged = reply;
                    damaged[40] ^= 1;
                    match does.next().unwrap_or(0) {
                        0 => late.push((lane, reply)),
                        1 => driver.received(lane, &noise, now_ns).unwrap(),
                        2 => driver.received(lane, &damaged, now_ns).unwrap(),
                        3 => driver.received(lane, &reply[..20], now_ns).unwrap(),
                        4 => {}
                        _ => {
                            answered += 1;
                            driver.received(lane, &reply, now_ns).unwrap();
                            driver.received(lane, &reply, now_ns).unwrap();
                        }
                    }
                }
            }
            while let Some(window) = driver.settle(now_ns) {
                prop_assert_eq!(window.due, window.completed + window.timeouts + window.dropped);
                prop_assert_eq!(window.latency_ns.len(), window.due);
                completed += window.completed;
            }
            // So late that they have been given up.
            if now_ns > 4 * SECOND_NS {
                for (lane, reply) in late.drain(..) {
                    driver.received(lane, &reply, now_ns).unwrap();
                }
            }
            now_ns += MS;
        }
        prop_assert_eq!(completed, answered);
    }

    /// Whatever the server does, each request that was due ends in one way and has one latency.
    #[test]
    fn nothing_vanishes(
        seed: u64,
        rates in prop::collection::vec(0.0..800.0_f64, 1..4),
        lanes in 1..5_usize, depth in 1..4_usize, queue in 1..400_usize,
        service_us in 10..20_000_u64, lose_every in 1..200_u64, drain_ms in 1..1500_u64,
    ) {
        let steps = rates.iter().map(|&rate_per_s| Step { rate_per_s, duration_ns: 700 * MS }).collect();
        let plan = Plan::new(steps).unwrap();
        let count = std::cell::Cell::new(0_u64);
        let answer = |now: u64| {
            count.set(count.get() + 1);
            (count.get() % lose_every != 1 || lose_every < 50).then_some(now + service_us * 1000)
        };
        let shape = Shape { lanes, depth, queue, seed, stream: 0 };
        let limits = Limits { drain_ns: drain_ms * MS, ..LIMITS };
        let windows = run_http(&plan, shape, limits, &answer);
        prop_assert_eq!(windows.len(), plan.windows().len());
        let scheduled = Schedule::new(plan.clone(), seed, 0).count() as u64;
        prop_assert_eq!(windows.iter().map(|w| w.due).sum::<u64>(), scheduled);
        for window in &windows {
            prop_assert_eq!(window.due, window.completed + window.errors + window.timeouts + window.dropped);
            prop_assert_eq!(window.latency_ns.len(), window.due);
            prop_assert!(window.sent <= window.due);
        }
    }

    /// The same seed sends the same bytes, however fast the server is.
    #[test]
    fn requests_do_not_depend_on_the_server(seed: u64, turn_us in 50..5_000_u64) {
        let keys = Arc::new(Keyspace::new(50, 100, 1).unwrap());
        let bytes = |turn_ns: u64| {
            let mix = KeyMix { set_share: 0.0, key_skew: 0.5 };
            let memcached = Memcached::new(Arc::clone(&keys), mix).unwrap();
            let mut driver = Driver::new(memcached, &plan(400.0, 1), shape(1, seed), LIMITS);
            driver.lane_opened(0);
            let (mut now_ns, mut sent) = (0, Vec::new());
            while now_ns < 3 * SECOND_NS {
                driver.advance(now_ns);
                let unsent = driver.unsent(0).to_vec();
                driver.wrote(0, unsent.len());
                if !unsent.is_empty() {
                    driver.received(0, b"END\r\n", now_ns).unwrap();
                }
                sent.extend(unsent);
                now_ns += turn_ns;
            }
            sent
        };
        prop_assert_eq!(bytes(turn_us * 1000), bytes(40_000));
    }
}
