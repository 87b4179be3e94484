//! What a guest's vCPUs leave, asleep, its others have, and never more than that: held against a count of the test's own, whatever the guest does.

use ostler_boost::{Config, Guest, Pools, Vcpu};
use proptest::prelude::*;

/// What a guest, or its host, does next. Times are in 256ths of a turn.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// One falls asleep, if its turn can have come: after a last run.
    Sleeps { vcpu: usize, part: u64 },
    /// One that sleeps wakes, among such that are behind their domain by so much: who runs is charged at its turn's end.
    Wakes { vcpu: usize, behind: u64 },
    /// The domain's virtual time goes on, in one whose turns take so long. The guest's vCPUs that are awake run as often as their turns can come.
    Others { part: u64, run: u64 },
}

/// A guest among others in one domain.
struct World {
    config: Config,
    now: u64,
    vcpus: Vec<Vcpu>,
    asleep: Vec<bool>,
    pools: Pools,
    guest: Guest,
    /// Who is paid.
    other: (Vcpu, Guest),
    /// What it ran, and what it paid to others.
    ran: u64,
    paid: u64,
    /// Of what it ran, what sleepers bore.
    borne: u64,
}

impl World {
    fn new(vcpus: usize, owes: i64) -> World {
        let now = 1_000_000_000;
        let vcpu = Vcpu {
            vtime: now,
            ..Vcpu::default()
        };
        let guest = |balance_ns| Guest {
            balance_ns,
            ..Guest::default()
        };
        let config = Config::default();
        let mut pools = Pools::default();
        let mut all = vec![vcpu; vcpus];
        for vcpu in &mut all {
            assert_eq!(pools.joins(&config, vcpu, 0, now), 1);
        }
        World {
            config,
            now,
            vcpus: all,
            asleep: vec![false; vcpus],
            pools,
            guest: guest(owes),
            other: (vcpu, guest(-owes)),
            ran: 0,
            paid: 0,
            borne: 0,
        }
    }

    /// Whether one's turn can have come: no scheduler gives a core to one that is ahead of those that wait.
    fn may_run(&self, at: usize) -> bool {
        !self.asleep[at] && self.vcpus[at].vtime <= self.now
    }

    fn runs(&mut self, at: usize, part: u64) {
        let ran = self.config.slice_ns * part / 256;
        let vcpu = &mut self.vcpus[at];
        let pool = &mut self.pools.0[0];
        let borne = pool.bear(&self.config, vcpu, vcpu.vtime + ran, self.now, ran);
        assert!(borne <= ran);
        vcpu.vtime += ran - borne;
        self.ran += ran;
        self.borne += borne;
    }

    fn does(&mut self, deed: Deed) {
        let count = self.vcpus.len();
        match deed {
            Deed::Sleeps { vcpu, part } => {
                let at = vcpu % count;
                if !self.may_run(at) {
                    return;
                }
                self.runs(at, part);
                self.pools.0[0].sleeps(&self.config, &self.vcpus[at], self.now);
                self.asleep[at] = true;
            }
            Deed::Wakes { vcpu, behind } => {
                let at = vcpu % count;
                let least = self.now - self.config.slice_ns * behind / 256;
                if !std::mem::take(&mut self.asleep[at]) {
                    return;
                }
                let pool = &mut self.pools.0[0];
                let waits = (&mut self.other.0, &mut self.other.1);
                self.paid += self.vcpus[at].redeem(
                    &self.config,
                    &mut self.guest,
                    waits,
                    least,
                    Some((pool, self.now)),
                );
                let woken = &mut self.vcpus[at];
                self.pools.0[0].wakes(&self.config, woken, least, self.now);
                woken.arrives(&self.config, least);
            }
            Deed::Others { part, run } => {
                self.now += self.config.slice_ns * part / 256;
                for at in 0..count {
                    // Nobody runs for more than a core's time, in which virtual time goes on by this at least.
                    let mut left = 8 * part;
                    while self.may_run(at) && left > 0 {
                        let part = run.min(left);
                        self.runs(at, part);
                        left -= part;
                    }
                }
            }
        }
    }
}

