//! Which colour, mark and dash stands for what.
//!
//! The colours are Okabe and Ito's, which stay apart for the colour-blind; each policy has a mark and a dash of its own as well, so
//! nothing depends on colour alone. Ours are bold and solid, baselines thin and dashed. The values are in `style.css`, where the
//! dark variants live too; here are only the names.

use super::node::{Node, Path, el};
use super::summary::{Family, PolicySummary};

/// Colours there are for each family, before they come round again.
const OURS: usize = 4;
const BASELINES: usize = 6;

/// How one policy is drawn everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    family: Family,
    index: usize,
}

/// The looks of all policies, in order.
pub fn looks(policies: &[PolicySummary]) -> Vec<Look> {
    let (mut ours, mut baselines) = (0, 0);
    let look = |policy: &PolicySummary| {
        let counter = if policy.family == Family::Ostler {
            &mut ours
        } else {
            &mut baselines
        };
        *counter += 1;
        Look {
            family: policy.family,
            index: *counter - 1,
        }
    };
    policies.iter().map(look).collect()
}

impl Look {
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

/// Reads how many cores a group holds.
pub type Held = fn(&super::summary::Cores) -> f64;

/// The groups that hold cores: class, name, and how to read it from a sample.
pub const GROUPS: [(&str, &str, Held); 5] = [
    ("g-vcpu", "vCPUs", |c| c.vcpu),
    ("g-nq", "queues (NQ)", |c| c.nq),
    ("g-shared", "vCPUs + queues shared", |c| c.shared),
    ("g-be", "best effort (BE)", |c| c.be),
    ("g-idle", "idle", |c| c.idle),
];
