//! What the agent gives up before it listens.
//!
//! It stays user 0, since the kernel's settings are files that belong to user 0, but without the powers that come with it: two
//! capabilities are left, none can be regained, and no program it might be tricked into starting would have any.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Queue counts and XPS need the first, other users' threads the second.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::SYS_NICE);

/// Drops every capability but those kept. Call it while there is one thread: capabilities belong to threads.
pub fn drop_privileges() -> io::Result<()> {
    set_no_new_privs(true)?;
    let held = rustix::thread::capabilities(None)?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().iter() {
            // Asking first, since an older kernel doesn't know the newest.
            if matches!(capability_is_in_bounding_set(capability), Ok(true)) {
                remove_capability_from_bounding_set(capability)?;
            }
        }
        clear_ambient_capability_set()?;
    }
    let kept = held.permitted & KEPT;
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}
