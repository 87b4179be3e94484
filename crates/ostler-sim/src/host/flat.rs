//! Guests as groups without queues of their own: all threads of a core in one queue, as Linux 7.3 has it.
//!
//! There a cgroup decides no longer whose turn it is on a core, only what its threads weigh in the core's queue: the group's weight on that core, which
//! is computed as before ([`super::group`]), by what of the load of its threads there the thread is (`__calc_prop_weight`, kernel/sched/fair.c). So each thread has a deadline and a lag of its own; who sleeps much isn't taken off for what
//! its guest's others did. What a thread weighs is looked at when it comes, when it gets the core and at its ticks (`enqueue_task_fair`, `set_next_task_fair`, `task_tick_fair`).
//!
//! The weight of a group of `n` threads that would run counts `min(n, cores)` times (`calc_concur_shares`, the default of `cgroup_mode`), where one of 6.12 has it once for all cores: a guest of many vCPUs
//! weighs nearly as much on each core as one thread of the host's own does. How many would run is an average as loads are, rounded down (`tg_tasks`): four that compute are a little less than four, and count three times.
//!
//! Who yields to all others (`cpu.idle`) weighs next to nothing here, but isn't taken off before its slice is over merely for what it is: that goes by a thread's own policy now (`se_is_idle`, `wakeup_preempt_fair`). It is as soon as one is there that has waited for more than its share before.
//!
//! A group's queue is still there and counts: which of its threads are on the core, what these weigh in it, and the loads.
//!
//! **Guests' cgroups are in another** (libvirt's `machine.slice`, the lab's own): [`Slice`]. What a guest weighs on a core is its part of what that cgroup does there, which likewise counts as often as threads of all guests would run. So a thread that has been
//! alone on its core weighs all that its slice does there, and keeps that when another guest's comes, until it is looked at again: who comes has its part at once. So whoever computes has longer turns than its guest's weight gives it, and those who
//! come wait for them.

use ostler_model::{CpuSet, Nanos};

use super::Host;
use super::fair::{Average, NONE, WEIGHT};
use super::group::{Why, tell};

/// The cgroup that all guests' are in.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    on: Vec<There>,
    /// How many cores it may use.
    cpus: u32,
    /// The loads of its cores together, and how many of its threads would run, each as [`WEIGHT`].
    load: u64,
    tasks: u64,
}

/// What it is on a core.
#[derive(Clone, Copy, Debug, Default)]
struct There {
    /// What the guests that have threads there weigh, together, as it was looked at last.
    weight: u32,
    /// Of their threads those that would run.
    would_run: u32,
    load: Average,
    told: u32,
    tasks: Average,
    tasks_told: u32,
    /// What it weighs there itself, as it was looked at last.
    share: u32,
}

impl There {
    /// A weight within it, as a weight on the core.
    fn of_core(&self, weight: u64) -> u64 {
        (weight * u64::from(self.share))
            .checked_div(u64::from(self.weight))
            .unwrap_or(weight)
    }
}

impl Host {
    /// Has guests' cgroups be in one of their own, which may use these cores, where that makes a difference. There are none yet.
    pub fn nest_groups(&mut self, cpus: CpuSet) {
        debug_assert!(self.groups.is_empty());
        if self.costs.kernel.is_flat() {
            self.slice = Some(Slice {
                on: vec![There::default(); self.map.len],
                cpus: cpus.intersection(&self.map.online).len(),
                load: 0,
                tasks: 0,
            });
        }
    }

    /// How often a group's weight counts.
    pub(super) fn concurrency(&self, group: u32) -> u64 {
        if !self.costs.kernel.is_flat() {
            return 1;
        }
        let group = &self.groups[group as usize];
        let most = u64::from(group.cpuset.intersection(&self.map.online).len());
        (group.tasks / u64::from(WEIGHT)).min(most).max(1)
    }

