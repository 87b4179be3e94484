//! Worlds for tests: guests of every kind in a model of the kernel, what happens to them, and plans for them.
#![allow(dead_code)] // Each test binary uses a part.

pub mod kernel;
pub mod run;
pub mod schedulers;

use std::sync::Arc;

use kernel::{CPUS, Kernel, State};
use ostler_model::{
    BoostPlan, BoostSettings, Class, Cpu, CpuId, CpuSet, CpuWeight, Facts, GuestId, GuestPlan,
    GuestSource, GuestView, HintsPlan, IrqId, IrqPlan, Nanos, NicFacts, NicPlan, NodeId, Pid,
    PinDecision, PinRefusal, PinVerdict, Plan, Ring, RunState, Snapshot, ThreadUsage, Tid,
    Topology, VcpuView, VhostView,
};

/// How a guest is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In a cgroup of its own.
    Own,
    /// In a shell's.
    Shared,
    /// In libvirt's tree.
    Libvirt,
    /// Where no threaded children can be.
    Blocked,
}

#[derive(Clone, Debug)]
pub struct Guest {
    pub id: GuestId,
    pub kind: Kind,
    /// The cgroup that it was found in.
    pub home: String,
    pub pid: u32,
    pub vcpus: Vec<u32>,
    pub vhost: Vec<u32>,
    pub emulator: Vec<u32>,
}

/// A small generator: worlds and plans are functions of a number, so that a failing case is one number.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn cpus(&mut self, of: u32) -> CpuSet {
        let bits = 1 + self.roll((1 << of) - 1);
        (0..of)
            .filter(|cpu| bits & (1 << cpu) != 0)
            .map(CpuId)
            .collect()
    }
}

#[derive(Clone, Debug, Default)]
pub struct World {
    pub guests: Vec<Guest>,
    cpus: u32,
    next: u32,
    generation: u64,
    /// What the operator has best-effort guests weigh; a world has one word for it, as a configuration has.
    pub weight: CpuWeight,
}

pub fn facts() -> Facts {
    facts_of(CPUS)
}

pub fn facts_of(cpus: u32) -> Facts {
    Facts {
        topology: Topology {
            cpus: (0..cpus)
                .map(|id| Cpu {
                    id: CpuId(id),
                    node: NodeId(0),
                    core: CpuId(id),
                    cache_group: CpuId(0),
                })
                .collect(),
        },
        nics: vec![NicFacts {
            name: "eth9".into(),
            queues_max: 4,
            rss_settable: true,
            node: None,
        }],
        ..Facts::default()
    }
}

impl World {
    /// These guests, on so many CPUs.
    pub fn of(guests: Vec<Guest>, cpus: u32) -> World {
        World {
            guests,
            cpus,
            weight: CpuWeight::Idle,
            ..World::default()
        }
    }

    /// A host with a few guests, all at once or of the kinds told.
    pub fn build(dice: &mut Dice, kinds: &[Kind], state: &mut State) -> World {
        let mut world = World {
            cpus: CPUS,
            next: 1000,
            weight: match dice.roll(4) {
                0 => CpuWeight::Weight(20),
                _ => CpuWeight::Idle,
            },
            ..World::default()
        };
        state.mkdir("/machine.slice");
        state.mkdir("/user.slice/session.scope");
        state.spawn(900, 900, 1, "/user.slice/session.scope");
        for cgroup in ["/", "/machine.slice", "/user.slice"] {
            state
                .cgroups
                .get_mut(cgroup)
                .unwrap()
                .subtree
                .insert("memory".into());
        }
        if dice.roll(2) == 0 {
            for cgroup in ["/", "/machine.slice"] {
                let subtree = &mut state.cgroups.get_mut(cgroup).unwrap().subtree;
                subtree.insert("cpuset".into());
            }
        }
        let weighed = dice.roll(2) == 0;
        state.idle_weighs = u32::try_from(dice.roll(2)).unwrap();
        if weighed {
            for cgroup in ["/", "/machine.slice"] {
                let subtree = &mut state.cgroups.get_mut(cgroup).unwrap().subtree;
                subtree.insert("cpu".into());
            }
        }
        for (n, &kind) in kinds.iter().enumerate() {
            world.add(dice, n, kind, state);
            let scope = match kind {
                Kind::Own => format!("/machine.slice/g{n}.scope"),
                Kind::Libvirt => format!("/machine.slice/qemu-{n}.scope"),
                Kind::Shared | Kind::Blocked => continue,
            };
            // An operator's own weights.
            let scope = state.cgroups.get_mut(&scope).unwrap();
            match dice.roll(4) {
                0 if weighed => scope.weight = 50,
                1 if weighed => scope.idle = true,
                _ => {}
            }
        }
        world
    }

