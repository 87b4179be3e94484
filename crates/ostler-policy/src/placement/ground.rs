//! The cores as a placement goes on: how busy each is by then, and which few of them need looking at.
//!
//! **Symmetry.** Cores of one cache that are in the same pools differ in nothing but how busy they are. Of such a class the three least busy suffice: whatever a
//! chain has on another one of them could be on one of these three instead, as at least one is neither its predecessor's core nor its successor's; links cost the
//! same from there, and the load no more. So a host of 1024 cores in 128 caches is looked at as 384 cores.
//! A stage needs one less for each side on which it has no neighbour, or one that stays where it is: the core of that is a class by itself.

use super::problem::{Index, Problem};
use super::slowdown::lack;

#[derive(Debug, Default)]
pub(super) struct Ground {
    /// How busy each core is, with what is placed by now.
    pub(super) busy: Vec<f64>,
    /// By core: its socket and cache, as one number.
    pub(super) group: Vec<u32>,
    /// How many groups there are.
    pub(super) groups: usize,
    /// By core: its class.
    class: Vec<u32>,
    /// Cores of each pool, by class, those of a class from the least busy on; and where each pool begins.
    order: Vec<Index>,
    starts: Vec<usize>,
    /// What each pool has of each class, in the order of `order`; and where each pool's begin.
    runs: Vec<Run>,
    first_runs: Vec<usize>,
    /// By class: the last of its runs that have an order, all but those of a single core.
    last_run: Vec<u32>,
    /// `busy` and `order` before anything is placed.
    first: (Vec<f64>, Vec<Index>),
    /// Whether all are to be looked at.
    plain: bool,
    /// Sockets and caches of the cores that `group` is of.
    places: Vec<u64>,
    keys: Vec<(u64, u32)>,
    ranks: Vec<u128>,
    /// By class: the last pool that split it, counted from one, and what its cores that are in that are now.
    split: Vec<(u32, u32)>,
}

/// A pool's cores of a class: a range of the order.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: usize,
    end: usize,
    /// Another one of the class, in another pool.
    other: u32,
}

const NONE: u32 = u32::MAX;

impl Ground {
    /// Cores as they would be without the threads of this problem, which take `present` shares of where they are, but for those that have one core to be on.
    pub(super) fn fill(&mut self, problem: &Problem<'_>, present: &[f64], fixed: &[Option<Index>]) {
        self.busy.clear();
        self.busy
            .extend(problem.cores.iter().map(|core| core.utilisation));
        for (thread, share) in problem.threads.iter().zip(present) {
            if let Some(core) = thread.now {
                let busy = &mut self.busy[core as usize];
                *busy = (*busy - share).max(0.0);
            }
        }
        // Once what was measured is gone.
        for (fixed, share) in fixed.iter().zip(present) {
            if let Some(core) = fixed {
                self.busy[*core as usize] += share;
            }
        }
        let place = |core: &super::Core| (u64::from(core.socket) << 32) | u64::from(core.cache);
        let places = problem.cores.iter().map(place);
        // The same host as before, most of the time.
        if !self.places.iter().copied().eq(places.clone()) {
            self.places.clear();
            self.places.extend(places);
            self.number();
        }
        self.class.clone_from(&self.group);
        self.refine(problem);
        self.pools(problem);
        self.first.0.clone_from(&self.busy);
        self.first.1.clone_from(&self.order);
    }

    /// What all cores together lack of what is wanted of them.
    pub(super) fn lack(&self) -> f64 {
        self.busy.iter().map(|busy| lack(*busy)).sum()
    }

    /// Cores as they were when this was filled, all of a class to be looked at or not.
    pub(super) fn begin(&mut self, plain: bool) {
        self.plain = plain;
        self.busy.clone_from(&self.first.0);
        self.order.clone_from(&self.first.1);
    }

    /// Numbers groups by their cores' places, equal ones alike.
    fn number(&mut self) {
        self.keys.clear();
        self.keys.extend(self.places.iter().copied().zip(0..));
        self.keys.sort_unstable();
        self.group.clear();
        self.group.resize(self.keys.len(), 0);
        self.groups = 0;
        for same in self.keys.chunk_by(|a, b| a.0 == b.0) {
            for &(_, core) in same {
                self.group[core as usize] = u32::try_from(self.groups).unwrap_or(u32::MAX);
            }
            self.groups += 1;
        }
    }

