//! What was seen on a host in one period.

use serde::{Deserialize, Serialize};

use crate::{
    CpuId, CpuSet, FilesView, FlowView, GuestId, GuestMemory, GuestWishes, IrqId, Nanos, NodeView,
    Pid, RunnableView, SocketView, Tid,
};

/// Everything sensed in one period. Counters are differences over [`Snapshot::interval`], never totals since boot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Counts up from 1 by one for each snapshot of a run.
    pub seq: u64,
    /// When it was taken, on the host's monotonic clock.
    pub at: Nanos,
    /// The time since the snapshot before it; zero for the first, whose counters are all zero.
    pub interval: Nanos,
    /// Per online CPU, ascending.
    pub cpus: Vec<CpuUsage>,
    /// Guests found, in order of [`GuestId`].
    pub guests: Vec<GuestView>,
    /// The physical NICs that the intent names, by name.
    pub nics: Vec<NicView>,
    /// Host-wide event counts.
    pub counters: HostCounters,
    /// What the machine itself counted, per CPU in ascending order; empty where it can't be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pmu: Vec<CpuPmu>,
    /// The same per guest, in order of [`GuestId`]: what CPUs did as its vCPUs. Empty where the machine can't tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guest_pmu: Vec<GuestPmu>,
    /// Free memory, per node in order; a node that isn't here is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeView>,
    /// Guests' memory, in order of [`GuestId`]; of one that isn't here, nothing is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<GuestMemory>,
    /// Sockets' counters, in order of node; empty where they aren't read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<SocketView>,
    /// Packets by queue and guest, in order of NIC and queue; empty where nobody counts them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowView>,
    /// Runnable vCPUs per CPU, ascending; a CPU that isn't here is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runnable: Vec<RunnableView>,
    /// Where vCPUs are and what guests ask for them, in order of [`GuestId`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wishes: Vec<GuestWishes>,
    /// Guests' file services in the host, in order of [`GuestId`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FilesView>,
}

/// Where a CPU's time went in the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuUsage {
    /// Which CPU.
    pub cpu: CpuId,
    /// Time not idle: tasks, guests, interrupts and softirqs.
    pub busy: Nanos,
    /// Of it, in hard interrupts.
    pub irq: Nanos,
    /// Of it, in softirqs (ksoftirqd counts as a task).
    pub softirq: Nanos,
    /// Of it, in tasks that yield to all others: of a cgroup that is idle for the scheduler (`cpu.idle`). `None` where nobody counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yielding: Option<Nanos>,
}

/// Event counts over the interval; `None` where the host can't tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCounters {
    /// Context switches.
    pub ctx_switches: Option<u64>,
    /// Tasks moved between CPUs.
    pub migrations: Option<u64>,
    /// Interrupts of all kinds.
    pub irqs: Option<u64>,
    /// Exits from guests.
    pub kvm_exits: Option<u64>,
}

/// What a CPU's own counters tell of the interval. Emulated machines have them (`ostler lab`); no others are read yet.
///
/// Its `elapsed` is the CPU's own: its record is written a few microseconds before it is read, or when the CPU halted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuPmu {
    /// Which CPU.
    pub cpu: CpuId,
    /// The time that all of this is about.
    pub elapsed: Nanos,
    /// Of it, halted.
    pub halted: Nanos,
    /// Instructions executed.
    pub instructions: u64,
    /// Accesses to memory by what served them; `None` where the machine doesn't model caches.
    pub accesses: Option<Accesses>,
}

/// What CPUs did as a guest's vCPUs in the interval, by the machine's own counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestPmu {
    /// Which guest.
    pub id: GuestId,
    /// Time that its vCPUs executed, their hypervisor's work for them left out.
    pub executed: Nanos,
    /// Instructions executed.
    pub instructions: u64,
    /// Accesses to memory by what served them.
    pub accesses: Accesses,
}

impl GuestPmu {
    /// A guest that has done nothing.
    pub fn new(id: GuestId) -> GuestPmu {
        GuestPmu {
            id,
            executed: Nanos::ZERO,
            instructions: 0,
            accesses: Accesses::default(),
        }
    }

    /// Adds what the same guest did in another interval, or as another vCPU.
    pub fn add(&mut self, more: &GuestPmu) {
        self.executed = self.executed.saturating_add(more.executed);
        self.instructions = self.instructions.saturating_add(more.instructions);
        self.accesses.add(&more.accesses);
    }
}

