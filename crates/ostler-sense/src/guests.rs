//! The guests of the moment: what sources tell, joined with what the host sees itself.
//!
//! A source tells of a process and its vCPU threads. The rest is the host's own knowledge: which other threads the
//! process has and which of them are vhost workers, how long each ran and waited, where it may run, which cgroup it is
//! in. Threads are listed again only when their number changed or one of them is gone, because listing hundreds each
//! period would cost more than everything else together.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use ostler_model::{
    GuestId, GuestSource, GuestView, LatencyView, Nanos, Pid, TapView, Tid, VcpuView, VhostView,
};
use rustix::event::epoll::{self, Event};

use crate::bpf::host::{HostBpf, ThreadReading};
use crate::cgroup;
use crate::error::SenseError;
use crate::files::KeptFile;
use crate::guest_report::{Report, Source};
use crate::qmp::process::{Process, Role};
use crate::threads::{self, ProcThreads, ThreadKey, ThreadMeter};

/// For how long threads that came are asked for their names: a new one has its creator's until it has run.
const SETTLES: Nanos = Nanos::from_secs(1);
/// How often a guest's cgroup is read where its change can't be noticed.
const CGROUP_AGE_MAX: Nanos = Nanos::from_secs(1);

/// All guests.
pub(crate) struct Guests {
    proc: PathBuf,
    cgroup_root: PathBuf,
    epoll: OwnedFd,
    by_pid: BTreeMap<Pid, Guest>,
    threads: ProcThreads,
    // Kept to spare allocation each period.
    reports: Vec<(Arc<Report>, Nanos)>,
    keys: Vec<ThreadKey>,
    readings: Vec<Option<ThreadReading>>,
}

struct Guest {
    id: GuestId,
    report: Arc<Report>,
    /// What libvirt tells of it, where another source does, too: only libvirt knows its labels.
    labelled: Option<Arc<Report>>,
    /// When its source last told of it, and since when its threads are others than were told of then.
    told: Nanos,
    changed: Nanos,
    /// When its threads were last known to be those that the source told of.
    confirmed: Nanos,
    process: Process,
    /// `/proc/PID/task`, whose link count is the number of threads.
    tasks: Option<KeptFile>,
    /// What was seen of its threads when they were listed.
    seen: Seen,
    /// Threads that came with the last change and were none of the rest then, and until when they are asked for their names.
    newcomers: Vec<Tid>,
    unsettled: Nanos,
    /// vCPU index and thread, in order of index: those that were told of, and those that their names tell.
    vcpus: Vec<(u32, Tid)>,
    vhost: Vec<(Tid, Option<u32>)>,
    emulator: Vec<Tid>,
    meters: BTreeMap<Tid, ThreadMeter>,
    cgroup: Option<String>,
    cgroup_id: Option<u64>,
    cgroup_read: Option<Nanos>,
    events: Option<cgroup::Events>,
}

/// When it differs from what it was, threads came or went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Threads of the process.
    count: u64,
    /// Threads that we know of and could not read.
    missing: usize,
}

