//! Agents in guests: what they say goes into snapshots, what the plan asks of them goes out.
//!
//! The plan speaks of *how many* vCPUs and queue pairs a guest should use. Here that becomes which: the first vCPUs of those online, and the queues of the
//! vNIC that has most of them and whose address the host knows. An agent that refuses is left alone for a while ([`REFUSED_FOR`]): asking it anew each
//! period would make the plan go back and forth with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ostler_act::GuestPort;
use ostler_guest::host::{
    AgentPool, AgentView as Told, Desired, Endpoint, GuestLimits, GuestNic, GuestState, Health,
    Mac, Timing,
};
use ostler_model::config::AgentConfig;
use ostler_model::{
    AgentHealth, AgentState, AgentView, Class, GuestId, GuestView, Intent, Nanos, Snapshot,
};
use tracing::{debug, info};

use crate::steward::Agents;

/// How long an agent that refused is taken at its word.
const REFUSED_FOR: Nanos = Nanos::from_secs(60);

/// How long the steward's end waits for agents to put things back; those that don't do it by themselves when the host is silent.
const RESTORE_WAIT: Duration = Duration::from_secs(1);

/// What is remembered of a guest between periods.
#[derive(Debug, Default)]
struct Known {
    online: Vec<u32>,
    /// The managed vNIC.
    mac: Option<Mac>,
    /// Why it refused, and until when that is believed.
    refused: Option<(String, Nanos)>,
    /// Whether it ever answered.
    answered: bool,
}

/// Carries wishes to agents. Never waits for one.
#[derive(Debug)]
pub struct AgentPort {
    pool: AgentPool,
    known: Mutex<BTreeMap<GuestId, Known>>,
}

/// Fills snapshots with what agents say; with nothing where agents are off.
#[derive(Debug)]
pub struct GuestAgents {
    port: Option<Arc<AgentPort>>,
    vsock_port: u32,
}

