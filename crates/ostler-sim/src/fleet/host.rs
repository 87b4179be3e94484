//! A host's time: VMs come and go, are busy as the trace says, and a steward looks after them, where the policy has one.

use ostler_model::{Facts, GuestId, Intent, Nanos};
use ostler_outcome::fleet::{HostOutcome, VmOutcome};
use ostler_scenario::{Policy, TimedKind, Weights};

use super::{Fleet, FleetError, VmDemand};
use crate::check::Watcher;
use crate::check::books;
use crate::check::threads::Watched;
use crate::costs::INSTRUCTION_NS;
use crate::costs::fleet as table;
use crate::guest::spec::{GuestSpec, Placement, Program, Sharing, Time};
use crate::host::HostCosts;
use crate::load::{Arrivals, LoadSpec, PACKETS, Step};
use crate::net::nic::NicSpec;
use crate::path::Costs;
use crate::random::Stream;
use crate::scenario;
use crate::steward::{Steward, StewardGuest, house};
use crate::tenants::{Housed, Tenants, TenantsSpec};
use crate::trace::Category;
use crate::world::{World, WorldError};

/// Whoever waits is told of progress no more often than each of so much simulated time.
const TELL: Nanos = Nanos::from_secs(10);
/// A VM's clients.
const CONNECTIONS: u32 = 64;

/// Runs a host under a policy.
pub(super) fn run(
    fleet: &Fleet,
    host: u32,
    policy: &Policy,
    on: &(dyn Fn(f64) + Sync),
) -> Result<HostOutcome, FleetError> {
    let vms: Vec<&VmDemand> = fleet.placed.hosts[host as usize]
        .iter()
        .map(|at| &fleet.demand.vms[*at])
        .collect();
    let facts = crate::run::facts(&fleet.scenario);
    let mut outcome = HostOutcome {
        host,
        ..HostOutcome::default()
    };
    if vms.is_empty() {
        on(fleet.demand.lasts.as_secs_f64());
        return Ok(outcome);
    }
    let mut scenario = fleet.scenario.clone();
    scenario.guests = rules(fleet);
    let intent = scenario::intent(&scenario, policy, &facts)?;
    let mut tenants = Tenants::new(spec(fleet, host, &vms), &facts.topology)?;
    let stage = Stage {
        fleet,
        host,
        vms: &vms,
        facts: &facts,
        intent: intent.as_ref(),
        weights: policy.weights,
    };
    let played = if fleet.books {
        let post = books::post(&mut tenants);
        stage.audited(Watched::new(tenants), &post, on, |_| {}, &mut outcome)
    } else {
        stage.played(tenants, on, &mut outcome)
    };
    played.map_err(|error| FleetError::World {
        host,
        policy: policy.name.clone(),
        error,
    })?;
    Ok(outcome)
}

/// A host, its VMs and who looks after them.
struct Stage<'a> {
    fleet: &'a Fleet,
    host: u32,
    vms: &'a [&'a VmDemand],
    facts: &'a Facts,
    intent: Option<&'a Intent>,
    weights: Weights,
}

impl Stage<'_> {
    fn played<W: Housed>(
        &self,
        work: W,
        on: &(dyn Fn(f64) + Sync),
        outcome: &mut HostOutcome,
    ) -> Result<(), WorldError> {
        let mut played = Played::new(self, work)?;
        played.play(self, on)?;
        played.tell(self, outcome);
        Ok(())
    }

    /// With its books kept twice; before they are held against each other, something may be done to its world.
    fn audited(
        &self,
        work: Watched<Tenants>,
        post: &books::Post,
        on: &(dyn Fn(f64) + Sync),
        meddle: impl FnOnce(&mut World<Watched<Tenants>>),
        outcome: &mut HostOutcome,
    ) -> Result<(), WorldError> {
        let mut played = Played::new(self, work)?;
        played.watcher = Some(Box::new(books::watcher(&played.world)));
        played.play(self, on)?;
        meddle(&mut played.world);
        if let Some(watcher) = played.watcher.take() {
            outcome.problems = books::verdict(&played.world, post, *watcher, &costs(self.fleet));
        }
        played.tell(self, outcome);
        Ok(())
    }
}

