//! Whether there is room within objectives to lend what vCPUs and queues leave of their cores.
//!
//! **The idea.** A best-effort guest on a queue's core, or a vCPU's, makes nobody wait for a slice, but each packet that comes while it runs there pays for
//! an exit from it and a switch, and a request has several packets. In the lab, whose exits are dear, that doubles the median (`docs/vspace.md`), and
//! little of it shows as demand. So demand can't tell when it becomes too much; response times can. Cores are lent as long as P95 is well within the
//! objective of the guest that fares worst, and taken back when it no longer is: queues' first, and vCPUs' if that wasn't enough.
//!
//! **A greater load is looked at first.** Response times tell of a load when it has been there for a while; and where more is asked for than is answered
//! with cores lent, requests wait with the client, and a tap sees none of that. So as soon as notably more are answered a second than under what lending is
//! known to be fine for, queues' cores are taken back, and lent again a moment later if P95 has room then.
//!
//! **A group that grows** had too few cores, and a P95 that was too long tells of that: it is looked at anew then, too. Not for ever: groups that grow and
//! shrink again and again have what they need now and then, and after a while P95 tells of what is lent as well.
//!
//! **Not again at once.** Once they are taken back because P95 came near, it falls, which says nothing about what would be if they were lent. So they
//! are lent again, one kind at a time, when notably fewer are answered than were, or else on trial, after a while that doubles with each trial that fails.
//!
//! **What lending costs is known from the last time.** A load that bears it just so tells by how much longer P95 is with queues' cores lent; under a greater one it is as much again at the
//! least. So they are lent where P95 times that is within what they are taken back at, and otherwise on trial alone: a trial that fails costs its seconds the objective.
//!
//! P95 of a period is of a hundred answers, or fewer: what counts is its average over about a second. A guest that has no answers in a period is delayed by
//! nobody. Where no guest has an objective, or none was ever seen to answer, nobody can tell, and queues' cores aren't lent. The paper has nothing of this
//! kind: its best-effort guests have idle cores alone. Heracles (ISCA 2015) lets best-effort work grow by the room within an objective.

use ostler_model::{Leftovers, Nanos, Room};

/// P95 over objective from which on what queues leave isn't lent any more, and up to which it is lent again. It is measured on the guest's tap: a client
/// has more, and twice as much where so many of its requests are on their way that others wait with it, of which a tap knows nothing.
const TAKE_BACK: f64 = 0.5;
const LEND: f64 = 0.42;
/// The same for what vCPUs leave, which costs less and gives more.
const TAKE_BACK_VCPUS: f64 = 0.67;
/// What P95 is averaged over.
const MEMORY: Nanos = Nanos::from_secs(1);
/// What the rate of answers is averaged over.
const RATE_MEMORY: Nanos = Nanos::from_millis(300);
/// Within what time a load that is borne may grow to be known as well.
const GROWTH: Nanos = Nanos::from_secs(10);
/// How long a load is looked at before anything is lent under it: by then the average is of it.
const SETTLE: Nanos = MEMORY;
/// A load is a greater one from this factor on, and so many times what chance does to the average beside. Where cores are lent fewer are answered than
/// are asked for.
const MORE: (f64, f64) = (1.1, 3.0);
/// And a lighter one below this factor.
const LESS: f64 = 0.67;
/// Groups that grow again sooner than this after the last time grow again and again; and for how long that postpones what P95 asks for.
const AGAIN: Nanos = Nanos::from_secs(2);
const POSTPONED: Nanos = Nanos::from_secs(5);
/// How long until a trial, the first time and at most.
const TRIAL: Nanos = Nanos::from_secs(10);
const TRIAL_MAX: Nanos = Nanos::from_secs(320);

/// P95 isn't held to be more than so many times as long for what is lent: it came of something else, and records tell no number without end.
const COSTS_MAX: f64 = 10.0;