    /// Brings a queue's averages up to now, and its slice's; before its weight changes.
    pub(super) fn pass_flat(&mut self, queue: u32, now: Nanos) {
        let account = &self.accounts[queue as usize];
        let (group, cpu) = (account.group, account.cpu);
        if group == NONE {
            let weight = self.weight_on(cpu);
            self.accounts[queue as usize].load.pass(now.0, weight);
            return;
        }
        // One that waits off what it is ahead counts as a load, but wouldn't run (`set_delayed`).
        let of_queue = &self.queues[queue as usize];
        let (weight, would_run) = (of_queue.weight(), of_queue.runnable().count() as u32);
        let account = &mut self.accounts[queue as usize];
        if account.load.is_of(now.0) {
            return;
        }
        account.load.pass(now.0, weight);
        account.tasks.pass(now.0, would_run * WEIGHT);
        if let Some(slice) = &mut self.slice {
            let there = &mut slice.on[cpu as usize];
            there.load.pass(now.0, there.weight);
            there.tasks.pass(now.0, there.would_run * WEIGHT);
        }
        self.tell_all(queue);
    }

    /// Tells a queue's group what it has come to, and the slice what it has on that core.
    fn tell_all(&mut self, queue: u32) {
        let account = &mut self.accounts[queue as usize];
        let group = &mut self.groups[account.group as usize];
        tell(account.load, &mut account.told, &mut group.load);
        tell(account.tasks, &mut account.tasks_told, &mut group.tasks);
        if let Some(slice) = &mut self.slice {
            let there = &mut slice.on[account.cpu as usize];
            tell(there.load, &mut there.told, &mut slice.load);
            tell(there.tasks, &mut there.tasks_told, &mut slice.tasks);
        }
    }

    /// What all that want a core weigh there: guests, and those that are no guest's.
    fn weight_on(&self, cpu: u32) -> u32 {
        let queue = &self.queues[cpu as usize];
        let Some(slice) = &self.slice else {
            return queue.runnable().map(|entity| entity.weight).sum();
        };
        let there = &slice.on[cpu as usize];
        let own = queue.runnable().filter(|entity| {
            let thread = &self.threads[entity.who as usize];
            thread.group.is_none()
        });
        let guests = if there.weight == 0 { 0 } else { there.share };
        guests + own.map(|entity| entity.weight).sum::<u32>()
    }

    /// Has what a group weighs on a core be what it is to be now (`update_cfs_group`), and what its slice does there.
    pub(super) fn share_flat(&mut self, queue: u32, now: Nanos) {
        let cpu = self.accounts[queue as usize].cpu;
        self.pass(cpu, now);
        self.pass(queue, now);
        let (new, _) = self.weight_of(queue);
        let old = std::mem::replace(&mut self.accounts[queue as usize].share, new);
        if self.slice.is_some() && !self.queues[queue as usize].is_empty() {
            self.weigh_slice(cpu, old, new);
        }
    }

    /// The guests of a core weigh so much less and so much more there.
    fn weigh_slice(&mut self, cpu: u32, less: u32, more: u32) {
        let Some(slice) = &mut self.slice else {
            return;
        };
        let there = &mut slice.on[cpu as usize];
        there.weight = there.weight - less + more;
        let load = u64::from(there.weight.max(there.load.get()));
        let all = slice.load - u64::from(there.told) + load;
        let often = (slice.tasks / u64::from(WEIGHT))
            .min(u64::from(slice.cpus))
            .max(1);
        let weight = u64::from(WEIGHT) * often;
        let share = (weight * load).checked_div(all).unwrap_or(weight);
        there.share = share.clamp(2, weight) as u32;
    }

