//! What can go wrong with a record.

use std::path::PathBuf;

/// Why a record could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file can't be opened.
    #[error(
        "could not open the record {path}; check that it is there and that you may read it, or name another with --record"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        #[source]
        source: rusqlite::Error,
    },
    /// The file's folder can't be made, or a damaged file can't be moved aside.
    #[error("could not prepare the place of the record {path}; check its folder's permissions")]
    Place {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The file is no record.
    #[error(
        "{path} is not a record of ostler, or is damaged beyond reading; move it aside and a new one is begun"
    )]
    NotARecord {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by another version.
    #[error(
        "the record {path} has format {found}, and this ostler reads {known}; read it with the ostler that wrote it"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The format known here.
        known: i64,
    },
    /// SQLite failed.
    #[error("the record {path} failed while {doing}")]
    Database {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What SQLite says.
        #[source]
        source: rusqlite::Error,
    },
    /// A part of the record can't be decoded; the rest can be read.
    #[error("{what} of the record is damaged and was left out: {why}")]
    Damaged {
        /// Which part.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// A period is too large to be kept.
    #[error("a block of {bytes} bytes exceeds the {max} bytes that a block may have")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The thread that writes can't be started.
    #[error("could not start the recorder's thread")]
    Thread(#[source] std::io::Error),
}
