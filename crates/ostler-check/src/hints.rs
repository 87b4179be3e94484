//! What guests are shown of the host, and which of their vCPUs are kept where: nobody learns more than he may, and nobody is given what isn't his.

use std::collections::{BTreeMap, BTreeSet};

use ostler_model::{
    CpuId, CpuSet, GuestHints, GuestId, GuestView, GuestWishes, HINT_GROUPS_MAX, HINT_VCPUS_MAX,
    HintsGuest, HintsPlan, HintsScene, HintsSettings, HintsVcpu, Layer, LoadDegree, Nanos,
    PinVerdict, Plan,
};

use crate::{Scene, Violation};

/// A rule that hints break: what, and on what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HintsViolation {
    /// Guests or wishes out of order, or twice.
    #[error("guest {0} is out of order, or there twice")]
    Order(GuestId),
    /// A guest has hints or a pin, and isn't to.
    #[error("guest {0} isn't opted in, or isn't there, and has hints")]
    Unasked(GuestId),
    /// More rows than vCPUs can have, or numbers beyond what was said.
    #[error("guest {0} is shown more than a table holds, or a group beyond those numbered")]
    Bounds(GuestId),
    /// Two groups with one number, or one group with two.
    #[error("guest {0} has a numbering that isn't one to one")]
    Numbering(GuestId),
    /// A degree of load other than the threshold says.
    #[error("guest {guest} is shown a wrong load under vCPU {vcpu}")]
    Load {
        /// Whose.
        guest: GuestId,
        /// Which.
        vcpu: usize,
    },
    /// vCPUs that share a core are told apart, or others aren't.
    #[error("guest {guest} is shown another vCPU than the first on the core of vCPU {vcpu}")]
    Core {
        /// Whose.
        guest: GuestId,
        /// Which.
        vcpu: usize,
    },
    /// What a guest is shown changed again too soon, or changed while it says it didn't.
    #[error("guest {0} is shown other hints before the interval is over")]
    TooSoon(GuestId),
    /// A pin that wasn't asked for.
    #[error("vCPU {vcpu} of guest {guest} is pinned unasked")]
    PinUnasked {
        /// Whose.
        guest: GuestId,
        /// Which.
        vcpu: u32,
    },
    /// A pin beyond what its guest was granted, beyond a cache group, or charged to another core.
    #[error(
        "vCPU {vcpu} of guest {guest} is pinned to {cpus}, which it wasn't granted in one group"
    )]
    PinBeyond {
        /// Whose.
        guest: GuestId,
        /// Which.
        vcpu: u32,
        /// Where.
        cpus: CpuSet,
    },
    /// A pin for a vCPU that has a core of its own already.
    #[error("vCPU {vcpu} of guest {guest} is pinned by its wish, and has a core already")]
    PinTwice {
        /// Whose.
        guest: GuestId,
        /// Which.
        vcpu: u32,
    },
    /// A core's account is beyond its limit.
    #[error("CPU {cpu} is charged with {pins} pins")]
    Overcharged {
        /// Which.
        cpu: CpuId,
        /// How many.
        pins: u32,
    },
    /// More pins were granted in an interval than may be.
    #[error("guest {guest} was granted {pins} pins in an interval")]
    PinRate {
        /// Whose.
        guest: GuestId,
        /// How many.
        pins: u32,
    },
}

