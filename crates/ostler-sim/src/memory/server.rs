//! A server with local and far memory on which a trace's VMs come and go (thesis, section 5.6.2), under a policy that says which of their memory is where.
//!
//! A VM that comes and fits is given all its memory at once, as clouds do; one that doesn't goes elsewhere. Every five minutes the trace says what each VM's cores do, and what that comes to for its memory is
//! drawn for each VM: misses by busy core, interrupts for those that somebody waits for, and how much of its memory is hot. Between these, second by second, the policy decides and memory moves, until there is nothing
//! to move. Which pages go when a VM's share changes is its own choice: the coldest go far, the hottest come near (section 5.4.3).
//!
//! All policies have the same VMs: who fits goes by local and far memory together, and that is the same for all. So what is left unused of local memory is theirs alone, and it can't be less than what
//! all VMs together leave: [`Outcome::least_unused`].

use ostler_model::{
    Bytes, Class, Cpu, CpuId, CpuSet, CpuUsage, Facts, GuestId, GuestMemory, GuestSource,
    GuestView, Intent, MemoryFacts, MemoryNode, Nanos, NodeBytes, NodeId, NodeView, Pid, Plan,
    Snapshot, State, TierSettings, Topology,
};
use ostler_policy::Decider;
use ostler_policy::tier::baselines::{Pages, Shift, Watermarks, balloons, pages};
use ostler_policy::tier::class::{Thresholds, Use, Watch};
use ostler_policy::tier::moves::{self, Guests, Host, Mover, Settings};
use ostler_policy::tier::proportion::{Claim, Files, Order, Targets};

use super::{Allocation, Memory, Move, Node};
use crate::random::Stream;
use crate::trace::generate::{self, Trace};
use crate::trace::{Category, Reading, STEP, Vm};
use crate::work::FULL_SPEED;

const NEAR: usize = 0;
const FAR: usize = 1;

/// A server and what comes to it.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its nodes: local memory, and far memory.
    pub nodes: [Node; 2],
    /// Who comes and goes.
    pub trace: generate::Settings,
    /// How the tier layer works; others move at the same rate.
    pub tier: TierSettings,
}

/// Who says which memory is where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    /// Nobody: so much of each VM's is local when it comes, and that stays.
    Split(f64),
    /// The host, by pages: cold ones go far while less than this share of local memory is free, hot ones come near while more is free than the other.
    Pages {
        /// The one.
        demote: f64,
        /// The other.
        promote: f64,
    },
    /// The host, by balloons.
    Balloons,
    /// The thesis' own order.
    Fifo,
    /// The tier layer, in the steward's own decisions.
    Tier,
}

/// What a run comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// How long it was, s.
    pub seconds: f64,
    /// The share of local memory that nobody had, in the mean.
    pub unused: f64,
    /// What of it all VMs together were too small for.
    pub least_unused: f64,
    /// What all VMs had, of all that there is, in the mean.
    pub load: f64,
    /// The most that they ever had of it.
    pub load_max: f64,
    /// Bytes that were moved.
    pub moved: u64,
    /// Bytes that were to move and couldn't.
    pub dropped: u64,
    /// VMs that came, and those of them that didn't fit.
    pub came: u64,
    /// Likewise.
    pub refused: u64,
    /// How much longer the work of VMs took that press on their memory than with all of it near, in the mean.
    pub slower: f64,
    /// Plans that break a rule.
    pub violations: u64,
    /// The share of local memory that nobody had, every five minutes.
    pub over_time: Vec<f64>,
}

/// A VM that is there, by what it does to its memory.
struct Tenant {
    vm: Vm,
    id: GuestId,
    came: Nanos,
    watch: Watch,
    /// Misses a second of a core that is busy all the time.
    misses: f64,
    /// Interrupts likewise.
    interrupts: f64,
    /// What of its memory is hot, and warm.
    heat: [f64; 2],
    seen: Use,
}

