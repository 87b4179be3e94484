//! Counts since the steward started: what a snapshot tells of one interval, a scraper wants as totals.

use std::collections::BTreeMap;

use ostler_model::{CpuId, CpuPmu, GuestId, GuestPmu, Nanos, Outcome, Snapshot};

/// Upper bounds of the histograms' buckets, in seconds: from 10 us to 1 s.
pub const BUCKETS_S: [f64; 11] = [
    0.000_01, 0.000_03, 0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0,
];

/// A distribution of times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Counts per bucket of [`BUCKETS_S`], and above them all.
    pub counts: [u64; BUCKETS_S.len() + 1],
    /// The sum of all times, in seconds.
    pub sum_s: f64,
    /// The last time.
    pub last: Nanos,
}

impl Histogram {
    /// Counts a time.
    pub fn observe(&mut self, span: Nanos) {
        let seconds = span.as_secs_f64();
        let bucket = BUCKETS_S.partition_point(|&bound| bound < seconds);
        self.counts[bucket] += 1;
        self.sum_s += seconds;
        self.last = span;
    }
}

/// A guest's counts. Forgotten when the guest is gone, so that they are bounded by the guests there are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuestTotals {
    /// Periods whose P95 exceeded the objective.
    pub slo_violations: u64,
    /// Periods in which the guest's response times were seen.
    pub slo_samples: u64,
    /// Run time of its vCPUs.
    pub vcpu_run: Nanos,
    /// Time its vCPUs waited for a CPU.
    pub vcpu_wait: Nanos,
    /// Run time of its vhost workers.
    pub vhost_run: Nanos,
}

/// Counts since the steward started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Decisions made.
    pub decisions: u64,
    /// Of them, those that asked for something new.
    pub plan_changes: u64,
    /// What the checker had against plans.
    pub violations: u64,
    /// Periods that could not be sensed.
    pub sense_failures: u64,
    /// Periods skipped because the one before took too long.
    pub missed_periods: u64,
    /// Configurations read again, and of them those refused.
    pub reloads: u64,
    /// Configurations refused.
    pub reloads_refused: u64,
    /// Values written.
    pub written: u64,
    /// Writes that failed.
    pub failures: u64,
    /// Values found changed by others.
    pub foreign_changes: u64,
    /// Context switches; the counters of the host are `None` where it can't tell.
    pub ctx_switches: Option<u64>,
    /// Tasks moved between CPUs.
    pub migrations: Option<u64>,
    /// Interrupts.
    pub irqs: Option<u64>,
    /// Exits from guests.
    pub kvm_exits: Option<u64>,
    /// Busy time per CPU.
    pub busy: BTreeMap<CpuId, Nanos>,
    /// The machine's own counters per CPU, where it has any.
    pub pmu: BTreeMap<CpuId, CpuPmu>,
    /// The same per guest, of those there are.
    pub guest_pmu: BTreeMap<GuestId, GuestPmu>,
    /// Per guest.
    pub guests: BTreeMap<GuestId, GuestTotals>,
    /// Interrupts per NIC.
    pub nic_irqs: BTreeMap<String, u64>,
    /// How late periods began.
    pub lateness: Histogram,
    /// Time spent sensing.
    pub sense: Histogram,
    /// Time spent deciding and checking.
    pub decide: Histogram,
    /// Time spent acting.
    pub act: Histogram,
}

impl Totals {
    /// Adds what a snapshot tells. `slo` knows a guest's objective.
    pub fn add_snapshot(
        &mut self,
        snapshot: &Snapshot,
        slo: impl Fn(&ostler_model::GuestView) -> Option<Nanos>,
    ) {
        let add = |total: &mut Option<u64>, seen: Option<u64>| {
            if let Some(seen) = seen {
                *total = Some(total.unwrap_or(0).saturating_add(seen));
            }
        };
        let counters = &snapshot.counters;
        add(&mut self.ctx_switches, counters.ctx_switches);
        add(&mut self.migrations, counters.migrations);
        add(&mut self.irqs, counters.irqs);
        add(&mut self.kvm_exits, counters.kvm_exits);
        for cpu in &snapshot.cpus {
            let busy = self.busy.entry(cpu.cpu).or_default();
            *busy = busy.saturating_add(cpu.busy);
        }
        for counted in &snapshot.pmu {
            self.pmu.entry(counted.cpu).or_default().add(counted);
        }
        for counted in &snapshot.guest_pmu {
            self.guest_pmu
                .entry(counted.id.clone())
                .or_insert_with(|| GuestPmu::new(counted.id.clone()))
                .add(counted);
        }
        self.guest_pmu.retain(|id, _| snapshot.guest(id).is_some());
        self.guests.retain(|id, _| snapshot.guest(id).is_some());
        for guest in &snapshot.guests {
            let totals = self.guests.entry(guest.id.clone()).or_default();
            for vcpu in &guest.vcpus {
                totals.vcpu_run = totals.vcpu_run.saturating_add(vcpu.usage.run);
                totals.vcpu_wait = totals.vcpu_wait.saturating_add(vcpu.usage.wait);
            }
            for worker in &guest.vhost {
                totals.vhost_run = totals.vhost_run.saturating_add(worker.usage.run);
            }
            // Only this period's response times count: an old window was counted in its own.
            if let (Some(slo), Some(latency)) = (slo(guest), guest.latency)
                && latency.age == Nanos::ZERO
            {
                totals.slo_samples += 1;
                totals.slo_violations += u64::from(latency.p95 > slo);
            }
        }
        self.nic_irqs
            .retain(|name, _| snapshot.nics.iter().any(|nic| nic.name == *name));
        for nic in &snapshot.nics {
            let total = self.nic_irqs.entry(nic.name.clone()).or_default();
            *total += nic.irqs.iter().map(|irq| irq.count).sum::<u64>();
        }
    }

    /// Adds what came of a plan.
    pub fn add_outcome(&mut self, outcome: &Outcome) {
        self.written += u64::from(outcome.written);
        self.failures += outcome.failures.len() as u64;
        self.foreign_changes += outcome.foreign.len() as u64;
    }
}
