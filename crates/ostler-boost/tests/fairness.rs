//! Whatever guests do, the boost can't bring one of them further from its share than twice the limit: held on cores whose vCPUs are always ready,
//! by a scheduler of the test's own and an adversary that chooses who has events, when, and how long whoever runs goes on.

use ostler_boost::{Config, Conflict, Guest, Vcpu};
use proptest::prelude::*;

/// A vCPU, whose it is, where it runs, and for how long it has.
struct Placed {
    vcpu: Vcpu,
    guest: usize,
    core: usize,
    ran_ns: u64,
}

struct World {
    config: Config,
    vcpus: Vec<Placed>,
    guests: Vec<Guest>,
    /// Each core's time.
    now_ns: Vec<u64>,
    refused: u32,
    /// One that isn't ready now.
    asleep: Option<usize>,
}

/// What the adversary has happen while a core decides who runs.
#[derive(Clone, Copy, Debug)]
struct Event {
    /// Which of the core's vCPUs has it, if that is one.
    whose: u8,
    /// The guest's task.
    task: u64,
    /// Of a turn, in 256ths.
    runs: u8,
    ticks: u8,
}

impl World {
    /// `placed`: guest and core of each vCPU.
    fn new(config: Config, placed: &[(usize, usize)]) -> World {
        let count =
            |of: fn(&(usize, usize)) -> usize| placed.iter().map(of).max().map_or(0, |n| n + 1);
        World {
            config,
            vcpus: placed
                .iter()
                .map(|&(guest, core)| Placed {
                    vcpu: Vcpu::default(),
                    guest,
                    core,
                    ran_ns: 0,
                })
                .collect(),
            guests: vec![Guest::default(); count(|p| p.0)],
            now_ns: vec![0; count(|p| p.1)],
            refused: 0,
            asleep: None,
        }
    }

    fn on(&self, core: usize) -> Vec<usize> {
        let all = 0..self.vcpus.len();
        all.filter(|&at| self.vcpus[at].core == core).collect()
    }

    /// The core whose time is least.
    fn next_core(&self) -> usize {
        let cores = 0..self.now_ns.len();
        cores
            .min_by_key(|&core| self.now_ns[core])
            .expect("there is a core")
    }

    /// Of those on the core but one, who has been charged the least.
    fn least(&self, core: usize, but: Option<usize>) -> Option<usize> {
        let ready = |at: &usize| Some(*at) != but && Some(*at) != self.asleep;
        let all = self.on(core).into_iter().filter(ready);
        all.min_by_key(|&at| (self.vcpus[at].vcpu.vtime, at))
    }

    /// Two vCPUs of different guests, with these.
    fn two(&mut self, one: usize, other: usize) -> [(&mut Vcpu, &mut Guest); 2] {
        let guests = [one, other].map(|at| self.vcpus[at].guest);
        let [own, theirs] = self.guests.get_disjoint_mut(guests).expect("they differ");
        let [one, other] = self
            .vcpus
            .get_disjoint_mut([one, other])
            .expect("they differ");
        [(&mut one.vcpu, own), (&mut other.vcpu, theirs)]
    }

    /// Who runs next on a core, once all have paid who are to.
    fn picks(&mut self, core: usize) -> usize {
        loop {
            let first = self.least(core, None).expect("somebody is there");
            let Some(waits) = self.least(core, Some(first)) else {
                return first;
            };
            if self.vcpus[first].guest == self.vcpus[waits].guest {
                return first;
            }
            let config = self.config;
            let [(vcpu, guest), theirs] = self.two(first, waits);
            if vcpu.pay(&config, guest, theirs) == 0 {
                return first;
            }
        }
    }