struct World<'a> {
    server: &'a Server,
    by: By,
    memory: Memory,
    tenants: Vec<Tenant>,
    draw: Stream,
    /// Of the policy.
    decider: Decider,
    facts: Facts,
    intent: Intent,
    state: State,
    plan: Option<Plan>,
    mover: Mover,
    targets: Targets,
    told: Outcome,
}

impl Server {
    /// The thesis' server: local memory, half as much far memory, and its testbed's 768 GB of the former. A load from far memory takes 2.5 times as long, by a CXL device of eight lanes.
    pub fn thesis(population: u32, seconds: u64, seed: u64) -> Server {
        let node = |gib: u64, local, latency_ns, bytes_per_s| Node {
            bytes: gib << 30,
            local,
            latency_ns,
            bytes_per_s,
        };
        Server {
            nodes: [node(768, true, 100.0, 200e9), node(384, false, 250.0, 25e9)],
            trace: generate::Settings {
                population,
                seconds,
                seed,
            },
            // The layer's own hold is ten of its intervals; here readings are five minutes apart.
            tier: TierSettings {
                hold: Nanos::from_secs(10 * STEP),
                ..TierSettings::default()
            },
        }
    }

    /// Lets the trace's VMs come and go.
    pub fn run(&self, by: By) -> Outcome {
        let mut trace = generate::generate(&self.trace);
        let mut world = World::new(self, by);
        let mut readings = Vec::new();
        let mut next = 0;
        while let Some(at) = trace.step(&mut readings) {
            world.leave(at);
            next = world.come(&trace, next, at);
            world.work(&readings);
            world.pass(at);
        }
        world.told.moved = world.memory.moved;
        world.told.dropped = world.memory.dropped;
        let told = &mut world.told;
        let samples = told.over_time.len().max(1) as f64;
        told.slower /= samples;
        for mean in [&mut told.unused, &mut told.least_unused, &mut told.load] {
            *mean /= told.seconds.max(1.0);
        }
        world.told
    }

    fn rate(&self) -> u64 {
        self.tier.bytes_per_s.0
    }
}

