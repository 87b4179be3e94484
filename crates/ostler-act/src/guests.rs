//! What is remembered of guests between periods: where each is, and the settings that its share of the plan comes to. They
//! are worked out again only when the plan, its threads or its place changed.

use std::collections::{BTreeMap, BTreeSet};

use ostler_model::{
    Class, CpuSet, Facts, Failure, GuestId, GuestPlan, GuestView, Pid, Plan, Snapshot, Tid,
};

use crate::layout::{Layout, Origins, Placement, survey};
use crate::settings::{Setting, of_guest};
use crate::target::{is_within, parent, started, strip_children};
use crate::{Host, Target, Value};

/// A guest whose threads look out of place is looked at again at the most once in so many periods: an administrator may have
/// confined it further, and then it looks so for good.
const SUSPICION_PERIODS: u64 = 10;

/// libvirt makes and removes cgroups a while after the threads they are for came or went, so its tree is looked at again
/// for so many periods. Five seconds; it needs some tens of milliseconds.
const LOOKS_AFTER_CHANGE: u32 = 50;

#[derive(Debug, Default)]
pub(crate) struct Guests {
    online: CpuSet,
    known: BTreeMap<GuestId, Known>,
    /// Guests newly placed by affinity, still to be told of.
    fallen_back: Vec<(GuestId, String)>,
    /// Guests told of because their weight counts for nothing against a latency-critical guest.
    in_vain: BTreeSet<GuestId>,
}

#[derive(Debug)]
struct Known {
    started: Option<u64>,
    shape: Shape,
    plan: GuestPlan,
    /// Where those of its vCPUs are to be that don't float.
    homes: BTreeMap<usize, CpuSet>,
    layout: Layout,
    settings: Vec<Setting>,
    suspect_again: u64,
    /// Periods in which its place is still to be looked at again although nothing is seen to have changed.
    looks_left: u32,
}

/// What a guest's settings depend on in a snapshot.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    pid: Pid,
    cgroup: Option<String>,
    vcpus: Vec<(u32, Tid)>,
    vhost: Vec<Tid>,
    emulator: Vec<Tid>,
}

impl Shape {
    fn of(view: &GuestView) -> Shape {
        Shape {
            pid: view.pid,
            cgroup: view.cgroup.clone(),
            vcpus: view.vcpus.iter().map(|v| (v.index, v.tid)).collect(),
            vhost: view.vhost.iter().map(|v| v.tid).collect(),
            emulator: view.emulator.clone(),
        }
    }
}

impl Guests {
    /// Takes over a plan; says whether any setting may have changed.
    pub(crate) fn refresh(
        &mut self,
        host: &dyn Host,
        facts: &Facts,
        snapshot: &Snapshot,
        plan: &Plan,
        origins: impl Fn() -> Origins,
    ) -> bool {
        let online = facts.topology.online();
        let other_cpus = online != self.online;
        let mut changed = other_cpus;
        self.online = online;
        let managed = |guest: &GuestId| {
            plan.guest(guest)
                .is_some_and(|given| given.class != Class::Unmanaged)
        };
        let mut looked_up = None;
        let before = self.known.len();
        self.known.retain(|guest, known| {
            // A guest that the plan has but one snapshot lacks stays as it is while its process lives.
            managed(guest)
                && (snapshot.guest(guest).is_some()
                    || started(host, known.shape.pid, None) == known.started)
        });
        changed |= self.known.len() != before;
        for given in &plan.guests {
            let Some(view) = snapshot
                .guest(&given.guest)
                .filter(|_| managed(&given.guest))
            else {
                continue;
            };
            let shape = Shape::of(view);
            let mut looks_left = LOOKS_AFTER_CHANGE;
            let layout = match self.known.get_mut(&given.guest) {
                Some(known)
                    if known.shape == shape
                        && known.plan == *given
                        && plan
                            .vcpu_homes(given)
                            .eq(known.homes.iter().map(|(at, cpus)| (*at, *cpus)))
                        && !other_cpus =>
                {
                    match known.look_again(host, view) {
                        Some(layout) => layout,
                        None => continue,
                    }
                }
                Some(known) if known.is_where_it_was(&shape) => {
                    looks_left = known.looks_left;
                    known.layout.clone()
                }
                _ => {
                    let layout = survey(host, view, looked_up.get_or_insert_with(&origins));
                    if let Placement::Affinity { why } = &layout.placement {
                        self.fallen_back.push((view.id.clone(), why.clone()));
                    }
                    layout
                }
            };
            changed = true;
            let homes = plan.vcpu_homes(given).collect();
            self.known.insert(
                given.guest.clone(),
                Known {
                    started: started(host, view.pid, None),
                    settings: of_guest(&self.online, given, &homes, view, &layout),
                    shape,
                    plan: given.clone(),
                    homes,
                    layout,
                    suspect_again: 0,
                    looks_left,
                },
            );
        }
        changed
    }