    /// One decision of the core that is next, and what comes of it.
    fn step(&mut self, event: Event) {
        let core = self.next_core();
        let config = self.config;
        let mut runs = self.picks(core);
        let mut boosted = self.vcpus[runs].vcpu.does_io(&config);
        let here = self.on(core);
        if let Some(&target) = here.get(usize::from(event.whose)) {
            self.vcpus[target].vcpu.point(event.task);
            let least = self.least(core, Some(target));
            let least = least.map_or(0, |at| self.vcpus[at].vcpu.vtime);
            let (wants, has) = (&self.vcpus[target], &self.vcpus[runs]);
            let guests = (&self.guests[wants.guest], &self.guests[has.guest]);
            if target == runs {
                boosted = true;
            } else if wants.guest != has.guest {
                if wants
                    .vcpu
                    .preempts(&config, guests.0, least, (&has.vcpu, guests.1), boosted)
                {
                    runs = target;
                    boosted = true;
                } else {
                    self.refused += 1;
                }
            }
        }
        self.run(core, runs, boosted, event);
    }

    fn run(&mut self, core: usize, runs: usize, boosted: bool, event: Event) {
        let config = self.config;
        let mut ran_ns = config.slice_ns * (1 + u64::from(event.runs)) / 256;
        for _ in 0..event.ticks {
            self.vcpus[runs].vcpu.tick(&config, event.task);
        }
        let waits = self.least(core, Some(runs));
        let guest = self.vcpus[runs].guest;
        if let Some(waits) = waits {
            let lender = self.vcpus[waits].guest;
            while ran_ns >= config.slice_ns
                && self.vcpus[runs].vcpu.goes_on(
                    &config,
                    &self.guests[guest],
                    (&self.vcpus[waits].vcpu, &self.guests[lender]),
                    ran_ns,
                    // Its events never end.
                    boosted.then_some(0),
                )
            {
                ran_ns += config.slice_ns;
            }
            if guest == lender {
                // Its own guest's: nothing to borrow.
                self.vcpus[runs].vcpu.vtime += ran_ns;
            } else {
                let [(vcpu, own), theirs] = self.two(runs, waits);
                vcpu.charge(&config, own, theirs, ran_ns, boosted);
            }
        } else {
            self.vcpus[runs].vcpu.vtime += ran_ns;
        }
        self.vcpus[runs].ran_ns += ran_ns;
        self.now_ns[core] += ran_ns;
    }

    /// What holds at every moment.
    fn conserves(&self) {
        let sum: i64 = self.guests.iter().map(|guest| guest.balance_ns).sum();
        assert_eq!(sum, 0, "what one has too much, others have too little");
        for (number, guest) in self.guests.iter().enumerate() {
            assert!(
                guest.balance_ns.unsigned_abs() <= self.config.limit_ns,
                "{guest:?}"
            );
            let own = || self.vcpus.iter().filter(|placed| placed.guest == number);
            let ran: u64 = own().map(|placed| placed.ran_ns).sum();
            let charged: u64 = own().map(|placed| placed.vcpu.vtime).sum();
            assert_eq!(
                i128::from(ran),
                i128::from(charged) + i128::from(guest.balance_ns),
                "guest {number}: what ran is what was charged, or borrowed"
            );
            let flows = i128::from(guest.borrowed_ns) + i128::from(guest.returned_ns)
                - i128::from(guest.paid_ns)
                - i128::from(guest.lent_ns);
            assert_eq!(flows, i128::from(guest.balance_ns));
        }
    }

    /// How far the virtual times on a core are from each other, at most.
    fn apart_ns(&self) -> u64 {
        let cores = 0..self.now_ns.len();
        let apart = cores.map(|core| {
            let vtimes = || {
                self.on(core)
                    .into_iter()
                    .map(|at| self.vcpus[at].vcpu.vtime)
            };
            vtimes().max().unwrap_or(0) - vtimes().min().unwrap_or(0)
        });
        apart.max().unwrap_or(0)
    }

    /// By guest: how much it has had.
    fn had(&self) -> Vec<u64> {
        let of = |guest| {
            self.vcpus
                .iter()
                .filter(move |placed| placed.guest == guest)
        };
        (0..self.guests.len())
            .map(|guest| of(guest).map(|placed| placed.ran_ns).sum())
            .collect()
    }

