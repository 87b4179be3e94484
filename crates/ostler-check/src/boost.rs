//! Whose vCPUs have a scheduler of their own: those who are to, and on cores that it can serve.

use ostler_model::{BoostPlan, CpuSet, CpuWeight, GuestId, GuestView, Plan};

use crate::{Scene, Violation};

pub(crate) fn check(scene: &Scene<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    let asked = scene.intent.boost;
    let Some(boost) = &plan.boost else {
        // It may be that this host can't; a reason says so.
        let can =
            scene.facts.capabilities.iter().all(|capability| {
                capability.name != "vcpu-scheduler" || capability.missing.is_none()
            });
        if asked.is_some() && can {
            found.push(Violation::NotBoosted);
        }
        return;
    };
    if asked != Some(boost.settings) {
        found.push(Violation::BoostedUnasked);
    }
    domains(scene, boost, found);
    let together = asked.is_some_and(|asked| asked.workers) && plan.groups.shared;
    if boost.workers != together {
        found.push(Violation::BoostWorkers {
            planned: boost.workers,
        });
    }
    for pair in boost.guests.windows(2) {
        if pair[0] >= pair[1] {
            found.push(Violation::BoostOrder {
                guest: pair[1].clone(),
            });
        }
    }
    for guest in &boost.guests {
        // Its view may have gone, its process not yet; and two that say to be the same are for partition to tell apart.
        let excepted = views(scene, guest).any(|_| true)
            && !views(scene, guest).any(|view| scene.intent.boosts(view));
        if excepted || plan.guest(guest).is_none() {
            found.push(Violation::BoostedGuest {
                guest: guest.clone(),
            });
        }
        let weight = plan.guest(guest).map(|given| given.weight);
        if let Some(weight @ (CpuWeight::Weight(_) | CpuWeight::Idle)) = weight {
            found.push(Violation::BoostedAndWeighed {
                guest: guest.clone(),
                weight,
            });
        }
    }
    for (view, _) in &scene.guests {
        let all = views(scene, &view.id).all(|view| scene.intent.boosts(view));
        if all && plan.guest(&view.id).is_some() && !boost.guests.contains(&view.id) {
            found.push(Violation::BoostLeftOut {
                guest: view.id.clone(),
            });
        }
    }
}

fn views<'a>(scene: &'a Scene<'_>, guest: &'a GuestId) -> impl Iterator<Item = &'a GuestView> {
    let guests = scene.snapshot.guests.iter();
    guests.filter(move |view| view.id == *guest)
}

fn domains(scene: &Scene<'_>, boost: &BoostPlan, found: &mut Vec<Violation>) {
    let mut placed = CpuSet::EMPTY;
    for domain in &boost.domains {
        let twice = domain.intersection(&placed);
        let sizes = 1..=16;
        if !twice.is_empty() || !sizes.contains(&domain.len()) {
            found.push(Violation::BoostDomain {
                cpus: *domain,
                twice,
            });
        }
        placed = placed.union(domain);
    }
    if placed != scene.online {
        found.push(Violation::BoostCores {
            placed,
            online: scene.online,
        });
    }
}
