//! A host of guests that compute and one that sleeps and wakes, under stewards of all kinds.

use ostler_model::{
    BoostSettings, ByThreads, Class, Cpu, GuestMatch, GuestRule, NicFacts, NodeId, PartitionPolicy,
    QueueCount, Topology,
};

use super::*;
use crate::check::Watcher;
use crate::host::{HostCosts, Spawn};
use crate::work::{FULL_SPEED, Next};

/// Guests whose vCPUs compute for a part of each millisecond, with agents, and a NIC that does nothing.
#[derive(Clone, Debug)]
struct Fakes {
    /// By thread, from the first on: what it has to do each time, and what is left.
    threads: Vec<(u64, u64)>,
    first: u32,
    lives: Vec<bool>,
    active: Vec<(u32, u32)>,
    queues: u32,
    irqs: [Vec<CpuId>; 2],
    xps: Vec<CpuSet>,
    /// The guest that asks for its vCPUs to be kept where they are.
    asks: Option<u32>,
}

const MILLISECOND: u64 = 1_000_000;

const TIME_SHARING: PartitionPolicy = PartitionPolicy::TimeSharing {
    queues: QueueCount::One,
};

impl Work for Fakes {
    fn next(&mut self, thread: ThreadId, _: CpuId, now: Nanos, out: &mut Effects) -> Next {
        let (_, left) = self.threads[(thread.0 - self.first) as usize];
        if left > 0 {
            return Next::Run(Nanos(left));
        }
        out.alarm(
            Nanos((now.0 / MILLISECOND + 1) * MILLISECOND),
            u64::from(thread.0),
        );
        Next::Sleep
    }

    fn ran(&mut self, thread: ThreadId, _: CpuId, work: Nanos, _: Nanos, _: &mut Effects) {
        let left = &mut self.threads[(thread.0 - self.first) as usize].1;
        *left = left.saturating_sub(work.0);
    }

    fn interrupted(&mut self, _: CpuId, _: u64, _: Nanos, _: &mut Effects) -> Option<Nanos> {
        None
    }

    fn alarm(&mut self, token: u64, _: Nanos, out: &mut Effects) {
        let known = &mut self.threads[token as usize - self.first as usize];
        known.1 = known.0;
        out.notify(ThreadId(token as u32));
    }

    fn slowdown(&self, _: ThreadId, _: CpuId) -> u32 {
        FULL_SPEED
    }
}

impl Steered for Fakes {
    fn lives(&self, guest: u32) -> bool {
        self.lives[guest as usize]
    }

    fn latency(&mut self, _: u32) -> Option<LatencyView> {
        None
    }

    fn agent(&self, guest: u32) -> Option<(AgentHealth, Option<AgentState>)> {
        let (vcpus, queues) = self.active[guest as usize];
        let state = AgentState {
            vcpus_online: (0..4).collect(),
            vcpus_active: (0..vcpus).collect(),
            queues,
            queues_max: 2,
        };
        Some((AgentHealth::Healthy, Some(state)))
    }

    fn ask_vcpus(&mut self, guest: u32, vcpus: u32, _: &mut Effects) {
        self.active[guest as usize].0 = vcpus;
    }

    fn ask_queues(&mut self, guest: u32, queues: u32) {
        self.active[guest as usize].1 = queues;
    }

    fn nic_queues(&self, _: u32) -> u32 {
        self.queues
    }

    fn nic_irq(&self, _: u32, ring: Ring, queue: u32) -> Option<(CpuId, u64)> {
        Some((self.irqs[ring as usize][queue as usize], 0))
    }

    fn set_nic_queues(&mut self, _: u32, queues: u32) {
        self.queues = queues;
    }

    fn set_nic_irq(&mut self, _: u32, ring: Ring, queue: u32, cpu: CpuId) {
        self.irqs[ring as usize][queue as usize] = cpu;
    }

    fn set_nic_xps(&mut self, _: u32, sets: &[CpuSet]) {
        self.xps = sets.to_vec();
    }

    fn set_nic_rps(&mut self, _: u32, _: u32, _: &CpuSet) {}

    fn pins(&self, guest: u32) -> Vec<bool> {
        vec![self.asks == Some(guest); 4]
    }
}

