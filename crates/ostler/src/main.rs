//! The steward's program: one module per verb in [`verbs`], the control loop in [`steward`], the API in [`api`]; the rooms of sensing, deciding and
//! acting meet in [`wire`] and nowhere else.

mod api;
mod output;
mod steward;
mod verbs;
mod wire;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use ostler_outlet::{Log, Outlet};

/// Divides a KVM host's cores between its guests' vCPUs and their network queues, and says why.
#[derive(Debug, Parser)]
#[command(
    name = "ostler",
    version,
    after_help = "Exit codes: 0 done; 1 failed (the message says what to do); 2 wrong usage; 3 no steward is running; \
                  4 the configuration was refused; 5 a replayed decision came out differently.\n\n\
                  Every verb has --help with examples. Messages go to standard error, results to standard output; \
                  OSTLER_LOG=debug says more."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(verbs::run::Args),
    Plan(verbs::plan::Args),
    Explain(verbs::explain::Args),
    Status(verbs::status::Args),
    Top(verbs::top::Args),
    Undo(verbs::undo::Args),
    CheckConfig(verbs::check_config::Args),
    Replay(verbs::replay::Args),
    Calibrate(verbs::calibrate::Args),
    Guest(verbs::guest::Args),
    Lab(verbs::lab::Args),
    Sim(verbs::sim::Args),
    Machine(verbs::machine::Args),
}

fn main() -> ExitCode {
    let Cli { verb } = Cli::parse();
    let outlet = match Outlet::start("log", std::io::stderr()) {
        Ok(outlet) => Arc::new(outlet),
        Err(error) => {
            return verbs::fail(
                &anyhow::Error::new(error)
                    .context("could not start the thread that writes the log"),
            );
        }
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("OSTLER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Log::by(Arc::clone(&outlet)))
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        // It would tell of a log that can't be written by a macro that panics: whose log nobody reads any more goes on.
        .log_internal_errors(false)
        .init();
    let result = match verb {
        Verb::Run(args) => verbs::run::run(&args),
        Verb::Plan(args) => verbs::plan::run(&args),
        Verb::Explain(args) => verbs::explain::run(&args),
        Verb::Status(args) => verbs::status::run(&args),
        Verb::Top(args) => verbs::top::run(&args),
        Verb::Undo(args) => verbs::undo::run(&args),
        Verb::CheckConfig(args) => verbs::check_config::run(&args),
        Verb::Replay(args) => verbs::replay::run(&args),
        Verb::Calibrate(args) => verbs::calibrate::run(&args),
        Verb::Guest(args) => verbs::guest::run(args),
        Verb::Lab(args) => verbs::lab::run(args),
        Verb::Sim(args) => verbs::sim::run(args),
        Verb::Machine(args) => verbs::machine::run(&args),
    };
    outlet.close();
    match result {
        Ok(code) => code,
        Err(error) => verbs::fail(&error),
    }
}
