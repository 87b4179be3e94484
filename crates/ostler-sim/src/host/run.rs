//! A thread's life on cores: chosen, asked what it does, told what it did, switched, put to sleep and woken.

use ostler_model::{CpuId, CpuSet, Nanos};

use super::core::{Doing, progress, wall};
use super::fair::NONE;
use super::group::Why;
use super::thread::{State, ThreadTime};
use super::{Event, Host, Scene};
use crate::work::{Effect, FULL_SPEED, Next, ThreadId, Work};

/// How a core comes to know of who has come to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It doesn't, unless it is to make room in earnest: then it is interrupted.
    Not,
    /// What it did itself has brought that about.
    Itself,
    /// Another core interrupts it.
    Interrupted,
}

impl Host {
    /// Puts what a core did until now into all accounts.
    #[inline]
    pub(super) fn reckon(&mut self, cpu: u32, now: Nanos) {
        if self.cores[cpu as usize].since != now {
            self.reckon_up(cpu, now);
        }
    }

    fn reckon_up(&mut self, cpu: u32, now: Nanos) {
        let running = self.cores[cpu as usize].running;
        let yields = self.yields(running);
        let core = &mut self.cores[cpu as usize];
        let factor = core.factor(self.costs.smt);
        let past = core.account(yields, now);
        match core.doing {
            Doing::Thread => {
                let ahead = past.min(core.overhead);
                core.overhead -= ahead;
                let work = progress(past - ahead, factor);
                if core.left == u64::MAX {
                    core.done += work;
                } else {
                    let work = work.min(core.left);
                    core.left -= work;
                    core.done += work;
                }
                let thread = &mut self.threads[running as usize];
                thread.time.ran += past;
                thread.since = now;
                thread.ran_at = now;
                self.spend(running, cpu, past);
                return;
            }
            Doing::Hard => lessen(core.hard.front_mut(), progress(past, factor)),
            Doing::Soft => lessen(core.soft.front_mut(), progress(past, factor)),
            Doing::Idle(_) | Doing::Waking(_) | Doing::Rising => return,
        }
        if running != NONE {
            let thread = &mut self.threads[running as usize];
            thread.time.held += past;
            thread.since = now;
            if !self.costs.kernel.tells_interrupts_apart() {
                thread.ran_at = now;
                self.cores[cpu as usize].held += past;
                self.spend(running, cpu, past);
            }
        }
    }

    /// What a thread has run to the kernel (`sum_exec_runtime`): where that doesn't tell interrupts apart, with those that came meanwhile.
    pub(super) fn charged(&self, time: ThreadTime) -> u64 {
        if self.costs.kernel.tells_interrupts_apart() {
            time.ran
        } else {
            time.ran + time.held
        }
    }

    /// Charges the thread that has a core for a time there.
    fn spend(&mut self, thread: u32, cpu: u32, time: u64) {
        if self.threads[thread as usize].boost {
            if let Some(boost) = self.boost.as_deref_mut() {
                boost.spend(thread, time);
            }
        } else if self.charge(thread, cpu, time) {
            self.mark(cpu);
        }
    }

    /// Whether a thread's cgroup is idle for the scheduler, so that it yields to all others; [`NONE`] doesn't.
    pub(super) fn yields(&self, thread: u32) -> bool {
        let Some(thread) = self.threads.get(thread as usize) else {
            return false;
        };
        let in_idle = |group: u32| self.groups[group as usize].idle;
        !thread.boost && thread.group.is_some_and(in_idle)
    }

