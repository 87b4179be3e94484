//! The project's own chores: `cargo xtask demo | test | bench | paper | gate | lint | build | setup`.
//!
//! Each verb does all of its set-up itself, so that a stranger needs one command. It depends on `ostler-lab` for the list of
//! packages and the lab's image, and on no other room.

mod artifacts;
mod bench;
mod demo;
mod gate;
mod lint;
mod run;
mod sources;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own chores.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show it: boot an emulated KVM host with real guests under load, let ostler look after them, write a report.
    Demo(demo::Args),
    /// Run all that CI runs: lints, tests, quick benches, and the lab.
    Test(test::Args),
    /// Run the benches: a folder each in bench/.
    Bench(bench::Args),
    /// Draw the papers' figures anew: a folder each in bench/paper.
    Paper(bench::PaperArgs),
    /// Boot the emulated host many times, and fail if any boot hangs.
    Gate(gate::Args),
    /// Check formats, lints, and which room may depend on which.
    Lint,
    /// Build the static binaries that the lab, and a user, install.
    Build,
    /// Install what the other verbs need (root), or say what an administrator must.
    Setup,
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Demo(args) => demo::demo(&args),
        Verb::Test(args) => test::test(&args),
        Verb::Bench(args) => bench::bench(&args),
        Verb::Paper(args) => bench::paper(&args),
        Verb::Gate(args) => gate::gate(&args),
        Verb::Lint => lint::lint(),
        Verb::Build => run::setup_for_building()
            .and_then(|()| artifacts::build())
            .map(|dir| println!("built into {}", dir.display())),
        Verb::Setup => run::setup(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
