//! For tests, here and in other rooms: worlds that know little, and scenarios at random.
//!
//! [`scenario`] makes any scenario that a simulator takes, and shrinks it to the smallest that still fails. A test that fails over one writes
//! [`Scenario::to_toml`] to a file, and has what reproduces it.

use ostler_model::{Bytes, Class, CpuSet, Nanos};
use proptest::prelude::*;

use crate::{
    Arrivals, Barrier, Caches, Cpus, Expectation, Fault, FaultKind, Files, Fleet, FleetPlacement,
    Forward, Guest, Heat, HeatPhase, Host, Limits, Load, Lock, Node, PageTiering, Policy, Program,
    Scenario, Serve, Step, Time, TimedFault, TimedKind, Vms, Wait, Wakeups, Weights, Workload,
    World,
};

/// A world with the lab's limits that counts one figure and knows one part, of which no more than three CPUs share a cache.
#[derive(Clone, Copy, Debug)]
pub struct Emulator;

/// The same with a simulator's limits.
#[derive(Clone, Copy, Debug)]
pub struct Simulator;

fn cycle_ns(part: &str) -> Option<f64> {
    (part == "z80").then_some(250.0)
}

fn check_caches(host: &Host, caches: &Caches) -> Result<(), String> {
    match (caches.part.as_str(), host.cache_group_cores) {
        ("z80", Some(4..)) => Err("no z80 shares a cache with three others".to_owned()),
        ("z80", _) => Ok(()),
        _ => Err("there is no such part".to_owned()),
    }
}

impl World for Emulator {
    fn figures(&self) -> Vec<String> {
        vec!["core_seconds".to_owned()]
    }

    fn cycle_ns(&self, part: &str) -> Option<f64> {
        cycle_ns(part)
    }

    fn check_caches(&self, host: &Host, caches: &Caches) -> Result<(), String> {
        check_caches(host, caches)
    }

    fn limits(&self) -> Limits {
        Limits {
            simulates: false,
            cpus_max: 255,
            pnic_queues_max: 8,
            queues_max: 256,
            name_max: 11,
            guest_memory_min_mib: 160,
            host_memory_min_mib: 768,
        }
    }
}

impl World for Simulator {
    fn figures(&self) -> Vec<String> {
        vec!["core_seconds".to_owned()]
    }

    fn cycle_ns(&self, part: &str) -> Option<f64> {
        cycle_ns(part)
    }

    fn check_caches(&self, host: &Host, caches: &Caches) -> Result<(), String> {
        check_caches(host, caches)
    }

    fn limits(&self) -> Limits {
        Limits {
            simulates: true,
            cpus_max: 1024,
            pnic_queues_max: 256,
            queues_max: 64,
            name_max: 40,
            guest_memory_min_mib: 16,
            host_memory_min_mib: 64,
        }
    }
}

/// Any scenario without a fleet that [`Simulator`] takes: hosts of up to 32 CPUs, a few guests, short loads.
pub fn scenario() -> impl Strategy<Value = Scenario> {
    worlds(false)
}

/// Any scenario that [`Simulator`] takes, some of them with fleets.
pub fn scenario_or_fleet() -> impl Strategy<Value = Scenario> {
    prop_oneof![4 => worlds(false), 1 => worlds(true)]
}

fn worlds(with_fleet: bool) -> impl Strategy<Value = Scenario> {
    let guests = prop::collection::vec(guest(), 1..6);
    let loads = prop::collection::vec(load(), 0..4);
    let fleet = if with_fleet {
        fleet().prop_map(Some).boxed()
    } else {
        Just(None).boxed()
    };
    (
        host(),
        guests,
        loads,
        prop::collection::vec(policy(), 0..4),
        prop::collection::vec(fault(), 0..2),
        prop::collection::vec(timed_fault(), 0..3),
        fleet,
        (1..4_u32, 0..4_u32, "[ -~\u{e9}\n\t]{0,20}"),
    )
        .prop_map(
            |(host, guests, loads, policies, faults, timed_faults, fleet, rest)| {
                let (rounds, settle, summary) = rest;
                let mut scenario = Scenario {
                    name: "random".to_owned(),
                    summary,
                    rounds,
                    settle_s: f64::from(settle) * 0.3,
                    host,
                    guests,
                    loads,
                    policies,
                    left_out: Vec::new(),
                    expectations: Vec::new(),
                    faults,
                    timed_faults,
                    fleet,
                };
                reconcile(&mut scenario);
                scenario
            },
        )
}

