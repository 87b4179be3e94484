//! Small worlds in which everything happens that can, and what came of them in one number.

use std::fmt::Write as _;

use ostler_model::{
    BoostPlan, BoostSettings, Cpu, CpuId, CpuSet, GuestHints, LoadDegree, Nanos, NodeId, Topology,
    VcpuHint, VirtualGroup,
};
use ostler_sim::guest::GuestSpec;
use ostler_sim::guest::spec::{Placement, Workload};
use ostler_sim::host::{GroupId, HostCosts, Kernel, Spawn};
use ostler_sim::load::{Arrivals, LoadSpec, PACKETS, PACKETS_NGINX, Step};
use ostler_sim::net::nic::NicSpec;
use ostler_sim::net::{STAGES, Stage};
use ostler_sim::path::Costs;
use ostler_sim::tenants::{Owner, Tenants, TenantsSpec};
use ostler_sim::work::ThreadId;
use ostler_sim::world::World;

const CORES: u32 = 16;

/// Who has the guests' threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The kernel's own scheduler.
    Fair,
    /// Likewise, and it is the lab's kernel.
    Lazy,
    /// The boost scheduler has vCPUs.
    Boost,
    /// And workers.
    BoostWorkers,
}

/// A world's threads, by guest: its cgroup, and its threads with whether they are workers.
pub type Guests = Vec<(GroupId, Vec<(ThreadId, bool)>)>;

/// Two nodes of two cache groups of two cores of two threads.
fn topology() -> Topology {
    let cpu = |id: u32| Cpu {
        id: CpuId(id),
        node: NodeId(id / 8),
        core: CpuId(id - id % 2),
        cache_group: CpuId(id - id % 4),
    };
    Topology {
        cpus: (0..CORES).map(cpu).collect(),
    }
}

fn guests() -> Vec<GuestSpec> {
    let costs = Costs::default();
    let guest = |name: &str, vcpus, queues, workload, placement| GuestSpec {
        placement,
        ..GuestSpec::new(name, vcpus, queues, workload, &costs)
    };
    let mut guests = vec![
        guest("memcached", 4, 2, Workload::Memcached, Placement::Pvm),
        guest("redis", 1, 1, Workload::Redis, Placement::Hvm),
        guest("nginx", 2, 2, Workload::Nginx, Placement::Pload),
        guest("echo", 2, 1, Workload::Echo, Placement::Hvm),
        guest("ping", 1, 1, Workload::Ping, Placement::Hvm),
        guest("mixed", 4, 2, Workload::Mixed, Placement::Hvm),
        guest("disk", 1, 1, Workload::DiskRead, Placement::Hvm),
        guest("spin", 4, 1, Workload::Spin, Placement::Hvm),
        guest("idle", 1, 1, Workload::Idle, Placement::Hvm),
        guest("barrier", 4, 1, Workload::Barrier, Placement::CgSched),
        guest("forward", 2, 2, Workload::Forward, Placement::Hvm),
        guest("files", 2, 1, Workload::Files, Placement::Hvm),
        guest("lock", 8, 1, Workload::Lock, Placement::CgSched),
    ];
    guests[0].halt_poll = Nanos::from_micros(50);
    guests
}

fn loads() -> Vec<LoadSpec> {
    let load = |route: &[u32], rate: f64, arrivals, packets| LoadSpec {
        route: route.to_vec(),
        connections: 16,
        depth: None,
        acknowledged: false,
        start: Nanos::ZERO,
        steps: vec![
            Step {
                rate,
                seconds: 0.05,
            },
            Step {
                rate: rate * 3.0,
                seconds: 0.05,
            },
            Step { rate, seconds: 1e9 },
        ],
        arrivals,
        packets,
        slo: Some(Nanos::from_millis(1)),
    };
    vec![
        load(&[0], 20_000.0, Arrivals::Etc, PACKETS),
        load(&[1], 8000.0, Arrivals::Poisson, PACKETS),
        load(&[2], 5000.0, Arrivals::Poisson, PACKETS_NGINX),
        load(&[3], 4000.0, Arrivals::Even, PACKETS),
        load(&[4], 1000.0, Arrivals::Even, PACKETS),
        load(&[5], 3000.0, Arrivals::Poisson, PACKETS_NGINX),
        load(&[10, 10, 0], 3000.0, Arrivals::Poisson, PACKETS),
        load(&[11], 20.0, Arrivals::Poisson, PACKETS),
    ]
}

