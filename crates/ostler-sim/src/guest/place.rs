//! On which vCPU a woken task runs, by what the guest knows of its host (CPS, section 5).
//!
//! The choice itself is `bpf/core/hints.h`, the code that a guest's kernel runs. What the host tells is the Refer-Table of a plan
//! ([`Guest::told`]). A guest that isn't told anything goes by an empty one, in which Pload finds none available but those that PVM would take.
//!
//! Under `CGsched` threads that interact are grouped: as the guest was told, or as it finds out from who wakes whom, once in [`DETECT`]. When the table changes
//! groups are placed again, running threads too, as the paper's front end does on interrupts.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ostler_abi::hints::{NONE, PINS_WORDS, Table, Told, VCPUS_MAX};
use ostler_hints::interactive::{Config, Detector, Edge, Task as Seen};
use ostler_hints::{Cores, Map, Rule, Sets, Tree, ask, choose_vcpu, place_task};
use ostler_model::{GuestHints, LoadDegree, Nanos};

use super::Guest;
use super::spec::Placement;

/// Groups are looked for this often.
pub const DETECT: Nanos = Nanos::from_secs(1);
/// Wakers and woken that are kept track of.
const EDGES_MAX: usize = 16_384;

static UNTOLD: LazyLock<Box<Table>> = LazyLock::new(Table::empty);

/// How a guest places.
pub struct Placing {
    /// By which rule.
    pub rule: Placement,
    /// Its vCPUs.
    pub sets: Box<Sets>,
    /// Where these are busy, as far as it was told.
    cores: Box<Cores>,
    /// What it was told, and made of it; `None` before.
    hints: Option<Box<Hints>>,
    /// Whether it has to find out who interacts.
    pub finds: bool,
    edges: BTreeMap<(u32, u32), u32>,
    found: Nanos,
}

struct Hints {
    table: Box<Table>,
    tree: Tree,
    /// By group of threads.
    maps: Vec<Map>,
    detector: Detector,
}

impl Placing {
    /// Of a guest of so many vCPUs, all asleep.
    pub fn new(rule: Placement, vcpus: u32) -> Placing {
        let mut sets = Box::new(Sets::default());
        for v in 0..vcpus {
            set(&mut sets.idle, v, true);
            set(&mut sets.preempted, v, true);
        }
        Placing {
            rule,
            sets,
            cores: Box::default(),
            hints: None,
            finds: false,
            edges: BTreeMap::new(),
            found: Nanos::ZERO,
        }
    }

    /// What it was told last.
    fn table(&self) -> &Table {
        self.hints.as_ref().map_or(&**UNTOLD, |hints| &hints.table)
    }

    /// A vCPU has something to run from now on, or has nothing more.
    fn note_idle(&mut self, v: u32, idle: bool) {
        set(&mut self.sets.idle, v, idle);
        if let Some(hints) = &self.hints {
            self.cores.busy(&hints.table, v, !idle);
        }
    }

    /// A task woke another.
    pub fn woke(&mut self, waker: u32, woken: u32) {
        if self.finds && (self.edges.len() < EDGES_MAX || self.edges.contains_key(&(waker, woken)))
        {
            *self.edges.entry((waker, woken)).or_default() += 1;
        }
    }
}

/// Sets a vCPU's bit.
pub fn set(bits: &mut [u64; VCPUS_MAX / 64], v: u32, on: bool) {
    let word = &mut bits[v as usize / 64];
    let bit = 1 << (v % 64);
    if on {
        *word |= bit;
    } else {
        *word &= !bit;
    }
}

impl Guest {
    /// The first so many vCPUs may be used.
    pub fn allow(&mut self, active: u32) {
        self.vcpus_active = active.clamp(1, self.vcpus.len() as u32);
        for v in 0..self.vcpus.len() as u32 {
            set(&mut self.placing.sets.allowed, v, v < self.vcpus_active);
        }
    }

    /// The queue on which a vCPU sends a flow of this hash: of those that are its own, where there are more than vCPUs in use.
    pub fn sends_on(&self, v: u32, hash: u32) -> u32 {
        let (queues, vcpus) = (self.queues_active.max(1), self.vcpus_active.max(1));
        let first = v % vcpus % queues;
        let own = (queues - first).div_ceil(vcpus);
        // By other digits than those by which NICs choose.
        first + vcpus * (((hash >> 24) * own) >> 8)
    }

    /// Whether a vCPU has nothing to run, as its kernel sees it.
    pub fn note_idle(&mut self, v: u32) {
        let idle = self.vcpus[v as usize].load() == 0;
        self.placing.note_idle(v, idle);
    }

    /// The vCPU for a task that wakes.
    pub fn choose(&mut self, task: u32) -> u32 {
        let entry = &self.tasks[task as usize];
        let before = entry.vcpu;
        let prev = if before < self.vcpus_active {
            before
        } else {
            before % self.vcpus_active
        };
        let rule = match self.placing.rule {
            Placement::Hvm => Rule::Hvm,
            Placement::Pvm => Rule::Pvm,
            Placement::Pload | Placement::CgSched => Rule::Pload,
        };
        if self.placing.rule == Placement::CgSched
            && let Some(group) = entry.group
            && let Some(v) = self.choose_grouped(task, group as usize, prev)
        {
            return v;
        }
        let (table, sets, cores) = (
            self.placing.table(),
            &self.placing.sets,
            &self.placing.cores,
        );
        // Where none is available to PVM, Linux leaves it where it was (`select_idle_sibling`, its target).
        place_task(table, sets, cores, rule, self.vcpus_active, prev).unwrap_or(prev)
    }

