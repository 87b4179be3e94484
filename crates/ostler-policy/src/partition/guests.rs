//! What each guest is given: where its threads may run, and what its agent is asked for.
//!
//! - **Latency-critical**: vCPUs and other threads on the vCPU group, vhost workers on the network queue group, worker `i` on its `i`-th core,
//!   so that a vNIC queue shares its core with a pNIC queue as the paper has it. The workers of the next guest begin where those of the
//!   guest before ended, so that the first queues of all guests don't meet on one core.
//! - **vCPU set**: the agent is asked to use as many vCPUs as the group has cores. Several guests are each asked for that: who needs the cores
//!   changes from period to period, the host's scheduler follows that at once, and a vCPU that its guest doesn't use costs nothing.
//!   Sharing them out by use was tried in the lab: vCPU sets moved in most periods, and each move makes a guest move its work.
//! - **Pins**: vCPUs are pinned one to a core when there is one latency-critical guest and its vCPUs in use fit. With several, a pin would
//!   take a core from a neighbour that could use it; with too many vCPUs, two would be tied to one core while another idles.
//! - **Cores of their own** (`cpus` of a guest's rule): its vCPUs stay on those of them that are the vCPU group's, pinned where there is one for each.
//!   They are nobody's alone: others float over them as over the rest.
//! - **Best-effort**: all threads on the best-effort group, where there is one, and on what is left of the other groups besides, where that delays
//!   nobody ([`super::weights::leftovers`]). Otherwise (modes P and E) on idle cores, and where none is
//!   idle, on the vCPU group, where they yield ([`super::weights`]): they are suspended only by policies that promise cores to them when
//!   there are any (R, Demeter-like).

use ostler_model::{
    AgentHealth, AgentState, Alternative, Class, CpuId, CpuSet, CpuWeight, Group, Groups, GuestId,
    GuestPlan, GuestView, Layer, Leftovers, QueueCount, Reason, RunState,
};

use super::Queues;
use super::cores::Assignment;
use super::demand::{best_effort_home, old_after};
use crate::{Member, Seen};

/// What best-effort guests may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BestEffort {
    /// Nothing: there are no cores for them.
    Suspended,
    /// Run where they have their cores ([`best_effort_home`]), and those with cores of their own on leftovers besides.
    Running(Leftovers),
}

/// What is the same for all guests.
pub struct Terms<'a> {
    /// The groups of the plan.
    pub groups: &'a Groups,
    /// Their CPUs in order of preference.
    pub assignment: &'a Assignment,
    /// How many queues a vNIC is to use.
    pub queues: Queues,
    /// Whether threads may be tied to single cores at all.
    pub pin: bool,
    /// What best-effort guests may do.
    pub best_effort: BestEffort,
    /// Whether vCPU sets follow the vCPU group; otherwise guests use all they have.
    pub confine: bool,
}