fn topology(cores: u32) -> Topology {
    Topology {
        cpus: (0..cores)
            .map(|id| Cpu {
                id: CpuId(id),
                node: NodeId(0),
                core: CpuId(id),
                cache_group: CpuId(id / 4 * 4),
            })
            .collect(),
    }
}

fn intent(policy: PartitionPolicy) -> Intent {
    let rule = |name: &str, class| GuestRule {
        matches: GuestMatch::Name(name.into()),
        class,
        slo: (class == Class::LatencyCritical).then_some(Nanos::from_millis(1)),
        boost: true,
        terms: ostler_model::GuestTerms::default(),
    };
    let mut intent = Intent {
        guests: vec![
            rule("lc*", Class::LatencyCritical),
            rule("be*", Class::BestEffort),
        ],
        nics: vec!["eth0".into()],
        ..Intent::default()
    };
    intent.partition.policy = policy;
    intent
}

/// Eight cores; `lc`, whose four vCPUs and two workers are busy for a part of the time, and `be`, whose four always compute.
fn world(busy: u64) -> (World<Fakes>, Vec<StewardGuest>) {
    let first = 8;
    let fakes = Fakes {
        threads: vec![(0, 0); 10],
        first,
        lives: vec![true; 2],
        active: vec![(4, 2); 2],
        queues: 4,
        irqs: [(); 2].map(|()| (0..4).map(CpuId).collect()),
        xps: Vec::new(),
        asks: None,
    };
    let mut world = World::new(&topology(8), HostCosts::of(8), fakes);
    let mut guests = Vec::new();
    let mut at = 0;
    for (number, (name, vhosts, work)) in [("lc", 2, busy), ("be", 0, 1_000 * MILLISECOND)]
        .into_iter()
        .enumerate()
    {
        let group = world.host.add_group();
        let mut spawn = |count: u32, work: u64, world: &mut World<Fakes>| -> Vec<ThreadId> {
            let threads = (0..count).map(|_| {
                let spawn = Spawn {
                    group: Some(group),
                    ..Spawn::default()
                };
                world.work.threads[at] = (work, work);
                at += 1;
                world.host.spawn(spawn, Nanos::ZERO)
            });
            threads.collect()
        };
        let vcpus = spawn(4, work, &mut world);
        let vhost = spawn(vhosts, work / 2, &mut world);
        guests.push(StewardGuest {
            id: name.into(),
            name: name.into(),
            number: number as u32,
            group,
            weight: 100,
            vcpus,
            vhost,
        });
    }
    for guest in &guests {
        for thread in guest.vcpus.iter().chain(&guest.vhost) {
            let effect = crate::work::Effect::Notify {
                thread: *thread,
                from: None,
            };
            world
                .act(|host, scene| host.carry_out(effect, scene))
                .unwrap();
        }
    }
    (world, guests)
}

fn steward(intent: Intent, guests: Vec<StewardGuest>) -> Steward {
    let nic = NicFacts {
        name: "eth0".into(),
        queues_max: 4,
        rss_settable: true,
        node: None,
    };
    let facts = Facts {
        kernel: "6.12.0".into(),
        topology: topology(8),
        nics: vec![nic],
        ..Facts::default()
    };
    Steward::new(facts, intent, guests, 1)
}

/// Runs it for so many periods, watched; each turn.
fn run(world: &mut World<Fakes>, steward: &mut Steward, periods: u64) -> Vec<Turn> {
    let mut watcher = Watcher::new(world.host.view(world.now()), None);
    let start = world.now().0;
    let mut turns = Vec::new();
    for period in 0..=periods {
        let until = Nanos(start + period * 100 * MILLISECOND);
        while let Some(at) = world.queue.next_at().filter(|at| *at <= until) {
            world.run(at).unwrap();
            watcher.observe(world.host.view(at));
        }
        world.run(until).unwrap();
        turns.push(steward.turn(world).unwrap());
        watcher.observe(world.host.view(until));
    }
    if start == 0 {
        let view = world.host.view(world.now());
        let costs = HostCosts::of(8);
        assert_eq!(
            watcher.verdict(view, &costs.idle_power, costs.busy_power),
            []
        );
    }
    turns
}