impl Guests {
    pub(crate) fn new(proc: PathBuf, cgroup_root: PathBuf) -> Result<Guests, SenseError> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| SenseError::System {
                what: "make an epoll instance",
                source: io::Error::from(error),
            })?;
        Ok(Guests {
            threads: ProcThreads::new(&proc),
            proc,
            cgroup_root,
            epoll,
            by_pid: BTreeMap::new(),
            reports: Vec::new(),
            keys: Vec::new(),
            readings: Vec::new(),
        })
    }

    /// Takes in what sources tell now: guests come, change and go.
    pub(crate) fn adopt(&mut self, sources: &mut [Box<dyn Source>]) {
        self.reports.clear();
        for source in sources.iter_mut() {
            source.reports(&mut self.reports);
        }
        let mut told = BTreeSet::new();
        for (report, confirmed) in &self.reports {
            // Two sockets of one process are one guest, and the first has it. So are a socket and a domain of libvirt's: the
            // socket tells of threads sooner, and at all while libvirt's daemon is being restarted.
            if !told.insert(report.pid) {
                let guest = self.by_pid.get_mut(&report.pid);
                if let Some(guest) = guest.filter(|guest| guest.report.started == report.started)
                    && report.source == GuestSource::Libvirt
                {
                    guest.labelled = Some(Arc::clone(report));
                }
                continue;
            }
            match self.by_pid.get_mut(&report.pid) {
                Some(guest) if guest.report.started == report.started => {
                    guest.update(report, *confirmed);
                }
                _ => {
                    if let Some(guest) = Guest::new(&self.proc, report, *confirmed) {
                        self.by_pid.insert(report.pid, guest);
                    }
                }
            }
        }
        self.by_pid.retain(|pid, _| told.contains(pid));
        self.name();
    }

    /// Gives each guest its id. Whoever runs a guest chooses its UUID and name, so two may say the same: the process
    /// that started first has the id, and the others' have their process number added.
    fn name(&mut self) {
        let mut by_age: Vec<(u64, Pid)> = self
            .by_pid
            .iter()
            .map(|(pid, guest)| (guest.report.started, *pid))
            .collect();
        by_age.sort_unstable();
        let mut taken: BTreeSet<GuestId> = BTreeSet::new();
        for (_, pid) in by_age {
            let Some(guest) = self.by_pid.get_mut(&pid) else {
                continue;
            };
            let own = guest.report.uuid.as_deref().unwrap_or(&guest.report.name);
            if guest.id.as_str() != own || taken.contains(&guest.id) {
                let plain = GuestId::from(own);
                guest.id = if own.is_empty() || taken.contains(&plain) {
                    GuestId::from(format!("{own}@{pid}").as_str())
                } else {
                    plain
                };
            }
            taken.insert(guest.id.clone());
        }
    }

    /// The guests with their taps.
    pub(crate) fn taps(&self) -> impl Iterator<Item = (&GuestId, &[TapView])> {
        self.by_pid
            .values()
            .map(|guest| (&guest.id, guest.report.taps.as_slice()))
    }

    /// Reads all threads and yields the guests, in order of id. `latency` is asked once per guest.
    pub(crate) fn views(
        &mut self,
        bpf: Option<&HostBpf>,
        sources: &mut [Box<dyn Source>],
        now: Nanos,
        mut latency: impl FnMut(&GuestId, &[TapView]) -> Option<LatencyView>,
    ) -> Vec<GuestView> {
        let notified = self.notified();
        self.read(bpf);
        if self.relist(sources, now) {
            self.read(bpf);
        }
        let mut at = 0;
        let mut dead = Vec::new();
        let mut views = Vec::with_capacity(self.by_pid.len());
        for (pid, guest) in &mut self.by_pid {
            let readings = &self.readings[at..at + guest.keys_len()];
            at += guest.keys_len();
            if !guest.lives(readings[0].as_ref()) {
                dead.push(*pid);
                continue;
            }
            let noticed = notified.contains(&u64::from(pid.0));
            guest.follow_cgroup(&self.proc, &self.cgroup_root, &self.epoll, readings, now);
            let frozen = guest.frozen(noticed);
            let latency = latency(&guest.id, &guest.report.taps);
            views.push(guest.view(readings, now, frozen, latency));
        }
        for pid in dead {
            self.by_pid.remove(&pid);
        }
        views.sort_by(|a, b| a.id.cmp(&b.id));
        views
    }

    /// Lists the threads of guests whose threads changed anew, and has their sources ask them too. Says whether there
    /// were any.
    fn relist(&mut self, sources: &mut [Box<dyn Source>], now: Nanos) -> bool {
        let mut at = 0;
        let mut any = false;
        for (pid, guest) in &mut self.by_pid {
            let len = guest.keys_len();
            let readings = &self.readings[at..at + len];
            at += len;
            let seen = guest.seen(readings);
            let changed = seen != guest.seen;
            let named = now < guest.unsettled && guest.newcomer_has_role();
            if !changed && !named {
                continue;
            }
            guest.list_threads();
            any = true;
            if !changed {
                continue;
            }
            guest.seen = seen;
            guest.changed = now;
            guest.unsettled = now.saturating_add(SETTLES);
            for source in sources.iter_mut() {
                source.nudge(*pid);
            }
        }
        any
    }

    /// Guests whose cgroup's events changed.
    fn notified(&self) -> BTreeSet<u64> {
        let mut buffer = [const { MaybeUninit::<Event>::uninit() }; 256];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match epoll::wait(&self.epoll, &mut buffer[..], Some(&now)) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(_) => BTreeSet::new(),
        }
    }

    /// Reads all threads of all guests, in the order of [`Guest::keys`].
    fn read(&mut self, bpf: Option<&HostBpf>) {
        self.keys.clear();
        for guest in self.by_pid.values() {
            guest.keys(&mut self.keys);
        }
        threads::read(bpf, &mut self.threads, &self.keys, &mut self.readings);
    }
}