fn deed() -> impl Strategy<Value = Deed> {
    let others = (1_u64..=256, 16_u64..=512).prop_map(|(part, run)| Deed::Others { part, run });
    prop_oneof![
        1 => (0_usize..8, 1_u64..=1024).prop_map(|(vcpu, part)| Deed::Sleeps { vcpu, part }),
        1 => (0_usize..8, 0_u64..=256).prop_map(|(vcpu, behind)| Deed::Wakes { vcpu, behind }),
        3 => others,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Each vCPU is due what virtual time goes on by. Whatever its vCPUs do, a guest never has more than all of them together, but for a few turns each. It does
    /// a few things over and over, so that whatever can be had by that is had many times.
    #[test]
    fn no_guest_has_more_than_all_of_its_vcpus_are_due(
        vcpus in 1_usize..6,
        owes in 0_i64..20_000_000_000,
        deeds in prop::collection::vec(deed(), 1..16),
    ) {
        let mut world = World::new(vcpus, owes);
        let began = world.now;
        for deed in deeds.iter().cycle().take(2000) {
            world.does(*deed);
            let due = vcpus as u64 * (world.now - began);
            // A stretch of four turns that begins when it is due, and a turn kept from before.
            let most = due + vcpus as u64 * 5 * world.config.slice_ns;
            let had = world.ran + world.paid;
            prop_assert!(had <= most, "it had {had} of {due} ns");
            let asleep = world.asleep.iter().filter(|asleep| **asleep).count();
            let pool = world.pools.0[0];
            prop_assert_eq!((asleep, vcpus - asleep), (pool.asleep as usize, pool.awake as usize));
            // What those are due that are awake is what is there beyond what sleepers keep.
            if asleep < vcpus {
                let awake = (0..vcpus).filter(|at| !world.asleep[*at]);
                let parts: i64 = awake.map(|at| pool.each_ns - world.vcpus[at].had_ns).sum();
                let kept = (asleep as u64 * world.config.slice_ns).cast_signed();
                prop_assert_eq!(parts + i64::from(pool.rest_ns), (pool.left_ns - kept).max(0));
            }
        }
    }
}

/// One that computes and others that sleep all the time: it has what all of them are due.
#[test]
fn one_has_what_its_siblings_leave() {
    for vcpus in [1, 2, 4, 7] {
        let mut world = World::new(vcpus, 0);
        let began = world.now;
        for vcpu in 1..vcpus {
            world.does(Deed::Sleeps { vcpu, part: 1 });
        }
        for _ in 0..10_000 {
            world.does(Deed::Others { part: 32, run: 32 });
        }
        let of_due = world.ran as f64 / (vcpus as u64 * (world.now - began)) as f64;
        assert!(
            (of_due - 1.0).abs() < 0.01,
            "{of_due} of what {vcpus} are due"
        );
        assert_eq!(world.borne > 0, vcpus > 1);
    }
}

/// Of two that compute all the time, one is charged for each 16th of a turn, and the other for one or two turns at a time: what their siblings leave is both's alike.
#[test]
fn who_is_charged_more_often_has_no_more_of_what_siblings_leave() {
    for (vcpus, part) in [(4, 256), (4, 512), (3, 256), (7, 256)] {
        let mut world = World::new(vcpus, 0);
        for vcpu in 2..vcpus {
            world.does(Deed::Sleeps { vcpu, part: 1 });
        }
        let mut ran = [0; 2];
        for _ in 0..20_000 {
            world.now += world.config.slice_ns / 16;
            for (at, part) in [(0, 16), (1, part)] {
                let before = world.ran;
                while world.may_run(at) {
                    world.runs(at, part);
                }
                ran[at] += world.ran - before;
            }
        }
        let each = vcpus as f64 / 2.0 * (world.now - 1_000_000_000) as f64;
        for ran in ran {
            let of_due = ran as f64 / each;
            assert!((of_due - 1.0).abs() < 0.01, "{of_due} of half of {vcpus}");
        }
    }
}

/// Those of several domains are told apart, as far as there is room, and a number is free again when nobody is left.
#[test]
fn pools_are_of_a_domain_and_free_again() {
    let config = Config::default();
    let mut vcpu = Vcpu::default();
    let mut pools = Pools::default();
    let numbers: Vec<_> = (0..6)
        .map(|domain| pools.joins(&config, &mut vcpu, domain, 5))
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 0, 0]);
    assert_eq!(pools.joins(&config, &mut vcpu, 2, 5), 3);
    assert_eq!(pools.0[2].awake, 2);
    assert_eq!(pools.at(0), None);
    pools.0[2].sleeps(&config, &vcpu, 5);
    pools.0[2].leaves(&config, &vcpu, 5);
    assert_eq!(
        pools.joins(&config, &mut vcpu, 9, 5),
        0,
        "one sleeps there yet"
    );
    pools.0[2].wakes(&config, &mut vcpu, 5, 5);
    pools.0[2].leaves(&config, &vcpu, 5);
    assert_eq!(pools.joins(&config, &mut vcpu, 9, 7), 3);
    assert_eq!(
        pools.at(3).map(|pool| (pool.domain, pool.awake)),
        Some((9, 1))
    );
}