    fn add(&mut self, dice: &mut Dice, n: usize, kind: Kind, state: &mut State) {
        let id = if n == 0 { "web/../x" } else { "guest" };
        let name = format!("{id}{n}");
        let home = match kind {
            Kind::Own => format!("/machine.slice/g{n}.scope"),
            Kind::Shared => "/user.slice/session.scope".into(),
            Kind::Libvirt => format!("/machine.slice/qemu-{n}.scope/libvirt/emulator"),
            Kind::Blocked => "/odd/x".into(),
        };
        state.mkdir(&home);
        if kind == Kind::Blocked {
            state.spawn(901, 901, 1, "/odd");
        }
        let pid = self.next_tid();
        let mut guest = Guest {
            id: GuestId::from(name.as_str()),
            kind,
            home: home.clone(),
            pid,
            vcpus: Vec::new(),
            vhost: Vec::new(),
            emulator: vec![pid],
        };
        for _ in 0..=dice.roll(3) {
            guest.vcpus.push(self.next_tid());
        }
        for _ in 0..dice.roll(3) {
            guest.vhost.push(self.next_tid());
        }
        guest.emulator.push(self.next_tid());
        let threads = guest
            .vcpus
            .iter()
            .chain(&guest.vhost)
            .chain(&guest.emulator);
        for &tid in threads {
            state.spawn(pid, tid, u64::from(tid) * 7, &home);
        }
        if kind == Kind::Libvirt {
            let scope = format!("/machine.slice/qemu-{n}.scope");
            let domain = format!("{scope}/libvirt");
            for cgroup in ["/", "/machine.slice", &scope, &domain] {
                let subtree = &mut state.cgroups.get_mut(cgroup).unwrap().subtree;
                subtree.insert("cpuset".into());
            }
            state.cgroups.get_mut(&home).unwrap().threaded = true;
            for (index, tid) in guest.vcpus.iter().enumerate() {
                let path = format!("{domain}/vcpu{index}");
                state.mkdir(&path);
                let cgroup = state.cgroups.get_mut(&path).unwrap();
                cgroup.threaded = true;
                // libvirt sets one only for pinned vCPUs.
                if dice.roll(2) == 0 {
                    cgroup.cpus = dice.cpus(CPUS);
                }
                state.tasks.get_mut(tid).unwrap().cgroup = path;
            }
        }
        self.guests.push(guest);
    }