/// Makes what was drawn apart fit together.
fn reconcile(scenario: &mut Scenario) {
    if let Some(fleet) = &scenario.fleet {
        scenario.guests.clear();
        scenario.loads.clear();
        for fault in &mut scenario.timed_faults {
            if let TimedKind::HostFails { host } = &mut fault.kind {
                *host %= fleet.hosts;
            }
        }
    }
    let cpus = scenario.host.cpus.count();
    for (number, guest) in scenario.guests.iter_mut().enumerate() {
        guest.name = format!("g{number}");
        guest.vcpus = guest.vcpus.min(cpus);
        guest.queues = guest.queues.min(guest.vcpus);
        guest.cpus.fill(scenario.host.under_test);
    }
    // Packets go on to the next guest but one, if that takes them; a chain ends before it is too long.
    let names: Vec<_> = scenario
        .guests
        .iter()
        .map(|g| (g.name.clone(), g.workload.answers(), g.count))
        .collect();
    for (number, guest) in scenario.guests.iter_mut().enumerate() {
        if let Some(Program::Forward(Forward { to: Some(to), .. })) = &mut guest.program {
            match names.get(number + 1) {
                Some((name, true, count)) if *count == guest.count => to.clone_from(name),
                _ => guest.program = None,
            }
        }
    }
    let guests = &scenario.guests;
    for (number, load) in scenario.loads.iter_mut().enumerate() {
        let Some(guest) = guests.get(number % guests.len().max(1)) else {
            continue;
        };
        load.guest.clone_from(&guest.name);
        for step in &mut load.steps {
            if !guest.workload.answers() {
                step.rate = 0.0;
            }
        }
    }
    scenario.loads.retain(|load| {
        let loaded = guests.iter().find(|guest| guest.name == load.guest);
        loaded.is_some_and(|guest| guest.workload.answers() || guest.workload.works())
    });
    for at in 0..scenario.guests.len() {
        let guest = &scenario.guests[at];
        let asks = |load: &Load| !load.background && load.guest == guest.name;
        let in_turn = guest.workload.works() && scenario.loads.iter().any(asks);
        scenario.guests[at].in_turn = in_turn;
    }
    reconcile_trials(scenario);
    // Room for all.
    let needs = scenario.guests.iter().map(|guest| {
        (guest.memory_mib + guest.workload.disk_mib().unwrap_or(0)) * u64::from(guest.count)
    });
    scenario.host.nodes[0].memory_mib += needs.sum::<u64>() + 64;
}

/// The same for policies, what is expected of them, and faults.
fn reconcile_trials(scenario: &mut Scenario) {
    for (number, policy) in scenario.policies.iter_mut().enumerate() {
        policy.name = format!("p{number}");
        let tier = policy
            .steward
            .as_ref()
            .is_some_and(|own| own.contains_key("tier"));
        let far = scenario.host.nodes.iter().any(|node| node.cpus.is_empty());
        // Some of those that can have it.
        policy.pages =
            (far && !tier && scenario.fleet.is_none() && number % 2 == 0).then(|| PageTiering {
                demote: 0.1,
                promote: if policy.about.len() % 2 == 0 {
                    0.0
                } else {
                    0.05
                },
                ..PageTiering::default()
            });
        policy.pnic_queues = policy
            .pnic_queues
            .map(|queues| queues.min(scenario.host.pnic_queues));
    }
    if let Some(policy) = scenario.policies.first() {
        scenario.expectations.push(Expectation {
            figure: "core_seconds".to_owned(),
            policy: policy.name.clone(),
            of: None,
            of_figure: None,
            same_slo: false,
            at_least: Some(0.125),
            at_most: None,
        });
    }
    let answers = scenario
        .guests
        .iter()
        .any(|guest| guest.workload.service().is_some());
    let classes: Vec<Class> = scenario.guests.iter().map(|guest| guest.class).collect();
    scenario.faults.retain_mut(|fault| {
        if !answers {
            fault.rate = 0;
        }
        fault
            .kind
            .needs()
            .is_none_or(|class| classes.contains(&class))
    });
    let names: Vec<String> = scenario.guests.iter().flat_map(Guest::names).collect();
    let fleet = scenario.fleet.is_some();
    let mut number = 0;
    scenario.timed_faults.retain_mut(|fault| {
        number += 1;
        match &mut fault.kind {
            TimedKind::HostFails { .. } => fleet,
            TimedKind::LostInterrupts { guest: None, .. } => true,
            TimedKind::LostInterrupts {
                guest: Some(guest), ..
            }
            | TimedKind::GuestDies { guest }
            | TimedKind::AgentLies { guest }
            | TimedKind::AgentSilent { guest } => match names.get(number % names.len().max(1)) {
                Some(name) => {
                    guest.clone_from(name);
                    true
                }
                None => false,
            },
        }
    });
}

