//! Who does IO, and until when (thesis, 3.4.2 and 3.5.2).

use ostler_boost::{Config, Conflict, Degradation, Guest, Vcpu};
use proptest::prelude::*;

const TASK: u64 = 0xffff_8880_0123_0000;
const OTHER: u64 = 0xffff_8880_0456_0000;

/// One that has had so many ticks with IO, each by the same task.
fn after(config: &Config, ticks: u32) -> Vcpu {
    let mut vcpu = Vcpu::default();
    for _ in 0..ticks {
        vcpu.point(TASK);
        vcpu.tick(config, TASK);
    }
    vcpu
}

#[test]
fn it_does_io_from_the_fourth_tick_in_a_row_on() {
    let config = Config::default();
    assert!(!after(&config, 3).does_io(&config));
    assert!(after(&config, 4).does_io(&config));
}

/// The thesis's example: after a hundred ticks of IO it is forgotten in five.
#[test]
fn a_hundred_ticks_of_io_are_forgotten_in_five() {
    let config = Config {
        confidence_max: 1000,
        ..Config::default()
    };
    let mut vcpu = after(&config, 100);
    for tick in 1..=5 {
        assert!(vcpu.does_io(&config), "before tick {tick}");
        vcpu.tick(&config, TASK);
    }
    assert!(!vcpu.does_io(&config));
}

#[test]
fn another_task_ends_it_at_once_and_the_next_event_needs_no_proof() {
    let config = Config::default();
    let mut vcpu = after(&config, 20);
    vcpu.tick(&config, OTHER);
    assert!(!vcpu.does_io(&config), "it has ended");
    assert!(vcpu.pays(&config));
    vcpu.point(TASK);
    assert!(
        vcpu.does_io(&config),
        "it has been seen doing IO long enough"
    );
    assert!(!vcpu.pays(&config));
}

/// It isn't boosted for one event, but it may be about to do IO.
#[test]
fn one_event_spares_it_from_paying_until_the_next_tick() {
    let config = Config::default();
    let mut vcpu = Vcpu::default();
    assert!(vcpu.pays(&config));
    vcpu.point(TASK);
    assert!(!vcpu.pays(&config) && !vcpu.does_io(&config));
    vcpu.tick(&config, TASK);
    vcpu.tick(&config, TASK);
    assert!(vcpu.pays(&config));
}

#[test]
fn conflicts_are_resolved_as_configured() {
    let (sure, unsure) = (after(&Config::default(), 30), after(&Config::default(), 5));
    let (rich, poor) = (
        Guest {
            balance_ns: 1_000_000,
            ..Guest::default()
        },
        Guest {
            balance_ns: -1_000_000,
            ..Guest::default()
        },
    );
    let wins = |conflict| {
        let config = Config {
            conflict,
            ..Config::default()
        };
        [
            sure.preempts(&config, &rich, 0, (&unsure, &poor), true),
            unsure.preempts(&config, &poor, 0, (&sure, &rich), true),
        ]
    };
    assert_eq!(wins(Conflict::ByConfidence), [true, false]);
    assert_eq!(wins(Conflict::ByBalance), [false, true]);
    assert_eq!(wins(Conflict::Neither), [false, false]);
    let config = Config::default();
    assert!(
        unsure.preempts(&config, &poor, 0, (&sure, &rich), false),
        "no conflict"
    );
    let off = Config {
        enabled: 0,
        ..config
    };
    assert!(!sure.preempts(&off, &poor, 0, (&unsure, &rich), false));
}

/// Half a turn for an event, and for one that does IO the longest stretch; neither without room.
#[test]
fn one_with_a_late_event_goes_on_for_half_a_turn() {
    let config = Config::default();
    let (half, none) = (config.slice_ns / 2, Guest::default());
    let first = (&Vcpu::default(), &Guest::default());
    let (computes, does_io) = (Vcpu::default(), after(&config, 30));
    let goes_on = |vcpu: &Vcpu, ran, event| vcpu.goes_on(&config, &none, first, ran, event);
    assert!(!goes_on(&computes, config.slice_ns, None));
    assert!(goes_on(&computes, config.slice_ns, Some(half - 1)));
    assert!(!goes_on(&computes, config.slice_ns, Some(half)));
    assert!(goes_on(&does_io, config.slice_ns, Some(half)));
    for vcpu in [&computes, &does_io] {
        assert!(!goes_on(vcpu, config.slice_max_ns, Some(0)));
    }
    let owes = Guest {
        balance_ns: config.limit_ns.cast_signed(),
        ..Guest::default()
    };
    assert!(!computes.goes_on(&config, &owes, first, config.slice_ns, Some(0)));
}

proptest! {
    /// Nothing that happens to it makes confidence more than the most, nor has one without a single point do IO.
    #[test]
    fn confidence_stays_within_its_bounds(
        threshold in 1_u32..10,
        most in 10_u32..100,
        degradation in prop::sample::select(vec![Degradation::Halve, Degradation::Decrement, Degradation::Forget]),
        happens in prop::collection::vec((any::<bool>(), 0_u64..3), 0..300),
    ) {
        let config = Config { threshold, confidence_max: most, degradation, ..Config::default() };
        let mut vcpu = Vcpu::default();
        let mut ticks = 0;
        for (point, task) in happens {
            let before = vcpu.confidence;
            if point {
                vcpu.point(task);
                prop_assert_eq!(vcpu.confidence, before);
            } else {
                vcpu.tick(&config, task);
                ticks += 1;
                prop_assert!(vcpu.confidence <= most.min(ticks).min(before + 1));
                prop_assert!(before == 0 || vcpu.confidence != before || vcpu.confidence == most);
            }
            prop_assert!(!vcpu.does_io(&config) || u64::from(threshold) <= vcpu.points);
        }
    }

    /// Who slept long comes back with a turn's worth at most; who didn't keeps what it is ahead.
    #[test]
    fn sleep_is_worth_a_turn(vtime in any::<u64>(), least in any::<u64>()) {
        let config = Config::default();
        let mut vcpu = Vcpu { vtime, ..Vcpu::default() };
        vcpu.arrives(&config, least);
        prop_assert!(vcpu.vtime >= vtime);
        prop_assert!(least.saturating_sub(vcpu.vtime) <= config.slice_ns);
        prop_assert!(vcpu.vtime == vtime || vcpu.vtime + config.slice_ns == least.max(config.slice_ns));
    }
}

#[test]
fn without_room_an_event_puts_nobody_before_others() {
    let config = Config::default();
    let vcpu = after(&config, 30);
    let lender = Guest::default();
    let borrower = |short_of_limit: i64| Guest {
        balance_ns: i64::try_from(config.limit_ns).expect("small") - short_of_limit,
        ..Guest::default()
    };
    let preempts =
        |guest: &Guest| vcpu.preempts(&config, guest, vcpu.vtime, (&vcpu, &lender), false);
    assert!(preempts(&borrower(1)));
    assert!(!preempts(&borrower(0)), "though it has a turn coming to it");
    assert!(vcpu.allowance(&config, &borrower(0), vcpu.vtime, &lender) > 0);
}
