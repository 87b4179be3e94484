//! What the emulated host is to do once it is up: the scenario, and how its steward and load generators are started. It
//! travels as `program.json` on the input disk.

use serde::{Deserialize, Serialize};

use crate::scenario::{Guest, Load, Scenario};
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

    /// Whether the work that a guest does by itself rests but for the cells that it has part in. Where there are cells and nothing else, all
    /// such work does: before each, a steward's BPF programs are loaded on one core, and to emulate all others at work meanwhile takes longer
    /// than the cell.
    pub fn rests(&self, guest: &Guest) -> bool {
        let scenario = &self.scenario;
        let cells_alone = !scenario.loads.is_empty() && scenario.faults.is_empty() && !self.stay;
        guest.in_turn || guest.workload.works() && cells_alone
    }

    /// Those of them, by number, that work in a load's cells.
    pub fn working(&self, load: &Load) -> Vec<usize> {
        let works =
            |guest: &Guest| self.rests(guest) && (!guest.in_turn || guest.name == load.guest);
        let guests = self.scenario.guests.iter().enumerate();
        guests
            .filter_map(|(at, guest)| works(guest).then_some(at))
            .collect()
    }

    /// The seed of a cell's load.
    pub fn seed_of(&self, cell: &Cell) -> u64 {
        order::seed_of(self.seed, cell)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario;

    /// A server, one that works by its own load, and one that computes.
    const SCENARIO: &str = r#"
        name = "s"
        summary = "s"
        host = { cores = 3, memory = "3G", under_test = "0-1", client = "2", pnic_queues = 1 }
        guest = [
            { name = "lc", class = "latency-critical", vcpus = 1, memory = "160M", workload = "echo", slo_p95 = "20ms" },
            { name = "disk", class = "best-effort", vcpus = 1, memory = "160M", workload = "disk-read" },
            { name = "computes", class = "best-effort", vcpus = 1, memory = "160M", workload = "spin" },
        ]
        load = [
            { guest = "lc", steps = [{ rate = 10, seconds = 2 }] },
            { guest = "disk", steps = [{ rate = 0, seconds = 2 }] },
        ]
        policy = [{ name = "p" }]
    "#;

    fn scenario(more: &str) -> Scenario {
        let text = format!("{SCENARIO}{more}");
        scenario::parse(&text, Path::new("s.toml")).expect("a good scenario")
    }

    #[test]
    fn work_rests_between_cells_and_that_of_a_load_between_its_own() {
        let program = Program::new(scenario(""), false);
        let rest: Vec<bool> = program
            .scenario
            .guests
            .iter()
            .map(|g| program.rests(g))
            .collect();
        assert_eq!(
            rest,
            [false, true, true],
            "who answers is there to be asked"
        );
        let [lc, disk] = &program.scenario.loads[..] else {
            panic!("two loads")
        };
        assert_eq!(program.working(lc), [2]);
        assert_eq!(program.working(disk), [1, 2]);
    }

    #[test]
    fn where_there_are_no_cells_guests_work_as_ever() {
        let up = Program::new(scenario(""), true);
        let computes = &up.scenario.guests[2];
        assert!(!up.rests(computes), "somebody looks at it by hand");
        let mut idle = scenario("");
        idle.loads.clear();
        let idle = Program::new(idle, false);
        assert!(!idle.rests(computes));
        let broken = Program::new(scenario("fault = [{ kind = \"kill\" }]"), false);
        assert!(!broken.rests(computes), "faults come after cells");
    }
}