fn costs(fleet: &Fleet) -> HostCosts {
    let host = &fleet.scenario.host;
    HostCosts::new(host.cpus.count(), host.instruction_ns)
}

/// The rules by which a steward knows VMs: two kinds.
fn rules(fleet: &Fleet) -> Vec<ostler_scenario::Guest> {
    use ostler_model::Class;
    use ostler_scenario::{Guest, Workload};
    let slo = fleet.scenario.fleet.as_ref().map(|fleet| fleet.slo_p95_us);
    let rule = |name: &str, class, slo| Guest {
        // So that it matches numbers behind it.
        count: 2,
        slo_p95_us: slo,
        ..Guest::new(name, class, 1, 1024, Workload::Idle)
    };
    vec![
        rule(USERS, Class::LatencyCritical, slo),
        rule(OTHERS, Class::BestEffort, None),
    ]
}

const USERS: &str = "users";
const OTHERS: &str = "others";

fn name(vm: &VmDemand, at: usize) -> String {
    let kind = if vm.vm.category == Category::Interactive {
        USERS
    } else {
        OTHERS
    };
    format!("{kind}-{at}")
}

fn seed_of(fleet: &Fleet, host: u32) -> u64 {
    Stream::new(fleet.seed, "host", host.into()).bits()
}

fn spec(fleet: &Fleet, host: u32, vms: &[&VmDemand]) -> TenantsSpec {
    let scenario = &fleet.scenario;
    let slo = scenario
        .fleet
        .as_ref()
        .map(|fleet| Nanos::from_micros(fleet.slo_p95_us));
    let costs = Costs::default().at(scenario.host.instruction_ns);
    let mut spec = TenantsSpec {
        guests: Vec::new(),
        nic: NicSpec {
            queues: scenario.host.pnic_queues,
            ..NicSpec::default()
        },
        irq_cores: scenario.host.under_test,
        loads: Vec::new(),
        costs,
        seed: seed_of(fleet, host),
        // The host's own threads come first.
        first_thread: scenario.host.cpus.count(),
        tiers: None,
    };
    for (at, vm) in vms.iter().enumerate() {
        let users = vm.vm.category == Category::Interactive;
        let mean = if users { table::REQUEST } else { table::PIECE };
        // A trace's busyness is of its hosts, so what a request takes is told in time, whatever an instruction takes here.
        let service = mean.nanos(INSTRUCTION_NS);
        spec.guests.push(GuestSpec {
            id: GuestId::from(name(vm, at).as_str()),
            vcpus: vm.vm.cores.min(1024),
            queues: 1,
            programs: vec![Program::Serve {
                tasks: vm.vm.cores.min(1024).saturating_mul(4),
                sharing: Sharing::Free,
                service: Time::Exponential(service),
            }],
            placement: Placement::Hvm,
            halt_poll: Nanos::ZERO,
            memory_waits: 0.0,
        });
        // What the guest's kernel takes of a vCPU for it is the VM's, too.
        let kernel = [costs.guest_rx, costs.guest_tx, costs.interrupt, costs.exit];
        let each = kernel.into_iter().fold(service, Nanos::saturating_add);
        spec.loads.push(LoadSpec {
            route: vec![at as u32],
            connections: CONNECTIONS,
            depth: None,
            acknowledged: false,
            start: vm.from,
            steps: steps(vm, each.as_secs_f64()),
            arrivals: Arrivals::Poisson,
            packets: PACKETS,
            slo: slo.filter(|_| users),
        });
    }
    spec
}

/// As many requests a second as make the VM as busy as it was.
fn steps(vm: &VmDemand, each_s: f64) -> Vec<Step> {
    let ends = vm.busy.iter().skip(1).map(|(at, _)| *at).chain([vm.until]);
    let spans = vm.busy.iter().zip(ends);
    spans
        .map(|((from, busy), until)| Step {
            rate: busy * f64::from(vm.vm.cores) / each_s,
            seconds: until.saturating_sub(*from).as_secs_f64(),
        })
        .collect()
}

struct Played<W> {
    world: World<W>,
    guests: Vec<StewardGuest>,
    steward: Option<(Steward, Nanos)>,
    watcher: Option<Box<Watcher>>,
}