/// What is lent by that; vCPUs' leftovers are until somebody was seen to answer.
pub fn lent(room: Option<Room>) -> Leftovers {
    room.map_or(Leftovers::OfVcpus, |room| room.lent)
}

/// What there was to see in a period.
#[derive(Clone, Copy, Debug)]
pub struct Period {
    /// P95 over objective of the guest that fares worst; `None`: nobody ever answered.
    pub p95_over_slo: Option<f64>,
    /// Answers of all guests that have one.
    pub responses: u64,
    /// A group has more cores from now on.
    pub grew: bool,
    /// How long it was.
    pub interval: Nanos,
}

impl Period {
    /// What this period counts in an average over so long.
    fn weight(&self, memory: Nanos) -> f64 {
        1.0 - libm::exp(-(self.interval.0 as f64) / memory.0 as f64)
    }

    /// Answers a second.
    fn rate(&self) -> f64 {
        self.responses as f64 / (self.interval.as_secs_f64().max(1e-9))
    }
}

/// The least rate that is notably more than `load`. Answers that come by chance vary, in an average over [`RATE_MEMORY`], by the root of so many a second.
fn more_than(load: f64) -> f64 {
    load * MORE.0 + MORE.1 * (load / (2.0 * RATE_MEMORY.as_secs_f64())).sqrt()
}

