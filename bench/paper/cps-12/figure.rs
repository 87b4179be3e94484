//! CPS, figure 12: figure 10 beside a guest that does the same.

use anyhow::Result;

use super::cps_10::all;
use crate::figure::{Case, Run};

/// With more threads than cores they wait for whole turns of others, and little is done in as long as four take to do much.
const SECONDS: [f64; 2] = [0.05, 2.0];

pub fn cases(run: Run) -> Result<Vec<Case>> {
    all(include_str!("scenario.toml"), SECONDS, run)
}
