//! What can go wrong before or around a run. Faults *during* a run are results, not errors: they are counted in the
//! windows, because a generator that stops when its server misbehaves measures only servers that behave.

use std::io;
use std::net::SocketAddr;

/// Why a run could not be prepared or carried through.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The rate sequence was not understood.
    #[error("step {text:?}: {why}; write RATExSECONDS, as in 500x5,1000x2.5")]
    Step {
        /// The piece of text that was refused.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A setting cannot be carried out.
    #[error("{name} = {value}: {why}")]
    Setting {
        /// The option's name.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would be accepted.
        why: &'static str,
    },
    /// The server could not be reached at the start.
    #[error("connecting to {target} (connection {index}); is the server listening there?")]
    Connect {
        /// Where we tried.
        target: SocketAddr,
        /// Which of the connections failed.
        index: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel gives us no socket for ICMP echo.
    #[error(
        "opening an ICMP socket to {target}; where it may not be opened, `sysctl net.ipv4.ping_group_range='0 2147483647'` allows it"
    )]
    Icmp {
        /// Whom we wanted to ask.
        target: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The preload did not finish.
    #[error(
        "preloading {target}: {what}; check the server's memory limit, or run without --preload"
    )]
    Preload {
        /// Where we tried.
        target: SocketAddr,
        /// How far it came and what was met.
        what: String,
        /// What the kernel said, if it was an IO error.
        source: Option<io::Error>,
    },
    /// The event loop's own machinery failed.
    #[error("{what} failed in the event loop")]
    Loop {
        /// Which call.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A worker thread ended without finishing its windows.
    #[error(
        "a load thread ended before its schedule did; results would be partial, so there are none"
    )]
    Worker,
}
