//! The rules of lockstep, on made-up machines: cores of random speed, halts and kicks in any order. One step of one core at a
//! time, so that a failure can be repeated; what real threads make of it is tried in `machine_tests`.

use proptest::prelude::*;

use super::*;

const QUANTUM: i64 = 10_000;
const STEP: i64 = QUANTUM / 2;

/// What a core does next, if it may.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Executes for at most a step.
    Run(i64),
    /// Halts.
    Halt,
    /// Gives another core work.
    Kick(usize),
    /// Its thread gets a real core, if it was woken.
    Wake,
    /// Is looked at by QEMU for nothing.
    Disturb,
    /// All halt, and time goes on until something wakes it.
    Skip(i64),
}

fn act(cores: usize) -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (1..=STEP).prop_map(Act::Run),
        1 => Just(Act::Halt),
        2 => (0..cores).prop_map(Act::Kick),
        4 => Just(Act::Wake),
        1 => Just(Act::Disturb),
        1 => (1..100 * QUANTUM).prop_map(Act::Skip),
    ]
}

/// A made-up core: what the emulator would know of it.
#[derive(Clone, Copy, Debug, Default)]
struct Core {
    halted: bool,
    work: bool,
    local: i64,
    kicked_at: Option<i64>,
    /// What it was woken for first, with work or without: it starts from then.
    starts_at: Option<i64>,
}

/// The machine that the rules are tried on.
struct World {
    lockstep: Lockstep,
    cores: Vec<Core>,
}

impl World {
    fn new(cores: usize) -> World {
        let halted = Core {
            halted: true,
            ..Core::default()
        };
        let mut world = World {
            lockstep: Lockstep::new(cores, QUANTUM),
            cores: vec![halted; cores],
        };
        world.kick(0, 0);
        world.wake(0);
        world
    }

    fn kick(&mut self, core: usize, at: i64) {
        let target = &mut self.cores[core];
        if target.halted && !target.work {
            target.kicked_at = Some(at);
        }
        target.work = true;
        self.disturb(core, at);
    }

    /// Kicks a core, for work or for nothing. If it was at rest until now, this is when it starts from; or, if it was woken for nothing before,
    /// then if that was later.
    fn disturb(&mut self, core: usize, at: i64) {
        if self.lockstep.seat(core).0 == State::Idle {
            let starts_at = &mut self.cores[core].starts_at;
            *starts_at = (*starts_at).max(Some(at));
        }
        self.lockstep.kick(core, at);
    }

    fn wake(&mut self, core: usize) {
        let target = &mut self.cores[core];
        if target.halted && target.work {
            let start = self.lockstep.resume(core, target.local);
            let from = target.starts_at.expect("it was kicked");
            assert_eq!(
                start,
                from.max(target.local),
                "it starts when it was kicked, or later if it was later itself"
            );
            if let Some(at) = target.kicked_at.take() {
                // One that was woken for nothing shortly before starts from then: no more than cores may be apart anyway.
                assert!(
                    start >= at - QUANTUM - STEP,
                    "woken at {start} for work of {at}"
                );
            }
            *target = Core {
                local: start,
                ..Core::default()
            };
        }
    }

    fn rests(&self) -> bool {
        self.lockstep.everyone_rests(|core| self.cores[core].work)
    }

    fn held(&self, core: usize) -> bool {
        let cores = &self.cores;
        self.lockstep
            .holder(core, cores[core].local, |other| {
                !cores[other].halted || cores[other].work
            })
            .is_some()
    }

