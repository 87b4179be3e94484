//! What tasks do: what programs keep between their tasks' steps. The steps themselves are the tenants' ([`crate::tenants`]), since they reach into vCPUs
//! and queues.

use std::collections::VecDeque;

use ostler_model::CpuId;

use super::spec::{Program, Sharing, Time};

/// What waits for tasks that answer requests.
#[derive(Debug, Default)]
pub struct Service {
    /// Messages for whichever task is free.
    pub inbox: VecDeque<u32>,
    /// Tasks that are.
    pub free: Vec<u32>,
}

/// A lock.
#[derive(Debug)]
pub struct Lock {
    /// The task that has it.
    pub holder: Option<u32>,
    /// Those that wait, in order.
    pub waiters: VecDeque<u32>,
    /// The core that had it last: its cache has the lines.
    pub cpu: CpuId,
}

impl Default for Lock {
    fn default() -> Lock {
        Lock {
            holder: None,
            waiters: VecDeque::new(),
            cpu: CpuId(u32::MAX),
        }
    }
}

/// A barrier.
#[derive(Debug, Default)]
pub struct Barrier {
    /// Those that have come.
    pub waiting: Vec<u32>,
}

impl Program {
    /// How many tasks it has.
    pub fn tasks(&self) -> u32 {
        match self {
            Program::Serve {
                sharing: Sharing::Kernel,
                ..
            } => 0,
            Program::Serve { tasks, .. }
            | Program::Files { tasks, .. }
            | Program::Compute { tasks, .. }
            | Program::Barrier { tasks, .. }
            | Program::Lock { tasks, .. }
            | Program::Disk { tasks } => *tasks,
            Program::Upkeep { .. } | Program::Agent { .. } => 1,
        }
    }

    /// Whether it answers requests.
    pub fn serves(&self) -> bool {
        matches!(self, Program::Serve { .. } | Program::Files { .. })
    }

    /// What a request takes, where the kernel answers it.
    pub fn in_kernel(&self) -> Option<&Time> {
        match self {
            Program::Serve {
                sharing: Sharing::Kernel,
                service,
                ..
            } => Some(service),
            _ => None,
        }
    }

    /// Whether a connection's requests are always the same task's.
    pub fn by_connection(&self) -> bool {
        matches!(
            self,
            Program::Serve {
                sharing: Sharing::Connection,
                ..
            }
        )
    }
}
