//! What guests' files in the host have: nothing that isn't there, nothing beyond the budget, and nobody more before all have their least.

use ostler_model::{GuestFiles, GuestId, Layer, Plan, SizingSettings};

use crate::{Scene, Violation};

pub(crate) fn check(
    scene: &Scene<'_>,
    previous: Option<&Plan>,
    plan: &Plan,
    found: &mut Vec<Violation>,
) {
    let Some(files) = &plan.files else { return };
    let layer = Layer::Sizing;
    let Some(settings) = &scene.intent.sizing else {
        found.push(Violation::Unasked { layer });
        return;
    };
    if files.since > plan.at {
        found.push(Violation::Since { layer });
    }
    if files
        .guests
        .windows(2)
        .any(|two| two[0].guest >= two[1].guest)
    {
        found.push(Violation::Twice { layer });
    }
    let mut sum = 0_u128;
    let (mut more, mut less) = (Vec::new(), None);
    for given in &files.guests {
        let id = &given.guest;
        sum += u128::from(given.bytes.0);
        let wish = scene
            .guests
            .iter()
            .find(|(view, _)| view.id == *id)
            .and_then(|(view, _)| scene.intent.rule(view)?.terms.files.as_ref());
        let Some(wish) = wish else {
            found.push(Violation::NobodysFiles { guest: id.clone() });
            continue;
        };
        if given.bytes > given.wish || given.wish > wish.most.max(wish.least) {
            found.push(Violation::FilesBeyond {
                guest: id.clone(),
                bytes: given.bytes,
                most: given.wish.min(wish.most),
            });
        }
        if given.bytes > wish.least {
            more.push(id);
        }
        // Who wishes for less than its least can't have it by the budget.
        if given.bytes < wish.least.min(given.wish) {
            less = less.or(Some(id));
        }
    }
    let budget = files.budget.min(settings.budget);
    if files.budget > settings.budget || sum > u128::from(budget.0) {
        found.push(Violation::Budget {
            layer,
            bytes: sum,
            budget,
        });
    }
    // What was given before may be on its way. As soon as anybody is given more than then, all that is on its way counts.
    let before = previous.and_then(|previous| previous.files.as_ref());
    let kept = |given: &GuestFiles| {
        let mut guests = before.iter().flat_map(|files| &files.guests);
        guests.any(|before| before.guest == given.guest && before.bytes >= given.bytes)
    };
    if files.guests.iter().all(kept) {
        return;
    }
    let grown: Vec<_> = grows(scene, settings, &files.guests).collect();
    if let Some(less) = less
        && let Some((more, _)) = grown.iter().find(|(guest, _)| more.contains(guest))
    {
        found.push(Violation::LeastLast {
            guest: less.clone(),
            before: (*more).clone(),
        });
    }
    let grown: u128 = grown.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
    if let Some(free) = free(scene).filter(|free| grown > *free) {
        found.push(Violation::NotFree {
            layer,
            bytes: grown,
            free,
        });
    }
}

/// Who has more than was lately seen of it, and how much more.
pub(crate) fn grows<'a>(
    scene: &Scene<'a>,
    settings: &SizingSettings,
    given: &'a [GuestFiles],
) -> impl Iterator<Item = (&'a GuestId, u64)> {
    let views = &scene.snapshot.files;
    let old = scene.intent.old_after().max(settings.interval_min);
    given.iter().filter_map(move |given| {
        let view = views
            .iter()
            .find(|view| view.guest == given.guest && view.age <= old)?;
        let more = given.bytes.0.checked_sub(view.bytes.0)?;
        (more > 0).then_some((&given.guest, more))
    })
}

/// Free local memory, where all of it was seen lately.
pub(crate) fn free(scene: &Scene<'_>) -> Option<u128> {
    let nodes = scene.facts.memory.nodes.iter();
    let local: Vec<_> = nodes.filter(|node| !node.far).collect();
    if local.is_empty() {
        return None;
    }
    let old = scene.intent.old_after();
    let mut sum = 0;
    for node in local {
        let mut views = scene.snapshot.nodes.iter();
        let view = views.find(|view| view.node == node.node && view.age <= old)?;
        sum += u128::from(view.free.0);
    }
    Some(sum)
}
