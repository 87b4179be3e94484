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
    /// Where those begin and end that have an order: all but the many that are one core, of a thread that stays.
    ordered: Vec<(usize, usize)>,
    /// `busy` and `order` before anything is placed.
    first: (Vec<f64>, Vec<Index>),
    /// Whether all are to be looked at.
    plain: bool,
    keys: Vec<(u64, u32)>,
    /// By class: the last pool that split it, counted from one, and what its cores that are in that are now.
    split: Vec<(u32, u32)>,
}

impl Ground {
    /// Cores as they would be without the threads of this problem, which run `present` shares of where they are.
    pub(super) fn fill(&mut self, problem: &Problem<'_>, present: &[f64]) {
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
        self.first.0.clone_from(&self.busy);
        self.first.1.clone_from(&self.order);
    }

    /// Cores as they were when this was filled, all of a class to be looked at or not.
    pub(super) fn begin(&mut self, plain: bool) {
        self.plain = plain;
        self.busy.clone_from(&self.first.0);
        self.order.clone_from(&self.first.1);
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
        self.ordered.clear();
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
            if self.order.len() > start + 1 {
                self.ordered.push((start, self.order.len()));
            }
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
        let (busy, class) = (&self.busy, &self.class);
        let (before, own) = (busy[core as usize], class[core as usize]);
        let now = before + share;
        // As pools are in order: where another one is to that of this core, if it is so busy.
        let rank = |other: Index, at: f64| {
            let classes = class[other as usize].cmp(&own);
            let loads = || busy[other as usize].total_cmp(&at);
            classes.then_with(loads).then(other.cmp(&core))
        };
        for &(start, end) in &self.ordered {
            let cores = &mut self.order[start..end];
            let mut at = cores.partition_point(|other| rank(*other, before).is_lt());
            if cores.get(at) != Some(&core) {
                continue;
            }
            while at + 1 < cores.len() && rank(cores[at + 1], now).is_lt() {
                cores.swap(at, at + 1);
                at += 1;
            }
        }
        self.busy[core as usize] = now;
    }
}
