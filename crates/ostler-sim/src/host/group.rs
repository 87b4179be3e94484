//! Guests as groups: a guest's threads on a core share one entity of the core's queue, and that has a queue of its own.
//!
//! A guest's weight counts for all its threads on all cores together. What its entity on a core weighs is the part of it that its load there is of its
//! load everywhere (`calc_group_shares`): by averages that forget, or each sleep of a thread would shift all others of its guest.

use ostler_model::{CpuId, Nanos};

use super::fair::{Average, Away, NONE, Queue as RunQueue, WEIGHT_IDLE};
use super::{Account, Host};

/// Marks an entity as a group's: the rest is the number of its queue.
pub(super) const GROUP: u32 = 1 << 31;

/// Tells a group what one of its queues has come to, of which it knows `told` (`update_tg_load_avg`): small changes aren't worth telling.
pub(super) fn tell(average: Average, told: &mut u32, all: &mut u64) {
    let now = average.get();
    if now.abs_diff(*told) > *told / 64 {
        *all = *all + u64::from(now) - u64::from(*told);
        *told = now;
    }
}

/// Why a thread leaves a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It has nothing to do.
    Sleeps,
    /// It had nothing to do already, and is even now.
    Even,
    /// It goes to another core, or is frozen.
    Moves,
}

impl Host {
    /// The queue of a thread on the core that it is on, or was last: that core's own, or its group's there.
    #[inline]
    pub(super) fn queue_of(&mut self, thread: u32, cpu: u32) -> u32 {
        debug_assert_eq!(self.threads[thread as usize].cpu, cpu);
        let known = self.threads[thread as usize].queue;
        if known != NONE {
            return known;
        }
        let found = self.find_queue(thread, cpu);
        self.threads[thread as usize].queue = found;
        found
    }

    fn find_queue(&mut self, thread: u32, cpu: u32) -> u32 {
        let Some(group) = self.threads[thread as usize].group else {
            return cpu;
        };
        let known = self.groups[group as usize].queues[cpu as usize];
        if known != NONE {
            return known;
        }
        let new = self.queues.len() as u32;
        self.groups[group as usize].queues[cpu as usize] = new;
        self.queues.push(RunQueue::new(0));
        self.accounts.push(Account {
            group,
            cpu,
            load: Average::default(),
            told: 0,
            tasks: Average::default(),
            tasks_told: 0,
            share: 0,
            away: Away::default(),
        });
        new
    }

    /// Brings a queue's load up to now; before its weight changes.
    pub(super) fn pass(&mut self, queue: u32, now: Nanos) {
        if self.costs.kernel.is_flat() {
            return self.pass_flat(queue, now);
        }
        let weight: u32 = self.queues[queue as usize]
            .runnable()
            .map(|entity| entity.weight)
            .sum();
        let account = &mut self.accounts[queue as usize];
        account.load.pass(now.0, weight);
        if account.group == NONE {
            return;
        }
        let group = &mut self.groups[account.group as usize];
        tell(account.load, &mut account.told, &mut group.load);
    }

    /// What a group's entity on a core weighs.
    pub(super) fn weight_of(&self, queue: u32) -> (u32, bool) {
        let account = &self.accounts[queue as usize];
        let group = &self.groups[account.group as usize];
        if group.idle {
            return (WEIGHT_IDLE, true);
        }
        let load = u64::from(self.queues[queue as usize].weight().max(account.load.get()));
        let all = group.load - u64::from(account.told) + load;
        let weight = u64::from(group.weight) * self.concurrency(account.group);
        let share = (weight * load).checked_div(all).unwrap_or(weight);
        (share.clamp(2, weight.max(2)) as u32, false)
    }

    /// Gives a group's entity the weight that it is to have now.
    pub(super) fn share(&mut self, queue: u32, now: Nanos) {
        if self.costs.kernel.is_flat() {
            return self.share_flat(queue, now);
        }
        let root = self.accounts[queue as usize].cpu;
        let Some(at) = self.queues[root as usize].find(queue | GROUP) else {
            return;
        };
        let (weight, idle) = self.weight_of(queue);
        self.queues[root as usize].entities[at].idle = idle;
        if self.queues[root as usize].entities[at].weight != weight {
            self.pass(root, now);
            self.queues[root as usize].reweigh(at, weight);
        }
    }

    /// What the thread that runs has of its guest's weight is looked at anew at each tick (`entity_tick`), or one that never sleeps would keep what it had when
    /// it was its guest's only one.
    pub(super) fn tick_group(&mut self, cpu: u32, now: Nanos) {
        if self.costs.kernel.is_flat() {
            return self.tick_flat(cpu, now);
        }
        let curr = self.queues[cpu as usize].curr;
        if curr != NONE && curr & GROUP != 0 {
            self.pass(curr & !GROUP, now);
            self.share(curr & !GROUP, now);
        }
    }

