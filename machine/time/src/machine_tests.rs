//! On a made-up emulator ([`fake`]), nothing hangs, and nobody sees time go back or run away.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use super::*;
#[path = "machine_fake.rs"]
mod fake;
#[path = "machine_fused_tests.rs"]
mod fused;

use fake::*;

use crate::clock::Cost;
use crate::threads::become_role;

#[test]
fn cores_keep_together_whatever_the_scheduler_does() {
    let machine = build(4);
    let worst = AtomicI64::new(0);
    run(&machine, |core| {
        for _ in 0..2000 {
            machine.execute(core, 5000);
            let mine = machine.local(core);
            for other in 0..4 {
                let (state, time) = machine.lockstep.seat(other);
                if state == State::Running {
                    worst.fetch_max(mine - time, Ordering::SeqCst);
                }
            }
        }
    });
    // A quantum, and what is executed between two looks: half a quantum and a block.
    let bound = QUANTUM + QUANTUM / 2 + 2 * i64::try_from(BLOCK).expect("small");
    let worst = worst.into_inner();
    assert!(worst <= bound, "a core was {worst} ns ahead");
    assert_eq!(machine.counts.excused.load(Ordering::SeqCst), 0);
}

#[test]
fn what_a_core_shows_is_old_by_a_quantum_at_most() {
    let machine = build(2);
    run(&machine, |core| {
        for _ in 0..200 {
            machine.execute(core, 5000);
        }
    });
    // Half a quantum and a block between two looks.
    let step = machine.options.step() + BLOCK;
    for core in &machine.emulator.cores {
        let shown = core.shown.lock().expect("nobody panicked");
        for two in shown.windows(2) {
            let executed = two[1].executed - two[0].executed;
            assert!(executed <= step, "{executed} instructions unseen");
            assert!(two[1].halted_ns >= two[0].halted_ns);
        }
        for so_far in shown.iter() {
            let ran = so_far.time_ns - so_far.halted_ns;
            assert_eq!(ran.unsigned_abs(), so_far.executed, "at 1 ns each");
        }
        let last = shown.last().expect("it halted in the end");
        assert_eq!(last.executed, 1_000_000);
    }
}

#[test]
fn a_ball_that_is_passed_around_takes_the_same_time_each_round() {
    const ROUNDS: usize = 500;
    let machine = build(3);
    let ball = AtomicUsize::new(0);
    let times = Mutex::new(Vec::new());
    run(&machine, |core| {
        for round in 0..ROUNDS {
            let turn = round * 3 + core;
            while ball.load(Ordering::SeqCst) != turn {
                machine.halt(core);
            }
            machine.execute(core, 20_000);
            if core == 0 {
                times.lock().expect("nobody panicked").push(machine.read());
            }
            ball.store(turn + 1, Ordering::SeqCst);
            machine.emulator.interrupt((core + 1) % 3);
        }
    });
    let times = times.into_inner().expect("nobody panicked");
    let rounds: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Only one core ever executes: no more passes than its instructions, however long a thread waited for a real core.
    for round in &rounds {
        assert!(
            (60_000..=60_000 + QUANTUM).contains(round),
            "a round took {round} ns: {rounds:?}"
        );
    }
}

/// A third core runs ahead as far as it may, which is as far as the real machine's scheduler lets it.
#[test]
fn a_woken_core_starts_at_its_wakers_time_wherever_others_are() {
    const ROUNDS: u64 = 1000;
    let machine = build(3);
    let done = AtomicBool::new(false);
    let passed_at = [AtomicI64::new(0), AtomicI64::new(0)];
    let wrong = Mutex::new(Vec::new());
    let ahead = AtomicU64::new(0);
    let begun = Barrier::new(2);
    run(&machine, |core| {
        if core == 2 {
            while !done.load(Ordering::SeqCst) {
                machine.execute(2, 700);
            }
            return;
        }
        let other = 1 - core;
        begun.wait();
        for round in 0..ROUNDS {
            if round > 0 || core == 1 {
                let own = machine.local(core);
                machine.halt(core);
                let expected = own.max(passed_at[other].load(Ordering::SeqCst));
                let start = machine.local(core);
                if start != expected {
                    wrong
                        .lock()
                        .expect("nobody panicked")
                        .push((start, expected));
                }
            }
            // Less than a quantum, and more.
            machine.execute(core, BLOCK * (round * 37 % 300 + 1));
            // It is to sleep: one that runs hears an interrupt at its own time.
            while machine.lockstep.seat(other).0 != State::Idle {
                std::thread::yield_now();
            }
            let at = machine.local(core);
            ahead.fetch_add(u64::from(machine.lockstep.now() > at), Ordering::SeqCst);
            passed_at[core].store(at, Ordering::SeqCst);
            machine.emulator.interrupt(other);
        }
        done.store(core == 1, Ordering::SeqCst);
    });
    let wrong = wrong.into_inner().expect("nobody panicked");
    assert!(wrong.is_empty(), "started, and should have: {wrong:?}");
    let ahead = ahead.into_inner();
    assert!(
        ahead > ROUNDS / 10,
        "another core was further only {ahead} times"
    );
}

