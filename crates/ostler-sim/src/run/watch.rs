//! What is counted and sampled in a cell: by looking at the host from outside, as the lab's sampler does.

use ostler_model::{GuestId, Nanos};
use ostler_outcome::events::{BoostPeriod, Counters, GuestCounters, GuestSample, MemoryCounters};

use crate::host::View;
use crate::steward::StewardGuest;
use crate::tenants::{MemoryTold, Tenants};

/// What a guest has had and done until a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    ran: u64,
    work: u64,
}

/// What was read at the sample before.
#[derive(Clone, Debug, Default)]
pub(super) struct Sampler {
    cores: Vec<u64>,
    guests: Vec<Had>,
    at: Nanos,
}

fn had(guest: &StewardGuest, view: &View<'_>, tenants: &Tenants) -> Had {
    let threads = guest.vcpus.iter().chain(&guest.vhost);
    Had {
        ran: threads
            .map(|thread| view.charged(view.thread_time(*thread)))
            .sum(),
        work: rounds(tenants.done(guest.number)),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounds of a run are counted from zero, and are far below 2^53"
)]
fn rounds(done: f64) -> u64 {
    done as u64
}

impl Sampler {
    /// Each core's busy share since the sample before, and each guest.
    pub fn sample(
        &mut self,
        view: &View<'_>,
        tenants: &Tenants,
        guests: &[StewardGuest],
        counts: impl Fn(u32) -> bool,
    ) -> (Vec<f32>, Vec<GuestSample>) {
        let past = view.now().saturating_sub(self.at).0.max(1);
        self.at = view.now();
        let cores: Vec<u64> = view
            .online()
            .iter()
            .map(|cpu| view.core_time(cpu).busy())
            .collect();
        self.cores.resize(cores.len(), 0);
        let busy = cores.iter().zip(&self.cores);
        let busy = busy.map(|(now, then)| (now - then) as f32 / past as f32);
        let busy = busy.collect();
        self.cores = cores;
        self.guests.resize(guests.len(), Had::default());
        let samples = guests.iter().zip(&mut self.guests).map(|(guest, before)| {
            let now = had(guest, view, tenants);
            let since = now.ran - before.ran;
            *before = now;
            GuestSample {
                name: guest.name.clone(),
                cpu_ms: since / 1_000_000,
                cpus: view.cpuset(guest.group),
                frozen: view.frozen(guest.group),
                idle: view.is_idle(guest.group),
                work: counts(guest.number).then_some(now.work),
            }
        });
        (busy, samples.collect())
    }
}

/// All counts at a moment, to be taken from those of a later one.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    at: Nanos,
    begun: u64,
    device_irqs: u64,
    ipis: u64,
    exits: u64,
    busy: u64,
    energy_pj: u128,
    memory: Option<MemoryTold>,
    guests: Vec<(Had, u64, u64)>,
}

impl Reading {
    pub fn new(view: &View<'_>, tenants: &Tenants, guests: &[StewardGuest]) -> Reading {
        let counters = view.counters();
        let exits = tenants.guests.iter().flat_map(|guest| &guest.vcpus);
        let cores = view.online();
        Reading {
            at: view.now(),
            begun: counters.begun,
            device_irqs: counters.device_irqs,
            ipis: counters.ipis,
            exits: exits.map(|vcpu| vcpu.exit_count).sum(),
            busy: cores.iter().map(|cpu| view.core_time(cpu).busy()).sum(),
            energy_pj: view.energy_pj(),
            memory: tenants.memory_told(),
            guests: guests
                .iter()
                .map(|guest| {
                    let threads = guest.vcpus.iter().chain(&guest.vhost);
                    let moves = threads.map(|thread| view.moves(*thread));
                    let (switches, migrations) =
                        moves.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
                    (had(guest, view, tenants), switches, migrations)
                })
                .collect(),
        }
    }

    /// What was counted since an earlier one.
    pub fn since(
        &self,
        before: &Reading,
        guests: &[StewardGuest],
        counts: impl Fn(u32) -> bool,
    ) -> Counters {
        let of = guests.iter().zip(self.guests.iter().zip(&before.guests));
        let seconds = self.at.saturating_sub(before.at).as_secs_f64();
        let memory = self.memory.zip(before.memory);
        Counters {
            seconds,
            memory: memory.map(|(now, then)| {
                Box::new(MemoryCounters {
                    moved_bytes: now.moved - then.moved,
                    local_unused: (now.unused_s - then.unused_s) / seconds,
                })
            }),
            context_switches: self.begun - before.begun,
            device_irqs: self.device_irqs - before.device_irqs,
            ipis: self.ipis - before.ipis,
            kvm_exits: Some(self.exits - before.exits),
            busy_core_seconds: Nanos(self.busy - before.busy).as_secs_f64(),
            energy_j: Some((self.energy_pj - before.energy_pj) as f64 / 1e12),
            guests: of
                .map(|(guest, (now, then))| GuestCounters {
                    name: guest.name.clone(),
                    cpu_seconds: Nanos(now.0.ran - then.0.ran).as_secs_f64(),
                    context_switches: now.1 - then.1,
                    migrations: now.2 - then.2,
                    work: counts(guest.number).then(|| (now.0.work - then.0.work) as f64),
                })
                .collect(),
            ..Counters::default()
        }
    }
}

/// What the scheduler of vCPUs had done by now, for and to these guests; `None` where it has none of them.
pub(super) fn boost(
    view: &View<'_>,
    guests: &[StewardGuest],
    of: &[GuestId],
) -> Option<BoostPeriod> {
    let told = guests.iter().filter(|guest| of.contains(&guest.id));
    let told: Vec<_> = told
        .filter_map(|guest| view.guest_boost(&guest.id, guest.group, &guest.vcpus))
        .collect();
    (!told.is_empty()).then(|| BoostPeriod {
        unix_ms: view.now().0 / 1_000_000,
        guests: told,
    })
}