/// The room after a period that ends now.
pub fn after(before: Option<Room>, period: Period, now: Nanos) -> Option<Room> {
    // A missed objective is missed, by however much: what is long past isn't to be remembered for longer.
    let seen = period.p95_over_slo?.min(1.0);
    let Some(before) = before else {
        return Some(Room {
            p95_over_slo: seen,
            lent: Leftovers::OfVcpus,
            since: now,
            rate: period.rate(),
            load: period.rate(),
            taken_at: None,
            trial: TRIAL,
            on_trial: false,
            grew: period.grew.then_some((now, now)),
            apart: None,
            costs: None,
        });
    };
    let grew = if period.grew {
        let again = before
            .grew
            .filter(|(_, last)| now.saturating_sub(*last) < AGAIN);
        Some((again.map_or(now, |(first, _)| first), now))
    } else {
        before.grew
    };
    let postponed =
        period.grew && grew.is_some_and(|(first, _)| now.saturating_sub(first) < POSTPONED);
    // What a group that has too few cores makes of it isn't what lending does.
    let weight = if postponed {
        0.0
    } else {
        period.weight(MEMORY)
    };
    let average = before.p95_over_slo + weight * (seen - before.p95_over_slo);
    let rate = before.rate + period.weight(RATE_MEMORY) * (period.rate() - before.rate);
    let mut room = Room {
        p95_over_slo: average,
        rate,
        grew,
        ..before
    };
    let lasted = now.saturating_sub(room.since);
    // By then the average is of the time since, but for what it remembers.
    let settles = lasted >= SETTLE && lasted.saturating_sub(period.interval) < SETTLE;
    // Of response times too short to be told nothing is a multiple.
    let measured = room.apart.filter(|apart| *apart > 0.0);
    if let Some(apart) = measured.filter(|_| room.lent == Leftovers::OfAll && settles) {
        let remembers = libm::exp(-(lasted.0 as f64) / MEMORY.0 as f64);
        let now = (average - remembers * apart) / (1.0 - remembers);
        room.costs = Some((now / apart).clamp(1.0, COSTS_MAX));
    }
    // What was taken back last is given the time to show.
    let near = match room.lent {
        Leftovers::OfAll => average > TAKE_BACK,
        Leftovers::OfVcpus => average > TAKE_BACK_VCPUS && lasted >= SETTLE,
        Leftovers::Nothing => false,
    };
    if postponed || (period.grew && room.lent == Leftovers::OfAll) {
        room.lent = room.lent.min(Leftovers::OfVcpus);
        (room.since, room.load) = (now, rate.max(room.load));
    } else if near {
        if room.on_trial && lasted < room.trial {
            room.trial = Nanos(room.trial.0.saturating_mul(2).min(TRIAL_MAX.0));
        } else if room.taken_at.is_none() || lasted >= room.trial {
            room.trial = TRIAL;
        }
        room.lent = less(room.lent);
        (room.on_trial, room.since) = (false, now);
        (room.load, room.taken_at) = (rate, Some(rate));
    } else if rate > more_than(room.load) {
        // Another load than is known of, and an average of both tells of neither.
        room.lent = room.lent.min(Leftovers::OfVcpus);
        (room.since, room.rate) = (now, period.rate());
        room.load = room.rate;
    } else if average <= LEND && !period.grew {
        let lighter = room.taken_at.is_none_or(|then| rate < LESS * then);
        let borne =
            room.lent == Leftovers::Nothing || average * room.costs.unwrap_or(1.0) <= TAKE_BACK;
        let known = lighter && borne;
        if room.lent == Leftovers::OfAll {
            room.load += period.weight(GROWTH) * (rate - room.load).max(0.0);
        } else if lasted >= if known { SETTLE } else { room.trial } {
            room.lent = greater(room.lent);
            (room.on_trial, room.since, room.load) = (!known, now, rate);
            if room.lent == Leftovers::OfAll {
                room.apart = Some(average);
                if known {
                    (room.taken_at, room.trial) = (None, TRIAL);
                }
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

    fn period((p95_over_slo, responses): (Option<f64>, u64), grew: bool) -> Period {
        Period {
            p95_over_slo,
            responses,
            grew,
            interval: PERIOD,
        }
    }

    /// A host that tells P95 over the objective, and answers in a period, by whether queues' cores are lent.
    fn run(periods: u64, mut host: impl FnMut(u64, bool) -> (Option<f64>, u64)) -> Vec<bool> {
        let levels = run_by_level(periods, |at, lent| host(at, lent == Leftovers::OfAll));
        levels
            .iter()
            .map(|lent| *lent == Leftovers::OfAll)
            .collect()
    }

    /// The same, told what is lent.
    fn run_by_level(
        periods: u64,
        mut host: impl FnMut(u64, Leftovers) -> (Option<f64>, u64),
    ) -> Vec<Leftovers> {
        let mut room = None;
        (1..=periods)
            .map(|at| {
                let lent = super::lent(room);
                room = after(room, period(host(at, lent), false), Nanos(PERIOD.0 * at));
                super::lent(room)
            })
            .collect()
    }

    #[test]
    fn nothing_is_lent_where_nobody_can_tell() {
        assert!(run(1000, |_, _| (None, 10)).iter().all(|lent| !lent));
    }

    #[test]
    fn it_is_lent_while_there_is_room() {
        let lent = run(1000, |_, lent| (Some(if lent { 0.44 } else { 0.3 }), 20));
        assert!(lent[11..].iter().all(|lent| *lent));
    }

    /// A load that grows is looked at before anything is lent under it, each time; one that falls and comes again is known.
    #[test]
    fn a_greater_load_is_looked_at_first() {
        let lent = run(400, |at, _| {
            (
                Some(0.3),
                if (100..200).contains(&at) || at >= 300 {
                    50
                } else {
                    20
                },
            )
        });
        assert!(lent[11..98].iter().all(|lent| *lent));
        assert!(lent[100..109].iter().all(|lent| !lent));
        assert!(lent[111..].iter().all(|lent| *lent));
    }

    /// P95 is three tenths longer with queues' cores lent. Under a load that leaves no room for that they aren't lent once it has been looked at, but on trial, ten seconds later; under the first they are again.
    #[test]
    fn what_lending_costs_is_known_under_a_greater_load() {
        let (first, second) = (100, 400);
        let lent = run(600, |at, lent| {
            let heavy = (first..second).contains(&at);
            let apart = if heavy { 0.41 } else { 0.34 };
            let ratio = if lent { 1.3 * apart } else { apart };
            (Some(ratio), if heavy { 80 } else { 50 })
        });
        assert!(lent[11..100].iter().all(|lent| *lent));
        assert!(lent[103..200].iter().all(|lent| !lent));
        assert!(lent[200..230].iter().any(|lent| *lent), "on trial");
        let trials = lent[200..400].iter().filter(|lent| **lent).count();
        assert!(trials < 20, "{trials} periods on trial");
        assert!(lent[430..].iter().all(|lent| *lent));
    }

    /// What it costs is no more than it was: where it leaves room under the greater load it is lent after a second, as ever.
    #[test]
    fn what_lending_costs_leaves_room() {
        let lent = run(300, |at, lent| {
            let apart = if at >= 100 { 0.38 } else { 0.34 };
            let ratio = if lent { 1.2 * apart } else { apart };
            (Some(ratio), if at >= 100 { 80 } else { 50 })
        });
        assert!(lent[11..100].iter().all(|lent| *lent));
        assert!(lent[103..110].iter().all(|lent| !lent));
        assert!(lent[115..].iter().all(|lent| *lent));
    }

    /// Response times too short to be told are no measure, and whatever else is measured is a number that a record can tell.
    #[test]
    fn what_lending_costs_is_always_a_number() {
        for (apart, lent) in [(0.0, 0.4), (1e-310, 0.4), (0.3, 0.0), (0.0, 0.0)] {
            let mut room = None;
            for at in 1..200 {
                let all = super::lent(room) == Leftovers::OfAll;
                let seen = period((Some(if all { lent } else { apart }), 50), false);
                room = after(room, seen, Nanos(PERIOD.0 * at));
                let costs = room.and_then(|room| room.costs);
                let told = costs.is_none_or(|costs| (1.0..=COSTS_MAX).contains(&costs));
                assert!(told, "{apart}, {lent}: {costs:?}");
            }
            assert_eq!(super::lent(room), Leftovers::OfAll, "{apart}, {lent}");
        }
    }

    /// With queues' cores lent not all that is asked for is answered; the rest waits with the client, and response times are good. What more is
    /// answered tells of it.
    #[test]
    fn a_load_of_which_some_waits_elsewhere_is_looked_at_first() {
        let lent = run(400, |at, lent| {
            let asked = if at < 100 { 240 } else { 320 };
            let answered = if lent { asked.min(300) } else { asked };
            (Some(if at > 105 { 0.48 } else { 0.4 }), answered)
        });
        assert!(lent[11..99].iter().all(|lent| *lent));
        assert!(lent[106..].iter().all(|lent| !lent));
    }

    /// Where lending takes what room there is, it is tried ever more rarely: in an hour for less than a hundredth of the time.
    #[test]
    fn a_load_that_bears_no_lending_is_left_alone() {
        let lent = run(36_000, |_, lent| (Some(if lent { 0.9 } else { 0.4 }), 50));
        let share = lent.iter().filter(|lent| **lent).count();
        assert!((20..360).contains(&share), "{share} of {}", lent.len());
        let trials = lent.windows(2).filter(|two| !two[0] && two[1]).count();
        assert!((5..40).contains(&trials), "{trials}");
    }

    /// Where not even vCPUs' leftovers can be borne, they are taken back, too: a second after queues'; and both come back with a lighter load.
    #[test]
    fn what_cannot_be_borne_is_taken_back_step_by_step() {
        let lent = run_by_level(36_000, |at, lent| match (at < 35_000, lent) {
            (true, Leftovers::OfAll) => (Some(0.9), 50),
            (true, Leftovers::OfVcpus) => (Some(0.7), 50),
            _ => (Some(0.4), if at < 35_000 { 50 } else { 20 }),
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
            room = after(room, period((Some(ratio), 30), grows), Nanos(PERIOD.0 * at));
            let lent = room.unwrap().lent;
            assert!(lent >= Leftovers::OfVcpus, "at {at}");
            assert_eq!(
                lent == Leftovers::OfAll,
                (11..20).contains(&at) || at >= 39,
                "at {at}"
            );
        }
    }

    /// Groups that grow and shrink in turn, each as soon as its hold is over, have vCPUs' leftovers taken back even so; and where P95 is short they keep them.
    #[test]
    fn groups_that_grow_again_and_again_postpone_it_for_a_while() {
        for (every, ratio, taken) in [
            (5, 0.9, true),
            (7, 0.7, true),
            (1, 0.9, true),
            (5, 0.5, false),
        ] {
            let (mut room, mut first) = (None, None);
            for at in 1..=600 {
                let (grows, ratio) = if at < 10 {
                    (false, 0.3)
                } else {
                    (at % every == 0, ratio)
                };
                let seen = period((Some(ratio), 30), grows);
                room = after(room, seen, Nanos(PERIOD.0 * at));
                if lent(room) == Leftovers::Nothing {
                    first = first.or(Some(at));
                }
            }
            let told = format!("every {every} periods, {ratio}: {first:?}");
            assert_eq!(first.is_some(), taken, "{told}");
            // What growing postpones, a look, and the average's time.
            assert!(first.is_none_or(|first| first < 90), "{told}");
        }
    }

    /// Who grows now and then is given time each time, however long ago the first time was.
    #[test]
    fn growing_now_and_then_is_not_again_and_again() {
        let mut room = None;
        for at in 20..=3_000 {
            // Twice within a second, every five; what queued up meanwhile has gone a moment later.
            let grows = at % 50 == 0 || at % 50 == 9;
            let ratio = if at % 50 < 12 { 1.0 } else { 0.3 };
            let seen = period((Some(ratio), 30), grows);
            room = after(room, seen, Nanos(PERIOD.0 * at));
            assert!(lent(room) >= Leftovers::OfVcpus, "at {at}");
        }
    }

    /// Where they can, they stay.
    #[test]
    fn what_can_be_borne_is_left() {
        let lent = run_by_level(36_000, |_, lent| match lent {
            Leftovers::OfAll => (Some(0.9), 50),
            Leftovers::OfVcpus => (Some(0.41), 50),
            Leftovers::Nothing => (Some(0.3), 50),
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
            (Some(ratio), if heavy { 50 } else { 20 })
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
            let lent = run(spans.len() as u64, |_, _| (coming.next().copied(), 30));
            for (at, lent) in lent.iter().enumerate() {
                // The average of what was at least 1 for 1.5 s is at least 0.77.
                let missed = at >= 15 && spans[at - 15..=at].iter().all(|ratio| *ratio >= 1.0);
                prop_assert!(!(missed && *lent), "at {at}");
            }
        }

        /// However much an objective was missed, it is remembered for as long.
        #[test]
        fn a_miss_is_a_miss(by in 1.0..1000.0_f64) {
            let lent = |by| run(400, |at, _| (Some(if at <= 20 { by } else { 0.1 }), 30));
            prop_assert_eq!(lent(by), lent(1.0));
            prop_assert!(lent(by)[300..].iter().all(|lent| *lent));
        }

        /// Answers that come by chance, around the same rate, are no other load.
        #[test]
        fn chance_takes_nothing_back(rate in 1..500_u64, tenths in prop::collection::vec(0..=34_u64, 600)) {
            let mut coming = tenths.iter();
            let lent = run(600, |_, _| {
                let more = coming.next().unwrap() * rate.isqrt() / 10;
                (Some(0.3), (rate + more).saturating_sub(17 * rate.isqrt() / 10))
            });
            let share = lent.iter().filter(|lent| **lent).count();
            prop_assert!(share >= 480, "{share} of 600");
        }

        #[test]
        fn one_bad_period_takes_nothing_back(bad in 0.0..1000.0_f64, at in 50..90_u64) {
            let lent = run(100, |now, _| (Some(if now == at { bad } else { 0.3 }), 30));
            prop_assert!(lent[11..].iter().all(|lent| *lent));
        }
    }
}
