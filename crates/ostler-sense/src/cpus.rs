//! Where each CPU's time went in a period.
//!
//! By BPF to the nanosecond, or by `/proc/stat` in ticks where BPF can't be used. Both yield totals since
//! some start; a [`CpuMeter`] turns totals into what happened in between. A total that went backwards (a CPU
//! was taken out and came back, a counter wrapped) yields nothing for that period rather than nonsense.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ostler_model::{CpuId, CpuSet, CpuUsage, HostCounters, Nanos};

use crate::bpf::host::{CpuTotals, HostBpf};
use crate::error::SenseError;

/// `/proc/stat` counts in hundredths of a second on every architecture (`USER_HZ`).
const TICK_NS: u64 = 10_000_000;

/// Totals of one reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Per CPU that could be read.
    pub(crate) cpus: BTreeMap<CpuId, CpuTotals>,
    /// Where counters come from.
    pub(crate) counters: Counters,
}

/// Where the host's counters come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counters {
    /// Each CPU's totals hold them; exits from guests only if `kvm_exits`.
    PerCpu {
        /// Whether exits from guests are counted.
        kvm_exits: bool,
    },
    /// Host-wide totals, of which `None` is not counted.
    Host(HostCounters),
}

impl Default for Counters {
    fn default() -> Counters {
        Counters::Host(HostCounters::default())
    }
}

/// Reads totals up to `now` by BPF.
pub(crate) fn by_bpf(bpf: &HostBpf, online: &CpuSet, now: Nanos) -> Totals {
    let cpus: BTreeMap<CpuId, CpuTotals> = online
        .iter()
        .filter_map(|cpu| Some((cpu, bpf.cpu(cpu, now.0)?)))
        .collect();
    Totals {
        cpus,
        counters: Counters::PerCpu {
            kvm_exits: bpf.counts_kvm_exits(),
        },
    }
}

/// Reads totals from `/proc/stat`.
pub(crate) fn by_proc(proc: &Path) -> Result<Totals, SenseError> {
    let path: PathBuf = proc.join("stat");
    let text = fs::read_to_string(&path).map_err(|source| SenseError::read(&path, source))?;
    Ok(parse_stat(&text))
}

/// Unknown lines and impossible numbers are left out.
fn parse_stat(text: &str) -> Totals {
    let mut totals = Totals::default();
    let mut host = HostCounters::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(key) = words.next() else { continue };
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        match key {
            "ctxt" => host.ctx_switches = number(),
            "intr" => host.irqs = number(),
            _ => {
                let Some(cpu) = key.strip_prefix("cpu").and_then(|cpu| cpu.parse().ok()) else {
                    continue;
                };
                // user nice system idle iowait irq softirq steal; guest time is in user's already.
                let mut ticks = [0; 8];
                for ticks in &mut ticks {
                    *ticks = number().unwrap_or(0).saturating_mul(TICK_NS);
                }
                let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
                totals.cpus.insert(
                    CpuId(cpu),
                    CpuTotals {
                        idle: idle.saturating_add(iowait),
                        task: [user, nice, system, steal]
                            .into_iter()
                            .fold(0, u64::saturating_add),
                        softirq,
                        irq,
                        ..CpuTotals::default()
                    },
                );
            }
        }
    }
    totals.counters = Counters::Host(host);
    totals
}

/// Switches of all CPUs since boot as the kernel counts them, which needs no tracing.
pub(crate) fn switches_counted(proc: &Path) -> Option<u64> {
    match by_proc(proc).ok()?.counters {
        Counters::Host(host) => host.ctx_switches,
        Counters::PerCpu { .. } => None,
    }
}

/// How much rarer a look at the witness becomes each time, and how rare at last: `/proc/stat` costs a millisecond on hosts with many
/// interrupts, and a kernel is unlikely to change.
const WITNESS_FIRST: Nanos = Nanos::from_secs(1);
const WITNESS_RAREST: Nanos = Nanos::from_secs(64);

/// Holds the switches that were traced against those that the kernel has counted.
///
/// Accounting by BPF rests on each switch being traced: where one is missed, a sleeping CPU is taken to be busy, or the other way round, until
/// the next. A kernel that doesn't trace them all was seen (a 6.18 built for a hypervisor's guests), and says nothing about it.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    previous: Option<(u64, u64)>,
    looked: Nanos,
    gap: Nanos,
}

