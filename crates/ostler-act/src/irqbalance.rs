//! irqbalance moves interrupts every ten seconds, by rules of its own: beside it, ours would not stay.

use ostler_model::Pid;

use crate::{Host, Root};

/// The process id of irqbalance, when it runs.
pub(crate) fn running(host: &dyn Host) -> Option<Pid> {
    host.dirs(Root::Proc, "")
        .ok()?
        .iter()
        .filter_map(|name| name.parse().ok().map(Pid))
        .find(|pid| {
            host.read(Root::Proc, &format!("{pid}/comm"))
                .is_ok_and(|comm| comm.trim() == "irqbalance")
        })
}