/// Accesses to memory: fetches of instructions, loads, stores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accesses {
    /// Served by the core's first cache.
    pub l1: u64,
    /// By its second.
    pub l2: u64,
    /// By its group's cache.
    pub l3: u64,
    /// By another core's or group's cache.
    pub peer: u64,
    /// By memory of the core's own node.
    pub local: u64,
    /// By memory of another node with cores.
    pub remote: u64,
    /// By memory of a node without cores: a CXL device or pool.
    pub pool: u64,
    /// Time that they took beyond first-cache hits.
    pub stall: Nanos,
    /// Of it, waiting for memory whose bandwidth was used up.
    pub queued: Nanos,
    /// Other caches asked for data, or told to give a line up.
    pub snoops_sent: u64,
    /// Snoops that came from others.
    pub snoops_received: u64,
    /// Bytes read from and written back to each memory node.
    pub node_bytes: Vec<u64>,
}

impl CpuPmu {
    /// Adds what the same CPU did in another interval.
    pub fn add(&mut self, more: &CpuPmu) {
        self.cpu = more.cpu;
        self.elapsed = self.elapsed.saturating_add(more.elapsed);
        self.halted = self.halted.saturating_add(more.halted);
        self.instructions = self.instructions.saturating_add(more.instructions);
        if let Some(more) = &more.accesses {
            self.accesses.get_or_insert_default().add(more);
        }
    }
}

impl Accesses {
    fn add(&mut self, more: &Accesses) {
        let counts = [
            (&mut self.l1, more.l1),
            (&mut self.l2, more.l2),
            (&mut self.l3, more.l3),
            (&mut self.peer, more.peer),
            (&mut self.local, more.local),
            (&mut self.remote, more.remote),
            (&mut self.pool, more.pool),
            (&mut self.stall.0, more.stall.0),
            (&mut self.queued.0, more.queued.0),
            (&mut self.snoops_sent, more.snoops_sent),
            (&mut self.snoops_received, more.snoops_received),
        ];
        for (count, more) in counts {
            *count = count.saturating_add(more);
        }
        let nodes = self.node_bytes.len().max(more.node_bytes.len());
        self.node_bytes.resize(nodes, 0);
        for (bytes, more) in self.node_bytes.iter_mut().zip(&more.node_bytes) {
            *bytes = bytes.saturating_add(*more);
        }
    }

    /// By what served them, nearest first, with the names that metrics and people see.
    pub fn levels(&self) -> [(&'static str, u64); 7] {
        [
            ("l1", self.l1),
            ("l2", self.l2),
            ("l3", self.l3),
            ("peer", self.peer),
            ("local", self.local),
            ("remote", self.remote),
            ("pool", self.pool),
        ]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.levels().iter().map(|(_, count)| count).sum()
    }
}

/// A thread's scheduling in the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadUsage {
    /// Time on a CPU.
    pub run: Nanos,
    /// Time runnable but waiting for a CPU.
    pub wait: Nanos,
}

/// One guest, as its host sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestView {
    /// Its id.
    pub id: GuestId,
    /// Its name (`-name`, or libvirt's domain name). Chosen by whoever runs the guest: not to be trusted as a path or markup.
    pub name: String,
    /// Its UUID, where it has one.
    pub uuid: Option<String>,
    /// Key=value labels from libvirt's metadata, in order of key.
    pub metadata: Vec<(String, String)>,
    /// Who told of it.
    pub source: GuestSource,
    /// The QEMU process.
    pub pid: Pid,
    /// Where that process is in the cgroup v2 tree, relative to its root: `/machine.slice/...`.
    pub cgroup: Option<String>,
    /// Whether it is frozen by the cgroup freezer.
    pub frozen: bool,
    /// Its vCPUs in order of index.
    pub vcpus: Vec<VcpuView>,
    /// Its vhost workers in order of queue.
    pub vhost: Vec<VhostView>,
    /// Its other threads: the main loop, io threads, migration.
    pub emulator: Vec<Tid>,
    /// Its tap interfaces.
    pub taps: Vec<TapView>,
    /// The vsock context id by which its agent is reached.
    pub vsock_cid: Option<u32>,
    /// Request-response times on its taps.
    pub latency: Option<LatencyView>,
    /// What its agent last said, if one ever answered.
    pub agent: Option<AgentView>,
    /// How long ago its threads were last known to be those that QMP or libvirt told of: zero, unless some came or went since then and its
    /// monitor has yet to say what they are.
    pub age: Nanos,
}

