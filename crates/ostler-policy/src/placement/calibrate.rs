//! Weights from samples: how slow a stage was where its sockets' counters and its core told this and that (paper, section III.C and figure 8).
//!
//! The index is a weighted sum, so its weights are those of the least squares between what it says and what was measured; none is negative, as no
//! factor speeds a thread up. With seven factors there are 128 choices of which are zero, and the best of those whose solution has no negative weight is
//! the answer, exactly.
//!
//! Changed: the paper's index has four factors, and no term for what a stage takes anywhere. Fitted without one, that is in whatever factor differs least, which then seems to
//! matter where it does differ. So there is one (`base`), and of the others those are found that differ from sample to sample. A host may have none of some: sockets with one cache each
//! have no crossing, and cores that nobody else wants no load. Such a weight stays as it was.

use super::problem::{Refusal, Weights};
use super::slowdown::Factors;

/// A stage that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// What it was slowed down by.
    pub factors: Factors,
    /// How slow it was: its time for a packet, by that at its best.
    pub slowdown: f64,
}

/// What samples say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibrated {
    /// How much each factor slows the stage down.
    pub weights: Weights,
    /// What the index is off by, in the root of the mean of squares: 1 is a packet's time at its best.
    pub error: f64,
}

/// Those of the paper: they stand first.
const PAPERS: usize = 4;
/// Where the one stands that is the same for all places.
const BASE: usize = Factors::COUNT - 1;
/// A factor whose part of the samples that others don't tell already is below this, tells nothing.
const APART: f64 = 1e-9;

type Row = [f64; Factors::COUNT];

/// Finds weights. Those of factors that are the same in all samples stay `as they were`.
///
/// # Errors
///
/// Fewer samples than weights, figures that are none, or samples of which all of the paper's factors are the same, or from which weights can't be told apart.
pub fn calibrate(samples: &[Sample], as_they_were: &Weights) -> Result<Calibrated, Refusal> {
    let refuse = |why| {
        Err(Refusal::Samples {
            samples: samples.len(),
            why,
        })
    };
    let rows = || samples.iter().map(|sample| sample.factors.0);
    let (mut squares, mut products) = ([[0.0; Factors::COUNT]; Factors::COUNT], Row::default());
    let mut all = 0.0;
    for (row, sample) in rows().zip(samples) {
        let figures = row.iter().chain([&sample.slowdown]);
        if !figures.into_iter().all(|f| f.is_finite() && f.abs() < 1e9) {
            return refuse("one has a figure that is none");
        }
        for (i, a) in row.iter().enumerate() {
            products[i] += a * sample.slowdown;
            for (j, b) in row.iter().enumerate() {
                squares[i][j] += a * b;
            }
        }
        all += sample.slowdown * sample.slowdown;
    }
    // A factor that is the same in all samples is part of what the stage takes anywhere.
    let mut told = [true; Factors::COUNT];
    for (at, told) in told.iter_mut().enumerate().take(BASE) {
        let (square, sum) = (squares[at][at], squares[at][BASE]);
        *told = square - sum * sum / squares[BASE][BASE] > APART * square;
    }
    if samples.len() < told.iter().filter(|told| **told).count() {
        return refuse("there are fewer than weights");
    }
    if !told[..PAPERS].contains(&true) {
        return refuse("each factor was the same in all");
    }
    if solve(&squares, &products, told).is_none() {
        return refuse("one factor went with others");
    }
    let mut best: Option<(f64, Row)> = None;
    for choice in 0..1_u32 << Factors::COUNT {
        let mut chosen = [false; Factors::COUNT];
        for (bit, chosen) in chosen.iter_mut().enumerate() {
            *chosen = choice >> bit & 1 == 1;
        }
        if chosen
            .iter()
            .zip(told)
            .any(|(chosen, told)| *chosen && !told)
        {
            continue;
        }
        let Some(weights) = solve(&squares, &products, chosen) else {
            continue;
        };
        if weights.iter().any(|weight| *weight < 0.0) {
            continue;
        }
        let mut left = all;
        for (i, a) in weights.iter().enumerate() {
            left -= 2.0 * a * products[i];
            for (j, b) in weights.iter().enumerate() {
                left += a * b * squares[i][j];
            }
        }
        if best.is_none_or(|(least, _)| left < least) {
            best = Some((left, weights));
        }
    }
    let (left, mut row) = best.unwrap_or_default();
    for (weight, (told, was)) in row.iter_mut().zip(told.into_iter().zip(as_they_were.all())) {
        if !told {
            *weight = was;
        }
    }
    let [cache, memory, interconnect, remote, crossing, load, base] = row;
    Ok(Calibrated {
        weights: Weights {
            cache,
            memory,
            interconnect,
            remote,
            crossing,
            load,
            base,
        },
        error: (left.max(0.0) / samples.len() as f64).sqrt(),
    })
}

/// The least squares with the chosen factors alone, by elimination; none, where some of them go together.
fn solve(
    squares: &[Row; Factors::COUNT],
    products: &Row,
    chosen: [bool; Factors::COUNT],
) -> Option<Row> {
    let (mut left, mut right) = (*squares, *products);
    for (i, row) in left.iter_mut().enumerate() {
        for (j, value) in row.iter_mut().enumerate() {
            if !chosen[i] || !chosen[j] {
                *value = if i == j { 1.0 } else { 0.0 };
            }
        }
        if !chosen[i] {
            right[i] = 0.0;
        }
    }
    // Symmetric and, where factors are apart, positive definite: no pivot need be sought.
    for i in 0..Factors::COUNT {
        if left[i][i] <= APART * if chosen[i] { squares[i][i] } else { 1.0 } {
            return None;
        }
        for j in i + 1..Factors::COUNT {
            let times = left[j][i] / left[i][i];
            let row = left[i];
            for (target, value) in left[j].iter_mut().zip(row) {
                *target -= times * value;
            }
            right[j] -= times * right[i];
        }
    }
    for i in (0..Factors::COUNT).rev() {
        let known: f64 = (i + 1..Factors::COUNT).map(|j| left[i][j] * right[j]).sum();
        right[i] = (right[i] - known) / left[i][i];
    }
    Some(right)
}
