//! Sizes of guests' in-memory files: the model against its closed form, the loop against least squares and algorithm 1, shares against what they promise.

use ostler_model::Nanos;
use ostler_policy::sizing::queue::{Service, ServiceError, Solution};
use ostler_policy::sizing::rate::Rate;
use ostler_policy::sizing::rls::Rls;
use ostler_policy::sizing::share::{Wish, share};
use ostler_policy::sizing::{Control, Parts, Seen, Settings, Step};
use proptest::collection::vec;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// Rising sizes, falling times.
fn measured() -> impl Strategy<Value = Vec<(u64, f64)>> {
    vec((1..1000_u64, 0.0..2.0_f64), 1..8).prop_map(|steps| {
        let (mut bytes, mut seconds) = (0, 20.0);
        let step = |(more, less): (u64, f64)| {
            bytes += more * MIB;
            seconds -= less;
            (bytes, seconds)
        };
        steps.into_iter().map(step).collect()
    })
}

proptest! {
    #[test]
    fn the_size_solved_for_gives_the_wanted_response(
        measured in measured(),
        arrivals in 0.0..0.5_f64,
        wanted in 0.5..60.0_f64,
    ) {
        let service = Service::new(&measured).expect("they are figures");
        let solution = service.solve(arrivals, wanted, 1.0);
        let bytes = solution.bytes();
        let response = service.response(bytes, arrivals);
        match solution {
            // A byte is a millionth of the least distance between sizes.
            Solution::Size(_) => {
                let response = response.expect("the queue has an end");
                prop_assert!((response - wanted).abs() < 1e-3 * wanted, "{response}");
                let less = service.response(bytes - MIB / 2, arrivals);
                prop_assert!(less.is_none_or(|less| less >= response));
            }
            Solution::Ample(_) => {
                prop_assert_eq!(bytes, measured[0].0);
                prop_assert!(response.expect("it has an end") <= wanted * (1.0 + 1e-9));
            }
            Solution::OutOfReach(_) => {
                prop_assert!(response.is_none_or(|response| response >= wanted));
                let largest = measured.last().expect("there is one").0;
                prop_assert!(service.mean(bytes) <= service.mean(largest));
            }
        }
    }

    #[test]
    fn a_curve_never_rises_whatever_was_measured(times in vec(0.1..10.0_f64, 1..12)) {
        let measured: Vec<(u64, f64)> = (1..).map(|at| at * MIB).zip(times.iter().copied()).collect();
        let service = Service::new(&measured).expect("they are figures");
        let means: Vec<f64> = measured.iter().map(|(bytes, _)| service.mean(*bytes)).collect();
        prop_assert!(means.windows(2).all(|pair| pair[0] >= pair[1] - 1e-12));
        // Averaging neighbours loses nothing of the sum, and leaves what fell already.
        let sum = |times: &[f64]| times.iter().sum::<f64>();
        prop_assert!((sum(&means) - sum(&times)).abs() < 1e-9);
        if times.windows(2).all(|pair| pair[0] >= pair[1]) {
            prop_assert_eq!(means, times);
        }
    }

    /// theta minimises the sum of squares, what was first believed being a pair of its own: by the normal equations.
    #[test]
    fn what_is_learned_is_the_least_squares(
        pairs in vec((-2.0..2.0_f64, -2.0..2.0_f64, -2.0..2.0_f64), 1..40),
        first in (-1.0..1.0_f64, -1.0..1.0_f64),
        gain in 0.1..100.0_f64,
    ) {
        let mut rls = Rls::new([first.0, first.1], gain, 1.0);
        let (mut a, mut b, mut c) = (1.0 / gain, 0.0, 1.0 / gain);
        let (mut p, mut q) = (first.0 / gain, first.1 / gain);
        for (y, u, next) in pairs {
            rls.learn((y, u), next);
            a += y * y;
            b += y * u;
            c += u * u;
            p += y * next;
            q += u * next;
            let det = a * c - b * b;
            let best = [(p * c - q * b) / det, (q * a - p * b) / det];
            prop_assert!((rls.theta[0] - best[0]).abs() < 1e-6, "{:?} {best:?}", rls.theta);
            prop_assert!((rls.theta[1] - best[1]).abs() < 1e-6, "{:?} {best:?}", rls.theta);
        }
    }

    #[test]
    fn no_figures_take_the_gain_away(
        pairs in vec((any::<f64>(), any::<f64>(), any::<f64>()), 1..40),
        small in vec((-1e-3..1e-3_f64, -1e3..1e3_f64, -1.0..1.0_f64), 1..60),
        memory in any::<f64>(),
    ) {
        let mut rls = Rls::new([1.0, -0.1], 100.0, memory);
        for (y, u, next) in pairs.into_iter().chain(small) {
            rls.learn((y, u), next);
            let ([a, c], b) = rls.gain();
            prop_assert!(a > 0.0 && c > 0.0 && a * c > b * b, "{a} {b} {c}");
            prop_assert!(a <= 100.0 && c <= 100.0, "it winds up: {a} {c}");
            prop_assert!(rls.theta.iter().all(|theta| theta.is_finite()));
        }
    }

    #[test]
    fn a_budget_is_shared_as_water_is(
        budget in 0..5000_u64,
        wishes in vec((0..300_u64, 0..1500_u64), 0..12),
    ) {
        let wishes: Vec<Wish> = wishes
            .into_iter()
            .map(|(least, more)| Wish { least, bytes: least + more })
            .collect();
        let mut grants = Vec::new();
        share(budget, &wishes, &mut grants);
        prop_assert_eq!(grants.len(), wishes.len());
        let sum: u64 = grants.iter().sum();
        let wanted: u64 = wishes.iter().map(|wish| wish.bytes).sum();
        prop_assert_eq!(sum, budget.min(wanted), "none is left while somebody wants some");
        let leasts: u64 = wishes.iter().map(|wish| wish.least).sum();
        for (at, (wish, grant)) in wishes.iter().zip(&grants).enumerate() {
            prop_assert!(*grant <= wish.bytes);
            if leasts <= budget {
                prop_assert!(*grant >= wish.least);
            }
            // Nobody who wants more has less than another, by more than the odd byte, unless that is the other's least.
            if leasts <= budget && *grant < wish.bytes {
                for (other, theirs) in wishes.iter().zip(&grants) {
                    prop_assert!(*theirs <= grant + 1 || *theirs == other.least, "{at}: {grants:?}");
                }
            }
        }
        if leasts > budget {
            // The first ones have theirs.
            let mut left = budget;
            for (wish, grant) in wishes.iter().zip(&grants) {
                prop_assert_eq!(*grant, wish.least.min(left));
                left -= grant;
            }
        }
    }

    /// The same byte by byte: each is the first one's of those that have the least and want more.
    #[test]
    fn a_budget_is_shared_as_if_byte_by_byte(
        budget in 0..900_u64,
        wishes in vec((0..60_u64, 0..200_u64, 0..2_u64), 0..9),
        scale in prop_oneof![Just(1_u64), Just(1 << 20)],
    ) {
        let wishes: Vec<Wish> = wishes
            .into_iter()
            // Some wish for less than their least.
            .map(|(least, more, whole)| Wish { least, bytes: whole * least + more })
            .collect();
        let mut left = budget;
        let mut expected: Vec<u64> = Vec::new();
        for wish in &wishes {
            expected.push(wish.least.min(left));
            left -= wish.least.min(left);
        }
        while left > 0 {
            let wants = (0..wishes.len()).filter(|at| expected[*at] < wishes[*at].bytes);
            let Some(next) = wants.min_by_key(|at| expected[*at]) else {
                break;
            };
            expected[next] += 1;
            left -= 1;
        }
        let mut grants = Vec::new();
        share(budget, &wishes, &mut grants);
        prop_assert_eq!(&grants, &expected);
        // In larger units it is the same to a unit.
        let larger = |wish: &Wish| Wish { least: wish.least * scale, bytes: wish.bytes * scale };
        let wishes: Vec<Wish> = wishes.iter().map(larger).collect();
        share(budget * scale, &wishes, &mut grants);
        for (grant, expected) in grants.iter().zip(&expected) {
            prop_assert!(grant.abs_diff(expected * scale) <= scale, "{grants:?} {expected:?}");
        }
    }

    /// Algorithm 1's bookkeeping, whatever is seen: when it looks, when it asks the model, what becomes of the interval.
    #[test]
    fn the_loop_is_algorithm_1(
        seen in vec((prop_oneof![0.0..30.0_f64, any::<f64>()], 0.0..0.2_f64, 1..400_u64), 1..40),
        parts in proptest::sample::select(vec![Parts::Both, Parts::Queue, Parts::Adaptive]),
    ) {
        let service = Service::new(&[(0, 12.0), (1024 * MIB, 4.0)]).expect("they are figures");
        let settings = Settings {
            wanted: 8.0,
            response_step: 1.5,
            size_max: 2048 * MIB,
            parts,
            ..Settings::default()
        };
        let mut now = Nanos::ZERO;
        let mut control = Control::new(now, 512 * MIB, &settings);
        let mut due = now.saturating_add(settings.interval_min);
        let mut last: Option<(f64, f64, u64)> = None;
        let mut granted = 512 * MIB;
        for (response, arrivals, seconds) in seen {
            now = now.saturating_add(Nanos::from_secs(seconds));
            let (wish, interval) = (control.wish, control.interval);
            let step = control.step(now, Seen { response, arrivals }, &service, &settings);
            prop_assert_eq!(step == Step::Waits, now < due);
            prop_assert!(control.wish <= settings.size_max);
            if step == Step::Waits {
                prop_assert_eq!((control.wish, control.interval), (wish, interval));
                continue;
            }
            let figures = (0.0..=1e9).contains(&response);
            prop_assert_eq!(step == Step::Blind, !figures);
            let changed = control.wish.abs_diff(wish) >= settings.size_step;
            let expected = if changed { interval.0 / 2 } else { interval.0 * 2 };
            let bounds = (settings.interval_min.0, settings.interval_max.0);
            prop_assert_eq!(control.interval.0, expected.clamp(bounds.0, bounds.1));
            due = now.saturating_add(control.interval);
            if figures {
                let jump = last.is_none_or(|(last, then, bytes)| {
                    let by_model = |bytes| service.response(bytes, then);
                    let both = by_model(granted).zip(by_model(bytes));
                    let expected = last * both.map_or(1.0, |(now, then)| now / then);
                    (response - expected).abs() >= 1.5
                });
                let solves = jump && parts != Parts::Adaptive;
                prop_assert_eq!(matches!(step, Step::Solved(_)), solves);
                if let Step::Solved(solution) = step {
                    prop_assert_eq!(solution, service.solve(arrivals, 8.0, 1.0));
                    prop_assert_eq!(control.wish, solution.bytes().min(settings.size_max));
                }
                if let Step::Adapted { change, made } = step {
                    prop_assert_eq!(made, change.unsigned_abs() >= settings.size_step);
                    prop_assert!(made || control.wish == wish);
                }
                last = Some((response, arrivals, granted));
            }
            granted = control.wish;
            control.grant(granted);
        }
    }
}

