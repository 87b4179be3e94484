//! libvirt tells when a domain comes, goes or changes, so that it is asked at once and not at the next look.
//!
//! An event is a hint and no more: what is there is found by looking, and one that is lost costs a look's pause. The `virt` crate
//! has libvirt's event loop but no events of domains; these are registered by libvirt's own call.
#![allow(unsafe_code, reason = "libvirt's C interface for events of domains")]

use std::os::raw::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Once};

use virt::connect::Connect;
use virt::event::{event_register_default_impl, event_run_default_impl};
use virt::sys;

use super::Shared;

/// Begins libvirt's event loop, on a thread that lasts as long as the process. To be called before the first connection is
/// made: one that was made earlier has no events.
pub(super) fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let looped = event_register_default_impl().map_err(|error| error.message().to_owned());
        let begun = looped.and_then(|()| {
            std::thread::Builder::new()
                .name("ostler-events".to_owned())
                .spawn(|| while event_run_default_impl().is_ok() {})
                .map_err(|error| error.to_string())
        });
        if let Err(error) = begun {
            tracing::warn!(error, "no events from libvirt; it is asked in turn alone");
        }
    });
}

/// Has the worker told of each event in a domain's life, for as long as the connection lasts.
pub(super) fn follow(connection: &Connect, shared: &Arc<Shared>) {
    type Lifecycle = unsafe extern "C" fn(
        sys::virConnectPtr,
        sys::virDomainPtr,
        c_int,
        c_int,
        *mut c_void,
    ) -> c_int;
    type Generic = unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, *mut c_void);
    let told: Lifecycle = told;
    // SAFETY: both are C functions' addresses; libvirt calls it with a lifecycle event's arguments, since it is registered for
    // those. It is what libvirt's own macro VIR_DOMAIN_EVENT_CALLBACK does.
    let told: Generic = unsafe { std::mem::transmute(told) };
    let opaque = Arc::into_raw(Arc::clone(shared)).cast_mut().cast();
    // SAFETY: the connection is open; null stands for all domains; `opaque` is ours until `forget` is called with it, once.
    let id = unsafe {
        sys::virConnectDomainEventRegisterAny(
            connection.as_ptr(),
            ptr::null_mut(),
            sys::VIR_DOMAIN_EVENT_ID_LIFECYCLE.cast_signed(),
            Some(told),
            opaque,
            Some(forget),
        )
    };
    if id < 0 {
        // SAFETY: what can't be registered, libvirt doesn't free.
        unsafe { forget(opaque) };
        let error = virt::error::Error::last_error();
        tracing::warn!(
            error = error.message(),
            "libvirt tells of no events; it is asked in turn alone"
        );
    }
}

unsafe extern "C" fn told(
    _: sys::virConnectPtr,
    _: sys::virDomainPtr,
    _event: c_int,
    _detail: c_int,
    shared: *mut c_void,
) -> c_int {
    // SAFETY: it is the pointer that `follow` gave, and `forget` has not been called with it.
    let shared = unsafe { &*shared.cast_const().cast::<Shared>() };
    shared.lock().told = true;
    shared.wake.notify_all();
    0
}

unsafe extern "C" fn forget(shared: *mut c_void) {
    // SAFETY: `follow` made it by `Arc::into_raw`, and it is given back once.
    drop(unsafe { Arc::from_raw(shared.cast_const().cast::<Shared>()) });
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;
    use std::time::Duration;

    use super::*;

    /// libvirt's own test driver, of which all connections of a process share one host.
    #[test]
    fn a_domain_that_is_suspended_is_told_of() {
        begin();
        let watched = Connect::open_read_only(Some("test:///default")).unwrap();
        let shared = Arc::new(Shared::default());
        follow(&watched, &shared);
        assert!(!shared.lock().told);
        let admin = Connect::open(Some("test:///default")).unwrap();
        let domains = admin.list_all_domains(0).unwrap();
        domains[0].suspend().unwrap();
        let long = Duration::from_secs(30);
        let waited = shared
            .wake
            .wait_timeout_while(shared.lock(), long, |state| !state.told);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(state.told, "not in 30 s");
        drop(state);
        domains[0].resume().unwrap();
    }
}