    /// By guest: an equal share for each of its vCPUs of its core's time.
    fn shares(&self) -> Vec<f64> {
        let mut shares = vec![0.0; self.guests.len()];
        for placed in &self.vcpus {
            shares[placed.guest] +=
                self.now_ns[placed.core] as f64 / self.on(placed.core).len() as f64;
        }
        shares
    }

    /// How far the virtual times on a core may be apart: a turn that one has ahead, and one whole stretch that ends a slice late.
    fn turn_ns(&self) -> u64 {
        2 * self.config.slice_ns + self.config.slice_max_ns
    }

    /// How far vCPUs of a guest may be from their shares by turns alone, from any moment to any other.
    fn turns_ns(&self, guest: usize) -> u64 {
        let all = self.vcpus.iter();
        let own = all.filter(|placed| placed.guest == guest).count();
        own as u64 * 2 * self.turn_ns()
    }
}

fn event() -> impl Strategy<Value = Event> {
    (0_u8..12, 0_u64..4, any::<u8>(), 0_u8..4).prop_map(|(whose, task, runs, ticks)| Event {
        whose,
        task,
        runs,
        ticks,
    })
}

fn config() -> impl Strategy<Value = Config> {
    let conflict = prop::sample::select(vec![
        Conflict::ByConfidence,
        Conflict::ByBalance,
        Conflict::Neither,
    ]);
    (
        100_000_u64..5_000_000,
        1_u64..5,
        0_u64..60_000_000,
        1_u32..6,
        conflict,
    )
        .prop_map(|(slice_ns, slices, limit_ns, threshold, conflict)| Config {
            slice_ns,
            slice_max_ns: slice_ns * slices,
            limit_ns,
            threshold,
            conflict,
            ..Config::default()
        })
}

