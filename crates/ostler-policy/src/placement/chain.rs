//! The chain of cores with the least slowdown for one queue: dynamic programming (paper, algorithm 1 and equation 2).
//!
//! ```text
//! delta_1(v) = o(s, v)                                 s is where the NIC puts packets
//! delta_j(v) = min over u of delta_{j-1}(u) + o(u, v)  v may run stage j, u stage j - 1
//! ```
//!
//! As o(u, v) knows no more of u than its socket, its cache and whether it is v itself, the minimum needn't be looked for among all u: the least of each socket, the
//! least of v's cache, and v. (Each but v, so the two least are kept.) A stage of n candidates on k sockets takes n k steps instead of n n, and the answer is the same.
//! A queue takes O(stages x candidates x sockets) time.
//!
//! Two stages of a chain may meet on one core where their pools overlap. For two that follow each other that is counted: no link is crossed, and the second meets the first's load. For
//! two further apart it isn't, as a chain would have to remember its whole way. So all of a long chain's workers may be sent to the one core that is emptiest, which can't have
//! them all: where a chain asks more of a core than there is, stages of its own leave that one after the other, each to where it costs least with all of the chain's load on each core (`spread`). What the programming finds is the answer wherever it can be.
//!
//! A thread that is somewhere leaves that for a gain ([`Step::leaving`]), so where it is is a candidate, too.

use super::ground::Ground;
use super::problem::{Index, Problem, Stage};
use super::slowdown::{Slowdowns, lack, load};

/// A stage with what this queue brings to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) stage: Stage,
    /// How much of a core it takes.
    pub(super) demand: f64,
    /// Where an earlier queue has put its thread.
    pub(super) placed: Option<Index>,
    /// Where it is now, if that is known.
    pub(super) now: Option<Index>,
    /// What it counts as that it leaves that.
    pub(super) leaving: f64,
}

impl Step {
    /// What it counts as that it goes to a core.
    pub(super) fn moving(&self, to: Index) -> f64 {
        if self.now == Some(to) {
            0.0
        } else {
            self.leaving
        }
    }
}

/// What slowdowns are reckoned from.
#[derive(Clone, Copy)]
pub(super) struct World<'a> {
    pub(super) problem: &'a Problem<'a>,
    pub(super) slowdowns: &'a Slowdowns,
    pub(super) ground: &'a Ground,
}

