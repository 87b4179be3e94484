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

use ostler_model::Nanos;

use super::Host;
use super::fair::{NONE, WEIGHT};
use super::group::Why;

impl Host {
    /// How often a group's weight counts.
    pub(super) fn concurrency(&self, group: u32) -> u64 {
        if !self.costs.kernel.is_flat() {
            return 1;
        }
        let group = &self.groups[group as usize];
        let most = u64::from(group.cpuset.intersection(&self.map.online).len());
        (group.tasks / u64::from(WEIGHT)).min(most).max(1)
    }

    /// What a thread that is in its group's queue weighs in the core's.
    fn weight_in(&self, thread: u32, queue: u32, cpu: u32) -> u32 {
        let own = self.threads[thread as usize].weight;
        if queue == cpu {
            return own;
        }
        let (weight, _) = self.weight_of(queue);
        let all = u64::from(self.queues[queue as usize].weight().max(1));
        ((u64::from(own) * u64::from(weight) / all) as u32).max(1)
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
                self.queues[queue as usize].join(thread, own, idle);
            }
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

    /// What a thread that has come to another core counts among its group's that would run goes with it, as its load does: its load, whatever it weighs.
    pub(super) fn carry_tasks(&mut self, thread: u32, left: u32, come: u32) {
        let known = &self.threads[thread as usize];
        let part = u64::from(known.load.sixteenths()) * u64::from(WEIGHT) / u64::from(known.weight);
        self.accounts[left as usize].tasks.take(part as u32);
        self.accounts[come as usize].tasks.give(part as u32);
    }
}
