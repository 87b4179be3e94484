//! Causes that explain a figure by a sum without a constant: least squares.

/// What each of some causes came to, and the figure that they explain together.
pub type Row<const N: usize> = ([f64; N], f64);

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit<const N: usize> {
    /// What goes with each of the causes, and its standard error.
    pub each: [(f64, f64); N],
    /// The share of the figures' scatter that is explained.
    pub r2: f64,
}

/// What goes with each cause; `None` where some of them can't be told apart, or there are too few rows.
pub fn fit<const N: usize>(rows: &[Row<N>]) -> Option<Fit<N>> {
    if rows.len() <= N {
        return None;
    }
    let mut squares = [[0.0; N]; N];
    let mut with = [0.0; N];
    for (causes, figure) in rows {
        for (at, cause) in causes.iter().enumerate() {
            with[at] += cause * figure;
            for (to, other) in causes.iter().enumerate() {
                squares[at][to] += cause * other;
            }
        }
    }
    let inverse = invert(squares)?;
    let product =
        |row: &[f64; N], by: &[f64; N]| row.iter().zip(by).map(|(a, b)| a * b).sum::<f64>();
    let each = inverse.map(|row| product(&row, &with));
    let left: f64 = rows
        .iter()
        .map(|(c, y)| (y - product(c, &each)).powi(2))
        .sum();
    let mean = rows.iter().map(|row| row.1).sum::<f64>() / rows.len() as f64;
    let scatter: f64 = rows.iter().map(|row| (row.1 - mean).powi(2)).sum();
    let variance = left / (rows.len() - N) as f64;
    let mut found = [(0.0, 0.0); N];
    for at in 0..N {
        found[at] = (each[at], (variance * inverse[at][at]).sqrt());
    }
    Some(Fit {
        each: found,
        r2: 1.0 - left / scatter,
    })
}

/// What goes with each cause where half of what is summed up may have something else in it: least absolute deviations, by least squares of rows that weigh the less the further they are off. A figure is
/// off by no less than `least`, which is what it is rounded by.
pub fn steady<const N: usize>(rows: &[Row<N>], least: f64) -> Option<[f64; N]> {
    let mut found = fit(rows)?.each.map(|(each, _)| each);
    for _ in 0..TURNS {
        let weighed: Vec<Row<N>> = rows
            .iter()
            .map(|(causes, figure)| {
                let told: f64 = causes.iter().zip(&found).map(|(c, f)| c * f).sum();
                let weight = (figure - told).abs().max(least).sqrt().recip();
                (causes.map(|cause| cause * weight), figure * weight)
            })
            .collect();
        found = fit(&weighed)?.each.map(|(each, _)| each);
    }
    Some(found)
}

/// It has come to rest by then: more change no figure's third digit.
const TURNS: usize = 20;

/// The inverse of a matrix, by Gauss and Jordan with pivots; `None` where there is none to speak of.
fn invert<const N: usize>(mut of: [[f64; N]; N]) -> Option<[[f64; N]; N]> {
    let mut inverse = [[0.0; N]; N];
    for (at, row) in inverse.iter_mut().enumerate() {
        row[at] = 1.0;
    }
    let scale: [f64; N] = std::array::from_fn(|at| of[at][at].abs());
    for at in 0..N {
        let pivot = (at..N).max_by(|a, b| of[*a][at].abs().total_cmp(&of[*b][at].abs()))?;
        of.swap(at, pivot);
        inverse.swap(at, pivot);
        let by = of[at][at];
        if by.abs() <= 1e-9 * scale[at] || by == 0.0 {
            return None;
        }
        for to in 0..N {
            of[at][to] /= by;
            inverse[at][to] /= by;
        }
        for row in (0..N).filter(|row| *row != at) {
            let times = of[row][at];
            for to in 0..N {
                of[row][to] -= times * of[at][to];
                inverse[row][to] -= times * inverse[at][to];
            }
        }
    }
    Some(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_causes_is_taken_apart() {
        let rows: Vec<_> = (1..20)
            .map(|at| {
                let (a, b, c) = (f64::from(at), f64::from(at * at % 7), f64::from(at % 3));
                ([a, b, c], 3.0 * a + 0.5 * b + 7.0 * c)
            })
            .collect();
        let found = fit(&rows).expect("three causes");
        for ((each, error), told) in found.each.iter().zip([3.0, 0.5, 7.0]) {
            assert!((each - told).abs() < 1e-9 && *error < 1e-6, "{found:?}");
        }
        assert!(found.r2 > 0.999_999);
        let same: Vec<_> = (1..20)
            .map(|at| ([f64::from(at), 2.0 * f64::from(at)], 1.0))
            .collect();
        assert_eq!(fit(&same), None, "they go together");
        assert_eq!(fit(&rows[..3]), None, "as many causes as rows");
    }

    /// Three rows that contradict each other by one: the textbook's errors (y = b x, x = 1, 2, 3).
    #[test]
    fn errors_are_the_textbooks() {
        let rows = [([1.0], 1.0), ([2.0], 3.0), ([3.0], 3.0)];
        let found = fit(&rows).expect("a cause");
        // b = 16/14; residuals -1/7, 5/7, -3/7: 35/49 of squares, over two, over 14.
        let (each, error) = found.each[0];
        assert!((each - 16.0 / 14.0).abs() < 1e-12);
        assert!((error - (35.0_f64 / 49.0 / 2.0 / 14.0).sqrt()).abs() < 1e-12);
    }
}
