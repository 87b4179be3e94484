//! Someone takes a guest out of the steward's cgroups and removes these, as another manager of cgroups would that thinks
//! the tree its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use ostler_model::Class;

use super::found::entries;
use super::{Ground, Verdict, wait_until};
use crate::inner::{MACHINE_CGROUP, read, write};

const STEADY: &str = "partition = { policy = \"static\", vcpu = 2, nq = 1 }\n";
const WITHIN: Duration = Duration::from_secs(30);

/// Does it, and undo leaves nothing of the steward's anywhere.
pub fn vanishes(ground: &mut Ground<'_>, verdict: &mut Verdict) -> anyhow::Result<()> {
    let before = ground.found()?;
    let guest = ground.guest(Class::LatencyCritical)?;
    let domain = PathBuf::from(MACHINE_CGROUP).join(&guest.name);
    let steward = ground.start(STEADY)?;
    steward.settled(ground.running.len())?;

    let elsewhere = PathBuf::from(MACHINE_CGROUP).join("elsewhere");
    std::fs::create_dir_all(&elsewhere)
        .with_context(|| format!("could not create {}", elsewhere.display()))?;
    write(elsewhere.join("cgroup.procs"), &guest.pid.to_string())?;
    // The steward may make some of them again meanwhile; one of them gone is the fault.
    let removed = remove_ours(&domain);
    anyhow::ensure!(removed > 0, "no cgroup of the steward's could be removed");

    let mut told = Vec::new();
    steward.until("word of the cgroups that are gone", |period| {
        let failures = period["failures"].as_array().into_iter().flatten();
        let foreign = period["foreign"].as_array().into_iter().flatten();
        told.extend(failures.chain(foreign).map(ToString::to_string));
        !told.is_empty()
    })?;
    // It goes on: periods come, and the guest is still planned for.
    let after = steward.periods(20)?;
    let planned = |period: &serde_json::Value| {
        let guests = period["guests"].as_array().into_iter().flatten();
        guests
            .into_iter()
            .any(|g| g["name"] == guest.name.as_str() && !g["vcpu_cpus"].is_null())
    };
    anyhow::ensure!(
        after.last().is_some_and(planned),
        "the guest is no longer planned for"
    );
    steward.kill()?;
    ground.undo()?;
    // Whoever moved it brings it back; only what the steward did is asked about.
    write(domain.join("cgroup.procs"), &guest.pid.to_string())?;
    wait_until("the other cgroup to be empty", WITHIN, || {
        Ok(read(elsewhere.join("cgroup.procs"))?.trim().is_empty())
    })?;
    std::fs::remove_dir(&elsewhere)
        .with_context(|| format!("could not remove {}", elsewhere.display()))?;
    verdict.notes.push(format!(
        "{removed} cgroups removed; first told: {}",
        told.first().map_or("", String::as_str)
    ));
    ground.found()?.must_be(&before)
}

/// Removes the steward's cgroups below this one, as far as they are empty.
fn remove_ours(domain: &Path) -> u32 {
    let mut removed = 0;
    for name in entries(domain)
        .iter()
        .filter(|name| name.starts_with("ostler."))
    {
        let ours = domain.join(name);
        for child in entries(&ours) {
            let child = ours.join(child);
            if child.is_dir() && std::fs::remove_dir(&child).is_ok() {
                removed += 1;
            }
        }
        if std::fs::remove_dir(&ours).is_ok() {
            removed += 1;
        }
    }
    removed
}
