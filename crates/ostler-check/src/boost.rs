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
    let by_id = ByGuest::new(scene);
    for guest in &boost.guests {
        // Its view may have gone, its process not yet; and two that say to be the same are for partition to tell apart.
        let views = by_id.of(guest);
        let excepted = !views.is_empty() && !views.iter().any(|view| scene.intent.boosts(view));
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
    // In whatever order they are.
    let mut boosted: Vec<_> = boost.guests.iter().collect();
    boosted.sort_unstable();
    for (view, _) in &scene.guests {
        let views = by_id.of(&view.id);
        let all = views.iter().all(|view| scene.intent.boosts(view));
        let named = boosted.binary_search(&&view.id).is_ok();
        if all && plan.guest(&view.id).is_some() && !named {
            found.push(Violation::BoostLeftOut {
                guest: view.id.clone(),
            });
        }
    }
}

/// All views, by the guest that they say to be of: a host may have hundreds.
struct ByGuest<'a>(Vec<&'a GuestView>);

impl<'a> ByGuest<'a> {
    fn new(scene: &Scene<'a>) -> ByGuest<'a> {
        let mut views: Vec<_> = scene.snapshot.guests.iter().collect();
        views.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        ByGuest(views)
    }

    fn of(&self, guest: &GuestId) -> &[&'a GuestView] {
        let from = self.0.partition_point(|view| view.id < *guest);
        let to = self.0.partition_point(|view| view.id <= *guest);
        &self.0[from..to]
    }
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
