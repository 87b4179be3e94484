//! `ostler lab`: the verbs and what they print.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::binaries::Binaries;
use crate::error::LabError;
use crate::image::{Image, LabDir, Series};
use crate::machine::Time;
use crate::program::Program;
use crate::progress::Progress;
use crate::run::RunResult;
use crate::scenario::{self, FaultKind};
use crate::stdout::print;
use crate::trace::TraceEvent;
use crate::{packages, run, schedulers, setup, up};
use ostler_outcome::gather;
use ostler_outcome::order;
use ostler_outcome::report::Clock;

/// Builds an emulated KVM host and tries policies in it.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Installs what this machine lacks (or says what an administrator must install).
    Setup,
    /// Builds the lab's image, or goes on building it.
    Image,
    /// Boots the emulated host and its guests, and leaves them up.
    Up(World),
    /// Runs a scenario: every policy under every load, in interleaved rounds.
    Run(RunArgs),
    /// Sums a run of before up again: of one that was cut off, what was measured until then.
    Report(ReportArgs),
    /// A shell in the emulated host that is up; or, given a command or a script on standard input, what that prints.
    Shell {
        /// A command to run instead of an interactive shell.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Ends the emulated host that is up.
    Down,
    /// Checks a scenario and says what it would run.
    Check {
        /// The scenario.
        scenario: PathBuf,
    },
}

/// A scenario, and what goes into its host.
#[derive(Debug, Args)]
pub struct World {
    /// The scenario.
    #[arg(default_value = "scenarios/smoke.toml")]
    scenario: PathBuf,
    /// Take the emulated host's programs from this folder instead of building them.
    #[arg(long)]
    bin_dir: Option<PathBuf>,
    /// The steward's binary; this program unless told.
    #[arg(long)]
    ostler: Option<PathBuf>,
    /// Boot host and guests with the newest kernel of this series, such as 6.18, instead of the image's own.
    #[arg(long, value_name = "SERIES")]
    kernel: Option<Series>,
    /// Whose time the emulated host lives in: its own, in which figures are the same however busy the real machine is, or the wall's,
    /// which takes half as long to get through.
    #[arg(long, value_enum, default_value_t = Clock::Machine)]
    time: Clock,
}

impl World {
    /// Whose time it is. One that stays up has somebody at it, for whom idle time must pass as it does in earnest.
    fn time(&self, binaries: &Binaries, stay: bool, profile: bool) -> anyhow::Result<Time> {
        if self.time == Clock::Wall {
            let plugin = binaries.plugin.as_ref().map(std::path::absolute);
            return Ok(Time::Wall {
                plugin: plugin.transpose()?,
            });
        }
        let plugin = binaries.plugin.as_ref().context(
            "there is no libostler_machine_time.so in --bin-dir, which machine time needs; `cargo xtask build` makes it, and \
             `--time wall` does without",
        )?;
        let plugin = std::path::absolute(plugin)
            .with_context(|| format!("could not find {}", plugin.display()))?;
        Ok(Time::Machine {
            plugin,
            pace: stay,
            profile,
        })
    }
}

/// How a scenario is run.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    world: World,
    #[command(flatten)]
    out: Out,
    /// Only these policies; what the scenario expects of others is not asked then.
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
    /// Only these loads, by their number in the scenario, from 1 on, or by their guest; what the scenario expects is of all, and not asked then.
    #[arg(long, value_name = "LOADS", value_delimiter = ',')]
    loads: Vec<String>,
    /// So many rounds instead of the scenario's.
    #[arg(long)]
    rounds: Option<u32>,
    /// Seed of the load.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write down these events of the emulated host's kernel while a load is on, such as sched_switch,kvm:kvm_exit: each cell's are its
    /// `results/cell-N/trace.txt`. They cost the host time: a cell with a trace isn't measured like one without.
    #[arg(long, value_name = "EVENTS", value_delimiter = ',')]
    trace: Vec<TraceEvent>,
    /// Count where the emulated host's instructions go while a load is on, by function of its kernel and by BPF program: each cell's are its
    /// `results/cell-N/profile.tsv`. It costs the host nothing: figures are those of a run without; only that takes longer.
    #[arg(long)]
    profile: bool,
}

/// Which runs are summed up.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Their folders, as `ostler lab run` names them; several are told beside each other, in a report that is left in the first.
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    out: Out,
}