    /// All guests' settings.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.known.values().flat_map(|known| &known.settings)
    }

    /// Whether a guest's process is still there.
    pub(crate) fn lives(&self, host: &dyn Host, guest: &GuestId) -> bool {
        self.known
            .get(guest)
            .is_some_and(|known| started(host, known.shape.pid, None).is_some())
    }

    /// Has these guests' threads placed by affinity from now on, until they are started anew.
    pub(crate) fn fall_back(
        &mut self,
        facts: &Facts,
        plan: &Plan,
        snapshot: &Snapshot,
        guests: BTreeMap<GuestId, String>,
    ) {
        let online = facts.topology.online();
        for (guest, why) in guests {
            let (Some(known), Some(given), Some(view)) = (
                self.known.get_mut(&guest),
                plan.guest(&guest),
                snapshot.guest(&guest),
            ) else {
                continue;
            };
            self.fallen_back.push((guest.clone(), why.clone()));
            known.layout.placement = Placement::Affinity { why };
            known.settings = of_guest(&online, given, &known.homes, view, &known.layout);
        }
    }

    /// Tells, once for each guest, that its threads are placed by affinity, and why.
    pub(crate) fn fallen_back(&mut self) -> impl Iterator<Item = Failure> {
        self.fallen_back.drain(..).map(|(guest, why)| Failure {
            target: format!("cgroups for the threads of guest {guest}"),
            value: "a cpuset each".into(),
            error: format!(
                "{why}. Until it is started anew, each thread's own affinity is set instead"
            ),
        })
    }

    /// Tells, once for each, of guests that are weighed in vain. A weight counts among the children of one cgroup: a latency-critical
    /// guest elsewhere in the tree competes with that cgroup as a whole, and not with the guest.
    pub(crate) fn weighed_in_vain(&mut self) -> Vec<Failure> {
        self.in_vain.retain(|guest| self.known.contains_key(guest));
        let mut told = Vec::new();
        for (guest, known) in &self.known {
            let Some(cgroup) = &known.layout.weighed else {
                continue;
            };
            let among = parent(cgroup).unwrap_or("/");
            let elsewhere = self.known.iter().find_map(|(other, critical)| {
                let place = critical.layout.home()?;
                (critical.plan.class == Class::LatencyCritical && !is_within(place, among))
                    .then_some((other, place))
            });
            if let Some((other, place)) = elsewhere.filter(|_| known.plan.weight.is_set())
                && !self.in_vain.contains(guest)
            {
                told.push((
                    guest.clone(),
                    Failure {
                        target: format!("CPU weight of guest {guest} against guest {other}"),
                        value: known.plan.weight.to_string(),
                        error: format!(
                            "it is set on {cgroup} and counts among the cgroups in {among}, where {place} is not: start both guests in \
                             one slice"
                        ),
                    },
                ));
            }
        }
        self.in_vain
            .extend(told.iter().map(|(guest, _)| guest.clone()));
        told.into_iter().map(|(_, failure)| failure).collect()
    }

    /// Whether a guest's threads are placed by cgroups.
    pub(crate) fn by_cgroup(&self, guest: &GuestId) -> bool {
        self.known
            .get(guest)
            .is_some_and(|known| !matches!(known.layout.placement, Placement::Affinity { .. }))
    }

    /// Targets that a snapshot taken under the same plan makes look changed.
    pub(crate) fn looks_wrong(
        &mut self,
        snapshot: &Snapshot,
        plan: &Plan,
        tick: u64,
    ) -> BTreeSet<Target> {
        let mut wrong = BTreeSet::new();
        for view in &snapshot.guests {
            let Some(known) = self.known.get_mut(&view.id) else {
                continue;
            };
            if tick < known.suspect_again {
                continue;
            }
            let suspects: Vec<Target> = known.suspects(view).cloned().collect();
            if !suspects.is_empty() {
                known.suspect_again = tick.saturating_add(SUSPICION_PERIODS);
                wrong.extend(suspects);
            }
        }
        for nic in &snapshot.nics {
            let Some(given) = plan.nics.iter().find(|given| given.name == nic.name) else {
                continue;
            };
            for irq in &given.irqs {
                let seen = nic.irqs.iter().find(|seen| seen.irq == irq.irq);
                if seen.is_some_and(|seen| seen.affinity != irq.cpus) {
                    wrong.insert(Target::Irq { irq: irq.irq });
                }
            }
            if nic.queues != given.queues {
                let nic = nic.name.clone();
                wrong.insert(Target::Rss { nic });
            }
        }
        wrong
    }
}