    fn act(&mut self, core: usize, act: Act) {
        let before = self.lockstep.now();
        let me = self.cores[core];
        match act {
            Act::Wake => self.wake(core),
            Act::Disturb if me.halted => self.disturb(core, self.lockstep.now()),
            Act::Skip(ns) if self.rests() => {
                let works = |core: usize| self.cores[core].work;
                assert!(!self.lockstep.forget_kicks(works), "nobody has work");
                self.lockstep.advance(before + ns);
                self.kick(core, before + ns);
            }
            _ if me.halted || self.held(core) => {}
            Act::Run(ns) => {
                self.cores[core].local += ns;
                assert_eq!(
                    self.lockstep.publish(core, me.local + ns),
                    State::Running,
                    "it ran before"
                );
            }
            Act::Halt => {
                self.cores[core].halted = true;
                let work = self.cores[core].work;
                self.cores[core].starts_at = work.then_some(me.local);
                self.lockstep.rest(core, me.local, || work);
            }
            // At its own time, however far the others are.
            Act::Kick(other) if other != core => self.kick(other, me.local),
            Act::Kick(_) | Act::Disturb | Act::Skip(_) => {}
        }
        assert!(self.lockstep.now() >= before, "time never goes back");
        self.check();
    }

    /// What must hold at every moment.
    fn check(&self) {
        let ahead = self
            .cores
            .iter()
            .filter(|c| !c.halted)
            .map(|c| c.local)
            .max();
        for (number, core) in self.cores.iter().enumerate() {
            let (state, time) = self.lockstep.seat(number);
            if core.halted && core.work {
                assert_ne!(state, State::Running);
                assert!(
                    state == State::Kicked,
                    "core {number} has work and holds nobody back"
                );
            }
            if !core.halted {
                assert_eq!(state, State::Running);
                assert_eq!(time, core.local);
                let ahead = ahead.expect("one runs");
                assert!(
                    ahead - core.local <= QUANTUM + STEP,
                    "core {number} at {} was left behind by {}",
                    core.local,
                    ahead - core.local
                );
            }
            // While it waits for a real core, nobody runs away from where it will start.
            if let (true, Some(at), Some(ahead)) = (core.work, core.starts_at, ahead) {
                let start = at.max(core.local);
                assert!(
                    ahead - start <= QUANTUM + STEP,
                    "core {number} is to start at {start}, and others are at {ahead}"
                );
            }
        }
    }

