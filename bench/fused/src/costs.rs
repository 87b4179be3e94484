//! What memory costs fused machines, beside their parts' tables: the model of whose memory it is decides which column.

use anyhow::{Context, Result};
use ostler_lab::hogs::Hogs;
use ostler_machine_launch::{Ended, Isa};
use ostler_machine_memory::{Catalogue, Part};
use ostler_machine_programs::{BALL, DOORBELL, MEMORY};

use crate::{Bench, Model, RUNS, SPREAD, one};

/// Both machines' parts, as in the thesis (4.8.1: "Xeon Gold and ThunderX2 pairs").
const PARTS: [(Isa, &str); 2] = [
    (Isa::X86_64, "xeon-gold-6230r"),
    (Isa::Aarch64, "thunderx2-cn9980"),
];
const MIB: u64 = 1 << 20;
/// Memory of each machine's own, of which its program uses nothing.
pub(crate) const OWN: [u64; 2] = [512 * MIB, 1536 * MIB];
/// So far from each other do both walk through the same memory.
pub(crate) const APART: u64 = 64 * MIB;
/// What a figure of single accesses may be off its table by, ns: the two readings that it is between have whole ones.
const READINGS: f64 = 2.0;

/// Machines that are parts.
pub(crate) fn with_parts(text: &str) -> String {
    let mut text = text.to_owned();
    for (isa, part) in PARTS {
        let kernel = format!("kernel = \"{}\"\n", isa.to_string().replace('-', "_"));
        text = text.replace(&kernel, &format!("{kernel}part = \"{part}\"\n"));
    }
    text
}

/// A walk: what the memory is to the machine, where, and the table's figure, ns.
type Walk = (&'static str, u64, f64);

fn ns(part: &Part, cycles: u32) -> f64 {
    f64::from(cycles) * 1000.0 / f64::from(part.clock_mhz)
}

/// Where a machine walks in a model.
fn walks(model: &str, shared: u64, machine: usize, part: &Part, pool_ns: f64) -> Vec<Walk> {
    let (near, far) = (ns(part, part.cycles.memory), ns(part, part.cycles.remote));
    let at = shared + (1 + machine as u64) * APART;
    let own = ("own", OWN[machine], near);
    match (model, machine) {
        // What both see is the first machine's.
        ("separated", 0) => vec![own, ("other", OWN[1] + APART, far)],
        ("separated", _) => vec![own, ("other", at, far)],
        ("shared", _) => vec![own, ("pool", at, pool_ns)],
        _ => vec![own, ("pool", at, near)],
    }
}

/// A figure of each run, and the table's.
struct Case {
    name: String,
    table: f64,
    /// What it may be off by, and spread over.
    off: f64,
    ours: Vec<f64>,
}

impl Bench {
    /// Loads that only memory can serve, lines that the other machine has written, and doorbells to machines whose accesses cost time.
    pub(crate) fn costs(&self, model: Model, broken: &mut Vec<String>) -> Result<()> {
        let runs = if self.args.quick { 1 } else { RUNS };
        let mut cases = Vec::new();
        for hogged in [false, true] {
            let _hogs = hogged.then(Hogs::start);
            for _ in 0..runs {
                self.loads(model, &mut cases)?;
                self.snoops(model, &mut cases)?;
                self.on_time(model, broken)?;
            }
        }
        for Case {
            name,
            table,
            off,
            ours,
        } in cases
        {
            if ours.iter().any(|ours| (ours - table).abs() > off) {
                broken.push(format!("{name}: {ours:?} ns, and the table says {table}"));
            }
            let spread = self.print(name.clone(), "ns", ours, vec![table]);
            if spread.is_none_or(|spread| spread * table > off) {
                broken.push(format!("{name}: its spread is more than {off} ns"));
            }
        }
        Ok(())
    }

    fn loads(&self, (name, text, shared): Model, cases: &mut Vec<Case>) -> Result<()> {
        // So few that the pool's filter has room for all of them, as far apart as they are: nothing is taken back.
        let steps = if self.args.quick { 500 } else { 10_000 };
        let catalogue = Catalogue::built_in();
        let pool = catalogue.device("cxl3-pool").context("it comes with it")?;
        let mut machines = Vec::new();
        for (machine, (_, part)) in PARTS.iter().enumerate() {
            let part = catalogue.part(part).context("it comes with it")?;
            let walks = walks(name, shared, machine, part, f64::from(pool.latency_ns));
            machines.push((part, walks));
        }
        let parameters = |machine: usize| -> Vec<u64> {
            let from = machines[machine].1.iter().map(|(_, from, _)| *from);
            std::iter::once(steps).chain(from).collect()
        };
        let each = [parameters(0), parameters(1)];
        let both = self.run_each(&with_parts(text), MEMORY, &[&each[0], &each[1]])?;
        for (ended, (part, walks)) in both.iter().zip(&machines) {
            let warm = one(ended, "WARM")?;
            for ((whose, _, table), word) in walks.iter().zip(["FIRST", "SECOND"]) {
                let beyond = one(ended, word)?.saturating_sub(warm);
                let load = beyond as f64 / steps as f64 + ns(part, part.cycles.l1);
                let case = format!("load-{whose}/{name}/{}", ended.name);
                add(cases, case, *table, table * SPREAD, load);
            }
        }
        Ok(())
    }

    fn snoops(&self, (name, text, shared): Model, cases: &mut Vec<Case>) -> Result<()> {
        let rounds = if self.args.quick { 50 } else { 5_000 };
        let both = self.run(&with_parts(text), BALL, &[rounds, shared])?;
        let catalogue = Catalogue::built_in();
        for (ended, (_, part)) in both.iter().zip(PARTS) {
            let part = catalogue.part(part).context("it comes with it")?;
            let snoop = match name {
                "fully-shared" => part.snoop_data_cycles.group,
                _ => part.snoop_data_cycles.remote,
            };
            let beyond = one(ended, "MOST")?.saturating_sub(one(ended, "WARM")?);
            let load = beyond as f64 + ns(part, part.cycles.l1);
            let case = format!("snoop/{name}/{}", ended.name);
            add(cases, case, ns(part, snoop), READINGS, load);
        }
        Ok(())
    }

    fn on_time(&self, (name, text, shared): Model, broken: &mut Vec<String>) -> Result<()> {
        let rings = if self.args.quick { 100 } else { 5_000 };
        for awake in [0, 1, 2] {
            let parameters = [rings, awake, shared, shared + APART];
            for ended in self.run(&with_parts(text), DOORBELL, &parameters)? {
                if !is_on_time(&ended, rings)? {
                    broken.push(format!(
                        "{name}, with what memory costs, {awake}: {}",
                        ended.said
                    ));
                }
            }
        }
        Ok(())
    }
}

fn add(cases: &mut Vec<Case>, name: String, table: f64, off: f64, load: f64) {
    match cases.iter_mut().find(|case| case.name == name) {
        Some(case) => case.ours.push(load),
        None => cases.push(Case {
            name,
            table,
            off,
            ours: vec![load],
        }),
    }
}

/// Whether all doorbells were heard in the block of code of their time, and none before.
fn is_on_time(ended: &Ended, rings: u64) -> Result<bool> {
    let early = one(ended, "LEAST")? < one(ended, "LATENCY")?;
    let all = one(ended, "HEARD")? == rings;
    Ok(all && !early && ended.said.contains("delivered, 0 late"))
}