fn host() -> impl Strategy<Value = Host> {
    (
        (1..3_u32, 2..9_u32, 1..3_u32),
        prop::bool::ANY,
        prop::option::of(0..3_u32),
        1..9_u32,
        prop::option::of(1..4_u32),
        prop::option::of((100..2000_u32, 1000..100_000_u32, 1..4096_u64)),
        (prop::bool::ANY, 1..40_u32),
    )
        .prop_map(
            |((sockets, cores, threads), split, clients, queues, group, far, (part, cost))| {
                let cpus = Cpus {
                    sockets,
                    cores,
                    threads,
                };
                let count = cpus.count();
                let all = CpuSet::range(0, count);
                let client = clients.map_or(CpuSet::EMPTY, |n| CpuSet::range(0, n.min(count - 1)));
                let near = |cpus| Node {
                    memory_mib: 512,
                    cpus,
                    latency_ns: 80,
                    bandwidth_mib_per_s: 200_000,
                };
                let mut nodes = if split && sockets == 2 {
                    let half = CpuSet::range(0, count / 2);
                    vec![near(half), near(all.difference(&half))]
                } else {
                    vec![near(all)]
                };
                nodes.extend(
                    far.map(|(latency_ns, bandwidth_mib_per_s, memory_mib)| Node {
                        memory_mib,
                        cpus: CpuSet::EMPTY,
                        latency_ns,
                        bandwidth_mib_per_s,
                    }),
                );
                Host {
                    cpus,
                    nodes,
                    under_test: all.difference(&client),
                    client,
                    pnic_queues: queues,
                    instruction_ns: f64::from(cost) * 0.25,
                    caches: part.then(|| Caches {
                        part: "z80".to_owned(),
                    }),
                    cache_group_cores: group.map(|cores| cores.min(count)),
                }
            },
        )
}

fn nanos() -> impl Strategy<Value = Nanos> {
    prop_oneof![
        (0..2_000_000_u64).prop_map(Nanos),
        (0..5000_u64).prop_map(Nanos::from_micros),
        (0..100_u64).prop_map(Nanos::from_millis),
    ]
}

/// A share of something, in thousandths: few digits are read easily.
fn share() -> impl Strategy<Value = f64> {
    (0..=1000_u32).prop_map(|thousandths| f64::from(thousandths) / 1000.0)
}

fn time() -> impl Strategy<Value = Time> {
    prop_oneof![
        nanos().prop_map(Time::Fixed),
        nanos().prop_map(|mean| Time::Exponential { mean }),
        (nanos(), 0..50_u32).prop_map(|(median, tenths)| Time::LogNormal {
            median,
            sigma: f64::from(tenths) / 10.0,
        }),
        (nanos(), nanos(), share()).prop_map(|(usual, rare, share)| Time::Either {
            usual,
            rare,
            share
        }),
    ]
}

fn wait() -> impl Strategy<Value = Wait> {
    prop_oneof![
        Just(Wait::Block),
        Just(Wait::Spin),
        nanos().prop_map(Wait::SpinFor)
    ]
}

