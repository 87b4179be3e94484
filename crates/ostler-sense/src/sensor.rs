//! The sensor: everything that is seen of a host, once per period.

use ostler_model::{Capability, CpuSet, Facts, Nanos, NicView, Pid, Snapshot, Tid};

use crate::bell::Bell;
use crate::bpf::host::HostBpf;
use crate::bpf::tap::TapBpf;
use crate::capability::{self, capability, explain};
use crate::config::SenseConfig;
use crate::cpus::{self, CpuMeter, Witness};
use crate::error::SenseError;
use crate::ethtool::Ethtool;
use crate::files;
use crate::guest_report::Source;
use crate::guests::Guests;
use crate::nic::{self, Nic};
use crate::pmu::Pmu;
use crate::qmp::connection::Timing;
use crate::qmp::worker::QmpSource;
use crate::tap::TapLatency;
use crate::threads::ThreadKey;
use crate::{sys, topology};
use ostler_bpf::BpfError;

/// How often things are looked at that hardly ever change: which CPUs are online, whether KVM was loaded.
const RARELY: Nanos = Nanos::from_secs(1);

/// Senses a host.
///
/// [`Sensor::snapshot`] is to be called once per period, from one thread; it waits for no guest.
pub struct Sensor {
    config: SenseConfig,
    facts: Facts,
    online: CpuSet,
    looked: Nanos,
    seq: u64,
    previous: Option<Nanos>,
    bpf: Option<HostBpf>,
    /// Whether CPUs' times are by BPF.
    bpf_cpus: bool,
    witness: Witness,
    /// Whether threads are read by BPF too, which takes the host's own PID namespace.
    bpf_threads: bool,
    cpu_meter: CpuMeter,
    sources: Vec<Box<dyn Source>>,
    guests: Guests,
    latency: Option<TapLatency>,
    ethtool: Option<Ethtool>,
    nics: Vec<Nic>,
    pmu: Option<Pmu>,
}

impl Sensor {
    /// Looks at the host, loads what its kernel can run, and begins to look for guests.
    pub fn new(config: SenseConfig) -> Result<Sensor, SenseError> {
        Sensor::with_bell(config, &Bell::silent())
    }

    /// The same, with a bell that is rung when it is told of a guest that came, changed or went.
    pub fn with_bell(config: SenseConfig, bell: &Bell) -> Result<Sensor, SenseError> {
        let roots = &config.roots;
        let topology = topology::read(&roots.sys)?;
        let online = topology.online();
        let ethtool = Ethtool::open().ok();
        let mut capabilities = capability::of_files(roots);

        let off = || "switched off in the configuration".to_owned();
        let (bpf, why_not) = if config.bpf {
            match HostBpf::load(&roots.sys, topology::possible(&roots.sys)) {
                Ok(bpf) => (Some(bpf), None),
                Err(error) => (None, Some(explain(&error))),
            }
        } else {
            (None, Some(off()))
        };
        let no_threads = bpf
            .as_ref()
            .and_then(|bpf| sees_our_threads(bpf).err())
            .map(|error| explain(&error));
        let bpf_threads = bpf.is_some() && no_threads.is_none();
        capabilities.extend(capability::of_bpf(
            bpf.as_ref(),
            why_not.as_deref().or(no_threads.as_deref()),
        ));

        let (latency, no_latency) = if config.bpf {
            match TapBpf::load(&roots.sys) {
                Ok(bpf) => (Some(TapLatency::new(bpf, config.latency_window)), None),
                Err(error) => (None, Some(explain(&error))),
            }
        } else {
            (None, Some(off()))
        };
        capabilities.push(capability("tap-latency", no_latency));

        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        if !config.qmp_globs.is_empty() {
            let timing = Timing {
                look: Nanos::from_millis(50),
                confirm: config.confirm,
                full: Nanos::from_secs(300),
                silence: Nanos::from_secs(30),
            };
            let source = QmpSource::start(roots, &config.qmp_globs, timing, bell.clone())?;
            sources.push(Box::new(source));
        }
        if let Some(uri) = &config.libvirt {
            sources.push(libvirt(uri, &config, bell)?);
        }

        let nics: Vec<_> = config
            .nics
            .iter()
            .filter_map(|name| nic::facts(&roots.sys, ethtool.as_ref(), name))
            .collect();
        capabilities.push(capability("rss", no_rss(&nics)));
        // Only emulated machines have it: nobody else misses it.
        let pmu = match Pmu::find(&roots.sys) {
            Ok(found) => {
                if let Some(pmu) = &found {
                    capabilities.push(capability("machine-pmu", None));
                    if !pmu.counts_guests() {
                        let why = "KVM hasn't been looked at yet".to_owned();
                        capabilities.push(capability("machine-pmu-guests", Some(why)));
                    }
                }
                found
            }
            Err(error) => {
                capabilities.push(capability("machine-pmu", Some(explain(&error))));
                None
            }
        };
        capabilities.sort_by(|a, b| a.name.cmp(&b.name));

        let facts = Facts {
            kernel: files::value(&roots.proc.join("sys/kernel/osrelease")).unwrap_or_default(),
            topology,
            nics,
            capabilities,
            ..Facts::default()
        };
        Ok(Sensor {
            guests: Guests::new(roots.proc.clone(), roots.cgroup.clone())?,
            nics: config.nics.iter().map(|name| Nic::new(name)).collect(),
            facts,
            online,
            looked: sys::now(),
            seq: 0,
            previous: None,
            bpf_cpus: bpf.is_some(),
            bpf,
            witness: Witness::default(),
            bpf_threads,
            cpu_meter: CpuMeter::default(),
            sources,
            latency,
            ethtool,
            pmu,
            config,
        })
    }