impl<W: Housed> Played<W> {
    fn new(stage: &Stage<'_>, work: W) -> Result<Played<W>, WorldError> {
        let fleet = stage.fleet;
        let mut world = World::new(&stage.facts.topology, costs(fleet), work);
        let guests = house(&mut world, fleet.scenario.host.under_test, stage.weights)?;
        world.act(|_, scene| {
            let tenants = scene.work.tenants_mut();
            for (at, vm) in (0..).zip(stage.vms) {
                tenants.set_away(at, vm.from > Nanos::ZERO);
            }
            tenants.begin(scene.out);
        })?;
        let seed = seed_of(fleet, stage.host);
        let steward = stage.intent.map(|intent| {
            let (facts, period) = (stage.facts.clone(), intent.period);
            let steward = Steward::new(facts, intent.clone(), guests.clone(), seed);
            (steward, period)
        });
        Ok(Played {
            world,
            guests,
            steward,
            watcher: None,
        })
    }

    fn play(&mut self, stage: &Stage<'_>, on: &(dyn Fn(f64) + Sync)) -> Result<(), WorldError> {
        let (fleet, vms) = (stage.fleet, stage.vms);
        let lasts = fleet.demand.lasts;
        // Who comes and goes, in order; at one time, who goes first.
        let mut moves: Vec<(Nanos, bool, u32)> = Vec::new();
        for (at, vm) in (0..).zip(vms) {
            if vm.from > Nanos::ZERO {
                moves.push((vm.from, true, at));
            }
            if vm.until < lasts {
                moves.push((vm.until, false, at));
            }
        }
        for fault in &fleet.scenario.timed_faults {
            if matches!(&fault.kind, TimedKind::HostFails { host } if *host == stage.host) {
                moves.extend((0..vms.len() as u32).map(|vm| (fault.at, false, vm)));
            }
        }
        moves.sort_unstable();
        let mut moves = moves.into_iter().peekable();
        let (mut turn, mut tell) = (Nanos::ZERO, TELL.min(lasts));
        let mut told = Nanos::ZERO;
        loop {
            let next = moves.peek().map_or(lasts, |(at, ..)| *at);
            let steward = if self.steward.is_some() { turn } else { lasts };
            let now = next.min(steward).min(tell).min(lasts);
            books::pass(&mut self.world, self.watcher.as_deref_mut(), now)?;
            while let Some((_, comes, vm)) = moves.next_if(|(at, ..)| *at <= now) {
                self.world.act(|_, scene| {
                    let tenants = scene.work.tenants_mut();
                    if comes {
                        tenants.set_away(vm, false);
                    } else {
                        tenants.kill(vm, now, scene.out);
                    }
                })?;
                self.look();
            }
            if now == tell {
                on(now.saturating_sub(told).as_secs_f64());
                (told, tell) = (now, tell.saturating_add(TELL).min(lasts));
            }
            if now >= lasts {
                return Ok(());
            }
            if let Some((steward, period)) = &mut self.steward
                && now == turn
            {
                steward.turn(&mut self.world)?;
                turn = turn.saturating_add(*period);
                self.look();
            }
        }
    }

    /// Whoever watches sees what was done from outside.
    fn look(&mut self) {
        if let Some(watcher) = &mut self.watcher {
            watcher.observe(self.world.host.view(self.world.now()));
        }
    }