#[test]
fn figures_that_are_none_are_refused() {
    assert_eq!(Service::new(&[]), Err(ServiceError::None));
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = Service::new(&[(0, 1.0), (5, wrong)]).expect_err("it is none");
        assert!(error.to_string().contains("measurement 1"), "{error}");
    }
    let error = Service::new(&[(5, 1.0), (5, 0.5)]).expect_err("they don't rise");
    assert!(error.to_string().contains("rising"), "{error}");
}

/// A guest whose tasks take longer than was measured: how far its response time was from the wanted one, over all intervals, s.
fn error_of(parts: Parts, slower: f64) -> f64 {
    let measured = [
        (0, 12.0),
        (512 * MIB, 7.0),
        (1024 * MIB, 5.0),
        (2048 * MIB, 4.0),
    ];
    let told = Service::new(&measured).expect("they are figures");
    let real = Service::new(&measured.map(|(bytes, seconds)| (bytes, seconds * slower)));
    let real = real.expect("they are figures");
    let settings = Settings {
        wanted: 10.0,
        response_step: 2.0,
        size_max: 2048 * MIB,
        parts,
        ..Settings::default()
    };
    let mut now = Nanos::ZERO;
    let mut control = Control::new(now, 512 * MIB, &settings);
    let mut bytes = 512 * MIB;
    let mut sum = 0.0;
    for minute in 0..240_u64 {
        // The load steps once in an hour.
        let arrivals = [0.02, 0.07, 0.04, 0.08][usize::try_from(minute / 60).expect("few")];
        now = now.saturating_add(Nanos::from_secs(60));
        let response = real.response(bytes, arrivals).unwrap_or(100.0);
        sum += (response - settings.wanted).abs();
        control.step(now, Seen { response, arrivals }, &told, &settings);
        bytes = control.wish;
        control.grant(bytes);
    }
    sum / 240.0
}

