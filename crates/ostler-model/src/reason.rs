//! Why a plan is as it is: typed, so that programs can read it; shown as a sentence, so that people can.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, CpuWeight, Group, GuestId, LocalShares, MemoryClass, Nanos, Thresholds};

/// A layer of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// How many cores for whom.
    Partition,
    /// Which vCPU now.
    Boost,
    /// Which core for each thread on a packet's way.
    Placement,
    /// How much local and far memory for whom.
    Tier,
    /// How much memory for guests' files.
    Sizing,
    /// What guests may know, and what they ask.
    Hints,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Partition => "partition",
            Layer::Boost => "boost",
            Layer::Placement => "placement",
            Layer::Tier => "tier",
            Layer::Sizing => "sizing",
            Layer::Hints => "hints",
        })
    }
}

/// Something that was considered and turned down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// What it would have been.
    pub what: Cow<'static, str>,
    /// Why it was turned down.
    pub why: Cow<'static, str>,
}

/// Why a decision had no measurement to rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum Unmeasured {
    /// The first snapshot covers no time.
    NoInterval,
    /// The snapshot is too old to act on.
    Old {
        /// How old it is.
        age: Nanos,
        /// How old it may be.
        limit: Nanos,
    },
}

/// Why a group's demand was summed over threads and not over its cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ByThreads {
    /// Nothing is written, so that the group's threads are not on its cores.
    Observing,
    /// The group had no cores of its own in the interval.
    NoCoresYet,
    /// The policy goes by threads.
    Policy,
}

/// Why a guest's files wish for a size, or have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilesCause {
    /// They are newly looked after.
    New,
    /// The queueing model: with so much, tasks take as long as wanted.
    Model,
    /// The model: the least that was measured does.
    Ample,
    /// The model: nothing does, and from there on more makes no difference.
    OutOfReach,
    /// What the loop has learned of its own changes.
    Learned,
    /// No response time was seen.
    Blind,
    /// Memory was shared out anew.
    Share,
}

