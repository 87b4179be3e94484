//! In which order those run that wait.

use std::io::Write as _;
use std::time::Instant;

use ostler_act::{Host, LinuxHost};
use ostler_boost::Config;
use ostler_model::CpuSet;
use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{ASLEEP, Guest, Stage, WAITS, WITHIN, core, turn};

/// How often all are poked.
const ROUNDS: usize = 8;

/// Those that have had about as much as their domain run in the order in which they come: the last of them has had the least, by a good deal less than an eighth of a turn.
#[test]
fn those_that_have_had_about_as_much_run_as_they_come() {
    let _turn = turn();
    let test = "those_that_have_had_about_as_much_run_as_they_come";
    let config = Config {
        slice_ns: 64_000_000,
        slice_max_ns: 128_000_000,
        ..Config::default()
    };
    let Some(mut stage) = Stage::set(test, config, &[&["serve"], &["serve"], &["serve"]]) else {
        return;
    };
    let mut lines: Vec<_> = stage
        .guests
        .iter_mut()
        .map(|guest| guest.process.stdin.take().expect("a pipe"))
        .collect();
    let threads: Vec<_> = stage.guests.iter().map(|guest| guest.threads[0]).collect();
    let wait = |what: &str, until: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !until() {
            assert!(start.elapsed() < WITHIN, "{what}: {:?}", stage.ran());
            std::thread::yield_now();
        }
    };
    let doing = |at: usize| stage.thread(threads[at]).state;
    // What the first has had more of, the second has half of.
    for (at, times) in [(0, 8), (1, 4)] {
        for _ in 0..times {
            let had = stage.thread(threads[at]).ran_ns;
            lines[at].write_all(b"poke\n").expect("it listens");
            wait("poked", &|| {
                stage.thread(threads[at]).ran_ns > had && doing(at) == ASLEEP
            });
        }
    }
    // Work of the kernel's own scheduler has the core while they come.
    let keeper = Guest::start(&["spin"]);
    let host = LinuxHost::detect();
    let set = host.set_affinity(keeper.threads[0], &CpuSet::single(core()));
    set.expect("it is ours");
    let keeper = Pid::from_raw(keeper.pid().0.cast_signed()).expect("a number");
    let signal = |signal| kill_process(keeper, signal).expect("it lives");
    let mut as_they_came = 0;
    for _ in 0..ROUNDS {
        for at in 0..threads.len() {
            // Newer kernels keep a part of the core for it, so it may have run.
            let had = stage.thread(threads[at]).ran_ns;
            lines[at].write_all(b"poke\n").expect("it listens");
            wait("it comes", &|| {
                doing(at) == WAITS || stage.thread(threads[at]).ran_ns > had
            });
        }
        let vtimes: Vec<_> = threads
            .iter()
            .map(|t| stage.thread(*t).vcpu.vtime)
            .collect();
        signal(Signal::STOP);
        wait("all have run", &|| {
            (0..threads.len()).all(|at| doing(at) == ASLEEP)
        });
        signal(Signal::CONT);
        let ran: Vec<_> = threads
            .iter()
            .map(|t| stage.thread(*t).runs_since)
            .collect();
        println!("of {vtimes:?} at {ran:?}");
        assert!(vtimes.is_sorted_by(|a, b| a > b), "{vtimes:?}");
        as_they_came += usize::from(ran.is_sorted());
    }
    assert!(as_they_came * 4 >= ROUNDS * 3, "{as_they_came} of {ROUNDS}");
}
