//! What the machine is told that its memory is like.

use anyhow::{Context, Result};
use ostler_lab::scenario::Scenario;
use ostler_machine_memory::Catalogue;

/// A MiB in millions of bytes.
const MB_PER_MIB: f64 = 1.048_576;

/// What a case should measure, from the part's table and the scenario: ns, or MB/s of the far node.
pub fn expected(case: &str, part: &str, scenario: &Scenario) -> Result<f64> {
    let catalogue = Catalogue::built_in();
    let part = catalogue.part(part).context("the part isn't known")?;
    let far = scenario.host.nodes.last().context("there is no node")?;
    let cycles = match case {
        "latency-l1" => part.cycles.l1,
        "latency-l2" => part.cycles.l2,
        "latency-l3" => part.cycles.l3.context("the part has no L3")?,
        "latency-local" => part.cycles.memory,
        "latency-remote" => part.cycles.remote,
        "latency-pool" => return Ok(f64::from(far.latency_ns)),
        _ => return Ok(f64::from(far.bandwidth_mib_per_s) * MB_PER_MIB),
    };
    Ok(f64::from(cycles) * 1000.0 / f64::from(part.clock_mhz))
}