    /// A thread's part in the load of a core: what it weighs in its queue, as a part of what that weighs there; in 16ths of a weight.
    fn part_of(&self, own: u32, queue: u32) -> u32 {
        if self.accounts[queue as usize].group == NONE {
            return own;
        }
        let (weight, _) = self.weight_of(queue);
        let all = self.queues[queue as usize]
            .weight()
            .max(self.accounts[queue as usize].load.get());
        let part = (u64::from(own) * u64::from(weight)).checked_div(u64::from(all));
        part.map_or(0, |part| part.min(u64::from(own)) as u32)
    }

    /// The load of a thread that has come to another core goes with it, at once (`remove_entity_load_avg`, `attach_entity_load_avg`): who balances next sees it there.
    pub(super) fn carry_load(&mut self, thread: u32, from: u32, to: u32, now: Nanos) {
        let own = self.threads[thread as usize].load.sixteenths();
        if own == 0 {
            return;
        }
        let (left, come) = (self.find_queue(thread, from), self.queue_of(thread, to));
        if self.costs.kernel.is_flat() {
            return self.carry_flat(thread, (from, left), (to, come), now);
        }
        self.pass(from, now);
        self.pass(left, now);
        let part = self.part_of(own, left);
        self.accounts[from as usize].load.take(part);
        if left != from {
            self.accounts[left as usize].load.take(own);
            self.pass(left, now);
            self.share(left, now);
        }
        self.pass(to, now);
        if come != to {
            self.accounts[come as usize].load.give(own);
            self.pass(come, now);
            self.share(come, now);
        }
        let part = self.part_of(own, come);
        self.accounts[to as usize].load.give(part);
    }

    /// Puts a thread into a core's queues.
    pub(super) fn enqueue(&mut self, thread: u32, cpu: u32, now: Nanos) {
        let queue = self.queue_of(thread, cpu);
        if self.costs.kernel.is_flat() {
            return self.enqueue_flat(thread, queue, cpu, now);
        }
        let slice = self.costs.slice;
        self.pass(queue, now);
        let known = &mut self.threads[thread as usize];
        known.load.pass(now.0, 0);
        let (weight, idle) = (known.weight, known.idle);
        if !self.rouse(queue, thread) {
            let away = self.threads[thread as usize].away;
            self.queues[queue as usize].place(away, thread, weight, slice, idle);
        }
        self.count(cpu, true, now);
        if queue == cpu {
            return;
        }
        self.pass(cpu, now);
        if self.queues[cpu as usize].has(queue | GROUP) {
            self.rouse(cpu, queue | GROUP);
            self.share(queue, now);
        } else {
            let (weight, idle) = self.weight_of(queue);
            let away = self.accounts[queue as usize].away;
            self.queues[cpu as usize].place(away, queue | GROUP, weight, slice, idle);
        }
    }

    /// Has one that waits off what it is ahead be there again; false: it isn't in the queue.
    pub(super) fn rouse(&mut self, queue: u32, who: u32) -> bool {
        let tick = self.costs.tick;
        let queue = &mut self.queues[queue as usize];
        let Some(at) = queue.find(who) else {
            return false;
        };
        let entity = queue.entities[at];
        if !entity.delayed {
            return true;
        }
        if queue.average() > entity.vruntime {
            let away = Away {
                to_deadline: None,
                ..queue.leave(at, tick, true)
            };
            queue.place(away, who, entity.weight, entity.slice, entity.idle);
        } else {
            queue.entities[at].delayed = false;
        }
        true
    }

    /// Takes a thread out of its core's queues. One that goes to sleep ahead of its share may stay, unseen.
    pub(super) fn dequeue(&mut self, thread: u32, why: Why, now: Nanos) {
        let cpu = self.threads[thread as usize].cpu;
        let queue = self.queue_of(thread, cpu);
        if self.costs.kernel.is_flat() {
            return self.dequeue_flat(thread, queue, cpu, why, now);
        }
        let Some(at) = self.queues[queue as usize].find(thread) else {
            return;
        };
        self.pass(queue, now);
        let weight = self.threads[thread as usize].weight;
        self.threads[thread as usize].load.pass(now.0, weight);
        if !self.queues[queue as usize].entities[at].delayed {
            self.count(cpu, false, now);
        }
        if why == Why::Sleeps && self.queues[queue as usize].is_to_wait(at) {
            let queue = &mut self.queues[queue as usize];
            queue.entities[at].delayed = true;
            if queue.curr == thread {
                queue.curr = NONE;
            }
        } else {
            self.threads[thread as usize].away =
                self.queues[queue as usize].leave(at, self.costs.tick, why != Why::Moves);
        }
        if queue != cpu {
            self.dequeue_group(queue, why, now);
        }
    }

