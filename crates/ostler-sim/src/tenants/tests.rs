mod clients;
mod held;
mod locks;
mod sent;
mod shared;
mod sockets;
mod ticks;
mod timers;

use ostler_model::{CpuSet, Nanos, Ring};
use proptest::prelude::*;

use super::driver::Driver;
use super::*;
use crate::guest::spec::{Placement, Sharing, Time, Workload};
use crate::load::{Arrivals, PACKETS, Step};
use crate::net::Stage;
use crate::work::{Effect, Interrupt};

/// Everything is free but what a test is about.
fn free() -> Costs {
    Costs {
        wire: Nanos(0),
        end: crate::load::end::EndCosts::default(),
        hardirq: Nanos(0),
        poll: Nanos(0),
        sent: Nanos(0),
        softirq: Nanos(0),
        tap_wake: Nanos(0),
        steer: Nanos(0),
        nic_far: Nanos(0),
        vhost_rx: Nanos(0),
        vhost_tx: Nanos(0),
        vhost_take: Nanos(0),
        vhost_sent: Nanos(0),
        vhost_flush: Nanos(0),
        vhost_done: Nanos(0),
        vhost_tell: Nanos(0),
        vhost_tell_wakes: Nanos(0),
        handoff: [Nanos(0); 4],
        exit: Nanos(0),
        vcpu_wake: Nanos(0),
        vcpu_sleep: Nanos(0),
        vhost_sleep: Nanos(0),
        answered: Nanos(0),
        rest: Nanos(0),
        guest_tick: Nanos(0),
        delayed_ack: Nanos(0),
        agent: Nanos(0),
        agent_asked: Nanos(0),
        serving_stay: Nanos(0),
        set_timer: Nanos(0),
        upkeep: Nanos(0),
        kick: Nanos(0),
        interrupt: Nanos(0),
        tick: Nanos(0),
        ipi: Nanos(0),
        lock_spin: Nanos(0),
        guest_rx: Nanos(0),
        timer_slack: Nanos(0),
        balances: Nanos(0),
        guest_tx: Nanos(0),
        request: Nanos(0),
        nginx: Nanos(0),
        nginx_packets: PACKETS,
        choose: [Nanos(0); 4],
        line: [Nanos(0); 4],
        disk: Nanos(0),
        block: Nanos(0),
        start: Nanos(0),
        driver: crate::path::Driver::default(),
    }
}

fn guest(vcpus: u32, queues: u32, program: Program) -> GuestSpec {
    GuestSpec {
        programs: vec![program],
        ..GuestSpec::new("g", vcpus, queues, Workload::Idle, &free())
    }
}

fn serve(tasks: u32, service: Time) -> Program {
    Program::Serve {
        tasks,
        sharing: Sharing::Free,
        service,
    }
}

fn load(route: &[u32], rate: f64, seconds: f64, arrivals: Arrivals) -> LoadSpec {
    LoadSpec {
        route: route.to_vec(),
        connections: 64,
        depth: None,
        acknowledged: false,
        start: Nanos::ZERO,
        steps: vec![Step { rate, seconds }],
        arrivals,
        packets: PACKETS,
        slo: None,
    }
}

#[expect(
    clippy::large_types_passed_by_value,
    reason = "each test has costs of its own"
)]
fn world(guests: Vec<GuestSpec>, loads: Vec<LoadSpec>, costs: Costs, seed: u64) -> Driver {
    let nic = NicSpec {
        moderation: Nanos::ZERO,
        ..NicSpec::default()
    };
    world_by(nic, guests, loads, costs, seed)
}

#[expect(clippy::large_types_passed_by_value, reason = "as above")]
fn world_by(
    nic: NicSpec,
    guests: Vec<GuestSpec>,
    loads: Vec<LoadSpec>,
    costs: Costs,
    seed: u64,
) -> Driver {
    Driver::new(TenantsSpec {
        guests,
        nic,
        irq_cores: CpuSet::EMPTY,
        loads,
        costs,
        seed,
        first_thread: 0,
        tiers: None,
    })
}

