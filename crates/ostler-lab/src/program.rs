//! What the emulated host is to do once it is up: the scenario, and how its steward and load generators are started. It
//! travels as `program.json` on the input disk.

use serde::{Deserialize, Serialize};

use crate::scenario::Scenario;
use crate::trace::TraceEvent;
use ostler_outcome::events::Cell;
use ostler_outcome::order;

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
    /// Events of the host's kernel that are written down while loads are on.
    pub trace: Vec<TraceEvent>,
    /// The scenario's loads whose cells are run, by their place there; none: all. Guests of the others are idle in these cells, as ever.
    #[serde(default)]
    pub loads: Vec<u32>,
    /// Whether the machine counts where the host's instructions go while loads are on.
    pub profile: bool,
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
            trace: Vec::new(),
            loads: Vec::new(),
            profile: false,
        }
    }

    /// The cells in the order in which they run.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = order::cells(&self.scenario);
        if !self.loads.is_empty() {
            cells.retain(|cell| self.loads.contains(&cell.load));
            for (index, cell) in (0..).zip(&mut cells) {
                cell.index = index;
            }
        }
        cells
    }

    /// The seed of a cell's load.
    pub fn seed_of(&self, cell: &Cell) -> u64 {
        order::seed_of(self.seed, cell)
    }
}