    /// What is kept of the slice on each core, and what its guests' queues there come to: what they weigh, and how many of their threads would run.
    #[cfg(test)]
    pub(super) fn slice_sums(&self) -> [Vec<(u32, u32)>; 2] {
        let on = self.slice.iter().flat_map(|slice| &slice.on);
        let kept: Vec<_> = on.map(|there| (there.weight, there.would_run)).collect();
        let mut found = vec![(0, 0); kept.len()];
        for (queue, account) in self.queues.iter().zip(&self.accounts) {
            if account.group != NONE && !queue.is_empty() {
                let there = &mut found[account.cpu as usize];
                there.0 += account.share;
                there.1 += queue.runnable().count() as u32;
            }
        }
        [kept, found]
    }

    /// One more of a core's threads of guests would run, or one less.
    fn count_in_slice(&mut self, cpu: u32, more: bool) {
        if let Some(slice) = &mut self.slice {
            let would_run = &mut slice.on[cpu as usize].would_run;
            *would_run = if more { *would_run + 1 } else { *would_run - 1 };
        }
    }

    /// What weighs so much in its group's queue, on that queue's core (`__calc_prop_weight`).
    pub(super) fn of_core(&self, own: u32, queue: u32) -> u64 {
        let account = &self.accounts[queue as usize];
        let all = u64::from(self.queues[queue as usize].weight().max(1));
        let weight = u64::from(own) * u64::from(account.share) / all;
        match &self.slice {
            Some(slice) => slice.on[account.cpu as usize].of_core(weight),
            None => weight,
        }
    }

    /// What a thread that is in its group's queue weighs in the core's.
    fn weight_in(&self, thread: u32, queue: u32, cpu: u32) -> u32 {
        let own = self.threads[thread as usize].weight;
        if queue == cpu {
            return own;
        }
        (self.of_core(own, queue) as u32).max(2)
    }

    /// Gives a thread that is in a core's queue the weight that it is to have now.
    pub(super) fn reweigh_flat(&mut self, thread: u32, queue: u32, cpu: u32) {
        let weight = self.weight_in(thread, queue, cpu);
        let root = &mut self.queues[cpu as usize];
        if let Some(at) = root.find(thread) {
            root.reweigh(at, weight);
        }
    }

    /// A tick, for whoever has the core.
    pub(super) fn tick_flat(&mut self, cpu: u32, now: Nanos) {
        let thread = self.queues[cpu as usize].curr;
        if thread == NONE {
            return;
        }
        let queue = self.queue_of(thread, cpu);
        self.pass(queue, now);
        if queue != cpu {
            self.share_flat(queue, now);
        }
        self.reweigh_flat(thread, queue, cpu);
    }

    /// Puts a thread into its core's queue.
    pub(super) fn enqueue_flat(&mut self, thread: u32, queue: u32, cpu: u32, now: Nanos) {
        self.pass(cpu, now);
        self.pass(queue, now);
        let known = &mut self.threads[thread as usize];
        known.load.pass(now.0, 0);
        let (own, idle, away) = (known.weight, known.idle, known.away);
        let there = self.rouse(cpu, thread);
        if queue != cpu {
            if there {
                self.queues[queue as usize].delay(thread, false);
            } else {
                let first = self.queues[queue as usize].is_empty();
                self.queues[queue as usize].join(thread, own, idle);
                if first {
                    self.accounts[queue as usize].share = 0;
                }
                self.share_flat(queue, now);
            }
            self.count_in_slice(cpu, true);
        }
        if !there {
            let weight = self.weight_in(thread, queue, cpu);
            let (away, slice) = (away.rescaled(weight), self.costs.slice);
            self.queues[cpu as usize].place(away, thread, weight, slice, idle);
        }
        self.count(cpu, true, now);
    }

