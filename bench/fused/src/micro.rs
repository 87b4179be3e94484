//! The thesis's microbenchmarks (4.9.2.4 and 4.9.2.5, figures 4.11 and 4.12), on bare metal: one machine reads what the other has written, where
//! it lies, and by copies of whole pages that are asked for by messages.
//!
//! Its software is a kernel's, ours no more than what any must do: a doorbell and a copy on each side. So what it loses to hardware here is
//! the least that it can lose; page faults, page tables and the kernel's own protocol come on top.

use anyhow::{Result, ensure};
use ostler_machine_launch::Ended;
use ostler_machine_programs::{PAGES, figures};

use crate::costs::{APART, OWN, with_parts};
use crate::{Bench, Model, RUNS, SPREAD, one};

/// Pages: 10 MB in the thesis's figure 4.11.
const PAGES_READ: u64 = 2560;
/// The least that the program takes.
const FEWEST: u64 = 16;
/// Figures of few nanoseconds may be off by the clock's whole ones, and by where in a nanosecond a program begins.
const CLOCKS: f64 = 2.0;

/// What is asked and what answers it: a case, the word of hardware's figure, of software's, and of what both are normalised to.
const WALKS: [(&str, &str, &str); 2] = [
    ("walk-first", "DIRECT", "COPIED"),
    ("walk-again", "AGAIN", "REPLICA"),
];

impl Bench {
    pub(crate) fn micro(&self, model: Model, broken: &mut Vec<String>) -> Result<()> {
        let runs = if self.args.quick { 1 } else { RUNS };
        let mut all = Vec::new();
        for _ in 0..runs {
            all.push(self.pages(model)?);
        }
        let (name, ..) = model;
        for machine in 0..2 {
            let who = all[0][machine].name.clone();
            let of = |word: &str| -> Result<Vec<f64>> {
                let ended = all.iter().map(|both| &both[machine]);
                ended.map(|ended| Ok(one(ended, word)? as f64)).collect()
            };
            let own = of("OWN")?;
            for (case, hardware, software) in WALKS {
                let over_own = |figures: Vec<f64>| -> Vec<f64> {
                    figures.iter().zip(&own).map(|(ns, own)| ns / own).collect()
                };
                let (ours, theirs) = (over_own(of(hardware)?), over_own(of(software)?));
                let spread = self.print(format!("{case}/{name}/{who}"), "x own", ours, theirs);
                if spread.is_none_or(|spread| spread > SPREAD) {
                    broken.push(format!("{case}/{name}/{who}: a spread of {spread:?}"));
                }
            }
            let mut runs = Vec::new();
            for both in &all {
                runs.push(lines(&both[machine])?);
            }
            for at in 0..runs[0].len() {
                let count = runs[0][at].0;
                let ours: Vec<f64> = runs.iter().map(|run| run[at].1).collect();
                let theirs = runs.iter().map(|run| run[at].2).collect();
                let case = format!("lines-{count}/{name}/{who}");
                let off = ours.iter().copied().fold(f64::MIN, f64::max)
                    - ours.iter().copied().fold(f64::MAX, f64::min);
                if off > CLOCKS.max(ours[0] * SPREAD) {
                    broken.push(format!("{case}: {ours:?} ns"));
                }
                self.print(case, "ns", ours, theirs);
            }
        }
        Ok(())
    }

    fn pages(&self, (name, text, shared): Model) -> Result<Vec<Ended>> {
        let count = if self.args.quick { FEWEST } else { PAGES_READ };
        let x86 = shared + APART;
        // Where memory is one's own, the second machine's pages are its own.
        let arm = match name {
            "separated" => OWN[1] + APART,
            _ => shared + 2 * APART,
        };
        let both = self.run_each(
            &with_parts(text),
            PAGES,
            &[
                &[count, shared, x86, arm, OWN[0]],
                &[count, shared, arm, x86, OWN[1]],
            ],
        )?;
        for ended in &both {
            let wrong = one(ended, "BROKEN")?;
            ensure!(wrong == 0, "{name}, {}: {wrong} sums are wrong", ended.name);
        }
        Ok(both)
    }
}

/// Lines of a page, and what they cost where they lie and by a copy of it, ns.
fn lines(ended: &Ended) -> Result<Vec<(u64, f64, f64)>> {
    let text = String::from_utf8_lossy(&ended.serial);
    let figures = figures(&text);
    let of = |word: &str| -> Vec<u64> {
        let of_word = figures.iter().filter(|(its, _)| *its == word);
        of_word.map(|(_, figure)| *figure).collect()
    };
    let (counts, direct, copied) = (of("LINES"), of("LINES-DIRECT"), of("LINES-COPIED"));
    ensure!(
        !counts.is_empty() && counts.len() == direct.len() && counts.len() == copied.len(),
        "{} printed no lines:\n{text}",
        ended.name
    );
    let both = direct.iter().zip(&copied);
    let all = counts.iter().zip(both);
    Ok(all
        .map(|(count, (direct, copied))| (*count, *direct as f64, *copied as f64))
        .collect())
}