/// Guests with vCPUs on cores: each core has some.
fn placed() -> impl Strategy<Value = Vec<(usize, usize)>> {
    (2_usize..5, 1_usize..4).prop_flat_map(|(guests, cores)| {
        prop::collection::vec((0..guests, 0..cores), 2..12).prop_map(move |mut placed| {
            // Every guest and every core is there.
            placed.extend((0..guests).map(|guest| (guest, guest % cores)));
            placed.extend((0..cores).map(|core| (core % guests, core)));
            placed
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// From any moment to any later one: the first is drawn, the second is each that follows.
    #[test]
    fn no_guest_is_brought_further_from_its_share_than_twice_the_limit(
        config in config(),
        placed in placed(),
        greedy in any::<bool>(),
        from in 0_usize..200,
        events in prop::collection::vec(event(), 1..600),
    ) {
        let mut world = World::new(config, &placed);
        let mut start = None;
        for (at, mut event) in events.into_iter().enumerate() {
            if greedy {
                // One guest has an event whenever it can, and never ends it.
                let here = world.on(world.next_core());
                if let Some(own) = here.iter().position(|&vcpu| world.vcpus[vcpu].guest == 0) {
                    event.whose = u8::try_from(own).unwrap();
                    event.task = 1;
                }
            }
            world.step(event);
            world.conserves();
            prop_assert!(world.apart_ns() <= world.turn_ns(), "{} ns apart", world.apart_ns());
            if at == from {
                start = Some((world.had(), world.shares()));
            }
            let Some((had, shares)) = &start else { continue };
            let now = world.had().into_iter().zip(world.shares());
            for (guest, (ran, share)) in now.enumerate() {
                let off = (ran - had[guest]) as f64 - (share - shares[guest]);
                let most = 2 * config.limit_ns + world.turns_ns(guest);
                prop_assert!(off.abs() <= most as f64, "guest {guest} is {off} ns off, {most} at most");
            }
        }
    }

    /// Each transfer for itself: from any balances and any virtual times.
    #[test]
    fn a_transfer_takes_no_more_than_there_is(
        config in config(),
        permille in [-1000_i64..=1000, -1000_i64..=1000],
        vtimes in [0_u64..1 << 40, 0_u64..1 << 40],
        ran_ns in 0_u64..20_000_000,
        least in 0_u64..1 << 40,
        how in 0_u8..3,
    ) {
        let guest = |at: usize| Guest {
            balance_ns: permille[at] * config.limit_ns.cast_signed() / 1000,
            ..Guest::default()
        };
        let vcpu = |at: usize| Vcpu { vtime: vtimes[at], ..Vcpu::default() };
        let (mut own, mut other) = (guest(0), guest(1));
        let (mut runs, mut waits) = (vcpu(0), vcpu(1));
        let sum = own.balance_ns + other.balance_ns;
        if how < 2 {
            let before = own.balance_ns;
            let mut woken = runs;
            woken.arrives(&config, least);
            let paid = if how == 0 {
                runs.pay(&config, &mut own, (&mut waits, &mut other))
            } else {
                runs.redeem(&config, &mut own, (&mut waits, &mut other), least, None)
            };
            prop_assert!(how == 0 || runs.vtime <= woken.vtime, "it pays with nothing but what it would lose");
            prop_assert_eq!(runs.vtime + waits.vtime, vtimes[0] + vtimes[1]);
            prop_assert!(paid <= config.slice_ns);
            prop_assert!(paid == 0 || own.balance_ns >= other.balance_ns, "never past each other");
            prop_assert!(own.balance_ns >= before.min(0), "nobody pays what it doesn't owe");
        } else {
            runs.charge(&config, &mut own, (&mut waits, &mut other), ran_ns, true);
            prop_assert_eq!(runs.vtime + waits.vtime, vtimes[0] + vtimes[1] + ran_ns);
            prop_assert!(own.borrowed_ns <= ran_ns, "what it ran before was settled then");
            prop_assert_eq!(own.borrowed_ns, other.lent_ns);
            let turn = vtimes[1].saturating_add(config.slice_ns);
            prop_assert!(own.borrowed_ns == 0 || runs.vtime >= turn, "its own turn isn't borrowed");
        }
        prop_assert_eq!(own.balance_ns + other.balance_ns, sum);
        prop_assert!([own, other].iter().all(|guest| guest.balance_ns.unsigned_abs() <= config.limit_ns));
    }

    #[test]
    fn without_room_nobody_borrows(placed in placed(), events in prop::collection::vec(event(), 1..300)) {
        let config = Config { limit_ns: 0, ..Config::default() };
        let mut world = World::new(config, &placed);
        for event in events {
            world.step(event);
            prop_assert!(world.guests.iter().all(|guest| guest.borrowed_ns == 0 && guest.balance_ns == 0));
        }
    }
}

/// A guest whose one vCPU does IO for seven tenths of a core that it shares, and whose other one computes.
fn serves(neighbours: &[(usize, usize)], seconds: u64) -> World {
    let mut placed = vec![(0, 0), (0, 1)];
    placed.extend(neighbours);
    let mut world = World::new(Config::default(), &placed);
    while world
        .now_ns
        .iter()
        .any(|now| *now < seconds * 1_000_000_000)
    {
        let core = world.next_core();
        let wants = core == 0 && (world.vcpus[0].ran_ns as f64) < 0.7 * world.now_ns[0] as f64;
        world.asleep = (core == 0 && !wants).then_some(0);
        world.step(Event {
            whose: if wants { 0 } else { 255 },
            task: 1,
            runs: 255,
            ticks: u8::from(wants),
        });
        world.conserves();
    }
    world
}

/// Its computing vCPU pays for what its other one has beyond half a core, so that it goes on for as long as it likes.
#[test]
fn a_guest_that_pays_is_boosted_for_good_and_has_its_share() {
    let world = serves(&[(1, 0), (1, 1)], 10);
    let io = world.vcpus[0].ran_ns as f64 / 1e10;
    assert!((io - 0.7).abs() < 0.01, "its IO has {io} of its core");
    assert_eq!(world.refused, 0, "it was boosted whenever it asked");
    for (had, share) in world.had().into_iter().zip(world.shares()) {
        let error = had as f64 / share - 1.0;
        assert!(
            error.abs() <= 0.02,
            "{error} off its share over ten seconds"
        );
    }
}

/// A guest whose vCPU does IO has had a busy moment, and has as much beyond its share as it may. From then on it is well within that, and never does
/// anything but IO: what it leaves pays for the moment, or it would never be boosted again.
#[test]
fn what_a_guest_leaves_pays_for_its_busy_moment() {
    let config = Config::default();
    let mut world = World::new(config, &[(0, 0), (1, 0), (2, 0)]);
    let event = |whose: u8, runs: u8| Event {
        whose,
        task: 1,
        runs,
        ticks: 1,
    };
    let is_let_in = |world: &World| {
        let first = world.least(0, Some(0)).expect("there are others");
        let (io, runs) = (&world.vcpus[0], &world.vcpus[first]);
        let guests = (&world.guests[0], &world.guests[runs.guest]);
        let least = runs.vcpu.vtime;
        io.vcpu
            .preempts(&config, guests.0, least, (&runs.vcpu, guests.1), false)
    };
    while world.guests[0].balance_ns.unsigned_abs() < config.limit_ns {
        world.step(event(0, 255));
        world.conserves();
    }
    assert!(!is_let_in(&world), "it has had its moment");

    // A turn in five of a core of which a third is its own.
    for _ in 0..200 {
        world.asleep = Some(0);
        for _ in 0..4 {
            world.step(event(255, 255));
        }
        world.asleep = None;
        let first = world.least(0, Some(0)).expect("there are others");
        let least = world.vcpus[first].vcpu.vtime;
        let [(io, guest), first] = world.two(0, first);
        io.redeem(&config, guest, first, least, None);
        io.arrives(&config, least);
        // Less than all of a turn, or it would go on.
        world.step(event(0, 200));
        let sum: i64 = world.guests.iter().map(|guest| guest.balance_ns).sum();
        assert_eq!(sum, 0);
    }
    assert!(world.vcpus[0].vcpu.does_io(&config));
    let balance = world.guests[0].balance_ns;
    assert!(
        balance.unsigned_abs() < config.limit_ns / 4,
        "{balance} ns are left"
    );
    assert!(is_let_in(&world));
}

/// The neighbour that lends is another than the one that is paid: it must not starve for that.
#[test]
fn a_neighbour_that_is_never_paid_back_stops_lending() {
    let world = serves(&[(1, 0), (2, 1)], 10);
    let (had, share) = (world.had()[1], world.shares()[1]);
    let lost = share - had as f64;
    let most = (world.config.limit_ns + world.turns_ns(1)) as f64;
    assert!(lost <= most, "{lost} ns lost, {most} at most");
    assert!(lost > 0.0, "it has lent, as long as it could");
}

/// Its other vCPUs pay a little at each turn; that must not buy its greedy one a whole turn each time.
#[test]
fn a_little_room_is_not_worth_a_turn() {
    let config = Config {
        limit_ns: 60_000,
        ..Config::default()
    };
    let placed = [0, 0, 0, 1, 1, 1, 1].map(|guest| (guest, 0));
    let mut world = World::new(config, &placed);
    for at in 0..10_000_u32 {
        world.step(Event {
            whose: 0,
            task: 1,
            runs: (at * 37 % 256).to_le_bytes()[0],
            ticks: 0,
        });
        world.conserves();
        assert!(world.apart_ns() <= world.turn_ns(), "step {at}");
    }
    let lost = world.shares()[1] - world.had()[1] as f64;
    let most = 2 * config.limit_ns + world.turns_ns(1);
    assert!(lost <= most as f64, "{lost} ns lost, {most} at most");
}
