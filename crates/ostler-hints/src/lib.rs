//! Where does a woken task of a guest run? `bpf/core/hints.h`, which heads it with an essay, compiled natively; and [`interactive`], which finds
//! the threads that should be together.
//!
//! A guest's scheduler runs the same C, so what holds here holds there. Nothing here keeps time.
//!
//! May depend on: `ostler-abi`, which has the Refer-Table's layout.

pub mod interactive;

use ostler_abi::hints::{GROUPS_MAX, NONE, PINS_WORDS, Table, VCPUS_MAX};

/// Which idle vCPUs are available to a task that wakes, `enum hints_rule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rule {
    /// All: a guest that knows nothing of its host (the paper's HVM).
    Hvm,
    /// Those that are online, by steal time (its PVM).
    Pvm,
    /// And those that were preempted on a core of low load on which the guest itself has nothing to run (CPS-Pload).
    Pload,
}

/// Sets of vCPUs, a bit each, `struct hints_sets`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sets {
    /// Where the task may run.
    pub allowed: [u64; VCPUS_MAX / 64],
    /// Those that run nothing.
    pub idle: [u64; VCPUS_MAX / 64],
    /// Those that aren't on a core.
    pub preempted: [u64; VCPUS_MAX / 64],
}

/// Where the guest's own vCPUs are busy, by what the table says of who shares a core, `struct hints_cores`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Cores {
    busy: [u16; VCPUS_MAX],
    counts_in: [u16; VCPUS_MAX],
}

/// A virtual cache group's totals, `struct hints_group`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Group {
    /// Interactive threads in it.
    pub threads: u32,
    /// vCPUs in it.
    pub vcpus: u32,
}

/// The CG-Tree: a guest's totals, `struct hints_tree`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Tree {
    threads: u32,
    vcpus: u32,
    groups: u32,
    sequence: u32,
    group: [Group; GROUPS_MAX],
}

/// The LTM: where the threads of one group of threads are, `struct hints_map`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Map {
    threads: [u32; GROUPS_MAX],
}

const _: () = {
    assert!(size_of::<Sets>() == 384);
    assert!(size_of::<Cores>() == 4096);
    assert!(size_of::<Tree>() == 2064);
    assert!(size_of::<Map>() == 1024);
};

#[allow(
    unsafe_code,
    reason = "C that takes plain values and pointers to live ones"
)]
mod native {
    use super::{Cores, Map, PINS_WORDS, Rule, Sets, Table, Tree};

    unsafe extern "C" {
        pub safe fn core_hints_choose_vcpu(
            table: &Table,
            sets: &Sets,
            cores: &Cores,
            rule: Rule,
            vcpus: u32,
            prev: u32,
            group: u32,
        ) -> u32;
        pub safe fn core_hints_place_task(
            table: &Table,
            sets: &Sets,
            cores: &Cores,
            rule: Rule,
            vcpus: u32,
            prev: u32,
        ) -> u32;
        pub safe fn core_hints_busy(cores: &mut Cores, table: &Table, vcpu: u32, busy: u32);
        pub safe fn core_hints_recount(cores: &mut Cores, table: &Table, sets: &Sets, vcpus: u32);
        pub safe fn core_hints_quota(group_vcpus: u32, threads: u32, vcpus: u32) -> u64;
        pub safe fn core_hints_refresh(tree: &mut Tree, table: &Table) -> u32;
        pub safe fn core_hints_choose_group(tree: &Tree, map: &Map, from: u32) -> u32;
        pub safe fn core_hints_move(tree: &mut Tree, map: &mut Map, from: u32, to: u32) -> u32;
        pub safe fn core_hints_full(tree: &Tree, group: u32) -> u32;
        pub safe fn core_hints_ask(tree: &Tree, table: &Table, pins: &mut [u32; PINS_WORDS]);
    }
}

fn some(value: u32) -> Option<u32> {
    (value != NONE).then_some(value)
}

