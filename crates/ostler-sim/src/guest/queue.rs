//! The guest's scheduler: who is next on a vCPU.
//!
//! EEVDF as Linux has it since 6.6: of those that have had no more than their share, the one whose deadline is first. All weigh the same and have the same
//! slice, so that is the one of the least virtual run time. Who runs keeps its vCPU for its slice (`RUN_TO_PARITY`): a task that wakes takes no vCPU
//! from another. Who wakes has what the others have on average: it neither borrows nor saves by sleeping.
//!
//! A vCPU takes a task that waits elsewhere before it goes idle. One that is idle already sees nothing of tasks that come to wait, so a vCPU where some do kicks it
//! ([`Guest::relieves`]).

use ostler_model::Nanos;

use super::Guest;

/// Between ticks (kernel/Kconfig.hz: HZ=250).
const TICK: Nanos = Nanos::from_millis(4);
/// After how long what a vCPU was busy with is to fade (kernel/sched/fair.c, `LOAD_AVG_PERIOD`).
const FADES: Nanos = Nanos::from_millis(32);

impl Guest {
    /// The idle vCPU that one is to kick, for it to take a task that waits. Linux looks at ticks of a vCPU where one does (`nohz_balancer_kick`), no more often than a
    /// domain of all vCPUs is balanced (kernel/sched/topology.c, sd_init: as many milliseconds as it has CPUs), and then balances for all that are idle; here it is
    /// looked when a vCPU goes on, and as many are kicked as tasks waited, one each time.
    pub fn relieves(&mut self, v: u32, now: Nanos) -> Option<u32> {
        if self.waiting == 0 {
            self.relief.1 = 0;
            return None;
        }
        if now >= self.relief.0 && !self.vcpus[v as usize].queue.is_empty() {
            let interval = Nanos::from_millis(self.vcpus_active.into()).max(TICK);
            self.relief = (now.saturating_add(interval), self.waiting);
        }
        self.relief.1 = self.relief.1.checked_sub(1)?;
        let idle = |v: &u32| self.vcpus[*v as usize].load() == 0;
        let found = (0..self.vcpus_active).find(idle);
        if found.is_none() {
            self.relief.1 = 0;
        }
        found
    }

    /// The idle vCPU that balances for all that are idle, where one that is busy kicks it now: at a tick, if a task waits on it, and at any one's once what idle vCPUs were busy with is to fade
    /// (kernel/sched/fair.c, `nohz_balancer_kick`). It is the first whose own tick is stopped (`find_new_ilb`), and so one that its guest doesn't use, where there is one. Here it is seen to when the vCPU goes on with
    /// a task after the tick.
    pub fn kicks(&mut self, v: u32, now: Nanos, tick: Nanos) -> Option<u32> {
        let ticks = now.0.saturating_sub(self.ticks_from.0) / tick.0.max(1);
        let vcpu = &mut self.vcpus[v as usize];
        if std::mem::replace(&mut vcpu.looked, ticks) == ticks {
            return None;
        }
        if vcpu.queue.is_empty() && now < self.fades {
            return None;
        }
        self.fades = now.saturating_add(FADES);
        let stopped = |other: &u32| {
            let vcpu = &self.vcpus[*other as usize];
            *other != v && vcpu.sleeps() && vcpu.load() == 0 && !vcpu.ticks
        };
        let first = (0..self.vcpus.len() as u32).find(stopped)?;
        // Once is enough.
        self.vcpus[first as usize].exits.is_empty().then_some(first)
    }

    /// The mean virtual run time of the tasks on a vCPU, if there are any.
    fn mean(&self, v: u32) -> Option<u64> {
        let vcpu = &self.vcpus[v as usize];
        let all = vcpu.queue.iter().chain(&vcpu.current);
        let (sum, count) = all.fold((0_u128, 0_u128), |(sum, count), task| {
            let vruntime = self.tasks[*task as usize].vruntime;
            (sum + u128::from(vruntime), count + 1)
        });
        let mean = sum.checked_div(count)?;
        Some(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// A task waits on a vCPU from now on: one that comes from elsewhere, or wakes.
    pub fn enqueue(&mut self, task: u32, v: u32) {
        let mean = self.mean(v);
        let slice = self.slice;
        let entry = &mut self.tasks[task as usize];
        entry.vcpu = v;
        if let Some(mean) = mean {
            entry.vruntime = mean;
        }
        entry.slice = slice;
        self.vcpus[v as usize].queue.push(task);
        self.waiting += 1;
    }

    /// The task that runs waits again, with a new slice.
    pub fn requeue(&mut self, v: u32) {
        if let Some(task) = self.vcpus[v as usize].current.take() {
            self.tasks[task as usize].slice = self.slice;
            self.vcpus[v as usize].queue.push(task);
            self.waiting += 1;
        }
    }

    /// Whoever is next on a vCPU has it. Of equals the one that came first.
    pub fn pick(&mut self, v: u32) -> Option<u32> {
        let waiting = self.vcpus[v as usize].queue.iter().enumerate();
        let (at, _) = waiting.min_by_key(|(_, task)| self.tasks[**task as usize].vruntime)?;
        let task = self.vcpus[v as usize].queue.remove(at);
        self.waiting -= 1;
        self.vcpus[v as usize].current = Some(task);
        Some(task)
    }

    /// Takes a task that waits on another vCPU, the fullest: what a vCPU does before it goes idle. One that belongs to another cache group stays, and so does one that has
    /// its vCPU to itself, though that is yet to wake for it: Linux looks for tasks only where some vCPU has more than one (`sched_balance_newidle`, `rd->overloaded`), or whoever is
    /// interrupted for a packet would take the thread that it has just woken elsewhere.
    pub fn pull(&mut self, v: u32) -> bool {
        if self.waiting == 0 || v >= self.vcpus_active {
            return false;
        }
        let here = self.cache_group(v);
        let fits = |task: &u32| {
            let there = self.tasks[*task as usize].vcg;
            there.is_none() || there == here
        };
        let others = (0..self.vcpus.len() as u32).filter(|other| *other != v);
        let takes = others.filter_map(|other| {
            if self.vcpus[other as usize].load() < 2 {
                return None;
            }
            let queue = &self.vcpus[other as usize].queue;
            let at = queue.iter().position(fits)?;
            Some((queue.len(), u32::MAX - other, at))
        });
        let Some((_, other, at)) = takes.max() else {
            return false;
        };
        let task = self.vcpus[(u32::MAX - other) as usize].queue.remove(at);
        self.waiting -= 1;
        self.enqueue(task, v);
        true
    }

    /// A task that runs has run so much.
    pub fn charge(&mut self, task: u32, work: Nanos) {
        let task = &mut self.tasks[task as usize];
        task.vruntime = task.vruntime.saturating_add(work.0);
        task.slice = task.slice.saturating_sub(work);
        task.ran = task.ran.saturating_add(work);
    }
}
