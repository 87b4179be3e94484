//! What can be wrong with a plan.

use crate::HintsViolation;
use ostler_model::{Bytes, Class, CpuId, CpuSet, CpuWeight, Group, GuestId, IrqId, Layer, NodeId};

/// A rule that a plan breaks: what, and on what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Generations don't count up by one.
    #[error("generation {found} doesn't follow generation {parent}")]
    Generation {
        /// The one before.
        parent: u64,
        /// The plan's.
        found: u64,
    },
    /// The plan names another parent than the plan before it.
    #[error("the plan follows generation {found:?}, but the last one was {expected}")]
    Parent {
        /// The last plan's generation.
        expected: u64,
        /// What the plan names.
        found: Option<u64>,
    },
    /// The plan rests on another snapshot.
    #[error("the plan was decided for another time than that of its snapshot")]
    At,
    /// CPUs that aren't online or aren't managed.
    #[error("{what} has CPUs {cpus}, which aren't the steward's")]
    NotManaged {
        /// Who has them.
        what: Holder,
        /// Which.
        cpus: CpuSet,
    },
    /// CPUs that are kept for the host.
    #[error("{what} has CPUs {cpus}, which are reserved for the host")]
    Reserved {
        /// Who has them.
        what: Holder,
        /// Which.
        cpus: CpuSet,
    },
    /// The plan's reserved CPUs aren't the intent's.
    #[error("the plan reserves CPUs {found}, the intent {expected}")]
    ReservedDiffer {
        /// As the intent has it, of those managed.
        expected: CpuSet,
        /// As the plan has it.
        found: CpuSet,
    },
    /// CPUs with two owners.
    #[error("CPUs {cpus} are in both the {first} and the {second} group")]
    TwoOwners {
        /// Which.
        cpus: CpuSet,
        /// One owner.
        first: Group,
        /// The other.
        second: Group,
    },
    /// CPUs without owner.
    #[error("CPUs {cpus} are in no group")]
    NoOwner {
        /// Which.
        cpus: CpuSet,
    },
    /// A group that something needs has no CPU.
    #[error("the {group} group is empty, but {needed_by} needs it")]
    EmptyGroup {
        /// Which.
        group: Group,
        /// By what.
        needed_by: &'static str,
    },
    /// Best-effort cores without best-effort guests.
    #[error("CPUs {cpus} are for best-effort guests, of which there are none")]
    NobodysCores {
        /// Which.
        cpus: CpuSet,
    },
    /// Siblings of a physical core in different groups.
    #[error("the SMT siblings of CPU {core} are in different groups")]
    SiblingsSplit {
        /// The lowest numbered CPU of the core.
        core: CpuId,
    },
    /// Guests aren't in order of id, or one is planned twice.
    #[error("guest {guest} is planned twice or out of order")]
    GuestOrder {
        /// Which.
        guest: GuestId,
    },
    /// A plan for a guest that isn't there.
    #[error("guest {guest} is planned, but isn't there")]
    UnknownGuest {
        /// Which.
        guest: GuestId,
    },
    /// A plan for a guest that is to be left as it is found.
    #[error("guest {guest} is planned, but unmanaged")]
    UnmanagedGuest {
        /// Which.
        guest: GuestId,
    },
    /// A managed guest without a plan.
    #[error("guest {guest} is managed, but not planned")]
    MissingGuest {
        /// Which.
        guest: GuestId,
    },
    /// A guest of another class than the intent's.
    #[error("guest {guest} is planned as {found}, but it is {expected}")]
    GuestClass {
        /// Which.
        guest: GuestId,
        /// As the intent has it.
        expected: Class,
        /// As the plan has it.
        found: Class,
    },
    /// A guest that runs has nowhere to run.
    #[error("{what} has no CPU to run on")]
    Nowhere {
        /// Which threads.
        what: Holder,
    },
    /// A guest's threads on CPUs that are for others.
    #[error("{what} has CPUs {cpus}, which are for others")]
    Trespass {
        /// Whose threads.
        what: Holder,
        /// On which CPUs.
        cpus: CpuSet,
    },
    /// A guest that isn't best-effort is suspended.
    #[error("guest {guest} is {class}, and only best-effort guests may be suspended")]
    Suspended {
        /// Which.
        guest: GuestId,
        /// Its class.
        class: Class,
    },
    /// A guest is suspended though there are cores for it.
    #[error("guest {guest} is suspended, though CPUs {cpus} are free for it")]
    SuspendedNeedlessly {
        /// Which.
        guest: GuestId,
        /// The cores.
        cpus: CpuSet,
    },
    /// A guest is suspended by a policy that never does.
    #[error("guest {guest} is suspended, which the policy in force doesn't do")]
    SuspendedByPolicy {
        /// Which.
        guest: GuestId,
    },
    /// A guest that isn't best-effort is given a CPU weight.
    #[error(
        "guest {guest} is {class} and is given a CPU weight ({weight}): only best-effort guests may be"
    )]
    Weighed {
        /// Which.
        guest: GuestId,
        /// Its class.
        class: Class,
        /// The weight.
        weight: CpuWeight,
    },
    /// A weight that the kernel doesn't take, or by which a best-effort guest doesn't yield.
    #[error("guest {guest} is given a CPU weight of {weight}, which is not from 1 to 99")]
    WeightBounds {
        /// Which.
        guest: GuestId,
        /// The weight.
        weight: u32,
    },
    /// A guest is given a weight on cores that it shares with no latency-critical guest.
    #[error(
        "guest {guest} is given a CPU weight, and shares no core with a latency-critical guest"
    )]
    WeighedNeedlessly {
        /// Which.
        guest: GuestId,
    },
    /// A guest is given a weight by a policy or for an operator that wants none.
    #[error(
        "guest {guest} is given a CPU weight ({weight}), and the configuration asks for {expected}"
    )]
    WeighedUnasked {
        /// Which.
        guest: GuestId,
        /// The weight.
        weight: CpuWeight,
        /// What the configuration asks for.
        expected: CpuWeight,
    },
    /// A best-effort guest competes with latency-critical ones as their equal, though the configuration has it yield.
    #[error(
        "guest {guest} doesn't yield on CPUs {cpus}, which it shares with latency-critical guests"
    )]
    NotWeighed {
        /// Which.
        guest: GuestId,
        /// The cores.
        cpus: CpuSet,
    },
    /// Pins for another number of threads than there are.
    #[error("{what} has {pins} pins for {threads} threads")]
    PinCount {
        /// Whose.
        what: Holder,
        /// Pins.
        pins: usize,
        /// Threads in the snapshot.
        threads: usize,
    },
    /// A pin outside of where the threads may run.
    #[error("{what} has a pin to CPU {cpu}, where it may not run")]
    PinOutside {
        /// Whose.
        what: Holder,
        /// Where to.
        cpu: CpuId,
    },
    /// An agent is asked for a number of vCPUs that its guest doesn't have.
    #[error("guest {guest} is asked to use {asked} vCPUs of {most}")]
    VcpusAsked {
        /// Which guest.
        guest: GuestId,
        /// What it is asked.
        asked: u32,
        /// What it has.
        most: u32,
    },
    /// An agent is asked for a number of queues that its vNIC doesn't have.
    #[error("guest {guest} is asked to use {asked} queues of {most}")]
    QueuesAsked {
        /// Which guest.
        guest: GuestId,
        /// What it is asked.
        asked: u32,
        /// What it has.
        most: u32,
    },
    /// Something is asked of an agent that can't be relied on.
    #[error("guest {guest} is asked for something, but has no agent to rely on")]
    NobodyToAsk {
        /// Which guest.
        guest: GuestId,
    },
    /// A NIC that isn't there, isn't the steward's, or is planned twice or out of order.
    #[error("NIC {nic} is planned, but isn't the steward's to plan, or planned already")]
    UnknownNic {
        /// Which.
        nic: String,
    },
    /// A NIC in the steward's care without a plan.
    #[error("NIC {nic} is the steward's, but not planned")]
    MissingNic {
        /// Which.
        nic: String,
    },
    /// More or fewer queues than the device can have.
    #[error("NIC {nic} is given {queues} queues of {most}")]
    NicQueues {
        /// Which.
        nic: String,
        /// Given.
        queues: u32,
        /// What it has.
        most: u32,
    },
    /// The number of queues changes on a NIC that can't change it while up.
    #[error("NIC {nic} goes from {from} to {to} queues, but its RSS table can't be set")]
    NicQueuesFixed {
        /// Which.
        nic: String,
        /// Now.
        from: u32,
        /// Planned.
        to: u32,
    },
    /// The interrupts planned aren't those of the device.
    #[error(
        "the planned interrupts of NIC {nic} aren't those it has: {irq} is missing or too many"
    )]
    NicIrqs {
        /// Which.
        nic: String,
        /// The first that differs.
        irq: IrqId,
    },
    /// An interrupt goes nowhere, or where network queues have no core.
    #[error("interrupt {irq} of NIC {nic} goes to CPUs {cpus}, which aren't for network queues")]
    IrqElsewhere {
        /// Which NIC.
        nic: String,
        /// Which interrupt.
        irq: IrqId,
        /// Where to.
        cpus: CpuSet,
    },
    /// XPS or RPS entries for queues that the device doesn't have.
    #[error("NIC {nic} has {what} for {entries} queues of {most}")]
    SteeringEntries {
        /// Which NIC.
        nic: String,
        /// `XPS` or `RPS`.
        what: &'static str,
        /// Entries.
        entries: usize,
        /// Queues it has.
        most: u32,
    },
    /// XPS names CPUs that aren't online, or RPS some that aren't for network queues.
    #[error(
        "{what} of queue {queue} of NIC {nic} has CPUs {cpus}, which can't or shouldn't serve it"
    )]
    SteeringElsewhere {
        /// Which NIC.
        nic: String,
        /// `XPS` or `RPS`.
        what: &'static str,
        /// Which queue.
        queue: usize,
        /// Which CPUs.
        cpus: CpuSet,
    },
    /// XPS sends by a queue that is out of use.
    #[error("XPS of NIC {nic} lets CPUs send by queue {queue}, which is out of use")]
    SendsByUnusedQueue {
        /// Which NIC.
        nic: String,
        /// Which queue.
        queue: usize,
    },
    /// The boost is asked for, can be had, and isn't planned.
    #[error("vCPUs are to be scheduled by who does IO, and aren't")]
    NotBoosted,
    /// The boost isn't asked for, or otherwise.
    #[error("vCPUs are scheduled by who does IO as nobody asked for")]
    BoostedUnasked,
    /// Guests that take part are not in order, each once.
    #[error("guest {guest} is out of order among those whose vCPUs are scheduled by who does IO")]
    BoostOrder {
        /// Which guest.
        guest: GuestId,
    },
    /// It has no part in it: it is nobody's, or a rule excepts it.
    #[error("vCPUs of guest {guest} are scheduled by who does IO, which they aren't to be")]
    BoostedGuest {
        /// Which guest.
        guest: GuestId,
    },
    /// It is to take part and doesn't.
    #[error("vCPUs of guest {guest} aren't scheduled by who does IO, as they are to be")]
    BoostLeftOut {
        /// Which guest.
        guest: GuestId,
    },
    /// vhost workers wait with vCPUs on cores that they don't share, or don't where they are to.
    #[error(
        "vhost workers are {} wait with vCPUs, against what is asked for and whether they share cores",
        if *.planned { "to" } else { "not to" }
    )]
    BoostWorkers {
        /// What is planned.
        planned: bool,
    },
    /// Its vCPUs have a scheduler that knows no weights.
    #[error("guest {guest} has the weight {weight}, which the scheduler of its vCPUs doesn't know")]
    BoostedAndWeighed {
        /// Which guest.
        guest: GuestId,
        /// Its weight.
        weight: CpuWeight,
    },
    /// Cores that can't share a queue: too many, none, or some that are in another domain.
    #[error(
        "cores {cpus} can't share a queue of vCPUs (in another one already: {twice}; up to 16 can)"
    )]
    BoostDomain {
        /// Which cores.
        cpus: CpuSet,
        /// Those that are elsewhere, too.
        twice: CpuSet,
    },
    /// Cores without a queue, or queues for cores that aren't online.
    #[error("queues of vCPUs are for cores {placed}, and online are {online}")]
    BoostCores {
        /// Those with a queue.
        placed: CpuSet,
        /// Those online.
        online: CpuSet,
    },
    /// A layer decided what nobody asked it for, or where it has no part.
    #[error("the plan has a section of {layer}, or things in it, that nobody asked for")]
    Unasked {
        /// Which.
        layer: Layer,
    },
    /// A layer's section is of the future.
    #[error("the section of {layer} is as of a later time than the plan")]
    Since {
        /// Which.
        layer: Layer,
    },
    /// A layer's section is out of order, or has something twice.
    #[error("the section of {layer} is out of order, or has something twice")]
    Twice {
        /// Which.
        layer: Layer,
    },
    /// What is placed isn't there, isn't in use, or isn't the steward's to place.
    #[error("{what} is placed, but isn't there to be placed")]
    PlacedNothing {
        /// What.
        what: Holder,
    },
    /// Files of a guest that isn't there, isn't managed, or has none.
    #[error("files of guest {guest} have a size, and it is to have none")]
    NobodysFiles {
        /// Which.
        guest: GuestId,
    },
    /// A guest's files have more than they wish for, or wish for more than they may have.
    #[error("files of guest {guest} have {bytes} bytes, and are to have {most} at the most")]
    FilesBeyond {
        /// Whose.
        guest: GuestId,
        /// What they have.
        bytes: Bytes,
        /// The most.
        most: Bytes,
    },
    /// A guest's files grow beyond their least before another's have theirs.
    #[error(
        "files of guest {before} grow beyond their least before those of guest {guest} have theirs"
    )]
    LeastLast {
        /// Who is short of it.
        guest: GuestId,
        /// Who goes first.
        before: GuestId,
    },
    /// Memory of a guest that isn't there, isn't managed, or of which nothing was seen lately.
    #[error(
        "memory of guest {guest} is planned, and nothing is known of it or it isn't the steward's"
    )]
    NobodysMemory {
        /// Which.
        guest: GuestId,
    },
    /// A guest is to have more or less memory than it has.
    #[error("guest {guest} is to have {planned} bytes of memory, and has {seen}")]
    MemoryLost {
        /// Which.
        guest: GuestId,
        /// Local and far memory together, as planned.
        planned: u128,
        /// As seen.
        seen: u128,
    },
    /// The plan says of all guests that they press, and they don't, or otherwise.
    #[error("the plan is {} all guests press, against their classes", if *.peak { "one in which" } else { "none in which" })]
    Peak {
        /// What it says.
        peak: bool,
    },
    /// Memory moves between nodes of one tier, or that aren't there.
    #[error(
        "memory of guest {guest} moves from node {from} to node {to}, which aren't one near and one far"
    )]
    MovesNowhere {
        /// Whose.
        guest: GuestId,
        /// From here.
        from: NodeId,
        /// To here.
        to: NodeId,
    },
    /// A guest's memory moves both ways, beyond what it is to have, or from where it has none.
    #[error(
        "memory of guest {guest} moves both ways, beyond what it is to have, or from where it has none"
    )]
    MovesBeyond {
        /// Whose.
        guest: GuestId,
    },
    /// Ranges aren't as large as what moves, or are told though none are known.
    #[error("{bytes} bytes of guest {guest} move, and their ranges have {ranges}")]
    RangesDiffer {
        /// Whose.
        guest: GuestId,
        /// How much moves.
        bytes: Bytes,
        /// What the ranges have.
        ranges: u128,
    },
    /// A range moves that the guest doesn't have there.
    #[error("the range at {start:#x} of guest {guest} moves, and isn't where it moves from")]
    RangeElsewhere {
        /// Whose.
        guest: GuestId,
        /// Its first address.
        start: u64,
    },
    /// A range moves twice.
    #[error("the range at {start:#x} of guest {guest} moves twice")]
    RangeTwice {
        /// Whose.
        guest: GuestId,
        /// Its first address.
        start: u64,
    },
    /// Memory moves to where there is no room for it.
    #[error("{bytes} bytes move to node {node}, where {free} are free by then")]
    NodeFull {
        /// Where to.
        node: NodeId,
        /// How much.
        bytes: u128,
        /// What there is.
        free: u128,
    },
    /// A guest or a tenant is left with less local memory than it is to have at the least.
    #[error("{whose} is left with {left} bytes of local memory, and has a floor of {floor}")]
    FloorBroken {
        /// The guest or the tenant.
        whose: String,
        /// Its floor.
        floor: u128,
        /// What is left.
        left: u128,
    },
    /// A guest makes way while one that uses its memory less keeps more than its floor.
    #[error(
        "guest {guest} makes way, while guest {keeps}, which uses its memory less, keeps more than its floor"
    )]
    OutOfLine {
        /// Who makes way.
        guest: GuestId,
        /// Who doesn't.
        keeps: GuestId,
    },
    /// All guests press, and more goes far than floors, the reserve and files' leasts need.
    #[error("{bytes} bytes go far though all guests press, and {may} may")]
    MovedAtPeak {
        /// How much.
        bytes: u128,
        /// How much may.
        may: u128,
    },
    /// A layer gives out more memory than it may.
    #[error("{layer} gives out {bytes} bytes of a budget of {budget}")]
    Budget {
        /// Which.
        layer: Layer,
        /// How many bytes.
        bytes: u128,
        /// What it may.
        budget: Bytes,
    },
    /// A layer gives out memory that somebody else has.
    #[error("{layer} gives out {bytes} bytes more than before, and {free} are free")]
    NotFree {
        /// Which.
        layer: Layer,
        /// How many bytes.
        bytes: u128,
        /// How many nobody has.
        free: u128,
    },
    /// Hints break one of their own rules.
    #[error("hints: {0}")]
    Hints(HintsViolation),
    /// Something that has one place has two.
    #[error("{what} is to be on CPU {first} and on CPU {second}")]
    TwoPlaces {
        /// What.
        what: Holder,
        /// The one.
        first: String,
        /// The other.
        second: String,
    },
}

/// Who has CPUs, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A group.
    Group(Group),
    /// A guest's vCPUs.
    Vcpus(GuestId),
    /// A guest's vhost workers.
    Vhost(GuestId),
    /// A guest's other threads.
    Emulator(GuestId),
    /// A queue of a NIC.
    Queue(String, u32),
    /// An interrupt line.
    Irq(IrqId),
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::Group(group) => write!(f, "the {group} group"),
            Holder::Vcpus(guest) => write!(f, "guest {guest} (vCPUs)"),
            Holder::Vhost(guest) => write!(f, "guest {guest} (vhost workers)"),
            Holder::Emulator(guest) => write!(f, "guest {guest} (other threads)"),
            Holder::Queue(nic, queue) => write!(f, "queue {queue} of NIC {nic}"),
            Holder::Irq(irq) => write!(f, "interrupt {irq}"),
        }
    }
}