    /// Takes a thread out of it. One that goes to sleep ahead of its share may stay, unseen.
    pub(super) fn dequeue_flat(&mut self, thread: u32, queue: u32, cpu: u32, why: Why, now: Nanos) {
        let Some(at) = self.queues[cpu as usize].find(thread) else {
            return;
        };
        self.pass(cpu, now);
        self.pass(queue, now);
        let known = &mut self.threads[thread as usize];
        known.load.pass(now.0, known.weight);
        if !self.queues[cpu as usize].entities[at].delayed {
            self.count(cpu, false, now);
            if queue != cpu {
                self.count_in_slice(cpu, false);
            }
        }
        let root = &mut self.queues[cpu as usize];
        if why == Why::Sleeps && root.is_to_wait(at) {
            root.entities[at].delayed = true;
            if root.curr == thread {
                root.curr = NONE;
            }
            if queue != cpu {
                self.queues[queue as usize].delay(thread, true);
            }
            return;
        }
        let away = root.leave(at, self.costs.tick, why != Why::Moves);
        self.threads[thread as usize].away = away;
        if queue != cpu {
            self.queues[queue as usize].quit(thread);
            if self.queues[queue as usize].is_empty() {
                let share = self.accounts[queue as usize].share;
                self.weigh_slice(cpu, share, 0);
            } else {
                self.share_flat(queue, now);
            }
        }
    }

    /// Whether one that has come takes the core from another of the fair class.
    pub(super) fn preempts_flat(
        &mut self,
        thread: u32,
        running: u32,
        cpu: u32,
        now: Nanos,
    ) -> bool {
        let idle = |thread: u32| self.threads[thread as usize].idle;
        let takes = match (idle(thread), idle(running)) {
            (false, true) => true,
            (true, false) => false,
            _ => self.pick(cpu, now) == Some(thread),
        };
        if takes {
            self.queues[cpu as usize].unprotect();
        }
        takes
    }

    /// The load of a thread that has come to another core goes with it, and what it counts among those that would run: its load, whatever it weighs. From and to a core, with its group's queue there.
    pub(super) fn carry_flat(
        &mut self,
        thread: u32,
        (from, left): (u32, u32),
        (to, come): (u32, u32),
        now: Nanos,
    ) {
        let known = &self.threads[thread as usize];
        let own = known.load.sixteenths();
        let tasks = (u64::from(own) * u64::from(WEIGHT) / u64::from(known.weight)) as u32;
        self.pass(from, now);
        self.pass(to, now);
        if left == from {
            self.accounts[from as usize].load.take(own);
            self.accounts[to as usize].load.give(own);
            return;
        }
        self.pass(left, now);
        self.pass(come, now);
        let part = self.part_in_slice(own, left);
        let account = &mut self.accounts[left as usize];
        account.load.take(own);
        account.tasks.take(tasks);
        let mut on_core = part;
        if let Some(slice) = &mut self.slice {
            let there = &mut slice.on[from as usize];
            on_core = there.of_core(u64::from(part)) as u32;
            there.load.take(part);
            there.tasks.take(tasks);
        }
        self.accounts[from as usize].load.take(on_core);
        self.tell_all(left);
        self.share_flat(left, now);
        let account = &mut self.accounts[come as usize];
        account.load.give(own);
        account.tasks.give(tasks);
        self.tell_all(come);
        self.share_flat(come, now);
        let part = self.part_in_slice(own, come);
        let mut on_core = part;
        if let Some(slice) = &mut self.slice {
            let there = &mut slice.on[to as usize];
            there.load.give(part);
            there.tasks.give(tasks);
            on_core = there.of_core(u64::from(part)) as u32;
        }
        self.accounts[to as usize].load.give(on_core);
        self.tell_all(come);
    }

    /// A thread's part in the load of its slice on a core, or of the core where there is no slice, in 16ths of a weight.
    fn part_in_slice(&self, own: u32, queue: u32) -> u32 {
        let account = &self.accounts[queue as usize];
        let weight = self.queues[queue as usize].weight();
        let all = weight.max(account.load.get());
        let part = (u64::from(own) * u64::from(account.share)).checked_div(u64::from(all));
        part.map_or(0, |part| part.min(u64::from(own)) as u32)
    }
}