/// One step of a decision: its inputs, what was chosen, and what was not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Reason {
    /// A group's demand: cores kept busy over its threshold.
    Demand {
        /// Which group.
        group: Group,
        /// Summed busy share of its cores, in cores.
        busy_cores: f64,
        /// The threshold.
        threshold: f64,
        /// What it needs, in cores.
        required: f64,
    },
    /// A group's demand was higher within the hold, and that counts.
    Held {
        /// Which group.
        group: Group,
        /// Its demand in this period, in cores.
        busy: f64,
        /// The highest within the hold, in cores.
        peak: f64,
    },
    /// vCPUs have more cores than they need, as best-effort guests have what is left of them.
    Ample {
        /// What they need, with the margin.
        from: u32,
        /// What they have.
        to: u32,
    },
    /// Proportions are taken of averages over about the hold.
    Averaged {
        /// What vCPUs need on average, in cores.
        vcpu: f64,
        /// What network queues need on average, in cores.
        nq: f64,
    },
    /// A group's cores stay as they are.
    Hold {
        /// Which group.
        group: Group,
        /// How many it has.
        cores: u32,
    },
    /// A group is given more cores.
    Grow {
        /// Which group.
        group: Group,
        /// How many it had.
        from: u32,
        /// How many it has now.
        to: u32,
    },
    /// A group gives cores up.
    Shrink {
        /// Which group.
        group: Group,
        /// How many it had.
        from: u32,
        /// How many it has now.
        to: u32,
    },
    /// A group would have shrunk, but for the margin.
    KeptByMargin {
        /// Which group.
        group: Group,
        /// How many it keeps.
        cores: u32,
        /// How many bare demand asks for.
        bare: u32,
        /// The margin.
        margin: f64,
    },
    /// Demand exceeds the cores there are: they are divided in proportion.
    Contended {
        /// What all groups need together, in cores.
        required: f64,
        /// What there is.
        available: u32,
    },
    /// A best-effort guest that was suspended is given idle cores.
    Resume {
        /// Which guest.
        guest: GuestId,
        /// How many cores best-effort guests have.
        cores: u32,
    },
    /// A best-effort guest that ran is suspended: no core is idle.
    Suspend {
        /// Which guest.
        guest: GuestId,
    },
    /// Best-effort guests that are suspended stay so: no core is idle.
    StaySuspended {
        /// How many.
        guests: u32,
    },
    /// Thresholds were explored.
    Explored {
        /// Samples looked at.
        samples: u32,
        /// How many violated the objective.
        violations: u32,
        /// How many may.
        allowed: u32,
        /// Before.
        before: Thresholds,
        /// After.
        after: Thresholds,
    },
    /// A guest has no agent to ask: its queues and vCPU set stay as they are.
    NoAgent {
        /// Which guest.
        guest: GuestId,
        /// What is known of its agent.
        why: Cow<'static, str>,
    },
    /// A latency-critical guest's response times are unknown or old: it counts as neither met nor missed.
    NoLatency {
        /// Which guest.
        guest: GuestId,
        /// How old the last ones are, if there were any.
        age: Option<Nanos>,
    },
    /// Nothing was decided; the previous plan stays.
    Nothing {
        /// Why.
        why: Cow<'static, str>,
    },
    /// No demand could be measured: cores stay as they were, or are split evenly when nothing was decided before.
    Unmeasured(Unmeasured),
    /// A group's demand is the time its threads ran, and not the time its cores were busy.
    ByThreads {
        /// Which group.
        group: Group,
        /// Why.
        why: ByThreads,
    },
    /// SMT siblings are given together: what the reasons of this decision count as a core is a physical core.
    WholeCores {
        /// Physical cores there are.
        cores: u32,
        /// CPUs they have.
        cpus: u32,
    },
    /// There are fewer cores than groups: vCPUs and network queues share.
    TooFewCores {
        /// What there is.
        available: u32,
    },
    /// Nothing needs a core of this group.
    Unneeded {
        /// Which group.
        group: Group,
    },
    /// Demand is too small for its proportions to mean anything: the split stays.
    Quiet {
        /// What all groups need together, in cores.
        required: f64,
    },
    /// The margin would have kept cores that the other group needs.
    MarginGivenUp {
        /// Which group gave them up.
        group: Group,
        /// How many.
        cores: u32,
    },
    /// Where best-effort guests run.
    BestEffortOn {
        /// Which group.
        group: Group,
        /// How many cores it has.
        cores: u32,
    },
    /// Best-effort guests share cores with latency-critical ones, and yield to them there.
    Yield {
        /// How many cores they share.
        cores: u32,
        /// What they are given there.
        weight: CpuWeight,
    },
    /// A guest's thread lists are old: its threads are confined, but not pinned.
    OldView {
        /// Which guest.
        guest: GuestId,
        /// How old they are.
        age: Nanos,
    },
    /// A latency-critical guest is frozen, which the steward never does: it counts as without demand.
    Frozen {
        /// Which guest.
        guest: GuestId,
    },
    /// A guest has no vCPU threads.
    NoVcpus {
        /// Which guest.
        guest: GuestId,
    },
    /// A NIC that the intent names was not found.
    NicAbsent {
        /// Its interface name.
        nic: String,
    },
    /// A NIC's number of queues can't be changed while it is up: it stays.
    QueuesFixed {
        /// Its interface name.
        nic: String,
        /// How many it uses.
        queues: u32,
    },
    /// A layer isn't due: what it decided last stays.
    Stays {
        /// Which.
        layer: Layer,
        /// For so long.
        left: Nanos,
    },
    /// A layer has nothing to go by: what it decided last stays, if it did and can.
    NotSeen {
        /// Which.
        layer: Layer,
        /// What it would have gone by.
        what: Cow<'static, str>,
    },
    /// Threads on packets' ways were placed.
    Placed {
        /// Queues with traffic.
        queues: u32,
        /// Mean slowdown of a packet.
        slowdown: f64,
        /// The same as it was, where all threads were somewhere they may be.
        present: Option<f64>,
        /// It stays as it was: the better one wasn't better enough.
        kept: bool,
        /// Threads must gain so many times the margin to move, as moves haven't brought what they were made for; `None`: they have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wary: Option<f64>,
    },
    /// A queue's softirq work is more than a core's, so it stays spread.
    Spread {
        /// The NIC's interface name.
        nic: String,
        /// Which queue.
        queue: u32,
        /// What it takes, in cores.
        cores: f64,
    },
    /// Guests are shown hints.
    Hinted {
        /// How many.
        guests: u32,
        /// Of their wishes, how many are granted.
        granted: u32,
        /// How many aren't.
        refused: u32,
    },
    /// A guest's files have another size than before, or wish for one.
    Files {
        /// Whose.
        guest: GuestId,
        /// What they had.
        from: Bytes,
        /// What they have.
        to: Bytes,
        /// What its loop wishes for.
        wish: Bytes,
        /// Why.
        cause: FilesCause,
    },
    /// Local memory was given out.
    LocalMemory {
        /// What there was to give out.
        bytes: Bytes,
        /// To whom, in order.
        shares: LocalShares,
        /// All guests press, so that nobody makes way for another but for floors.
        all_press: bool,
    },
    /// A guest uses its memory otherwise than before.
    Uses {
        /// Which.
        guest: GuestId,
        /// How.
        class: MemoryClass,
    },
    /// Guests' memory moves.
    Moves {
        /// So much to local memory.
        near: Bytes,
        /// So much to far memory.
        far: Bytes,
        /// What there is left to move after that.
        left: Bytes,
        /// What moves at the most until it is decided again.
        budget: Bytes,
    },
    /// What the policy considered and turned down.
    TurnedDown {
        /// By which layer.
        layer: Layer,
        /// What.
        alternative: Alternative,
    },
}

