//! Which part a thread plays: what it is told when it asks for the time depends on it.

use std::cell::Cell;

/// What a thread is to the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The thread of this emulated core: it has a time of its own.
    Core(usize),
    /// One of ours, which sees the machine's time as it is.
    Ours,
    /// QEMU's main loop, or another of its threads: they see time only as far as all timers have been fired, so that the
    /// main loop never fires one itself, at a moment of the real machine's choosing.
    Other,
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::Other) };
}

/// The part that this thread plays.
pub fn role() -> Role {
    ROLE.get()
}

/// Gives this thread a part.
pub fn become_role(role: Role) {
    ROLE.set(role);
}