/// Judges a plan's hints by what the plan itself grants.
pub(crate) fn check(
    scene: &Scene<'_>,
    previous: Option<&Plan>,
    plan: &Plan,
    found: &mut Vec<Violation>,
) {
    let Some(hints) = &plan.hints else { return };
    let Some(intent) = &scene.intent.hints else {
        found.push(Violation::Unasked {
            layer: Layer::Hints,
        });
        return;
    };
    let (facts, snapshot) = (scene.facts, scene.snapshot);
    let mut views: Vec<&GuestView> = snapshot.guests.iter().collect();
    views.sort_by(|a, b| a.id.cmp(&b.id));
    let old = scene.intent.old_after();
    let told: Vec<Vec<HintsVcpu>> = views
        .iter()
        .map(|view| {
            let mut wishes = snapshot.wishes.iter();
            let wishes = wishes.find(|wishes| wishes.guest == view.id);
            let counts =
                |wishes: &&GuestWishes| wishes.age <= old && wishes.vcpus.len() == view.vcpus.len();
            wishes.filter(counts).map_or_else(
                || vec![HintsVcpu::default(); view.vcpus.len()],
                |wishes| wishes.vcpus.clone(),
            )
        })
        .collect();
    let guests: Vec<HintsGuest<'_>> = views
        .iter()
        .zip(&told)
        .map(|(view, vcpus)| {
            let mut given = plan.guests.iter();
            let given = given.find(|given| given.guest == view.id);
            let rule = scene.intent.rule(view);
            HintsGuest {
                guest: &view.id,
                opted_in: given.is_some() && rule.is_some_and(|rule| rule.terms.hints),
                granted: given.map_or(&CpuSet::EMPTY, |given| &given.vcpu_cpus),
                placed: given.is_some_and(|given| !given.vcpu_pins.is_empty()),
                vcpus,
            }
        })
        .collect();
    // Nobody knows: nobody is to be shown that it is idle.
    let runnable: Vec<u32> = facts
        .topology
        .cpus
        .iter()
        .map(|cpu| {
            let mut views = snapshot.runnable.iter();
            let view = views.find(|view| view.cpu == cpu.id);
            view.map_or(u32::MAX, |view| view.vcpus)
        })
        .collect();
    let of = HintsScene {
        topology: &facts.topology,
        runnable: &runnable,
        guests: &guests,
    };
    let settings = HintsSettings {
        interval: intent.interval,
        grants_max: intent.grants_max,
        pins_per_core_max: intent.pins_per_core_max,
        key: [0; 32],
    };
    let previous = previous.and_then(|plan| plan.hints.as_deref());
    let wrong = check_hints(&of, &settings, previous, hints, plan.at);
    found.extend(wrong.into_iter().map(Violation::Hints));
}

/// Everything that is wrong with hints; nothing when they may be published. `previous` are those before, where there are any.
pub fn check_hints(
    scene: &HintsScene<'_>,
    settings: &HintsSettings,
    previous: Option<&HintsPlan>,
    plan: &HintsPlan,
    now: Nanos,
) -> Vec<HintsViolation> {
    let mut found = Vec::new();
    for two in plan.guests.windows(2) {
        if two[0].guest >= two[1].guest {
            found.push(HintsViolation::Order(two[1].guest.clone()));
        }
    }
    for two in plan.pins.windows(2) {
        if (&two[0].guest, two[0].vcpu) >= (&two[1].guest, two[1].vcpu) {
            found.push(HintsViolation::Order(two[1].guest.clone()));
        }
    }
    for hints in &plan.guests {
        let Some(guest) = opted_in(scene, &hints.guest) else {
            found.push(HintsViolation::Unasked(hints.guest.clone()));
            continue;
        };
        let last = previous.and_then(|plan| plan.guest(&hints.guest));
        shown(scene, settings, plan, guest, hints, last, now, &mut found);
    }
    pins(scene, settings, plan, now, &mut found);
    found
}

fn opted_in<'a>(scene: &HintsScene<'a>, id: &GuestId) -> Option<&'a HintsGuest<'a>> {
    let mut guests = scene.guests.iter();
    guests.find(|guest| guest.guest == id && guest.opted_in)
}

