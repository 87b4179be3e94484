//! Guests found by libvirt.
//!
//! libvirt holds its guests' monitors itself, so they are not asked by QMP. libvirt says which domains run and what
//! they are made of; which thread is which vCPU is read from the threads' names, which libvirt has QEMU set (`CPU
//! 0/KVM`). Asking the monitor through libvirt would hang for as long as a guest is frozen, and only tell the same. The
//! connection is read-only.
//!
//! libvirt's calls may block, so they are made on a thread of their own, as with QMP.

mod domain;
mod events;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ostler_model::{GuestSource, Nanos, Pid, TapView, Tid};
use virt::connect::Connect;
use virt::sys::{
    VIR_CONNECT_LIST_DOMAINS_ACTIVE, VIR_DOMAIN_PAUSED, VIR_DOMAIN_PAUSED_STARTING_UP,
    virDomainState,
};

use crate::bell::Bell;
use crate::error::SenseError;
use crate::files;
use crate::guest_report::{Report, Source};
use crate::qmp::process::{self, Process, Role};
use crate::sys;
use domain::Domain;

/// Where libvirt's QEMU driver keeps the process numbers of its guests.
const RUN: &str = "/run/libvirt/qemu";
/// How often libvirt is asked which domains run, when it tells of no event: twice a period of 100 ms, so that a new one is known
/// in the next.
const LOOK: Duration = Duration::from_millis(50);
/// How often a domain's description is read again.
const DESCRIBE: Nanos = Nanos::from_secs(30);
/// Domains in all.
const DOMAINS_MAX: usize = 1024;
/// The pause before a lost connection is made anew.
const RETRY: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    reports: BTreeMap<u32, (Arc<Report>, Nanos)>,
    nudged: BTreeSet<Pid>,
    /// libvirt told of an event since the last look.
    told: bool,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Both sides only replace whole values under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All running domains of a connection. Its thread ends some time after it is dropped: libvirt's calls can't be cut
/// short.
pub(crate) struct LibvirtSource {
    shared: Arc<Shared>,
    _thread: JoinHandle<()>,
}

impl LibvirtSource {
    /// Connects; only the first connection must succeed.
    pub(crate) fn start(
        proc: &Path,
        uri: &str,
        confirm: Nanos,
        bell: Bell,
    ) -> Result<LibvirtSource, SenseError> {
        events::begin();
        let connection = connect(uri).map_err(|error| SenseError::Libvirt {
            uri: uri.to_owned(),
            why: format!(
                "{}; is libvirtd running, and is ostler allowed to connect?",
                error.message()
            ),
        })?;
        let shared = Arc::new(Shared::default());
        events::follow(&connection, &shared);
        let mut worker = Worker {
            proc: proc.to_owned(),
            uri: uri.to_owned(),
            confirm,
            bell,
            shared: Arc::clone(&shared),
            domains: BTreeMap::new(),
        };
        let thread = std::thread::Builder::new()
            .name("ostler-libvirt".to_owned())
            .spawn(move || worker.run(connection))
            .map_err(|source| SenseError::System {
                what: "start a thread",
                source,
            })?;
        Ok(LibvirtSource {
            shared,
            _thread: thread,
        })
    }
}

fn connect(uri: &str) -> Result<Connect, virt::error::Error> {
    Connect::open_read_only(Some(uri))
}

impl Drop for LibvirtSource {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
    }
}

impl Source for LibvirtSource {
    fn reports(&mut self, out: &mut Vec<(Arc<Report>, Nanos)>) {
        out.extend(self.shared.lock().reports.values().cloned());
    }

    fn nudge(&mut self, pid: Pid) {
        self.shared.lock().nudged.insert(pid);
        self.shared.wake.notify_all();
    }
}

/// A running domain; libvirt gives each run of it another id.
struct Known {
    process: Process,
    domain: Domain,
    taps: Vec<TapView>,
    described: Nanos,
    confirmed: Nanos,
}

struct Worker {
    proc: PathBuf,
    uri: String,
    confirm: Nanos,
    bell: Bell,
    shared: Arc<Shared>,
    domains: BTreeMap<u32, Known>,
}

impl Worker {
    fn run(&mut self, connection: Connect) {
        let mut connection = Some(connection);
        loop {
            let (stop, nudged) = {
                let mut state = self.shared.lock();
                state.told = false;
                (state.stop, std::mem::take(&mut state.nudged))
            };
            if stop {
                break;
            }
            let looked = match &connection {
                Some(connection) => self.look(connection, &nudged),
                None => connect(&self.uri).map(|new| {
                    events::follow(&new, &self.shared);
                    connection = Some(new);
                }),
            };
            let pause = match looked {
                Ok(()) => LOOK,
                Err(error) => {
                    tracing::warn!(
                        uri = self.uri,
                        error = error.message(),
                        "libvirt doesn't answer"
                    );
                    if let Some(mut lost) = connection.take() {
                        let _ = lost.close();
                    }
                    RETRY
                }
            };
            let state = self.shared.lock();
            if state.stop {
                break;
            }
            if state.nudged.is_empty() && !state.told {
                let woken = self.shared.wake.wait_timeout(state, pause);
                drop(woken.unwrap_or_else(PoisonError::into_inner));
            }
        }
        if let Some(mut connection) = connection {
            let _ = connection.close();
        }
    }