/// Who has interrupted another core and goes to sleep hears the answer on its way, wherever the real machine's scheduler has let it come by then.
#[test]
fn an_answer_is_heard_when_it_is_given_though_its_asker_falls_asleep() {
    const ROUNDS: usize = 1000;
    const ANSWER: u64 = 3_000;
    const TO_SLEEP: u64 = 9_000;
    let machine = build(2);
    let ball = AtomicUsize::new(0);
    let passed_at = AtomicI64::new(0);
    let late = Mutex::new(Vec::new());
    run(&machine, |core| {
        for round in 0..ROUNDS {
            let turn = 2 * round + core;
            let mut walked = 0;
            while ball.load(Ordering::SeqCst) != turn {
                if walked < TO_SLEEP {
                    machine.execute(core, BLOCK);
                    walked += BLOCK;
                } else {
                    machine.halt(core);
                }
            }
            // The first ball was nobody's answer.
            if turn > 1 {
                let after = machine.local(core) - passed_at.load(Ordering::SeqCst);
                late.lock().expect("nobody panicked").push(after);
            }
            machine.execute(core, ANSWER);
            passed_at.store(machine.local(core), Ordering::SeqCst);
            ball.store(turn + 1, Ordering::SeqCst);
            machine.emulator.interrupt(1 - core);
        }
    });
    // A fifth of a quantum, what is executed between two looks, and the blocks at their ends.
    let bound = QUANTUM / 5 + QUANTUM / 10 + 2 * i64::try_from(BLOCK).expect("small");
    let late = late.into_inner().expect("nobody panicked");
    let most = late.iter().max().expect("there were rounds");
    assert!(*most <= bound, "an answer was heard {most} ns late");
}

#[test]
fn how_far_a_core_is_that_didnt_ask_is_told_to_nobody() {
    let machine = build(2);
    let told = |core, instructions| {
        become_role(Role::Core(core));
        machine.execute(core, instructions);
        machine.read()
    };
    become_role(Role::Core(1));
    machine.resume(1);
    become_role(Role::Core(0));
    machine.resume(0);
    machine.execute(0, 8_000);
    assert!(machine.lockstep.now() >= 5_000, "it has shown itself");
    assert_eq!(told(1, 1_000), 1_000);
    assert_eq!(told(0, 50), 8_050);
    assert_eq!(told(1, 50), 8_050, "now somebody knows");
    become_role(Role::Other);
}

#[test]
fn nobody_is_told_less_than_anybody_was_told_before() {
    let machine = build(3);
    let seen = AtomicI64::new(0);
    let wrong = AtomicUsize::new(0);
    let running = AtomicUsize::new(3);
    let ask = || {
        let before = seen.load(Ordering::SeqCst);
        let told = machine.read();
        seen.fetch_max(told, Ordering::SeqCst);
        (before, told)
    };
    std::thread::scope(|scope| {
        // The main loop sees time up to where timers were fired: less than others perhaps, but never less than it did.
        scope.spawn(|| {
            let mut last = 0;
            while running.load(Ordering::SeqCst) > 0 {
                let (_, told) = ask();
                wrong.fetch_add(usize::from(told < last), Ordering::SeqCst);
                last = told;
                std::thread::yield_now();
            }
        });
        run(&machine, |core| {
            for round in 0..2000 {
                machine.execute(core, BLOCK * (round * 37 % 200 + 1));
                let (before, told) = ask();
                wrong.fetch_add(usize::from(told < before), Ordering::SeqCst);
                if round % 50 == 0 {
                    let timer = Some((told + 30_000, core));
                    *machine.emulator.timer.lock().expect("nobody panicked") = timer;
                }
                if round % 7 == 0 {
                    machine.emulator.interrupt((core + 1) % 3);
                }
            }
            running.fetch_sub(1, Ordering::SeqCst);
        });
    });
    assert_eq!(wrong.into_inner(), 0);
}

