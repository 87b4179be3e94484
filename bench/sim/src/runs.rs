//! What both programs that read runs of the lab ask of them.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// What an instruction takes on a run's host, ns.
pub fn instruction_ns(run: &Path) -> Result<f64> {
    let file = run.join("program.json");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("could not read {}", file.display()))?;
    let program: Value = serde_json::from_str(&text)?;
    let ns = program["scenario"]["host"]["instruction_ns"].as_f64();
    ns.context("a run doesn't say what an instruction takes")
}
