//! What is counted in a cell, read from procfs, cgroups and debugfs: independent of the steward, so that it can be held
//! against what the steward says of itself.

use std::collections::BTreeMap;

use ostler_abi::pmu::{self, Device};
use ostler_model::{CpuId, CpuSet};

use super::done::Done;
use super::guests::RunningGuest;
use super::{MACHINE_CGROUP, read};
use crate::inner::say::uptime_ms;
use ostler_outcome::events::{Counters, GuestCounters, MachineCounters};

/// Kernel ticks per second in `/proc/stat`: `USER_HZ`, 100 on every Linux.
const USER_HZ: f64 = 100.0;

/// Counts at one instant. Counters only grow, so two readings give what happened between.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    at_ms: u64,
    context_switches: u64,
    irqs: Irqs,
    net_rx: u64,
    kvm_exits: Option<u64>,
    busy_ticks: u64,
    guests: Vec<GuestReading>,
    machine: Option<Machine>,
}

/// A guest's counts at that instant, but for its work: that is as it said last.
#[derive(Clone, Debug)]
struct GuestReading {
    counts: GuestCounters,
    done: Option<Done>,
}

impl GuestReading {
    fn since(&self, earlier: &GuestReading, seconds: f64) -> GuestCounters {
        let (now, then) = (&self.counts, &earlier.counts);
        let done = self.done.zip(earlier.done);
        GuestCounters {
            name: now.name.clone(),
            cpu_seconds: now.cpu_seconds - then.cpu_seconds,
            migrations: now.migrations.saturating_sub(then.migrations),
            context_switches: now.context_switches.saturating_sub(then.context_switches),
            work: done.map(|(now, then)| now.since(then, seconds)),
        }
    }
}

/// The machine's own counters.
#[derive(Clone, Debug)]
struct Machine {
    caches: bool,
    nodes: usize,
    /// Of cores under test.
    cores: BTreeMap<CpuId, pmu::Counts>,
}

impl Machine {
    fn read(device: &Device, under_test: &CpuSet) -> Machine {
        let header = device.header();
        let core = |cpu: CpuId| {
            let counts = device.read(usize::try_from(cpu.0).ok()?).ok()?;
            Some((cpu, counts))
        };
        Machine {
            caches: header.caches,
            nodes: header.nodes,
            cores: under_test.iter().filter_map(core).collect(),
        }
    }