/// What groups need is what their cores were busy for, as their threads are there: nobody intends that here, and nobody needs to.
#[test]
fn a_simulated_steward_acts() {
    for policy in [PartitionPolicy::Energy, PartitionPolicy::Resource] {
        let (mut world, guests) = world(MILLISECOND / 4);
        let intent = intent(policy);
        assert_eq!(intent.act.mode, ostler_model::ActMode::Observe);
        let turns = run(&mut world, &mut steward(intent, guests), 10);
        let by_threads = |turn: &Turn| {
            let told = turn.reasons.iter();
            told.filter_map(|reason| match reason {
                Reason::ByThreads { why, .. } => Some(*why),
                _ => None,
            })
            .collect::<Vec<_>>()
        };
        // Until cores are shared out nobody has any.
        let first = turns.iter().flat_map(by_threads);
        assert!(first.into_iter().all(|why| why == ByThreads::NoCoresYet));
        assert!(turns[3..].iter().all(|turn| by_threads(turn).is_empty()));
    }
}

#[test]
fn what_is_decided_is_what_the_host_does() {
    for policy in [
        PartitionPolicy::Performance,
        PartitionPolicy::Energy,
        PartitionPolicy::Resource,
        TIME_SHARING,
    ] {
        let (mut world, guests) = world(MILLISECOND / 4);
        let mut steward = steward(intent(policy), guests.clone());
        let turns = run(&mut world, &mut steward, 30);
        assert!(
            turns.iter().all(|turn| turn.violations.is_empty()),
            "{policy:?}"
        );
        assert!(!turns[5].reasons.is_empty());
        let plan = steward.plan().unwrap();
        let view = world.host.view(world.now());
        for guest in &guests {
            let given = plan.guest(&guest.id).unwrap();
            if given.run == ostler_model::RunState::Suspended {
                assert!(view.frozen(guest.group));
                continue;
            }
            for thread in &guest.vcpus {
                assert!(
                    view.allowed(*thread).is_subset(&given.vcpu_cpus),
                    "{policy:?}"
                );
            }
            for thread in &guest.vhost {
                assert!(
                    view.allowed(*thread).is_subset(&given.vhost_cpus),
                    "{policy:?}"
                );
            }
        }
        for irq in &plan.nics[0].irqs {
            let at = world.work.irqs[irq.ring as usize][irq.queue as usize];
            assert!(irq.cpus.contains(at));
        }
        assert_eq!(world.work.xps, plan.nics[0].xps);
        assert_eq!(world.work.queues, plan.nics[0].queues);
        // What it saw adds up to what was: cores were never busier than time passed.
        for turn in &turns[1..] {
            assert_eq!(turn.snapshot.interval, Nanos(100 * MILLISECOND));
            for cpu in &turn.snapshot.cpus {
                assert!(cpu.busy <= turn.snapshot.interval);
            }
            let threads: u64 = turn
                .snapshot
                .guests
                .iter()
                .flat_map(|guest| {
                    let vcpus = guest.vcpus.iter().map(|vcpu| vcpu.usage.run.0);
                    vcpus.chain(guest.vhost.iter().map(|vhost| vhost.usage.run.0))
                })
                .sum();
            let cores: u64 = turn.snapshot.cpus.iter().map(|cpu| cpu.busy.0).sum();
            assert_eq!(threads, cores, "only guests do anything here");
        }
    }
}

#[test]
fn energy_gives_fewer_cores_than_there_are_and_the_guest_still_does_its_work() {
    let (mut world, guests) = world(MILLISECOND / 8);
    let mut intent = intent(PartitionPolicy::Energy);
    intent.guests.truncate(1);
    intent.default_class = Class::Unmanaged;
    let mut steward = steward(intent, guests[..1].to_vec());
    // Nobody else is there: a hog that nobody manages would be anywhere.
    world.work.lives[1] = false;
    world
        .act(|host, scene| host.set_frozen(guests[1].group, true, scene))
        .unwrap();
    run(&mut world, &mut steward, 50);
    let plan = steward.plan().unwrap();
    let held = plan.groups.vcpu.len() + plan.groups.nq.len();
    assert!(held < 6, "{:?}", plan.groups);
    let view = world.host.view(world.now());
    let ran: u64 = guests[0]
        .vcpus
        .iter()
        .map(|thread| view.thread_time(*thread).ran)
        .sum();
    assert!(
        ran as f64 > 0.95 * 4.0 / 8.0 * world.now().0 as f64,
        "{ran}"
    );
}

