//! The agent in the guest: makes its workloads and its network queues follow the vCPUs the host can serve.
//!
//! The host's scheduler can take pCPUs away from a guest, but only the guest knows what runs on which vCPU. Left alone it
//! spreads work over all of them, and each one the host can't serve holds up whatever runs there. So the
//! host names a set of vCPUs, and the agent confines workloads to it (`cgroups`, `threads`), lets the network queues
//! interrupt and transmit there only, and uses as many queues as it is told (`nics`).
//!
//! The agent is the guest's servant first. It changes nothing but what it is asked, keeps what was there before, and puts all of
//! it back when told to, when it ends, and when the host has been silent for [`Config::dead_man`] - for then nobody looks after the
//! guest, and its own settings are the best there are.
//!
//! [`Agent`] does no IO but through [`Kernel`] and is told the time; [`serve`] gives it connections.

mod cgroups;
mod ethtool;
#[cfg(test)]
mod fake;
mod kernel;
mod ledger;
mod nics;
pub mod privilege;
pub mod serve;
mod threads;
mod times;

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use ostler_abi::guest::{VCPUS_MAX, bits, bounded_text, frame, wire};
use tracing::{debug, info, warn};
use wire::{Capability, ErrorCode, reply, request};

pub use cgroups::Scope;
pub use kernel::{Channels, Kernel, Linux};

use cgroups::Cgroups;
use ledger::Ledger;
use nics::{Nics, Queues};
use threads::Threads;

use crate::cpulist;

/// How an agent behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which workloads to confine.
    pub scope: Scope,
    /// Whether to change anything at all.
    pub act: bool,
    /// After how much silence of the host everything is put back.
    pub dead_man: Duration,
    /// How often newcomers are confined too.
    pub reassert: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            scope: Scope::All,
            act: true,
            dead_man: Duration::from_secs(10),
            reassert: Duration::from_secs(1),
        }
    }
}

/// The agent's state. Feed it requests and ticks.
#[derive(Debug)]
pub struct Agent<K> {
    kernel: K,
    config: Config,
    /// The set to hold, until it is restored.
    wanted: Option<Vec<u32>>,
    cgroups: Option<Cgroups>,
    ledger: Ledger,
    threads: Threads,
    nics: Nics,
    queues: Queues,
    last_heard: Instant,
    last_asserted: Instant,
}

/// What came of a change that may succeed in part.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Done {
    changed: bool,
    /// Settings the kernel refused.
    left: u32,
}

impl Done {
    fn count(&mut self, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.changed = true,
            Err(error) => {
                debug!(%error, "a setting was refused");
                self.left += 1;
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.changed |= other.changed;
        self.left += other.left;
    }
}

/// A request that couldn't be done.
struct Refusal {
    code: ErrorCode,
    text: String,
}

impl Refusal {
    fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }
}

/// The kernel's refusals carry what was tried.
fn kernel_refusal(what: &'static str) -> impl FnOnce(io::Error) -> Refusal {
    move |error| Refusal::new(ErrorCode::Kernel, format!("{what}: {error}"))
}

impl<K: Kernel> Agent<K> {
    /// An agent that has changed nothing yet.
    pub fn new(kernel: K, config: Config, now: Instant) -> Self {
        let cgroups = Cgroups::find(&kernel);
        Self {
            kernel,
            config,
            wanted: None,
            cgroups,
            ledger: Ledger::default(),
            threads: Threads::default(),
            nics: Nics::default(),
            queues: Queues::default(),
            last_heard: now,
            last_asserted: now,
        }
    }

    /// Answers one request.
    pub fn handle(&mut self, now: Instant, request: &wire::Request) -> wire::Reply {
        let outcome = match &request.body {
            None => Err(Refusal::new(
                ErrorCode::Malformed,
                "a request without a body, or of a kind this agent doesn't know",
            )),
            Some(body) => {
                self.last_heard = now;
                match body {
                    request::Body::Hello(_) => Ok(reply::Body::Hello(self.hello())),
                    request::Body::GetState(_) => Ok(reply::Body::State(self.state(now))),
                    request::Body::SetVcpus(set) => self.set_vcpus(now, set),
                    request::Body::SetQueues(set) => self.set_queues(now, set),
                    request::Body::Restore(_) => {
                        let changed = self.has_changes();
                        let left_alone = self.restore(now);
                        Ok(ack(changed, left_alone))
                    }
                }
            }
        };
        let body = outcome.unwrap_or_else(|refusal| {
            reply::Body::Error(wire::Error {
                code: refusal.code.into(),
                text: bounded_text(&refusal.text),
                supported_versions: Vec::new(),
            })
        });
        wire::Reply { body: Some(body) }
    }

