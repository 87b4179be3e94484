//! One budget of local memory for guests' memory and for their files in the host.

mod files;

use ostler_model::{Reason, SizingState};

use crate::Seen;

/// The layers' buffers. What is in them between decisions is of no consequence.
#[derive(Debug, Default)]
pub(super) struct Layered {
    files: files::Layered,
}

impl Layered {
    pub(super) fn decide(
        &mut self,
        seen: &Seen<'_>,
        state: &SizingState,
        reasons: &mut Vec<Reason>,
    ) -> SizingState {
        let Some(settings) = &seen.intent.sizing else {
            return SizingState::default();
        };
        let now = seen.snapshot.at;
        self.files.wish(seen, settings, state, reasons);
        let due = self.files.is_due(state, now);
        if due {
            self.files.grant(settings, free(seen));
        } else {
            self.files.keep();
        }
        self.files
            .finish(seen, settings, state, due.then_some(now), reasons)
    }
}

/// Free local memory; nothing where it isn't known of each node that has any.
fn free(seen: &Seen<'_>) -> Option<u64> {
    let nodes = &seen.facts.memory.nodes;
    let old = seen.intent.old_after();
    let mut local = nodes.iter().filter(|node| !node.far).peekable();
    local.peek()?;
    local.try_fold(0_u64, |sum, node| {
        let mut views = seen.snapshot.nodes.iter();
        let view = views.find(|view| view.node == node.node && view.age <= old)?;
        Some(sum.saturating_add(view.free.0))
    })
}
