//! Weights from samples: how slow a stage was where its sockets' counters told this and that (paper, section III.C and figure 8).
//!
//! The index is a weighted sum, so its weights are those of the least squares between what it says and what was measured; none is negative, as no
//! factor speeds a thread up. With four factors there are sixteen choices of which are zero, and the best of those whose solution has no negative weight is
//! the answer, exactly.

use super::problem::{Refusal, Socket, Weights};

/// A stage that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Counters of the predecessor's socket.
    pub from: Socket,
    /// Counters of the stage's own.
    pub to: Socket,
    /// How far the two are from each other, as in [`Problem::distances`](super::Problem::distances).
    pub distance: f64,
    /// How slow the stage was: its time for a packet, by that at its best.
    pub slowdown: f64,
}

/// The paper's four factors.
const FACTORS: usize = 4;
/// A factor whose part of the samples that others don't tell already is below this, tells nothing.
const APART: f64 = 1e-9;

type Row = [f64; FACTORS];

/// Finds the paper's four weights; crossing and load are zero.
///
/// # Errors
///
/// Fewer samples than weights, figures that are none, or samples from which weights can't be told apart.
pub fn calibrate(samples: &[Sample]) -> Result<Weights, Refusal> {
    let refuse = |why| {
        Err(Refusal::Samples {
            samples: samples.len(),
            why,
        })
    };
    if samples.len() < FACTORS {
        return refuse("there are fewer than weights");
    }
    let (mut squares, mut products) = ([[0.0; FACTORS]; FACTORS], [0.0; FACTORS]);
    for sample in samples {
        let row = factors(sample);
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
    }
    if solve(&squares, &products, [true; FACTORS]).is_none() {
        return refuse("one factor was the same in all, or went with others");
    }
    let mut best: Option<(f64, Row)> = None;
    for choice in 0..1_u32 << FACTORS {
        let mut chosen = [false; FACTORS];
        for (bit, chosen) in chosen.iter_mut().enumerate() {
            *chosen = choice >> bit & 1 == 1;
        }
        let Some(weights) = solve(&squares, &products, chosen) else {
            continue;
        };
        if weights.iter().any(|weight| *weight < 0.0) {
            continue;
        }
        // The sum of squares that is left, but for a term that all choices share.
        let mut left = 0.0;
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
    let [cache, memory, interconnect, remote] = best.map_or([0.0; FACTORS], |(_, weights)| weights);
    Ok(Weights {
        cache,
        memory,
        interconnect,
        remote,
        ..Weights::default()
    })
}

fn factors(sample: &Sample) -> Row {
    [
        1.0 / sample.to.l3_hit,
        sample.from.cycle_loss,
        sample.to.cycle_loss * sample.distance,
        sample.from.ipc / sample.to.ipc,
    ]
}

/// The least squares with the chosen factors alone, by elimination; none, where some of them go together.
fn solve(
    squares: &[[f64; FACTORS]; FACTORS],
    products: &Row,
    chosen: [bool; FACTORS],
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
    for i in 0..FACTORS {
        if left[i][i] <= APART * if chosen[i] { squares[i][i] } else { 1.0 } {
            return None;
        }
        for j in i + 1..FACTORS {
            let times = left[j][i] / left[i][i];
            let row = left[i];
            for (target, value) in left[j].iter_mut().zip(row) {
                *target -= times * value;
            }
            right[j] -= times * right[i];
        }
    }
    for i in (0..FACTORS).rev() {
        let known: f64 = (i + 1..FACTORS).map(|j| left[i][j] * right[j]).sum();
        right[i] = (right[i] - known) / left[i][i];
    }
    Some(right)
}