/// Switches that weren't traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Untraced {
    /// What was traced meanwhile.
    pub(crate) traced: u64,
    /// Of so many.
    pub(crate) counted: u64,
}

impl Witness {
    /// Whether it is time to look, and that one looks now.
    pub(crate) fn is_due(&mut self, now: Nanos) -> bool {
        if self.gap != Nanos::ZERO && now.saturating_sub(self.looked) < self.gap {
            return false;
        }
        self.looked = now;
        self.gap = Nanos((self.gap.0 * 2).clamp(WITNESS_FIRST.0, WITNESS_RAREST.0));
        true
    }

    /// Takes a count of the kernel's, and those of traced switches just before it was read and just after. Tells if some weren't traced
    /// since the last look.
    ///
    /// The traced ones span more time than the counted ones, so nothing may be missing but, of each of the `cpus`, the switch that it is in
    /// the middle of: it is counted before it is traced. No share of them is let pass, since a single one that is missed may make a whole
    /// period's sleep look like work.
    pub(crate) fn look(
        &mut self,
        cpus: u64,
        traced_before: u64,
        counted: u64,
        traced_after: u64,
    ) -> Option<Untraced> {
        let (traced_then, counted_then) = self.previous.replace((traced_before, counted))?;
        let told = Untraced {
            traced: traced_after.saturating_sub(traced_then),
            counted: counted.saturating_sub(counted_then),
        };
        let missed = told.counted.saturating_sub(told.traced);
        (missed > cpus).then_some(told)
    }
}

/// Turns totals into what happened since the reading before.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter {
    previous: Option<Totals>,
}

impl CpuMeter {
    /// One that goes on from `totals`.
    pub(crate) fn from(totals: Totals) -> CpuMeter {
        CpuMeter {
            previous: Some(totals),
        }
    }

    /// What happened since the last call, on each CPU that is online. No CPU is busy for longer than the interval:
    /// ticks are coarse, and the clock is read a little after `now`.
    pub(crate) fn advance(
        &mut self,
        totals: Totals,
        online: &CpuSet,
        interval: Nanos,
    ) -> (Vec<CpuUsage>, HostCounters) {
        let counts_yielding = matches!(totals.counters, Counters::PerCpu { .. });
        let usage = online
            .iter()
            .map(|cpu| {
                let before = self.previous.as_ref().and_then(|p| p.cpus.get(&cpu));
                let after = totals.cpus.get(&cpu);
                match (before, after) {
                    (Some(before), Some(after)) => {
                        usage(cpu, before, after, interval.0, counts_yielding)
                    }
                    _ => CpuUsage {
                        cpu,
                        busy: Nanos::ZERO,
                        irq: Nanos::ZERO,
                        softirq: Nanos::ZERO,
                        yielding: counts_yielding.then_some(Nanos::ZERO),
                    },
                }
            })
            .collect();

        let counters = counters_between(self.previous.as_ref().unwrap_or(&totals), &totals);

        // A CPU that could not be read this time keeps its last totals, so that nothing is lost the next time.
        let mut totals = totals;
        if let Some(previous) = self.previous.take() {
            for (cpu, last) in previous.cpus {
                if online.contains(cpu) {
                    totals.cpus.entry(cpu).or_insert(last);
                }
            }
        }
        self.previous = Some(totals);
        (usage, counters)
    }
}

fn counters_between(previous: &Totals, totals: &Totals) -> HostCounters {
    match (totals.counters, previous.counters) {
        (Counters::PerCpu { kvm_exits }, _) => {
            let sum = |field: fn(&CpuTotals) -> u64| {
                let pairs = totals
                    .cpus
                    .iter()
                    .filter_map(|(cpu, after)| Some((previous.cpus.get(cpu)?, after)));
                pairs
                    .map(|(before, after)| field(after).saturating_sub(field(before)))
                    .fold(0, u64::saturating_add)
            };
            HostCounters {
                ctx_switches: Some(sum(|cpu| cpu.switches)),
                migrations: Some(sum(|cpu| cpu.migrations)),
                irqs: Some(sum(|cpu| cpu.irqs)),
                kvm_exits: kvm_exits.then(|| sum(|cpu| cpu.kvm_exits)),
            }
        }
        (Counters::Host(after), Counters::Host(before)) => {
            let since = |before: Option<u64>, after: Option<u64>| {
                Some(after?.saturating_sub(before.or(after)?))
            };
            HostCounters {
                ctx_switches: since(before.ctx_switches, after.ctx_switches),
                migrations: since(before.migrations, after.migrations),
                irqs: since(before.irqs, after.irqs),
                kvm_exits: since(before.kvm_exits, after.kvm_exits),
            }
        }
        (Counters::Host(after), Counters::PerCpu { .. }) => counters_between(
            &Totals {
                counters: Counters::Host(after),
                ..Totals::default()
            },
            totals,
        ),
    }
}