impl Known {
    /// Whether the process is the one that was looked at, in the cgroup it was in or the one it was put into.
    fn is_where_it_was(&self, now: &Shape) -> bool {
        // libvirt makes a cgroup for each vCPU and io thread that is plugged in.
        if matches!(self.layout.placement, Placement::Libvirt { .. }) && self.shape != *now {
            return false;
        }
        let domain = now.cgroup.as_deref().map(strip_children);
        self.shape.pid == now.pid
            && (self.shape.cgroup == now.cgroup || domain == self.layout.domain.as_deref())
    }

    /// Where the guest's threads are now, if that is not where they were. Only libvirt's tree is looked at again without a
    /// sign of a change, and what is no longer one, since the domain ends, is no place to go to.
    fn look_again(&mut self, host: &dyn Host, view: &GuestView) -> Option<Layout> {
        let libvirts = matches!(self.layout.placement, Placement::Libvirt { .. });
        if !libvirts || (self.looks_left == 0 && self.layout.is_complete(view)) {
            return None;
        }
        self.looks_left = self.looks_left.saturating_sub(1);
        let layout = survey(host, view, &Origins::new());
        let moved = layout != self.layout && matches!(layout.placement, Placement::Libvirt { .. });
        moved.then_some(layout)
    }

    /// This guest's targets that what was seen of it casts doubt on.
    fn suspects(&self, view: &GuestView) -> impl Iterator<Item = &Target> {
        let expected =
            |at: usize| -> CpuSet { *self.homes.get(&at).unwrap_or(&self.plan.vcpu_cpus) };
        let displaced: Vec<Tid> = view
            .vcpus
            .iter()
            .enumerate()
            .filter(|(at, vcpu)| {
                let expected = expected(*at);
                !vcpu.allowed.is_empty() && !expected.is_empty() && vcpu.allowed != expected
            })
            .map(|(_, vcpu)| vcpu.tid)
            .collect();
        let frozen = view.frozen;
        self.settings
            .iter()
            .filter(move |setting| match &setting.target {
                Target::Freeze { .. } => setting.value == Value::Flag(!frozen),
                Target::Cpus { .. } => !displaced.is_empty(),
                Target::Thread { tid, .. } | Target::Affinity { tid, .. } => {
                    displaced.contains(tid)
                }
                _ => false,
            })
            .map(|setting| &setting.target)
    }
}