impl World<'_> {
    fn socket(&self, core: Index) -> Index {
        self.problem.cores[core as usize].socket
    }

    /// Whether there are several cores that a stage may be on. One of a thread that has but one is a class by itself.
    fn chooses(&self, step: &Step) -> bool {
        self.problem.pools[self.pool(step) as usize].cores.len() > 1
    }

    /// Where a stage is, if it may stay there and its leaving counts.
    fn stays(&self, step: &Step) -> Option<Index> {
        let pool = &self.problem.pools[self.pool(step) as usize];
        let now = step.now.filter(|_| step.leaving > 0.0);
        now.filter(|now| pool.cores.contains(now))
    }

    fn pool(&self, step: &Step) -> Index {
        self.problem.threads[step.stage.thread as usize].pool
    }

    /// o(u, v) for a stage, where `from` is the core of the stage before and what that takes of it, or else the NIC's socket.
    pub(super) fn slowdown(
        &self,
        from: Result<(Index, f64), Index>,
        step: &Step,
        to: Index,
    ) -> f64 {
        let weights = &self.problem.kinds[step.stage.kind as usize];
        let mut busy = self.ground.busy[to as usize] + step.demand;
        if let Ok((core, before)) = from
            && core == to
        {
            busy += before;
        }
        self.link(from.map(|(core, _)| core), step, to) + load(weights, busy)
    }

    /// What of that the way is, whatever the core does.
    fn link(&self, from: Result<Index, Index>, step: &Step, to: Index) -> f64 {
        let mut crossing = 0.0;
        let socket = match from {
            Ok(core) => {
                let groups = &self.ground.group;
                if self.socket(core) == self.socket(to)
                    && groups[core as usize] != groups[to as usize]
                {
                    crossing = self.problem.kinds[step.stage.kind as usize].crossing;
                }
                self.socket(core)
            }
            Err(socket) => socket,
        };
        let kind = step.stage.kind;
        self.slowdowns.between(kind, socket, self.socket(to)) + crossing
    }

    /// The ways from a NIC's socket to cores.
    fn enter(&self, nic: Index, step: &Step, cores: &[Index], ways: &mut Vec<Way>) {
        let kind = step.stage.kind;
        let weights = &self.problem.kinds[kind as usize];
        let groups = &self.ground.group[..];
        let busy = &self.ground.busy[..];
        // The same for all cores of a group.
        let (mut group, mut link) = (u32::MAX, 0.0);
        ways.extend(cores.iter().map(|&to| {
            let place = to as usize;
            if groups[place] != group {
                group = groups[place];
                link = self.slowdowns.between(kind, nic, self.socket(to));
            }
            Way {
                slowdown: link + load(weights, busy[place] + step.demand) + step.moving(to),
                at: u32::MAX,
            }
        }));
    }

    /// The slowdown of a chain whose stages run on these cores.
    pub(super) fn chain(&self, nic: Index, steps: &[Step], cores: &[Index]) -> f64 {
        let mut from = Err(nic);
        let mut sum = 0.0;
        for (step, &core) in steps.iter().zip(cores) {
            sum += self.slowdown(from, step, core);
            from = Ok((core, step.demand));
        }
        sum
    }
}

/// What is less isn't worth that a stage leaves its core.
const GAIN: f64 = 1e-6;

impl World<'_> {
    /// What all of a chain's stages on a core take of it.
    pub(super) fn own(steps: &[Step], cores: &[Index], core: Index) -> f64 {
        let there = steps.iter().zip(cores).filter(|(_, at)| **at == core);
        there.map(|(step, _)| step.demand).sum()
    }

    /// What a core lacks, if that is by several stages of the chain, all of which have some load.
    fn lacks(&self, steps: &[Step], cores: &[Index], core: Index) -> f64 {
        let loads = |(step, at): &(&Step, &Index)| **at == core && step.demand > 0.0;
        if steps.iter().zip(cores).filter(loads).count() < 2 {
            return 0.0;
        }
        lack(self.ground.busy[core as usize] + World::own(steps, cores, core))
    }

    /// What a chain's slowdown has of one stage's being on a core, where each stage meets all of the chain's load on its own: its ways, its load, what others there meet of it, and that it moves.
    fn part(&self, nic: Index, (steps, cores): (&[Step], &[Index]), at: usize, core: Index) -> f64 {
        let step = &steps[at];
        let there = || {
            let all = steps.iter().zip(cores).enumerate();
            let there = all.filter(move |(other, (_, on))| *other != at && **on == core);
            there.map(|(_, (other, _))| other)
        };
        let others: f64 = there().map(|other| other.demand).sum();
        let without = self.ground.busy[core as usize] + others;
        let with = without + step.demand;
        let weights = |step: &Step| &self.problem.kinds[step.stage.kind as usize];
        let mut sum = load(weights(step), with) + step.moving(core);
        for other in there() {
            sum += load(weights(other), with) - load(weights(other), without);
        }
        let before = at.checked_sub(1).map_or(Err(nic), |at| Ok(cores[at]));
        sum += self.link(before, step, core);
        if let (Some(next), Some(on)) = (steps.get(at + 1), cores.get(at + 1)) {
            sum += self.link(Ok(core), next, *on);
        }
        sum
    }
}

/// A way to a core: its slowdown, and which candidate it ends at.
#[derive(Clone, Copy, Debug)]
struct Way {
    slowdown: f64,
    at: u32,
}