    fn since(&self, earlier: &Machine) -> MachineCounters {
        let mut all = MachineCounters::default();
        for (cpu, now) in &self.cores {
            let Some(then) = earlier.cores.get(cpu) else {
                continue;
            };
            let counts = now.since(then);
            let seconds = |ns: u64| ns as f64 / 1e9;
            all.add(&MachineCounters {
                core_seconds: seconds(counts.time_ns),
                halted_s: seconds(counts.halted_ns),
                instructions: counts.instructions,
                served: self
                    .caches
                    .then(|| std::array::from_fn(|level| counts.at(level))),
                stall_s: counts.stall_ps as f64 / 1e12,
                queued_s: counts.queued_ps as f64 / 1e12,
                snoops: counts.snoops_sent,
                node_bytes: counts.node_bytes[..self.nodes].to_vec(),
            });
        }
        all
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Irqs {
    device: u64,
    ipis: u64,
    timer: u64,
}

impl Reading {
    /// Reads everything.
    pub fn take(
        under_test: &CpuSet,
        guests: &[RunningGuest],
        meter: &mut IrqMeter,
        pmu: Option<&Device>,
    ) -> anyhow::Result<Reading> {
        let stat = read("/proc/stat")?;
        meter.look(under_test)?;
        Ok(Reading {
            at_ms: uptime_ms(),
            context_switches: switches(&read("/proc/schedstat")?, under_test),
            irqs: meter.total,
            net_rx: softirqs(&read("/proc/softirqs")?, "NET_RX", under_test),
            kvm_exits: read("/sys/kernel/debug/kvm/exits")
                .ok()
                .and_then(|text| text.trim().parse().ok()),
            busy_ticks: cpus(&stat)
                .filter(|(cpu, ..)| has(under_test, *cpu))
                .map(|(_, busy, _)| busy)
                .sum(),
            guests: guests.iter().map(guest).collect(),
            machine: pmu.map(|device| Machine::read(device, under_test)),
        })
    }

    /// What happened since an earlier reading.
    pub fn since(&self, earlier: &Reading) -> Counters {
        let seconds = self.at_ms.saturating_sub(earlier.at_ms) as f64 / 1e3;
        let known = |name: &str| earlier.guests.iter().find(|g| g.counts.name == name);
        let guests = self
            .guests
            .iter()
            .filter_map(|now| Some(now.since(known(&now.counts.name)?, seconds)))
            .collect();
        Counters {
            seconds,
            context_switches: self
                .context_switches
                .saturating_sub(earlier.context_switches),
            device_irqs: self.irqs.device.saturating_sub(earlier.irqs.device),
            ipis: self.irqs.ipis.saturating_sub(earlier.irqs.ipis),
            timer_irqs: self.irqs.timer.saturating_sub(earlier.irqs.timer),
            net_rx_softirqs: self.net_rx.saturating_sub(earlier.net_rx),
            kvm_exits: self
                .kvm_exits
                .zip(earlier.kvm_exits)
                .map(|(now, then)| now.saturating_sub(then)),
            energy_j: None,
            busy_core_seconds: self.busy_ticks.saturating_sub(earlier.busy_ticks) as f64 / USER_HZ,
            guests,
            memory: None,
            machine: self
                .machine
                .as_ref()
                .zip(earlier.machine.as_ref())
                .map(|(now, then)| now.since(then)),
        }
    }
}

/// Busy and total ticks of each CPU, from `/proc/stat`.
pub fn cpus(stat: &str) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
    stat.lines().filter_map(|line| {
        // The first line, of all CPUs, has no number.
        let numbered = line.strip_prefix("cpu").filter(|l| !l.starts_with(' '))?;
        let mut words = numbered.split_whitespace();
        let cpu = words.next()?.parse().ok()?;
        let ticks: Vec<u64> = words.filter_map(|w| w.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; guest time is in user already.
        let &[user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks.as_slice() else {
            return None;
        };
        let busy = user + nice + system + irq + softirq + steal;
        Some((cpu, busy, busy + idle + iowait))
    })
}

fn has(set: &CpuSet, cpu: u32) -> bool {
    set.contains(ostler_model::CpuId(cpu))
}

fn field(stat: &str, name: &str) -> u64 {
    stat.lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))
        .and_then(|v| v.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// The numbers of the CPUs that a table's columns are about.
fn columns(header: &str) -> Vec<u32> {
    header
        .split_whitespace()
        .filter_map(|w| w.strip_prefix("CPU")?.parse().ok())
        .collect()
}

fn row_sum(row: &str, columns: &[u32], wanted: &CpuSet) -> u64 {
    columns
        .iter()
        .zip(row.split_whitespace())
        .filter(|(cpu, _)| has(wanted, **cpu))
        .filter_map(|(_, n)| n.parse::<u64>().ok())
        .sum()
}

/// Adds interrupts up. The kernel's own counts are lost when a line is freed, which is what a change of queues does, so
/// the table has to be looked at more often than queues change.
#[derive(Clone, Debug, Default)]
pub struct IrqMeter {
    rows: BTreeMap<String, u64>,
    total: Irqs,
}

impl IrqMeter {
    /// Looks at the kernel's table. It reads it itself: who reads it first and waits for the meter then may come after one who has read it later, and
    /// all that was ever counted would be counted again.
    pub fn look(&mut self, wanted: &CpuSet) -> anyhow::Result<()> {
        self.update(&read("/proc/interrupts")?, wanted);
        Ok(())
    }

    fn update(&mut self, text: &str, wanted: &CpuSet) {
        let mut lines = text.lines();
        let columns = columns(lines.next().unwrap_or_default());
        for (name, row) in lines.filter_map(|l| l.split_once(':')) {
            let name = name.trim();
            let total = match name {
                "LOC" => &mut self.total.timer,
                "RES" | "CAL" | "TLB" => &mut self.total.ipis,
                number if number.parse::<u32>().is_ok() => &mut self.total.device,
                _ => continue,
            };
            let now = row_sum(row, &columns, wanted);
            let before = self.rows.insert(name.to_owned(), now).unwrap_or(0);
            // Fewer than before: the line was freed and is another one now, which has counted from zero.
            *total += now.checked_sub(before).unwrap_or(now);
        }
    }
}

/// Times that the wanted cores began to run a task, from `/proc/schedstat`: its last figure, which is kept even where the
/// costlier statistics are off. `/proc/stat` has one sum for the whole host, load generators included.
fn switches(schedstat: &str, wanted: &CpuSet) -> u64 {
    schedstat
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("cpu")?.split_whitespace();
            let cpu = words.next()?.parse().ok()?;
            let begun: u64 = words.next_back()?.parse().ok()?;
            has(wanted, cpu).then_some(begun)
        })
        .sum()
}

fn softirqs(text: &str, kind: &str, wanted: &CpuSet) -> u64 {
    let columns = columns(text.lines().next().unwrap_or_default());
    text.lines()
        .filter_map(|l| l.split_once(':'))
        .find(|(name, _)| name.trim() == kind)
        .map_or(0, |(_, row)| row_sum(row, &columns, wanted))
}

fn guest(running: &RunningGuest) -> GuestReading {
    let done = running.done();
    let mut counters = GuestCounters {
        name: running.name.clone(),
        ..GuestCounters::default()
    };
    let usage = read(format!("{MACHINE_CGROUP}/{}/cpu.stat", running.name)).unwrap_or_default();
    counters.cpu_seconds = field(&usage, "usage_usec") as f64 / 1e6;
    let tasks = std::fs::read_dir(format!("/proc/{}/task", running.pid));
    for task in tasks.into_iter().flatten().flatten() {
        // A thread may end between the listing and the reading.
        let sched = read(task.path().join("sched")).unwrap_or_default();
        counters.migrations += sched_field(&sched, "se.nr_migrations");
        counters.context_switches += sched_field(&sched, "nr_switches");
    }
    GuestReading {
        counts: counters,
        done,
    }
}

fn sched_field(sched: &str, name: &str) -> u64 {
    sched
        .lines()
        .filter_map(|l| l.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERRUPTS: &str = "           CPU0       CPU2       CPU3\n  \
        0:   1   2   4  IO-APIC   2-edge      timer\n 45:  10  20  40  PCI-MSIX-0000:01:00.0    1-edge      eth0-rx-0\n\
        LOC: 100 200 400   Local timer interrupts\nRES:   5   6   7   Rescheduling interrupts\nCAL:   1   1   1   Function call interrupts\nERR:   9\n";

    fn metered(texts: &[&str], wanted: &CpuSet) -> Irqs {
        let mut meter = IrqMeter::default();
        for text in texts {
            meter.update(text, wanted);
        }
        meter.total
    }

    #[test]
    fn interrupts_are_summed_over_the_wanted_cores_only() {
        let wanted = CpuSet::range(2, 3); // CPU1 is offline: columns are named, not counted
        let irqs = metered(&[INTERRUPTS], &wanted);
        assert_eq!((irqs.device, irqs.ipis, irqs.timer), (22, 7, 200));
        assert_eq!(metered(&[INTERRUPTS], &CpuSet::range(0, 4)).device, 77);
    }

    #[test]
    fn interrupts_of_a_line_that_was_freed_are_not_lost() {
        let table = |line45: u32| format!("           CPU0\n 45:  {line45}  PCI-MSIX  eth0-rx-0\n");
        let all = CpuSet::range(0, 1);
        let texts = [table(10), table(15), table(3), table(4)];
        let texts: Vec<_> = texts.iter().map(String::as_str).collect();
        assert_eq!(metered(&texts, &all).device, 19);
    }

    #[test]
    fn busy_time_is_all_but_idle_and_waiting() {
        let stat =
            "cpu  9 9 9 9 9 9 9 9 9 9\ncpu1 1 2 4 1000 500 8 16 32 1 0\nintr 5 1\nctxt 4711\n";
        assert_eq!(cpus(stat).collect::<Vec<_>>(), [(1, 63, 1563)]);
        assert_eq!(field(stat, "ctxt"), 4711);
        let schedstat = "version 17\ntimestamp 4294905644\ncpu0 0 0 0 0 0 0 1642 426 6764\ndomain0 MC ff 0 0\ncpu1 0 0 0 0 0 0 2670 1002 3378\n";
        assert_eq!(switches(schedstat, &CpuSet::range(1, 2)), 3378);
    }

    #[test]
    fn softirqs_and_sched_files_are_read() {
        let text =
            "                    CPU0       CPU1\n          HI:   1   2\n      NET_RX:  30  40\n";
        assert_eq!(softirqs(text, "NET_RX", &CpuSet::range(1, 2)), 40);
        let sched = "qemu (215, #threads: 13)\n---\nse.nr_migrations    :     220\nnr_switches    :      1805\nnr_voluntary_switches : 1768\n";
        assert_eq!(sched_field(sched, "se.nr_migrations"), 220);
        assert_eq!(sched_field(sched, "nr_switches"), 1805);
    }

    #[test]
    fn cores_under_test_are_added_up() {
        let core = |n: u64| pmu::Counts {
            time_ns: n * 1_000_000_000,
            halted_ns: n * 250_000_000,
            instructions: n,
            stall_ps: n * 1_000_000_000_000,
            served: [[n; 8]; 4],
            node_bytes: [n * 64; 16],
            ..pmu::Counts::default()
        };
        let machine = |cores: &[(u32, u64)]| Machine {
            caches: true,
            nodes: 2,
            cores: cores
                .iter()
                .map(|&(cpu, n)| (CpuId(cpu), core(n)))
                .collect(),
        };
        // The third core came later: what it did before isn't this cell's.
        let counted = machine(&[(0, 5), (1, 7), (2, 9)]).since(&machine(&[(0, 4), (1, 4)]));
        let expected = MachineCounters {
            core_seconds: 4.0,
            halted_s: 1.0,
            instructions: 4,
            served: Some([16; 7]),
            stall_s: 4.0,
            queued_s: 0.0,
            snoops: 0,
            node_bytes: vec![256, 256],
        };
        assert_eq!(counted, expected);
        let bare = Machine {
            caches: false,
            nodes: 0,
            ..machine(&[(0, 1)])
        };
        assert_eq!(bare.since(&bare).served, None);
    }

    #[test]
    fn a_guest_that_came_later_is_not_counted() {
        let guest = |name: &str, done| GuestReading {
            counts: GuestCounters {
                name: name.into(),
                ..GuestCounters::default()
            },
            done,
        };
        let done = |work, at_s| Some(Done { work, at_s });
        let earlier = Reading {
            guests: vec![guest("a", done(5, 9.0))],
            ..Reading::default()
        };
        let later = Reading {
            guests: vec![guest("a", done(9, 11.0)), guest("b", None)],
            at_ms: 1500,
            ..Reading::default()
        };
        let counters = later.since(&earlier);
        assert_eq!(counters.guests.len(), 1);
        assert_eq!(
            counters.guests[0].work,
            Some(3.0),
            "four rounds in two seconds"
        );
        assert!((counters.seconds - 1.5).abs() < 1e-9);
    }
}
