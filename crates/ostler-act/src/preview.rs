//! What acting on a plan would change, with nothing written.

use std::collections::BTreeMap;

use ostler_model::{Facts, Plan, Snapshot};
use serde::Serialize;

use crate::layout::{Origins, survey};
use crate::settings::settings;
use crate::text::sanitised;
use crate::{Host, Target};

/// A value that would change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What it is: a path, or a device and its setting.
    pub target: String,
    /// What it is now; why it can't be told, where it can't.
    pub from: String,
    /// What it would be.
    pub to: String,
}

/// What acting on the plan would change, in the order in which it would be written. Reads only.
pub fn preview(host: &dyn Host, facts: &Facts, snapshot: &Snapshot, plan: &Plan) -> Vec<Change> {
    let layouts: BTreeMap<_, _> = plan
        .guests
        .iter()
        .filter_map(|given| snapshot.guest(&given.guest))
        .map(|view| (view.id.clone(), survey(host, view, &Origins::new())))
        .collect();
    let mut changes = Vec::new();
    for setting in settings(facts, plan, snapshot, &layouts) {
        let from = match setting.target.read(host) {
            Ok(found) if setting.target.holds(&found, &setting.value) => continue,
            Ok(found) => found.to_string(),
            Err(error) => format!("unknown: {error}"),
        };
        changes.push(Change {
            target: named(&setting.target, snapshot),
            from,
            to: setting.value.to_string(),
        });
    }
    changes
}

/// A task's target with the guest that it belongs to: numbers say little to people.
fn named(target: &Target, snapshot: &Snapshot) -> String {
    let guest = target
        .task()
        .and_then(|(pid, _)| snapshot.guests.iter().find(|guest| guest.pid == pid));
    match guest {
        // A guest's name is whatever its owner chose: it is shown tamed.
        Some(guest) => format!("{target} (guest {})", sanitised(&guest.id)),
        None => target.to_string(),
    }
}