    fn next_tid(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Something that happens on the host by itself, in all these kernels alike.
    pub fn happen(&mut self, dice: &mut Dice, kernels: &[&Kernel]) {
        if self.guests.is_empty() {
            return;
        }
        let at = usize::try_from(dice.roll(self.guests.len() as u64)).unwrap();
        match dice.roll(8) {
            0 => {
                let guest = self.guests.remove(at);
                let scope = (guest.kind == Kind::Own && dice.roll(2) == 0).then_some(guest.home);
                for kernel in kernels {
                    let state = &mut kernel.lock().state;
                    state.tasks.retain(|_, task| task.pid != guest.pid);
                    // systemd removes the cgroup of a unit that ended, with all that is in it.
                    if let Some(scope) = &scope {
                        let within = |path: &String| path.starts_with(scope.as_str());
                        state.cgroups.retain(|path, _| !within(path));
                    }
                }
            }
            1 | 2 => {
                let guest = &mut self.guests[at];
                let tid = match dice.roll(2) {
                    0 => guest.vhost.pop(),
                    _ if guest.emulator.len() > 1 => guest.emulator.pop(),
                    _ => None,
                };
                for kernel in kernels {
                    if let Some(tid) = tid {
                        kernel.lock().state.tasks.remove(&tid);
                    }
                }
            }
            _ => {
                let tid = self.next_tid();
                let guest = &mut self.guests[at];
                let mut plugged = None;
                match dice.roll(3) {
                    0 => guest.vhost.push(tid),
                    1 => {
                        plugged = (guest.kind == Kind::Libvirt).then(|| {
                            let domain = guest.home.trim_end_matches("/emulator");
                            format!("{domain}/vcpu{}", guest.vcpus.len())
                        });
                        guest.vcpus.push(tid);
                    }
                    _ => guest.emulator.push(tid),
                }
                for kernel in kernels {
                    let state = &mut kernel.lock().state;
                    // Born beside its process's leader, with its affinity.
                    let mut task = state.tasks[&guest.pid].clone();
                    task.start = u64::from(tid) * 7;
                    // libvirt gives a vCPU that it plugs in a cgroup.
                    if let Some(path) = &plugged {
                        state.mkdir(path);
                        state.cgroups.get_mut(path).unwrap().threaded = true;
                        task.cgroup.clone_from(path);
                    }
                    state.tasks.insert(tid, task);
                }
            }
        }
    }

    pub fn snapshot(&self, kernel: &Kernel) -> Snapshot {
        let inner = kernel.lock();
        let state = &inner.state;
        let mut guests: Vec<GuestView> = self
            .guests
            .iter()
            .map(|guest| GuestView {
                id: guest.id.clone(),
                name: guest.id.to_string(),
                uuid: None,
                metadata: Vec::new(),
                source: GuestSource::Qmp,
                pid: Pid(guest.pid),
                cgroup: Some(state.tasks[&guest.pid].cgroup.clone()),
                frozen: false,
                vcpus: (0..)
                    .zip(&guest.vcpus)
                    .map(|(index, &tid)| VcpuView {
                        index,
                        tid: Tid(tid),
                        allowed: state.effective(&state.tasks[&tid].cgroup),
                        usage: ThreadUsage::default(),
                    })
                    .collect(),
                vhost: guest
                    .vhost
                    .iter()
                    .map(|&tid| VhostView {
                        tid: Tid(tid),
                        queue: None,
                        allowed: CpuSet::EMPTY,
                        usage: ThreadUsage::default(),
                    })
                    .collect(),
                emulator: guest.emulator.iter().copied().map(Tid).collect(),
                taps: Vec::new(),
                vsock_cid: None,
                latency: None,
                agent: None,
                age: ostler_model::Nanos::ZERO,
            })
            .collect();
        guests.sort_by(|a, b| a.id.cmp(&b.id));
        Snapshot {
            guests,
            ..Snapshot::default()
        }
    }

    /// A plan in which all guests are best-effort and run on the same two cores, save for what is said of each by its place.
    pub fn even_plan(&self, say: impl Fn(usize, &mut GuestPlan)) -> Plan {
        let cpus = CpuSet::range(0, 2);
        let guests = self.guests.iter().enumerate();
        let mut guests: Vec<GuestPlan> = guests
            .map(|(at, guest)| {
                let mut given = GuestPlan {
                    guest: guest.id.clone(),
                    class: Class::BestEffort,
                    run: RunState::Running,
                    vcpu_cpus: cpus,
                    vcpu_pins: Vec::new(),
                    vhost_cpus: cpus,
                    vhost_pins: Vec::new(),
                    emulator_cpus: cpus,
                    weight: CpuWeight::Untouched,
                    vcpus_active: None,
                    queues: None,
                };
                say(at, &mut given);
                given
            })
            .collect();
        guests.sort_by(|a, b| a.guest.cmp(&b.guest));
        Plan {
            guests,
            ..Plan::default()
        }
    }

    /// A plan for all guests; some may be unmanaged in it, or not in it at all.
    pub fn plan(&mut self, dice: &mut Dice) -> Plan {
        self.generation += 1;
        let mut guests: Vec<GuestPlan> = Vec::new();
        for guest in &self.guests {
            let class = match dice.roll(8) {
                0 => continue,
                1 => Class::Unmanaged,
                2..=4 => Class::BestEffort,
                _ => Class::LatencyCritical,
            };
            let suspended = class == Class::BestEffort && dice.roll(2) == 0;
            let weight = match dice.roll(4) {
                _ if class != Class::BestEffort => CpuWeight::Untouched,
                0 => CpuWeight::Untouched,
                1 => CpuWeight::AsFound,
                _ => self.weight,
            };
            let mut vcpu_cpus = dice.cpus(self.cpus);
            if suspended && dice.roll(2) == 0 {
                vcpu_cpus = CpuSet::EMPTY;
            }
            let vhost_cpus = dice.cpus(self.cpus);
            let mut pins = |cpus: &CpuSet, n: usize| -> Vec<CpuId> {
                if dice.roll(2) == 0 || cpus.is_empty() {
                    return Vec::new();
                }
                let cpus: Vec<CpuId> = cpus.iter().collect();
                cpus.iter().copied().cycle().take(n).collect()
            };
            guests.push(GuestPlan {
                guest: guest.id.clone(),
                class,
                run: if suspended {
                    RunState::Suspended
                } else {
                    RunState::Running
                },
                vcpu_pins: pins(&vcpu_cpus, guest.vcpus.len()),
                vhost_pins: pins(&vhost_cpus, guest.vhost.len()),
                vcpu_cpus,
                vhost_cpus,
                emulator_cpus: dice.cpus(self.cpus),
                weight,
                vcpus_active: None,
                queues: None,
            });
        }
        guests.sort_by(|a, b| a.guest.cmp(&b.guest));
        let nics = if dice.roll(4) == 0 {
            Vec::new()
        } else {
            vec![NicPlan {
                name: "eth9".into(),
                queues: u32::try_from(1 + dice.roll(4)).unwrap(),
                irqs: (0..4)
                    .map(|queue| IrqPlan {
                        irq: IrqId(20 + queue),
                        queue: queue / 2,
                        ring: [Ring::Receive, Ring::Transmit][queue as usize % 2],
                        cpus: dice.cpus(self.cpus),
                    })
                    .collect(),
                xps: (0..4).map(|_| dice.cpus(self.cpus)).collect(),
                rps: if dice.roll(2) == 0 {
                    vec![CpuSet::EMPTY; 4]
                } else {
                    vec![dice.cpus(self.cpus)]
                },
            }]
        };
        let boost = (dice.roll(2) == 0).then(|| BoostPlan {
            settings: BoostSettings::default(),
            domains: vec![CpuSet::range(0, CPUS)],
            workers: dice.roll(2) == 0,
            guests: self
                .guests
                .iter()
                .map(|guest| guest.id.clone())
                .filter(|_| dice.roll(3) > 0)
                .collect(),
        });
        let hints = Some(Arc::new(self.wishes(&guests, dice)));
        Plan {
            generation: self.generation,
            guests,
            nics,
            boost,
            hints,
            ..Plan::default()
        }
    }

    /// Some of the vCPUs that float are kept on some of their guest's cores, and some aren't that their guest asked for.
    fn wishes(&self, given: &[GuestPlan], dice: &mut Dice) -> HintsPlan {
        let mut pins = Vec::new();
        for given in given {
            let guest = self.guests.iter().find(|guest| guest.id == given.guest);
            let cpus: Vec<CpuId> = given.vcpu_cpus.iter().collect();
            if !given.vcpu_pins.is_empty() || cpus.is_empty() {
                continue;
            }
            for (vcpu, _) in (0..).zip(guest.iter().flat_map(|guest| &guest.vcpus)) {
                let verdict = match dice.roll(3) {
                    0 => continue,
                    1 => PinVerdict::Refused(PinRefusal::Crowded),
                    _ => PinVerdict::Granted {
                        cpus: cpus.iter().skip(cpus.len() / 2).copied().collect(),
                        charged: cpus[cpus.len() / 2],
                        since: Nanos::ZERO,
                    },
                };
                pins.push(PinDecision {
                    guest: given.guest.clone(),
                    vcpu,
                    verdict,
                });
            }
        }
        HintsPlan {
            pins,
            ..HintsPlan::default()
        }
    }
}