    /// Lets time act: puts everything back after too long a silence, else confines newcomers.
    pub fn tick(&mut self, now: Instant) {
        if now.duration_since(self.last_heard) >= self.config.dead_man {
            if self.has_changes() {
                warn!("the host is silent: everything is put back");
                self.restore(now);
            }
        } else if now.duration_since(self.last_asserted) >= self.config.reassert {
            self.last_asserted = now;
            if let Some(wanted) = self.wanted.clone()
                && let Err(refusal) = self.assert_vcpus(now, &wanted, &self.online())
            {
                warn!(why = refusal.text, "newcomers may run unconfined");
            }
        }
    }

    /// Whether there is anything to put back.
    pub fn has_changes(&self) -> bool {
        self.wanted.is_some()
            || !self.ledger.is_empty()
            || !self.threads.is_empty()
            || !self.queues.is_empty()
            || self.cgroups.as_ref().is_some_and(Cgroups::changed)
    }

    /// Puts everything back that still holds what the agent wrote; the count is of what doesn't, or can't be written.
    pub fn restore(&mut self, now: Instant) -> u32 {
        self.wanted = None;
        // What still is ours must be judged before the queue count goes back, since the driver resets settings with it.
        let (due, foreign) = self.ledger.take_due(&self.kernel);
        let mut left = foreign;
        if !self.queues.is_empty() {
            let nics = self.nics.all(&self.kernel, now);
            left += self.queues.restore(&self.kernel, &nics);
        }
        left += ledger::put_back(&self.kernel, due);
        let (roots, online) = (self.root_processes(), self.online());
        left += self.threads.restore(&self.kernel, roots.as_ref(), &online);
        if let Some(cgroups) = &mut self.cgroups {
            left += cgroups.disable(&self.kernel);
        }
        info!(left_alone = left, "restored");
        left
    }

    fn hello(&self) -> wire::Hello {
        let mut capabilities = Vec::new();
        if self.config.act {
            capabilities = vec![Capability::Vcpus.into(), Capability::Queues.into()];
        }
        wire::Hello {
            versions: frame::VERSIONS.iter().map(|&v| v.into()).collect(),
            build: concat!("ostler-guest ", env!("CARGO_PKG_VERSION")).into(),
            capabilities,
        }
    }

    fn state(&mut self, now: Instant) -> wire::State {
        let online = self.online();
        let applied = self.wanted.as_ref().unwrap_or(&online);
        let nics = self
            .nics
            .all(&self.kernel, now)
            .into_iter()
            .map(|nic| wire::Nic {
                irqs: nic
                    .irqs_in_use()
                    .filter_map(|irq| {
                        let cpus = cpulist::parse_list(&self.kernel.read(&irq.path()).ok()?)?;
                        Some(wire::QueueIrq {
                            irq: irq.irq,
                            queue: irq.queue,
                            transmit: irq.transmit,
                            vcpus: bits::from_ids(cpus),
                        })
                    })
                    .collect(),
                name: nic.name,
                mac: nic.mac.to_vec(),
                combined_current: nic.channels.map_or(0, |channels| channels.combined),
                combined_max: nic.channels.map_or(0, |channels| channels.combined_max),
            })
            .collect();
        wire::State {
            applied_vcpus: bits::from_ids(applied.iter().copied()),
            online_vcpus: bits::from_ids(online),
            confined: self.wanted.is_some(),
            nics,
            vcpu_times: times::read(&self.kernel)
                .into_iter()
                .map(|time| wire::VcpuTime {
                    vcpu: time.vcpu,
                    busy_ns: time.busy_ns,
                    steal_ns: time.steal_ns,
                })
                .collect(),
            monotonic_ns: self.kernel.monotonic_ns(),
            time_resolution_ns: times::RESOLUTION_NS,
        }
    }

    fn set_vcpus(&mut self, now: Instant, set: &wire::SetVcpus) -> Result<reply::Body, Refusal> {
        self.must_act()?;
        let vcpus = bits::to_ids(&set.vcpus, VCPUS_MAX)
            .map_err(|error| Refusal::new(ErrorCode::Invalid, error.to_string()))?;
        if vcpus.is_empty() {
            return Err(Refusal::new(
                ErrorCode::Invalid,
                "no vCPU named; at least one must stay",
            ));
        }
        let online = self.online();
        if let Some(vcpu) = vcpus.iter().find(|vcpu| !online.contains(vcpu)) {
            return Err(Refusal::new(
                ErrorCode::Invalid,
                format!(
                    "vCPU {vcpu} isn't online; {} are",
                    cpulist::format_list(&online)
                ),
            ));
        }
        self.last_asserted = now;
        let fresh = self.wanted.as_ref() != Some(&vcpus);
        let done = self.assert_vcpus(now, &vcpus, &online)?;
        self.wanted = Some(vcpus);
        Ok(ack(fresh || done.changed, done.left))
    }