fn usage(
    cpu: CpuId,
    before: &CpuTotals,
    after: &CpuTotals,
    interval: u64,
    counts_yielding: bool,
) -> CpuUsage {
    let irq = after.irq.saturating_sub(before.irq).min(interval);
    let softirq = after
        .softirq
        .saturating_sub(before.softirq)
        .min(interval - irq);
    let task = after
        .task
        .saturating_sub(before.task)
        .min(interval - irq - softirq);
    let yielding = after
        .yielding
        .saturating_sub(before.yielding)
        .min(interval - irq - softirq - task);
    CpuUsage {
        cpu,
        busy: Nanos(irq + softirq + task + yielding),
        irq: Nanos(irq),
        softirq: Nanos(softirq),
        yielding: counts_yielding.then_some(Nanos(yielding)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Nanos = Nanos::from_millis(100);

    fn totals(cpus: &[(u32, [u64; 3])]) -> Totals {
        Totals {
            cpus: cpus
                .iter()
                .map(|&(cpu, [task, softirq, irq])| {
                    let totals = CpuTotals {
                        task,
                        softirq,
                        irq,
                        switches: task,
                        ..CpuTotals::default()
                    };
                    (CpuId(cpu), totals)
                })
                .collect(),
            counters: Counters::PerCpu { kvm_exits: false },
        }
    }

    fn reading() -> impl Strategy<Value = Vec<(u32, [u64; 3])>> {
        let near_the_end = (u64::MAX - 1000)..=u64::MAX;
        let number = prop_oneof![0u64..1_000_000_000, near_the_end];
        let three = [number.clone(), number.clone(), number];
        prop::collection::btree_map(0u32..8, three, 0..8).prop_map(|m| m.into_iter().collect())
    }

    proptest! {
        /// Whatever totals do (reset, wrap, CPUs that come and go), no CPU is busy for longer than the interval, and
        /// its parts are no more than the whole.
        #[test]
        fn usage_fits_in_the_interval(readings in prop::collection::vec(reading(), 1..20)) {
            let mut meter = CpuMeter::default();
            let online = CpuSet::range(0, 6);
            for reading in readings {
                let (usage, _) = meter.advance(totals(&reading), &online, INTERVAL);
                prop_assert_eq!(usage.len(), 6, "each online CPU is told of");
                for usage in usage {
                    prop_assert!(usage.busy <= INTERVAL);
                    prop_assert!(usage.irq.0 + usage.softirq.0 <= usage.busy.0);
                }
            }
        }

        /// With totals that only grow, nothing is lost or made up: differences add up to the growth, even when a CPU
        /// can't be read now and then.
        #[test]
        fn differences_add_up(steps in prop::collection::vec((0u64..40_000_000, any::<bool>()), 2..50)) {
            let mut meter = CpuMeter::default();
            let online = CpuSet::single(CpuId(0));
            let (mut task, mut sum, mut switches) = (5, 0, 0);
            meter.advance(totals(&[(0, [task, 0, 0])]), &online, Nanos::ZERO);
            for &(grown, readable) in &steps {
                task += grown;
                let reading = if readable { totals(&[(0, [task, 0, 0])]) } else { totals(&[]) };
                let (usage, counters) = meter.advance(reading, &online, Nanos::from_secs(10));
                sum += usage[0].busy.0;
                switches += counters.ctx_switches.unwrap();
            }
            let (usage, counters) = meter.advance(totals(&[(0, [task, 0, 0])]), &online, Nanos::from_secs(10));
            prop_assert_eq!(sum + usage[0].busy.0, task - 5);
            prop_assert_eq!(switches + counters.ctx_switches.unwrap(), task - 5);
        }

        /// Where all switches are traced, and readings come one after the other, nothing is ever said to be missing: however long a
        /// reading takes, and with a switch under way on each CPU. Where one of ten isn't, it is told once there are enough of them.
        #[test]
        fn a_witness_accuses_only_who_misses_switches(
            steps in prop::collection::vec((0u64..5_000, 0u64..50, 0u64..50, 0u64..=4), 2..40),
        ) {
            let (mut honest, mut deaf) = (Witness::default(), Witness::default());
            let (mut happened, mut since) = (0, None::<(u64, u64)>);
            for (switches, before, after, under_way) in steps {
                let first = happened + switches;
                let counted = first + before + under_way;
                let last = first + before + after;
                happened = last + under_way;
                prop_assert_eq!(honest.look(4, first, counted, last), None);
                let deafly = |count: u64| count - count / 10;
                let told = deaf.look(4, deafly(first), counted, deafly(last));
                if let Some((first_then, counted_then)) = since {
                    // What it hears more before and after, at the most, and the tenth's rounding.
                    let missed = (counted - counted_then).saturating_sub(deafly(last) - deafly(first_then));
                    prop_assert_eq!(told.is_some(), missed > 4);
                    prop_assert!(told.is_some() || counted - counted_then < 1_500);
                }
                since = Some((first, counted));
            }
        }

        #[test]
        fn any_text_is_read_without_panic(text in "(cpu[0-9]{0,3}|intr|ctxt|x)( [0-9]{1,21}){0,12}\n(.{0,40}\n){0,3}") {
            parse_stat(&text);
        }
    }

    #[test]
    fn a_cpu_that_comes_back_starts_from_its_new_totals() {
        let mut meter = CpuMeter::default();
        let both = CpuSet::range(0, 2);
        let one = CpuSet::single(CpuId(0));
        meter.advance(totals(&[(0, [0; 3]), (1, [50; 3])]), &both, Nanos::ZERO);
        meter.advance(totals(&[(0, [5; 3])]), &one, INTERVAL);
        let back = totals(&[(0, [9; 3]), (1, [70; 3])]);
        let (usage, _) = meter.advance(back, &both, INTERVAL);
        assert_eq!(usage[1].busy, Nanos::ZERO, "it was away: first seen again");
        let (usage, _) = meter.advance(totals(&[(0, [9; 3]), (1, [71; 3])]), &both, INTERVAL);
        assert_eq!(usage[1].busy, Nanos(3));
    }

    #[test]
    fn a_witness_is_asked_ever_more_rarely() {
        let mut witness = Witness::default();
        let due = |at: &u64| witness.is_due(Nanos::from_millis(*at));
        let asked: Vec<u64> = (7_000..500_000).step_by(100).filter(due).collect();
        let gaps: Vec<u64> = asked.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(
            asked[0], 7_000,
            "the first look is what the next is held against"
        );
        assert_eq!(
            gaps[..7],
            [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000]
        );
        assert!(gaps[7..].iter().all(|&gap| gap == 64_000), "{gaps:?}");
    }

    #[test]
    fn a_meter_goes_on_from_what_it_is_given() {
        let mut meter = CpuMeter::from(totals(&[(0, [50; 3])]));
        let online = CpuSet::single(CpuId(0));
        let (usage, counters) = meter.advance(totals(&[(0, [57; 3])]), &online, INTERVAL);
        assert_eq!(usage[0].busy, Nanos(21));
        assert_eq!(counters.ctx_switches, Some(7));
    }

    #[test]
    fn the_kernels_line_is_understood() {
        let totals = parse_stat("cpu  9 9\ncpu1 1 2 4 100 8 16 32 64 5 5\nintr 77 1 2\nctxt 88\n");
        let cpu = totals.cpus[&CpuId(1)];
        assert_eq!(
            [cpu.task, cpu.idle, cpu.irq, cpu.softirq].map(|ns| ns / TICK_NS),
            [1 + 2 + 4 + 64, 108, 16, 32]
        );
        assert_eq!(
            totals.counters,
            Counters::Host(HostCounters {
                ctx_switches: Some(88),
                irqs: Some(77),
                ..HostCounters::default()
            })
        );
        assert_eq!(totals.cpus.len(), 1, "the sum of all is no CPU");
    }
}