    /// What the host is. Changes when hardware comes or goes, or KVM is loaded; ask again each period.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What is seen now. `now` is on the monotonic clock, and never before that of the last call.
    pub fn snapshot(&mut self, now: Nanos) -> Snapshot {
        let now = self.previous.map_or(now, |previous| now.max(previous));
        if now.saturating_sub(self.looked) >= RARELY {
            self.looked = now;
            self.look_again();
        }
        let began = self.previous.unwrap_or(now);
        let interval = now.saturating_sub(began);
        self.previous = Some(now);
        self.seq += 1;

        let totals = match self.bpf.as_ref().filter(|_| self.bpf_cpus) {
            Some(bpf) => cpus::by_bpf(bpf, &self.online, now),
            None => cpus::by_proc(&self.config.roots.proc).unwrap_or_else(|error| {
                tracing::warn!(error = explain(&error), "no CPU times this period");
                cpus::Totals::default()
            }),
        };
        let (cpus, counters) = self.cpu_meter.advance(totals, &self.online, interval);
        if self.bpf_cpus && self.witness.is_due(now) {
            self.hold_against_the_kernel();
        }

        self.guests.adopt(&mut self.sources);
        if let Some(latency) = &mut self.latency {
            latency.follow(self.guests.taps(), now);
        }
        let latency = &mut self.latency;
        let guests = self.guests.views(
            self.bpf.as_ref().filter(|_| self.bpf_threads),
            &mut self.sources,
            now,
            |id, taps| latency.as_mut()?.view(id, taps, began, now),
        );

        let (mut pmu, mut guest_pmu) = (Vec::new(), Vec::new());
        if let Some(counters) = &mut self.pmu {
            pmu = counters.advance(&self.online);
            guest_pmu = counters.advance_guests(&guests);
        }
        Snapshot {
            seq: self.seq,
            at: now,
            interval,
            cpus,
            guests,
            nics: self.view_nics(now),
            counters,
            pmu,
            guest_pmu,
            ..Snapshot::default()
        }
    }

    /// Goes on by `/proc/stat`, from this period on, where the kernel doesn't trace all switches that it makes.
    fn hold_against_the_kernel(&mut self) {
        let proc = &self.config.roots.proc;
        let Some(bpf) = &self.bpf else { return };
        let before = bpf.switches();
        let Some(counted) = cpus::switches_counted(proc) else {
            return; // nothing to go on by either
        };
        let after = bpf.switches();
        let possible = bpf.possible() as u64;
        let Some(missed) = self.witness.look(possible, before, counted, after) else {
            return;
        };
        let why = format!(
            "this kernel has traced {} of {} context switches (sched_switch), so CPU times are /proc/stat's, in ticks; was it built without parts of its tracing?",
            missed.traced, missed.counted
        );
        tracing::warn!("{why}");
        for name in ["bpf-busy", "irq-vectors", "kvm-exits"] {
            set(&mut self.facts.capabilities, name, Some(&why));
        }
        self.bpf_cpus = false;
        self.cpu_meter = CpuMeter::from(cpus::by_proc(proc).unwrap_or_default());
    }

