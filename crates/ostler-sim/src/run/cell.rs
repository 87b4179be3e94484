//! The time of a cell: a world at rest, a steward that begins, the load, and what is told of it.

use std::collections::BTreeMap;

use ostler_model::{CpuSet, GuestId, Nanos};
use ostler_outcome::events::{Cell, Event, Stamped};
use ostler_outcome::order;
use ostler_scenario::{Load, Policy, Scenario, Workload};
use serde_json::json;

use super::faults::{Change, changes};
use super::watch::{Reading, Sampler, boost};
use super::{CellRun, Meanwhile, Run, RunError};
use crate::check::Watcher;
use crate::check::books;
use crate::check::threads::Watched;
use crate::ftrace::Names;
use crate::host::{HostCosts, Kernel};
use crate::load::record::DRAIN;
use crate::load::{Record, Step};
use crate::round::nanos;
use crate::scenario::{self, CellLoad, TenantsOf};
use crate::steward::{Steward, StewardGuest, Turn, house};
use crate::tenants::{Housed, Tenants};
use crate::world::{World, WorldError};

/// Between samples.
const SAMPLE: Nanos = Nanos::from_secs(1);
/// As many problems are told of a cell.
const PROBLEMS_MAX: usize = 20;

/// Runs a cell, with its books kept twice if that is wanted.
pub(super) fn run(
    run: &Run,
    cell: &Cell,
    on: &mut dyn FnMut(Meanwhile),
) -> Result<CellRun, RunError> {
    let scenario = &run.scenario;
    let load = cell.load as usize;
    let start = nanos(scenario.settle_s * 1e9);
    let seed = order::seed_of(run.seed, cell);
    let steward = matches!(run.intents.get(&cell.policy), Some(Some(_)));
    let of = scenario::tenants(
        scenario,
        CellLoad {
            load,
            start,
            steward,
            seed,
        },
    );
    let mut spec = of.spec.clone();
    // The host's own threads come first.
    spec.first_thread = scenario.host.cpus.count();
    let mut tenants = Tenants::new(spec, &run.facts.topology)?;
    let failed = |error| RunError::World {
        cell: cell.to_string(),
        error,
    };
    if !run.watch.books {
        let played = Played::new(run, cell, &of, tenants).and_then(|played| played.play(on));
        return played.map_err(failed);
    }
    let post = books::post(&mut tenants);
    let mut played = Played::new(run, cell, &of, Watched::new(tenants)).map_err(failed)?;
    played.watcher = Some(Box::new(books::watcher(&played.world)));
    played
        .play_with(on, |world, watcher| {
            let costs = HostCosts::new(scenario.host.cpus.count(), scenario.host.instruction_ns);
            books::verdict(world, &post, watcher, &costs)
        })
        .map_err(failed)
}

/// vCPUs whose guests stay on cores of their own are there from the beginning, whoever else says so.
fn stay<W: Housed>(
    world: &mut World<W>,
    scenario: &Scenario,
    of: &TenantsOf,
    guests: &[StewardGuest],
) -> Result<(), WorldError> {
    let mut before = BTreeMap::new();
    for (guest, at) in guests.iter().zip(&of.guests) {
        let place = before.entry(at).or_insert(0_usize);
        let own = scenario.guests[*at].cpus.get(*place);
        *place += 1;
        let Some(own) = own else { continue };
        let each = own.len() as usize >= guest.vcpus.len();
        let one = own.iter().map(CpuSet::single);
        for (number, thread) in guest.vcpus.iter().enumerate() {
            let cpus = one.clone().nth(number).filter(|_| each).unwrap_or(*own);
            world.act(|host, scene| host.set_affinity(*thread, cpus, scene))?;
        }
    }
    Ok(())
}

/// Guests by a scenario's name: several where it has several alike.
type Numbers = BTreeMap<String, Vec<u32>>;

/// A cell while it is run.
struct Played<'a, W> {
    scenario: &'a Scenario,
    policy: &'a Policy,
    load: &'a Load,
    cell: &'a Cell,
    seed: u64,
    world: World<W>,
    guests: Vec<StewardGuest>,
    /// Which of them counts its own work.
    counting: Vec<bool>,
    /// The guests of a scenario's name.
    numbers: Numbers,
    steward: Option<(Steward, Nanos)>,
    changes: Vec<Change>,
    sampler: Sampler,
    watcher: Option<Box<Watcher>>,
    start: Nanos,
    end: Nanos,
    told: Vec<Stamped>,
    taps: Vec<(f64, f64)>,
    boosts: Vec<ostler_outcome::events::BoostPeriod>,
    problems: Vec<String>,
    /// Whether the steward's periods are told.
    periods: bool,
    /// What threads are called, where they are traced.
    names: Option<Names>,
}

