//! `cargo xtask test`: everything CI runs, and a count at its end.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use ostler_lab::error::LabError;
use ostler_lab::image::{Image, LabDir, Series};
use ostler_lab::progress::Progress;

use crate::{artifacts, bench, lint, run};

/// What the vCPU scheduler is tested on besides the image's own kernel: its kfuncs have other names there.
const OTHER_KERNEL: Series = Series(6, 18);

#[derive(clap::Args)]
pub struct Args {
    /// Leave the lab out: no emulated host is booted.
    #[arg(long)]
    no_lab: bool,
}

/// What the test runners counted.
#[derive(Default)]
struct Count {
    passed: u32,
    failed: u32,
    skipped: Vec<String>,
    /// Tests that libtest counted as passed although they only said why they can't run.
    said_skip: u32,
    /// What each step took. A run has an hour, and who makes it longer should see where.
    times: Vec<(String, Duration)>,
}

pub fn test(args: &Args) -> Result<()> {
    let mut count = Count::default();
    run::step("set-up: packages");
    count.timed("packages", |_| run::setup_for_tests())?;
    // What is fetched and unpacked keeps a core busy now and then; what is compiled, all that there are.
    let with_lab = !args.no_lab;
    let fetched = std::thread::spawn(move || fetch(with_lab));
    let compiled = compile(&mut count);
    let fetched = count.timed("waiting for machines", |_| fetched.join());
    // Only now, as a package manager that is cut off leaves a mess.
    compiled?;
    fetched.map_err(|_| anyhow::anyhow!("fetching machines panicked; its message is above"))??;
    run::step("tests");
    count.timed("tests", cargo_test)?;
    run::step("benches, quick");
    step(&mut count, "quick benches", bench::quick);
    if args.no_lab {
        count
            .skipped
            .push("the lab: left out by --no-lab".to_owned());
    } else {
        lab(&mut count);
    }

    if !count.skipped.is_empty() {
        println!("\nSkipped:");
        for skipped in &count.skipped {
            println!("  {skipped}");
        }
    }
    println!("\nMinutes:");
    for (name, took) in &count.times {
        println!("  {:5.1} {name}", took.as_secs_f64() / 60.0);
    }
    println!(
        "\n{} passed, {} failed, {} skipped",
        count.passed - count.said_skip.min(count.passed),
        count.failed,
        count.skipped.len()
    );
    if count.failed > 0 {
        bail!("{} tests failed; their output is above", count.failed);
    }
    Ok(())
}

/// Lints, and builds tests and benches.
fn compile(count: &mut Count) -> Result<()> {
    count.timed("lint", |_| lint::lint())?;
    run::step("building tests and benches");
    count.timed("building tests and benches", |_| bench::build_as_tests())
}

/// Fetches what tests boot, and what the lab does.
fn fetch(with_lab: bool) -> Result<()> {
    run::machines_for_tests()?;
    if with_lab {
        let progress = Progress::detect();
        // What fails of these is told by the scenario that misses it.
        if let Ok(image) = Image::ensure(&LabDir::detect(), progress) {
            let _ = image.with_kernel(OTHER_KERNEL, progress);
        }
    }
    Ok(())
}

/// Runs a step that is one test in itself.
fn step(count: &mut Count, name: &str, body: impl FnOnce() -> Result<()>) {
    match count.timed(name, |_| body()) {
        Ok(()) => count.passed += 1,
        Err(error) => {
            eprintln!("FAILED {name}: {error:#}");
            count.failed += 1;
        }
    }
}

