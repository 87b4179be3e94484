//! All books of a world, kept a second time while it runs: those of its host, its messages and its threads.

use std::sync::{Arc, Mutex};

use ostler_model::Nanos;

use super::Watcher;
use super::messages::Messages;
use super::threads::Watched;
use crate::host::HostCosts;
use crate::tenants::Tenants;
use crate::work::Work;
use crate::world::{World, WorldError};

/// Books of messages.
pub(crate) type Post = Arc<Mutex<Messages>>;

/// Has the messages of tenants be noted down, from the beginning of their world on.
pub(crate) fn post(tenants: &mut Tenants) -> Post {
    let post = Post::default();
    let sink = Arc::clone(&post);
    tenants.net.watch(Box::new(move |now, note| {
        if let Ok(mut messages) = sink.lock() {
            messages.note(now, note);
        }
    }));
    post
}

/// Watches a host, from now on.
pub(crate) fn watcher<W: Work>(world: &World<W>) -> Watcher {
    Watcher::new(world.host.view(world.now()), None)
}

/// Time goes on; whoever watches sees each moment.
pub(crate) fn pass<W: Work>(
    world: &mut World<W>,
    watcher: Option<&mut Watcher>,
    until: Nanos,
) -> Result<(), WorldError> {
    if let Some(watcher) = watcher {
        while let Some(at) = world.queue.next_at().filter(|at| *at <= until) {
            world.run(at)?;
            watcher.observe(world.host.view(at));
        }
    }
    world.run(until)?;
    Ok(())
}

/// What is wrong, when all is over.
pub(crate) fn verdict(
    world: &World<Watched<Tenants>>,
    post: &Post,
    watcher: Watcher,
    costs: &HostCosts,
) -> Vec<String> {
    let mut problems = Vec::new();
    let now = world.now();
    if let Ok(messages) = post.lock() {
        let wrong = messages.check(&world.work.inner, now).err();
        problems.extend(wrong.map(|wrong| wrong.to_string()));
    }
    problems.extend(world.work.check().err().map(|wrong| wrong.to_string()));
    let verdict = watcher.verdict(world.host.view(now), &costs.idle_power, costs.busy_power);
    problems.extend(verdict.iter().map(ToString::to_string));
    problems
}