/// What comes of something that interrupts a core, and does nothing else.
fn only_interrupt(out: &Effects) -> (CpuId, Interrupt) {
    let [Effect::Interrupt { cpu, interrupt }] = out.0[..] else {
        panic!("an interrupt and nothing else: {out:?}");
    };
    (cpu, interrupt)
}

fn secs(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

/// Mean response time of a lone server, us.
fn mean_us(service: Time, rate: f64, requests: f64, arrivals: Arrivals, tasks: u32) -> f64 {
    let guests = vec![guest(1, 1, serve(tasks, service))];
    let seconds = requests / rate;
    let mut world = world(
        guests,
        vec![load(&[0], rate, seconds, arrivals)],
        free(),
        11,
    );
    world.run(crate::round::nanos(seconds * 1e9 + 1e10));
    let latency = world.work.inner.clients[0].books.latency();
    latency.expect("answers").mean
}

#[test]
fn one_server_of_exponential_times_is_an_m_m_1_queue() {
    // R = S / (1 - rho).
    for (rate, rho) in [(300.0, 0.3), (700.0, 0.7)] {
        let mean = mean_us(
            Time::Exponential(Nanos::from_millis(1)),
            rate,
            150_000.0,
            Arrivals::Poisson,
            1,
        );
        let wanted = 1000.0 / (1.0 - rho);
        assert!((mean / wanted - 1.0).abs() < 0.04, "{mean} for {wanted}");
    }
}

#[test]
fn one_server_of_even_times_never_keeps_even_requests_waiting() {
    let mean = mean_us(
        Time::Fixed(Nanos::from_micros(900)),
        1000.0,
        10_000.0,
        Arrivals::Even,
        1,
    );
    assert!((mean - 900.0).abs() < 0.1, "{mean}");
}

#[test]
fn many_tasks_on_a_vcpu_are_an_m_g_1_processor_sharing_queue() {
    // R = S / (1 - rho), whatever the distribution; slices are short beside requests.
    let (short, long, often) = (50.0, 500.0, 0.1);
    let service = Time::Either(Nanos::from_millis(50), Nanos::from_millis(500), often);
    let rate = 6.0;
    let alone = service.mean() / 1e3;
    let idle = 1.0 - alone * rate / 1e6;
    let mean = mean_us(service, rate, 6000.0, Arrivals::Poisson, 200);
    let wanted = alone / idle;
    assert!((mean / wanted - 1.0).abs() < 0.08, "{mean} for {wanted}");
    // One at a time, the longer ones stand in everybody's way: R = S + rate E[S^2] / 2 / (1 - rho).
    let mean = mean_us(service, rate, 6000.0, Arrivals::Poisson, 1);
    let square_ms = short * short * (1.0 - often) + long * long * often;
    let wanted = alone + rate * square_ms / 2.0 / idle;
    assert!((mean / wanted - 1.0).abs() < 0.08, "{mean} for {wanted}");
}

#[test]
fn a_lone_request_takes_what_its_stages_cost() {
    let costs = Costs::default();
    let guests = vec![guest(1, 1, serve(1, Time::Fixed(Nanos::from_micros(28))))];
    let mut world = world(
        guests,
        vec![load(&[0], 100.0, 1.0, Arrivals::Even)],
        costs,
        1,
    );
    world.run(secs(2));
    let near = costs.handoff[3].0.max(costs.handoff[2].0);
    // Interrupt cores are on the first node with all threads here: vCPU on core 4, worker on 5, a group; the softirq's on another group.
    let node = costs.handoff[2].0;
    assert_eq!(near, 105);
    let wanted = 2 * costs.wire.0
        + costs.hardirq.0
        + costs.softirq.0
        + costs.vhost_rx.0
        + node
        + costs.interrupt.0
        + costs.guest_rx.0
        + costs.choose[0].0
        + 28_000
        + costs.guest_tx.0
        + costs.exit.0
        + costs.vhost_tx.0;
    let books = &world.work.inner.clients[0].books;
    assert_eq!((books.answered, books.all.mean()), (99, Nanos(wanted)));
}

/// What a worker and vCPUs were interrupted for under drivers of a kind: of its queues, and otherwise, which is by IPIs; and how much was answered.
fn interrupts(vcpus: u32, rate: f64, driver: crate::path::Driver) -> (u64, u64, u64) {
    let costs = Costs {
        driver,
        ..Costs::default()
    };
    let program = Program::Serve {
        tasks: vcpus,
        sharing: Sharing::Connection,
        service: Time::Fixed(Nanos::from_micros(28)),
    };
    let loads = vec![load(&[0], rate, 4.0, Arrivals::Even)];
    let mut world = world(vec![guest(vcpus, vcpus, program)], loads, costs, 1);
    world.run(secs(5));
    let tenants = &world.work.inner;
    let of_queues = tenants.workers.iter().map(|worker| worker.interrupts).sum();
    let all: u64 = tenants.guests[0]
        .vcpus
        .iter()
        .map(|vcpu| vcpu.interrupts)
        .sum();
    (
        of_queues,
        all - of_queues,
        tenants.clients[0].books.answered,
    )
}

#[test]
fn a_guest_is_interrupted_for_what_it_sent_where_its_driver_has_it_so() {
    let with = |completes| {
        let driver = crate::path::Driver {
            completes,
            ..crate::path::Driver::default()
        };
        interrupts(1, 100.0, driver)
    };
    assert_eq!(with(false), (399, 0, 399));
    assert_eq!(with(true), (798, 0, 399));
}

/// Else most packets come to a vCPU other than that of the thread that they are for, which it has to wake.
#[test]
fn packets_come_to_the_queue_on_which_a_guest_answers_where_its_tap_learns() {
    let with = |tap_learns| {
        let driver = crate::path::Driver {
            tap_learns,
            ..crate::path::Driver::default()
        };
        interrupts(4, 1000.0, driver)
    };
    let ((_, hashed, answered), (_, learned, as_many)) = (with(false), with(true));
    assert_eq!((answered, as_many), (3999, 3999));
    // Of 64 connections each is unknown once.
    assert!(hashed > 2000 && learned <= 64, "{hashed} {learned}");
}

#[test]
fn a_chain_takes_what_each_of_its_guests_does() {
    let costs = Costs::bulk();
    let forward = |id: &str| GuestSpec::new(id, 1, 1, Workload::Forward, &costs);
    let mean = |count: u32| {
        let guests = (0..count).map(|n| forward(&format!("v{n}"))).collect();
        let route: Vec<u32> = (0..count).collect();
        let mut world = world(
            guests,
            vec![load(&route, 1000.0, 1.0, Arrivals::Even)],
            costs,
            1,
        );
        world.run(secs(2));
        let books = &world.work.inner.clients[0].books;
        assert_eq!(books.answered, books.sent);
        books.all.mean().0
    };
    let (one, two, three) = (mean(1), mean(2), mean(3));
    let guest = costs.vhost_rx.0
        + costs.interrupt.0
        + costs.guest_rx.0
        + costs.guest_tx.0
        + costs.exit.0
        + costs.vhost_tx.0;
    for more in [two - one, three - two] {
        let handoffs = more - guest;
        assert!(handoffs <= 2 * costs.handoff[3].0, "{more} for {guest}");
    }
}

#[test]
fn packets_beyond_what_stages_hold_are_lost_for_their_reasons() {
    let slow = serve(1, Time::Fixed(Nanos::from_millis(10)));
    let guests = vec![guest(1, 1, slow)];
    let mut costs = free();
    costs.vhost_rx = Nanos::from_millis(1);
    let mut world = world(
        guests,
        vec![load(&[0], 5000.0, 2.0, Arrivals::Poisson)],
        costs,
        3,
    );
    world.run(secs(3));
    let (sent, answered, lost) = world.work.inner.net.totals();
    assert!(lost[crate::net::Loss::Tap as usize] > 1000, "{lost:?}");
    assert!(sent > 9000 && answered > 100);
    let softirqs = Costs {
        softirq: Nanos::from_millis(1),
        ..free()
    };
    let quick = guest(1, 1, serve(1, Time::Fixed(Nanos(1))));
    let mut world = self::world(
        vec![quick],
        vec![load(&[0], 5000.0, 2.0, Arrivals::Poisson)],
        softirqs,
        3,
    );
    world.run(secs(3));
    let (_, _, lost) = world.work.inner.net.totals();
    assert!(lost[crate::net::Loss::Ring as usize] > 1000, "{lost:?}");
}

/// Threads that wait for each other were on one vCPU, and the guest has four again. Its kernel finds none available, as nobody tells it of any, so each wakes where it
/// ran. vCPUs that are idle take what waits there all the same.
#[test]
fn idle_vcpus_take_tasks_that_wait_on_others() {
    let rounds = |placement| {
        let program = Program::Barrier {
            tasks: 4,
            part: Time::Exponential(Nanos::from_micros(500)),
            spin: Nanos::ZERO,
        };
        let spec = GuestSpec {
            placement,
            ..guest(4, 1, program)
        };
        let mut driver = world(vec![spec], Vec::new(), free(), 5);
        let mut done = Vec::new();
        for (vcpus, until) in [(1, 1), (4, 3)] {
            driver.act(|tenants, _, out| assert!(tenants.ask_vcpus(0, vcpus, out)));
            driver.run(secs(until));
            done.push(driver.work.inner.guests[0].done);
        }
        (done[0], done[1] - done[0])
    };
    let (any, told) = (rounds(Placement::Hvm), rounds(Placement::Pvm));
    assert_eq!(told.0, any.0);
    let of_any =
        f64::from(u32::try_from(told.1).unwrap()) / f64::from(u32::try_from(any.1).unwrap());
    assert!(
        of_any > 0.97,
        "{told:?} rounds, {any:?} where any idle one is taken"
    );
}

#[test]
fn an_idle_guest_costs_nothing() {
    let guests =
        (0..2000).map(|n| GuestSpec::new(&format!("g{n}"), 2, 1, Workload::Memcached, &free()));
    let mut world = world(guests.collect(), Vec::new(), Costs::default(), 1);
    world.run(secs(3600));
    assert!((0..6000).all(|t| world.work.ran_in_all(ThreadId(t)) == Nanos::ZERO));
}

#[test]
fn interrupts_that_are_lost_cost_time_and_no_packet() {
    let guests = vec![guest(2, 2, serve(2, Time::Fixed(Nanos::from_micros(10))))];
    let mut world = world(
        guests,
        vec![load(&[0], 100.0, 20.0, Arrivals::Poisson)],
        Costs::default(),
        5,
    );
    world.work.inner.faults.nic_interrupt = 0.05;
    world.work.inner.faults.guest_interrupt = 0.05;
    world.run(secs(60));
    world.work.inner.faults.guest_interrupt = 0.0;
    let books = &world.work.inner.clients[0].books;
    assert_eq!(books.lost, 0);
    assert!(
        books.all.quantile(1000) >= Nanos::from_millis(1900),
        "the watchdog's time"
    );
    assert!(
        books.sent - books.answered <= 2,
        "what waits for a further packet"
    );
}

#[test]
fn a_guest_that_dies_takes_its_requests_along_and_no_others() {
    let program = || serve(2, Time::Exponential(Nanos::from_millis(1)));
    let loads = vec![
        load(&[0], 1900.0, 2.0, Arrivals::Poisson),
        load(&[1], 1900.0, 2.0, Arrivals::Poisson),
    ];
    let mut world = world(
        vec![guest(2, 2, program()), guest(2, 1, program())],
        loads,
        Costs::default(),
        9,
    );
    world.run(secs(1));
    world.act(|tenants, now, out| tenants.kill(0, now, out));
    world.check();
    let answered = world.work.inner.clients[0].books.answered;
    world.run(secs(30));
    let tenants = &world.work.inner;
    assert_eq!(tenants.clients[0].books.answered, answered);
    let second = &tenants.clients[1].books;
    assert_eq!((second.lost, second.sent), (0, second.answered));
    let (_, _, lost) = tenants.net.totals();
    assert!(lost[crate::net::Loss::Dead as usize] > 1000);
}

#[test]
fn agents_that_are_silent_or_lie_do_nothing() {
    let mut world = world(
        vec![guest(4, 4, serve(4, Time::Fixed(Nanos(1))))],
        Vec::new(),
        free(),
        1,
    );
    world.act(|tenants, _, out| {
        assert!(tenants.ask_vcpus(0, 2, out) && tenants.ask_queues(0, 2));
        let (_, state) = tenants.agent_says(0);
        assert_eq!(
            state.map(|s| (s.vcpus_active.len(), s.queues)),
            Some((2, 2))
        );
        for fault in [Agent::Silent, Agent::Lying] {
            tenants.faults.agents.insert(0, fault);
            assert!(!tenants.ask_vcpus(0, 4, out) && !tenants.ask_queues(0, 4));
            assert_eq!(
                (
                    tenants.guests[0].vcpus_active,
                    tenants.guests[0].queues_active
                ),
                (2, 2)
            );
        }
        let (_, state) = tenants.agent_says(0);
        assert!(
            state.is_some_and(|s| s.vcpus_online.len() > 4),
            "more than there are"
        );
    });
}

#[test]
fn littles_law_holds_of_the_task_stage_of_an_m_m_1_queue() {
    let guests = vec![guest(
        1,
        1,
        serve(1, Time::Exponential(Nanos::from_millis(1))),
    )];
    let mut world = world(
        guests,
        vec![load(&[0], 500.0, 100.0, Arrivals::Poisson)],
        free(),
        2,
    );
    world.run(secs(100));
    let messages = world.messages.lock().expect("nobody else has it");
    let service = crate::net::Place {
        stage: Stage::Service,
        at: 0,
    };
    // The server is busy for rho of the time.
    let mean = messages.mean_number(service, world.now());
    assert!((mean / 0.5 - 1.0).abs() < 0.03, "{mean}");
}

fn program() -> impl Strategy<Value = Program> {
    let us = |n: u64| Nanos::from_micros(n);
    prop_oneof![
        (0_u32..6, 0..3_usize, 1_u64..300).prop_map(move |(tasks, sharing, time)| Program::Serve {
            tasks: tasks.max(1),
            sharing: [Sharing::Connection, Sharing::Free, Sharing::Kernel][sharing],
            service: Time::Exponential(us(time)),
        }),
        (1_u32..5, 1_u64..500).prop_map(move |(tasks, round)| Program::Compute {
            tasks,
            round: us(round),
        }),
        (1_u32..6, 1_u64..300, 0_u64..4).prop_map(move |(tasks, part, spin)| Program::Barrier {
            tasks,
            part: Time::Exponential(us(part)),
            spin: [Nanos(0), us(5), us(500), Nanos(u64::MAX)][spin as usize],
        }),
        (1_u32..6, 1_u32..3, 0_u64..4, any::<bool>()).prop_map(
            move |(tasks, locks, spin, declared)| {
                Program::Lock {
                    tasks,
                    locks,
                    think: Time::Exponential(us(40)),
                    hold: Time::Exponential(us(20)),
                    lines: 4,
                    spin: [Nanos(0), us(5), us(500), Nanos(u64::MAX)][spin as usize],
                    declared,
                }
            }
        ),
        (1_u32..4).prop_map(|tasks| Program::Disk { tasks }),
        (0_u64..300, 0_u32..2000).prop_map(move |(work, keys)| Program::Upkeep {
            work: us(work),
            keys,
        }),
        (1_u32..20, 1_u64..40).prop_map(move |(tasks, files)| Program::Files {
            tasks,
            files,
            size: ostler_model::Bytes(10),
            memory: ostler_model::Bytes(100),
            service: Time::Exponential(us(200)),
            disk: us(700),
        }),
    ]
}

fn guests() -> impl Strategy<Value = Vec<GuestSpec>> {
    let one = (
        1_u32..5,
        1_u32..5,
        proptest::collection::vec(program(), 1..3),
        0..4_usize,
        0_u64..2,
    );
    let one = one.prop_map(|(vcpus, queues, programs, placement, poll)| GuestSpec {
        programs,
        placement: [
            Placement::Hvm,
            Placement::Pvm,
            Placement::Pload,
            Placement::CgSched,
        ][placement],
        halt_poll: Nanos::from_micros(poll * 50),
        ..GuestSpec::new("g", vcpus, queues, Workload::Idle, &free())
    });
    proptest::collection::vec(one, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever guests do, whoever has the cores, whatever is asked of them meanwhile and whatever goes wrong: the books are right.
    #[test]
    fn books_are_right_in_every_world(
        guests in guests(),
        rate in 0.0_f64..20_000.0,
        chain in 1_usize..4,
        depth in proptest::option::of(1_u32..4),
        harassed in proptest::option::of(1_u64..3000),
        lost in 0..2_u32,
        emulated: bool,
        deeds in proptest::collection::vec((0..7_u32, 0_u32..8, 0_u32..8), 0..12),
        seed in any::<u64>(),
    ) {
        let serving: Vec<u32> = (0..)
            .zip(&guests)
            .filter(|(_, guest)| guest.programs.iter().any(Program::serves))
            .map(|(number, _)| number)
            .collect();
        let count = guests.len() as u32;
        let loads = if serving.is_empty() {
            Vec::new()
        } else {
            let route: Vec<u32> = serving.iter().copied().cycle().take(chain).collect();
            let mut first = load(&route, rate, 0.1, Arrivals::Poisson);
            first.depth = depth;
            first.acknowledged = true;
            vec![first, load(&serving[..1], rate / 2.0, 0.1, Arrivals::Etc)]
        };
        let costs = Costs::default();
        let costs = if emulated { costs.on(1.0) } else { costs };
        let nic = NicSpec {
            moderation: Nanos::ZERO,
            sends: emulated,
            ..NicSpec::default()
        };
        let mut world = world_by(nic, guests, loads, costs, seed);
        if let Some(time) = harassed {
            world.harass(Nanos::from_micros(time));
        }
        world.work.inner.faults.nic_interrupt = 0.01 * f64::from(lost);
        world.work.inner.faults.guest_interrupt = 0.01 * f64::from(lost);
        let steps = deeds.len() as u64 + 1;
        for (number, (kind, a, b)) in (1..).zip(deeds) {
            world.run(Nanos(120_000_000 * number / steps));
            let g = a % count;
            world.act(|tenants, now, out| match kind {
                0 => tenants.set_nic_queues(b),
                1 => tenants.set_irq([Ring::Receive, Ring::Transmit][a as usize % 2], 0, CpuId(b % 4)),
                2 => tenants.set_rps(0, (0..b % 3).map(CpuId)),
                3 => drop(tenants.ask_queues(g, b)),
                4 => drop(tenants.ask_vcpus(g, b, out)),
                5 => tenants.rest(g, b % 2 == 0, out),
                _ if b == 0 => tenants.kill(g, now, out),
                _ => tenants.set_files(g, ostler_model::Bytes(u64::from(b) * 20)),
            });
            world.check();
        }
        world.run(Nanos(120_000_000));
    }
}
