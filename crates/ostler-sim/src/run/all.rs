//! Many cells on all cores. Each is a world of its own, so who runs which and when changes nothing; what came of them is handed over in their order, as
//! if one after the other had run, and so a run's record is the same bytes on any number of threads.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use ostler_outcome::events::Cell;

use super::{CellRun, Run, RunError};

/// Runs cells on so many threads. `on` is told how far each is, from the thread that has it; `each` has what came of each, in order, and may have had enough.
pub fn all(
    run: &Run,
    cells: &[Cell],
    threads: usize,
    on: &(dyn Fn(&Cell, f64) + Sync),
    each: &mut dyn FnMut(&Cell, CellRun) -> ControlFlow<()>,
) -> Result<(), RunError> {
    let next = AtomicUsize::new(0);
    let enough = AtomicBool::new(false);
    let (told, heard) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, cells.len().max(1)) {
            let told = told.clone();
            let (next, enough) = (&next, &enough);
            scope.spawn(move || {
                while !enough.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(at) else { return };
                    let came = run.cell(cell, &mut |done| on(cell, done));
                    // Nobody listens once there was enough.
                    if told.send((at, came)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(told);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (at, came) in heard {
            early.insert(at, came);
            while let Some(came) = early.remove(&due) {
                let went_on = came.map(|came| each(&cells[due], came));
                if !matches!(went_on, Ok(ControlFlow::Continue(()))) {
                    enough.store(true, Ordering::Relaxed);
                    return went_on.map(|_| ());
                }
                due += 1;
            }
        }
        Ok(())
    })
}
