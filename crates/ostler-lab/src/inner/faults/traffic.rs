//! Requests that guests are asked while a fault is done: what is to be put back is then in use.

use std::fs::File;
use std::process::{Child, Stdio};

use anyhow::Context;

use super::Ground;
use crate::child::wait_timeout;
use crate::inner::load;
use crate::scenario::Load;

/// Few enough that a small guest with few threads serves them.
const CONNECTIONS: u32 = 4;
/// Longer than any fault; it is ended with the fault.
const SECONDS: u32 = 36_000;

/// Load generators, until they are dropped.
#[derive(Debug, Default)]
pub struct Traffic {
    generators: Vec<(usize, Child)>,
}

impl Traffic {
    /// Starts what the fault asks for, and again what ended with the guest that it was meant for.
    pub fn keep_up(&mut self, ground: &Ground<'_>) -> anyhow::Result<()> {
        if ground.fault.rate == 0 {
            return Ok(());
        }
        self.generators
            .retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
        let guests = ground.program.scenario.guests.iter().enumerate();
        for (index, guest) in guests.filter(|(_, guest)| guest.workload.service().is_some()) {
            if self.generators.iter().any(|(at, _)| *at == index) {
                continue;
            }
            let load = Load::new(&guest.name, CONNECTIONS, Vec::new());
            let steps = format!("{}x{SECONDS}", ground.fault.rate);
            let log = ground.out.join(format!("load-{}.log", guest.name));
            let log = File::options().create(true).append(true).open(log)?;
            let child = load::command(ground.program, &load, &steps, ground.program.seed)?
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .context("could not start the load generator")?;
            self.generators.push((index, child));
        }
        Ok(())
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        for (_, child) in &mut self.generators {
            // Failures mean that it ended by itself.
            let _ = child.kill();
            let _ = wait_timeout(child, std::time::Duration::from_secs(10));
        }
    }
}