impl Guest {
    fn new(proc: &std::path::Path, report: &Arc<Report>, told: Nanos) -> Option<Guest> {
        let process = Process::of(proc, report.pid)?;
        if process.started != report.started {
            return None;
        }
        let mut guest = Guest {
            id: GuestId::from(""),
            tasks: KeptFile::open(&proc.join(format!("{}/task", report.pid))).ok(),
            report: Arc::clone(report),
            labelled: None,
            told,
            changed: Nanos::ZERO,
            confirmed: told,
            process,
            seen: Seen::default(),
            newcomers: Vec::new(),
            unsettled: Nanos::ZERO,
            vcpus: Vec::new(),
            vhost: Vec::new(),
            emulator: Vec::new(),
            meters: BTreeMap::new(),
            cgroup: None,
            cgroup_id: None,
            cgroup_read: None,
            events: None,
        };
        guest.list_threads();
        Some(guest)
    }

    /// Whether one of those that came is named as a vCPU or a vhost worker by now: a thread that names itself is there before its name is.
    /// QEMU's threads for disks come and go all the time, so the others aren't listed for it.
    fn newcomer_has_role(&self) -> bool {
        let mut names = self
            .newcomers
            .iter()
            .filter_map(|&tid| self.process.comm(tid));
        names.any(|comm| self.process.role_of(&comm) != Role::Emulator)
    }

    fn update(&mut self, report: &Arc<Report>, told: Nanos) {
        self.told = told;
        if Arc::ptr_eq(&self.report, report) {
            return;
        }
        let changed = self.report.vcpus != report.vcpus || self.report.taps != report.taps;
        self.report = Arc::clone(report);
        if changed {
            self.list_threads();
        }
    }

    /// Sorts the process's threads by what they do.
    ///
    /// The source's word on vCPUs comes first. One that it hasn't told of yet, since it was plugged in just now, is known by
    /// its name, where QEMU names its threads; so it has its cores in the period that sees it, and not only when the source has answered.
    fn list_threads(&mut self) {
        let told: BTreeSet<Tid> = self.report.vcpus.iter().map(|(_, tid)| *tid).collect();
        let mut vhost = Vec::new();
        self.vcpus.clone_from(&self.report.vcpus);
        let known = std::mem::take(&mut self.emulator);
        let threads = self.process.threads();
        for &tid in threads.iter().filter(|tid| !told.contains(tid)) {
            let comm = self.process.comm(tid).unwrap_or_default();
            match self.process.role_of(&comm) {
                Role::Vhost => vhost.push(tid),
                Role::Vcpu(index) if !self.vcpus.iter().any(|&(known, _)| known == index) => {
                    self.vcpus.push((index, tid));
                }
                Role::Vcpu(_) | Role::Emulator => self.emulator.push(tid),
            }
        }
        self.vcpus.sort_unstable();
        let came = self
            .emulator
            .iter()
            .filter(|tid| known.binary_search(tid).is_err());
        self.newcomers = came.copied().collect();
        let queues = self.report.taps.iter().map(|tap| tap.queues).sum();
        self.vhost = assign_queues(vhost, queues, self.report.vsock_cid.is_some());
    }

    /// The threads to be read: the process's first, then vCPUs, vhost workers and the rest.
    fn keys(&self, out: &mut Vec<ThreadKey>) {
        let pid = self.report.pid;
        let leader = Tid(pid.0);
        let vcpus = self.vcpus.iter().map(|(_, tid)| *tid);
        let vhost = self.vhost.iter().map(|(tid, _)| *tid);
        let all = std::iter::once(leader).chain(vcpus).chain(vhost);
        out.extend(all.map(|tid| ThreadKey { pid, tid }));
    }

    fn keys_len(&self) -> usize {
        1 + self.vcpus.len() + self.vhost.len()
    }

    /// Whether the process is still there. BPF tells it with the leader's reading; without it, an unreadable leader is
    /// gone.
    fn lives(&self, leader: Option<&ThreadReading>) -> bool {
        leader.is_some() || self.process.lives()
    }

    /// What is seen of its threads without listing them.
    fn seen(&self, readings: &[Option<ThreadReading>]) -> Seen {
        let told = readings[0].as_ref().map_or(0, |leader| leader.threads);
        let count = if told > 0 {
            u64::from(told)
        } else {
            // One link per thread beside the folder's own two.
            let tasks = self.tasks.as_ref();
            let links = tasks.and_then(|tasks| tasks.file().metadata().ok());
            links.map_or(0, |folder| folder.nlink().saturating_sub(2))
        };
        Seen {
            count,
            missing: readings.iter().filter(|reading| reading.is_none()).count(),
        }
    }

    /// What a source told of threads is true for as long as the host sees none come or go: a vCPU's thread never becomes another's. So monitors
    /// needn't be asked, and one that hangs makes nothing old by itself.
    fn confirm(&mut self, now: Nanos) {
        let same = self.told >= self.changed && self.seen.count > 0;
        self.confirmed = if same {
            now
        } else {
            self.confirmed.max(self.told)
        };
    }