const NO_WAY: Way = Way {
    slowdown: f64::INFINITY,
    at: u32::MAX,
};

impl Way {
    /// Another way at a further cost, where that is less.
    fn or(&mut self, way: &Way, cost: f64) {
        let slowdown = way.slowdown + cost;
        if slowdown < self.slowdown {
            *self = Way {
                slowdown,
                at: way.at,
            };
        }
    }
}

/// The two least.
#[derive(Clone, Copy, Debug)]
struct Least([Way; 2]);

impl Least {
    const NONE: Least = Least([NO_WAY; 2]);

    fn add(&mut self, way: Way) {
        if way.slowdown < self.0[0].slowdown {
            self.0 = [way, self.0[0]];
        } else if way.slowdown < self.0[1].slowdown {
            self.0[1] = way;
        }
    }

    /// The least that doesn't end at a candidate.
    fn but(&self, at: u32) -> &Way {
        &self.0[usize::from(self.0[0].at == at)]
    }
}

#[derive(Debug, Default)]
pub(super) struct Chains {
    /// All stages' candidates one after another, and the way to each by a candidate of the stage before.
    cores: Vec<Index>,
    ways: Vec<Way>,
    starts: Vec<usize>,
    before: Before,
}

/// The stage before, as its candidates were reached.
#[derive(Debug, Default)]
struct Before {
    /// By socket and by cache: the least ways to it.
    sockets: Vec<Least>,
    groups: Vec<Least>,
    /// By core: which candidate it is, and for which stage that holds.
    place: Vec<(u32, u32)>,
    stage: u32,
}

impl Chains {
    /// Finds the chain of the least slowdown from a NIC's socket, with what its moves count as; its cores, in order, into `found`.
    pub(super) fn find(
        &mut self,
        world: &World<'_>,
        nic: Index,
        steps: &[Step],
        found: &mut Vec<Index>,
    ) {
        self.start(world);
        // So many of each class were looked at for the stage before, and they end there.
        let (mut of, mut alike) = (0, 0);
        for (at, step) in steps.iter().enumerate() {
            let start = self.cores.len();
            self.starts.push(start);
            let before = at.checked_sub(1).and_then(|before| steps.get(before));
            if let Some(core) = step.placed {
                self.cores.push(core);
            } else {
                let beside = [before, steps.get(at + 1)].into_iter().flatten();
                let most = 1 + beside.filter(|step| world.chooses(step)).count();
                let pool = world.pool(step);
                if let Some(before) = before.filter(|step| step.placed.is_none())
                    && (world.pool(before), of) == (pool, most)
                {
                    self.cores.extend_from_within(self.starts[at - 1]..alike);
                } else {
                    world.ground.candidates(pool, most, &mut self.cores);
                }
                of = most;
                alike = self.cores.len();
                let stays = world.stays(step);
                self.cores
                    .extend(stays.filter(|now| !self.cores[start..].contains(now)));
            }
            let cores = &self.cores[start..];
            if let Some(before) = before {
                // All at once: what is reached is known by then.
                let known = self.ways.len();
                self.ways.resize(known + cores.len(), NO_WAY);
                let (known, new) = self.ways.split_at_mut(known);
                self.before.reach(world, known, (before, step), cores, new);
            } else {
                world.enter(nic, step, cores, &mut self.ways);
            }
            if at + 1 < steps.len() {
                self.before.sum_up(world, start, cores, &self.ways[start..]);
            }
        }
        self.trace(steps.len(), found);
        self.spread(world, nic, steps, found);
    }