#[test]
fn a_vcpu_stays_in_its_cache_group_while_its_guest_asks_and_the_host_grants_it() {
    let (mut world, guests) = world(MILLISECOND / 4);
    let mut hinted = intent(TIME_SHARING);
    hinted.hints = Some(ostler_model::HintsIntent::default());
    hinted.guests[0].terms.hints = true;
    let mut with = steward(hinted, guests.clone());
    let allowed = |world: &World<Fakes>, guest: &StewardGuest| -> Vec<CpuSet> {
        let view = world.host.view(world.now());
        guest.vcpus.iter().map(|v| view.allowed(*v)).collect()
    };
    run(&mut world, &mut with, 2);
    let all = CpuSet::range(0, 8);
    assert_eq!(allowed(&world, &guests[0]), [all; 4]);
    world.work.asks = Some(0);
    let turns = run(&mut world, &mut with, 2);
    assert!(turns.iter().all(|turn| turn.violations.is_empty()));
    let groups = [CpuSet::range(0, 4), CpuSet::range(4, 8)];
    let kept = allowed(&world, &guests[0]);
    assert!(kept.iter().all(|cpus| groups.contains(cpus)), "{kept:?}");
    assert_eq!(allowed(&world, &guests[1]), [all; 4], "who isn't asked of");
    let plan = with.plan().unwrap();
    let hints = plan.hints.as_ref().unwrap();
    assert_eq!(hints.kept(&guests[0].id).count(), 4);
    world.work.asks = None;
    run(&mut world, &mut with, 1);
    assert_eq!(allowed(&world, &guests[0]), [all; 4]);
}

#[test]
fn a_vcpu_that_never_ran_is_nowhere() {
    let (mut world, mut guests) = world(MILLISECOND / 4);
    let spawn = Spawn {
        group: Some(guests[0].group),
        ..Spawn::default()
    };
    world.work.threads.push((0, 0));
    guests[0].vcpus.push(world.host.spawn(spawn, Nanos::ZERO));
    let mut hinted = intent(TIME_SHARING);
    hinted.hints = Some(ostler_model::HintsIntent::default());
    hinted.guests[0].terms.hints = true;
    let mut with = steward(hinted, guests);
    let turns = run(&mut world, &mut with, 2);
    for turn in turns.iter().skip(1) {
        let wishes = turn.snapshot.wishes.iter();
        let mut of = wishes.filter(|wishes| wishes.guest == "lc".into());
        let vcpus = &of.next().unwrap().vcpus;
        let known: Vec<_> = vcpus.iter().map(|vcpu| vcpu.cpu.is_some()).collect();
        assert_eq!(known, [true, true, true, true, false]);
        let shown = turn.plan.hints.as_ref().unwrap();
        let groups: Vec<_> = shown.guests[0]
            .vcpus
            .iter()
            .map(|v| v.group.is_some())
            .collect();
        assert_eq!(groups, known);
    }
}

#[test]
fn the_boost_scheduler_comes_and_goes_with_the_plan() {
    let (mut world, guests) = world(MILLISECOND / 4);
    let mut boosted = intent(TIME_SHARING);
    boosted.boost = Some(BoostSettings::default());
    let mut with = steward(boosted, guests.clone());
    let turns = run(&mut world, &mut with, 10);
    assert!(turns.iter().all(|turn| turn.violations.is_empty()));
    let view = world.host.view(world.now());
    assert!(view.boost_guests().is_some());
    assert!(view.boosts(guests[0].vcpus[0]).is_some());
}

#[test]
fn the_same_world_and_seed_give_the_same_periods() {
    let periods = || {
        let (mut world, guests) = world(MILLISECOND / 3);
        let mut steward = steward(intent(PartitionPolicy::Resource), guests);
        let turns = run(&mut world, &mut steward, 20);
        let periods = turns.iter().map(|turn| steward.period(turn));
        (periods.collect::<Vec<_>>(), world.queue.taken())
    };
    assert_eq!(periods(), periods());
}
