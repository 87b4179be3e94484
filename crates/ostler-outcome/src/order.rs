//! Which cells a scenario has, in which order they run, and what each is drawn from.

use ostler_scenario::Scenario;

use crate::events::Cell;

/// The cells in the order in which they run: policies interleaved, each load and round in turn. Every other round runs backwards, so that a drift
/// of the real machine doesn't favour whoever comes first. Loads in the background have none of their own.
pub fn cells(scenario: &Scenario) -> Vec<Cell> {
    let mut cells = Vec::new();
    for round in 0..scenario.rounds {
        let loads = (0u32..).zip(&scenario.loads);
        for (load_index, load) in loads.filter(|(_, load)| !load.background) {
            let forward = scenario.policies.iter();
            let names: Vec<_> = if round % 2 == 0 {
                forward.collect()
            } else {
                forward.rev().collect()
            };
            for policy in names {
                cells.push(Cell {
                    index: u32::try_from(cells.len()).unwrap_or(u32::MAX),
                    round,
                    policy: policy.name.clone(),
                    load: load_index,
                    guest: load.guest.clone(),
                });
            }
        }
    }
    cells
}

/// The seed of a cell's load: cells of one round and load share theirs, so that policies see the same requests.
pub fn seed_of(seed: u64, cell: &Cell) -> u64 {
    seed.wrapping_add(u64::from(cell.round) * 1000 + u64::from(cell.load))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_interleaved_and_turn_about() {
        let mut scenario = crate::testing::scenario();
        scenario.rounds = 2;
        let cells = cells(&scenario);
        let order: Vec<_> = cells.iter().map(|c| (c.round, c.policy.as_str())).collect();
        assert_eq!(
            order,
            [(0, "vanilla"), (0, "ours"), (1, "ours"), (1, "vanilla")]
        );
        let seeds: Vec<_> = cells.iter().map(|cell| seed_of(1, cell)).collect();
        assert_eq!(
            seeds[0], seeds[1],
            "policies of a round see the same requests"
        );
        assert_ne!(seeds[0], seeds[2]);
    }
}