    /// Has stages leave cores of which their chain asks too much.
    fn spread(&mut self, world: &World<'_>, nic: Index, steps: &[Step], found: &mut [Index]) {
        for (at, step) in steps.iter().enumerate() {
            if step.placed.is_some() || world.lacks(steps, found, found[at]) == 0.0 {
                continue;
            }
            let here = world.part(nic, (steps, found), at, found[at]);
            self.cores.clear();
            let pool = world.pool(step);
            world.ground.candidates(pool, 3, &mut self.cores);
            self.cores.extend(world.stays(step));
            let mut best = (-GAIN, None);
            for &core in &self.cores {
                let change = world.part(nic, (steps, found), at, core) - here;
                if change < best.0 {
                    best = (change, Some(core));
                }
            }
            if let Some(core) = best.1 {
                found[at] = core;
            }
        }
    }

    fn start(&mut self, world: &World<'_>) {
        self.cores.clear();
        self.ways.clear();
        self.starts.clear();
        let place = &mut self.before.place;
        place.resize(world.problem.cores.len(), (u32::MAX, 0));
    }

    fn trace(&self, stages: usize, found: &mut Vec<Index>) {
        found.clear();
        let Some(&last) = self.starts.last() else {
            return;
        };
        let mut at = last;
        for end in last..self.ways.len() {
            if self.ways[end].slowdown < self.ways[at].slowdown {
                at = end;
            }
        }
        for _ in 0..stages {
            found.push(self.cores[at]);
            at = self.ways[at].at as usize;
        }
        found.reverse();
    }
}

impl Before {
    /// The best ways to a stage's candidates by any one of the stage before, of which these are the ways, with all before them.
    fn reach(
        &self,
        world: &World<'_>,
        known: &[Way],
        (before, step): (&Step, &Step),
        cores: &[Index],
        ways: &mut [Way],
    ) {
        let kind = step.stage.kind;
        let weights = &world.problem.kinds[kind as usize];
        let groups = &world.ground.group[..];
        let busy = &world.ground.busy[..];
        // The same for all candidates of a group: links to it, and the least way there that crosses nothing.
        let mut group = u32::MAX;
        let mut to = usize::MAX;
        let mut links = &[][..];
        let mut link = 0.0;
        let mut beside = &Least::NONE;
        for (way, &core) in ways.iter_mut().zip(cores) {
            let place = core as usize;
            if groups[place] != group {
                group = groups[place];
                let socket = world.socket(core);
                links = world.slowdowns.to(kind, socket);
                to = socket as usize;
                link = links[to];
                beside = &self.groups[group as usize];
            }
            let own = match self.place[place] {
                (at, stage) if stage == self.stage => at,
                _ => u32::MAX,
            };
            let busy = busy[place] + step.demand;
            let alone = load(weights, busy);
            let mut best = NO_WAY;
            for (from, (least, link)) in self.sockets.iter().zip(links).enumerate() {
                let crossing = if from == to { weights.crossing } else { 0.0 };
                best.or(least.but(own), link + crossing + alone);
            }
            // Who crosses nothing was offered as if it did, which is no less; these are what it really costs.
            best.or(beside.but(own), link + alone);
            if let Some(known) = known.get(own as usize) {
                let known = Way {
                    slowdown: known.slowdown,
                    at: own,
                };
                best.or(&known, link + load(weights, busy + before.demand));
            }
            best.slowdown += step.moving(core);
            *way = best;
        }
    }

    /// Notes the least ways to the stage that begins at `start`, for the next.
    fn sum_up(&mut self, world: &World<'_>, start: usize, cores: &[Index], ways: &[Way]) {
        self.sockets.clear();
        self.sockets
            .resize(world.problem.sockets.len(), Least::NONE);
        self.groups.clear();
        self.groups.resize(world.ground.groups, Least::NONE);
        self.stage = self.stage.wrapping_add(1);
        let start = u32::try_from(start).unwrap_or(u32::MAX);
        for ((&core, way), at) in cores.iter().zip(ways).zip(start..) {
            let slowdown = way.slowdown;
            let way = Way { slowdown, at };
            let core = core as usize;
            self.sockets[world.problem.cores[core].socket as usize].add(way);
            self.groups[world.ground.group[core] as usize].add(way);
            self.place[core] = (at, self.stage);
        }
    }
}