impl fmt::Display for Reason {
    #[expect(clippy::too_many_lines, reason = "one arm for each variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Demand {
                group,
                busy_cores,
                threshold,
                required,
            } => write!(
                f,
                "{group} cores were busy for {busy_cores:.2} cores' time; at a threshold of {:.0} % that needs {required:.2} cores",
                threshold * 100.0
            ),
            Reason::Held { group, busy, peak } => write!(
                f,
                "{group} cores were busy for {busy:.2} cores' time; what counts is the peak of {peak:.2} not long before"
            ),
            Reason::Ample { from, to } => write!(
                f,
                "vCPUs have {to} cores where {from} would do: best-effort guests have what they leave of them, and so they wait less for each other"
            ),
            Reason::Averaged { vcpu, nq } => write!(
                f,
                "on average vCPUs need {vcpu:.2} cores and queues {nq:.2}: all cores are divided in that proportion"
            ),
            Reason::Hold { group, cores } => write!(f, "{group} keeps {cores} cores"),
            Reason::Grow { group, from, to } => {
                write!(f, "{group} grows from {from} to {to} cores")
            }
            Reason::Shrink { group, from, to } => {
                write!(f, "{group} shrinks from {from} to {to} cores")
            }
            Reason::KeptByMargin {
                group,
                cores,
                bare,
                margin,
            } => write!(
                f,
                "{group} keeps {cores} cores: demand alone asks for {bare}, but not with the margin of {margin}"
            ),
            Reason::Contended {
                required,
                available,
            } => write!(
                f,
                "{required:.2} cores are needed and {available} are there: divided in proportion"
            ),
            Reason::Resume { guest, cores } => {
                write!(f, "best-effort guest {guest} runs on {cores} idle cores")
            }
            Reason::Suspend { guest } => {
                write!(f, "best-effort guest {guest} is suspended: no core is idle")
            }
            Reason::StaySuspended { guests } => write!(
                f,
                "{guests} best-effort guests stay suspended: no core is idle"
            ),
            Reason::Explored {
                samples,
                violations,
                allowed,
                before,
                after,
            } => write!(
                f,
                "{violations} of {samples} samples missed the objective, {allowed} may: thresholds go from vCPU {:.3}, NQ {:.3} to {:.3}, {:.3}",
                before.vcpu, before.nq, after.vcpu, after.nq
            ),
            Reason::NoAgent { guest, why } => {
                write!(f, "guest {guest} keeps its own vCPU set and queues: {why}")
            }
            Reason::NoLatency { guest, age } => match age {
                Some(age) => write!(
                    f,
                    "guest {guest} answered no request for {:.1} s",
                    age.as_secs_f64()
                ),
                None => write!(f, "guest {guest} has answered no request yet"),
            },
            Reason::Nothing { why } => write!(f, "the plan stays: {why}"),
            Reason::Unmeasured(Unmeasured::NoInterval) => {
                f.write_str("nothing is measured yet: the first snapshot covers no time")
            }
            Reason::Unmeasured(Unmeasured::Old { age, limit }) => write!(
                f,
                "cores stay as they are: what was measured is {:.2} s old, more than {:.2} s",
                age.as_secs_f64(),
                limit.as_secs_f64()
            ),
            Reason::ByThreads { group, why } => write!(
                f,
                "{group} demand is what its threads ran: {}",
                match why {
                    ByThreads::Observing => "in observe mode they are not confined to its cores",
                    ByThreads::NoCoresYet => "it had no cores of its own",
                    ByThreads::Policy => "this policy goes by run time",
                }
            ),
            Reason::WholeCores { cores, cpus } => write!(
                f,
                "SMT siblings stay together: {cpus} CPUs are given as {cores} physical cores"
            ),
            Reason::TooFewCores { available } => write!(
                f,
                "vCPUs and network queues share cores: there are {available}"
            ),
            Reason::Unneeded { group } => write!(f, "nothing needs {group} cores"),
            Reason::Quiet { required } => write!(
                f,
                "the split stays: a demand of {required:.2} cores is too small to divide by"
            ),
            Reason::MarginGivenUp { group, cores } => write!(
                f,
                "{group} gives up {cores} cores of its margin, which the other group needs"
            ),
            Reason::BestEffortOn { group, cores } => write!(
                f,
                "best-effort guests run on the {cores} cores of the {group} group"
            ),
            Reason::Yield {
                cores,
                weight: CpuWeight::Idle,
            } => write!(
                f,
                "on {cores} cores that they share with latency-critical guests, best-effort guests have what those leave (cpu.idle)"
            ),
            Reason::Yield { cores, weight } => write!(
                f,
                "on {cores} cores that they share with latency-critical guests, best-effort guests have a CPU weight of {weight}"
            ),
            Reason::OldView { guest, age } => write!(
                f,
                "guest {guest} is not pinned: its threads were last listed {:.1} s ago",
                age.as_secs_f64()
            ),
            Reason::Frozen { guest } => {
                write!(
                    f,
                    "guest {guest} is frozen by someone else and needs no core now"
                )
            }
            Reason::NoVcpus { guest } => write!(f, "guest {guest} has no vCPU threads"),
            Reason::NicAbsent { nic } => write!(f, "NIC {nic} was not found"),
            Reason::QueuesFixed { nic, queues } => write!(
                f,
                "NIC {nic} keeps {queues} queues: its RSS table can't be set"
            ),
            Reason::Stays { layer, left } => write!(
                f,
                "{layer} stays as it is for another {:.1} s",
                left.as_secs_f64()
            ),
            Reason::NotSeen { layer, what } => {
                write!(f, "{layer} has nothing to go by: no {what}")
            }
            Reason::Placed {
                queues,
                slowdown,
                present,
                kept,
                wary,
            } => {
                write!(
                    f,
                    "packets of {queues} queues are slowed down by {slowdown:.2}"
                )?;
                match (present, kept) {
                    (_, true) => {
                        f.write_str(" where their threads are, which is as good as elsewhere")
                    }
                    (Some(present), _) => write!(
                        f,
                        " where their threads go, after {present:.2} where they were"
                    ),
                    (None, _) => f.write_str(" where their threads go"),
                }?;
                match wary {
                    Some(wary) => write!(
                        f,
                        "; as moves haven't brought what they were made for, threads must gain {wary:.1} times the margin by one"
                    ),
                    None => Ok(()),
                }
            }
            Reason::Spread { nic, queue, cores } => write!(
                f,
                "queue {queue} of NIC {nic} stays spread over cores: it takes {cores:.2} of them"
            ),
            Reason::Hinted {
                guests,
                granted,
                refused,
            } => write!(
                f,
                "{guests} guests are shown which of their vCPUs share a cache or a core, and which cores others keep busy; of their wishes to stay, {granted} are granted and {refused} aren't"
            ),
            Reason::Files {
                guest,
                from,
                to,
                wish,
                cause,
            } => write!(
                f,
                "files of guest {guest} go from {} to {} MiB, and wish for {}: {}",
                from.0 >> 20,
                to.0 >> 20,
                wish.0 >> 20,
                match cause {
                    FilesCause::New => "they are newly looked after",
                    FilesCause::Model => "by the queue's model tasks then take as long as wanted",
                    FilesCause::Ample =>
                        "by the queue's model tasks are faster than wanted even so",
                    FilesCause::OutOfReach =>
                        "by the queue's model nothing makes tasks as fast as wanted, and more makes no difference",
                    FilesCause::Learned => "by what earlier changes did",
                    FilesCause::Blind => "no response time was seen",
                    FilesCause::Share => "memory was shared out anew",
                }
            ),
            Reason::LocalMemory {
                bytes,
                shares,
                all_press,
            } => write!(
                f,
                "of {} MiB of local memory, in this order: {} to floors, {} to files' leasts, {} to guests that press on their memory, {} to files' wishes, {} to other guests{}",
                bytes.0 >> 20,
                shares.floors.0 >> 20,
                shares.leasts.0 >> 20,
                shares.pressing.0 >> 20,
                shares.wishes.0 >> 20,
                shares.rest.0 >> 20,
                if *all_press {
                    "; all guests press, so nobody makes way for another but for floors"
                } else {
                    ""
                }
            ),
            Reason::Uses { guest, class } => write!(f, "guest {guest} {class}"),
            Reason::Moves {
                near,
                far,
                left,
                budget,
            } => write!(
                f,
                "{} MiB of guests' memory move to local memory and {} to far, of {} that may; {} are left to move",
                near.0 >> 20,
                far.0 >> 20,
                budget.0 >> 20,
                left.0 >> 20
            ),
            Reason::TurnedDown { alternative, .. } => {
                write!(f, "not {}: {}", alternative.what, alternative.why)
            }
        }
    }
}
