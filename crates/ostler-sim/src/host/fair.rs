//! The fair scheduler's run queue: EEVDF, as Linux 6.12 and 7.3 have it where all slices are as long.
//!
//! Each entity has a virtual time `v`: what it ran, scaled by 1024 over its weight. The queue's own virtual time `V` is the mean of all, by
//! weight. Who is at `V` or before it has had no more than its share and is *eligible*; of those the one with the earliest virtual
//! deadline has the core, for a slice. A deadline is a slice, in virtual time, beyond where the slice before ended. So an entity has its slice once in each round, sooner where
//! it asks for less of one, and nobody gets ahead of its share by more than a slice.
//!
//! *Lag* is what an entity is short of its share, `V - v`. It is kept while the entity sleeps or is taken elsewhere, within two slices, and it is placed
//! by it when it comes back: to sleep is neither a way to a core nor a punishment. One that goes to sleep ahead of its share stays in the queue
//! until it has waited that off (`DELAY_DEQUEUE`), unseen by all but the arithmetic.
//!
//! Kept of kernel/sched/fair.c: `avg_vruntime`, `entity_eligible`, `pick_eevdf` with `RUN_TO_PARITY`, `place_entity`, `update_entity_lag`,
//! `update_deadline`, `reweight_entity`, delayed dequeue with `DELAY_ZERO`. Changed: entities are in a short array instead of a tree, since queues are
//! short, and a look at all of one is a cache line for each two; and `V` is summed up when it is asked for, not kept.

use std::ops::{Deref, DerefMut};

/// Nobody.
pub(super) const NONE: u32 = u32::MAX;
/// The weight of nice 0, and of a cgroup as it begins.
pub(super) const WEIGHT: u32 = 1024;
/// The weight of what is idle by policy (`WEIGHT_IDLEPRIO`).
pub(super) const WEIGHT_IDLE: u32 = 3;

/// A thread, or a group with threads, that wants the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entity {
    /// Its virtual time, and its virtual deadline, ns.
    pub vruntime: i64,
    pub deadline: i64,
    /// Whose it is.
    pub who: u32,
    pub weight: u32,
    /// Its slice, ns.
    pub slice: u32,
    /// It sleeps, and is here to wait off what it is ahead.
    pub delayed: bool,
    /// It yields to all that isn't idle.
    pub idle: bool,
}

/// What an entity keeps while it is in no queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Away {
    /// What it is short of its share, virtual ns.
    pub lag: i64,
    /// What is left to its deadline, where it left in the midst of a slice, virtual ns.
    pub to_deadline: Option<i64>,
    /// It was there before.
    pub seen: bool,
    /// What it weighed there.
    pub weight: u32,
}

impl Away {
    /// The same for an entity that weighs something else when it comes back: what it is short of is so much run time, whatever it weighs (`rescale_entity`).
    pub fn rescaled(self, weight: u32) -> Away {
        if self.weight == 0 || self.weight == weight {
            return self;
        }
        let scale = |time| scaled(time, i64::from(self.weight), i64::from(weight));
        Away {
            lag: scale(self.lag),
            to_deadline: self.to_deadline.map(scale),
            weight,
            ..self
        }
    }
}

/// As many entities are in their queue itself: of a guest's threads seldom more want the same core.
const HERE: usize = 2;

/// Entities, in no order. The first that are more than [`HERE`] have all of them be elsewhere from then on.
#[derive(Clone, Debug)]
pub(super) struct Few {
    here: [Entity; HERE],
    len: u32,
    elsewhere: Vec<Entity>,
}

impl Few {
    /// None, with room for so many.
    fn new(room: usize) -> Few {
        let nobody = Entity {
            vruntime: 0,
            deadline: 0,
            who: NONE,
            weight: 0,
            slice: 0,
            delayed: false,
            idle: false,
        };
        Few {
            here: [nobody; HERE],
            len: 0,
            elsewhere: Vec::with_capacity(if room > HERE { room } else { 0 }),
        }
    }

    fn push(&mut self, entity: Entity) {
        if self.elsewhere.capacity() > 0 {
            self.elsewhere.push(entity);
        } else if let Some(free) = self.here.get_mut(self.len as usize) {
            *free = entity;
            self.len += 1;
        } else {
            self.elsewhere.reserve(4 * HERE);
            self.elsewhere.extend(self.here);
            self.elsewhere.push(entity);
            self.len = 0;
        }
    }

