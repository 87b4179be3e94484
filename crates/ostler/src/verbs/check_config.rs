//! `ostler check-config`: everything that is wrong with a configuration, at once.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use ostler_model::config;
use serde::Serialize;

use super::{EXIT_CONFIG, read_config};
use crate::output::{print, print_json};
use crate::wire;

/// Check a configuration: every mistake in it is told, with its line and the remedy
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ostler check-config /etc/ostler/ostler.toml\n  \
    ostler check-config --this-host ostler.toml     # its cores and NICs too\n  \
    ostler check-config --print ostler.toml         # every key spelt out, defaults included\n\n\
    Exit codes: 0 accepted; 4 refused; 1 the file can't be read.")]
pub struct Args {
    /// The file; - is standard input
    file: PathBuf,
    /// Check cores and NICs against this host too
    #[arg(long)]
    this_host: bool,
    /// Print the accepted configuration with every key spelt out
    #[arg(long, conflicts_with = "json")]
    print: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Result<'a> {
    accepted: bool,
    errors: Vec<Error<'a>>,
}

#[derive(Serialize)]
struct Error<'a> {
    file: &'a str,
    line: usize,
    column: usize,
    what: &'a str,
    remedy: &'a str,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let facts = args.this_host.then(wire::facts).transpose()?;
    let read = if args.file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin()
            .take(config::TEXT_BYTES_MAX as u64 + 1)
            .read_to_string(&mut text)
            .context("could not read a configuration from standard input")?;
        config::parse(&text, "standard input", facts.as_ref()).map_err(anyhow::Error::from)
    } else {
        read_config(&args.file, facts.as_ref())
    };
    let errors = match read {
        Ok(config) => {
            if args.json {
                print_json(&Result {
                    accepted: true,
                    errors: Vec::new(),
                })?;
            } else if args.print {
                print(&config::render(&config))?;
            } else {
                print(&format!("{}: accepted\n", args.file.display()))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => error,
    };
    match errors.downcast_ref::<config::ConfigErrors>() {
        Some(errors) if args.json => {
            print_json(&Result {
                accepted: false,
                errors: errors
                    .iter()
                    .map(|error| Error {
                        file: &error.file,
                        line: error.line,
                        column: error.column,
                        what: &error.what,
                        remedy: &error.remedy,
                    })
                    .collect(),
            })?;
            Ok(ExitCode::from(EXIT_CONFIG))
        }
        _ => Err(errors),
    }
}
