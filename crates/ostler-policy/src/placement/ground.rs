//! The cores as a placement goes on: how busy each is by then, and which few of them need looking at.
//!
//! **Symmetry.** Cores of one cache that are in the same pools differ in nothing but how busy they are. Of such a class the three least busy suffice: whatever a
//! chain has on another one of them could be on one of these three instead, as at least one is neither its predecessor's core nor its successor's; links cost the
//! same from there, and the load no more. So a host of 1024 cores in 128 caches is looked at as 384 cores.

use super::problem::{Index, Problem};

/// How many of a class are looked at.
const OF_EACH: usize = 3;

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
    /// Whether all are to be looked at.
    plain: bool,
    keys: Vec<(u64, u32)>,
    /// By class: the last pool that split it, counted from one, and what its cores that are in that are now.
    split: Vec<(u32, u32)>,
}

impl Ground {
    /// Cores as they would be without the threads of this problem, which run `present` shares of where they are.
    pub(super) fn fill(&mut self, problem: &Problem<'_>, present: &[f64], plain: bool) {
        self.plain = plain;
        self.busy.clear();
        self.busy
            .extend(problem.cores.iter().map(|core| core.utilisation));
        for (thread, share) in problem.threads.iter().zip(present) {
            if let Some(core) = thread.now {
                let busy = &mut self.busy[core as usize];
                *busy = (*busy - share).max(0.0);
            }
        }
        let place = |core: &super::Core| (u64::from(core.socket) << 32) | u64::from(core.cache);
        self.number(problem.cores.iter().map(place));
        self.group.clone_from(&self.class);
        self.groups = self.count();
        self.refine(problem);
        self.pools(problem);
    }

    fn count(&self) -> usize {
        self.class.iter().max().map_or(0, |most| *most as usize + 1)
    }

    /// Numbers cores by a key, equal ones alike.
    fn number(&mut self, keys: impl Iterator<Item = u64>) {
        self.keys.clear();
        self.keys.extend(keys.zip(0..));
        self.keys.sort_unstable();
        self.class.clear();
        self.class.resize(self.keys.len(), 0);
        let mut number = 0;
        for at in 0..self.keys.len() {
            if at > 0 && self.keys[at].0 != self.keys[at - 1].0 {
                number += 1;
            }
            self.class[self.keys[at].1 as usize] = number;
        }
    }

    /// Splits classes until the cores of each are in the same pools.
    fn refine(&mut self, problem: &Problem<'_>) {
        let mut classes = u32::try_from(self.count()).unwrap_or(u32::MAX);
        self.split.clear();
        self.split.resize(classes as usize, (0, 0));
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
        for pool in problem.pools {
            let start = self.order.len();
            self.starts.push(start);
            self.order.extend(pool.cores);
            let busy = &self.busy;
            let rank = |a: &Index, b: &Index| {
                busy[*a as usize]
                    .total_cmp(&busy[*b as usize])
                    .then(a.cmp(b))
            };
            if let Some(most) = pool.most {
                self.order[start..].sort_unstable_by(rank);
                self.order.truncate(start + most as usize);
            }
            let class = &self.class;
            self.order[start..].sort_unstable_by(|a, b| {
                let classes = class[*a as usize].cmp(&class[*b as usize]);
                classes.then_with(|| rank(a, b))
            });
        }
        self.starts.push(self.order.len());
    }

    /// The cores of a pool that need looking at.
    pub(super) fn candidates(&self, pool: Index, into: &mut Vec<Index>) {
        into.clear();
        let cores = &self.order[self.starts[pool as usize]..self.starts[pool as usize + 1]];
        if self.plain {
            into.extend(cores);
            return;
        }
        let class = |core: Index| self.class[core as usize];
        for of_class in cores.chunk_by(|a, b| class(*a) == class(*b)) {
            into.extend(&of_class[..of_class.len().min(OF_EACH)]);
        }
    }

    /// All cores of a pool.
    pub(super) fn all(&self, pool: Index) -> &[Index] {
        &self.order[self.starts[pool as usize]..self.starts[pool as usize + 1]]
    }

    /// A core has more to do from now on.
    pub(super) fn add(&mut self, core: Index, share: f64) {
        self.busy[core as usize] += share;
        let busy = &self.busy;
        let class = &self.class;
        let after = |a: Index, b: Index| {
            class[a as usize] == class[b as usize] && (busy[a as usize], a) > (busy[b as usize], b)
        };
        for pool in self.starts.windows(2) {
            let cores = &mut self.order[pool[0]..pool[1]];
            let Some(mut at) = cores.iter().position(|c| *c == core) else {
                continue;
            };
            while at + 1 < cores.len() && after(cores[at], cores[at + 1]) {
                cores.swap(at, at + 1);
                at += 1;
            }
        }
    }
}
