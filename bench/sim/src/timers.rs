//! Timers of guests' that are no ticks, in a trace of the host's timers.
//!
//! A vCPU's timer is one of the host's (`apic_timer_fn` of KVM), told apart by its address. All ticks of one come at the same part of their period, whichever that is; what is due at other times
//! was set by somebody who sleeps in the guest.

use std::collections::HashMap;

use anyhow::Result;

/// Between ticks, ns (kernel/Kconfig.hz: HZ=250, Debian's).
const TICK: u64 = 4_000_000;
/// A part of it, in which ticks are counted.
const PART: u64 = 100_000;
/// What is due so near to where most are is a tick that came late, or the end of an interrupt that went before.
const NEAR: u64 = 2 * PART;

/// A timer of a vCPU's that was due: its address, when that was, and when the line was written, s.
fn timer(line: &str) -> Option<(u64, u64, f64)> {
    let (head, what) = line.split_once(": hrtimer_expire_entry: hrtimer=")?;
    let (address, what) = what.split_once(' ')?;
    if !what.starts_with("function=apic_timer_fn") {
        return None;
    }
    let (_, now) = what.split_once("now=")?;
    let at = head.split_whitespace().next_back()?;
    Some((
        u64::from_str_radix(address, 16).ok()?,
        now.split_whitespace().next()?.parse().ok()?,
        at.parse().ok()?,
    ))
}

/// When timers between ticks were due, s.
pub fn between_ticks(lines: impl Iterator<Item = std::io::Result<String>>) -> Result<Vec<f64>> {
    let mut each: HashMap<u64, Vec<(u64, f64)>> = HashMap::new();
    for line in lines {
        if let Some((address, due, at)) = timer(&line?) {
            each.entry(address).or_default().push((due % TICK, at));
        }
    }
    let mut between = Vec::new();
    for all in each.values() {
        let mut parts = [0_u32; (TICK / PART) as usize];
        for (phase, _) in all {
            parts[usize::try_from(phase / PART)?] += 1;
        }
        let most = (0..).zip(parts).max_by_key(|(_, count)| *count);
        let tick = most.map_or(0, |(part, _)| part) * PART + PART / 2;
        let off = |phase: u64| {
            let apart = phase.abs_diff(tick);
            apart.min(TICK - apart) > NEAR
        };
        between.extend(
            all.iter()
                .filter(|(phase, _)| off(*phase))
                .map(|(_, at)| *at),
        );
    }
    between.sort_by(f64::total_cmp);
    Ok(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_left_out_whichever_part_of_the_period_they_come_at() {
        let line = |timer: u32, due: u64, function: &str| {
            let at = due as f64 / 1e9;
            Ok(format!(
                " CPU 1/KVM-215     [000] d.h1.    {at:.6}: hrtimer_expire_entry: hrtimer={timer:016x} function={function} [kvm] now={due}"
            ))
        };
        let mut lines = Vec::new();
        for tick in 0..20 {
            // One's at the very end of the period, late by turns; the other's in its middle.
            lines.push(line(
                1,
                tick * TICK + 3_990_000 + tick % 3 * 40_000,
                "apic_timer_fn",
            ));
            lines.push(line(2, tick * TICK + 2_000_000, "apic_timer_fn"));
            lines.push(line(3, tick * TICK + 1_000_000, "hrtick"));
        }
        lines.push(line(1, 50_000_000, "apic_timer_fn"));
        lines.push(line(2, 50_500_000, "apic_timer_fn"));
        lines.push(Ok("# tracer: nop".to_owned()));
        let found = between_ticks(lines.into_iter()).expect("a trace");
        assert_eq!(found, [0.05, 0.0505]);
    }
}