impl<'a> World<'a> {
    fn new(server: &'a Server, by: By) -> World<'a> {
        let rate = server.rate() as f64;
        World {
            server,
            by,
            memory: Memory::new(server.nodes.to_vec(), rate),
            tenants: Vec::new(),
            draw: Stream::new(server.trace.seed, "server", 0),
            decider: Decider::default(),
            facts: facts(&server.nodes),
            intent: Intent {
                default_class: Class::BestEffort,
                tier: Some(server.tier.clone()),
                ..Intent::default()
            },
            state: State::default(),
            plan: None,
            mover: Mover::default(),
            targets: Targets::default(),
            told: Outcome::default(),
        }
    }

    fn leave(&mut self, now: u64) {
        let memory = &mut self.memory;
        self.tenants.retain(|tenant| {
            let stays = now <= tenant.vm.deleted;
            if !stays {
                memory.take_away(&tenant.id);
            }
            stays
        });
    }

    /// Those that are created by now come, in order; from where on others are to come.
    fn come(&mut self, trace: &Trace, next: usize, now: u64) -> usize {
        let mut at = next;
        while let Some(vm) = trace.vms.get(at).filter(|vm| vm.created <= now) {
            at += 1;
            self.told.came += 1;
            let mut own = Stream::new(self.server.trace.seed, "use", vm.id.0);
            let misses = own.log_normal(2e6, 1.0);
            let hot = if own.chance(0.5) { 0.1 } else { 0.2 };
            let io = vm.category == Category::Interactive;
            let tenant = Tenant {
                vm: *vm,
                id: GuestId::from(format!("vm-{:07}", vm.id.0).as_str()),
                came: Nanos::from_secs(now),
                watch: Watch::default(),
                misses,
                interrupts: if io { 5000.0 } else { 50.0 },
                heat: [hot, 0.3],
                seen: Use::default(),
            };
            let [hot, warm] = tenant.heat.map(|share| part(vm.memory, share));
            let bytes = [hot, warm, vm.memory - hot - warm];
            let allocation = match self.by {
                By::Split(share) => Allocation::Split(share),
                _ => Allocation::LocalFirst,
            };
            // The host's own stays free in some way, and a step to move in.
            let tier = &self.server.tier;
            let kept = tier.reserve.0 + tier.step.0;
            let fits = vm.memory + kept <= self.memory.free(NEAR) + self.memory.free(FAR);
            let memory = &mut self.memory;
            if !fits
                || memory
                    .give(&tenant.id, bytes, allocation, &mut self.draw)
                    .is_err()
            {
                self.told.refused += 1;
                continue;
            }
            let place = self.tenants.partition_point(|there| there.id < tenant.id);
            self.tenants.insert(place, tenant);
        }
        at
    }

    /// VMs do what their readings say.
    fn work(&mut self, readings: &[Reading]) {
        for tenant in &mut self.tenants {
            let reading = readings.iter().find(|reading| reading.vm == tenant.vm.id);
            let busy = reading.map_or(0.0, |reading| reading.mean / 100.0);
            let cores = busy * f64::from(tenant.vm.cores);
            let misses = cores * tenant.misses;
            tenant.seen = Use {
                misses_per_s: Some(misses),
                hot: None,
                bytes: tenant.vm.memory,
                io_per_s: Some(cores * tenant.interrupts),
            };
            self.memory.presses(&tenant.id, misses, tenant.misses);
        }
    }

    /// Five minutes pass.
    fn pass(&mut self, from: u64) {
        let mut left = STEP;
        while left > 0 {
            let now = Nanos::from_secs(from + STEP - left);
            self.decide(now);
            // Where there is nothing to move, nothing changes until the next readings.
            let time = if self.memory.under_way() == 0 {
                left
            } else {
                1
            };
            self.memory.pass(Nanos::from_secs(time));
            left -= time;
            self.tell(time);
        }
        self.told
            .over_time
            .push(share(self.memory.free(NEAR), self.server.nodes[NEAR].bytes));
        let pressing: Vec<f64> = self
            .tenants
            .iter()
            .filter(|tenant| tenant.seen.presses(&thresholds(&self.server.tier)) == Some(true))
            .map(|tenant| f64::from(self.memory.slowdown(&tenant.id)) / f64::from(FULL_SPEED) - 1.0)
            .collect();
        if !pressing.is_empty() {
            self.told.slower += pressing.iter().sum::<f64>() / pressing.len() as f64;
        }
    }

    fn tell(&mut self, time: u64) {
        let [near, far] = self.server.nodes.map(|node| node.bytes);
        let seconds = time as f64;
        let free = self.memory.free(NEAR);
        let had = near - free + (far - self.memory.free(FAR));
        let load = share(had, near + far);
        self.told.seconds += seconds;
        self.told.unused += seconds * share(free, near);
        self.told.least_unused += seconds * share(near.saturating_sub(had), near);
        self.told.load += seconds * load;
        self.told.load_max = self.told.load_max.max(load);
    }

    fn decide(&mut self, now: Nanos) {
        match self.by {
            By::Split(_) => {}
            By::Pages { demote, promote } => self.by_pages(demote, promote),
            By::Balloons => {
                let local = self.server.nodes[NEAR].bytes;
                let sizes: Vec<u64> = self.tenants.iter().map(|there| there.vm.memory).collect();
                let most = local - self.server.tier.reserve.0.min(local);
                balloons(most, &sizes, &mut self.targets.local);
                self.targets.floors.clear();
                self.targets.floors.resize(sizes.len(), 0);
                self.targets.line.clear();
                self.targets.line.extend(0..sizes.len());
                self.targets.pressing = 0;
                self.shift();
            }
            By::Fifo => {
                let by = thresholds(&self.server.tier);
                let mut claims = Vec::with_capacity(self.tenants.len());
                for tenant in &mut self.tenants {
                    let class = tenant.watch.class(now, &tenant.seen, &by);
                    let local = self
                        .memory
                        .guest(&tenant.id)
                        .map_or(0, |guest| guest.on(NEAR));
                    claims.push(Claim {
                        class: class.unwrap_or(ostler_model::MemoryClass::Rest),
                        priority: false,
                        critical: false,
                        came: tenant.came,
                        bytes: tenant.vm.memory,
                        local,
                        floor: 0,
                        tenant: None,
                    });
                }
                let local = self.server.nodes[NEAR].bytes;
                let most = local - self.server.tier.reserve.0.min(local);
                self.targets
                    .pour(most, &claims, &[], Files::default(), Order::Fifo);
                self.shift();
            }
            By::Tier => self.by_the_steward(now),
        }
    }

    /// Pages by their heat, a second's worth.
    fn by_pages(&mut self, demote: f64, promote: f64) {
        let there: Vec<Pages> = self
            .tenants
            .iter()
            .filter_map(|tenant| self.memory.guest(&tenant.id))
            .map(|guest| Pages {
                local: [0, 1, 2].map(|class| guest.part(NEAR, class)),
                far: [0, 1, 2].map(|class| guest.part(FAR, class)),
            })
            .collect();
        let local = self.server.nodes[NEAR].bytes;
        let marks = Watermarks {
            free: self.memory.free(NEAR),
            far_free: self.memory.free(FAR),
            demote: part(local, demote),
            promote: part(local, promote),
            budget: self.server.rate(),
        };
        let mut shifts = Vec::new();
        pages(&there, &marks, &mut shifts);
        let moves = shifts.iter().map(|shift: &Shift| {
            let (from, to) = if shift.near { (FAR, NEAR) } else { (NEAR, FAR) };
            Move {
                guest: self.tenants[shift.guest].id.clone(),
                class: shift.heat,
                from,
                to,
                bytes: shift.bytes,
            }
        });
        self.memory.order(moves);
    }

    /// Moves towards the targets, a second's worth.
    fn shift(&mut self) {
        let nodes = [NEAR, FAR].map(|node| moves::Node {
            far: node == FAR,
            free: self.memory.free(node),
        });
        let mut local = Vec::with_capacity(self.tenants.len());
        let mut both = Vec::with_capacity(2 * self.tenants.len());
        for tenant in &self.tenants {
            let guest = self.memory.guest(&tenant.id);
            let on = [NEAR, FAR].map(|node| guest.map_or(0, |had| had.on(node)));
            local.push(on[NEAR]);
            both.extend(on);
        }
        let by = Settings {
            budget: self.server.rate(),
            step: self.server.tier.step.0,
            reserve: self.server.tier.reserve.0,
        };
        let host = Host {
            nodes: &nodes,
            distances: &[],
        };
        let guests = Guests {
            on: &both,
            local: &local,
            target: &self.targets.local,
            floors: &self.targets.floors,
            line: &self.targets.line,
            pressing: self.targets.pressing,
        };
        self.mover
            .plan(&host, &guests, moves::Files::default(), &by);
        for piece in std::mem::take(&mut self.mover.pieces) {
            let id = self.tenants[piece.guest].id.clone();
            self.memory.shift(&id, piece.from, piece.to, piece.bytes);
        }
    }

    /// The steward's own decision.
    fn by_the_steward(&mut self, now: Nanos) {
        let seen = self.snapshot(now);
        let mut none = || 0;
        let decision = self.decider.decide(
            &self.facts,
            &seen,
            &self.intent,
            &self.state,
            now,
            &mut none,
        );
        let before = self.plan.as_ref();
        let broken = ostler_check::check(&self.facts, &seen, &self.intent, before, &decision.plan);
        self.told.violations += broken.len() as u64;
        if let Some(tier) = decision.plan.tier.as_ref().filter(|tier| tier.since == now) {
            for moves in &tier.moves {
                let [from, to] = [moves.from, moves.to].map(|node| node.0 as usize);
                self.memory.shift(&moves.guest, from, to, moves.bytes.0);
            }
        }
        self.state = decision.state;
        self.plan = Some(decision.plan);
    }

    fn snapshot(&self, now: Nanos) -> Snapshot {
        let node = |node| NodeId(u32::try_from(node).unwrap_or(0));
        let memory = self.tenants.iter().filter_map(|tenant| {
            let guest = self.memory.guest(&tenant.id)?;
            Some(GuestMemory {
                guest: tenant.id.clone(),
                nodes: [NEAR, FAR]
                    .map(|at| NodeBytes {
                        node: node(at),
                        bytes: Bytes(guest.on(at)),
                    })
                    .to_vec(),
                hot: tenant.seen.hot.map(Bytes),
                llc_misses_per_s: tenant.seen.misses_per_s,
                io_interrupts_per_s: tenant.seen.io_per_s,
                ranges: Vec::new(),
                age: Nanos::ZERO,
            })
        });
        Snapshot {
            at: now,
            interval: self.intent.period,
            cpus: self.facts.topology.cpus.iter().map(idle).collect(),
            guests: self.tenants.iter().map(view).collect(),
            nodes: [NEAR, FAR]
                .map(|at| NodeView {
                    node: node(at),
                    free: Bytes(self.memory.free(at)),
                    age: Nanos::ZERO,
                })
                .to_vec(),
            memory: memory.collect(),
            ..Snapshot::default()
        }
    }
}

fn thresholds(settings: &TierSettings) -> Thresholds {
    Thresholds {
        misses_per_s: settings.misses_per_s,
        hot_share: settings.hot_share,
        io_per_s: settings.io_per_s,
        hold: settings.hold,
    }
}

fn facts(nodes: &[Node; 2]) -> Facts {
    let nodes = nodes.iter().zip(0..);
    Facts {
        topology: Topology {
            cpus: (0..4)
                .map(|id| Cpu {
                    id: CpuId(id),
                    node: NodeId(0),
                    core: CpuId(id),
                    cache_group: CpuId(0),
                })
                .collect(),
        },
        memory: MemoryFacts {
            nodes: nodes
                .map(|(node, at)| MemoryNode {
                    node: NodeId(at),
                    bytes: Bytes(node.bytes),
                    far: !node.local,
                    latency: None,
                    bytes_per_s: None,
                })
                .collect(),
            distances: Vec::new(),
        },
        ..Facts::default()
    }
}

fn idle(cpu: &Cpu) -> CpuUsage {
    CpuUsage {
        cpu: cpu.id,
        busy: Nanos::ZERO,
        irq: Nanos::ZERO,
        softirq: Nanos::ZERO,
        yielding: Some(Nanos::ZERO),
    }
}

/// A guest of which only its memory is looked at.
fn view(tenant: &Tenant) -> GuestView {
    GuestView {
        id: tenant.id.clone(),
        name: tenant.id.as_str().to_owned(),
        uuid: None,
        metadata: Vec::new(),
        source: GuestSource::Qmp,
        pid: Pid(1),
        cgroup: None,
        frozen: false,
        vcpus: vec![ostler_model::VcpuView {
            index: 0,
            tid: ostler_model::Tid(1),
            allowed: CpuSet::EMPTY,
            usage: ostler_model::ThreadUsage::default(),
        }],
        vhost: Vec::new(),
        emulator: Vec::new(),
        taps: Vec::new(),
        vsock_cid: None,
        latency: None,
        agent: None,
        age: Nanos::ZERO,
    }
}

fn share(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of it"
)]
fn part(of: u64, share: f64) -> u64 {
    (of as f64 * share.clamp(0.0, 1.0)) as u64
}