impl AgentPort {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<GuestId, Known>> {
        // Entries are replaced whole: a panic elsewhere leaves none half written.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until agents have put back what they were asked to, for a bounded time.
    pub fn await_restores(&self) {
        let due = Instant::now() + RESTORE_WAIT;
        let pending = || {
            self.pool
                .guests()
                .iter()
                .filter_map(|id| self.pool.view(id))
                .any(|view| view.restore_pending && view.health == Health::Healthy)
        };
        while pending() && Instant::now() < due {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl GuestPort for AgentPort {
    fn desire(&self, guest: &GuestId, vcpus_active: Option<u32>, queues: Option<u32>) {
        let known = self.lock();
        let Some(about) = known.get(guest) else {
            return;
        };
        let vcpus = vcpus_active.and_then(|count| {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let first: Vec<u32> = about.online.iter().copied().take(count).collect();
            (!first.is_empty()).then_some(first)
        });
        let desired = Desired {
            vcpus,
            queues: about.mac.zip(queues),
        };
        drop(known);
        if let Err(error) = self.pool.desire(guest.as_str(), desired) {
            debug!(%guest, "could not ask an agent: {error}");
        }
    }

    fn restore(&self, guest: &GuestId) {
        if let Err(error) = self.pool.restore(guest.as_str()) {
            debug!(%guest, "could not ask an agent to put things back: {error}");
        }
    }
}

impl GuestAgents {
    pub(super) fn start(
        config: &AgentConfig,
    ) -> anyhow::Result<(GuestAgents, Option<Arc<AgentPort>>)> {
        let port = if config.enabled {
            let pool = AgentPool::new(Timing::default())
                .context("could not start the thread that speaks with agents")?;
            Some(Arc::new(AgentPort {
                pool,
                known: Mutex::default(),
            }))
        } else {
            None
        };
        let agents = GuestAgents {
            port: port.clone(),
            vsock_port: config.port,
        };
        Ok((agents, port))
    }
}

impl Agents for GuestAgents {
    fn fill(&mut self, intent: &Intent, snapshot: &mut Snapshot) {
        let Some(port) = &self.port else {
            return;
        };
        let now = snapshot.at;
        let mut known = port.lock();
        known.retain(|id, _| {
            let stays = snapshot
                .guest(id)
                .is_some_and(|guest| intent.classify(guest).0 != Class::Unmanaged);
            if !stays {
                port.pool.forget(id.as_str());
            }
            stays
        });
        for guest in &mut snapshot.guests {
            let Some(cid) = guest.vsock_cid else {
                continue;
            };
            // An unmanaged guest is left as it is found: nobody knocks there either.
            if intent.classify(guest).0 == Class::Unmanaged {
                continue;
            }
            let endpoint = Endpoint::Vsock {
                cid,
                port: self.vsock_port,
            };
            if let Err(error) = port.pool.ensure(guest.id.as_str(), endpoint, limits(guest)) {
                debug!(guest = %guest.id, "{error}");
                continue;
            }
            let about = known.entry(guest.id.clone()).or_default();
            if let Some(told) = port.pool.view(guest.id.as_str()) {
                guest.agent = hear(about, guest, &told, now);
            }
        }
    }
}

/// What the host gave a guest.
fn limits(guest: &GuestView) -> GuestLimits {
    GuestLimits {
        vcpus: u32::try_from(guest.vcpus.len()).unwrap_or(u32::MAX),
        max_queues: guest
            .taps
            .iter()
            .map(|tap| tap.queues)
            .max()
            .unwrap_or(0)
            .max(1),
    }
}

/// What an agent said, as the model has it. A guest whose agent never answered has none.
fn hear(about: &mut Known, guest: &GuestView, told: &Told, now: Nanos) -> Option<AgentView> {
    let state = told.seen.as_ref().map(|seen| {
        let nic = managed_nic(guest, &seen.state);
        about.online.clone_from(&seen.state.online_vcpus);
        about.mac = nic.map(|nic| nic.mac);
        let queues = nic.and_then(|nic| nic.queues);
        AgentState {
            vcpus_online: seen.state.online_vcpus.clone(),
            vcpus_active: seen.state.applied_vcpus.clone(),
            queues: queues.map_or(0, |queues| queues.current),
            queues_max: queues.map_or(0, |queues| queues.max),
        }
    });
    about.answered |= state.is_some() || matches!(told.health, Health::Lying { .. });
    if !about.answered {
        return None;
    }
    if let Some(why) = &told.refusal {
        if about.refused.is_none() {
            info!(guest = %guest.id, why, "an agent refuses to act");
        }
        about.refused = Some((why.clone(), now.saturating_add(REFUSED_FOR)));
    } else if about
        .refused
        .as_ref()
        .is_some_and(|(_, until)| *until <= now)
    {
        about.refused = None;
    }
    let health = match (&told.health, &about.refused) {
        (Health::Lying { what }, _) => AgentHealth::Lying(what.to_string()),
        (Health::Silent | Health::Connecting | Health::Refused, _) => AgentHealth::Silent,
        (Health::Slow, _) => AgentHealth::Slow,
        (Health::Healthy, Some((why, _))) => AgentHealth::Refused(why.clone()),
        (Health::Healthy, None) => AgentHealth::Healthy,
    };
    let age = told.seen.as_ref().map_or(Nanos::ZERO, |seen| {
        Nanos(u64::try_from(seen.age.as_nanos()).unwrap_or(u64::MAX))
    });
    Some(AgentView { health, state, age })
}

/// The vNIC whose queues are managed: of those whose address the host gave, the one with most queue pairs.
fn managed_nic<'a>(guest: &GuestView, state: &'a GuestState) -> Option<&'a GuestNic> {
    let ours = |nic: &&GuestNic| {
        let mac = format_mac(nic.mac);
        guest
            .taps
            .iter()
            .any(|tap| tap.guest_mac.as_deref() == Some(mac.as_str()))
    };
    state
        .nics
        .iter()
        .filter(ours)
        .max_by_key(|nic| nic.queues.map_or(0, |queues| queues.max))
}

fn format_mac(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
