//! Why a host can't be sensed at all. What is merely missing is a capability, not an error.

use std::io;
use std::path::{Path, PathBuf};

use ostler_model::ParseCpuSetError;

/// Why a [`crate::Sensor`] can't be made or can't go on.
#[derive(Debug, thiserror::Error)]
pub enum SenseError {
    /// A file that every Linux has can't be read.
    #[error("can't read {path}; is it mounted, and does ostler run as root?")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file doesn't hold a list of CPUs.
    #[error("{path} holds no list of CPUs")]
    Cpus {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: ParseCpuSetError,
    },
    /// No CPU is online.
    #[error("{path} names no CPU; is it the host's /sys?")]
    NoCpus {
        /// Which file.
        path: PathBuf,
    },
    /// A pattern for QMP sockets can't be used.
    #[error(
        "`{pattern}` is no pattern for QMP sockets: it must be an absolute path, in which `*` may stand for any text within a name"
    )]
    Pattern {
        /// The pattern.
        pattern: String,
    },
    /// Something that only an exhausted system refuses.
    #[error("can't {what}; the system is out of resources (see `ulimit -n`)")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// libvirt was asked for and is not there.
    #[error("can't use libvirt at {uri}: {why}")]
    Libvirt {
        /// The connection asked for.
        uri: String,
        /// What is wrong, and what to do.
        why: String,
    },
}

impl SenseError {
    pub(crate) fn read(path: &Path, source: io::Error) -> SenseError {
        SenseError::Read {
            path: path.to_owned(),
            source,
        }
    }
}