    fn swap_remove(&mut self, at: usize) {
        if self.elsewhere.capacity() > 0 {
            self.elsewhere.swap_remove(at);
        } else {
            self.len -= 1;
            self.here.swap(at, self.len as usize);
        }
    }
}

impl Deref for Few {
    type Target = [Entity];

    fn deref(&self) -> &[Entity] {
        if self.elsewhere.capacity() > 0 {
            &self.elsewhere
        } else {
            &self.here[..self.len as usize]
        }
    }
}

impl DerefMut for Few {
    fn deref_mut(&mut self) -> &mut [Entity] {
        if self.elsewhere.capacity() > 0 {
            &mut self.elsewhere
        } else {
            &mut self.here[..self.len as usize]
        }
    }
}

/// Who wants a core.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub entities: Few,
    /// Who has it.
    pub curr: u32,
    /// The deadline that it had when it came: until then it isn't taken off for one that is merely before it (`RUN_TO_PARITY`).
    until: i64,
    /// The queue's virtual time when it was last empty.
    last: i64,
}

impl Queue {
    /// Of nobody, with room for so many.
    pub fn new(room: usize) -> Queue {
        Queue {
            entities: Few::new(room),
            curr: NONE,
            until: 0,
            last: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entities.is_empty()
    }

    /// Of all that are in it.
    pub fn weight(&self) -> u32 {
        self.entities.iter().map(|entity| entity.weight).sum()
    }

    /// Those that would run.
    pub fn runnable(&self) -> impl Iterator<Item = &Entity> {
        self.entities.iter().filter(|entity| !entity.delayed)
    }

    pub fn has(&self, who: u32) -> bool {
        self.find(who).is_some()
    }

    pub fn find(&self, who: u32) -> Option<usize> {
        self.entities.iter().position(|entity| entity.who == who)
    }

    /// The sums that both questions below are answered by: of weights, and of weighted virtual times beyond the first entity's.
    fn sums(&self) -> (i64, i64, i64) {
        let base = self.entities[0].vruntime;
        let (mut weight, mut sum) = (0, 0);
        for entity in self.entities.iter() {
            weight += i64::from(entity.weight);
            sum += i64::from(entity.weight) * (entity.vruntime - base);
        }
        (base, weight, sum)
    }

    /// `V`.
    pub fn average(&self) -> i64 {
        if self.entities.is_empty() {
            return self.last;
        }
        let (base, weight, sum) = self.sums();
        base + sum.div_euclid(weight)
    }

    /// Whether the entity at a place has had no more than its share. Not by `V`, whose division rounds.
    pub fn eligible(&self, at: usize) -> bool {
        let (base, weight, sum) = self.sums();
        sum >= (self.entities[at].vruntime - base) * weight
    }

    /// Who is to have the core.
    pub fn pick(&self) -> Option<u32> {
        match self.entities.len() {
            0 => return None,
            1 => return Some(self.entities[0].who),
            _ => {}
        }
        let (base, weight, sum) = self.sums();
        let mut best: Option<&Entity> = None;
        for entity in self.entities.iter() {
            if sum < (entity.vruntime - base) * weight {
                continue;
            }
            if entity.who == self.curr && entity.deadline == self.until && !entity.delayed {
                return Some(entity.who);
            }
            if best.is_none_or(|best| {
                (entity.deadline, entity.who != self.curr) < (best.deadline, best.who != self.curr)
            }) {
                best = Some(entity);
            }
        }
        // The least virtual time is never beyond the mean of all.
        best.map(|entity| entity.who)
    }

    /// Gives it the core.
    pub fn set_curr(&mut self, who: u32) {
        self.curr = who;
        if let Some(at) = self.find(who) {
            self.until = self.entities[at].deadline;
        }
    }

    /// Who has the core has run. Returns whether its slice is over, and others are there.
    pub fn charge(&mut self, ran: u64) -> bool {
        let Some(at) = self.find(self.curr) else {
            return false;
        };
        let entity = &mut self.entities[at];
        entity.vruntime += virtual_time(ran, entity.weight);
        if entity.vruntime < entity.deadline {
            return false;
        }
        entity.deadline = entity.vruntime + virtual_time(u64::from(entity.slice), entity.weight);
        self.entities.len() > 1
    }

    /// What an entity is short of its share, within what is kept of that.
    fn lag(&self, at: usize, tick: u64) -> i64 {
        let entity = &self.entities[at];
        let limit = virtual_time((2 * u64::from(entity.slice)).max(tick), entity.weight);
        (self.average() - entity.vruntime).clamp(-limit, limit)
    }

    /// Takes an entity out, and gives what it keeps.
    pub fn leave(&mut self, at: usize, tick: u64, sleeps: bool) -> Away {
        let mut lag = self.lag(at, tick);
        let entity = self.entities[at];
        if entity.delayed {
            // DELAY_ZERO: who waited to be even is even.
            lag = lag.min(0);
        }
        if self.entities.len() == 1 {
            self.last = entity.vruntime;
        }
        self.entities.swap_remove(at);
        if self.curr == entity.who {
            self.curr = NONE;
        }
        Away {
            lag,
            to_deadline: (!sleeps).then_some(entity.deadline - entity.vruntime),
            seen: true,
            weight: entity.weight,
        }
    }

    /// Puts in who only counts here, and has no times.
    pub fn join(&mut self, who: u32, weight: u32, idle: bool) {
        self.entities.push(Entity {
            vruntime: 0,
            deadline: 0,
            who,
            weight,
            slice: 0,
            delayed: false,
            idle,
        });
    }

    /// Takes out who only counts here.
    pub fn quit(&mut self, who: u32) {
        if let Some(at) = self.find(who) {
            self.entities.swap_remove(at);
        }
    }

    /// Who only counts here waits off what it is ahead where it has times, or does so no longer.
    pub fn delay(&mut self, who: u32, delayed: bool) {
        if let Some(at) = self.find(who) {
            self.entities[at].delayed = delayed;
        }
    }

    /// Whoever has the core may be taken off in the midst of its slice.
    pub fn unprotect(&mut self) {
        self.until = i64::MIN;
    }

    /// What whoever has the core has left of its slice, if others are there, ns.
    pub fn slice_left(&self) -> Option<u64> {
        if self.entities.len() < 2 {
            return None;
        }
        let entity = &self.entities[self.find(self.curr)?];
        let left = (entity.deadline - entity.vruntime).max(0);
        Some(scaled(left, i64::from(entity.weight), i64::from(WEIGHT)) as u64)
    }

    /// Whether one that goes to sleep is to wait here until it is even.
    pub fn is_to_wait(&self, at: usize) -> bool {
        self.entities.len() > 1 && !self.eligible(at)
    }

    /// Puts an entity in, by what it kept.
    pub fn place(&mut self, away: Away, who: u32, weight: u32, slice: u32, idle: bool) {
        let mut vruntime = self.average();
        if !self.entities.is_empty() && away.lag != 0 {
            // That it comes moves V towards it; it is to be as short of its share afterwards.
            let load = i64::from(self.weight());
            vruntime -= scaled(away.lag, load + i64::from(weight), load);
        }
        let whole = virtual_time(u64::from(slice), weight);
        let ahead = match away.to_deadline {
            Some(left) => left,
            // PLACE_DEADLINE_INITIAL: whoever is new begins in the midst of a round.
            None if !away.seen => whole / 2,
            None => whole,
        };
        self.entities.push(Entity {
            vruntime,
            deadline: vruntime + ahead,
            who,
            weight,
            slice,
            delayed: false,
            idle,
        });
    }

    /// Gives an entity another weight: what it is short of its share stays, in its own time.
    pub fn reweigh(&mut self, at: usize, weight: u32) {
        let average = self.average();
        let until = self.until;
        let entity = &mut self.entities[at];
        let old = i64::from(entity.weight);
        if old == i64::from(weight) {
            return;
        }
        let scale = |time: i64| scaled(time, old, i64::from(weight));
        let protected = entity.who == self.curr && entity.deadline == until;
        let left = scale(entity.deadline - entity.vruntime);
        entity.vruntime = average - scale(average - entity.vruntime);
        entity.deadline = entity.vruntime + left;
        entity.weight = weight;
        if protected {
            self.until = entity.deadline;
        }
    }
}

/// Run time as an entity of a weight is charged it.
pub(super) fn virtual_time(ran: u64, weight: u32) -> i64 {
    if weight == WEIGHT {
        return ran as i64;
    }
    match ran.checked_mul(u64::from(WEIGHT)) {
        Some(product) => (product / u64::from(weight)) as i64,
        None => (u128::from(ran) * u128::from(WEIGHT) / u128::from(weight)) as i64,
    }
}

/// A time, times one weight over another.
fn scaled(time: i64, times: i64, over: i64) -> i64 {
    match time.checked_mul(times) {
        Some(product) => product / over,
        None => (i128::from(time) * i128::from(times) / i128::from(over)) as i64,
    }
}

/// A load's average, as PELT has it: what it is counts for half after 32 ms (strictly, 32 periods of 1024 * 1024 ns).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Average {
    /// In parts of 1/16 of a weight.
    value: u32,
    at: u64,
}

