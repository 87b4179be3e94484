//! Guests and their clients: what scenarios say of them, as plain values of the world's.

use std::collections::BTreeMap;

use ostler_model::{Bytes, CpuSet, GuestId, Nanos, NodeId};
use ostler_scenario::{self as scenario, Guest, Load, MPKI, Scenario, Wait, Wakeups, Workload};

use crate::costs::emulated;
use crate::guest::spec::{self, GuestSpec, Placement, Program, Time};
use crate::load::{Arrivals, LoadSpec, PACKETS, ROUTE_MAX, Step};
use crate::net::nic::NicSpec;
use crate::path::Costs;
use crate::round::whole;
use crate::tenants::{HeatPhase, MemoryUse, TenantsSpec, TiersSpec};

/// A NIC like the lab's has a vector for each ring of up to so many queues, and for more a vector for both rings of a pair (`igb_set_flag_queue_pairs` of
/// drivers/net/ethernet/intel/igb/igb_main.c: half of the eight that it has).
const SINGLE_MAX: u32 = 4;

/// Which load a cell is about, and when that begins.
#[derive(Clone, Copy, Debug)]
pub struct CellLoad {
    /// Its number in the scenario.
    pub load: usize,
    /// When it begins.
    pub start: Nanos,
    /// Whether there is a steward, who asks guests how they are.
    pub steward: bool,
    /// Draws everything.
    pub seed: u64,
}

/// What a world's tenants are made of, and who is who.
#[derive(Clone, Debug)]
pub struct TenantsOf {
    /// The tenants; the number of their first thread is for the host to say.
    pub spec: TenantsSpec,
    /// Guests of the scenario, by number there, for each of the tenants' guests.
    pub guests: Vec<usize>,
    /// The clients of the cell's own load; the others are in the background.
    pub clients: Vec<usize>,
}

/// The tenants of a cell.
pub fn tenants(scenario: &Scenario, cell: CellLoad) -> TenantsOf {
    let all = || {
        let guests = scenario.guests.iter().enumerate();
        guests.flat_map(|(at, guest)| guest.names().map(move |name| (at, name)))
    };
    let numbers: BTreeMap<String, u32> = all()
        .zip(0..)
        .map(|((_, name), number)| (name, number))
        .collect();
    let loads = || scenario.loads.iter().enumerate();
    let asked = loads().filter(|(at, load)| *at == cell.load || load.background);
    let of = |load: &Load| scenario.guests.iter().find(|g| g.name == load.guest);
    let forwards = |load: &Load| of(load).is_some_and(|g| g.workload == Workload::Forward);
    // Packets that are sent on come in bulk: interrupts and wake-ups are shared by many.
    let bulk = forwards(&scenario.loads[cell.load]);
    let instruction_ns = scenario.host.instruction_ns;
    let costs = if bulk {
        Costs::bulk().at(instruction_ns)
    } else {
        Costs::default().on(instruction_ns)
    };
    let seconds = scenario.loads[cell.load].seconds();
    let (mut specs, mut clients) = (Vec::new(), Vec::new());
    for (at, load) in asked {
        // Who answers nobody is measured by the work that it does.
        let Some(guest) = of(load).filter(|guest| guest.workload.answers()) else {
            continue;
        };
        for (place, name) in guest.names().enumerate() {
            let route = route(scenario, guest, place, &name, &numbers);
            if at == cell.load {
                clients.push(specs.len());
            }
            // In the background, one begins with the world, and goes on for as long as that does.
            let (start, steps) = if load.background && at != cell.load {
                let end = cell.start.as_secs_f64() + seconds;
                (Nanos::ZERO, again(load, end))
            } else {
                (cell.start, steps(load))
            };
            specs.push(LoadSpec {
                route,
                connections: load.connections,
                // Packets that are sent on ask nobody for an answer to wait for.
                depth: (!forwards(load)).then(|| load.depth()),
                acknowledged: over_tcp(guest.workload),
                start,
                steps,
                arrivals: match load.arrivals {
                    scenario::Arrivals::Poisson => Arrivals::Poisson,
                    scenario::Arrivals::Even => Arrivals::Even,
                    scenario::Arrivals::Etc => Arrivals::Etc,
                },
                packets: match guest.workload {
                    Workload::Nginx | Workload::Mixed => costs.nginx_packets,
                    _ => PACKETS,
                } * load.packets,
                slo: guest.slo_p95_us.map(Nanos::from_micros),
            });
        }
    }
    let keys = |guest: &Guest| {
        let asks = |load: &&Load| load.guest == guest.name;
        let own = Some(&scenario.loads[cell.load]).filter(asks);
        own.or_else(|| scenario.loads.iter().find(asks))
            .map(Load::keys)
    };
    let guests = all().map(|(at, name)| {
        let guest = &scenario.guests[at];
        let mut spec = guest_spec(guest, &name, keys(guest), &costs);
        let (work, every) = (costs.agent, costs.agent_asked);
        let asks = cell.steward && work > Nanos::ZERO;
        spec.programs
            .extend(asks.then_some(Program::Agent { work, every }));
        spec
    });
    // The lab's.
    let nic = if scenario.host.instruction_ns < emulated::FROM.value {
        NicSpec::default()
    } else {
        NicSpec {
            moderation: emulated::MODERATION.nanos(scenario.host.instruction_ns),
            echoes: true,
            sends: scenario.host.pnic_queues <= SINGLE_MAX,
            ..NicSpec::default()
        }
    };
    TenantsOf {
        spec: TenantsSpec {
            guests: guests.collect(),
            nic: NicSpec {
                queues: scenario.host.pnic_queues,
                node: first_node(scenario),
                ..nic
            },
            irq_cores: scenario.host.under_test,
            loads: specs,
            costs,
            seed: cell.seed,
            first_thread: 0,
            tiers: tiers(scenario, cell.start),
        },
        guests: all().map(|(at, _)| at).collect(),
        clients,
    }
}

