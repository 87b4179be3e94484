//! What can go wrong in the lab. Each message says what was tried, on what, and what to do about it.

use std::path::{Path, PathBuf};

use crate::scenario::ScenarioError;

/// Why the lab could not do something.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file or folder could not be used.
    #[error("could not {doing} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A program could not be started.
    #[error(
        "could not start `{program}`: is it installed? `ostler lab setup` lists what the lab needs"
    )]
    Start {
        /// The program.
        program: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A program that the lab runs failed.
    #[error("{what} failed ({status}); its last words:\n{last_words}\n{remedy}")]
    Command {
        /// What it was to do.
        what: String,
        /// How it ended.
        status: String,
        /// The end of its output.
        last_words: String,
        /// What the user can do.
        remedy: String,
    },
    /// Packages are missing and we may not install them.
    #[error(
        "the lab needs {} Debian packages that this machine lacks, and only an administrator can install them. \
         Ask for:\n\n    apt-get update\n    apt-get install --no-install-recommends -y {}\n",
        missing.len(), missing.join(" ")
    )]
    Missing {
        /// The packages.
        missing: Vec<String>,
    },
    /// Root is needed.
    #[error(
        "{what} needs root ({why}); run the same command as root, or have an administrator run:\n\n    {command}\n"
    )]
    NeedsRoot {
        /// What was tried.
        what: &'static str,
        /// Why root.
        why: &'static str,
        /// The exact command.
        command: String,
    },
    /// The machine's apt configuration names no Debian mirror.
    #[error(
        "no Debian mirror in {searched}: the lab takes its mirror and keyring from there; \
         add an entry of type `deb` for suite `{suite}` with component `main`"
    )]
    NoMirror {
        /// Where we looked.
        searched: String,
        /// The suite looked for.
        suite: String,
    },
    /// The archive has no kernel that will do.
    #[error(
        "{suites} at {mirror} offers no kernel {wanted}, whole: {found}; \
         name a series that it has, or use a mirror that carries the full suite"
    )]
    NoKernel {
        /// The suites.
        suites: String,
        /// The mirror.
        mirror: String,
        /// Which would do.
        wanted: String,
        /// What there was.
        found: String,
    },
    /// A file that must be in the image is not.
    #[error("{what} is missing from {}; remove that folder and run `ostler lab image` again", tree.display())]
    Incomplete {
        /// What is missing.
        what: String,
        /// Where it was looked for.
        tree: PathBuf,
    },
    /// A folder that should hold our programs doesn't.
    #[error("{what} is missing from {}; `cargo xtask build` makes it, and prints the folder to name", folder.display())]
    NoProgram {
        /// What is missing.
        what: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// A scenario was refused.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The emulated host did not get as far as it must.
    #[error(
        "the emulated host {why} while {waiting_for} (after {after_s} s); serial log: {}\n{last_words}",
        serial_log.display()
    )]
    Host {
        /// What it did: ended, hung, reported an error.
        why: String,
        /// What we were waiting for.
        waiting_for: String,
        /// Seconds since it was started.
        after_s: u64,
        /// Its serial log.
        serial_log: PathBuf,
        /// The end of that log.
        last_words: String,
    },
    /// The user asked us to stop.
    #[error("interrupted; every process of the lab was ended")]
    Interrupted,
    /// A lab is running already, or none is.
    #[error("{0}")]
    State(String),
    /// A value could not be written as JSON or TOML, or read back.
    #[error("could not {doing}: {why}")]
    Format {
        /// What was tried.
        doing: String,
        /// What is wrong.
        why: String,
    },
}

/// `Result` with the lab's error.
pub type Result<T, E = LabError> = std::result::Result<T, E>;

/// Names what was tried on which path when an IO call fails.
pub(crate) trait IoContext<T> {
    /// Turns an IO error into a [`LabError::Io`].
    fn on(self, doing: &'static str, path: impl AsRef<Path>) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> IoContext<T> for std::result::Result<T, E> {
    fn on(self, doing: &'static str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|source| LabError::Io {
            doing,
            path: path.as_ref().to_owned(),
            source: source.into(),
        })
    }
}
