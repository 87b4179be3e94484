//! How a source says, from its own thread, that guests came, changed or went.

use std::fmt;
use std::sync::Arc;

/// Rung when what a source tells has changed, so that whoever takes snapshots needn't wait for the period to end.
///
/// It is rung from a source's thread and must not block. A ring says no more than that a snapshot is worth taking: it may come for a
/// change that was in the last one already.
#[derive(Clone)]
pub struct Bell(Option<Arc<dyn Fn() + Send + Sync>>);

impl Bell {
    /// One that does this when it is rung.
    pub fn new(rung: impl Fn() + Send + Sync + 'static) -> Bell {
        Bell(Some(Arc::new(rung)))
    }

    /// One that nobody hears: changes are found with the next snapshot.
    pub(crate) fn silent() -> Bell {
        Bell(None)
    }

    pub(crate) fn ring(&self) {
        if let Some(rung) = &self.0 {
            rung();
        }
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0.is_some() {
            "Bell"
        } else {
            "Bell(silent)"
        })
    }
}
