//! The program's verbs, a module each, and what they share: finding the configuration and ending with the right code.

pub mod calibrate;
pub mod check_config;
pub mod explain;
pub mod guest;
pub mod lab;
pub mod machine;
pub mod plan;
pub mod replay;
pub mod run;
pub mod sim;
pub mod status;
pub mod top;
pub mod undo;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use ostler_model::Facts;
use ostler_model::config::{self, Config, ConfigErrors};

use crate::api::client::NotRunning;

/// No steward is running.
pub const EXIT_NOT_RUNNING: u8 = 3;
/// The configuration was refused.
pub const EXIT_CONFIG: u8 = 4;
/// A replayed decision came out differently.
pub const EXIT_DIFFERENT: u8 = 5;

/// Where the configuration is unless told.
pub const CONFIG_FILE: &str = "/etc/ostler/ostler.toml";

/// Which configuration.
#[derive(Debug, Clone, clap::Args)]
pub struct ConfigArg {
    /// The configuration [default: /etc/ostler/ostler.toml where it is there, else every key at its default]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// A configuration and where it came from.
#[derive(Debug)]
pub struct Loaded {
    /// What it says.
    pub config: Config,
    /// Its file; `None` for the defaults.
    pub file: Option<PathBuf>,
}

impl ConfigArg {
    /// The file to read; `None` when none was named and the usual one is not there.
    pub fn file(&self) -> Option<PathBuf> {
        match &self.config {
            Some(file) => Some(file.clone()),
            None => Path::new(CONFIG_FILE)
                .exists()
                .then(|| PathBuf::from(CONFIG_FILE)),
        }
    }

    /// Reads the configuration, and checks it against the host where its facts are given.
    pub fn load(&self, facts: Option<&Facts>) -> anyhow::Result<Loaded> {
        let Some(file) = self.file() else {
            return Ok(Loaded {
                config: Config::default(),
                file: None,
            });
        };
        let config = read_config(&file, facts)?;
        Ok(Loaded {
            config,
            file: Some(file),
        })
    }
}

/// Reads a configuration from a file.
pub fn read_config(file: &Path, facts: Option<&Facts>) -> anyhow::Result<Config> {
    let bytes = std::fs::read(file).with_context(|| {
        format!(
            "could not read the configuration {}; check its path and permissions",
            file.display()
        )
    })?;
    // Bytes that are no UTF-8 are shown as such where they stand.
    let text = String::from_utf8_lossy(&bytes);
    Ok(config::parse(&text, &file.display().to_string(), facts)?)
}

/// Which steward to ask.
#[derive(Debug, Clone, clap::Args)]
pub struct SocketArg {
    /// The steward's socket [default: the one that the configuration names]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArg,
}

impl SocketArg {
    /// The socket's path.
    pub fn path(&self) -> anyhow::Result<PathBuf> {
        match &self.socket {
            Some(path) => Ok(path.clone()),
            None => Ok(self.config.load(None)?.config.daemon.api.socket.into()),
        }
    }

    /// The configuration that would name it.
    pub fn config(&self) -> anyhow::Result<Config> {
        Ok(self.config.load(None)?.config)
    }
}

/// The last word on standard error; nobody need be there to read it.
fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Tells what went wrong, and ends with the code that says which kind it is.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    if let Some(errors) = error.downcast_ref::<ConfigErrors>() {
        let count = errors.iter().count();
        let s = if count == 1 { "" } else { "s" };
        say(format_args!(
            "{errors}\n\nthe configuration is refused: {count} error{s}"
        ));
        return ExitCode::from(EXIT_CONFIG);
    }
    say(format_args!("ostler: {error:#}"));
    if error.downcast_ref::<NotRunning>().is_some() {
        return ExitCode::from(EXIT_NOT_RUNNING);
    }
    ExitCode::FAILURE
}