#[allow(
    clippy::too_many_arguments,
    reason = "all that one guest's hints are judged by"
)]
fn shown(
    scene: &HintsScene<'_>,
    settings: &HintsSettings,
    plan: &HintsPlan,
    guest: &HintsGuest<'_>,
    hints: &GuestHints,
    last: Option<&GuestHints>,
    now: Nanos,
    found: &mut Vec<HintsViolation>,
) {
    let id = &hints.guest;
    let beyond =
        |row: &ostler_model::VcpuHint| row.group.is_some_and(|group| group.0 >= hints.groups);
    if hints.vcpus.len() > HINT_VCPUS_MAX
        || usize::from(hints.groups) > HINT_GROUPS_MAX
        || hints.vcpus.iter().any(beyond)
    {
        found.push(HintsViolation::Bounds(id.clone()));
    }
    // Shown before: it holds, and says nothing of where vCPUs are now.
    if last == Some(hints) {
        return;
    }
    if hints.since != now {
        found.push(HintsViolation::TooSoon(id.clone()));
        return;
    }
    if let Some(last) = last
        && now.0 < last.since.0.saturating_add(settings.interval.0)
    {
        found.push(HintsViolation::TooSoon(id.clone()));
    }
    // Number by group and group by number: as many of each as pairs.
    let mut pairs = BTreeSet::new();
    for (at, (vcpu, row)) in guest.vcpus.iter().zip(&hints.vcpus).enumerate() {
        let place = vcpu.cpu.and_then(|cpu| {
            let mut cpus = scene.topology.cpus.iter();
            cpus.position(|known| known.id == cpu)
        });
        if let Some(place) = place {
            let group = row.group.map(|group| group.0);
            pairs.insert((scene.topology.cpus[place].cache_group, group));
        } else if row.group.is_some() {
            found.push(HintsViolation::Numbering(id.clone()));
        }
        // Its own there are no news to a guest.
        let here = |other: &&HintsVcpu| other.cpu == vcpu.cpu;
        let own = guest.vcpus.iter().filter(here).filter(|own| own.runnable);
        let own = own.count() as f64;
        let runnable = place.and_then(|place| scene.runnable.get(place));
        let low = runnable.is_some_and(|runnable| {
            let half = f64::from(plan.threshold.vcpus) / f64::from(plan.threshold.cpus) * 0.5;
            f64::from(*runnable) - own <= half
        });
        if low != (row.load == LoadDegree::Low) {
            found.push(HintsViolation::Load {
                guest: id.clone(),
                vcpu: at,
            });
        }
        let first = guest.vcpus.iter().position(|other| other.cpu == vcpu.cpu);
        let core = place.and(first);
        if core != row.core.map(usize::from) {
            found.push(HintsViolation::Core {
                guest: id.clone(),
                vcpu: at,
            });
        }
    }
    let physical: BTreeSet<_> = pairs.iter().map(|pair| pair.0).collect();
    let numbers: BTreeSet<_> = pairs.iter().map(|pair| pair.1).collect();
    if physical.len() != pairs.len() || numbers.len() != pairs.len() {
        found.push(HintsViolation::Numbering(id.clone()));
    }
    if hints.vcpus.len() != guest.vcpus.len() {
        found.push(HintsViolation::Bounds(id.clone()));
    }
}

fn pins(
    scene: &HintsScene<'_>,
    settings: &HintsSettings,
    plan: &HintsPlan,
    now: Nanos,
    found: &mut Vec<HintsViolation>,
) {
    let mut charges: BTreeMap<CpuId, u32> = BTreeMap::new();
    let mut fresh: BTreeMap<&GuestId, u32> = BTreeMap::new();
    for pin in &plan.pins {
        let Some(guest) = opted_in(scene, &pin.guest) else {
            found.push(HintsViolation::Unasked(pin.guest.clone()));
            continue;
        };
        let asked = guest.vcpus.get(pin.vcpu as usize);
        if !asked.is_some_and(|vcpu| vcpu.pin) {
            found.push(HintsViolation::PinUnasked {
                guest: pin.guest.clone(),
                vcpu: pin.vcpu,
            });
        }
        let PinVerdict::Granted {
            cpus,
            charged,
            since,
        } = pin.verdict
        else {
            continue;
        };
        if guest.placed {
            found.push(HintsViolation::PinTwice {
                guest: pin.guest.clone(),
                vcpu: pin.vcpu,
            });
        }
        let known = scene.topology.cpus.iter();
        let groups: BTreeSet<_> = known
            .filter(|cpu| cpus.contains(cpu.id))
            .map(|cpu| cpu.cache_group)
            .collect();
        if !cpus.is_subset(guest.granted)
            || !cpus.is_subset(&scene.topology.online())
            || !cpus.contains(charged)
            || groups.len() != 1
        {
            found.push(HintsViolation::PinBeyond {
                guest: pin.guest.clone(),
                vcpu: pin.vcpu,
                cpus,
            });
        }
        *charges.entry(charged).or_default() += 1;
        if now.0 - since.0.min(now.0) < settings.interval.0 || since == now {
            *fresh.entry(&pin.guest).or_default() += 1;
        }
    }
    for (cpu, pins) in charges {
        if pins > settings.pins_per_core_max {
            found.push(HintsViolation::Overcharged { cpu, pins });
        }
    }
    for (guest, pins) in fresh {
        if pins > settings.grants_max {
            found.push(HintsViolation::PinRate {
                guest: guest.clone(),
                pins,
            });
        }
    }
}