    /// Has a core do something else. Its accounts are up to now.
    pub(super) fn turn_to<W: Work>(&mut self, cpu: u32, doing: Doing, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        if let Some(tracer) = scene.out.tracer() {
            tracer.turns(now, CpuId(cpu), doing);
        }
        let was = self.cores[cpu as usize].is_busy();
        let will = !matches!(doing, Doing::Idle(_));
        if was == will {
            self.cores[cpu as usize].doing = doing;
        } else {
            // Siblings go on at another speed.
            for at in 0..self.map.siblings[cpu as usize].len() {
                let other = self.map.siblings[cpu as usize][at];
                self.reckon(other, now);
            }
            self.cores[cpu as usize].doing = doing;
            for other in &self.map.siblings[cpu as usize] {
                let busy = &mut self.cores[*other as usize].busy_siblings;
                *busy = if will { *busy + 1 } else { *busy - 1 };
            }
            if will {
                self.idle.remove(CpuId(cpu));
                self.alone.remove(CpuId(cpu));
                for other in &self.map.siblings[cpu as usize] {
                    self.alone.remove(CpuId(*other));
                }
                self.tick_on(cpu, scene);
            } else {
                self.idle.insert(CpuId(cpu));
                let siblings = &self.map.siblings[cpu as usize];
                if siblings
                    .iter()
                    .all(|other| self.idle.contains(CpuId(*other)))
                {
                    self.alone.insert(CpuId(cpu));
                    self.alone
                        .extend(siblings.iter().map(|other| CpuId(*other)));
                }
            }
            for at in 0..self.map.siblings[cpu as usize].len() {
                let other = self.map.siblings[cpu as usize][at];
                if self.cores[other as usize].is_busy()
                    && !matches!(self.cores[other as usize].doing, Doing::Waking(_))
                {
                    self.arm(other, scene);
                }
            }
        }
        self.arm(cpu, scene);
    }

