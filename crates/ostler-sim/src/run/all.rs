//! Many cells on all cores. Each is a world of its own, so who runs which and when changes nothing; what came of them is handed over in their order, as
//! if one after the other had run, and so a run's record is the same bytes on any number of threads.
//!
//! What is over before its turn waits, and nobody begins a cell that is further ahead of the first that isn't over than [`AHEAD`] for each thread: so a slow cell doesn't have all others be kept.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, PoisonError, mpsc};

use ostler_outcome::events::Cell;

use super::{CellRun, Run, RunError};

/// Cells that a thread may be ahead.
const AHEAD: usize = 4;

/// How far all are.
#[derive(Default)]
struct Shared {
    /// The next cell that nobody has begun.
    next: usize,
    /// The first that hasn't been handed over.
    due: usize,
    enough: bool,
}

/// A thread that panics has nobody wait for its cell: its panic goes on in whoever asked.
struct Wakes<'a>(&'a Mutex<Shared>, &'a Condvar);

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).enough = true;
            self.1.notify_all();
        }
    }
}

/// Runs cells on so many threads. `on` is told how far each is, from the thread that has it; `each` has what came of each, in order, and may have had enough.
pub fn all(
    run: &Run,
    cells: &[Cell],
    threads: usize,
    on: &(dyn Fn(&Cell, f64) + Sync),
    each: &mut dyn FnMut(&Cell, CellRun) -> ControlFlow<()>,
) -> Result<(), RunError> {
    let threads = threads.clamp(1, cells.len().max(1));
    let (shared, moved) = (Mutex::new(Shared::default()), Condvar::new());
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    // The next cell to run, once it isn't too far ahead.
    let begin = || {
        let mut shared = lock();
        while !shared.enough
            && shared.next < cells.len()
            && shared.next >= shared.due + threads * AHEAD
        {
            shared = moved.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        let at = shared.next;
        shared.next += 1;
        (!shared.enough && at < cells.len()).then_some(at)
    };
    let (told, heard) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (told, begin) = (told.clone(), &begin);
            let (shared, moved) = (&shared, &moved);
            scope.spawn(move || {
                let _wakes = Wakes(shared, moved);
                while let Some(at) = begin() {
                    let cell = &cells[at];
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
                due += 1;
                let more = matches!(went_on, Ok(ControlFlow::Continue(())));
                let mut shared = lock();
                shared.due = due;
                shared.enough = !more;
                moved.notify_all();
                if !more {
                    return went_on.map(|_| ());
                }
            }
        }
        Ok(())
    })
}
