//! Whether there is room within objectives to lend what vCPUs and queues leave of their cores.
//!
//! **The idea.** A best-effort guest on a queue's core, or a vCPU's, makes nobody wait for a slice, but each packet that comes while it runs there pays for
//! an exit from it and a switch, and a request has several packets. In the lab, whose exits are dear, that doubles the median (`docs/vspace.md`), and
//! little of it shows as demand. So demand can't tell when it becomes too much; response times can. Cores are lent as long as P95 is well within the
//! objective of the guest that fares worst, and taken back when it no longer is: queues' first, and vCPUs' if that wasn't enough.
//!
//! **A greater load is looked at first.** Response times tell of a load when it has been there for a while. So as soon as queues need notably more
//! than what lending is known to be fine for, queues' cores are taken back, and lent again a moment later if P95 has room then.
//!
//! **A group that grows** had too few cores, and a P95 that was too long tells of that: it is looked at anew then, too.
//!
//! **Not again at once.** Once they are taken back because P95 came near, it falls, which says nothing about what would be if they were lent. So they
//! are lent again, one kind at a time, when queues need notably less than they did, or else on trial, after a while that doubles with each trial that fails.
//!
//! P95 of a period is of a hundred answers, or fewer: what counts is its average over about a second. A guest that has no answers in a period is delayed by
//! nobody. Where no guest has an objective, or none was ever seen to answer, nobody can tell, and queues' cores aren't lent. The paper has nothing of this
//! kind: its best-effort guests have idle cores alone. Heracles (ISCA 2015) lets best-effort work grow by the room within an objective.

use ostler_model::{Leftovers, Nanos, Room};

/// P95 over objective from which on nothing is lent any more, and up to which it is lent again: half, give or take a tenth of that. It is measured on
/// the guest's tap, so clients have more.
const TAKE_BACK: f64 = 0.55;
const LEND: f64 = 0.45;
/// The same for what vCPUs leave, which costs less and gives more: two thirds.
const TAKE_BACK_VCPUS: f64 = 0.67;
/// What P95 is averaged over.
const MEMORY: Nanos = Nanos::from_secs(1);
/// How long a load is looked at before anything is lent under it: by then the average is of it.
const SETTLE: Nanos = MEMORY;
/// Queues need notably more than they did from this factor on, and so much besides, in cores. Where cores are lent demand grows by less than load does.
const MORE: (f64, f64) = (1.15, 0.03);
/// And notably less below this factor.
const LESS: f64 = 0.67;
/// How long until a trial, the first time and at most.
const TRIAL: Nanos = Nanos::from_secs(10);
const TRIAL_MAX: Nanos = Nanos::from_secs(320);

/// The room after a period of `interval` that ends now, in which the guest that fares worst had this P95 over its objective (`None`: nobody ever
/// answered), and queues needed `demand` cores at their peak; `grew`: a group has more cores from now on.
pub fn after(
    before: Option<Room>,
    p95_over_slo: Option<f64>,
    demand: f64,
    grew: bool,
    interval: Nanos,
    now: Nanos,
) -> Option<Room> {
    // A missed objective is missed, by however much: what is long past isn't to be remembered for longer.
    let seen = p95_over_slo?.min(1.0);
    let Some(before) = before else {
        return Some(Room {
            p95_over_slo: seen,
            lent: Leftovers::OfVcpus,
            since: now,
            demand,
            taken_at: None,
            trial: TRIAL,
            on_trial: false,
        });
    };
    let weight = 1.0 - (-(interval.0 as f64) / MEMORY.0 as f64).exp();
    // What a group that has too few cores makes of it isn't what lending does.
    let weight = if grew { 0.0 } else { weight };
    let average = before.p95_over_slo + weight * (seen - before.p95_over_slo);
    let mut room = Room {
        p95_over_slo: average,
        ..before
    };
    let lasted = now.saturating_sub(room.since);
    let more = demand > room.demand * MORE.0 + MORE.1;
    // What was taken back last is given the time to show.
    let near = match room.lent {
        Leftovers::OfAll => average > TAKE_BACK,
        Leftovers::OfVcpus => average > TAKE_BACK_VCPUS && lasted >= SETTLE,
        Leftovers::Nothing => false,
    };
    if grew {
        room.lent = room.lent.min(Leftovers::OfVcpus);
        (room.since, room.demand) = (now, demand.max(room.demand));
    } else if near {
        if room.on_trial && lasted < room.trial {
            room.trial = Nanos(room.trial.0.saturating_mul(2).min(TRIAL_MAX.0));
        } else if room.taken_at.is_none() || lasted >= room.trial {
            room.trial = TRIAL;
        }
        room.lent = less(room.lent);
        (room.on_trial, room.since) = (false, now);
        (room.demand, room.taken_at) = (demand, Some(demand));
    } else if more {
        // Another load than is known of.
        room.lent = room.lent.min(Leftovers::OfVcpus);
        (room.since, room.demand) = (now, demand);
    } else if average <= LEND {
        let lighter = room.taken_at.is_none_or(|then| demand < LESS * then);
        if room.lent == Leftovers::OfAll {
            room.demand = room.demand.max(demand);
        } else if lasted >= if lighter { SETTLE } else { room.trial } {
            room.lent = greater(room.lent);
            (room.on_trial, room.since, room.demand) = (!lighter, now, demand);
            if lighter && room.lent == Leftovers::OfAll {
                (room.taken_at, room.trial) = (None, TRIAL);
            }
        }
    }
    Some(room)
}