    fn view_nics(&mut self, now: Nanos) -> Vec<NicView> {
        let roots = &self.config.roots;
        let ethtool = self.ethtool.as_ref();
        let mut views: Vec<NicView> = self
            .nics
            .iter_mut()
            .filter_map(|nic| nic.view(&roots.proc, &roots.sys, ethtool, now))
            .collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views.dedup_by(|a, b| a.name == b.name);
        views
    }

    /// Notices what hardly ever changes.
    fn look_again(&mut self) {
        let roots = &self.config.roots;
        if let Some(pmu) = &mut self.pmu
            && self.config.bpf
            && !pmu.counts_guests()
        {
            let missing = pmu.follow_threads(&roots.sys).err();
            let missing = missing.map(|error| explain(&error));
            set(
                &mut self.facts.capabilities,
                "machine-pmu-guests",
                missing.as_deref(),
            );
        }
        match topology::online(&roots.sys) {
            Ok(online) if online != self.online => match topology::read(&roots.sys) {
                Ok(topology) => {
                    self.online = online;
                    self.facts.topology = topology;
                }
                Err(error) => tracing::warn!(error = explain(&error), "the topology stays"),
            },
            Ok(_) => {}
            Err(error) => tracing::warn!(error = explain(&error), "the online CPUs stay"),
        }
        if let Some(bpf) = &mut self.bpf
            && self.bpf_cpus
            && !bpf.counts_kvm_exits()
            && bpf.attach_kvm()
        {
            set(&mut self.facts.capabilities, "kvm-exits", None);
        }
        let present: Vec<&str> = self
            .facts
            .nics
            .iter()
            .map(|nic| nic.name.as_str())
            .collect();
        let changed = self.config.nics.iter().any(|name| {
            let there = roots.sys.join("class/net").join(name).exists();
            there != present.contains(&name.as_str())
        });
        if changed {
            self.facts.nics = self
                .config
                .nics
                .iter()
                .filter_map(|name| nic::facts(&roots.sys, self.ethtool.as_ref(), name))
                .collect();
            let missing = no_rss(&self.facts.nics);
            set(&mut self.facts.capabilities, "rss", missing.as_deref());
        }
    }
}

fn set(capabilities: &mut [Capability], name: &str, missing: Option<&str>) {
    for capability in capabilities {
        if capability.name == name {
            capability.missing = missing.map(str::to_owned);
        }
    }
}

fn no_rss(nics: &[ostler_model::NicFacts]) -> Option<String> {
    let fixed: Vec<&str> = nics
        .iter()
        .filter(|nic| !nic.rss_settable)
        .map(|nic| nic.name.as_str())
        .collect();
    if nics.is_empty() {
        return Some("no NIC that the configuration names is there".to_owned());
    }
    (!fixed.is_empty()).then(|| {
        format!(
            "{} has no RSS indirection table, so its number of queues in use stays",
            fixed.join(", ")
        )
    })
}

/// Checks that the kernel's thread numbers are ours, by a thread that we know: this one.
fn sees_our_threads(bpf: &HostBpf) -> Result<(), BpfError> {
    let pid = std::process::id();
    let leader = ThreadKey {
        pid: Pid(pid),
        tid: Tid(pid),
    };
    let mut readings = Vec::new();
    bpf.read_threads(&[leader], &mut readings)?;
    let ours = crate::threads::start_ticks(std::path::Path::new("/proc/self/stat"));
    let theirs = readings.first().copied().flatten().map(|r| r.started);
    // Ticks are hundredths of a second, since boot as seen from our time namespace, which hardly anyone has.
    let same = ours
        .zip(theirs)
        .is_some_and(|(ticks, ns)| ticks.abs_diff(ns / 10_000_000) <= 1);
    if same {
        Ok(())
    } else {
        Err(BpfError::PidNamespace)
    }
}

#[cfg(feature = "libvirt")]
fn libvirt(uri: &str, config: &SenseConfig, bell: &Bell) -> Result<Box<dyn Source>, SenseError> {
    let proc = &config.roots.proc;
    let source = crate::libvirt::LibvirtSource::start(proc, uri, config.confirm, bell.clone())?;
    Ok(Box::new(source))
}

#[cfg(not(feature = "libvirt"))]
fn libvirt(uri: &str, _config: &SenseConfig, _bell: &Bell) -> Result<Box<dyn Source>, SenseError> {
    Err(SenseError::Libvirt {
        uri: uri.to_owned(),
        why: "this ostler was built without the feature `libvirt`; build one with it, or use QMP sockets".to_owned(),
    })
}

/// The daemon may make it on one thread and run it on another.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Sensor>();
};
