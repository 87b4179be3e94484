//! The steward is killed at random moments while it acts, and `ostler undo` puts everything back.
//!
//! Two moments are of interest: the first period that acts, in which cgroups are made and threads moved into them, and
//! the periods after a change of policy, in which what is there is written anew, guests are frozen and thawed, and what
//! is no longer wanted is taken back. Half of the time the steward is killed in the one, half in the other; and sometimes
//! it is started again on the journal that the first one left, and killed once more, before anything is undone.

use std::path::PathBuf;
use std::time::Duration;

use ostler_model::Class;

use super::dice::Dice;
use super::{Ground, Verdict, wait_until};
use crate::inner::MACHINE_CGROUP;

/// Policies under which different values are written.
const POLICIES: &[&str] = &[
    "partition = { policy = \"energy\" }",
    "partition = { policy = \"performance\" }",
    "partition = { policy = \"resource\" }",
    "partition = { policy = \"static\", vcpu = 2, nq = 1 }",
    "partition = { policy = \"static\", vcpu = 1, nq = 2 }",
    "partition = { policy = \"time-sharing\", queues = \"one\" }",
    "partition = { policy = \"corenap\" }",
    STARVING,
    STARVING,
];

/// A little load looks like that of the whole host: no core is idle, and best-effort guests are frozen.
const STARVING: &str =
    "partition = { policy = \"resource\", thresholds = { vcpu = 0.05, nq = 0.05 }, hold = \"5s\" }";

/// In so many times, some must find a guest frozen: putting that back is a guest's life.
const TIMES_TO_MEET_A_FROZEN_GUEST: u32 = 50;

/// The first period that acts takes about this long on an emulated host.
const FIRST_PERIOD_US: u64 = 120_000;
/// Within this time of a reload, the change has been carried out.
const CHANGE_US: u64 = 400_000;
const START_WITHIN: Duration = Duration::from_mins(1);

/// Kills it once, or twice.
pub fn once(ground: &mut Ground<'_>, time: u32, verdict: &mut Verdict) -> anyhow::Result<()> {
    let seed = ground.program.seed;
    let mut dice = Dice::new(&[seed, ground.index as u64, u64::from(time)]);
    let before = ground.found()?;
    let lives = if dice.below(4) == 0 { 2 } else { 1 };
    for _ in 0..lives {
        life(ground, &mut dice)?;
    }
    let left = ground.found()?;
    if left.frozen() > before.frozen() {
        verdict.frozen += 1;
    }
    if left.must_be(&before).is_ok() {
        let note = "a steward was killed before it had written anything, or just after it had put all back";
        if !verdict.notes.iter().any(|said| said == note) {
            verdict.notes.push(note.to_owned());
        }
    }
    ground.undo_to(&before)
}

/// What all times together must have come to.
pub fn reckon(times: u32, verdict: &mut Verdict) {
    let frozen = verdict.frozen;
    verdict.notes.push(format!(
        "in {frozen} of {times} the steward left a guest frozen, which undo thawed"
    ));
    if frozen == 0 && times >= TIMES_TO_MEET_A_FROZEN_GUEST {
        verdict.failures.push(format!(
            "no guest was frozen when the steward was killed, in {times} times: what this is to show was not seen"
        ));
    }
}

fn life(ground: &Ground<'_>, dice: &mut Dice) -> anyhow::Result<()> {
    let steward = ground.start(dice.pick(POLICIES))?;
    if dice.below(2) == 0 {
        let domain =
            PathBuf::from(MACHINE_CGROUP).join(&ground.guest(Class::LatencyCritical)?.name);
        // Where an earlier life's cgroups are still there, it is killed while it finds out that they are its own.
        wait_until("the steward to act", START_WITHIN, || {
            Ok(domain.join("ostler.vcpu").is_dir())
        })?;
        pause(dice.below(FIRST_PERIOD_US));
    } else {
        steward.until("the steward to act", |period| {
            period["written"].as_u64() > Some(0) || period["seq"].as_u64() > Some(10)
        })?;
        for _ in 0..=dice.below(2) {
            steward.reload(&ground.config(dice.pick(POLICIES))?)?;
            pause(dice.below(CHANGE_US));
        }
    }
    steward.kill()
}

/// A random moment; not for synchronisation.
fn pause(us: u64) {
    std::thread::sleep(Duration::from_micros(us));
}
