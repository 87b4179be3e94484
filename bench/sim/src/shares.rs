//! Where time of cores goes by what a run's steward recorded: no trace holds up who is counted, and a simulated run's record is of the same kind.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use ostler_model::{CpuSet, Groups, Nanos};
use ostler_record::{Period, Reader, Wall};

use super::cells::Window;

/// Time of one group's cores, s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Of all of its cores.
    pub cores: f64,
    pub busy: f64,
    /// Of it, in interrupts and softirqs.
    pub irq: f64,
    pub softirq: f64,
    /// Halted, by the machine's own counters; what is neither this nor busy is of a core's idle loop.
    pub halted: f64,
}

/// What went on in a step's whole periods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    /// s.
    pub seconds: f64,
    pub vcpu: Spent,
    pub nq: Spent,
    /// Run time of the guest's vCPUs and of its queues' workers, s.
    pub vcpus: f64,
    pub workers: f64,
    /// Of the host's.
    pub irqs: f64,
    pub switches: f64,
    pub exits: f64,
    /// Answers that left.
    pub answers: f64,
}

impl Shares {
    /// Those of a step, without its first 0.3 s, in which what came before is worked off.
    pub fn of(record: &Path, guest: &str, step: &[Window]) -> Result<Shares> {
        let mut shares = Shares::default();
        let (Some(first), Some(last)) = (step.first(), step.last()) else {
            return Ok(shares);
        };
        let mut groups: Option<Groups> = None;
        for period in Reader::open(record)?.range(Wall::MIN, Wall::MAX) {
            let period = period?;
            let at = seconds(period.snapshot.at);
            let began = at - seconds(period.snapshot.interval);
            // The groups in force in a period are those of the decision before.
            if let Some(groups) = &groups
                && began >= first.from + 0.3
                && at <= last.to
            {
                shares.add(&period, groups, guest);
            }
            groups = Some(period.plan.groups);
        }
        Ok(shares)
    }

    fn add(&mut self, period: &Period, groups: &Groups, guest: &str) {
        let snapshot = &period.snapshot;
        self.seconds += seconds(snapshot.interval);
        self.vcpu.add(period, groups.vcpu);
        self.nq.add(period, groups.nq);
        if let Some(found) = snapshot.guests.iter().find(|g| g.name == guest) {
            let run = |time: Nanos| seconds(time);
            self.vcpus += found.vcpus.iter().map(|v| run(v.usage.run)).sum::<f64>();
            let queues = found.vhost.iter().filter(|v| v.queue.is_some());
            self.workers += queues.map(|v| run(v.usage.run)).sum::<f64>();
            let answered = found.latency.filter(|latency| latency.age == Nanos::ZERO);
            self.answers += answered.map_or(0.0, |latency| latency.responses as f64);
        }
        let count = |of: Option<u64>| of.unwrap_or(0) as f64;
        self.irqs += count(snapshot.counters.irqs);
        self.switches += count(snapshot.counters.ctx_switches);
        self.exits += count(snapshot.counters.kvm_exits);
    }
}

impl Spent {
    fn add(&mut self, period: &Period, cores: CpuSet) {
        let snapshot = &period.snapshot;
        self.cores += seconds(snapshot.interval) * f64::from(cores.len());
        for usage in snapshot.cpus.iter().filter(|c| cores.contains(c.cpu)) {
            self.busy += seconds(usage.busy);
            self.irq += seconds(usage.irq);
            self.softirq += seconds(usage.softirq);
        }
        let pmu = snapshot.pmu.iter().filter(|c| cores.contains(c.cpu));
        self.halted += pmu.map(|c| seconds(c.halted)).sum::<f64>();
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = |of: f64| of / self.seconds.max(f64::MIN_POSITIVE);
        for (name, spent) in [("vCPUs'", &self.vcpu), ("queues'", &self.nq)] {
            let other = spent.busy - spent.irq - spent.softirq;
            write!(
                f,
                "  {:.2} {name} cores: {:.3} busy ({:.3} interrupts, {:.3} softirqs, {:.3} threads)",
                second(spent.cores),
                second(spent.busy),
                second(spent.irq),
                second(spent.softirq),
                second(other),
            )?;
            if spent.halted > 0.0 {
                let idle = spent.cores - spent.busy - spent.halted;
                write!(f, ", {:.3} in the idle loop", second(idle))?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "  run time: {:.3} vCPUs, {:.3} workers; a second: {:.0} answers, {:.0} interrupts, {:.0} switches, {:.0} exits",
            second(self.vcpus),
            second(self.workers),
            second(self.answers),
            second(self.irqs),
            second(self.switches),
            second(self.exits),
        )
    }
}

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}