/// Who told of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestSource {
    /// A QMP socket.
    Qmp,
    /// libvirt.
    Libvirt,
}

/// A vCPU and its thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VcpuView {
    /// The guest's number of it.
    pub index: u32,
    /// Its thread.
    pub tid: Tid,
    /// The CPUs it may run on now.
    pub allowed: CpuSet,
    /// Its scheduling in the interval.
    pub usage: ThreadUsage,
}

/// A vhost worker: the host's half of a vNIC queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VhostView {
    /// Its thread.
    pub tid: Tid,
    /// The queue pair it serves, counted over all the guest's vNICs in their order; `None` when that can't be told.
    pub queue: Option<u32>,
    /// The CPUs it may run on now.
    pub allowed: CpuSet,
    /// Its scheduling in the interval.
    pub usage: ThreadUsage,
}

/// A guest's tap interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapView {
    /// Its interface name.
    pub name: String,
    /// The MAC address that the guest sees on its side, lower case with colons, where it is known.
    pub guest_mac: Option<String>,
    /// Queue pairs of the tap.
    pub queues: u32,
}

/// Request-response times of the most recent window that saw any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyView {
    /// Responses seen in the window.
    pub responses: u64,
    /// Median.
    pub p50: Nanos,
    /// 95th percentile.
    pub p95: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// How long before [`Snapshot::at`] the window ended; zero when it is this period's.
    pub age: Nanos,
}

/// What the host knows of a guest's agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentView {
    /// Whether it can be relied on.
    pub health: AgentHealth,
    /// Its last valid word, if any.
    pub state: Option<AgentState>,
    /// How old that word is.
    pub age: Nanos,
}

/// Whether an agent can be relied on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentHealth {
    /// Answers in time and within bounds.
    Healthy,
    /// Does not answer.
    Silent,
    /// Answers too late.
    Slow,
    /// Said something that can't be; what it was.
    Lying(String),
    /// Refused to act; why.
    Refused(String),
}

/// What an agent says of its guest, within the bounds that the host knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentState {
    /// vCPUs online in the guest, by index.
    pub vcpus_online: Vec<u32>,
    /// vCPUs that the guest's work is confined to, by index.
    pub vcpus_active: Vec<u32>,
    /// Queue pairs in use on the managed vNIC.
    pub queues: u32,
    /// Queue pairs it has at the most.
    pub queues_max: u32,
}

/// A physical NIC in this period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicView {
    /// Its interface name.
    pub name: String,
    /// Receive queues that its RSS indirection table spreads over now.
    pub queues: u32,
    /// Its queue interrupts, in order of ring and queue.
    pub irqs: Vec<IrqView>,
}

/// Which ring of a NIC's queue pair an interrupt serves. Many drivers have one vector for both (`TxRx`), some one for each.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Ring {
    /// The receive ring, and where the vector is the pair's the transmit ring too.
    #[default]
    Receive,
    /// The transmit ring alone: what was sent is gone.
    Transmit,
}

impl Ring {
    /// Whether it is the receive ring, which is what a record means that doesn't say.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
    pub(crate) fn is_receive(&self) -> bool {
        *self == Ring::Receive
    }
}

/// A queue interrupt of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqView {
    /// The line.
    pub irq: IrqId,
    /// The queue it serves.
    pub queue: u32,
    /// The ring of it.
    #[serde(default, skip_serializing_if = "Ring::is_receive")]
    pub ring: Ring,
    /// The CPUs it may be delivered to.
    pub affinity: CpuSet,
    /// How often it fired in the interval.
    pub count: u64,
}

impl Snapshot {
    /// The guest of this id.
    pub fn guest(&self, id: &GuestId) -> Option<&GuestView> {
        self.guests
            .binary_search_by(|guest| guest.id.cmp(id))
            .ok()
            .map(|at| &self.guests[at])
    }

    /// The summed busy share of these CPUs over the interval, in cores: 1.5 is one core and a half. Zero for an empty interval.
    pub fn busy_cores(&self, cpus: &CpuSet) -> f64 {
        if self.interval == Nanos::ZERO {
            return 0.0;
        }
        let busy: u64 = self
            .cpus
            .iter()
            .filter(|usage| cpus.contains(usage.cpu))
            .map(|usage| usage.busy.0.min(self.interval.0))
            .sum();
        busy as f64 / self.interval.0 as f64
    }
}
