//! What the emulated host is to do once it is up: the scenario, and how its steward and load generators are started. It
//! travels as `program.json` on the input disk.

use serde::{Deserialize, Serialize};

use crate::events::Cell;
use crate::scenario::Scenario;

/// Where the input disk is mounted in the emulated host.
pub const INPUT: &str = "/lab";

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Program {
    /// The world, and the cells to run in it.
    pub scenario: Scenario,
    /// Stay up for a shell once set-up is done, rather than run the cells and power off.
    pub stay: bool,
    /// How the steward is started; `{config}` and `{out}` stand for its configuration file and a folder for results.
    pub steward: Vec<String>,
    /// How a running steward is asked for its status, as a JSON object with `generation` and `guests`.
    pub status: Vec<String>,
    /// How the steward's decisions are asked of its record when a cell is over; `{since}` stands for the Unix time, in
    /// seconds, at which the cell began. One JSON line each.
    pub decisions: Vec<String>,
    /// How the load generator is started; the lab adds the protocol, target and steps.
    pub load: Vec<String>,
    /// Seed of the first cell's load; cells of one round and load share theirs, so that policies see the same requests.
    pub seed: u64,
}

impl Program {
    /// A program for the binaries of the input disk.
    pub fn new(scenario: Scenario, stay: bool) -> Program {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        Program {
            scenario,
            stay,
            steward: words("/lab/bin/ostler run --config {config} --act --json"),
            status: words("/lab/bin/ostler status --json"),
            decisions: words(
                "/lab/bin/ostler explain --record {out}/record.db --since @{since} --json",
            ),
            load: words("/lab/bin/ostler-load"),
            seed: 1,
        }
    }

    /// The cells in the order in which they run: policies interleaved, each load and round in turn. Every other round
    /// runs backwards, so that a drift of the real machine doesn't favour whoever comes first.
    pub fn cells(&self) -> Vec<Cell> {
        let scenario = &self.scenario;
        let mut cells = Vec::new();
        for round in 0..scenario.rounds {
            for (load_index, load) in (0u32..).zip(&scenario.loads) {
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

    /// The seed of a cell's load.
    pub fn seed_of(&self, cell: &Cell) -> u64 {
        self.seed + u64::from(cell.round) * 1000 + u64::from(cell.load)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario;

    #[test]
    fn rounds_are_interleaved_and_turn_about() {
        let text = "name = \"t\"\nsummary = \"\"\nrounds = 2\n[host]\ncores = 4\nmemory = \"2G\"\nunder_test = \"0-2\"\nclient = \"3\"\npnic_queues = 1\n\
            [[guest]]\nname = \"lc\"\nclass = \"latency-critical\"\nvcpus = 1\nmemory = \"256M\"\nworkload = \"nginx\"\nslo_p95 = \"1ms\"\n\
            [[load]]\nguest = \"lc\"\nsteps = [{ rate = 1, seconds = 1 }]\n[[policy]]\nname = \"a\"\n[[policy]]\nname = \"b\"\n";
        let program = Program::new(
            scenario::parse(text, Path::new("t")).expect("a scenario"),
            false,
        );
        let cells = program.cells();
        let order: Vec<_> = cells.iter().map(|c| (c.round, c.policy.as_str())).collect();
        assert_eq!(order, [(0, "a"), (0, "b"), (1, "b"), (1, "a")]);
        assert_eq!(
            program.seed_of(&cells[0]),
            program.seed_of(&cells[1]),
            "policies of a round see the same requests"
        );
        assert_ne!(program.seed_of(&cells[0]), program.seed_of(&cells[2]));
    }
}
