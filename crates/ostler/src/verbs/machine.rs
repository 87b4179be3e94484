//! `ostler machine`: simulated machines of one or two instruction sets. The launcher is a room of its own; here it meets the lab,
//! which has QEMUs that are known.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use ostler_lab::image::{Emulators as Tree, LabDir};
use ostler_lab::progress::Progress;
use ostler_machine_launch::{Emulators, LaunchError, Options, World, WorldError, layout, ready};

use super::EXIT_CONFIG;
use crate::output::print;

/// Ended by a signal.
const EXIT_INTERRUPTED: u8 = 130;
/// The library that keeps machines' time.
const PLUGIN: &str = "libostler_machine_time.so";

/// Run simulated machines: x86-64, AArch64, or one of each that share their physical memory
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ostler machine setup                      # fetches Debian's QEMUs, once\n  \
    ostler machine check two.toml\n  \
    ostler machine run two.toml\n\n\
    Exit codes: 0 all machines have ended by themselves; 1 failed (the message says what to do); 4 the description was refused; 130 \
    interrupted.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the machines that a file describes until they end, showing their serial lines
    Run {
        #[command(flatten)]
        described: Described,
        /// End them after so many seconds of real time
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<u64>,
    },
    /// Check a description, and whether all that it needs is there; start nothing
    Check {
        #[command(flatten)]
        described: Described,
    },
    /// Fetch the QEMUs that machines run in (root)
    Setup,
}

#[derive(Debug, clap::Args)]
struct Described {
    /// The description
    file: PathBuf,
    /// The plugin that keeps time [default: beside this program]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// A tree that Debian's QEMUs were unpacked into [default: what `setup` made, else this machine's own QEMUs]
    #[arg(long, value_name = "FOLDER")]
    tree: Option<PathBuf>,
}

impl Described {
    fn emulators(&self) -> anyhow::Result<Emulators> {
        let plugin = match &self.plugin {
            Some(plugin) => plugin.clone(),
            None => std::env::current_exe()
                .context("could not find this program's folder, where the plugin should be")?
                .with_file_name(PLUGIN),
        };
        let plugin = std::path::absolute(&plugin)
            .with_context(|| format!("could not find {}", plugin.display()))?;
        let tree = self.tree.clone().or_else(|| {
            let made = Tree::find(&LabDir::detect());
            made.map(|tree| tree.root().to_owned())
        });
        Ok(match tree {
            Some(root) => Emulators::in_tree(&root, plugin),
            None => Emulators::installed(plugin),
        })
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let done = match &args.command {
        Command::Setup => {
            let tree = Tree::ensure(&LabDir::detect(), Progress::detect())?;
            print(&format!("the QEMUs are in {}\n", tree.root().display()))?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Check { described } => check(described),
        Command::Run { described, timeout } => start(described, *timeout),
    };
    let Err(error) = done else {
        return Ok(ExitCode::SUCCESS);
    };
    let code = if error.is::<WorldError>() {
        EXIT_CONFIG
    } else if matches!(error.downcast_ref(), Some(LaunchError::Interrupted)) {
        EXIT_INTERRUPTED
    } else {
        return Err(error);
    };
    ostler_lab::tell!("ostler: {error:#}");
    Ok(ExitCode::from(code))
}

fn start(described: &Described, timeout_s: Option<u64>) -> anyhow::Result<()> {
    let world = World::load(&described.file)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        // The second one ends us at once, and the kernel our machines.
        signal_hook::flag::register_conditional_shutdown(
            signal,
            i32::from(EXIT_INTERRUPTED),
            Arc::clone(&interrupted),
        )
        .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
        .context("could not listen for signals")?;
    }
    let options = Options {
        timeout: timeout_s.map(Duration::from_secs),
        interrupted,
        quiet: false,
    };
    ostler_machine_launch::run(&world, &described.emulators()?, &options)?;
    Ok(())
}

fn check(described: &Described) -> anyhow::Result<()> {
    let world = World::load(&described.file)?;
    let emulators = described.emulators()?;
    ready::check(&world, &emulators)?;
    for (number, machine) in world.machines.iter().enumerate() {
        let emulator = emulators.of(machine.isa);
        print(&format!(
            "{}: {} with {} core{}, in {}\n",
            machine.name,
            machine.isa,
            machine.cores,
            if machine.cores == 1 { "" } else { "s" },
            emulator.version()?
        ))?;
        for range in layout::seen(&world.ranges, number, machine.isa, world.model) {
            let whose = match range.owner {
                layout::Owner::Pool => "the pool's",
                layout::Owner::Machine(owner) if owner == number => "its own",
                layout::Owner::Machine(_) => "the other's",
            };
            print(&format!("  {range}: {} MiB, {whose}\n", range.bytes >> 20))?;
        }
    }
    if world.models_memory() {
        for machine in &world.machines {
            let part = machine.part.as_deref().unwrap_or_default();
            print(&format!(
                "{}: accesses to memory cost what a {part} pays\n",
                machine.name
            ))?;
        }
    }
    if world.is_fused() {
        print(&format!(
            "in step within {} ns; interrupts between them after {} ns\n",
            world.time.quantum_ns, world.time.interrupt_ns
        ))?;
    }
    Ok(())
}