    fn look(
        &mut self,
        connection: &Connect,
        nudged: &BTreeSet<Pid>,
    ) -> Result<(), virt::error::Error> {
        let now = sys::now();
        let running = connection.list_all_domains(VIR_CONNECT_LIST_DOMAINS_ACTIVE)?;
        let mut ids = BTreeSet::new();
        for domain in running.iter().take(DOMAINS_MAX) {
            let Some(id) = domain.get_id() else { continue };
            ids.insert(id);
            let known = self.domains.get(&id);
            // One that ends meanwhile has no state, and nothing else that is asked for below.
            if known.is_none() && domain.get_state().is_ok_and(is_starting) {
                continue;
            }
            let is_nudged = known.is_some_and(|k| nudged.contains(&k.process.pid));
            let due = known.is_none_or(|k| now >= k.confirmed.saturating_add(self.confirm));
            if !due && !is_nudged {
                continue;
            }
            let describe =
                is_nudged || known.is_none_or(|k| now >= k.described.saturating_add(DESCRIBE));
            if describe && !self.describe(id, domain, now) {
                continue;
            }
            self.confirm(id, now);
        }
        self.domains.retain(|id, _| ids.contains(id));
        let mut state = self.shared.lock();
        let before = state.reports.len();
        state.reports.retain(|id, _| ids.contains(id));
        if state.reports.len() < before {
            self.bell.ring();
        }
        Ok(())
    }

    /// Reads what the domain is made of. A domain that ends meanwhile is no failure of the connection.
    fn describe(&mut self, id: u32, domain: &virt::domain::Domain, now: Nanos) -> bool {
        let Some(described) = domain
            .get_xml_desc(0)
            .ok()
            .and_then(|xml| Domain::parse(&xml))
        else {
            return false;
        };
        let Some(process) = self.process(&described.name) else {
            tracing::debug!(domain = described.name, "no QEMU process of it was found");
            return false;
        };
        let known = Known {
            taps: process::taps(&process.tap_descriptors(), &described.network),
            process,
            domain: described,
            described: now,
            confirmed: Nanos::ZERO,
        };
        self.domains.insert(id, known);
        true
    }

    fn process(&self, name: &str) -> Option<Process> {
        if name.contains('/') {
            return None;
        }
        let pid = files::parsed(&Path::new(RUN).join(format!("{name}.pid")))?;
        Process::of(&self.proc, Pid(pid))
    }

    fn confirm(&mut self, id: u32, now: Nanos) {
        let Some(known) = self.domains.get_mut(&id) else {
            return;
        };
        if !known.process.lives() {
            return;
        }
        known.confirmed = now;
        let domain = &known.domain;
        let report = Report {
            source: GuestSource::Libvirt,
            name: domain.name.clone(),
            uuid: domain.uuid.clone(),
            metadata: domain.labels.clone(),
            pid: known.process.pid,
            started: known.process.started,
            vcpus: vcpus(&known.process),
            taps: known.taps.clone(),
            vsock_cid: domain.cid,
        };
        let mut state = self.shared.lock();
        match state.reports.get_mut(&id) {
            Some((same, confirmed)) if **same == report => *confirmed = now,
            _ => {
                state.reports.insert(id, (Arc::new(report), now));
                self.bell.ring();
            }
        }
    }
}

/// Whether libvirt still puts the domain together: not all of its threads and cgroups are there, and one that was moved now
/// would have libvirt give up on it.
fn is_starting((state, reason): (virDomainState, i32)) -> bool {
    state == VIR_DOMAIN_PAUSED && u32::try_from(reason) == Ok(VIR_DOMAIN_PAUSED_STARTING_UP)
}

/// vCPU threads by their names.
fn vcpus(process: &Process) -> Vec<(u32, Tid)> {
    let mut vcpus: Vec<(u32, Tid)> = process
        .threads()
        .into_iter()
        .filter_map(|tid| match process.role_of(&process.comm(tid)?) {
            Role::Vcpu(index) => Some((index, tid)),
            Role::Vhost | Role::Emulator => None,
        })
        .collect();
    vcpus.sort_unstable();
    vcpus.dedup_by_key(|(index, _)| *index);
    vcpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_that_starts_is_no_guest_yet() {
        use virt::sys::{VIR_DOMAIN_PAUSED_USER, VIR_DOMAIN_RUNNING};
        let starting = VIR_DOMAIN_PAUSED_STARTING_UP.cast_signed();
        assert!(is_starting((VIR_DOMAIN_PAUSED, starting)));
        for other in [
            (VIR_DOMAIN_PAUSED, VIR_DOMAIN_PAUSED_USER.cast_signed()),
            (VIR_DOMAIN_RUNNING, starting), // another state's reasons are counted anew
            (VIR_DOMAIN_PAUSED, -1),
        ] {
            assert!(!is_starting(other), "{other:?}");
        }
    }

    /// libvirt's own test driver: a connection with one running domain, of which there is no process.
    #[test]
    fn domains_without_a_process_are_no_guests() {
        let mut source = LibvirtSource::start(
            Path::new("/proc"),
            "test:///default",
            Nanos(1),
            Bell::silent(),
        )
        .unwrap();
        source.nudge(Pid(1));
        let mut reports = Vec::new();
        source.reports(&mut reports);
        assert!(reports.is_empty());
        let connection = connect("test:///default").unwrap();
        let domains = connection
            .list_all_domains(VIR_CONNECT_LIST_DOMAINS_ACTIVE)
            .unwrap();
        let described = Domain::parse(&domains[0].get_xml_desc(0).unwrap()).unwrap();
        assert_eq!(described.name, "test");
        assert!(described.uuid.is_some());
    }

    #[test]
    fn a_connection_that_is_not_there_is_refused_with_its_name() {
        let refused = LibvirtSource::start(
            Path::new("/proc"),
            "nonsense:///x",
            Nanos(1),
            Bell::silent(),
        )
        .err();
        assert!(matches!(refused, Some(SenseError::Libvirt { uri, .. }) if uri == "nonsense:///x"));
    }
}