    fn tell(&mut self, stage: &Stage<'_>, outcome: &mut HostOutcome) {
        let (fleet, vms) = (stage.fleet, stage.vms);
        let cores = fleet.scenario.host.under_test;
        let peak = fleet.placed.peaks[stage.host as usize];
        outcome.ratio_peak = f64::from(peak) / f64::from(cores.len());
        let slo = fleet
            .scenario
            .fleet
            .as_ref()
            .map(|fleet| fleet.slo_p95_us as f64);
        let tenants = self.world.work.tenants_mut();
        for (load, due) in tenants.net.unanswered() {
            tenants.clients[load as usize].unanswered(due);
        }
        let view = self.world.host.view(self.world.now());
        let seconds = self.world.now().as_secs_f64();
        let busy: u64 = cores.iter().map(|cpu| view.core_time(cpu).busy()).sum();
        outcome.busy = Nanos(busy).as_secs_f64() / (seconds * f64::from(cores.len()));
        outcome.energy_j = view.energy_pj() as f64 / 1e12;
        outcome.ctx_switches = view.counters().switches;
        outcome.events = self.world.queue.taken();
        if let Some((steward, _)) = &self.steward {
            outcome.plan_changes = steward.plan_changes;
            outcome.plans_refused = steward.refused;
        }
        for (at, vm) in vms.iter().enumerate() {
            let times = self.guests[at].vcpus.iter();
            let times: Vec<_> = times.map(|vcpu| view.thread_time(*vcpu)).collect();
            let books = &self.world.work.tenants().clients[at].books;
            let latency = books.latency();
            let interactive = vm.vm.category == Category::Interactive;
            let p95_us = latency.map(|latency| latency.p95);
            let above = p95_us.zip(slo).is_some_and(|(p95, slo)| p95 > slo);
            outcome.vms.push(VmOutcome {
                vm: vm.vm.id.0,
                name: None,
                host: outcome.host,
                interactive,
                vcpus: vm.vm.cores,
                seconds: vm.until.saturating_sub(vm.from).as_secs_f64(),
                sent: books.sent,
                answered: books.answered,
                p50_us: latency.map(|latency| latency.p50),
                p95_us,
                p99_us: latency.map(|latency| latency.p99),
                breaks_slo: interactive && above,
                ran_s: Nanos(times.iter().map(|time| time.ran).sum()).as_secs_f64(),
                waited_s: Nanos(times.iter().map(|time| time.waited).sum()).as_secs_f64(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Demand;
    use super::*;
    use crate::scenario::Simulated;

    const FLEET: &str = r#"
name = "fleet"
summary = "A host of VMs that come and go."
[host]
cores = 4
memory = "64G"
pnic_queues = 2
instruction_ns = 0.3333
[fleet]
hosts = 1
oversubscription = 3
slo_p95 = "100ms"
generate = 8
lasts = "5s"
[[policy]]
name = "vanilla"
"#;

    /// What the books say of a host whose world something was done to.
    fn audited(meddle: impl FnOnce(&mut World<Watched<Tenants>>)) -> Vec<String> {
        let scenario = ostler_scenario::Scenario::parse(FLEET, Path::new("f.toml"), &Simulated);
        let demand = Demand::generated(8, Nanos::from_secs(5), 2);
        let fleet = Fleet::new(scenario.expect("a scenario"), demand, 1).expect("a fleet");
        let vms = fleet.placed.hosts[0].iter();
        let vms: Vec<&VmDemand> = vms.map(|at| &fleet.demand.vms[*at]).collect();
        let facts = crate::run::facts(&fleet.scenario);
        let mut tenants = Tenants::new(spec(&fleet, 0, &vms), &facts.topology).expect("VMs");
        let post = books::post(&mut tenants);
        let stage = Stage {
            fleet: &fleet,
            host: 0,
            vms: &vms,
            facts: &facts,
            intent: None,
            weights: Weights::default(),
        };
        let mut outcome = HostOutcome::default();
        let work = Watched::new(tenants);
        stage
            .audited(work, &post, &|_| {}, meddle, &mut outcome)
            .expect("a world");
        assert!(outcome.vms.iter().any(|vm| vm.answered > 10));
        outcome.problems
    }

    #[test]
    fn books_that_are_wrong_are_found() {
        assert_eq!(audited(|_| {}), Vec::<String>::new());
        // A vCPU that is charged a nanosecond which nobody ran.
        let charged = audited(|world| {
            let vcpu = &mut world.work.inner.guests[0].vcpus[0];
            vcpu.accounts.tasks = vcpu.accounts.tasks.saturating_add(Nanos(1));
        });
        assert!(
            charged.iter().any(|wrong| wrong.contains("accounts for")),
            "{charged:?}"
        );
        // Time that passes while nobody watches.
        let later = audited(|world| {
            let then = world.now().saturating_add(Nanos::from_millis(100));
            world.run(then).expect("a world");
        });
        assert!(
            later.iter().any(|wrong| wrong.contains("accounts say")),
            "{later:?}"
        );
    }
}
