//! The host's side: a connection to each guest's agent, kept by one thread, trusted by none.
//!
//! The steward's loop must never wait for a guest. So [`AgentPool`] only ever exchanges notes with its thread: the caller
//! says what it wants of each guest and reads what was last heard of it, with its age. Both are levels, not events; nothing
//! queues, so nothing can overflow.
//!
//! Every guest may be hostile. `peer` is where that is met: a state machine without IO, which the thread
//! (`worker`) feeds with bounded reads, so that one guest's behaviour costs the others nothing.

mod peer;
mod socket;
mod state;
mod worker;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ostler_abi::guest::VCPUS_MAX;
use thiserror::Error;

pub use socket::Endpoint;
pub use state::{GuestNic, GuestState, Lie, Mac, QueueCount, QueueIrq, VcpuTime};

use worker::{Shared, Wake, Wanted};

/// The most guests one pool serves.
pub const GUESTS_MAX: usize = 4096;

/// What the host gave a guest, which bounds what its agent may claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestLimits {
    /// vCPUs, those that could yet be plugged in included.
    pub vcpus: u32,
    /// Queue pairs of the device that has most.
    pub max_queues: u32,
}

/// What is wanted of a guest. `None` leaves things as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// The vCPUs its workloads should use, ascending.
    pub vcpus: Option<Vec<u32>>,
    /// How many queue pairs the device with this address should use.
    pub queues: Option<(Mac, u32)>,
}

/// What the pool thinks of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Nothing is known yet.
    Connecting,
    /// It answers, in time and possibly the truth.
    Healthy,
    /// It doesn't answer: the guest is stopped, or the agent hangs.
    Silent,
    /// It answers late, or began to answer and didn't finish in time.
    Slow,
    /// It said what can't be so.
    Lying {
        /// What.
        what: Lie,
    },
    /// Nobody listens, whoever does hangs up, or the agent wants nothing to do with us.
    Refused,
}

/// A guest's state, as heard some time ago.
#[derive(Debug, Clone)]
pub struct Seen {
    /// What was heard.
    pub state: Arc<GuestState>,
    /// How long ago.
    pub age: Duration,
}

/// What is known of a guest's agent.
#[derive(Debug, Clone)]
pub struct AgentView {
    /// The last state heard; absent when there was none, or the agent has lied since.
    pub seen: Option<Seen>,
    /// What the pool thinks of it.
    pub health: Health,
    /// Why it doesn't do as desired, in its own words (printable, bounded).
    pub refusal: Option<String>,
    /// Whether a restore asked for is still to be acknowledged.
    pub restore_pending: bool,
}

/// How patient a pool is.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// How often each guest's state is asked for. It also tells the agent that the host is alive.
    pub state_interval: Duration,
    /// From a request to the last byte of its reply.
    pub reply_timeout: Duration,
    /// An answer later than this makes an agent slow, though it counts.
    pub slow_after: Duration,
    /// For a connection to be made.
    pub connect_timeout: Duration,
    /// How soon a setting that didn't take is asked for again.
    pub setting_retry: Duration,
    /// How long a guest whose vCPUs were set is left alone with its queues. To change their count takes its driver and agent more than all
    /// else that is asked of them, and vCPUs are set when those that there were are short of time.
    pub queues_after_vcpus: Duration,
    /// The pause after a first failure.
    pub backoff_min: Duration,
    /// The longest pause. It bounds how long a guest that was suspended stays unheard when it resumes.
    pub backoff_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            state_interval: Duration::from_millis(500),
            reply_timeout: Duration::from_secs(1),
            slow_after: Duration::from_millis(250),
            connect_timeout: Duration::from_secs(2),
            setting_retry: Duration::from_secs(1),
            queues_after_vcpus: Duration::from_millis(500),
            backoff_min: Duration::from_millis(250),
            backoff_max: Duration::from_secs(5),
        }
    }
}

/// Why a wish can't be taken on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PoolError {
    /// Not one of the pool's guests.
    #[error("guest {id} isn't in the pool; ensure() it first")]
    UnknownGuest {
        /// The guest.
        id: String,
    },
    /// The pool is full.
    #[error(
        "guest {id} doesn't fit: the pool has its {GUESTS_MAX} guests; forget() those that are gone"
    )]
    Full {
        /// The guest.
        id: String,
    },
    /// The set is empty, not ascending, or beyond the guest's vCPUs.
    #[error("guest {id} can't use vCPUs {vcpus:?}: name at least one, ascending, below {limit}")]
    Vcpus {
        /// The guest.
        id: String,
        /// What was asked for.
        vcpus: Vec<u32>,
        /// How many it has.
        limit: u32,
    },
    /// None, or more than the guest's devices have.
    #[error("guest {id} can't use {queues} queue pairs: name 1 to {limit}")]
    Queues {
        /// The guest.
        id: String,
        /// What was asked for.
        queues: u32,
        /// How many there can be.
        limit: u32,
    },
}

/// The agents of all guests. Every call returns at once.
#[derive(Debug)]
pub struct AgentPool {
    shared: Arc<Mutex<Shared>>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
}

