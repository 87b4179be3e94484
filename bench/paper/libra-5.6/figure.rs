//! Libra, figure 5.6.

use anyhow::{Result, bail};
use ostler_sim::memory::server::{By, Outcome, Server};

use crate::figure::{Case, Run};

const DAY: u64 = 86_400;
/// A fixed split as the server's tiers are: two to one.
const SPLIT: By = By::Split(2.0 / 3.0);
/// What such a split leaves unused of local memory in the thesis.
const UNUSED: f64 = 0.36;
/// What all VMs have of all memory where more of them come.
const FULL: f64 = 0.75;
/// TPP demotes below 2 % (`demote_scale_factor`), and promotes as long as there is any.
const PAGES: By = By::Pages {
    demote: 0.02,
    promote: 0.0,
};

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let (days, seeds) = if run.quick { (1, 1..=1) } else { (3, 1..=7) };
    let mut told: Vec<[Outcome; 5]> = Vec::new();
    let mut full: Vec<[Outcome; 2]> = Vec::new();
    for seed in seeds {
        let [thesis, fuller] = loaded(days, seed, if run.quick { 150 } else { 5 });
        told.push([SPLIT, PAGES, By::Balloons, By::Fifo, By::Tier].map(|by| thesis.run(by)));
        full.push([PAGES, By::Tier].map(|by| fuller.run(by)));
    }
    let broken: u64 = told.iter().map(|told| told[4].violations).sum();
    if broken > 0 {
        bail!("{broken} plans break a rule");
    }
    let of = |by: usize, figure: fn(&Outcome) -> f64| -> Vec<f64> {
        told.iter().map(|told| figure(&told[by])).collect()
    };
    let unused = |told: &Outcome| 100.0 * told.unused;
    let beyond = |told: &Outcome| 100.0 * (told.unused - told.least_unused);
    let slower = |told: &Outcome| 100.0 * told.slower;
    let moved = |told: &Outcome| told.moved as f64 / 1e9 / (told.seconds / DAY as f64);
    let mut cases = Vec::new();
    let mut case = |what: &str, beside: &str, ours, baseline| {
        cases.push(Case {
            name: format!("{what}of {beside}"),
            ours,
            baseline,
        });
    };
    let [split, pages, balloons, fifo] = [
        "a split of two to one",
        "page tiering",
        "balloons",
        "the thesis' own order",
    ];
    case("unused local memory, ", split, of(4, unused), of(0, unused));
    let leave = "unused beyond what all VMs together leave, ";
    case(leave, split, of(4, beyond), of(0, beyond));
    case(leave, pages, of(4, beyond), of(1, beyond));
    let side = |by: usize| full.iter().map(|full| unused(&full[by])).collect();
    case(
        "unused local memory of a server that fills up, ",
        pages,
        side(1),
        side(0),
    );
    for (at, beside) in [(0, split), (1, pages), (2, balloons)] {
        case(
            "how much longer VMs' work takes that press, ",
            beside,
            of(4, slower),
            of(at, slower),
        );
    }
    for (at, beside) in [(1, pages), (2, balloons), (3, fifo)] {
        case("bytes moved, ", beside, of(4, moved), of(at, moved));
    }
    Ok(cases)
}

/// The servers whose load comes nearest to what a fixed split leaves in the thesis, and to three quarters, by what that split comes to: a server's VMs are few, and some of them large, so one population
/// makes very different loads.
fn loaded(days: u64, seed: u64, step: usize) -> [Server; 2] {
    let server = |population| Server::thesis(population, days * DAY, seed);
    let mut best = [(f64::INFINITY, 0); 2];
    for population in (100..=400).step_by(step) {
        let split = server(population).run(SPLIT);
        let off = [split.unused - UNUSED, split.load - FULL];
        for (best, off) in best.iter_mut().zip(off) {
            if off.abs() < best.0 {
                *best = (off.abs(), population);
            }
        }
    }
    best.map(|best| server(best.1))
}