/// A crowded world at its beginning.
pub fn crowded(seed: u64, class: Class) -> (World<Tenants>, Guests) {
    let topology = topology();
    let spec = TenantsSpec {
        guests: guests(),
        nic: NicSpec {
            queues: 4,
            ..NicSpec::default()
        },
        irq_cores: CpuSet::range(0, 4),
        loads: loads(),
        costs: Costs::default(),
        seed,
        first_thread: CORES,
        tiers: None,
    };
    let mut tenants = Tenants::new(spec, &topology).expect("tenants that can be");
    tenants.set_rps(1, [CpuId(5), CpuId(12)]);
    let owners = tenants.owners().to_vec();
    let mut known: Guests = Vec::new();
    let mut costs = HostCosts::of(CORES);
    if class == Class::Lazy {
        costs.kernel = Kernel::Linux7_3;
    }
    let mut world = World::new(&topology, costs, tenants);
    for owner in owners {
        let (guest, works) = match owner {
            Owner::Vcpu { guest, .. } => (guest, false),
            Owner::Vhost { guest, .. } => (guest, true),
        };
        if guest as usize == known.len() {
            known.push((world.host.add_group(), Vec::new()));
        }
        let spawn = Spawn {
            group: Some(known[guest as usize].0),
            ..Spawn::default()
        };
        let thread = world.host.spawn(spawn, Nanos::ZERO);
        known[guest as usize].1.push((thread, works));
    }
    set_class(&mut world, &known, class);
    world
        .act(|_, scene| scene.work.begin(scene.out))
        .expect("time goes on");
    (world, known)
}

fn set_class(world: &mut World<Tenants>, guests: &Guests, class: Class) {
    let plan = BoostPlan {
        settings: BoostSettings::default(),
        domains: vec![CpuSet::range(0, 8), CpuSet::range(8, CORES)],
        workers: class == Class::BoostWorkers,
        guests: Vec::new(),
    };
    let all = guests.iter().flat_map(|(_, threads)| threads);
    let members: Vec<_> = all
        .copied()
        .filter(|(_, works)| !works || plan.workers)
        .collect();
    let plan = (!matches!(class, Class::Fair | Class::Lazy)).then_some(&plan);
    world
        .act(|host, scene| host.set_boost(plan, &members, scene))
        .expect("time goes on");
}

/// Has everything done to a world that can be.
pub fn disturb(world: &mut World<Tenants>, guests: &Guests, class: Class) {
    let ms = Nanos::from_millis;
    let group = |name: usize| guests[name].0;
    let run = |world: &mut World<Tenants>, until| {
        assert_eq!(world.run(ms(until)), Ok(None));
    };
    run(world, 30);
    world
        .act(|host, scene| {
            host.set_cpuset(group(7), CpuSet::range(4, 8), scene);
            host.set_cpuset(group(0), CpuSet::range(0, 3), scene);
            host.set_weight(group(5), 300, false, scene.queue.now());
            host.set_weight(group(7), 100, true, scene.queue.now());
        })
        .expect("time goes on");
    run(world, 50);
    let hints = |guest: &str, vcpus: u16| GuestHints {
        guest: guest.into(),
        since: ms(50),
        groups: 2,
        vcpus: (0..vcpus)
            .map(|v| VcpuHint {
                group: Some(VirtualGroup(v / (vcpus / 2))),
                core: Some(v / 2 * 2),
                load: if v % 2 == 0 {
                    LoadDegree::Low
                } else {
                    LoadDegree::High
                },
            })
            .collect(),
    };
    world
        .act(|host, scene| {
            let now = scene.queue.now();
            scene.work.tell(&hints("lock", 8), now, scene.out);
            scene.work.tell(&hints("barrier", 4), now, scene.out);
            scene.work.tell(&hints("nginx", 2), now, scene.out);
            scene.work.ask_vcpus(2, 1, scene.out);
            host.set_frozen(group(9), true, scene);
            host.set_affinity(guests[8].1[0].0, CpuSet::single(CpuId(9)), scene);
        })
        .expect("time goes on");
    run(world, 80);
    world
        .act(|host, scene| {
            scene.work.kill(3, scene.queue.now(), scene.out);
            host.set_frozen(group(9), false, scene);
            host.set_cpuset(group(0), CpuSet::range(0, CORES), scene);
            scene.work.rest(6, true, scene.out);
            scene.work.set_nic_queues(2);
        })
        .expect("time goes on");
    run(world, 110);
    // Another class and back.
    for class in [Class::Boost, Class::Fair, class] {
        set_class(world, guests, class);
    }
    run(world, 150);
}

