//! What is asked of guests: by the load generator, in the client's namespace, on cores that are not under test; or nothing.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use ostler_load::clock::{monotonic_ns, unix_ms};
use ostler_load::ledger::Window;
use ostler_load::lines::{Line, Start, Writer};
use ostler_load::schedule::Plan;

use super::net::CLIENT;
use crate::machine;
use crate::program::Program;
use crate::scenario::{Guest, Load};

/// The generator shares its cores with the steward and whatever looks on, and a kernel that preempts lazily would have it wait for their next tick:
/// its own lag, 3 to 33 ms of the emulated host's at worst in a cell, was then most of the P99 that it told of guests. So it goes before all that has no deadline.
const AT_ONCE: [&str; 3] = ["chrt", "--fifo", "1"];

/// The guest that a load is meant for, and its position.
pub fn target<'a>(program: &'a Program, load: &Load) -> anyhow::Result<(usize, &'a Guest)> {
    let mut guests = program.scenario.guests.iter().enumerate();
    guests
        .find(|(_, guest)| guest.name == load.guest)
        .with_context(|| format!("no guest is named {}", load.guest))
}

/// The generator with these steps, like `500x5,1000x5`, in place of the load's own.
pub fn command(program: &Program, load: &Load, steps: &str, seed: u64) -> anyhow::Result<Command> {
    let (index, guest) = target(program, load)?;
    let service = guest
        .workload
        .service()
        .context("the guest answers no requests")?;
    let address = machine::guest_address(index);
    let target = match service.port {
        Some(port) => format!("{address}:{port}"),
        None => address,
    };
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", CLIENT])
        .args(AT_ONCE)
        .args(&program.load)
        .arg(service.protocol);
    command.args(["--target", &target, "--json"]);
    command.args([
        "--steps",
        steps,
        "--seed",
        &seed.to_string(),
        "--connections",
        &load.connections.to_string(),
    ]);
    if let Some(slo) = guest.slo_p95_us {
        command.args(["--slo-us", &slo.to_string()]);
    }
    if service.protocol == "http" {
        command.args(["--paths", "2000"]);
    }
    command.args(&load.args).stdin(Stdio::null());
    Ok(command)
}

/// Lets the time of a load pass in which nothing is asked, and says the lines that a load generator would.
pub fn wait(load: &Load, mut line: impl FnMut(Line)) -> anyhow::Result<()> {
    let plan = Plan::parse(&load.steps_text())?;
    let mut writer = Writer::new(&plan, None);
    let start = Instant::now();
    line(Line::Start(Start {
        protocol: "none".to_owned(),
        target: load.guest.clone(),
        seed: 0,
        connections: 0,
        depth: 0,
        threads: 0,
        steps: plan.steps().len(),
        start_unix_ms: unix_ms(),
        start_monotonic_ns: monotonic_ns(),
        slo_us: None,
    }));
    for &span in plan.windows() {
        // Not for synchronisation: what is counted is what is done in so much time.
        std::thread::sleep(Duration::from_nanos(span.end_ns).saturating_sub(start.elapsed()));
        let (window, step) = writer.window(&Window::new(span));
        line(Line::Window(window));
        if let Some(step) = step {
            line(Line::Step(step));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::{self, Step};

    #[test]
    fn each_workload_is_asked_in_its_protocol_at_its_port() {
        let asked = |workload: &str| {
            let text = format!(
                "name = \"t\"\nsummary = \"\"\n[host]\ncores = 4\nmemory = \"2G\"\nunder_test = \"0-2\"\nclient = \"3\"\npnic_queues = 1\n\
                 [[guest]]\nname = \"lc\"\nclass = \"latency-critical\"\nvcpus = 1\nmemory = \"256M\"\nworkload = \"{workload}\"\nslo_p95 = \"5ms\"\n\
                 [[load]]\nguest = \"lc\"\nconnections = 3\nsteps = [{{ rate = 1, seconds = 1 }}]\n"
            );
            let scenario = scenario::parse(&text, Path::new("t")).expect("a scenario");
            let program = Program::new(scenario, false);
            let load = &program.scenario.loads[0];
            let command = command(&program, load, "5x1", 7).expect("a command");
            let words: Vec<_> = command.get_args().map(|w| w.to_string_lossy()).collect();
            words.join(" ")
        };
        for (workload, wanted) in [
            (
                "memcached",
                "ostler-load memcached --target 10.77.0.11:11211 --json --steps 5x1 --seed 7 --connections 3 --slo-us 5000",
            ),
            ("redis", "ostler-load redis --target 10.77.0.11:6379 "),
            ("nginx", "ostler-load http --target 10.77.0.11:80 "),
            ("mixed", "ostler-load http --target 10.77.0.11:80 "),
            ("echo", "ostler-load echo --target 10.77.0.11:7 "),
            ("ping", "ostler-load ping --target 10.77.0.11 "),
        ] {
            let words = asked(workload);
            assert!(words.contains("chrt --fifo 1 "), "{words}");
            assert!(words.contains(wanted), "`{wanted}` is not in\n{words}");
            assert_eq!(words.contains("--paths 2000"), wanted.contains(" http "));
        }
    }

    #[test]
    fn a_load_of_nothing_has_its_windows_and_no_requests() {
        let step = |seconds| Step { rate: 0.0, seconds };
        let load = Load::new("disk", 1, vec![step(0.02), step(0.01)]);
        let mut lines = Vec::new();
        wait(&load, |line| lines.push(line)).expect("steps of nothing");
        let kinds: Vec<_> = lines
            .iter()
            .map(|line| match line {
                Line::Start(start) => ("start", start.steps as u64),
                Line::Window(window) => ("window", window.figures.due),
                Line::Step(step) => ("step", step.figures.due),
            })
            .collect();
        assert_eq!(
            kinds,
            [
                ("start", 2),
                ("window", 0),
                ("step", 0),
                ("window", 0),
                ("step", 0)
            ]
        );
    }
}
