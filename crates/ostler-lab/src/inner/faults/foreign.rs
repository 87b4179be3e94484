//! Someone else sets what the steward has set: an interrupt's affinity, as an administrator or irqbalance would, and the
//! cpuset of a cgroup of the steward's own. With `foreign = "respect"` it stays theirs, also when the steward is gone; with
//! `"reown"` it is set again. Either way it is told of.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use ostler_model::Class;

use super::subject::Subject;
use super::{Ground, Verdict, wait_until};
use crate::inner::{MACHINE_CGROUP, read, write};

/// A plan that doesn't change, so that every write after the first is an answer to someone else's.
const STEADY: &str = "partition = { policy = \"static\", vcpu = 2, nq = 1 }\n";
const AFTER: Duration = Duration::from_secs(30);

/// Both ways.
pub fn affinity(ground: &mut Ground<'_>, verdict: &mut Verdict) -> anyhow::Result<()> {
    respected(ground).context("foreign = \"respect\"")?;
    reowned(ground).context("foreign = \"reown\"")?;
    verdict.notes.push(
        "an interrupt's affinity and a cpuset set by someone else stay theirs, or are set again"
            .into(),
    );
    Ok(())
}

fn respected(ground: &Ground<'_>) -> anyhow::Result<()> {
    let mut before = ground.found()?;
    let steward = ground.start(&format!("{STEADY}[steward]\nforeign = \"respect\"\n"))?;
    steward.settled(ground.running.len())?;
    let theirs = Theirs::set(ground)?;
    theirs.wait_told(&steward, "respected")?;
    steward.periods(10)?;
    theirs.hold("while the steward runs")?;
    steward.kill()?;
    ground.undo()?;
    before.set(&theirs.irq, &theirs.value);
    ground.found()?.must_be(&before)?;
    write(&theirs.irq, &theirs.original)
}

fn reowned(ground: &Ground<'_>) -> anyhow::Result<()> {
    let mut before = ground.found()?;
    let steward = ground.start(&format!("{STEADY}[steward]\nforeign = \"reown\"\n"))?;
    steward.settled(ground.running.len())?;
    let theirs = Theirs::set(ground)?;
    theirs.wait_told(&steward, "reowned")?;
    for (path, ours) in [
        (&theirs.irq, &theirs.ours_irq),
        (&theirs.cpus, &theirs.ours_cpus),
    ] {
        wait_until(&format!("{path} to be ours again"), AFTER, || {
            Ok(read(path)?.trim() == ours)
        })?;
    }
    steward.kill()?;
    ground.undo()?;
    // What was there before it was set again is what undo goes back to.
    before.set(&theirs.irq, &theirs.value);
    ground.found()?.must_be(&before)?;
    write(&theirs.irq, &theirs.original)
}

/// What someone else set.
struct Theirs {
    /// An interrupt's affinity.
    irq: String,
    /// What it was before everything.
    original: String,
    ours_irq: String,
    /// A cpuset.
    cpus: String,
    ours_cpus: String,
    /// What both were set to.
    value: String,
}

impl Theirs {
    fn set(ground: &Ground<'_>) -> anyhow::Result<Theirs> {
        let host = &ground.program.scenario.host;
        let guest = &ground.guest(Class::LatencyCritical)?.name;
        let cpus = format!("{MACHINE_CGROUP}/{guest}/ostler.vcpu/cpuset.cpus");
        let irq = ground
            .pnic
            .irqs()?
            .into_iter()
            .find(|(_, name)| name.contains('-'));
        let (irq, _) = irq.context("the pNIC's queues have no interrupts")?;
        let irq = format!("/proc/irq/{irq}/smp_affinity_list");
        let (ours_irq, ours_cpus) = (
            read(&irq)?.trim().to_owned(),
            read(&cpus)?.trim().to_owned(),
        );
        // A core that is neither's.
        let value = host
            .under_test
            .iter()
            .map(|cpu| cpu.to_string())
            .find(|cpu| *cpu != ours_irq && *cpu != ours_cpus)
            .context("there is no third core")?;
        let original = ground.original(&irq)?;
        write(&irq, &value)?;
        write(&cpus, &value)?;
        Ok(Theirs {
            irq,
            original,
            ours_irq,
            cpus,
            ours_cpus,
            value,
        })
    }

    /// Waits until the steward has told of both, in whatever order it looks at them.
    fn wait_told(&self, steward: &Subject, handling: &str) -> anyhow::Result<()> {
        let mut untold = vec![&self.irq, &self.cpus];
        let result = steward.until("word of both", |period| {
            untold.retain(|path| !told(period, path, handling));
            untold.is_empty()
        });
        result
            .map(|_| ())
            .with_context(|| format!("{untold:?} not told to be {handling}"))
    }

    fn hold(&self, when: &str) -> anyhow::Result<()> {
        for path in [&self.irq, &self.cpus] {
            let found = read(path)?;
            anyhow::ensure!(
                found.trim() == self.value,
                "{path} is {} {when}; someone else had set it to {}",
                found.trim(),
                self.value
            );
        }
        Ok(())
    }
}

impl Ground<'_> {
    /// Where the lab had put an interrupt at the start.
    fn original(&self, irq: &str) -> anyhow::Result<String> {
        let host = &self.program.scenario.host;
        let number = Path::new(irq).parent().and_then(Path::file_name);
        let number = number.and_then(|n| n.to_str()?.parse().ok());
        let number: u32 = number.context("an interrupt without a number")?;
        self.pnic
            .home(number, host)?
            .map(|core| core.to_string())
            .context("the interrupt is not the pNIC's")
    }
}

/// Whether a period tells of a foreign change of a file and what was done about it. The steward names files as it likes, as
/// long as their end is there.
fn told(period: &serde_json::Value, path: &str, handling: &str) -> bool {
    let end = path
        .trim_start_matches("/proc/")
        .trim_start_matches("/sys/fs/cgroup/");
    let changes = period["foreign"].as_array();
    changes.into_iter().flatten().any(|change| {
        change["handling"] == handling
            && change["target"]
                .as_str()
                .is_some_and(|target| target.contains(end))
    })
}