/// A workload, and perhaps how it does its work.
fn work() -> impl Strategy<Value = (Workload, Option<Program>)> {
    let serve = (time(), prop::option::of(1..9_u32))
        .prop_map(|(time, threads)| Program::Serve(Serve { time, threads }));
    let barrier = (1..9_u32, time(), wait()).prop_map(|(threads, compute, wait)| {
        Program::Barrier(Barrier {
            threads,
            compute,
            wait,
        })
    });
    let forward = (prop::bool::ANY, prop::option::of(time())).prop_map(|(on, work)| {
        Program::Forward(Forward {
            to: on.then(String::new),
            work,
        })
    });
    let files = (
        1..500_u32,
        1..4_194_304_u64,
        share(),
        1..65_u32,
        time(),
        nanos(),
    )
        .prop_map(|(count, size, cacheable, threads, time, disk)| {
            Program::Files(Files {
                count,
                size: Bytes(size),
                cacheable,
                threads,
                time,
                disk,
            })
        });
    let lock = (
        1..9_u32,
        1..4_u32,
        time(),
        time(),
        0..64_u32,
        wait(),
        prop::bool::ANY,
    )
        .prop_map(|(threads, locks, think, hold, lines, wait, declared)| {
            Program::Lock(Lock {
                threads,
                locks: locks.min(threads),
                think,
                hold,
                lines,
                wait,
                declared,
            })
        });
    let plain = prop::sample::select(Workload::ALL.to_vec()).prop_map(|(_, w)| (w, None));
    let servers = vec![
        Workload::Memcached,
        Workload::Redis,
        Workload::Nginx,
        Workload::Echo,
        Workload::Mixed,
    ];
    prop_oneof![
        4 => plain,
        1 => (prop::sample::select(servers), serve.prop_map(Some)),
        1 => barrier.prop_map(|program| (Workload::Barrier, Some(program))),
        2 => forward.prop_map(|program| (Workload::Forward, Some(program))),
        1 => files.prop_map(|program| (Workload::Files, Some(program))),
        1 => lock.prop_map(|program| (Workload::Lock, Some(program))),
    ]
}

fn guest() -> impl Strategy<Value = Guest> {
    let class = prop::sample::select(vec![
        Class::BestEffort,
        Class::LatencyCritical,
        Class::Unmanaged,
    ]);
    let wakeups = prop::sample::select(vec![
        Wakeups::Hvm,
        Wakeups::Pvm,
        Wakeups::Pload,
        Wakeups::Cgsched,
    ]);
    (
        class,
        prop_oneof![4 => Just(1), 1 => 2..20_u32],
        (1..9_u32, 1..9_u32, 16..2048_u64),
        work(),
        1..100_000_u64,
        wakeups,
        prop_oneof![3 => Just(Nanos::ZERO), 1 => nanos()],
        (
            prop::option::weighted(0.3, heat()),
            any::<bool>(),
            prop_oneof![2 => Just(0.0), 1 => (1..=16_u32).prop_map(|n| f64::from(n) / 16.0)],
        ),
    )
        .prop_map(
            |(class, count, (vcpus, queues, memory), work, slo, wakeups, halt_poll, own)| {
                let (workload, program) = work;
                let (heat, stays, memory_waits) = own;
                let stays = stays && class == Class::LatencyCritical;
                // At least what is hot, warm and cold in the worst of phases.
                let phases = heat.iter().flat_map(|heat| &heat.phases);
                let used = phases.map(HeatPhase::used_mib).max().unwrap_or(0);
                Guest {
                    count,
                    queues,
                    program,
                    slo_p95_us: (class == Class::LatencyCritical).then_some(slo),
                    wakeups,
                    halt_poll,
                    heat,
                    // Which, the host says.
                    cpus: vec![CpuSet::EMPTY; if stays { count as usize } else { 0 }],
                    memory_waits,
                    ..Guest::new("g", class, vcpus, memory.max(used), workload)
                }
            },
        )
}

fn heat() -> impl Strategy<Value = Heat> {
    let sizes = (0..512_u64, 0..512_u64, 0..512_u64);
    (
        prop::collection::vec((sizes, 1..20_u64), 1..4),
        prop::option::of(1..20_u64),
        0..100_u32,
    )
        .prop_map(|(drawn, repeat, tenths)| {
            let mut at = Nanos::ZERO;
            let phases: Vec<_> = drawn
                .into_iter()
                .map(|((hot_mib, warm_mib, cold_mib), seconds)| {
                    let phase = HeatPhase {
                        at,
                        hot_mib,
                        warm_mib,
                        cold_mib,
                    };
                    at = at.saturating_add(Nanos::from_secs(seconds));
                    phase
                })
                .collect();
            Heat {
                mpki: f64::from(tenths) / 10.0,
                repeat: repeat.map(|seconds| at.saturating_add(Nanos::from_secs(seconds))),
                phases,
            }
        })
}