fn less(lent: Leftovers) -> Leftovers {
    match lent {
        Leftovers::OfAll => Leftovers::OfVcpus,
        Leftovers::OfVcpus | Leftovers::Nothing => Leftovers::Nothing,
    }
}

fn greater(lent: Leftovers) -> Leftovers {
    match lent {
        Leftovers::Nothing => Leftovers::OfVcpus,
        Leftovers::OfVcpus | Leftovers::OfAll => Leftovers::OfAll,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: Nanos = Nanos::from_millis(100);

    /// A host on which P95 over the objective is `apart` while queues' cores are theirs, and `lent` while they are lent.
    fn run(periods: u64, mut host: impl FnMut(u64, bool) -> (Option<f64>, f64)) -> Vec<bool> {
        let levels = run_by_level(periods, |at, lent| host(at, lent == Leftovers::OfAll));
        levels
            .iter()
            .map(|lent| *lent == Leftovers::OfAll)
            .collect()
    }

    /// The same, told what is lent.
    fn run_by_level(
        periods: u64,
        mut host: impl FnMut(u64, Leftovers) -> (Option<f64>, f64),
    ) -> Vec<Leftovers> {
        let mut room = None;
        (1..=periods)
            .map(|at| {
                let lent = room.map_or(Leftovers::OfVcpus, |room: Room| room.lent);
                let (ratio, demand) = host(at, lent);
                room = after(room, ratio, demand, false, PERIOD, Nanos(PERIOD.0 * at));
                room.map_or(Leftovers::OfVcpus, |room| room.lent)
            })
            .collect()
    }

    #[test]
    fn nothing_is_lent_where_nobody_can_tell() {
        assert!(run(1000, |_, _| (None, 0.1)).iter().all(|lent| !lent));
    }

    #[test]
    fn it_is_lent_while_there_is_room() {
        let lent = run(1000, |_, lent| (Some(if lent { 0.44 } else { 0.3 }), 0.2));
        assert!(lent[11..].iter().all(|lent| *lent));
    }

    /// A load that grows is looked at before anything is lent under it, each time; one that falls and comes again is known.
    #[test]
    fn a_greater_load_is_looked_at_first() {
        let lent = run(400, |at, _| {
            (
                Some(0.3),
                if (100..200).contains(&at) || at >= 300 {
                    0.5
                } else {
                    0.2
                },
            )
        });
        assert!(lent[11..98].iter().all(|lent| *lent));
        assert!(lent[99..109].iter().all(|lent| !lent));
        assert!(lent[111..].iter().all(|lent| *lent));
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

    /// Where not even vCPUs' leftovers can be borne, they are taken back, too: a second after queues'; and both come back with a lighter load.
    #[test]
    fn what_cannot_be_borne_is_taken_back_step_by_step() {
        let lent = run_by_level(36_000, |at, lent| match (at < 35_000, lent) {
            (true, Leftovers::OfAll) => (Some(0.9), 0.5),
            (true, Leftovers::OfVcpus) => (Some(0.7), 0.5),
            _ => (Some(0.4), if at < 35_000 { 0.5 } else { 0.2 }),
        });
        let nothing = lent[..35_000]
            .iter()
            .filter(|lent| **lent == Leftovers::Nothing);
        assert!(nothing.count() > 34_000);
        assert!(!lent[..35_000].contains(&Leftovers::OfAll));
        assert!(lent[35_040..].iter().all(|lent| *lent == Leftovers::OfAll));
    }

    /// Until a group has grown to what a new load needs, long response times tell of that alone.
    #[test]
    fn a_group_that_grows_is_given_time() {
        let mut room = None;
        for at in 1..100 {
            let grows = (20..30).contains(&at);
            let ratio = if (20..33).contains(&at) { 1.0 } else { 0.3 };
            room = after(room, Some(ratio), 0.3, grows, PERIOD, Nanos(PERIOD.0 * at));
            let lent = room.unwrap().lent;
            assert!(lent >= Leftovers::OfVcpus, "at {at}");
            assert_eq!(
                lent == Leftovers::OfAll,
                (11..20).contains(&at) || at >= 39,
                "at {at}"
            );
        }
    }

    /// Where they can, they stay.
    #[test]
    fn what_can_be_borne_is_left() {
        let lent = run_by_level(36_000, |_, lent| match lent {
            Leftovers::OfAll => (Some(0.9), 0.5),
            Leftovers::OfVcpus => (Some(0.42), 0.5),
            Leftovers::Nothing => (Some(0.3), 0.5),
        });
        let vcpus = lent
            .iter()
            .filter(|lent| **lent == Leftovers::OfVcpus)
            .count();
        assert!(vcpus > 35_500, "{vcpus}");
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

        /// However much an objective was missed, it is remembered for as long.
        #[test]
        fn a_miss_is_a_miss(by in 1.0..1000.0_f64) {
            let lent = |by| run(400, |at, _| (Some(if at <= 20 { by } else { 0.1 }), 0.3));
            prop_assert_eq!(lent(by), lent(1.0));
            prop_assert!(lent(by)[300..].iter().all(|lent| *lent));
        }

        #[test]
        fn one_bad_period_takes_nothing_back(bad in 0.0..1000.0_f64, at in 50..90_u64) {
            let lent = run(100, |now, _| (Some(if now == at { bad } else { 0.3 }), 0.3));
            prop_assert!(lent[11..].iter().all(|lent| *lent));
        }
    }
}