/// `0.5^(n/32) * 2^32`, `runnable_avg_yN_inv` of kernel/sched/sched-pelt.h.
const DECAY: [u64; 33] = [
    0xffff_ffff,
    0xfa83_b2da,
    0xf525_7d14,
    0xefe4_b99a,
    0xeac0_c6e6,
    0xe5b9_06e6,
    0xe0cc_deeb,
    0xdbfb_b796,
    0xd744_fcc9,
    0xd2a8_1d91,
    0xce24_8c14,
    0xc9b9_bd85,
    0xc567_2a10,
    0xc12c_4cc9,
    0xbd08_a39e,
    0xb8fb_af46,
    0xb504_f333,
    0xb123_f581,
    0xad58_3ee9,
    0xa9a1_5ab4,
    0xa5fe_d6a9,
    0xa270_4302,
    0x9ef5_325f,
    0x9b8d_39b9,
    0x9837_f050,
    0x94f4_efa8,
    0x91c3_d373,
    0x8ea4_398a,
    0x8b95_c1e3,
    0x8898_0e80,
    0x85aa_c367,
    0x82cd_8698,
    0x8000_0000,
];

impl Average {
    /// What it is now, as a weight.
    pub fn get(&self) -> u32 {
        self.value / 16
    }

    /// Whether it is up to a time.
    pub fn is_of(&self, now: u64) -> bool {
        self.at == now
    }