/// Without chance, which it reckons with, what is found comes to rest near the wanted response time whatever the measurements were worth; where the model is wrong
/// the paper's loop makes up for most of it.
#[test]
fn a_wrong_model_is_made_up_for() {
    for slower in [0.6, 0.8, 1.0, 1.2, 1.4] {
        let of = |parts| error_of(parts, slower);
        let corrected = of(Parts::Corrected);
        assert!(corrected <= 1.2, "{slower}: {corrected}");
        if (slower - 1.0_f64).abs() > 0.1 {
            let (both, queue) = (of(Parts::Both), of(Parts::Queue));
            assert!(both <= 0.5 * queue, "{slower}: {both} {queue}");
            assert!(corrected <= 0.5 * queue, "{slower}: {corrected} {queue}");
        }
    }
}

/// Every way in which the rate can have changed or not, each weighed by itself, with the likelihood as a product of factors.
fn rate_by_enumeration(counts: &[(u32, f64)]) -> f64 {
    let (mut all, mut time) = (0.0, 0.0);
    let mut priors = Vec::new();
    for (tasks, seconds) in counts {
        all += f64::from(*tasks);
        time += seconds;
        priors.push(time / (all + 0.5));
    }
    let (mut sum, mut weights) = (0.0, 0.0);
    for changes in 0..1_u32 << (counts.len() - 1) {
        let (mut weight, mut known) = (1.0, (0.0, 0.0));
        for (at, (tasks, seconds)) in counts.iter().enumerate() {
            if at > 0 {
                let changed = changes >> (at - 1) & 1 == 1;
                let chance = (seconds / 900.0).min(0.5);
                weight *= if changed { chance } else { 1.0 - chance };
                if changed {
                    known = (0.0, 0.0);
                }
            }
            let (shape, rate) = (1.0 + known.0, priors[at] + known.1);
            let part = seconds / (rate + seconds);
            weight *= (1.0 - part).powf(shape);
            for task in 0..*tasks {
                weight *= part * (shape + f64::from(task)) / f64::from(task + 1);
            }
            known = (known.0 + f64::from(*tasks), known.1 + seconds);
        }
        let last = priors[counts.len() - 1];
        sum += weight * (1.0 + known.0) / (last + known.1);
        weights += weight;
    }
    sum / weights
}

