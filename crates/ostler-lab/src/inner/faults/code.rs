//! The host's kernel changes its own running code, over and over: tracepoints in the very functions by which cores interrupt
//! each other are switched on and off while they do. A steward does that each time it starts and ends. A real processor
//! bears it; an emulator that executes what was there before doesn't, and its host is dead: that is what this is to find.

use super::{Ground, Verdict};
use crate::inner::{read, write};

/// Where tracepoints are switched.
const EVENTS: &str = "/sys/kernel/tracing/events/irq_vectors";
/// What handlers of interrupts between cores announce.
const TRACEPOINTS: &[&str] = &[
    "call_function_single_entry",
    "reschedule_entry",
    "local_timer_entry",
];
/// Times that each is switched on and off.
const SWITCHES: u32 = 100;

/// Does it. That the host lives to tell is what is asked.
pub fn changes(ground: &Ground<'_>, verdict: &mut Verdict) -> anyhow::Result<()> {
    anyhow::ensure!(
        ground.fault.rate > 0,
        "without `rate`, cores have no reason to interrupt each other"
    );
    let before = interrupts()?;
    for _ in 0..SWITCHES {
        for state in ["1", "0"] {
            for tracepoint in TRACEPOINTS {
                let file = format!("{EVENTS}/{tracepoint}/enable");
                write(&file, state)?;
                anyhow::ensure!(
                    read(&file)?.trim() == state,
                    "{file} did not become {state}"
                );
            }
        }
    }
    let met = interrupts()?.saturating_sub(before);
    anyhow::ensure!(met > 0, "no core interrupted another meanwhile");
    verdict.notes.push(format!(
        "{} tracepoints switched on and off {SWITCHES} times, while cores interrupted each other {met} times",
        TRACEPOINTS.len()
    ));
    Ok(())
}

/// Calls of functions on other cores, and wake-ups, of all cores until now.
fn interrupts() -> anyhow::Result<u64> {
    let text = read("/proc/interrupts")?;
    let rows = text.lines().filter(|line| {
        let name = line.trim_start();
        name.starts_with("CAL:") || name.starts_with("RES:")
    });
    let counts = rows.flat_map(str::split_whitespace);
    Ok(counts.filter_map(|word| word.parse::<u64>().ok()).sum())
}