    /// Has the end of what a core does come when it is due.
    pub(super) fn arm<W>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        if self.cores[cpu as usize].doing == Doing::Thread {
            self.time_slice(cpu, scene);
        }
        let core = &self.cores[cpu as usize];
        let factor = core.factor(self.costs.smt);
        let after = match core.doing {
            Doing::Idle(_) => return scene.queue.clear(cpu),
            Doing::Waking(state) if core.hard.is_empty() && core.soft.is_empty() => {
                self.costs.idle_exit[usize::from(state)]
            }
            Doing::Waking(state) => self.costs.idle_interrupt[usize::from(state)],
            Doing::Rising => self.costs.idle_leave,
            Doing::Hard => wall(core.hard.front().map_or(0, |first| first.work.0), factor),
            Doing::Soft => wall(core.soft.front().map_or(0, |first| first.work.0), factor),
            Doing::Thread if core.left == u64::MAX => return scene.queue.clear(cpu),
            Doing::Thread => core.overhead.saturating_add(wall(core.left, factor)),
        };
        let at = scene.now().saturating_add(Nanos(after));
        scene.queue.set(cpu, at, Event::Done { cpu });
    }

    pub(super) fn tick_on<W>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let tick = self.costs.tick;
        let core = &mut self.cores[cpu as usize];
        if core.ticking {
            return;
        }
        core.ticking = true;
        let next = (scene.now().0 / tick + 1) * tick;
        scene.queue.at(Nanos(next), Event::Tick { cpu });
    }

    /// A core has done what it does.
    pub(super) fn done<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        self.reckon(cpu, now);
        match self.cores[cpu as usize].doing {
            Doing::Idle(_) => {}
            Doing::Waking(_) => {
                let core = &mut self.cores[cpu as usize];
                if core.hard.is_empty() && core.soft.is_empty() {
                    core.handled.woken += self.costs.woken;
                }
                self.proceed(cpu, scene);
            }
            Doing::Rising => self.proceed(cpu, scene),
            Doing::Hard => self.end_hard(cpu, scene),
            Doing::Soft => self.end_soft(cpu, scene),
            Doing::Thread => {
                let core = &mut self.cores[cpu as usize];
                // What rounding has left.
                core.done += core.left;
                core.left = 0;
                let thread = core.running;
                self.tell(thread, cpu, scene);
                if self.cores[cpu as usize].resched && !self.holds_softirqs(cpu, scene) {
                    self.schedule(cpu, scene);
                } else {
                    self.go_on(thread, cpu, scene);
                }
            }
        }
    }

    /// A thread that was told what it did goes on, unless it sleeps, or has left its guest and somebody else is to have its core.
    fn go_on<W: Work>(&mut self, thread: u32, cpu: u32, scene: &mut Scene<'_, W>) {
        if self.begin_held(cpu, scene) {
            self.cores[cpu as usize].ask = true;
            return;
        }
        if !self.ask(thread, cpu, scene) {
            self.leave(thread, cpu, scene);
        } else if self.has_exited(cpu, scene) {
            self.schedule(cpu, scene);
        } else {
            self.turn_to(cpu, Doing::Thread, scene);
            self.await_exit(cpu, scene);
        }
    }

    /// A thread that has a core is about to go to sleep, and does so when all that it wanted before is done: whom it has woken sees it on its core.
    fn leave<W: Work>(&mut self, thread: u32, cpu: u32, scene: &mut Scene<'_, W>) {
        if scene.out.0.is_empty() {
            self.block(thread, cpu, scene);
            self.schedule(cpu, scene);
            return;
        }
        scene.queue.clear(cpu);
        let now = scene.now();
        if let Some(tracer) = scene.out.tracer() {
            tracer.turns(now, CpuId(cpu), Doing::Thread);
        }
        let core = &mut self.cores[cpu as usize];
        core.doing = Doing::Thread;
        core.leaving = true;
        self.leavers.push_back(cpu);
    }

    /// The next of those that are about to go to sleep does; false: there is none. Called once all is done that was wanted.
    #[inline]
    pub fn leave_next<W: Work>(&mut self, scene: &mut Scene<'_, W>) -> bool {
        let next = self.leavers.pop_front();
        if let Some(cpu) = next {
            self.leave_now(cpu, scene);
        }
        next.is_some()
    }

    fn leave_now<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let stays = self.has_softirqs(cpu);
        let core = &mut self.cores[cpu as usize];
        if core.leaving && core.doing == Doing::Thread {
            let thread = core.running;
            if stays {
                core.leaving = false;
                self.go_on(thread, cpu, scene);
            } else {
                self.block(thread, cpu, scene);
                self.schedule(cpu, scene);
            }
            self.kicks(scene);
        } else if core.leaving {
            // An interrupt has come first.
            core.leaving = false;
            core.ask = true;
        }
    }

    /// A core goes on with whatever comes first.
    pub(super) fn proceed<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        if self.begin_interrupts(cpu, scene) {
            return;
        }
        if self.rises(cpu) {
            self.turn_to(cpu, Doing::Rising, scene);
            return;
        }
        let core = &self.cores[cpu as usize];
        let (running, again) = (core.running, core.ask);
        if self.looks(cpu, scene) {
            self.stop(cpu, self.costs.stop, scene);
        } else if !again {
            self.turn_to(cpu, Doing::Thread, scene);
        } else {
            self.tell(running, cpu, scene);
            self.go_on(running, cpu, scene);
        }
    }

    /// Finds out who has a core, and has it run. Accounts are up to now, and no interrupt is there.
    pub(super) fn schedule<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        if self.cores[cpu as usize].leaving {
            if self.has_softirqs(cpu) {
                let core = &mut self.cores[cpu as usize];
                (core.leaving, core.ask) = (false, true);
            } else {
                self.block(self.cores[cpu as usize].running, cpu, scene);
            }
        }
        let paid = self.cores[cpu as usize].out_at > Nanos::ZERO;
        loop {
            let prev = self.cores[cpu as usize].running;
            let core = &mut self.cores[cpu as usize];
            (core.resched, core.lazy) = (false, false);
            (core.looks_at, core.out_at) = (Nanos::ZERO, Nanos::ZERO);
            let mut next = self.pick(cpu, now).or_else(|| self.pick_boost(cpu, now));
            if next.is_none() && self.pull(cpu, scene) {
                next = self.pick(cpu, now);
            }
            let Some(next) = next else {
                if !self.begin_held(cpu, scene) {
                    self.sleep(cpu, scene);
                }
                return;
            };
            if next != prev {
                if prev != NONE {
                    self.put(prev, cpu, paid, scene);
                }
                self.take(next, cpu, scene);
            }
            // One that keeps its core after its work was told is asked as one that comes.
            let core = &self.cores[cpu as usize];
            let goes_on = next == prev && core.left > 0 && !core.ask;
            if !goes_on && next == prev && core.done > 0 {
                self.tell(next, cpu, scene);
            }
            if goes_on || self.ask(next, cpu, scene) {
                // By its exits until now nobody is seen that comes later.
                self.has_exited(cpu, scene);
                self.clear_slice(cpu);
                if !self.begin_held(cpu, scene) {
                    self.turn_to(cpu, Doing::Thread, scene);
                }
                return;
            }
            if !scene.out.0.is_empty() {
                return self.leave(next, cpu, scene);
            }
            self.block(next, cpu, scene);
        }
    }

    /// The thread that has a core gives it up, and waits.
    /// `paid`: it has paid for that already.
    pub(super) fn put<W: Work>(
        &mut self,
        thread: u32,
        cpu: u32,
        paid: bool,
        scene: &mut Scene<'_, W>,
    ) {
        self.tell(thread, cpu, scene);
        self.lose(thread, cpu, scene);
        let in_guest = thread >= self.own_threads() && !scene.work.in_kernel(ThreadId(thread));
        let known = &mut self.threads[thread as usize];
        known.state = State::Waits;
        known.since = scene.now();
        // On its way out it was in its guest no longer.
        let out = if paid { self.costs.stop } else { 0 };
        known.stopped = in_guest.then(|| scene.now().saturating_sub(Nanos(out)));
        known.paid = paid;
        if known.boost {
            self.put_boost(thread, cpu, scene.now());
        }
    }

    /// Whoever traces sees whom a core has.
    #[inline]
    pub(super) fn trace_switch<W>(&self, to: u32, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        if let Some(tracer) = scene.out.tracer() {
            let sleeps = |thread: u32| self.threads[thread as usize].state == State::Asleep;
            tracer.switches(now, CpuId(cpu), to, sleeps);
        }
    }

    /// Nobody has a core; who had it is told.
    fn lose<W: Work>(&mut self, thread: u32, cpu: u32, scene: &mut Scene<'_, W>) {
        let known = &self.threads[thread as usize];
        let ran = self.charged(known.time);
        if !known.boost {
            if let (Some(group), Some(boost)) = (known.group, self.boost.as_deref_mut()) {
                let before = self.cores[cpu as usize].ran_before;
                boost.served(group, ran - before);
            }
            self.unset_curr(thread, cpu);
        }
        let core = &mut self.cores[cpu as usize];
        core.running = NONE;
        core.leaving = false;
        core.out_at = Nanos::ZERO;
        if thread >= self.own_threads() {
            let now = scene.now();
            scene
                .work
                .left(ThreadId(thread), CpuId(cpu), now, scene.out);
        }
    }

    /// A thread that waits on a core has it.
    fn take<W: Work>(&mut self, thread: u32, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        self.trace_switch(thread, cpu, scene);
        if self.threads[thread as usize].boost {
            self.arrive(thread, cpu, now);
        } else {
            self.set_curr(thread, cpu);
        }
        // To wait is neither to run nor to be interrupted.
        let ran = self.charged(self.threads[thread as usize].time);
        let known = &mut self.threads[thread as usize];
        known.account(now);
        known.state = State::Runs;
        known.switches += 1;
        let moved = std::mem::take(&mut known.moved);
        let paid = std::mem::take(&mut known.paid);
        let stopped = known.stopped.take().filter(|_| self.costs.stop > 0);
        let core = &mut self.cores[cpu as usize];
        core.running = thread;
        // What is left of another's switch was in vain, and is over.
        core.overhead = self.costs.switch + moved;
        core.ran_before = ran;
        self.counters.switches += 1;
        self.counters.begun += 1;
        core.tick_ends = Nanos::ZERO;
        if let Some(at) = stopped {
            if !paid {
                core.overhead += self.costs.stop;
            }
            let came = |after: Nanos| {
                let tick = scene.work.leaves_at(ThreadId(thread), after);
                tick.filter(|tick| *tick <= now)
            };
            // Its handler begins now, or goes on: what stopped the vCPU may have been that very tick.
            if let Some(tick) = came(at.saturating_sub(Nanos(self.costs.tick_exit))) {
                let done = at.saturating_sub(tick);
                let left = self.costs.tick_exit - done.0;
                core.tick_ends = now.saturating_add(Nanos(core.overhead + left));
            }
            if came(at).is_some() {
                core.overhead += self.costs.missed_tick;
            }
        } else if known.boost {
            core.overhead += self.costs.switch_boost;
        }
        if known.boost {
            self.run_boost(thread, cpu, now);
        }
    }

    /// Asks a thread that has a core what it does; false: it sleeps.
    fn ask<W: Work>(&mut self, thread: u32, cpu: u32, scene: &mut Scene<'_, W>) -> bool {
        let now = scene.now();
        let next = if thread < self.own_threads() {
            self.next_softirq(cpu)
        } else {
            let before = scene.out.0.len();
            let next = scene
                .work
                .next(ThreadId(thread), CpuId(cpu), now, scene.out);
            self.touches(thread, before, scene);
            next
        };
        let slow = if thread < self.own_threads() {
            FULL_SPEED
        } else {
            scene.work.slowdown(ThreadId(thread), CpuId(cpu)).max(1)
        };
        let core = &mut self.cores[cpu as usize];
        core.ask = false;
        core.done = 0;
        core.slow = slow;
        core.left = match next {
            Next::Run(work) => work.0.min(u64::MAX - 1),
            Next::Spin => u64::MAX,
            Next::Sleep => return false,
        };
        true
    }

    /// Tells a thread's owner what it has done.
    pub(super) fn tell<W: Work>(&mut self, thread: u32, cpu: u32, scene: &mut Scene<'_, W>) {
        let core = &mut self.cores[cpu as usize];
        let done = Nanos(std::mem::take(&mut core.done));
        if thread < self.own_threads() {
            self.did_softirq(cpu, done, scene);
            return;
        }
        let (now, before) = (scene.now(), scene.out.0.len());
        scene
            .work
            .ran(ThreadId(thread), CpuId(cpu), done, now, scene.out);
        self.touches(thread, before, scene);
    }

    /// A vCPU that touches a device does so while it runs. All else that its owner wants, of which there was so much before, is done afterwards, when it may
    /// sleep, or wait for a core.
    #[inline]
    fn touches<W: Work>(&mut self, thread: u32, before: usize, scene: &mut Scene<'_, W>) {
        if scene.out.0.len() > before && self.threads[thread as usize].boost {
            self.touch(thread, before, scene);
        }
    }

    fn touch<W: Work>(&mut self, thread: u32, before: usize, scene: &mut Scene<'_, W>) {
        let mut at = before;
        while let Some(effect) = scene.out.0.get(at) {
            match *effect {
                Effect::Io { thread: by, event } if by.0 == thread && !event.arrives => {
                    scene.out.0.remove(at);
                    self.io(thread, event, scene);
                }
                _ => at += 1,
            }
        }
    }

    /// The thread that has a core goes to sleep.
    pub(super) fn block<W: Work>(&mut self, thread: u32, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        self.lose(thread, cpu, scene);
        if self.threads[thread as usize].boost {
            self.block_boost(thread, cpu, now);
        } else {
            self.dequeue(thread, Why::Sleeps, now);
        }
        let known = &mut self.threads[thread as usize];
        known.state = State::Asleep;
        known.wants = false;
        known.since = now;
    }

    /// What a thread has to do has changed.
    pub(super) fn notify<W: Work>(
        &mut self,
        thread: u32,
        from: Option<CpuId>,
        scene: &mut Scene<'_, W>,
    ) {
        let known = &mut self.threads[thread as usize];
        match known.state {
            State::Gone | State::Waits => {}
            State::Asleep if known.frozen => known.wants = true,
            State::Asleep => {
                let (cpu, told) = self.wake(thread, from.map(|cpu| cpu.0), scene.now());
                let now = scene.now();
                if let Some(tracer) = scene.out.tracer() {
                    tracer.wakes(now, from, ThreadId(thread), CpuId(cpu));
                }
                self.act(cpu, told, scene);
            }
            State::Runs => {
                let cpu = known.cpu;
                let now = scene.now();
                self.reckon(cpu, now);
                // It stays, if that gives it something to do.
                self.cores[cpu as usize].leaving = false;
                if self.cores[cpu as usize].doing != Doing::Thread {
                    self.cores[cpu as usize].ask = true;
                    return;
                }
                self.tell(thread, cpu, scene);
                if self.cores[cpu as usize].resched && !self.holds_softirqs(cpu, scene) {
                    self.cores[cpu as usize].ask = true;
                    self.schedule(cpu, scene);
                } else {
                    self.go_on(thread, cpu, scene);
                }
            }
        }
    }

    /// A thread that sleeps waits for a core from now on; which one, and how that comes to know.
    pub(super) fn wake(&mut self, thread: u32, from: Option<u32>, now: Nanos) -> (u32, Told) {
        if self.threads[thread as usize].boost {
            self.threads[thread as usize].wants = true;
            return (self.wake_boost(thread, now), Told::Interrupted);
        }
        // What no core has caused a timer has, on the core where the thread was.
        let cause = from.unwrap_or(self.threads[thread as usize].cpu);
        let cpu = self.place(thread, from, now);
        self.threads[thread as usize].wants = true;
        self.come(thread, cpu, now);
        let running = self.cores[cpu as usize].running;
        let interrupted = self.is_interrupted(cpu, cause) || self.sets_slice(cpu, cause);
        // The core is interrupted for it, unless it did this itself.
        if from != Some(cpu) && (interrupted || running == NONE) {
            self.threads[thread as usize].moved += self.costs.ipi;
            self.counters.ipis += u64::from(from.is_some());
        }
        if running != NONE {
            self.reckon(cpu, now);
            if self.threads[running as usize].boost {
                self.cores[cpu as usize].resched = true;
            } else if self.preempts(thread, running, cpu, now) {
                self.mark(cpu);
            }
        }
        let told = if from == Some(cpu) {
            Told::Itself
        } else if interrupted {
            Told::Interrupted
        } else {
            Told::Not
        };
        (cpu, told)
    }

    /// A thread comes to wait on a core, from sleep or from another.
    pub(super) fn come(&mut self, thread: u32, cpu: u32, now: Nanos) {
        let from = self.threads[thread as usize].cpu;
        self.arrive(thread, cpu, now);
        if self.threads[thread as usize].boost {
            self.come_boost(thread, cpu, now);
            return;
        }
        if self.cores[cpu as usize].running != NONE {
            self.reckon(cpu, now);
        }
        self.enqueue(thread, cpu, now);
        if from != cpu {
            self.carry_load(thread, from, cpu, now);
        }
    }

    /// A thread is on a core's side from now on, and waits.
    pub(super) fn arrive(&mut self, thread: u32, cpu: u32, now: Nanos) {
        let far = !self
            .map
            .shares_cache(self.threads[thread as usize].cpu, cpu);
        let known = &mut self.threads[thread as usize];
        known.account(now);
        known.state = State::Waits;
        if known.cpu != cpu {
            known.cpu = cpu;
            known.queue = NONE;
            // One that has never run has nothing that it could leave.
            if known.switches > 0 {
                known.migrations += 1;
                known.moved = if far {
                    self.costs.migration_far
                } else {
                    self.costs.migration
                };
                self.counters.migrations += 1;
            }
        }
    }

    /// A core looks at what has changed for it, at marks too if it comes to know.
    pub(super) fn act<W: Work>(&mut self, cpu: u32, told: Told, scene: &mut Scene<'_, W>) {
        match self.cores[cpu as usize].doing {
            Doing::Idle(_) => self.kick(cpu, scene),
            // It will, as its thread goes to sleep.
            Doing::Thread if self.cores[cpu as usize].leaving => {}
            Doing::Thread
                if (self.cores[cpu as usize].resched || told != Told::Not)
                    && self.looks(cpu, scene) =>
            {
                self.reckon(cpu, scene.now());
                if told == Told::Itself {
                    // It is out of its guest.
                    self.schedule(cpu, scene);
                } else {
                    self.stop(cpu, self.costs.stop_woken, scene);
                }
            }
            Doing::Thread => {
                self.await_exit(cpu, scene);
                self.time_slice(cpu, scene);
            }
            _ => {}
        }
    }

    /// Any core of a set: an idle one if there is one, else each in turn, as `cpumask_any_and_distribute` does.
    pub(super) fn anywhere(&mut self, allowed: &CpuSet) -> u32 {
        let idle = self.idle.intersection(allowed);
        let among = if idle.is_empty() { allowed } else { &idle };
        let found = super::map::next_from(among, self.rotor).unwrap_or(0);
        self.rotor = found + 1;
        found
    }

    /// A core's tick.
    pub(super) fn tick<W: Work>(&mut self, cpu: u32, scene: &mut Scene<'_, W>) {
        let now = scene.now();
        let core = &mut self.cores[cpu as usize];
        core.ticking = false;
        if !core.is_busy() {
            return self.tick_asleep(cpu, scene);
        }
        // What was only marked is looked at in earnest.
        core.resched |= core.lazy;
        self.reckon(cpu, now);
        self.tick_on(cpu, scene);
        self.pass(cpu, now);
        self.tick_group(cpu, now);
        self.tick_boost(cpu, scene);
        self.balance(cpu, scene);
        if self.cores[cpu as usize].doing == Doing::Thread {
            if self.looks(cpu, scene) {
                self.stop(cpu, self.costs.stop, scene);
            } else {
                self.await_exit(cpu, scene);
            }
        }
    }
}

fn lessen(first: Option<&mut crate::work::Interrupt>, by: u64) {
    if let Some(first) = first {
        first.work = first.work.saturating_sub(Nanos(by));
    }
}
