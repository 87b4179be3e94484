//! Which colour, mark and dash stands for what.
//!
//! The colours are Okabe and Ito's, which stay apart for the colour-blind; each policy has a mark and a dash of its own as well, so
//! nothing depends on colour alone. Ours are bold and solid, baselines thin and dashed. The values are in `style.css`, where the
//! dark variants live too; here are only the names.

use serde::{Deserialize, Serialize};

use crate::node::{Node, Path, el};

/// Colours there are for each family, before they come round again.
const OURS: usize = 4;
const BASELINES: usize = 6;

/// Whether a policy is ours or stands for what others do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Something to be compared with.
    Baseline,
    /// The steward's.
    Ostler,
}

/// How one policy is drawn everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    family: Family,
    index: usize,
}

/// The looks of all policies, in order.
pub fn looks(families: impl IntoIterator<Item = Family>) -> Vec<Look> {
    let (mut ours, mut baselines) = (0, 0);
    let look = |family: Family| {
        let counter = if family == Family::Ostler {
            &mut ours
        } else {
            &mut baselines
        };
        *counter += 1;
        Look {
            family,
            index: *counter - 1,
        }
    };
    families.into_iter().map(look).collect()
}

impl Look {
    /// Whether it is one of ours: ours lie on top.
    pub fn is_ours(self) -> bool {
        self.family == Family::Ostler
    }

    /// CSS classes that set colour, width and dash.
    pub fn class(self) -> String {
        match self.family {
            Family::Ostler => format!("ours o{}", self.index % OURS),
            Family::Baseline => format!("base b{}", self.index % BASELINES),
        }
    }

    /// The policy's mark, centred at a point.
    pub fn mark(self, x: f64, y: f64) -> Node {
        let shift = if self.family == Family::Ostler { 0 } else { 3 };
        mark(
            (self.index + shift) % 6,
            x,
            y,
            if self.family == Family::Ostler {
                4.5
            } else {
                3.5
            },
        )
        .class("mark")
    }
}

fn mark(shape: usize, x: f64, y: f64, r: f64) -> Node {
    let polygon = |points: &[(f64, f64)]| {
        let mut path = Path::default();
        for (i, (dx, dy)) in points.iter().enumerate() {
            if i == 0 {
                path.move_to(x + dx * r, y + dy * r);
            } else {
                path.line_to(x + dx * r, y + dy * r);
            }
        }
        path.close();
        path.node()
    };
    match shape {
        0 => el("circle").num("cx", x).num("cy", y).num("r", r),
        1 => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => polygon(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)]),
        3 => polygon(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
        4 => polygon(&[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)]),
        _ => polygon(&[(-1.3, -0.5), (1.3, -0.5), (1.3, 0.5), (-1.3, 0.5)]),
    }
}
