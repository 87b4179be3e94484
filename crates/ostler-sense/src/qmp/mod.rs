//! Guests found by their QMP sockets.
//!
//! QMP (QEMU Machine Protocol) is JSON, one object per line. Whoever runs a guest owns the other end, so nothing it
//! says is trusted further than it can be checked: the process is the socket's peer as the kernel knows it, each vCPU
//! thread must be one of that process's threads, each tap one that the process has open; lines, lists and texts are
//! bounded; and a guest that doesn't answer costs nothing but its own freshness.
//!
//! `session` is the conversation without any IO; `reply` understands the answers; `discover` finds sockets;
//! `process` checks what is told against `/proc`; `connection` is one socket and
//! `worker` the one thread that holds them all.

use std::collections::BTreeMap;

pub(crate) mod connection;
pub(crate) mod discover;
pub(crate) mod process;
mod reply;
mod session;
pub(crate) mod worker;

/// Feeds bytes to the conversation as a guest would send them, cut into pieces as the first byte says. It must neither
/// panic nor use unbounded memory or time, whatever they are. For fuzzing.
pub fn fuzz_entry(bytes: &[u8]) {
    let Some((&piece, bytes)) = bytes.split_first() else {
        return;
    };
    let mut session = session::Session::new();
    for piece in bytes.chunks(usize::from(piece).max(1)) {
        if session.receive(piece).is_err() {
            return;
        }
        session.ask(session::Depth::Full);
        while session.next_request().is_some() {}
        if let Some(network) = session.take_answers().and_then(|answers| answers.network) {
            let _ = process::taps(&BTreeMap::from([(3, "tap0".to_owned())]), &network);
        }
        session.take_changed();
    }
}