/// What Linux calls the threads of guests.
fn names(own: u32, guests: &[StewardGuest], taps: Vec<String>) -> Names {
    let mut names = BTreeMap::new();
    for guest in guests {
        for (vcpu, thread) in guest.vcpus.iter().enumerate() {
            names.insert(thread.0, format!("CPU {vcpu}/KVM"));
        }
        for worker in &guest.vhost {
            names.insert(worker.0, format!("vhost-{}", 1000 + guest.number));
        }
    }
    Names { own, names, taps }
}

impl<'a, W: Housed> Played<'a, W> {
    fn new(run: &'a Run, cell: &'a Cell, of: &TenantsOf, work: W) -> Result<Self, WorldError> {
        let scenario = &run.scenario;
        let host = &scenario.host;
        let load = &scenario.loads[cell.load as usize];
        let policy = scenario.policies.iter().find(|p| p.name == cell.policy);
        // A run's cells are of its own policies.
        let policy = policy.unwrap_or(&scenario.policies[0]);
        let costs = HostCosts::new(host.cpus.count(), host.instruction_ns);
        let mut world = World::new(&run.facts.topology, costs, work);
        // The papers' figures were taken of guests that begin on the first cores.
        if run.kernel() == Kernel::Linux7_3 {
            world.host.draw(order::seed_of(run.seed, cell));
        }
        if run.watch.trace {
            world.trace();
        }
        let guests = house(&mut world, host.under_test, policy.weights)?;
        let names = run.watch.trace.then(|| {
            let taps = of.guests.iter().map(|at| scenario.guests[*at].name.clone());
            names(host.cpus.count(), &guests, taps.collect())
        });
        let mut numbers = Numbers::new();
        for (number, at) in (0..).zip(&of.guests) {
            let name = scenario.guests[*at].name.clone();
            numbers.entry(name).or_default().push(number);
        }
        stay(&mut world, scenario, of, &guests)?;
        let workload = |at: usize| scenario.guests[of.guests[at]].workload;
        let counting = (0..guests.len()).map(|at| workload(at).works()).collect();
        let start = nanos(scenario.settle_s * 1e9);
        let end = start.saturating_add(nanos(load.seconds() * 1e9));
        let steps = load.steps.iter().map(|step| Step {
            rate: step.rate,
            seconds: step.seconds,
        });
        let loaded = scenario.guests.iter().find(|g| g.name == load.guest);
        let slo = loaded.and_then(|guest| guest.slo_p95_us);
        let record = Record::new(
            start,
            &steps.collect::<Vec<_>>(),
            slo.map(Nanos::from_micros),
        );
        let pnic_queues = policy.pnic_queues.unwrap_or(host.pnic_queues);
        let resting: Vec<u32> = (0..)
            .zip(&of.guests)
            .filter(|(_, at)| {
                scenario.guests[**at].in_turn && scenario.guests[**at].name != load.guest
            })
            .map(|(number, _)| number)
            .collect();
        let intent = run.intents.get(&policy.name).cloned().flatten();
        let places = intent
            .as_ref()
            .is_some_and(|intent| intent.placement.is_some());
        let mover = intent.as_ref().and_then(|intent| intent.tier.as_ref());
        let mover = mover.map(|tier| tier.bytes_per_s);
        world.act(|_, scene| {
            let tenants = scene.work.tenants_mut();
            tenants.keep(record, &of.clients);
            tenants.set_nic_queues(pnic_queues);
            if places {
                tenants.count_flows();
            }
            if let Some(rate) = mover {
                tenants.set_mover(rate);
            }
            if let Some(pages) = policy.pages {
                tenants.set_pages(pages);
            }
            tenants.begin(scene.out);
            for guest in &resting {
                tenants.rest(*guest, true, scene.out);
            }
        })?;
        let seed = order::seed_of(run.seed, cell);
        let steward = intent.map(|intent| {
            let period = intent.period;
            let steward = Steward::new(run.facts.clone(), intent, guests.clone(), seed);
            (steward, period)
        });
        Ok(Played {
            scenario,
            policy,
            load,
            cell,
            seed,
            world,
            guests,
            counting,
            numbers,
            steward,
            changes: changes(scenario, start),
            sampler: Sampler::default(),
            watcher: None,
            start,
            end,
            told: Vec::new(),
            taps: Vec::new(),
            boosts: Vec::new(),
            problems: Vec::new(),
            periods: run.watch.periods,
            names,
        })
    }

