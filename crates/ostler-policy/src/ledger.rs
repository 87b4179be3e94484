//! Who owns which core in the plan being made.
//!
//! Layers don't hand sets of cores to each other: they claim them here. A claim is granted only on cores that are the steward's and
//! that nobody has yet, so that "each core has one owner" holds by construction and not by each layer's care. What
//! nobody claimed when the ledger is closed is idle.

use ostler_model::{CpuSet, Facts, Group, Groups, Intent, Snapshot};

/// The owners of the managed cores.
#[derive(Clone, Debug)]
pub struct Ledger {
    available: CpuSet,
    free: CpuSet,
    groups: Groups,
}

impl Ledger {
    /// A ledger in which every core that is managed, online and not reserved is free.
    ///
    /// A CPU is online when the facts know it and the snapshot still has it: the facts are older, and a CPU
    /// may have been taken off the host since. A snapshot without CPUs says nothing about them.
    pub fn new(facts: &Facts, snapshot: &Snapshot, intent: &Intent) -> Ledger {
        let mut managed = facts.topology.online();
        if !snapshot.cpus.is_empty() {
            let seen: CpuSet = snapshot.cpus.iter().map(|usage| usage.cpu).collect();
            managed = managed.intersection(&seen);
        }
        if let Some(wanted) = &intent.cores.managed {
            managed = managed.intersection(wanted);
        }
        let reserved = managed.intersection(&intent.cores.reserved);
        let available = managed.difference(&reserved);
        Ledger {
            available,
            free: available,
            groups: Groups {
                reserved,
                ..Groups::default()
            },
        }
    }

    /// The cores that can be given to groups at all.
    pub fn available(&self) -> &CpuSet {
        &self.available
    }

    /// The cores that have no owner yet.
    pub fn free(&self) -> &CpuSet {
        &self.free
    }

    /// Gives a group those of the cores that are free; returns the ones granted.
    pub fn claim(&mut self, group: Group, cpus: &CpuSet) -> CpuSet {
        let granted = cpus.intersection(&self.free);
        self.free = self.free.difference(&granted);
        let of = match group {
            Group::Vcpu => &mut self.groups.vcpu,
            Group::Nq => &mut self.groups.nq,
            Group::BestEffort => &mut self.groups.best_effort,
            Group::Idle => &mut self.groups.idle,
        };
        *of = of.union(&granted);
        granted
    }

    /// Lets network queues use cores that others own too, by the policy's design: free ones become theirs. Idle cores are
    /// nobody's, and stay so.
    pub fn share_with_queues(&mut self, cpus: &CpuSet) {
        let cpus = cpus
            .intersection(&self.available)
            .difference(&self.groups.idle);
        self.free = self.free.difference(&cpus);
        self.groups.nq = self.groups.nq.union(&cpus);
        self.groups.shared = true;
    }

    /// The groups as claimed so far.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The finished groups; what is free is idle.
    pub fn close(mut self) -> Groups {
        let rest = self.free;
        self.claim(Group::Idle, &rest);
        self.groups
    }
}
