//! Libra, figure 5.7.

use anyhow::{Context as _, Result};
use ostler_model::{GuestId, MemoryClass, Nanos};
use ostler_policy::tier::proportion::{Claim, Files, Order, Targets};
use ostler_sim::memory::{Allocation, Memory, Node};
use ostler_sim::random::Stream;

use crate::figure::{Case, Run};

const GB: u64 = 1_000_000_000;
const VM: u64 = 10 * GB;
const PROGRAMS: u64 = 6;

pub fn cases(run: Run) -> Result<Vec<Case>> {
    let seeds = if run.quick { 2 } else { 101 };
    let (mut first, mut five, mut six) = (Sides::default(), Sides::default(), Sides::default());
    for seed in 0..seeds {
        for (by, side) in [(Allocation::LocalFirst, 0), (Allocation::Unaware, 1)] {
            let programs = programs(5 * GB, by, seed)?;
            // As long as there is local memory, none is far: what is local when the first byte is far.
            let before: u64 = programs
                .iter()
                .take_while(|program| program.1 == 0)
                .map(|program| program.0)
                .sum();
            first[side].push(percent(before, 5 * GB));
            let local: u64 = programs.iter().take(5).map(|program| program.0).sum();
            five[side].push(percent(local, 5 * GB));
            let programs = self::programs(3 * GB, by, seed)?;
            let local: u64 = programs.iter().map(|program| program.0).sum();
            six[side].push(percent(local, PROGRAMS * GB));
        }
    }
    let case = |name: &str, [ours, baseline]: Sides| Case {
        name: name.to_owned(),
        ours,
        baseline,
    };
    Ok(vec![
        case(
            "5 of 10 GB went far: local memory that is used before any far memory",
            first,
        ),
        case(
            "5 of 10 GB went far: local memory of the five programs that came first",
            five,
        ),
        case("3 of 10 GB went far: local memory of the six programs", six),
    ])
}

/// Ours and the baseline's.
type Sides = [Vec<f64>; 2];

/// Where the memory of each program comes to lie, local and far, after a neighbour has pushed so much of the VM's to far memory.
fn programs(pushed: u64, by: Allocation, seed: u64) -> Result<Vec<(u64, u64)>> {
    let claim = |class, local| Claim {
        class,
        priority: false,
        critical: false,
        came: Nanos::ZERO,
        bytes: VM,
        local,
        floor: 0,
        tenant: None,
    };
    // The VM has all of it near and uses it little; its neighbour presses, and lacks what is to go.
    let claims = [
        claim(MemoryClass::Rest, VM),
        claim(MemoryClass::Memory, VM - pushed),
    ];
    let mut targets = Targets::default();
    let bytes = 2 * VM - pushed;
    targets.pour(bytes, &claims, &[], Files::default(), Order::Keep);
    let near = targets.local[0];
    let node = |bytes, local, latency_ns, bytes_per_s| Node {
        bytes,
        local,
        latency_ns,
        bytes_per_s,
    };
    // What the VM is told of: its own two nodes.
    let nodes = vec![
        node(near, true, 100.0, 200e9),
        node(VM - near, false, 250.0, 25e9),
    ];
    let mut memory = Memory::new(nodes, 0.0);
    let mut draw = Stream::new(seed, "libra-5.7", 0);
    let mut found = Vec::new();
    for program in 0..PROGRAMS {
        let id = GuestId::from(format!("stream-{program}").as_str());
        memory.give(&id, [GB, 0, 0], by, &mut draw)?;
        let given = memory.guest(&id).context("it was given memory")?;
        found.push((given.on(0), given.on(1)));
    }
    Ok(found)
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of as f64
}