    /// Splits classes until the cores of each are in the same pools.
    fn refine(&mut self, problem: &Problem<'_>) {
        let mut classes = u32::try_from(self.groups).unwrap_or(u32::MAX);
        self.split.clear();
        self.split.resize(self.groups, (0, 0));
        for (pool, mark) in problem.pools.iter().zip(1..) {
            for &core in pool.cores {
                let class = &mut self.class[core as usize];
                let place = *class as usize;
                if self.split[place].0 != mark {
                    self.split[place] = (mark, classes);
                    self.split.push((0, 0));
                    classes += 1;
                }
                *class = self.split[place].1;
            }
        }
    }

    fn pools(&mut self, problem: &Problem<'_>) {
        self.order.clear();
        self.starts.clear();
        self.runs.clear();
        self.first_runs.clear();
        self.last_run.clear();
        self.last_run.resize(self.split.len(), NONE);
        for pool in problem.pools {
            let start = self.order.len();
            self.starts.push(start);
            self.first_runs.push(self.runs.len());
            if let &[core] = pool.cores {
                // As there are many, of threads that stay.
                self.order.push(core);
                self.runs.push(Run {
                    start,
                    end: start + 1,
                    other: NONE,
                });
                continue;
            }
            self.ranks.clear();
            let busy = &self.busy;
            let ranks = pool
                .cores
                .iter()
                .map(|&core| rank(busy[core as usize], core));
            self.ranks.extend(ranks);
            if let Some(most) = pool.most {
                self.ranks.sort_unstable();
                self.ranks.truncate(most as usize);
            }
            for rank in &mut self.ranks {
                *rank |= u128::from(self.class[core_of(*rank) as usize]) << 96;
            }
            self.ranks.sort_unstable();
            for of_class in self.ranks.chunk_by(|a, b| a >> 96 == b >> 96) {
                let start = self.order.len();
                self.order
                    .extend(of_class.iter().map(|rank| core_of(*rank)));
                let last = &mut self.last_run[self.class[self.order[start] as usize] as usize];
                let run = Run {
                    start,
                    end: self.order.len(),
                    other: *last,
                };
                if of_class.len() > 1 {
                    *last = u32::try_from(self.runs.len()).unwrap_or(NONE);
                }
                self.runs.push(run);
            }
        }
        self.starts.push(self.order.len());
        self.first_runs.push(self.runs.len());
    }

    /// Adds the cores of a pool that need looking at: of each class so many, one to three.
    pub(super) fn candidates(&self, pool: Index, most: usize, into: &mut Vec<Index>) {
        if self.plain {
            into.extend(self.all(pool));
            return;
        }
        let pool = pool as usize;
        for run in &self.runs[self.first_runs[pool]..self.first_runs[pool + 1]] {
            // So few that a loop would take longer.
            match (&self.order[run.start..run.end], most) {
                (&[a, b, c, ..], 3..) => into.extend([a, b, c]),
                (&[a, b, ..], 2..) => into.extend([a, b]),
                (&[a, ..], _) => into.push(a),
                (&[], _) => {}
            }
        }
    }

    /// All cores of a pool.
    pub(super) fn all(&self, pool: Index) -> &[Index] {
        &self.order[self.starts[pool as usize]..self.starts[pool as usize + 1]]
    }

    /// A core has more to do from now on.
    pub(super) fn add(&mut self, core: Index, share: f64) {
        let busy = &self.busy;
        let before = rank(busy[core as usize], core);
        let now = rank(busy[core as usize] + share, core);
        let ranked = |other: Index| rank(busy[other as usize], other);
        // A class is in the same pools: its order changes in each of them.
        let mut at = self.last_run[self.class[core as usize] as usize];
        while let Some(run) = self.runs.get(at as usize) {
            at = run.other;
            let cores = &mut self.order[run.start..run.end];
            let mut at = cores.partition_point(|other| ranked(*other) < before);
            if cores.get(at) != Some(&core) {
                continue;
            }
            while at + 1 < cores.len() && ranked(cores[at + 1]) < now {
                cores.swap(at, at + 1);
                at += 1;
            }
        }
        self.load(core, share);
    }

    /// The same where nobody is to look for the least busy ones any more.
    pub(super) fn load(&mut self, core: Index, share: f64) {
        self.busy[core as usize] += share;
    }
}

/// Cores from the least busy on, equal ones by number, as numbers: loads in their total order.
fn rank(busy: f64, core: Index) -> u128 {
    u128::from(in_order(busy)) << 32 | u128::from(core)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lowest bits are the core"
)]
fn core_of(rank: u128) -> Index {
    rank as Index
}

/// A figure as a number that is in order where figures are ([`f64::total_cmp`]).
pub(super) fn in_order(figure: f64) -> u64 {
    let bits = figure.to_bits();
    // Of negative ones the larger is the less, and all are less than the others.
    if bits >> 63 == 1 {
        !bits
    } else {
        bits | 1 << 63
    }
}