    /// Whether anybody can do anything: all halted, or one runs and isn't held, or one is about to wake.
    fn goes_on(&self) -> bool {
        let running = (0..self.cores.len()).filter(|&c| !self.cores[c].halted);
        let mut free = running.clone().filter(|&c| !self.held(c));
        running.count() == 0
            || free.next().is_some()
            || self.cores.iter().any(|c| c.halted && c.work)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn nobody_is_left_behind_and_somebody_always_goes_on(
        (cores, acts) in (2..6_usize).prop_flat_map(|cores| (Just(cores), prop::collection::vec((0..cores, act(cores)), 1..600)))
    ) {
        let mut world = World::new(cores);
        for (core, act) in acts {
            world.act(core, act);
            prop_assert!(world.goes_on());
        }
    }
}

#[test]
fn halted_cores_hold_nobody_back_and_kicked_ones_do() {
    let lockstep = Lockstep::new(2, QUANTUM);
    let works = |_| true;
    lockstep.resume(0, 0);
    lockstep.publish(0, 1_000_000);
    assert_eq!(lockstep.holder(0, 1_000_000, works), None);
    lockstep.kick(1, 1_000_000);
    assert_eq!(
        lockstep.holder(0, 1_000_000 + QUANTUM, works),
        None,
        "a quantum ahead is fine"
    );
    let late = 1_000_001 + QUANTUM;
    assert_eq!(
        lockstep.holder(0, late, works),
        Some(Holder {
            core: 1,
            time: 1_000_000,
            until: 1_000_001
        })
    );
    assert_eq!(
        lockstep.resume(1, 5),
        1_000_000,
        "it starts when it was kicked"
    );
}

#[test]
fn cores_of_which_one_interrupted_the_other_keep_close_for_two_quanta() {
    let close = QUANTUM / CLOSER;
    let lockstep = Lockstep::new(3, QUANTUM);
    for core in 0..3 {
        lockstep.resume(core, 0);
    }
    let held = |core, time| lockstep.holder(core, time, |_| true);
    assert_eq!(held(0, QUANTUM), None);
    lockstep.bring_close(0, 1, 100);
    assert_eq!(held(0, close), None);
    let by_close = held(0, close + 1).expect("it is too far ahead");
    assert_eq!((by_close.core, by_close.until), (1, 1));
    // The third has nothing to do with it.
    assert_eq!(held(2, QUANTUM), None);
    lockstep.publish(1, close);
    assert_eq!(held(0, QUANTUM + 1).map(|holder| holder.core), Some(1));
    // Until both have left that time behind.
    let end = 100 + 2 * QUANTUM;
    lockstep.publish(2, end);
    lockstep.publish(1, end - 1);
    assert_eq!(held(0, end - 1 + close), None);
    assert_eq!(lockstep.close_ns(1, end - 1), Some(close));
    assert_eq!(lockstep.close_ns(1, end), None);
    lockstep.publish(1, end);
    assert_eq!(held(0, end + QUANTUM), None);
}

#[test]
fn a_kick_for_nothing_is_forgotten() {
    let lockstep = Lockstep::new(2, QUANTUM);
    lockstep.resume(0, 0);
    lockstep.kick(1, 0);
    assert_eq!(lockstep.holder(0, QUANTUM + 1, |_| false), None);
    assert_eq!(lockstep.seat(1).0, State::Idle);
}

#[test]
fn work_that_comes_while_a_kick_for_nothing_is_forgotten_counts_from_that_kick() {
    let lockstep = Lockstep::new(2, QUANTUM);
    lockstep.resume(0, 0);
    lockstep.kick(1, 100);
    let late = 101 + QUANTUM;
    lockstep.publish(0, late);
    let looked = std::cell::Cell::new(false);
    let held = lockstep.holder(0, late, |_| looked.replace(true));
    assert_eq!(
        lockstep.seat(1),
        (State::Kicked, 100),
        "not from where the machine has come to"
    );
    assert_eq!(held.map(|holder| holder.core), Some(1));
}

#[test]
fn a_kick_for_nothing_before_a_skip_is_none_for_what_comes_after_it() {
    let lockstep = Lockstep::new(2, QUANTUM);
    lockstep.kick(1, 100);
    assert!(lockstep.everyone_rests(|_| false));
    assert!(!lockstep.forget_kicks(|_| false));
    lockstep.advance(1_000_000);
    lockstep.kick(1, 1_000_000);
    assert_eq!(lockstep.resume(1, 0), 1_000_000);
}

#[test]
fn work_that_comes_while_halting_isnt_missed() {
    let lockstep = Lockstep::new(2, QUANTUM);
    lockstep.resume(1, 0);
    lockstep.publish(0, 700);
    lockstep.rest(1, 300, || true);
    assert_eq!(
        lockstep.seat(1),
        (State::Kicked, 300),
        "it goes on from where it is, not from where others are"
    );
    assert!(!lockstep.everyone_rests(|_| true));
}

#[test]
fn an_excused_core_holds_nobody_back_until_it_is_seen_again() {
    let lockstep = Lockstep::new(2, QUANTUM);
    lockstep.resume(0, 0);
    lockstep.resume(1, 0);
    let holder = lockstep
        .holder(0, QUANTUM + 1, |_| true)
        .expect("it is behind");
    lockstep.publish(1, 1);
    assert!(!lockstep.excuse(holder), "it has moved");
    let holder = lockstep
        .holder(0, QUANTUM + 2, |_| true)
        .expect("it is behind again");
    assert!(lockstep.excuse(holder));
    assert_eq!(lockstep.holder(0, QUANTUM + 2, |_| true), None);
    lockstep.rest(0, QUANTUM + 2, || false);
    assert!(
        lockstep.everyone_rests(|core| core == 1),
        "nor does it keep time from skipping"
    );
    assert_eq!(lockstep.publish(1, 2), State::Absent);
    assert_eq!(lockstep.publish(1, 3), State::Running);
}