/// Runs all unit and integration tests, passing their output on; tests that can't run here say `SKIP name: why`.
fn cargo_test(count: &mut Count) -> Result<()> {
    let log = run::target_dir().join("xtask-test.log");
    let mut cargo = run::cargo();
    cargo
        .args(["test", "--no-fail-fast"])
        .args(run::ALL)
        .args(["--", "--show-output"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = cargo.spawn().context("could not start cargo test")?;
    let out = child.stdout.take().context("cargo test has no output")?;
    let mut file = std::fs::File::create(&log)?;
    for line in BufReader::new(out).lines() {
        let line = line?;
        writeln!(file, "{line}")?;
        // The output of tests that passed is in the log; what a reader wants here is names, failures and counts.
        if line.starts_with("test ") || line.starts_with("SKIP ") {
            println!("{line}");
        }
        count.read(&line);
    }
    let status = child.wait()?;
    println!("the tests' whole output: {}", log.display());
    if !status.success() {
        if count.failed == 0 {
            bail!("cargo test ended with {status} before it ran all tests");
        }
        print!("{}", failures(&std::fs::read_to_string(&log)?));
    }
    Ok(())
}

/// The parts of cargo's output that tell of failures.
fn failures(log: &str) -> String {
    let mut shown = String::new();
    let mut within = false;
    for line in log.lines() {
        match line {
            "failures:" => within = true,
            "successes:" => within = false,
            _ if line.starts_with("test result:") => within = false,
            _ => {}
        }
        if within {
            shown.push_str(line);
            shown.push('\n');
        }
    }
    shown
}

impl Count {
    /// Runs a step and notes what it took.
    fn timed<T>(&mut self, name: &str, body: impl FnOnce(&mut Count) -> T) -> T {
        let begun = Instant::now();
        let result = body(self);
        self.times.push((name.to_owned(), begun.elapsed()));
        result
    }

    /// Takes what a program came to that ran beside others, and shows what it said.
    fn told(&mut self, name: &str, took: Duration, output: std::io::Result<Output>) {
        println!("\n{name}:");
        self.times.push((format!("  {name}"), took));
        let ended = match output {
            Ok(output) => {
                print!("{}", String::from_utf8_lossy(&output.stdout));
                eprint!("{}", String::from_utf8_lossy(&output.stderr));
                match output.status {
                    status if status.success() => return self.passed += 1,
                    status => format!("it ended with {status}; its output is above"),
                }
            }
            Err(error) => format!("could not start it: {error}"),
        };
        eprintln!("FAILED {name}: {ended}");
        self.failed += 1;
    }

    /// Takes what a line of a test runner's output tells.
    fn read(&mut self, line: &str) {
        if let Some(skipped) = line.strip_prefix("SKIP ") {
            self.skipped.push(skipped.to_owned());
            self.said_skip += 1;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            for (n, what) in result
                .split([';', '.'])
                .filter_map(|part| part.trim().split_once(' '))
            {
                match (n.parse::<u32>(), what) {
                    (Ok(n), "passed") => self.passed += n,
                    (Ok(n), "failed") => self.failed += n,
                    (Ok(n), "ignored") if n > 0 => self.skipped.push(format!("{n} ignored tests")),
                    _ => {}
                }
            }
        }
    }
}

/// The lab's scenarios that CI runs, each with the assertions it holds itself.
fn lab(count: &mut Count) {
    run::step("the lab");
    let bin = match count.timed("static binaries", |_| artifacts::build()) {
        Ok(bin) => bin,
        Err(error) => {
            eprintln!("FAILED building the static binaries: {error:#}");
            count.failed += 1;
            return;
        }
    };
    // Those on machine time come to the same however busy the real machine is, and the scheduler's tests, which take longest, don't use a whole core of it.
    let on_machine_time = [
        ("scheduler", None),
        ("scheduler", Some(OTHER_KERNEL)),
        ("smoke", None),
    ];
    let came = count.timed("lab, on machine time", |_| {
        run::side_by_side(&on_machine_time, |(scenario, kernel)| {
            let name = named(scenario, "machine", *kernel);
            if let Some(Err(gone @ LabError::NoKernel { .. })) = kernel.map(fetch_kernel) {
                return Err(format!("{name}: {gone}"));
            }
            println!("{name} ...");
            let begun = Instant::now();
            let output = lab_run(&bin, scenario, "machine", *kernel).output();
            Ok((name, begun.elapsed(), output))
        })
    });
    for one in came {
        match one {
            Ok((name, took, output)) => count.told(&name, took, output),
            Err(gone) => count.skipped.push(gone),
        }
    }
    // On the wall's time it is alone.
    let name = named("faults", "wall", None);
    step(count, &name, || {
        run::run(&mut lab_run(&bin, "faults", "wall", None))
    });
}

fn named(scenario: &str, time: &str, kernel: Option<Series>) -> String {
    let on = kernel.map_or_else(String::new, |kernel| format!(", Linux {kernel}"));
    format!("scenario {scenario} on {time} time{on}")
}

/// Fetches a kernel before it is needed: archives drop those that nobody mends any more, and that is no fault of ours.
fn fetch_kernel(series: Series) -> Result<Image, LabError> {
    let progress = Progress::detect();
    Image::ensure(&LabDir::detect(), progress)?.with_kernel(series, progress)
}

fn lab_run(bin: &std::path::Path, scenario: &str, time: &str, kernel: Option<Series>) -> Command {
    let out: PathBuf = run::target_dir().join("lab-test");
    let name = kernel.map_or_else(
        || scenario.to_owned(),
        |kernel| format!("{scenario}-{kernel}"),
    );
    let mut command = Command::new(bin.join("ostler"));
    command
        .current_dir(run::root())
        .stdin(Stdio::null())
        .args(["lab", "run"])
        .arg(format!("scenarios/{scenario}.toml"))
        .args(["--time", time])
        .arg("--bin-dir")
        .arg(bin)
        .arg("--json")
        .arg(out.join(format!("{name}.jsonl")))
        .arg("--report")
        .arg(out.join(format!("{name}.html")));
    if let Some(kernel) = kernel {
        command.args(["--kernel", &kernel.to_string()]);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_cargo_test_prints() {
        let mut count = Count::default();
        for line in [
            "running 3 tests",
            "SKIP needs_bpf: no CAP_BPF here",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.05s",
            "test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.05s",
        ] {
            count.read(line);
        }
        assert_eq!((count.passed, count.failed, count.said_skip), (4, 2, 1));
        assert_eq!(count.skipped.len(), 2);
    }

    #[test]
    fn shows_the_failures_alone() {
        let log =
            "successes:\nfine\nfailures:\n---- a stdout ----\nboom\ntest result: FAILED.\nrest\n";
        assert_eq!(failures(log), "failures:\n---- a stdout ----\nboom\n");
    }
}
