//! What a guest's vCPUs leave, asleep, its others have, and never more than that: held against a count of the test's own, whatever the guest does.

use ostler_boost::{Config, Guest, Pools, Vcpu};
use proptest::prelude::*;

/// What a guest, or its host, does next. Times are in 256ths of a turn.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// One falls asleep, if its turn can have come: after a last run.
    Sleeps { vcpu: usize, part: u64 },
    /// One that sleeps wakes.
    Wakes { vcpu: usize },
    /// The domain's virtual time goes on, in one whose turns take so long. The guest's vCPUs that are awake run as often as their turns can come.
    Others { part: u64, run: u64 },
}

/// A guest among others in one domain.
struct World {
    config: Config,
    now: u64,
    vcpus: Vec<Vcpu>,
    /// The number of each one's pool while it sleeps.
    asleep: Vec<Option<u32>>,
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
        World {
            config: Config::default(),
            now,
            vcpus: vec![vcpu; vcpus],
            asleep: vec![None; vcpus],
            pools: Pools::default(),
            guest: guest(owes),
            other: (vcpu, guest(-owes)),
            ran: 0,
            paid: 0,
            borne: 0,
        }
    }

    /// Whether one's turn can have come: no scheduler gives a core to one that is ahead of those that wait.
    fn may_run(&self, at: usize) -> bool {
        self.asleep[at].is_none() && self.vcpus[at].vtime <= self.now
    }

    fn runs(&mut self, at: usize, part: u64) {
        let ran = self.config.slice_ns * part / 256;
        let vtime = self.vcpus[at].vtime + ran;
        let pool = self.pools.of(0);
        let borne = pool.map_or(0, |pool| pool.bear(&self.config, vtime, self.now, ran));
        assert!(borne <= ran);
        self.vcpus[at].vtime += ran - borne;
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
                let number = self.pools.rests(&self.config, &self.vcpus[at], 0, self.now);
                assert_ne!(number, 0, "they are all of one domain");
                self.asleep[at] = Some(number);
            }
            Deed::Wakes { vcpu } => {
                let at = vcpu % count;
                let Some(number) = self.asleep[at].take() else {
                    return;
                };
                let pool = self.pools.of(0).expect("it sleeps there");
                let waits = (&mut self.other.0, &mut self.other.1);
                self.paid += self.vcpus[at].redeem(
                    &self.config,
                    &mut self.guest,
                    waits,
                    self.now,
                    Some((pool, self.now)),
                );
                let woken = &mut self.vcpus[at];
                self.pools.rises(&self.config, number, woken, self.now);
                woken.arrives(&self.config, self.now);
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
        1 => (0_usize..8).prop_map(|vcpu| Deed::Wakes { vcpu }),
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
            let asleep = world.asleep.iter().flatten().count();
            let counted: u32 = world.pools.0.iter().map(|pool| pool.asleep).sum();
            prop_assert_eq!(asleep, counted as usize);
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

/// Those that sleep in several domains are told apart, as far as there is room, and a number is free again when all of its have woken.
#[test]
fn pools_are_of_a_domain_and_free_again() {
    let config = Config::default();
    let vcpu = Vcpu::default();
    let mut pools = Pools::default();
    let numbers: Vec<_> = (0..6)
        .map(|domain| pools.rests(&config, &vcpu, domain, 5))
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 0, 0]);
    assert_eq!(pools.rests(&config, &vcpu, 2, 5), 3);
    assert_eq!(pools.of(2).map(|pool| pool.asleep), Some(2));
    pools.rises(&config, 0, &vcpu, 5);
    pools.rises(&config, 3, &vcpu, 5);
    pools.rises(&config, 3, &vcpu, 5);
    assert_eq!(pools.of(2), None);
    assert_eq!(pools.rests(&config, &vcpu, 9, 7), 3);
    assert_eq!(pools.of(9).map(|pool| pool.seen), Some(7));
}