#[test]
fn idle_time_is_skipped_to_the_timer_and_not_beyond() {
    let machine = build(2);
    run(&machine, |core| {
        if core == 1 {
            return;
        }
        for _ in 0..200 {
            let begin = machine.read();
            *machine.emulator.timer.lock().expect("nobody panicked") = Some((begin + 5_000_000, 0));
            machine.halt(0);
            let slept = machine.read() - begin;
            assert!(
                (5_000_000..5_000_000 + QUANTUM).contains(&slept),
                "slept {slept} ns"
            );
        }
    });
    assert!(machine.counts.skips.load(Ordering::SeqCst) >= 200);
}

#[test]
fn a_timer_at_the_end_of_time_is_none() {
    let machine = build(1);
    become_role(Role::Ours);
    *machine.emulator.timer.lock().expect("nobody panicked") = Some((i64::MAX, 0));
    assert_eq!(machine.skip(None), Skip::NoTimer);
    assert_eq!(machine.lockstep.now(), 0);
    become_role(Role::Other);
}

#[test]
fn who_was_woken_for_nothing_before_a_skip_starts_after_it() {
    let machine = build(1);
    become_role(Role::Ours);
    machine.kicked(0);
    *machine.emulator.timer.lock().expect("nobody panicked") = Some((1_000_000, 0));
    assert_eq!(machine.skip(None), Skip::Moved);
    machine.resume(0);
    assert_eq!(machine.local(0), 1_000_000);
    become_role(Role::Other);
}

#[test]
fn timers_fire_in_time_while_others_execute() {
    let machine = build(2);
    let done = AtomicBool::new(false);
    run(&machine, |core| {
        if core == 1 {
            while !done.load(Ordering::SeqCst) {
                machine.execute(1, 5000);
            }
            return;
        }
        for _ in 0..200 {
            let begin = machine.read();
            *machine.emulator.timer.lock().expect("nobody panicked") = Some((begin + 100_000, 0));
            machine.halt(0);
        }
        done.store(true, Ordering::SeqCst);
    });
    let late = machine.emulator.late.load(Ordering::SeqCst);
    let block = i64::try_from(BLOCK).expect("small");
    assert!(late <= block, "a timer was fired {late} ns late");
}

#[test]
fn time_stands_still_while_an_idle_machine_waits_for_its_disk() {
    let machine = build(1);
    become_role(Role::Ours);
    *machine.emulator.timer.lock().expect("nobody panicked") = Some((1_000_000, 0));
    machine.emulator.disk.store(true, Ordering::SeqCst);
    assert_eq!(machine.skip(None), Skip::Disk);
    assert_eq!(machine.lockstep.now(), 0);
    machine.emulator.disk.store(false, Ordering::SeqCst);
    let paced = machine.skip(Some((Instant::now() + Duration::from_mins(1), 0)));
    assert!(matches!(paced, Skip::TooSoon(_)), "{paced:?}");
    assert_eq!(machine.skip(None), Skip::Moved);
    assert_eq!(machine.lockstep.now(), 1_000_000);
    assert_eq!(
        machine.skip(None),
        Skip::Busy,
        "the timer has woken the core"
    );
    become_role(Role::Other);
}