    /// The load was `weight` from the last call until now.
    pub fn pass(&mut self, now: u64, weight: u32) {
        let span = now.saturating_sub(self.at);
        self.at = now;
        let whole = span >> 20;
        let target = u64::from(weight) * 16;
        if whole >= 32 * 20 {
            self.value = target as u32;
            return;
        }
        let at = (whole % 32) as usize;
        // Between two periods the curve is as good as straight.
        let kept = DECAY[at] - (((DECAY[at] - DECAY[at + 1]) * (span & 0xf_ffff)) >> 20);
        let factor = kept >> (whole / 32);
        let value = u64::from(self.value);
        self.value = (if value >= target {
            target + (((value - target) * factor) >> 32)
        } else {
            target - (((target - value) * factor) >> 32)
        }) as u32;
    }

    /// The same at its full resolution, in 16ths of a weight.
    pub fn sixteenths(&self) -> u32 {
        self.value
    }

    /// Part of the load goes elsewhere, in 16ths of a weight.
    pub fn take(&mut self, load: u32) {
        self.value = self.value.saturating_sub(load);
    }

    /// Or comes from there.
    pub fn give(&mut self, load: u32) {
        self.value = self.value.saturating_add(load);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_ahead_of_its_share_is_not_picked_however_early_its_deadline() {
        let mut queue = Queue::new(2);
        // The first asks for short slices, so its deadlines are early.
        queue.place(Away::default(), 1, WEIGHT, 100_000, false);
        queue.place(Away::default(), 2, WEIGHT, 10_000_000, false);
        assert_eq!(queue.pick(), Some(1));
        queue.set_curr(1);
        queue.charge(150_000);
        assert!(queue.entities[0].deadline < queue.entities[1].deadline);
        assert!(!queue.eligible(0));
        assert_eq!(queue.pick(), Some(2));
    }
}
