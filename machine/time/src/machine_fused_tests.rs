//! Two made-up machines on one page, with real threads for all their cores: the real machine's scheduler interferes as it likes.

use crate::fused::{Fused, Page};

use super::*;

const LATENCY: i64 = 2_000;
/// With blocks of 50 instructions: 2000 are no less than one and a half of it and a block.
const SMALL: i64 = 1_000;

/// Two machines of so many cores each.
fn pair(cores: usize) -> [Arc<Machine<Fake>>; 2] {
    let page: &'static Page = Box::leak(Box::default());
    [0, 1].map(|me| {
        let options = Options {
            quantum_ns: SMALL,
            cost: Cost::from_ps(1000),
            ..Options::default()
        };
        let fused = Fused::join(page, me, cores, SMALL, LATENCY).expect("there is a place");
        let machine = Machine::new(fake(cores), cores, options).among(fused);
        finish(machine, HUNG)
    })
}

/// Runs both, a body per core.
fn run_both(pair: &[Arc<Machine<Fake>>; 2], body: impl Fn(usize, usize) + Sync) {
    std::thread::scope(|scope| {
        let body = &body;
        for (number, machine) in pair.iter().enumerate() {
            scope.spawn(move || run(machine, |core| body(number, core)));
        }
    });
}

impl Machine<Fake> {
    fn set_timer(&self, at: i64) {
        *self.emulator.timer.lock().expect("nobody panicked") = Some((at, 0));
    }

    fn rung(&self, machine: usize) -> i64 {
        self.rung_by(0, machine)
    }

    /// A core rings the other machine's core of the same number.
    fn rung_by(&self, core: usize, machine: usize) -> i64 {
        let fused = self.fused.as_ref().expect("it is fused");
        let time = self.local(core);
        assert!(fused.ring(machine, core, time));
        time
    }
}

#[test]
fn machines_keep_together_whatever_the_scheduler_does() {
    let pair = pair(2);
    let worst = AtomicI64::new(0);
    run_both(&pair, |number, core| {
        for _ in 0..1000 {
            pair[number].execute(core, 500);
            let mine = pair[number].local(core);
            for other in 0..2 {
                let (state, time) = pair[1 - number].lockstep.seat(other);
                if state == State::Running {
                    worst.fetch_max(mine - time, Ordering::SeqCst);
                }
            }
        }
    });
    let block = i64::try_from(BLOCK).expect("small");
    // What is said of a machine's own cores: a quantum, and what is executed between two looks.
    let worst = worst.into_inner();
    assert!(
        worst <= SMALL + SMALL / 2 + 2 * block,
        "a machine was {worst} ns ahead"
    );
}

#[test]
fn a_doorbell_wakes_a_halted_core_at_exactly_its_time() {
    const ROUNDS: usize = 2000;
    let pair = pair(1);
    let rung = Mutex::new(Vec::new());
    let woken = Mutex::new(Vec::new());
    run_both(&pair, |number, _| {
        // Further than it may get before the other has begun: else a doorbell could be what makes that begin.
        pair[number].execute(0, 5_000);
        for round in 0..ROUNDS {
            if number == 0 {
                pair[0].execute(0, 50 * (round as u64 % 90 + 1));
                rung.lock().expect("nobody panicked").push(pair[0].rung(1));
            }
            // It answers, and the first waits for the answer. Both have something else to wake for, much later: whoever
            // skipped to that would find the doorbell in its past.
            pair[number].set_timer(pair[number].local(0) + 5_000_000);
            pair[number].halt(0);
            if number == 1 {
                woken
                    .lock()
                    .expect("nobody panicked")
                    .push(pair[1].local(0));
                pair[1].execute(0, 100);
                pair[1].rung(0);
            }
        }
    });
    let (rung, woken) = (rung.into_inner(), woken.into_inner());
    let expected: Vec<_> = rung.expect("nobody panicked");
    let expected: Vec<_> = expected.iter().map(|at| at + LATENCY).collect();
    assert_eq!(woken.expect("nobody panicked"), expected);
}

#[test]
fn a_doorbell_is_heard_by_a_running_core_in_the_block_of_its_time() {
    let pair = pair(1);
    run_both(&pair, |number, _| {
        for round in 0..4000_u64 {
            pair[number].execute(0, 50 * (round % 7 + 1));
            if number == 0 && round % 5 == 0 {
                pair[0].rung(1);
            }
        }
    });
    let heard = pair[1].emulator.heard.lock().expect("nobody panicked");
    let block = i64::try_from(BLOCK).expect("small");
    for &(at, when) in heard.iter() {
        assert!(
            (at..=at + block).contains(&when),
            "due at {at}, heard at {when}"
        );
    }
    assert!(heard.len() > 700, "only {} were heard", heard.len());
    let rings = &pair[1].fused.as_ref().expect("it is fused").rings;
    assert_eq!(rings.late.load(Ordering::SeqCst), 0);
}