    /// Likewise of one that belongs to a group of threads.
    fn choose_grouped(&mut self, task: u32, group: usize, prev: u32) -> Option<u32> {
        let hints = self.placing.hints.as_mut()?;
        hints.tree.refresh(&hints.table);
        if hints.maps.len() <= group {
            hints.maps.resize(group + 1, Map::default());
        }
        let map = &mut hints.maps[group];
        let entry = &mut self.tasks[task as usize];
        let to = hints.tree.choose(map, entry.vcg)?;
        if hints.tree.moves(map, entry.vcg, Some(to)) {
            entry.vcg = Some(to);
        }
        let sets = &self.placing.sets;
        let idle = choose_vcpu(
            &hints.table,
            sets,
            &self.placing.cores,
            Rule::Pload,
            self.vcpus_active,
            prev,
            Some(to),
        );
        idle.or_else(|| {
            let of_group = |v: &u32| hints.table.topology.get(*v as usize) == Some(&to);
            let all = (0..self.vcpus_active).filter(of_group);
            all.min_by_key(|v| (self.vcpus[*v as usize].load(), *v != prev, *v))
        })
    }

    /// The host tells what a plan has for the guest. Returns the vCPUs whose running task is to go elsewhere.
    pub fn told(&mut self, hints: &GuestHints, now: Nanos) -> Vec<u32> {
        let entry = self.placing.hints.get_or_insert_with(|| {
            Box::new(Hints {
                table: Table::empty(),
                tree: Tree::default(),
                maps: Vec::new(),
                detector: Detector::default(),
            })
        });
        let rows = hints.vcpus.iter().take(self.vcpus.len());
        let rows: Vec<_> = rows
            .map(|row| Told {
                group: row.group.map(|group| group.0),
                core: row.core,
                low: row.load == LoadDegree::Low,
            })
            .collect();
        // A plan has no more rows and groups than a table.
        let told = entry.table.tell(hints.groups.into(), rows.into_iter());
        debug_assert!(told.is_ok(), "{told:?}");
        let (sets, vcpus) = (&self.placing.sets, self.vcpus.len() as u32);
        self.placing.cores.recount(&entry.table, sets, vcpus);
        if self.placing.rule != Placement::CgSched {
            return Vec::new();
        }
        if self.placing.finds && now.saturating_sub(self.placing.found) >= DETECT {
            self.find(now);
        }
        self.place_again()
    }

    /// Finds out who interacts.
    fn find(&mut self, now: Nanos) {
        let Some(hints) = self.placing.hints.as_mut() else {
            return;
        };
        self.placing.found = now;
        let seen = self.tasks.iter_mut().map(|task| {
            let ran = task.ran.saturating_sub(task.ran_before);
            task.ran_before = task.ran;
            Seen {
                ran_ns: ran.0,
                woken: std::mem::take(&mut task.woken),
            }
        });
        let seen: Vec<_> = seen.collect();
        let edges = std::mem::take(&mut self.placing.edges);
        let edges: Vec<_> = edges
            .into_iter()
            .map(|((waker, wakee), wakeups)| Edge {
                waker,
                wakee,
                wakeups,
            })
            .collect();
        let groups = hints.detector.detect(&Config::default(), &seen, &edges);
        for (task, group) in self.tasks.iter_mut().zip(groups) {
            if task.group != *group {
                // It counts no longer where it did.
                if let (Some(old), Some(vcg)) = (task.group, task.vcg.take())
                    && let Some(map) = hints.maps.get_mut(old as usize)
                {
                    hints.tree.moves(map, Some(vcg), None);
                }
                task.group = *group;
            }
        }
    }

    /// The virtual cache group that a vCPU is in, as far as the guest knows.
    pub fn cache_group(&self, v: u32) -> Option<u32> {
        let hints = self.placing.hints.as_ref()?;
        let group = hints.table.topology.get(v as usize)?;
        (*group != NONE).then_some(*group)
    }

    fn place_again(&mut self) -> Vec<u32> {
        let mut disturbed = Vec::new();
        for task in 0..self.tasks.len() as u32 {
            let entry = &self.tasks[task as usize];
            let (Some(group), v) = (entry.group, entry.vcpu) else {
                continue;
            };
            let Some(to) = self.choose_grouped(task, group as usize, v) else {
                continue;
            };
            if self.cache_group(v) == self.cache_group(to) {
                continue;
            }
            if self.vcpus[v as usize].current == Some(task) {
                self.tasks[task as usize].go = true;
                disturbed.push(v);
            } else if let Some(at) = self.vcpus[v as usize].queue.iter().position(|t| *t == task) {
                self.vcpus[v as usize].queue.remove(at);
                self.waiting -= 1;
                self.enqueue(task, to);
                self.note_idle(v);
                self.note_idle(to);
                disturbed.push(to);
            }
        }
        disturbed
    }

    /// Which vCPUs the guest asks to be kept in their groups.
    pub fn pins(&self) -> Vec<bool> {
        let mut pins = [0; PINS_WORDS];
        if let Some(hints) = &self.placing.hints
            && self.placing.rule == Placement::CgSched
        {
            ask(&hints.tree, &hints.table, &mut pins);
        }
        pins[..self.vcpus.len()]
            .iter()
            .map(|pin| *pin == 1)
            .collect()
    }

    /// Groups of threads that tasks are in, by task.
    pub fn groups(&self) -> Vec<Option<u32>> {
        self.tasks.iter().map(|task| task.group).collect()
    }
}