    /// A group's entity leaves the core's queue with the last of its own.
    fn dequeue_group(&mut self, queue: u32, why: Why, now: Nanos) {
        let cpu = self.accounts[queue as usize].cpu;
        if !self.queues[queue as usize].is_empty() {
            self.share(queue, now);
            return;
        }
        self.pass(cpu, now);
        let root = &mut self.queues[cpu as usize];
        let Some(at) = root.find(queue | GROUP) else {
            return;
        };
        if why == Why::Sleeps && root.is_to_wait(at) {
            root.entities[at].delayed = true;
            if root.curr == queue | GROUP {
                root.curr = NONE;
            }
        } else {
            // A group's slice is its own, whoever of its threads leaves.
            self.accounts[queue as usize].away = root.leave(at, self.costs.tick, true);
        }
    }

    /// One more thread that would run on a core, or one less.
    pub(super) fn count(&mut self, cpu: u32, more: bool, now: Nanos) {
        let core = &mut self.cores[cpu as usize];
        core.wanted(now);
        if more {
            core.fair += 1;
            if core.fair == 2 {
                self.overloaded.insert(CpuId(cpu));
                self.newly.some_wait();
            }
        } else {
            core.fair -= 1;
            if core.fair == 1 {
                self.overloaded.remove(CpuId(cpu));
            }
        }
    }

    /// The thread of the fair class that is to have a core.
    pub(super) fn pick(&mut self, cpu: u32, now: Nanos) -> Option<u32> {
        if self.cores[cpu as usize].fair == 0 {
            self.wait_off(cpu, now);
            return None;
        }
        loop {
            let who = self.queues[cpu as usize].pick()?;
            if who & GROUP == 0 {
                let at = self.queues[cpu as usize].find(who)?;
                if !self.queues[cpu as usize].entities[at].delayed {
                    return Some(who);
                }
                self.dequeue(who, Why::Even, now);
                continue;
            }
            let queue = who & !GROUP;
            let Some(thread) = self.queues[queue as usize].pick() else {
                // It was here only to wait off what it is ahead.
                self.dequeue_group(queue, Why::Even, now);
                continue;
            };
            let at = self.queues[queue as usize].find(thread)?;
            if !self.queues[queue as usize].entities[at].delayed {
                return Some(thread);
            }
            self.dequeue(thread, Why::Even, now);
        }
    }

    /// Nobody would run: those that wait off what they are ahead needn't any longer.
    fn wait_off(&mut self, cpu: u32, now: Nanos) {
        while let Some(entity) = self.queues[cpu as usize].entities.first().copied() {
            if entity.who & GROUP == 0 {
                self.dequeue(entity.who, Why::Even, now);
                continue;
            }
            let queue = entity.who & !GROUP;
            match self.queues[queue as usize].entities.first().copied() {
                Some(inner) => self.dequeue(inner.who, Why::Even, now),
                None => self.dequeue_group(queue, Why::Even, now),
            }
        }
    }

    /// Has a thread and its group be those that have the core.
    pub(super) fn set_curr(&mut self, thread: u32, cpu: u32) {
        let queue = self.queue_of(thread, cpu);
        if self.costs.kernel.is_flat() {
            self.reweigh_flat(thread, queue, cpu);
            return self.queues[cpu as usize].set_curr(thread);
        }
        self.queues[queue as usize].set_curr(thread);
        if queue != cpu {
            self.queues[cpu as usize].set_curr(queue | GROUP);
        }
    }

    /// Nobody has it.
    pub(super) fn unset_curr(&mut self, thread: u32, cpu: u32) {
        let queue = self.queue_of(thread, cpu);
        self.queues[queue as usize].curr = NONE;
        self.queues[cpu as usize].curr = NONE;
    }

    /// Charges a thread and its group for what it ran; whether its slice is over and others wait.
    pub(super) fn charge(&mut self, thread: u32, cpu: u32, ran: u64) -> bool {
        if self.costs.kernel.is_flat() {
            return self.queues[cpu as usize].charge(ran);
        }
        let queue = self.queue_of(thread, cpu);
        let over = self.queues[queue as usize].charge(ran);
        if queue == cpu {
            return over;
        }
        self.queues[cpu as usize].charge(ran) || over
    }

    /// Whether one that has come takes the core from another of the fair class.
    pub(super) fn preempts(&mut self, thread: u32, running: u32, cpu: u32, now: Nanos) -> bool {
        if self.costs.kernel.is_flat() {
            return self.preempts_flat(thread, running, cpu, now);
        }
        let (mine, theirs) = (self.queue_of(thread, cpu), self.queue_of(running, cpu));
        let (queue, one, other) = if mine == theirs {
            (mine, thread, running)
        } else {
            let entity = |queue, thread| if queue == cpu { thread } else { queue | GROUP };
            (cpu, entity(mine, thread), entity(theirs, running))
        };
        let queue = &self.queues[queue as usize];
        let idle = |who| queue.find(who).is_some_and(|at| queue.entities[at].idle);
        match (idle(one), idle(other)) {
            (false, true) => true,
            (true, false) => false,
            _ => queue.pick() == Some(one),
        }
    }
}