/// Plans each guest of the roster.
pub fn plan(seen: &Seen<'_>, terms: &Terms<'_>, reasons: &mut Vec<Reason>) -> Vec<GuestPlan> {
    let best_effort = seen.roster.best_effort_count();
    let (home, mut home_set) = best_effort_home(terms.groups);
    let cores = home_set.len();
    let suspend = terms.best_effort == BestEffort::Suspended;
    if let BestEffort::Running(of) = terms.best_effort
        && home == Group::BestEffort
    {
        if of != Leftovers::Nothing {
            home_set.unite(&terms.groups.vcpu);
        }
        if of == Leftovers::OfAll {
            home_set.unite(&terms.groups.nq);
        }
    }
    if best_effort > 0 && !suspend {
        reasons.push(Reason::BestEffortOn { group: home, cores });
    }
    let mut stay_suspended = 0;
    if terms.pin && seen.roster.latency_critical_count() > 1 {
        reasons.push(no_pins("several latency-critical guests share the cores"));
    }
    let mut counted = Counted {
        vcpu: terms.groups.vcpu.len(),
        nq: terms.groups.nq.len(),
        workers: 0,
    };
    let (run, set) = if suspend {
        (RunState::Suspended, CpuSet::EMPTY)
    } else {
        (RunState::Running, home_set)
    };
    let members = seen.roster.members();
    // Cloned in a run of its own: between the writes of the plans, each atomic increment would wait for those to drain.
    let ids: Vec<GuestId> = members
        .iter()
        .map(|member| member.view.id.clone())
        .collect();
    let plans = members.iter().zip(ids).map(|(member, guest)| {
        if member.class != Class::BestEffort {
            let plan = latency_critical(seen, terms, member, guest, counted, reasons);
            counted.workers += member.view.vhost.len();
            return plan;
        }
        // What changes is said of each guest; what stays, once.
        match (suspend, member.view.frozen) {
            (true, true) => stay_suspended += 1,
            (true, false) => reasons.push(Reason::Suspend {
                guest: guest.clone(),
            }),
            (false, true) => reasons.push(Reason::Resume {
                guest: guest.clone(),
                cores,
            }),
            (false, false) => {}
        }
        GuestPlan {
            guest,
            class: member.class,
            run,
            vcpu_cpus: set,
            vcpu_pins: Vec::new(),
            vhost_cpus: set,
            vhost_pins: Vec::new(),
            emulator_cpus: set,
            weight: CpuWeight::Untouched,
            vcpus_active: None,
            queues: None,
        }
    });
    let plans = plans.collect();
    if stay_suspended > 0 {
        reasons.push(Reason::StaySuspended {
            guests: stay_suspended,
        });
    }
    plans
}

/// What is counted once for all latency-critical guests.
#[derive(Clone, Copy)]
struct Counted {
    /// CPUs of the vCPU group.
    vcpu: u32,
    /// CPUs of the network queue group.
    nq: u32,
    /// vhost workers of the guests before this one, in order of id.
    workers: usize,
}

#[inline]
fn latency_critical(
    seen: &Seen<'_>,
    terms: &Terms<'_>,
    member: &Member<'_>,
    guest: GuestId,
    counted: Counted,
    reasons: &mut Vec<Reason>,
) -> GuestPlan {
    let view = member.view;
    if view.frozen {
        reasons.push(Reason::Frozen {
            guest: guest.clone(),
        });
    }
    if view.vcpus.is_empty() {
        reasons.push(Reason::NoVcpus {
            guest: guest.clone(),
        });
    }
    let current = view.age <= old_after(seen);
    if !current {
        reasons.push(Reason::OldView {
            guest: guest.clone(),
            age: view.age,
        });
    }
    let agent = agent_of(seen, view).map_err(|why| {
        reasons.push(Reason::NoAgent {
            guest: guest.clone(),
            why: why.into(),
        });
    });
    let agent = agent.ok();
    let has_queues = counted.nq > 0;
    let (vhost_cpus, vhost_order) = if has_queues {
        (terms.groups.nq, &terms.assignment.nq)
    } else {
        (terms.groups.vcpu, &terms.assignment.vcpu)
    };
    let own = own_cpus(member, terms, reasons);
    let vcpus_active = agent.and_then(|agent| {
        let most = vcpus_usable(view, agent);
        (most > 0).then(|| {
            if terms.confine {
                own.map_or(counted.vcpu, |own| own.len()).clamp(1, most)
            } else {
                most
            }
        })
    });
    let queues = agent
        .filter(|agent| has_queues && agent.queues_max > 0)
        .map(|agent| {
            let wish = match terms.queues {
                Queues::PerCore => counted.nq,
                Queues::Fixed(QueueCount::One) => 1,
                Queues::Fixed(QueueCount::Max) => agent.queues_max,
            };
            wish.clamp(1, agent.queues_max)
        });
    let mut vcpu_pins = Vec::new();
    let mut vhost_pins = Vec::new();
    if terms.pin && current {
        vcpu_pins = pin_vcpus(seen, view, agent, &terms.assignment.vcpu, reasons);
        if has_queues {
            vhost_pins = pin_workers(view, vhost_order, counted.workers);
        }
    }
    if let Some(own) = own {
        let enough = current && own.len() as usize >= view.vcpus.len();
        let each = own.iter().take(if enough { view.vcpus.len() } else { 0 });
        vcpu_pins = each.collect();
    }
    GuestPlan {
        guest,
        class: member.class,
        run: RunState::Running,
        vcpu_cpus: own.unwrap_or(terms.groups.vcpu),
        vcpu_pins,
        vhost_cpus,
        vhost_pins,
        emulator_cpus: terms.groups.vcpu,
        weight: CpuWeight::Untouched,
        vcpus_active,
        queues,
    }
}