impl AgentPool {
    /// A pool with its thread, and no guests.
    pub fn new(timing: Timing) -> io::Result<Self> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let wake = Arc::new(Wake::new()?);
        let thread = worker::spawn(Arc::clone(&shared), Arc::clone(&wake), timing)?;
        Ok(Self {
            shared,
            wake,
            thread: Some(thread),
        })
    }

    /// Takes a guest on, if it isn't yet. One whose endpoint or limits changed is started over; what is desired of it
    /// stays.
    pub fn ensure(
        &self,
        id: &str,
        endpoint: Endpoint,
        limits: GuestLimits,
    ) -> Result<(), PoolError> {
        let limits = GuestLimits {
            vcpus: limits.vcpus.min(VCPUS_MAX),
            ..limits
        };
        self.change(|shared| {
            let full = shared.wanted.len() >= GUESTS_MAX;
            match shared.wanted.get_mut(id) {
                Some(guest) if guest.endpoint == endpoint && guest.limits == limits => Ok(false),
                Some(guest) => {
                    guest.endpoint = endpoint;
                    guest.limits = limits;
                    Ok(true)
                }
                None if full => Err(PoolError::Full { id: id.into() }),
                None => {
                    let guest = Wanted::new(endpoint, limits);
                    shared.wanted.insert(id.into(), guest);
                    Ok(true)
                }
            }
        })
    }

    /// Lets a guest go. Its agent puts everything back once it finds the host silent.
    pub fn forget(&self, id: &str) {
        // Forgetting can't fail.
        let _ = self.change(|shared| {
            shared.known.remove(id);
            Ok(shared.wanted.remove(id).is_some())
        });
    }

    /// The guests in the pool.
    pub fn guests(&self) -> Vec<String> {
        self.lock().wanted.keys().cloned().collect()
    }

    /// What is known of a guest's agent; `None` where it isn't in the pool.
    pub fn view(&self, id: &str) -> Option<AgentView> {
        self.view_at(id, Instant::now())
    }

    /// The same, with ages as of `now`.
    pub fn view_at(&self, id: &str, now: Instant) -> Option<AgentView> {
        let shared = self.lock();
        let wanted = shared.wanted.get(id)?;
        let Some(known) = shared.known.get(id) else {
            return Some(AgentView {
                seen: None,
                health: Health::Connecting,
                refusal: None,
                restore_pending: wanted.restore > 0,
            });
        };
        Some(AgentView {
            seen: known.seen.as_ref().map(|(state, at)| Seen {
                state: Arc::clone(state),
                age: now.saturating_duration_since(*at),
            }),
            health: known.health.clone(),
            refusal: known.refusal.clone(),
            restore_pending: wanted.restore > known.restored,
        })
    }

    /// Says what is wanted of a guest from now on, in full. Saying it again costs nothing.
    pub fn desire(&self, id: &str, desired: Desired) -> Result<(), PoolError> {
        self.change(|shared| {
            let guest = shared
                .wanted
                .get_mut(id)
                .ok_or_else(|| PoolError::UnknownGuest { id: id.into() })?;
            check(id, &desired, guest.limits)?;
            let changed = guest.desired != desired;
            guest.desired = desired;
            Ok(changed)
        })
    }

    /// Asks a guest's agent to put back everything it changed; nothing is desired of it from then on. Watch
    /// [`AgentView::restore_pending`].
    pub fn restore(&self, id: &str) -> Result<(), PoolError> {
        self.change(|shared| {
            let guest = shared
                .wanted
                .get_mut(id)
                .ok_or_else(|| PoolError::UnknownGuest { id: id.into() })?;
            guest.desired = Desired::default();
            guest.restore = shared.generation + 1;
            Ok(true)
        })
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Shared) -> Result<bool, PoolError>,
    ) -> Result<(), PoolError> {
        let mut shared = self.lock();
        if change(&mut shared)? {
            shared.generation += 1;
            drop(shared);
            self.wake.wake();
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        // Whoever panicked holding it left whole values: each field is replaced, never half written.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AgentPool {
    fn drop(&mut self) {
        self.lock().stop = true;
        self.wake.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

fn check(id: &str, desired: &Desired, limits: GuestLimits) -> Result<(), PoolError> {
    if let Some(vcpus) = &desired.vcpus {
        let ascending = vcpus.is_sorted_by(|a, b| a < b);
        if !ascending || vcpus.last().is_none_or(|&last| last >= limits.vcpus) {
            return Err(PoolError::Vcpus {
                id: id.into(),
                vcpus: vcpus.clone(),
                limit: limits.vcpus,
            });
        }
    }
    if let Some((_, queues)) = desired.queues
        && !(1..=limits.max_queues).contains(&queues)
    {
        return Err(PoolError::Queues {
            id: id.into(),
            queues,
            limit: limits.max_queues,
        });
    }
    Ok(())
}

/// Drives a peer as `data` says: a script of bytes arriving, time passing and connections ending. Panics where an
/// invariant doesn't hold. For the fuzzer, and for a property test that runs the same.
#[doc(hidden)]
pub fn fuzz_entry(data: &[u8]) {
    let _ = peer::fuzz(data);
}