    fn play(self, on: &mut dyn FnMut(Meanwhile)) -> Result<CellRun, WorldError> {
        self.play_with(on, |_, _| Vec::new())
    }

    fn play_with(
        mut self,
        on: &mut dyn FnMut(Meanwhile),
        books: impl FnOnce(&World<W>, Watcher) -> Vec<String>,
    ) -> Result<CellRun, WorldError> {
        let unix_ms = 0;
        let cell = self.cell.clone();
        self.say(Event::CellStart { cell, unix_ms });
        let (mut turn, mut sample) = (Nanos::ZERO, SAMPLE);
        let (mut before, mut after) = (None, None);
        // Late answers count, where any are waited for.
        let asks = !self.world.work.tenants().clients.is_empty();
        let last = self
            .end
            .saturating_add(if asks { DRAIN } else { Nanos::ZERO });
        let mut changes = std::mem::take(&mut self.changes).into_iter().peekable();
        loop {
            let fault = changes.peek().map_or(Nanos(u64::MAX), |change| change.at);
            let steward = if self.steward.is_some() {
                turn
            } else {
                Nanos(u64::MAX)
            };
            let started = if before.is_none() { self.start } else { last };
            let ended = if after.is_none() { self.end } else { last };
            let now = [fault, steward, sample, started, ended]
                .into_iter()
                .fold(last, Nanos::min);
            self.pass(now)?;
            self.trace(on);
            if now == self.start && before.is_none() {
                before = Some(self.reading()?);
                self.boost();
            }
            if now == self.end && after.is_none() {
                after = Some(self.reading()?);
                self.boost();
            }
            if now == sample {
                self.sample()?;
                sample = sample.saturating_add(SAMPLE);
                let done = now.as_secs_f64() / last.as_secs_f64();
                on(Meanwhile::Done(done.min(1.0)));
            }
            while let Some(change) = changes.next_if(|change| change.at <= now) {
                let numbers = &self.numbers;
                self.world.act(|_, scene| {
                    let tenants = scene.work.tenants_mut();
                    change.happen(tenants, numbers, now, scene.out);
                })?;
                self.look();
            }
            if now == steward {
                self.turn(on)?;
                let period = self.steward.as_ref().map_or(SAMPLE, |(_, period)| *period);
                turn = turn.saturating_add(period);
            }
            if now >= last {
                break;
            }
        }
        if let Some(watcher) = self.watcher.take() {
            let found = books(&self.world, *watcher);
            self.problems.extend(found);
        }
        Ok(self.ends(before.zip(after)))
    }

    /// Time goes on; whoever watches sees each moment.
    fn pass(&mut self, until: Nanos) -> Result<(), WorldError> {
        books::pass(&mut self.world, self.watcher.as_deref_mut(), until)
    }

    /// What was traced is told.
    fn trace(&mut self, on: &mut dyn FnMut(Meanwhile)) {
        let Some(names) = &self.names else {
            return;
        };
        let mut text = String::new();
        for line in self.world.traced() {
            names.write(&line, &mut text);
        }
        on(Meanwhile::Trace(text));
    }

    /// Whoever watches sees what was done from outside.
    fn look(&mut self) {
        if let Some(watcher) = &mut self.watcher {
            watcher.observe(self.world.host.view(self.world.now()));
        }
    }

    fn say(&mut self, event: Event) {
        self.told.push(Stamped {
            t_ms: self.world.now().0 / 1_000_000,
            event,
        });
    }

    /// All that has been done until now is counted: also the work of those that nobody has disturbed at it.
    fn ask_all(&mut self) -> Result<(), WorldError> {
        self.world
            .act(|_, scene| scene.work.tenants_mut().ask_all(scene.out))?;
        self.look();
        Ok(())
    }

    fn reading(&mut self) -> Result<Reading, WorldError> {
        self.ask_all()?;
        let view = self.world.host.view(self.world.now());
        Ok(Reading::new(&view, self.world.work.tenants(), &self.guests))
    }

    fn sample(&mut self) -> Result<(), WorldError> {
        self.ask_all()?;
        let view = self.world.host.view(self.world.now());
        let counting = &self.counting;
        let (busy, guests) =
            self.sampler
                .sample(&view, self.world.work.tenants(), &self.guests, |number| {
                    counting[number as usize]
                });
        let cell = Some(self.cell.index);
        self.say(Event::Sample { cell, busy, guests });
        if (self.start..self.end).contains(&self.world.now()) {
            self.boost();
        }
        Ok(())
    }