#[test]
fn the_main_loop_sees_no_time_at_which_a_timer_is_still_to_be_fired() {
    let machine = build(1);
    *machine.emulator.timer.lock().expect("nobody panicked") = Some((7_000, 0));
    become_role(Role::Core(0));
    machine.resume(0);
    machine.execute(0, 5_000);
    let seen = |role| {
        become_role(role);
        let time = machine.read();
        become_role(Role::Core(0));
        time
    };
    assert_eq!(seen(Role::Other), 5_000);
    machine.execute(0, 1_950);
    assert_eq!((seen(Role::Other), machine.read()), (5_000, 6_950));
    // The core comes to the timer's time before half a quantum is over, looks, and fires it.
    machine.execute(0, 50);
    assert_eq!((seen(Role::Other), machine.read()), (7_000, 7_000));
    assert_eq!(
        machine
            .emulator
            .timer
            .lock()
            .expect("nobody panicked")
            .take(),
        None
    );
    machine.execute(0, 4_950);
    assert_eq!((seen(Role::Other), machine.read()), (7_000, 11_950));
    machine.execute(0, 50);
    assert_eq!((seen(Role::Other), machine.read()), (12_000, 12_000));
    become_role(Role::Other);
}

/// A core that waits inside the emulator until another one has come far: further than lockstep would let it.
#[test]
fn a_core_that_waits_inside_the_emulator_doesnt_stall_the_rest() {
    const FAR: i64 = 50 * QUANTUM;
    let machine = build_with(3, Duration::from_millis(100));
    let far = Gate::default();
    let reached = AtomicI64::new(0);
    run(&machine, |core| {
        if core == 0 {
            machine.execute(0, 6_000);
            let stuck = far.wait_while(HUNG, || reached.load(Ordering::SeqCst) < FAR);
            assert!(!stuck, "nobody got far; {}", machine.told());
            let before = machine.lockstep.now();
            machine.execute(0, 6_000);
            assert!(
                machine.local(0) >= before,
                "it catches up, and holds nobody back for what it missed"
            );
            return;
        }
        while machine.local(core) < FAR {
            machine.execute(core, 5_000);
        }
        reached.fetch_max(machine.local(core), Ordering::SeqCst);
        far.wake();
    });
    assert!(machine.counts.excused.load(Ordering::SeqCst) >= 1);
    let said = machine.emulator.said.lock().expect("nobody panicked");
    assert!(
        said[0].starts_with("core 0 is left out: running at 0.0000"),
        "{said:?}"
    );
}

#[test]
fn a_core_that_gets_no_real_core_is_waited_for() {
    const FAR: i64 = 50 * QUANTUM;
    let machine = build_with(2, Duration::from_millis(100));
    machine.emulator.starves.store(true, Ordering::SeqCst);
    run(&machine, |core| {
        if core == 0 {
            machine.execute(0, 6_000);
            let looked = || machine.emulator.looked.load(Ordering::SeqCst);
            let began = Instant::now();
            while looked() < 6 {
                assert!(began.elapsed() < HUNG, "nobody looks; {}", machine.told());
                std::thread::yield_now();
            }
            assert_eq!(machine.counts.excused.load(Ordering::SeqCst), 0);
            assert!(
                machine.local(1) <= 6_000 + 2 * QUANTUM,
                "{}",
                machine.told()
            );
        }
        while machine.local(core) < FAR {
            machine.execute(core, 5_000);
        }
    });
    assert_eq!(machine.counts.excused.load(Ordering::SeqCst), 0);
}

#[test]
fn a_stall_is_reported_with_what_each_core_waits_for() {
    let machine = build(3);
    machine.resume(0);
    machine.resume(1);
    machine.lockstep.publish(0, 1_500_000_000);
    machine.own[0].waits_for.store(1, Ordering::SeqCst);
    let text = crate::watch::report(&machine, crate::watch::Stall::Still);
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    assert!(
        lines[0]
            .starts_with("STALLED: the machine's time has stood still at 1.500000000 s for 20 s"),
        "{text}"
    );
    assert!(lines[1].starts_with("core 0: running at 1.500000000 s, 0 instructions; waits for core 1, which is a quantum behind"), "{text}");
    assert!(
        lines[2].starts_with("core 1: running at 0.000000000 s")
            && lines[2].contains("holds the others back"),
        "{text}"
    );
    assert!(
        lines[3].starts_with("core 2: halted") && lines[3].contains("holds nobody back"),
        "{text}"
    );
    assert_eq!(lines[4], "no timer is set");
}