/// The cores that its rule keeps a guest's vCPUs on, if that says any and some of them are for vCPUs.
fn own_cpus(member: &Member<'_>, terms: &Terms<'_>, reasons: &mut Vec<Reason>) -> Option<CpuSet> {
    let wanted = member.rule?.terms.cpus?;
    let own = wanted.intersection(&terms.groups.vcpu);
    if own.is_empty() {
        reasons.push(Reason::TurnedDown {
            layer: Layer::Partition,
            alternative: Alternative {
                what: format!("{} on cores {wanted} alone", member.view.name).into(),
                why: "none of them is for vCPUs".into(),
            },
        });
        return None;
    }
    Some(own)
}

/// The agent's word, if it can be relied on; otherwise why not.
fn agent_of<'a>(seen: &Seen<'_>, view: &'a GuestView) -> Result<&'a AgentState, &'static str> {
    let Some(agent) = &view.agent else {
        return Err("it has no agent");
    };
    match &agent.health {
        AgentHealth::Healthy => {}
        AgentHealth::Silent => return Err("its agent is silent"),
        AgentHealth::Slow => return Err("its agent answers too late"),
        AgentHealth::Lying(_) => return Err("its agent said what can't be"),
        AgentHealth::Refused(_) => return Err("its agent refused"),
    }
    if agent.age > old_after(seen) {
        return Err("its agent's last word is old");
    }
    agent.state.as_ref().ok_or("its agent has said nothing yet")
}

/// How many vCPUs a guest can use: not more than the host sees threads of.
fn vcpus_usable(view: &GuestView, agent: &AgentState) -> u32 {
    count(view.vcpus.len().min(agent.vcpus_online.len()))
}

/// One core per vCPU, or none where they float.
fn pin_vcpus(
    seen: &Seen<'_>,
    view: &GuestView,
    agent: Option<&AgentState>,
    order: &[CpuId],
    reasons: &mut Vec<Reason>,
) -> Vec<CpuId> {
    let alone = seen.roster.latency_critical_count() == 1;
    if !alone || view.vcpus.is_empty() || order.is_empty() {
        return Vec::new();
    }
    // The agent's word counts only once it has done what it was asked for; an empty set says that all are used.
    let active = agent
        .map(|agent| agent.vcpus_active.as_slice())
        .filter(|active| !active.is_empty());
    let in_use = active.map_or(view.vcpus.len(), <[u32]>::len);
    if in_use > order.len() {
        reasons.push(no_pins("the guest uses more vCPUs than there are cores"));
        return Vec::new();
    }
    // Those that aren't used yet come after those that are: when cores are added, the guest is told to use more vCPUs by the same plan, and theirs are the
    // new cores from the first moment, not once it has said that it does.
    let mut used = 0;
    let mut unused = in_use;
    let next = |at: &mut usize| {
        let cpu = order[*at % order.len()];
        *at += 1;
        cpu
    };
    view.vcpus
        .iter()
        .map(|vcpu| {
            if active.is_none_or(|active| active.contains(&vcpu.index)) {
                next(&mut used)
            } else {
                next(&mut unused)
            }
        })
        .collect()
}

fn no_pins(why: &'static str) -> Reason {
    Reason::TurnedDown {
        layer: Layer::Partition,
        alternative: Alternative {
            what: "one core for each vCPU".into(),
            why: why.into(),
        },
    }
}

fn pin_workers(view: &GuestView, order: &[CpuId], before: usize) -> Vec<CpuId> {
    view.vhost
        .iter()
        .enumerate()
        .map(|(at, worker)| {
            let queue = worker.queue.map_or(at, |queue| queue as usize);
            order[before.wrapping_add(queue) % order.len()]
        })
        .collect()
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