/// Where results go.
#[derive(Debug, Args)]
pub struct Out {
    /// Write one JSON line per policy, and one per cell, to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the report, one HTML file, here too.
    #[arg(long)]
    report: Option<PathBuf>,
}

/// Carries a verb out.
pub fn run(command: LabCommand) -> anyhow::Result<ExitCode> {
    crate::catch_interrupts();
    let progress = Progress::detect();
    let lab = LabDir::detect();
    match command {
        LabCommand::Setup => {
            let installed = setup::ensure(&packages::all(), progress)?;
            match installed.len() {
                0 => print("everything the lab needs is installed\n")?,
                n => print(&format!(
                    "installed {n} packages: {}\n",
                    installed.join(" ")
                ))?,
            }
        }
        LabCommand::Image => {
            let image = Image::ensure(&lab, progress)?;
            print(&format!("{}\n", image.folder.display()))?;
        }
        LabCommand::Up(world) => {
            let (image, binaries, program) = prepare(&lab, &world, true, progress, |_| Ok(()))?;
            let time = world.time(&binaries, true, false)?;
            let state = up::up(&lab, &image, &binaries, &program, &time, progress)?;
            print(&format!(
                "{} is up; `ostler lab shell` enters it, `ostler lab down` ends it\n",
                state.scenario
            ))?;
        }
        LabCommand::Run(args) => return run_scenario(&lab, &args, progress),
        LabCommand::Report(args) => {
            let summed = args.runs.iter().map(|folder| {
                run::report(folder).with_context(|| {
                    format!(
                        "{} can't be summed up; name the folder of a run, such as {}/0001-smoke",
                        folder.display(),
                        lab.runs().display()
                    )
                })
            });
            let result = run::together(summed.collect::<anyhow::Result<Vec<_>>>()?)?
                .context("there is no run to sum up")?;
            return show(&result, &args.out);
        }
        LabCommand::Shell { command } => return shell(&lab, &command),
        LabCommand::Down => {
            let state = up::down(&lab)?;
            print(&format!(
                "{} is down; its logs are in {}\n",
                state.scenario,
                state.run.display()
            ))?;
        }
        LabCommand::Check { scenario: file } => {
            let program = Program::new(scenario::load(&file)?, false);
            for cell in program.cells() {
                print(&format!("{:3}  {cell}\n", cell.index))?;
            }
            for fault in &program.scenario.faults {
                print(&format!("fault {}, {} times\n", fault.kind, fault.times))?;
            }
            print(&format!("about {:.0} s\n", program.scenario.expected_s()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn shell(lab: &LabDir, command: &[String]) -> anyhow::Result<ExitCode> {
    let script = if !command.is_empty() {
        command.join(" ")
    } else if std::io::stdin().is_terminal() {
        up::shell(lab)?;
        return Ok(ExitCode::SUCCESS);
    } else {
        std::io::read_to_string(std::io::stdin())
            .context("could not read the script from standard input")?
    };
    Ok(up::exec(lab, &script, &mut std::io::stdout())?.into())
}

fn prepare(
    lab: &LabDir,
    world: &World,
    stay: bool,
    progress: Progress,
    choose: impl FnOnce(&mut Program) -> anyhow::Result<()>,
) -> anyhow::Result<(Image, Binaries, Program)> {
    // The cheapest first: a scenario with a mistake is refused before anything is built.
    let mut program = Program::new(scenario::load(&world.scenario)?, stay);
    choose(&mut program)?;
    let mut binaries = match &world.bin_dir {
        Some(folder) => {
            let mut binaries = Binaries::in_folder(folder)?;
            binaries.ostler = world.ostler.clone().or(binaries.ostler);
            binaries
        }
        None => Binaries::build(world.ostler.clone(), progress)?,
    };
    for policy in &program.scenario.policies {
        if let Some(scheduler) = &policy.host_scheduler {
            let path = schedulers::ensure(lab, scheduler, progress)?;
            if !binaries.schedulers.contains(&path) {
                binaries.schedulers.push(path);
            }
        }
    }
    let wants_tests = |fault: &crate::scenario::Fault| fault.kind == FaultKind::KernelTests;
    if binaries.tests.is_empty() && program.scenario.faults.iter().any(wants_tests) {
        binaries.build_tests(progress)?;
    }
    let mut image = Image::ensure(lab, progress)?;
    if let Some(series) = world.kernel {
        image = image.with_kernel(series, progress)?;
    }
    Ok((image, binaries, program))
}

/// What of a scenario is run, by the command line.
fn choose(program: &mut Program, args: &RunArgs) -> anyhow::Result<()> {
    program.seed = args.seed;
    program.trace.clone_from(&args.trace);
    program.profile = args.profile;
    if let Some(rounds) = args.rounds {
        anyhow::ensure!(
            (1..=100).contains(&rounds),
            "--rounds {rounds}: write 1 to 100"
        );
        program.scenario.rounds = rounds;
    }
    for wanted in &args.policies {
        let known: Vec<_> = program
            .scenario
            .policies
            .iter()
            .map(|p| p.name.as_str())
            .collect();
        anyhow::ensure!(
            known.contains(&wanted.as_str()),
            "--policies {wanted}: the scenario has {}",
            known.join(", ")
        );
    }
    if !args.policies.is_empty() {
        program
            .scenario
            .policies
            .retain(|p| args.policies.contains(&p.name));
        program.scenario.expectations.retain(|e| {
            let named = [Some(&e.policy), e.of.as_ref()];
            named
                .into_iter()
                .flatten()
                .all(|name| args.policies.contains(name))
        });
    }
    program.loads = scenario::chosen_loads(&program.scenario, &args.loads)?;
    let whole = program.cells().len() == order::cells(&program.scenario).len();
    if !whole {
        program.scenario.expectations.clear();
    }
    Ok(())
}

fn run_scenario(lab: &LabDir, args: &RunArgs, progress: Progress) -> anyhow::Result<ExitCode> {
    // Before an image is made for it.
    anyhow::ensure!(
        !(args.profile && args.world.time == Clock::Wall),
        "--profile with --time wall: only a machine on its own time counts its instructions; leave one of them out"
    );
    let chosen = |program: &mut Program| choose(program, args);
    let (image, binaries, program) = prepare(lab, &args.world, false, progress, chosen)?;
    let needs_steward = program
        .scenario
        .policies
        .iter()
        .any(|p| p.steward.is_some())
        || program
            .scenario
            .faults
            .iter()
            .any(|f| f.kind.needs().is_some());
    anyhow::ensure!(
        !needs_steward || binaries.ostler.is_some(),
        "the scenario has a steward; name its binary by --ostler"
    );
    anyhow::ensure!(
        program.scenario.loads.is_empty() || binaries.load.is_some(),
        "the scenario has loads, and there is no ostler-load in --bin-dir"
    );
    let time = args.world.time(&binaries, false, args.profile)?;
    let attempt = || run::run(lab, &image, &binaries, &program, &time, progress);
    // The emulator itself may fail, once in a while. What we did to it fails again.
    let result = match attempt() {
        Err(lost @ LabError::Host { .. }) => {
            crate::tell!("lab: {lost}; the whole run is tried once more");
            attempt()?
        }
        result => result?,
    };
    show(&result, &args.out)
}

/// Shows what came of a run, and writes it where it is wanted.
fn show(result: &RunResult, out: &Out) -> anyhow::Result<ExitCode> {
    let lines = gather::result_lines(&result.summaries);
    if let Some(path) = &out.json {
        make_folder_of(path)?;
        run::write_lines(path, &lines)?;
    }
    let mut report = &result.report;
    if let Some(path) = &out.report {
        make_folder_of(path)?;
        std::fs::copy(report, path)
            .with_context(|| format!("could not write the report to {}", path.display()))?;
        report = path;
    }
    for line in &lines {
        print(&(serde_json::to_string(line).context("a line is always JSON")? + "\n"))?;
    }
    if let Some((passed, failed)) = result.faults {
        print(&format!("{passed} passed, {failed} failed\n"))?;
    }
    for problem in &result.problems {
        crate::tell!("lab: {problem}");
    }
    crate::tell!("lab: report: {}", report.display());
    crate::tell!("lab: everything is kept in {}", result.folder.display());
    Ok(if result.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn make_folder_of(path: &std::path::Path) -> anyhow::Result<()> {
    match path.parent() {
        Some(folder) => std::fs::create_dir_all(folder)
            .with_context(|| format!("could not create the folder {}", folder.display())),
        None => Ok(()),
    }
}
