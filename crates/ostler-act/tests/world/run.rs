//! A steward's life in a modelled world, and what must be true in the end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use ostler_act::{ActConfig, Actuator, Journal, UndoReport, undo};
use ostler_model::ForeignPolicy;
use proptest::prelude::ProptestConfig;

use super::kernel::{Kernel, Killed, State};
use super::schedulers::Schedulers;
use super::{Dice, Kind, World, facts};

/// So many cases, unless PROPTEST_CASES asks for more.
pub fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: match std::env::var_os("PROPTEST_CASES") {
            Some(_) => ProptestConfig::default().cases,
            None => cases,
        },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

pub fn scratch() -> tempfile::TempDir {
    // Journals in memory where there is such a place: thousands are made.
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        tempfile::tempdir_in(shm).expect("a scratch directory")
    } else {
        tempfile::tempdir().expect("a scratch directory")
    }
}

pub fn config(journal: PathBuf, foreign: ForeignPolicy) -> ActConfig {
    ActConfig { journal, foreign }
}

pub fn actuator(kernel: &Kernel, journal: &Path, foreign: ForeignPolicy) -> Actuator {
    let config = config(journal.to_owned(), foreign);
    Actuator::new(Box::new(kernel.clone()), &config, None)
        .expect("an actuator")
        .with_schedulers(Box::new(Schedulers::default()))
}

pub fn undo_all(kernel: &Kernel, journal: &Path) -> UndoReport {
    let mut journal = Journal::open(journal, kernel).expect("a journal");
    undo(&mut journal, kernel, None).expect("undo")
}

/// A host and its twin, in which the same happens but for us.
pub struct Run {
    pub world: World,
    pub kernel: Kernel,
    pub twin: Kernel,
    pub dice: Dice,
    pub _scratch: tempfile::TempDir,
    pub journal: PathBuf,
}

impl Run {
    pub fn new(seed: u64, kinds: &[Kind], no_cpuset: bool) -> Run {
        let mut dice = Dice(seed);
        let mut state = State::new();
        state.no_cpuset = no_cpuset;
        let world = World::build(&mut dice, kinds, &mut state);
        let scratch = scratch();
        Run {
            world,
            kernel: Kernel::new(state.clone()),
            twin: Kernel::new(state),
            dice,
            journal: scratch.path().join("journal"),
            _scratch: scratch,
        }
    }

    /// Lives through some periods; returns whether the steward was killed.
    pub fn live(&mut self, periods: u32) -> bool {
        let mut steward = None;
        for _ in 0..periods {
            let snapshot = self.world.snapshot(&self.kernel);
            let plan = self.world.plan(&mut self.dice);
            // Threads come and go between looking and acting, too.
            if self.dice.roll(3) == 0 {
                self.world
                    .happen(&mut self.dice, &[&self.kernel, &self.twin]);
            }
            let applied = catch_unwind(AssertUnwindSafe(|| {
                let steward = steward.get_or_insert_with(|| {
                    actuator(&self.kernel, &self.journal, ForeignPolicy::Respect)
                });
                steward
                    .apply(&facts(), &snapshot, &plan)
                    .expect("a journal")
            }));
            match applied {
                Ok(outcome) => assert_eq!(outcome.foreign, [], "nobody else was here"),
                Err(reason) => {
                    assert!(reason.is::<Killed>(), "the actuator panicked");
                    return true;
                }
            }
            self.world
                .happen(&mut self.dice, &[&self.kernel, &self.twin]);
            if self.dice.roll(6) == 0 {
                steward = None;
            }
        }
        false
    }

    pub fn assert_as_found(&self, report: &UndoReport, context: &str) {
        assert_eq!(report.left, [], "{context}");
        let (ours, twin) = (&self.kernel.lock().state, &self.twin.lock().state);
        assert_eq!(ours.tasks, twin.tasks, "{context}: tasks");
        assert_eq!(ours.cgroups, twin.cgroups, "{context}: cgroups");
        assert_eq!(ours, twin, "{context}");
    }
}