fn load() -> impl Strategy<Value = Load> {
    let arrivals = prop::sample::select(vec![Arrivals::Poisson, Arrivals::Even, Arrivals::Etc]);
    let step = (1..20_000_u32, 1..30_u32).prop_map(|(rate, tenths)| Step {
        rate: f64::from(rate),
        seconds: f64::from(tenths) / 10.0,
    });
    (
        1..64_u32,
        prop::collection::vec(step, 1..4),
        arrivals,
        prop::bool::weighted(0.3),
        prop_oneof![2 => Just(1), 1 => 2..=64_u32],
    )
        .prop_map(|(connections, steps, arrivals, background, packets)| Load {
            guest: String::new(),
            connections,
            args: Vec::new(),
            steps,
            arrivals,
            background,
            packets,
        })
}

fn policy() -> impl Strategy<Value = Policy> {
    let policies = ["performance", "energy", "resource", "time-sharing"];
    let steward = (
        prop::sample::select(policies.to_vec()),
        prop::bool::ANY,
        prop::bool::ANY,
    )
        .prop_map(|(policy, boost, tier)| {
            let table = |key: &str, value: &str| -> toml::Table {
                [(key.to_owned(), toml::Value::String(value.to_owned()))]
                    .into_iter()
                    .collect()
            };
            let mut steward = toml::Table::new();
            steward.insert("partition".to_owned(), table("policy", policy).into());
            if boost {
                steward.insert("boost".to_owned(), table("mode", "io").into());
            }
            if tier {
                let enabled = [("enabled".to_owned(), true.into())];
                steward.insert("tier".to_owned(), toml::Table::from_iter(enabled).into());
            }
            steward
        });
    (
        "[a-z ]{0,12}",
        prop::option::of(steward),
        prop::option::of(1..9_u32),
        prop::sample::select(vec![Weights::Equal, Weights::Vcpus]),
    )
        .prop_map(|(about, steward, pnic_queues, weights)| Policy {
            name: String::new(),
            about,
            steward,
            pnic_queues,
            host_scheduler: None,
            pages: None,
            weights,
        })
}

fn fault() -> impl Strategy<Value = Fault> {
    let kind = prop::sample::select(FaultKind::ALL.to_vec());
    (kind, 1..10_u32, 0..100_u32).prop_map(|((_, kind), times, rate)| Fault {
        kind,
        times,
        rate,
        programs: (kind == FaultKind::KernelTests).then(|| vec!["kernel".to_owned()]),
        steward: toml::Table::new(),
    })
}

fn timed_fault() -> impl Strategy<Value = TimedFault> {
    let guest = String::new;
    let kind = prop_oneof![
        (
            prop::bool::ANY,
            share().prop_filter("none is lost", |share| *share > 0.0)
        )
            .prop_map(move |(one, share)| {
                TimedKind::LostInterrupts {
                    guest: one.then(guest),
                    share,
                }
            }),
        Just(TimedKind::GuestDies { guest: guest() }),
        Just(TimedKind::AgentLies { guest: guest() }),
        Just(TimedKind::AgentSilent { guest: guest() }),
        (0..100_u32).prop_map(|host| TimedKind::HostFails { host }),
    ];
    (0..10_000_u64, prop::option::of(1..5_000_u64), kind).prop_map(|(at, lasts, kind)| {
        let for_good = matches!(
            kind,
            TimedKind::GuestDies { .. } | TimedKind::HostFails { .. }
        );
        TimedFault {
            at: Nanos::from_millis(at),
            lasts: lasts.filter(|_| !for_good).map(Nanos::from_millis),
            kind,
        }
    })
}

fn fleet() -> impl Strategy<Value = Fleet> {
    let placement = prop::sample::select(vec![
        FleetPlacement::FirstFit,
        FleetPlacement::BestFit,
        FleetPlacement::WorstFit,
    ]);
    let lasts = (1..7200_u64).prop_map(Nanos::from_secs);
    let vms = prop_oneof![
        (1..200_u32, lasts.clone()).prop_map(|(count, lasts)| Vms::Generated { count, lasts }),
        (prop::bool::ANY, 0..100_u64, lasts).prop_map(|(readings, from, lasts)| Vms::Trace {
            table: "vmtable.csv".to_owned(),
            readings: if readings {
                vec!["readings.csv".to_owned()]
            } else {
                Vec::new()
            },
            one_of: if readings { 7 } else { 1 },
            from: Nanos::from_secs(from),
            lasts,
        }),
    ];
    (1..20_u32, 5..60_u32, placement, vms, 1..1_000_000_u64).prop_map(
        |(hosts, tenths, placement, vms, slo_p95_us)| Fleet {
            hosts,
            oversubscription: f64::from(tenths) / 10.0,
            placement,
            vms,
            slo_p95_us,
        },
    )
}
