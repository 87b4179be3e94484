//! The operator's TOML becomes an [`Intent`] and a [`DaemonConfig`], or a list of everything that is wrong with it.
//!
//! A configuration is read once, whole: every mistake in it is reported in one go, each with its file, line and column, what is
//! wrong and what to write instead. Nothing is guessed: a duration has a unit, a key is known, a core has one owner. That is why the text is
//! walked by hand over TOML's spanned values and not derived, which would stop at the first mistake and forget where a value stood.
//!
//! [`parse`] takes the host's [`Facts`] where they are known, and then checks cores and NICs against them too. [`render`] is its inverse.

mod daemon;
mod error;
mod layers;
mod read;
mod render;
mod rules;
mod schema;
mod section;
mod terms;
#[cfg(test)]
mod tests;

use crate::{Facts, Intent};

pub use daemon::{
    AgentConfig, ApiConfig, DaemonConfig, DiscoveryConfig, JournalConfig, RecordConfig,
};
pub use error::{ConfigError, ConfigErrors, ERRORS_MAX};
pub use render::render;

/// The longest configuration that is read, in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// All that a configuration says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// What the operator wants decided.
    pub intent: Intent,
    /// Where the daemon finds and keeps things.
    pub daemon: DaemonConfig,
}

/// Reads a configuration. `file` only names it in errors. With `facts`, cores and NICs are checked against the host too.
pub fn parse(text: &str, file: &str, facts: Option<&Facts>) -> Result<Config, ConfigErrors> {
    schema::parse(text, file, facts)
}

/// For fuzzing: any bytes are a configuration or a list of errors, never a panic, and what was read renders to what reads the same.
///
/// # Panics
///
/// When that does not hold.
pub fn fuzz_entry(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match parse(text, "fuzz.toml", None) {
        Ok(config) => {
            let again = parse(&render(&config), "rendered.toml", None);
            assert_eq!(
                again.as_ref(),
                Ok(&config),
                "a rendered configuration reads differently"
            );
        }
        Err(errors) => {
            assert!(errors.iter().count() > 0, "refused without a reason");
            assert!(!errors.to_string().is_empty());
        }
    }
}
