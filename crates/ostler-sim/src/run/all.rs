//! Many cells on all cores. Each is a world of its own, so who runs which and when changes nothing; what came of them is handed over in their order, as
//! if one after the other had run, and so a run's record is the same bytes on any number of threads.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use ostler_outcome::events::Cell;

use super::{CellRun, Meanwhile, Run, RunError};
use crate::parallel::in_turn;

/// Runs cells on so many threads. `on` is told what happens in each meanwhile, from the thread that has it; `each` has what came of each, in order, and may have had enough.
pub fn all(
    run: &Run,
    cells: &[Cell],
    threads: usize,
    on: &(dyn Fn(&Cell, Meanwhile) + Sync),
    each: &mut dyn FnMut(&Cell, CellRun) -> ControlFlow<()>,
) -> Result<(), RunError> {
    let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
    let mut failed = Ok(());
    in_turn(
        cells.len(),
        threads,
        &|at| run.cell(&cells[at], &mut |what| on(&cells[at], what)),
        &mut |at, came| match came {
            Ok(came) => each(&cells[at], came),
            Err(error) => {
                failed = Err(error);
                ControlFlow::Break(())
            }
        },
    );
    failed
}