/// Whether a workload's requests and answers go over connections of TCP.
fn over_tcp(workload: Workload) -> bool {
    workload.answers() && !matches!(workload, Workload::Ping | Workload::Forward)
}

/// What guests do to their memory, on a host of which some is far.
fn tiers(scenario: &Scenario, start: Nanos) -> Option<TiersSpec> {
    let mut nodes = super::nodes(&scenario.host);
    if nodes.iter().all(|node| node.local) {
        return None;
    }
    // Guests float over all cores: to them near nodes are one.
    let near = nodes.iter().filter(|node| node.local);
    let near = near
        .map(|node| node.latency_ns)
        .fold(f64::INFINITY, f64::min);
    for node in nodes.iter_mut().filter(|node| node.local) {
        node.latency_ns = near;
    }
    let uses = scenario.guests.iter().flat_map(|guest| {
        let own = memory_use(guest, scenario.host.instruction_ns);
        std::iter::repeat_n(own, guest.names().count())
    });
    Some(TiersSpec {
        nodes,
        guests: uses.collect(),
        start,
    })
}

fn memory_use(guest: &Guest, instruction_ns: f64) -> MemoryUse {
    let mpki = guest.heat.as_ref().map_or(MPKI, |heat| heat.mpki);
    let phases = guest.heat.iter().flat_map(|heat| &heat.phases);
    MemoryUse {
        bytes: guest.memory_mib << 20,
        misses_per_s: mpki / 1e3 * 1e9 / instruction_ns,
        phases: phases
            .map(|phase| HeatPhase {
                at: phase.at,
                hot: phase.hot_mib << 20,
                warm: phase.warm_mib << 20,
            })
            .collect(),
        repeat: guest.heat.as_ref().and_then(|heat| heat.repeat),
    }
}

/// The NIC is at the node of the first core under test.
fn first_node(scenario: &Scenario) -> NodeId {
    let tested: CpuSet = scenario.host.under_test;
    let nodes = scenario.host.nodes.iter();
    let at = nodes
        .map(|node| node.cpus)
        .position(|cpus| tested.first().is_some_and(|first| cpus.contains(first)));
    NodeId(u32::try_from(at.unwrap_or(0)).unwrap_or(0))
}

/// The guests that a request passes: of several alike, each sends on to its like.
fn route(
    scenario: &Scenario,
    first: &Guest,
    place: usize,
    name: &str,
    numbers: &BTreeMap<String, u32>,
) -> Vec<u32> {
    let mut route: Vec<u32> = numbers.get(name).copied().into_iter().collect();
    let mut at = first;
    while route.len() < ROUTE_MAX
        && let Some(next) = at.sends_to()
        && let Some(guest) = scenario.guests.iter().find(|guest| guest.name == next)
    {
        let names: Vec<_> = guest.names().collect();
        let number = names.get(place % names.len().max(1));
        let Some(number) = number.and_then(|name| numbers.get(name)) else {
            break;
        };
        route.push(*number);
        at = guest;
    }
    route
}

