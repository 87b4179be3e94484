//! Whether there is room within objectives to lend what queues leave of their cores.
//!
//! **The idea.** A best-effort guest on a queue's core makes no packet wait for a slice, but each packet that comes while it runs there pays for
//! an exit from it and a switch, and a request has several packets. In the lab, whose exits are dear, that is a third to two thirds of the median
//! (`docs/vspace.md`), and little of it shows as demand. So demand can't tell when it becomes too much; response times can. Queues' cores are lent
//! as long as P95 is well within the objective of the guest that fares worst, and taken back when it no longer is.
//!
//! **Not again at once.** Once they are taken back P95 falls, which says nothing about what would be if they were lent. So they are lent again
//! when queues need notably less than they did, or else on trial, after a while that doubles with each trial that fails.
//!
//! P95 of a period is of a hundred answers, or fewer: what counts is its average over about a second. A guest that has no answers in a period is delayed by
//! nobody. Where no guest has an objective, or none was ever seen to answer, nobody can tell, and nothing is lent. The paper has nothing of this
//! kind: its best-effort guests have idle cores alone. Heracles (ISCA 2015) lets best-effort work grow by the room within an objective.

use ostler_model::{Nanos, Room};

/// P95 over objective from which on nothing is lent any more, and up to which it is lent again.
const TAKE_BACK: f64 = 0.6;
const LEND: f64 = 0.5;
/// What P95 is averaged over.
const MEMORY: Nanos = Nanos::from_secs(1);
/// What queues' demand has to have fallen to, of what it was when cores were taken back, to be no longer the same load.
const LESS: f64 = 0.8;
/// How long until a trial, the first time and at most.
const TRIAL: Nanos = Nanos::from_secs(10);
const TRIAL_MAX: Nanos = Nanos::from_secs(320);

/// The room after a period of `interval` that ends now, in which the guest that fares worst had this P95 over its objective (`None`: nobody ever
/// answered), and queues needed `demand` cores at their peak.
pub fn after(
    before: Option<Room>,
    p95_over_slo: Option<f64>,
    demand: f64,
    interval: Nanos,
    now: Nanos,
) -> Option<Room> {
    let seen = p95_over_slo?;
    let Some(before) = before else {
        return Some(Room {
            p95_over_slo: seen,
            lent: seen <= LEND,
            since: now,
            taken_at: None,
            trial: TRIAL,
        });
    };
    let weight = 1.0 - (-(interval.0 as f64) / MEMORY.0 as f64).exp();
    let mut room = Room {
        p95_over_slo: before.p95_over_slo + weight * (seen - before.p95_over_slo),
        ..before
    };
    let lasted = now.saturating_sub(room.since);
    if room.lent {
        if room.p95_over_slo > TAKE_BACK {
            room.trial = if room.taken_at.is_some() && lasted < room.trial {
                Nanos(room.trial.0.saturating_mul(2).min(TRIAL_MAX.0))
            } else {
                TRIAL
            };
            (room.lent, room.taken_at, room.since) = (false, Some(demand), now);
        }
    } else if room.p95_over_slo <= LEND {
        let less = room.taken_at.is_none_or(|then| demand < LESS * then);
        if less || lasted >= room.trial {
            (room.lent, room.since) = (true, now);
            if less {
                (room.taken_at, room.trial) = (None, TRIAL);
            }
        }
    }
    Some(room)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: Nanos = Nanos::from_millis(100);

    /// A host on which P95 over the objective is `apart` while queues' cores are theirs, and `lent` while they are lent.
    fn run(periods: u64, mut host: impl FnMut(u64, bool) -> (Option<f64>, f64)) -> Vec<bool> {
        let mut room = None;
        (1..=periods)
            .map(|at| {
                let lent = room.is_some_and(|room: Room| room.lent);
                let (ratio, demand) = host(at, lent);
                room = after(room, ratio, demand, PERIOD, Nanos(PERIOD.0 * at));
                room.is_some_and(|room| room.lent)
            })
            .collect()
    }

    #[test]
    fn nothing_is_lent_where_nobody_can_tell() {
        assert!(run(1000, |_, _| (None, 0.1)).iter().all(|lent| !lent));
    }

    #[test]
    fn it_is_lent_while_there_is_room() {
        let lent = run(1000, |_, lent| (Some(if lent { 0.45 } else { 0.3 }), 0.2));
        assert!(lent.iter().all(|lent| *lent));
    }

    /// Where lending takes what room there is, it is tried ever more rarely: in an hour for less than a hundredth of the time.
    #[test]
    fn a_load_that_bears_no_lending_is_left_alone() {
        let lent = run(36_000, |_, lent| (Some(if lent { 0.9 } else { 0.4 }), 0.5));
        let share = lent.iter().filter(|lent| **lent).count();
        assert!((20..360).contains(&share), "{share} of {}", lent.len());
        let trials = lent.windows(2).filter(|two| !two[0] && two[1]).count();
        assert!((5..40).contains(&trials), "{trials}");
    }

    /// A lighter load is found out at once, and not only by the next trial.
    #[test]
    fn a_lighter_load_is_lent_to_again() {
        let lent = run(2_000, |at, lent| {
            let heavy = at < 1_000;
            let ratio = if heavy && lent { 0.9 } else { 0.4 };
            (Some(ratio), if heavy { 0.5 } else { 0.2 })
        });
        assert!(!lent[998]);
        assert!(lent[1_030..].iter().all(|lent| *lent));
    }

    proptest! {
        /// Whatever comes, nothing stays lent for longer than a moment while an objective is missed; and one bad period alone among good ones takes nothing back.
        #[test]
        fn missed_objectives_take_cores_back(ratios in prop::collection::vec((0.0..3.0_f64, 1..40_usize), 1..40)) {
            let spans: Vec<f64> = ratios.iter().flat_map(|(ratio, len)| vec![*ratio; *len]).collect();
            let mut coming = spans.iter();
            let lent = run(spans.len() as u64, |_, _| (coming.next().copied(), 0.3));
            for (at, lent) in lent.iter().enumerate() {
                // The average of what was at least 1 for 1.5 s is at least 0.77.
                let missed = at >= 15 && spans[at - 15..=at].iter().all(|ratio| *ratio >= 1.0);
                prop_assert!(!(missed && *lent), "at {at}");
            }
        }

        #[test]
        fn one_bad_period_takes_nothing_back(bad in 0.0..3.0_f64, at in 50..90_u64) {
            let lent = run(100, |now, _| (Some(if now == at { bad } else { 0.3 }), 0.3));
            prop_assert!(lent.iter().all(|lent| *lent));
        }
    }
}
