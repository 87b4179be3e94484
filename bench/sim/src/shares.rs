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
    /// Those of a step of a cell with such a record.
    pub fn of(record: &Path, guest: &str, step: &[Window]) -> Result<Shares> {
        let periods = Reader::open(record)?
            .range(Wall::MIN, Wall::MAX)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Shares::seen(periods.iter(), guest, step))
    }

    /// Those of a step, without its first 0.3 s, in which what came before is worked off.
    fn seen<'a>(periods: impl Iterator<Item = &'a Period>, guest: &str, step: &[Window]) -> Shares {
        let mut shares = Shares::default();
        let (Some(first), Some(last)) = (step.first(), step.last()) else {
            return shares;
        };
        let mut groups: Option<Groups> = None;
        for period in periods {
            let at = seconds(period.snapshot.at);
            let began = at - seconds(period.snapshot.interval);
            // The groups in force in a period are those of the decision before.
            if let Some(groups) = &groups
                && began >= first.from + 0.3
                && at <= last.to
            {
                shares.add(period, groups, guest);
            }
            groups = Some(period.plan.groups);
        }
        shares
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

#[cfg(test)]
mod tests {
    use ostler_sim::run::{Meanwhile, Run, Watch};
    use ostler_sim::scenario;

    use super::*;

    /// A simulated host of two cores for vCPUs and one for queues, at 2400 requests a second: all time is somebody's, and what threads ran is in it.
    #[test]
    fn time_of_cores_is_told_apart() {
        let text = include_str!("../busy.toml");
        let scenario = scenario::parse(text, Path::new("busy.toml")).expect("a scenario");
        let watch = Watch {
            periods: true,
            ..Watch::default()
        };
        let run = Run::new(scenario, 1, watch).expect("a run");
        let mut periods = Vec::new();
        run.cell(&run.cells()[0], &mut |what| {
            if let Meanwhile::Period(period) = what {
                periods.push(*period);
            }
        })
        .expect("a cell");
        // It settles for two seconds, and eight are at 400 a second.
        let window = |from: f64| Window {
            from,
            to: from + 1.0,
            rate: 2400.0,
            answers: 2400.0,
            first: false,
        };
        let shares = Shares::seen(periods.iter(), "lc", &[window(10.0), window(11.0)]);
        let near = |is: f64, wanted: f64, by: f64| assert!((is - wanted).abs() < by, "{shares:?}");
        near(shares.seconds, 1.7, 0.11);
        near(shares.vcpu.cores, 2.0 * shares.seconds, 1e-9);
        near(shares.nq.cores, shares.seconds, 1e-9);
        near(shares.answers, 2400.0 * shares.seconds, 240.0);
        let threads = shares.nq.busy - shares.nq.irq - shares.nq.softirq;
        assert!(0.0 < threads && threads < shares.workers && shares.workers < shares.nq.busy);
        assert!(shares.vcpus < shares.vcpu.busy && shares.vcpu.busy < shares.vcpu.cores);
        assert!(shares.nq.irq > 0.0 && shares.nq.softirq > shares.nq.irq);
        let told = shares.to_string();
        assert!(
            told.contains("2.00 vCPUs' cores") && told.contains("1.00 queues' cores"),
            "{told}"
        );
        // Another time has none of it.
        let none = Shares::seen(periods.iter(), "lc", &[window(90.0)]);
        assert_eq!(none, Shares::default());
    }
}