proptest! {
    #[test]
    fn a_rate_is_the_mean_over_all_ways_in_which_it_can_have_changed(
        counts in vec((0..12_u32, 10.0..60.0_f64), 1..9),
    ) {
        let mut rate = Rate::default();
        let mut seen = 0.0;
        for (tasks, seconds) in &counts {
            seen = rate.see(f64::from(*tasks), *seconds);
        }
        let expected = rate_by_enumeration(&counts);
        // What is too unlikely is forgotten.
        prop_assert!((seen / expected - 1.0).abs() < 1e-3, "{seen} {expected}");
    }

    #[test]
    fn no_counts_take_a_rate_away(
        counts in vec((prop_oneof![0.0..1e9_f64, any::<f64>()], prop_oneof![0.1..1e3_f64, any::<f64>()]), 1..60),
    ) {
        let mut rate = Rate::default();
        for (tasks, seconds) in counts {
            let seen = rate.see(tasks, seconds);
            prop_assert!(seen.is_finite() && seen >= 0.0, "{seen}");
            prop_assert!(rate.spans.len() <= 32);
            let sum: f64 = rate.spans.iter().map(|span| span.likelihood).sum();
            prop_assert!(rate.spans.is_empty() || (sum - 1.0).abs() < 1e-9, "{sum}");
        }
    }

    #[test]
    fn no_response_times_take_away_what_was_found(
        seen in vec((any::<f64>(), any::<f64>(), 1..400_u64), 1..40),
    ) {
        let service = Service::new(&[(0, 12.0), (1024 * MIB, 4.0)]).expect("they are figures");
        let settings = Settings { wanted: 8.0, size_max: 2048 * MIB, ..Settings::default() };
        let mut now = Nanos::ZERO;
        let mut control = Control::new(now, 512 * MIB, &settings);
        for (response, arrivals, seconds) in seen {
            now = now.saturating_add(Nanos::from_secs(seconds));
            let before = control.wish;
            let step = control.step(now, Seen { response, arrivals }, &service, &settings);
            prop_assert!(control.wish <= settings.size_max);
            prop_assert!(matches!(step, Step::Solved(_)) || control.wish == before);
            control.grant(control.wish);
        }
        // And it still comes to rest: what it wishes for is what the model says.
        for _ in 0..600 {
            now = now.saturating_add(settings.interval_min);
            let response = service.response(control.wish, 0.05).expect("it has an end");
            control.step(now, Seen { response, arrivals: 0.05 }, &service, &settings);
            control.grant(control.wish);
        }
        let response = service.response(control.wish, 0.05).expect("it has an end");
        prop_assert!((response - 8.0).abs() < 1.0, "{response} {control:?}");
    }
}