fn steps(load: &Load) -> Vec<Step> {
    let steps = load.steps.iter().map(|step| Step {
        rate: step.rate,
        seconds: step.seconds,
    });
    steps.collect()
}

/// The steps again and again, until so many seconds are full.
fn again(load: &Load, seconds: f64) -> Vec<Step> {
    let once = steps(load);
    let mut all = Vec::new();
    let mut left = seconds;
    if load.seconds() <= 0.0 {
        return all;
    }
    for step in once.iter().cycle() {
        if left <= 0.0 {
            break;
        }
        let seconds = step.seconds.min(left);
        left -= seconds;
        all.push(Step {
            rate: step.rate,
            seconds,
        });
    }
    all
}

fn guest_spec(guest: &Guest, name: &str, keys: Option<u32>, costs: &Costs) -> GuestSpec {
    GuestSpec {
        programs: programs(guest, keys, costs),
        placement: match guest.wakeups {
            Wakeups::Hvm => Placement::Hvm,
            Wakeups::Pvm => Placement::Pvm,
            Wakeups::Pload => Placement::Pload,
            Wakeups::Cgsched => Placement::CgSched,
        },
        halt_poll: guest.halt_poll,
        memory_waits: guest.memory_waits,
        id: GuestId::from(name),
        vcpus: guest.vcpus,
        queues: guest.queues,
    }
}

/// What the workload does unless told, and over it what the scenario says.
fn programs(guest: &Guest, asked: Option<u32>, costs: &Costs) -> Vec<Program> {
    let mut programs = spec::programs(guest.workload, guest.vcpus, costs);
    for program in &mut programs {
        if let (Program::Upkeep { keys, .. }, Some(asked)) = (program, asked) {
            *keys = asked;
        }
    }
    let Some(own) = &guest.program else {
        return programs;
    };
    for program in &mut programs {
        match (own, program) {
            (scenario::Program::Serve(own), Program::Serve { tasks, service, .. }) => {
                *tasks = own.threads.unwrap_or(*tasks);
                *service = time(own.time);
            }
            (scenario::Program::Forward(own), Program::Serve { service, .. }) => {
                *service = own.work.map_or(*service, time);
            }
            (
                scenario::Program::Files(own),
                Program::Files {
                    tasks,
                    files,
                    size,
                    memory,
                    service,
                    disk,
                },
            ) => {
                let all = own.size.0.saturating_mul(own.count.into());
                *tasks = own.threads;
                *files = own.count.into();
                *size = own.size;
                *memory = Bytes(whole(all as f64 * own.cacheable));
                *service = time(own.time);
                *disk = own.disk;
            }
            (scenario::Program::Barrier(own), Program::Barrier { tasks, part, spin }) => {
                *tasks = own.threads;
                *part = time(own.compute);
                *spin = wait(own.wait);
            }
            (
                scenario::Program::Lock(own),
                Program::Lock {
                    tasks,
                    locks,
                    think,
                    hold,
                    lines,
                    spin,
                    declared,
                },
            ) => {
                *tasks = own.threads;
                *locks = own.locks;
                *think = time(own.think);
                *hold = time(own.hold);
                *lines = own.lines;
                *spin = wait(own.wait);
                *declared = own.declared;
            }
            // Beside a server, `mixed` computes.
            _ => {}
        }
    }
    programs
}

fn wait(wait: Wait) -> Nanos {
    match wait {
        Wait::Block => Nanos::ZERO,
        Wait::Spin => Nanos(u64::MAX),
        Wait::SpinFor(time) => time,
    }
}

fn time(time: scenario::Time) -> Time {
    match time {
        scenario::Time::Fixed(time) => Time::Fixed(time),
        scenario::Time::Exponential { mean } => Time::Exponential(mean),
        scenario::Time::LogNormal { median, sigma } => Time::LogNormal(median, sigma),
        scenario::Time::Either { usual, rare, share } => Time::Either(usual, rare, share),
    }
}