    /// Follows the process to another cgroup.
    fn follow_cgroup(
        &mut self,
        proc: &std::path::Path,
        root: &std::path::Path,
        epoll: &OwnedFd,
        readings: &[Option<ThreadReading>],
        now: Nanos,
    ) {
        let id = readings[0].as_ref().and_then(|leader| leader.cgroup_id);
        let due = match (id, self.cgroup_read) {
            (_, None) => true,
            (Some(_), Some(_)) => id != self.cgroup_id,
            (None, Some(at)) => now.saturating_sub(at) >= CGROUP_AGE_MAX,
        };
        if !due {
            return;
        }
        self.cgroup_id = id;
        self.cgroup_read = Some(now);
        let path = cgroup::of_process(proc, self.report.pid.0);
        if path != self.cgroup || self.events.is_none() {
            self.events = path.as_ref().and_then(|path| {
                cgroup::Events::open(root, path, epoll, u64::from(self.report.pid.0)).ok()
            });
            self.cgroup = path;
        }
    }

    /// Whether it is frozen. A cgroup without events (the root) can't be; one that is gone is looked up again.
    fn frozen(&mut self, notified: bool) -> bool {
        let Some(events) = &mut self.events else {
            return false;
        };
        if let Ok(frozen) = events.frozen(notified) {
            return frozen;
        }
        self.events = None;
        self.cgroup_read = None;
        false
    }

    fn view(
        &mut self,
        readings: &[Option<ThreadReading>],
        now: Nanos,
        frozen: bool,
        latency: Option<LatencyView>,
    ) -> GuestView {
        let report = Arc::clone(&self.report);
        self.confirm(now);
        // A thread that could not be read is gone; its reading is found by its place among the keys.
        let mut meters = BTreeMap::new();
        let mut meter = |tid: Tid, reading: &ThreadReading| {
            let mut meter = self.meters.get(&tid).copied().unwrap_or_default();
            let usage = meter.advance(reading, now);
            meters.insert(tid, meter);
            usage
        };
        let (of_vcpus, of_vhost) = readings[1..].split_at(self.vcpus.len().min(readings.len() - 1));
        let vcpus = self
            .vcpus
            .iter()
            .zip(of_vcpus)
            .filter_map(|(&(index, tid), reading)| {
                let reading = reading.as_ref()?;
                Some(VcpuView {
                    index,
                    tid,
                    allowed: reading.allowed,
                    usage: meter(tid, reading),
                })
            })
            .collect();
        let vhost = self
            .vhost
            .iter()
            .zip(of_vhost)
            .filter_map(|(&(tid, queue), reading)| {
                let reading = reading.as_ref()?;
                Some(VhostView {
                    tid,
                    queue,
                    allowed: reading.allowed,
                    usage: meter(tid, reading),
                })
            })
            .collect();
        self.meters = meters;
        GuestView {
            id: self.id.clone(),
            name: report.name.clone(),
            uuid: report.uuid.clone(),
            metadata: self.labelled.as_ref().unwrap_or(&report).metadata.clone(),
            source: report.source,
            pid: report.pid,
            cgroup: self.cgroup.clone(),
            frozen,
            vcpus,
            vhost,
            emulator: self.emulator.clone(),
            taps: report.taps.clone(),
            vsock_cid: report.vsock_cid,
            latency,
            agent: None,
            age: now.saturating_sub(self.confirmed),
        }
    }
}

/// Which queue pair each vhost worker serves.
///
/// QEMU opens its network backends in order, queue by queue, and each gets its worker at once; so workers in order of
/// thread number are queues in order of vNIC. A vsock device has a worker of the same name, made later, since devices
/// come after backends. When the numbers don't add up (a vNIC without vhost, one that was plugged in later behind a
/// vsock device), no queue is claimed.
fn assign_queues(workers: Vec<Tid>, queues: u32, vsock: bool) -> Vec<(Tid, Option<u32>)> {
    let adds_up = workers.len() as u64 == u64::from(queues) + u64::from(vsock);
    let mut workers: Vec<(Tid, Option<u32>)> = workers
        .into_iter()
        .zip(0..)
        .map(|(tid, queue)| (tid, Some(queue).filter(|&queue| adds_up && queue < queues)))
        .collect();
    // In order of queue, and those that serve none last.
    workers.sort_by_key(|&(tid, queue)| (queue.unwrap_or(u32::MAX), tid));
    workers
}

#[cfg(test)]
#[path = "guests_tests.rs"]
mod tests;