/// The first available vCPU from `prev` on, around the end, of a guest's `vcpus`; only those of `group` where one is named.
pub fn choose_vcpu(
    table: &Table,
    sets: &Sets,
    cores: &Cores,
    rule: Rule,
    vcpus: u32,
    prev: u32,
    group: Option<u32>,
) -> Option<u32> {
    let group = group.unwrap_or(NONE);
    some(native::core_hints_choose_vcpu(
        table, sets, cores, rule, vcpus, prev, group,
    ))
}

/// The vCPU of a task that belongs to no group: as [`choose_vcpu`] has it, but where Pload has none available it is the first idle one from `prev` on, on a
/// busy core or not. Behind another task it would wait as well, and be there again the next time.
pub fn place_task(
    table: &Table,
    sets: &Sets,
    cores: &Cores,
    rule: Rule,
    vcpus: u32,
    prev: u32,
) -> Option<u32> {
    some(native::core_hints_place_task(
        table, sets, cores, rule, vcpus, prev,
    ))
}

/// How many interactive threads a group of `group_vcpus` takes, with so many threads and vCPUs in all.
pub fn quota(group_vcpus: u32, threads: u32, vcpus: u32) -> u64 {
    native::core_hints_quota(group_vcpus, threads, vcpus)
}

/// Sets pins for the vCPUs of groups that are full, and takes back those of others.
pub fn ask(tree: &Tree, table: &Table, pins: &mut [u32; PINS_WORDS]) {
    native::core_hints_ask(tree, table, pins);
}

impl Default for Cores {
    fn default() -> Cores {
        Cores {
            busy: [0; VCPUS_MAX],
            counts_in: [0; VCPUS_MAX],
        }
    }
}

impl Cores {
    /// A vCPU has something to run from now on, or has nothing more.
    pub fn busy(&mut self, table: &Table, vcpu: u32, busy: bool) {
        native::core_hints_busy(self, table, vcpu, busy.into());
    }

    /// The table has changed: counts anew which of a guest's `vcpus` aren't idle.
    pub fn recount(&mut self, table: &Table, sets: &Sets, vcpus: u32) {
        native::core_hints_recount(self, table, sets, vcpus);
    }
}

impl Default for Tree {
    fn default() -> Tree {
        Tree {
            threads: 0,
            vcpus: 0,
            groups: 0,
            sequence: 0,
            group: [Group::default(); GROUPS_MAX],
        }
    }
}

impl Tree {
    /// Counts vCPUs anew if the table has changed; says whether threads are to be placed again.
    pub fn refresh(&mut self, table: &Table) -> bool {
        native::core_hints_refresh(self, table) != 0
    }

    /// The group for a thread that is in `from`, or that is new. `None` when no group has vCPUs.
    pub fn choose(&self, map: &Map, from: Option<u32>) -> Option<u32> {
        some(native::core_hints_choose_group(
            self,
            map,
            from.unwrap_or(NONE),
        ))
    }

    /// A thread goes from one group to another; `None`: it is new, or it ends. Says whether it could: nothing is taken from where nothing is.
    pub fn moves(&mut self, map: &mut Map, from: Option<u32>, to: Option<u32>) -> bool {
        native::core_hints_move(self, map, from.unwrap_or(NONE), to.unwrap_or(NONE)) != 0
    }

    /// Whether a group has as many threads as it takes.
    pub fn is_full(&self, group: u32) -> bool {
        native::core_hints_full(self, group) != 0
    }

    /// Interactive threads in all.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// vCPUs whose group is known.
    pub fn vcpus(&self) -> u32 {
        self.vcpus
    }

    /// Each group's totals.
    pub fn groups(&self) -> &[Group; GROUPS_MAX] {
        &self.group
    }
}

impl Default for Map {
    fn default() -> Map {
        Map {
            threads: [0; GROUPS_MAX],
        }
    }
}

impl Map {
    /// How many threads of this group of threads are in each group.
    pub fn threads(&self) -> &[u32; GROUPS_MAX] {
        &self.threads
    }
}
