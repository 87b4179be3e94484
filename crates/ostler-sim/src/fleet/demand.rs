//! VMs: when they are there, and how busy.

use std::collections::BTreeMap;

use ostler_model::Nanos;

use crate::trace::generate::{Settings, Trace, generate};
use crate::trace::{Reading, STEP, Vm};

/// A VM while it is watched.
#[derive(Clone, Debug, PartialEq)]
pub struct VmDemand {
    /// What it is.
    pub vm: Vm,
    /// When it comes, since the watch began.
    pub from: Nanos,
    /// When it goes, or the watch ends.
    pub until: Nanos,
    /// How busy it is, as a share of its cores, from each of these times on; the first is when it comes.
    pub busy: Vec<(Nanos, f64)>,
}

/// All VMs that are there for some of the time, in order of coming.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// For how long they are watched.
    pub lasts: Nanos,
    /// The VMs.
    pub vms: Vec<VmDemand>,
}

impl Demand {
    /// Of a trace's VMs, watched from a second of the trace on. Until readings are [told](Demand::tell), each is as busy as it is in the mean.
    pub fn of(vms: impl IntoIterator<Item = Vm>, from: u64, lasts: Nanos) -> Demand {
        let end = from + lasts.0.div_ceil(1_000_000_000);
        let there = vms
            .into_iter()
            .filter(|vm| vm.created < end && vm.deleted > from && vm.cores > 0);
        let since = |second: u64| Nanos::from_secs(second.saturating_sub(from)).min(lasts);
        let mut vms: Vec<_> = there
            .map(|vm| VmDemand {
                vm,
                from: since(vm.created),
                until: since(vm.deleted),
                busy: vec![(since(vm.created), share(vm.cpu_mean))],
            })
            .filter(|vm| vm.from < vm.until)
            .collect();
        vms.sort_by_key(|vm| (vm.from, vm.vm.id));
        Demand { lasts, vms }
    }

    /// Tells how busy VMs were in the five minutes from a second of the trace on, where they were watched from `from` on. Times come in order.
    pub fn tell(&mut self, from: u64, at: u64, readings: &[Reading]) {
        let (begin, end) = (at.saturating_sub(from), (at + STEP).saturating_sub(from));
        if end == 0 || Nanos::from_secs(begin) >= self.lasts {
            return;
        }
        let of: BTreeMap<_, _> = readings.iter().map(|r| (r.vm, r.mean)).collect();
        for vm in &mut self.vms {
            let Some(mean) = of.get(&vm.vm.id) else {
                continue;
            };
            let since = Nanos::from_secs(begin).max(vm.from);
            if since >= vm.until {
                continue;
            }
            match vm.busy.last_mut() {
                Some(last) if last.0 >= since => last.1 = share(*mean),
                _ => vm.busy.push((since, share(*mean))),
            }
        }
    }

    /// A number that is another one for other VMs, in words.
    pub fn digest(&self) -> String {
        // FNV-1a, over all that is told of them.
        let add = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mut sum = 0xcbf2_9ce4_8422_2325;
        for vm in &self.vms {
            sum = format!("{vm:?}").bytes().fold(sum, add);
        }
        format!("{sum:016x}")
    }

    /// Generated: so many VMs at a time, in the mean, from the noon of the fourth day of a month on, with their readings.
    pub fn generated(count: u32, lasts: Nanos, seed: u64) -> Demand {
        // The first three days are for the short-lived to have come and gone.
        let from = 3 * 86_400 + 43_200;
        let seconds = from + lasts.0.div_ceil(1_000_000_000);
        let mut trace: Trace = generate(&Settings {
            population: count,
            seconds: seconds + STEP,
            seed,
        });
        let mut demand = Demand::of(trace.vms.iter().copied(), from, lasts);
        let mut readings = Vec::new();
        while let Some(at) = trace.step(&mut readings) {
            demand.tell(from, at, &readings);
        }
        demand
    }
}

/// Percent of a VM's cores as a share. A reading may be anything that a file says.
fn share(percent: f64) -> f64 {
    if percent.is_finite() {
        (percent / 100.0).clamp(0.0, 1.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Category, VmId};

    fn vm(id: u64, created: u64, deleted: u64) -> Vm {
        Vm {
            id: VmId(id),
            subscription: VmId(0),
            deployment: VmId(0),
            created,
            deleted,
            cpu_max: 90.0,
            cpu_mean: 20.0,
            cpu_p95: 50.0,
            category: Category::Unknown,
            cores: 2,
            memory: 1 << 30,
        }
    }

    #[test]
    fn who_is_there_for_some_of_the_time_is_busy_as_the_readings_say() {
        let secs = Nanos::from_secs;
        let vms = [
            vm(1, 0, 5000),
            vm(2, 900, 1000),
            vm(3, 1700, 9000),
            vm(4, 2000, 9000),
        ];
        let mut demand = Demand::of(vms, 1000, secs(1000));
        let there: Vec<_> = demand
            .vms
            .iter()
            .map(|v| (v.vm.id.0, v.from, v.until))
            .collect();
        assert_eq!(
            there,
            [(1, secs(0), secs(1000)), (3, secs(700), secs(1000))]
        );
        let reading = |id, mean| Reading {
            at: 0,
            vm: VmId(id),
            min: 0.0,
            max: 100.0,
            mean,
        };
        demand.tell(1000, 600, &[reading(1, 99.0)]);
        demand.tell(1000, 900, &[reading(1, 30.0)]);
        demand.tell(1000, 1200, &[reading(1, 40.0), reading(9, 1.0)]);
        demand.tell(1000, 1500, &[reading(3, f64::NAN)]);
        demand.tell(1000, 1800, &[reading(1, 250.0), reading(3, 5.0)]);
        demand.tell(1000, 2100, &[reading(1, 1.0)]);
        assert_eq!(
            demand.vms[0].busy,
            [(secs(0), 0.3), (secs(200), 0.4), (secs(800), 1.0)]
        );
        assert_eq!(demand.vms[1].busy, [(secs(700), 0.0), (secs(800), 0.05)]);
    }

    #[test]
    fn generated_vms_are_about_as_many_as_asked_for() {
        let demand = Demand::generated(300, Nanos::from_secs(3600), 5);
        let seconds: f64 = demand
            .vms
            .iter()
            .map(|vm| vm.until.saturating_sub(vm.from).as_secs_f64())
            .sum();
        let mean = seconds / 3600.0;
        assert!((200.0..450.0).contains(&mean), "{mean}");
        assert!(
            demand
                .vms
                .iter()
                .all(|vm| vm.busy.len() > 3 || vm.until < demand.lasts || vm.from > Nanos::ZERO)
        );
        let again = Demand::generated(300, Nanos::from_secs(3600), 5);
        assert_eq!((again.digest(), &again), (demand.digest(), &demand));
        let mut other = again;
        if let Some((_, busy)) = other.vms[7].busy.last_mut() {
            *busy += 1e-9;
        }
        assert_ne!(other.digest(), demand.digest());
    }
}