/// All that a world tells of itself, as FNV-1a has it.
pub fn digest(world: &mut World<Tenants>, guests: &Guests) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    let now = world.now();
    let view = world.host.view(now);
    put(&mut hash, &(now, view.counters(), view.energy_pj()));
    for cpu in &view.online() {
        let time = view.core_time(cpu);
        put(&mut hash, &(cpu, time, view.doing(cpu), view.running(cpu)));
    }
    for number in 0..view.threads() {
        let thread = ThreadId(number);
        put(&mut hash, &(view.thread_time(thread), view.state(thread)));
        put(&mut hash, &(view.cpu(thread), view.moves(thread)));
        put(&mut hash, &view.boosts(thread));
    }
    for (group, _) in guests {
        put(&mut hash, &view.delays(*group));
    }
    if let Some((accounts, limit)) = view.boost_guests() {
        let balances: Vec<_> = accounts.iter().map(|guest| guest.balance_ns).collect();
        put(&mut hash, &(balances, limit));
    }
    let tenants = &mut world.work;
    put(&mut hash, &tenants.net.totals());
    assert_eq!(Stage::ALL.len(), STAGES);
    for stage in Stage::ALL {
        put(&mut hash, &tenants.net.passed(stage));
    }
    for guest in 0..tenants.guests.len() {
        let number = u32::try_from(guest).expect("few guests");
        put(
            &mut hash,
            &(tenants.done(number).to_bits(), tenants.files(number)),
        );
        put(&mut hash, &tenants.take_latency(number));
        put(&mut hash, &tenants.guests[guest].groups());
        for vcpu in &tenants.guests[guest].vcpus {
            put(
                &mut hash,
                &(vcpu.accounts, vcpu.interrupts, vcpu.exit_count),
            );
        }
        for task in &tenants.guests[guest].tasks {
            put(&mut hash, &(task.ran, task.vcpu, task.activity));
        }
    }
    for worker in &tenants.workers {
        put(&mut hash, &(worker.ran, worker.kicks, worker.interrupts));
    }
    for client in &tenants.clients {
        let books = &client.books;
        let all = &books.all;
        put(&mut hash, &(books.sent, books.answered, books.lost));
        put(
            &mut hash,
            &(all.mean(), all.quantile(500), all.quantile(990)),
        );
    }
    hash.0
}

/// One world from beginning to end.
pub fn outcome(seed: u64, class: Class) -> u64 {
    let (mut world, guests) = crowded(seed, class);
    disturb(&mut world, &guests, class);
    let answered: u64 = world.work.clients.iter().map(|c| c.books.answered).sum();
    assert!(
        answered > 5000,
        "only {answered} answers: little has happened"
    );
    digest(&mut world, &guests)
}

struct Fnv(u64);

impl std::fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

fn put(hash: &mut Fnv, value: &impl std::fmt::Debug) {
    write!(hash, "{value:?};").expect("a number takes all");
}