/// Numbers without a pattern (xorshift64), up to a bound.
fn random(state: &mut u64, bound: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % bound
}

/// Accesses that take far longer than a quantum and the latency, one by one and together.
fn dear(state: &mut u64) -> Vec<u64> {
    let many = random(state, 12);
    let all = 0..many;
    all.map(|_| match random(state, 8) {
        0 => random(state, 40_000),
        _ => random(state, 400),
    })
    .collect()
}

#[test]
fn a_doorbell_is_heard_in_the_block_of_its_time_however_much_accesses_cost() {
    const LAST: i64 = 40_000_000;
    for seed in 1..=6_usize {
        let cores = 1 + seed % 2;
        let pair = pair(cores);
        run_both(&pair, |number, core| {
            let mut state = (seed * 77 + number * 7 + core) as u64;
            pair[number].execute(core, 5_000);
            // Whoever has ended hears nothing more: all go on for longer than the last doorbell takes.
            while pair[number].local(core) < LAST + 200_000 {
                pair[number].access(core, &dear(&mut state));
                pair[number].execute(core, 50 * random(&mut state, 9));
                if random(&mut state, 5) == 0 && pair[number].local(core) < LAST {
                    pair[number].rung_by(core, 1 - number);
                }
            }
        });
        for machine in &pair {
            let rings = &machine.fused.as_ref().expect("it is fused").rings;
            let delivered = rings.delivered.load(Ordering::SeqCst);
            assert!(delivered > 400, "seed {seed}: only {delivered} were heard");
            assert_eq!(
                rings.late.load(Ordering::SeqCst),
                0,
                "seed {seed}: of {delivered}, the latest by {} ns",
                rings.most_late_ns.load(Ordering::SeqCst)
            );
        }
    }
}

#[test]
fn a_core_whose_accesses_cost_much_waits_for_the_other_machine_behind_each() {
    const ACCESS: u64 = 300;
    let pair = pair(1);
    let worst = AtomicI64::new(0);
    run_both(&pair, |number, _| {
        for round in 0..2000_usize {
            // Blocks of up to 20 us.
            pair[number].access(0, &vec![ACCESS; round * (3 + number) % 64]);
            let mine = pair[number].local(0);
            let (state, time) = pair[1 - number].lockstep.seat(0);
            if state == State::Running {
                worst.fetch_max(mine - time, Ordering::SeqCst);
            }
        }
    });
    let worst = worst.into_inner();
    let bound = SMALL + SMALL / 2 + i64::try_from(ACCESS + BLOCK).expect("small");
    assert!(worst <= bound, "a machine was {worst} ns ahead");
}

#[test]
fn the_nearest_timer_of_all_comes_first_when_all_are_idle() {
    let pair = pair(1);
    let order = Mutex::new(Vec::new());
    run_both(&pair, |number, _| {
        let machine = &pair[number];
        for round in 0..300_i64 {
            // Now and then by the same time, mostly far apart.
            let sleep =
                10_000 + (round * 7919 + i64::try_from(number).expect("small") * 31) % 50_000;
            let due = machine.read() + sleep;
            machine.set_timer(due);
            machine.halt(0);
            assert_eq!(machine.local(0), due, "woken at its timer's time");
            order.lock().expect("nobody panicked").push(due);
        }
    });
    let order = order.into_inner().expect("nobody panicked");
    for pair in order.windows(2) {
        assert!(
            pair[1] >= pair[0] - SMALL - SMALL / 2,
            "{} came after {}",
            pair[1],
            pair[0]
        );
    }
}

#[test]
fn a_timer_of_a_halted_machine_holds_one_that_runs() {
    let pair = pair(1);
    run_both(&pair, |number, _| {
        if number == 0 {
            pair[0].execute(0, 3_000_000);
            return;
        }
        for _ in 0..100 {
            let due = pair[1].read() + 20_000;
            pair[1].set_timer(due);
            pair[1].halt(0);
            let (state, other) = pair[0].lockstep.seat(0);
            let ahead = other - due;
            assert!(
                state != State::Running || ahead <= SMALL + SMALL / 2,
                "the other was {ahead} ns past the timer"
            );
        }
    });
}