/// A rate that holds is found ever better; one that has changed beyond doubt is seen at once.
#[test]
fn a_change_beyond_doubt_is_seen_at_once() {
    let mut rate = Rate::default();
    for _ in 0..100 {
        rate.see(12.0, 30.0);
    }
    assert!((rate.now() - 0.4).abs() < 0.01, "{rate:?}");
    let after = rate.see(60.0, 30.0);
    assert!(after > 1.5, "{after}");
    // A few more than usual are no change.
    let mut rate = Rate::default();
    for _ in 0..100 {
        rate.see(12.0, 30.0);
    }
    let after = rate.see(16.0, 30.0);
    assert!((after - 0.4).abs() < 0.05, "{after}");
}

#[test]
fn a_guest_that_is_short_of_memory_learns_nothing_from_wishes() {
    let service = Service::new(&[(0, 12.0), (1024 * MIB, 4.0)]).expect("they are figures");
    let settings = Settings {
        wanted: 6.0,
        parts: Parts::Adaptive,
        size_max: 1024 * MIB,
        ..Settings::default()
    };
    let mut now = Nanos::ZERO;
    let mut control = Control::new(now, 0, &settings);
    let fresh = control.clone();
    for _ in 0..50 {
        now = now.saturating_add(Nanos::from_secs(300));
        let seen = Seen {
            response: 12.0,
            arrivals: 0.0,
        };
        control.step(now, seen, &service, &settings);
        control.grant(0);
    }
    // It goes on wishing for more: nothing has told it that more doesn't help.
    assert!(
        control.wish > fresh.wish + settings.size_step,
        "{control:?}"
    );
}
