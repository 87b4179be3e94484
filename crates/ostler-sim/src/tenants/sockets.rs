//! What a socket's counters say of packets' ways, as placement asks for it.
//!
//! The simulator has no caches, but knows what they stand for on a packet's way: a stage on another node than the one before finds nothing of the
//! message in its own last-level cache, and waits for it. So of all messages that a node's softirqs, vhost workers and vCPUs take up, those from afar are its misses; what they are waited for
//! is its lost cycles, with what guests wait that work on much memory (`memory_waits`), whose hits and misses nobody tells; and as an instruction is one cycle otherwise, those lost are missing in its instructions per cycle.

use ostler_model::{CpuId, Nanos, NodeId, Snapshot, SocketView};

use crate::path::Ground;

/// What a node's cores took up since that was last told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    messages: u64,
    far: u64,
    stall: Nanos,
}

/// By node; nobody counts until somebody asks.
#[derive(Clone, Debug, Default)]
pub(super) struct Sockets {
    nodes: Vec<Taken>,
}

impl Sockets {
    /// Counted from now on, for nodes that have cores.
    pub(super) fn start(&mut self, ground: &Ground) {
        self.nodes.resize(ground.nodes(), Taken::default());
    }

    /// A stage takes up a message on a node: `far`, what it waits for it, where that comes from another.
    pub(super) fn take(&mut self, node: NodeId, far: Option<Nanos>) {
        if let Some(taken) = self.nodes.get_mut(node.0 as usize) {
            taken.messages += 1;
            taken.far += u64::from(far.is_some());
            taken.stall.0 += far.unwrap_or_default().0;
        }
    }

    /// Whoever works on a node waits for its memory.
    pub(super) fn wait(&mut self, node: NodeId, time: Nanos) {
        if let Some(taken) = self.nodes.get_mut(node.0 as usize) {
            taken.stall = taken.stall.saturating_add(time);
        }
    }

    /// What each node's counters say of the time since this was last asked, by the busy time of its cores.
    pub(super) fn tell(&mut self, ground: &Ground, snapshot: &Snapshot) -> Vec<SocketView> {
        let mut views = Vec::with_capacity(self.nodes.len());
        for (number, taken) in (0..).zip(&mut self.nodes) {
            let node = NodeId(number);
            if !cores(ground).any(|cpu| ground.node(cpu) == node) {
                continue;
            }
            let cpus = snapshot.cpus.iter();
            let busy = cpus.filter(|usage| ground.node(usage.cpu) == node);
            let busy: u64 = busy.map(|usage| usage.busy.0).sum();
            let taken = std::mem::take(taken);
            let cycle_loss = share(taken.stall.0, busy);
            views.push(SocketView {
                node,
                l3_hit: 1.0 - share(taken.far, taken.messages),
                cycle_loss,
                ipc: 1.0 - cycle_loss,
                age: Nanos::ZERO,
            });
        }
        views
    }
}

fn cores(ground: &Ground) -> impl Iterator<Item = CpuId> {
    let all = (0..).take(ground.len()).map(CpuId);
    all.filter(|cpu| ground.has(*cpu))
}

/// None of nothing; work that is charged before it is done may be of the next time.
fn share(part: u64, of: u64) -> f64 {
    if of == 0 {
        return 0.0;
    }
    (part as f64 / of as f64).min(1.0)
}