    /// Makes the guest be as `vcpus` want it. Failing to confine one cgroup or to steer one queue doesn't stop the rest; failing to
    /// confine any does.
    fn assert_vcpus(
        &mut self,
        now: Instant,
        vcpus: &[u32],
        online: &[u32],
    ) -> Result<Done, Refusal> {
        let mut done = Done::default();
        if let Some(cgroups) = &mut self.cgroups {
            let targets = cgroups
                .targets(&self.kernel, &self.config.scope)
                .map_err(kernel_refusal("can't find the cgroups to confine"))?;
            let mut confined = targets.is_empty();
            let mut refused = None;
            for target in targets {
                match Cgroups::confine(&self.kernel, &mut self.ledger, &target, vcpus) {
                    Ok(changed) => {
                        confined = true;
                        done.changed |= changed;
                    }
                    Err(error) => {
                        done.left += 1;
                        refused = Some(error);
                    }
                }
            }
            if let Some(error) = refused.filter(|_| !confined) {
                return Err(kernel_refusal("can't set any cgroup's cpuset")(error));
            }
        } else if self.config.scope != Scope::All {
            return Err(Refusal::new(
                ErrorCode::Unsupported,
                "no cgroup v2 cpuset here, so named cgroups can't be confined",
            ));
        }
        if self.config.scope == Scope::All {
            let roots = self.root_processes();
            done.changed |= self
                .threads
                .confine(&self.kernel, roots.as_ref(), vcpus, online)
                .map_err(kernel_refusal("can't confine threads"))?;
        }
        for nic in self.nics.all(&self.kernel, now) {
            done.add(self.steer(&nic, vcpus));
        }
        Ok(done)
    }

    fn set_queues(&mut self, now: Instant, set: &wire::SetQueues) -> Result<reply::Body, Refusal> {
        self.must_act()?;
        let mut named = self
            .nics
            .all(&self.kernel, now)
            .into_iter()
            .filter(|nic| nic.mac == set.mac[..]);
        let (Some(nic), None) = (named.next(), named.next()) else {
            return Err(Refusal::new(
                ErrorCode::Invalid,
                format!(
                    "the MAC {} doesn't name exactly one NIC",
                    nics::format_mac(&set.mac[..set.mac.len().min(6)])
                ),
            ));
        };
        let Some(channels) = nic.channels else {
            return Err(Refusal::new(
                ErrorCode::Unsupported,
                format!("the driver of {} has no queue count", nic.name),
            ));
        };
        if !(1..=channels.combined_max).contains(&set.count) {
            return Err(Refusal::new(
                ErrorCode::Invalid,
                format!(
                    "{} has 1 to {} queue pairs",
                    nic.name, channels.combined_max
                ),
            ));
        }
        let changed = self
            .queues
            .set(&self.kernel, &mut self.ledger, &nic, set.count)
            .map_err(kernel_refusal("can't set the queue count"))?;
        let mut done = Done { changed, left: 0 };
        if changed && let Some(wanted) = self.wanted.clone() {
            // No virtio device gets other interrupts with another count, and no other's are known.
            let mut nic = nic;
            nic.channels = Some(Channels {
                combined: set.count,
                ..channels
            });
            done.add(self.steer(&nic, &wanted));
        }
        Ok(ack(done.changed, done.left))
    }

    fn steer(&mut self, nic: &nics::Nic, vcpus: &[u32]) -> Done {
        let (ledger, nics) = (&mut self.ledger, &mut self.nics);
        nics::steer(&self.kernel, ledger, nics, nic, vcpus)
    }

    fn must_act(&self) -> Result<(), Refusal> {
        if self.config.act {
            Ok(())
        } else {
            Err(Refusal::new(
                ErrorCode::Unsupported,
                "this agent was started with --no-act",
            ))
        }
    }

    fn online(&self) -> Vec<u32> {
        let text = self.kernel.read("/sys/devices/system/cpu/online");
        let online = text.ok().as_deref().and_then(cpulist::parse_list);
        // Whatever runs this has a vCPU 0, online or not worth speaking of.
        online.filter(|cpus| !cpus.is_empty()).unwrap_or(vec![0])
    }

    /// The processes only affinity can confine; `None` means all.
    fn root_processes(&self) -> Option<BTreeSet<i32>> {
        let root = self.cgroups.as_ref()?.root();
        let text = self
            .kernel
            .read(&format!("{root}/cgroup.procs"))
            .unwrap_or_default();
        Some(text.lines().filter_map(|pid| pid.parse().ok()).collect())
    }
}

fn ack(changed: bool, left_alone: u32) -> reply::Body {
    reply::Body::Ack(wire::Ack {
        changed,
        left_alone,
    })
}

#[cfg(test)]
mod tests;