    /// What the scheduler of vCPUs has done so far. Delays are told of the first and the last time alone, as the lab has it.
    fn boost(&mut self) {
        let plan = self
            .steward
            .as_ref()
            .and_then(|(steward, _)| steward.plan());
        let of: Vec<GuestId> = plan
            .and_then(|plan| plan.boost.as_ref())
            .map_or_else(Vec::new, |boost| boost.guests.clone());
        let view = self.world.host.view(self.world.now());
        let Some(mut period) = boost(&view, &self.guests, &of) else {
            return;
        };
        // Under load is before its end: the last must be among them.
        period.unix_ms = period
            .unix_ms
            .min((self.end.0 / 1_000_000).saturating_sub(1));
        if self.world.now() <= self.start {
            period.unix_ms = (self.start.0 / 1_000_000).saturating_sub(1);
        }
        self.boosts.push(period);
    }

    fn turn(&mut self, on: &mut dyn FnMut(Meanwhile)) -> Result<(), WorldError> {
        let Some((steward, _)) = &mut self.steward else {
            return Ok(());
        };
        let turn = steward.turn(&mut self.world)?;
        if self.periods {
            on(Meanwhile::Period(Box::new(steward.period(&turn))));
        }
        self.look();
        self.saw(&turn);
        for violation in &turn.violations {
            if self.problems.len() < PROBLEMS_MAX {
                let at = self.world.now().as_secs_f64();
                self.problems
                    .push(format!("the plan at {at} s was refused: {violation}"));
            }
        }
        if turn.changes {
            let reasons = turn.reasons.iter();
            let reasons: Vec<_> = reasons
                .map(|reason| json!({ "text": reason.to_string() }))
                .collect();
            let record = json!({
                "wall": self.world.now().0,
                "plan": &*turn.plan,
                "reasons": reasons,
            });
            let cell = self.cell.index;
            self.say(Event::Steward { cell, record });
        }
        Ok(())
    }

    /// What it saw on the loaded guest's tap.
    fn saw(&mut self, turn: &Turn) {
        if !(self.start..self.end).contains(&self.world.now()) {
            return;
        }
        let numbers = self.numbers.get(&self.load.guest);
        let first = numbers.and_then(|numbers| numbers.first());
        let first = first.and_then(|first| self.guests.iter().find(|g| g.number == *first));
        let seen = first.and_then(|guest| turn.snapshot.guest(&guest.id));
        let latency = seen.and_then(|seen| seen.latency.as_ref());
        if let Some(latency) = latency.filter(|latency| latency.age == Nanos::ZERO) {
            self.taps
                .push((latency.p50.as_micros_f64(), latency.p95.as_micros_f64()));
        }
    }

    fn ends(mut self, readings: Option<(Reading, Reading)>) -> CellRun {
        let cell = self.cell.index;
        let protocol = self.protocol();
        let lines = self.world.work.tenants_mut().records[0].lines(
            protocol,
            self.load.connections,
            self.load.depth(),
            self.seed,
        );
        for line in lines {
            // A struct of numbers and strings always serialises.
            let line = serde_json::to_value(line).unwrap_or_default();
            self.say(Event::Load { cell, line });
        }
        if self.policy.steward.is_some() {
            let periods_us = std::mem::take(&mut self.taps);
            self.say(Event::Tap { cell, periods_us });
        }
        let mut periods = std::mem::take(&mut self.boosts);
        if let [_, between @ .., _] = periods.as_mut_slice() {
            let guests = between.iter_mut().flat_map(|period| &mut period.guests);
            guests.for_each(|guest| guest.delays.clear());
        }
        if !periods.is_empty() {
            self.say(Event::Boost { cell, periods });
        }
        let counting = &self.counting;
        let counters = readings.map(|(before, after)| {
            after.since(&before, &self.guests, |number| counting[number as usize])
        });
        let problems = std::mem::take(&mut self.problems);
        self.say(Event::CellEnd {
            cell,
            counters: counters.unwrap_or_default(),
            problems,
        });
        CellRun {
            told: self.told,
            events: self.world.queue.taken(),
        }
    }

    fn protocol(&self) -> &'static str {
        let mut guests = self.scenario.guests.iter();
        let workload = guests
            .find(|guest| guest.name == self.load.guest)
            .map_or(Workload::Idle, |guest| guest.workload);
        let service = workload.service();
        service.map_or("simulated", |service| service.protocol)
    }
}
