//! The callbacks: `bpf/boost/boost.bpf.c`, `coming.h`, `hooks.h` and `turns.h`.

use std::iter;

use ostler_boost::{Guest, NOBODY, may_borrow};
use ostler_model::{CpuId, CpuSet};

use super::queue::Head;
use super::{At, Boost, Kick, Member, Moment, Sight, accounts};
use crate::host::fair::NONE;

/// Other domains that a core without work looks into.
const STEAL_MAX: usize = 64;

/// One that would take a core from another.
struct Taker<'a> {
    thread: u32,
    member: &'a Member,
    guest: &'a Guest,
    allowed: &'a CpuSet,
    /// The least virtual time of all others.
    least: u64,
    /// It has an event; else it is by its own right.
    event: bool,
    now: u64,
}

/// Who has a core.
struct Holder<'a> {
    member: &'a Member,
    /// Up to now.
    vtime: u64,
    boosted: bool,
    /// It runs; else it waits for other work to end.
    at_once: bool,
}

impl Holder<'_> {
    /// How readily its core is taken.
    fn rate(&self) -> u64 {
        ostler_boost::rate(self.vtime, self.boosted, self.at_once)
    }

    /// The same beside others: what the C makes one number of. It is asked of every core of a domain for each that comes.
    fn order(&self) -> (bool, bool, u64) {
        (!self.boosted, self.at_once, self.vtime)
    }
}

impl Boost {
    /// Who has a core that another may take, if somebody has.
    #[inline]
    fn holder(&self, taker: &Taker<'_>, cpu: u32) -> Option<Holder<'_>> {
        let core = &self.cores[cpu as usize];
        let at_once = core.runs != NONE;
        let has = if at_once { core.runs } else { core.held };
        if core.next != NONE || has == taker.thread || !taker.allowed.contains(CpuId(cpu)) {
            return None;
        }
        let member = self.member(has)?;
        let mut vtime = member.vcpu.vtime;
        if at_once {
            vtime += taker.now - member.runs_since;
        }
        Some(Holder {
            member,
            vtime,
            boosted: member.boosted || member.vcpu.does_io(&self.config),
            at_once,
        })
    }

    /// Whether one takes a core from the one that has it.
    #[inline]
    fn takes(&self, taker: &Taker<'_>, from: &Holder<'_>) -> bool {
        let (mine, runs) = (taker.member, from.member);
        if !taker.event {
            return !from.boosted && mine.vcpu.vtime + self.wake_granularity < from.vtime;
        }
        // The C tells guests apart by where they are.
        mine.guest != runs.guest && {
            let theirs = (&runs.vcpu, &self.guests[runs.guest as usize]);
            mine.vcpu
                .preempts(&self.config, taker.guest, taker.least, theirs, from.boosted)
        }
    }

    /// The core that a thread takes from another: the one that it takes most readily.
    fn victim(&self, thread: u32, least: u64, event: bool, sight: &Sight<'_>) -> Option<u32> {
        let member = self.member(thread)?;
        let domain = &self.domains[member.domain as usize];
        let taker = Taker {
            thread,
            member,
            guest: &self.guests[member.guest as usize],
            allowed: &sight.allowed[thread as usize],
            least: if least == u64::MAX { domain.now } else { least },
            event,
            now: sight.now,
        };
        let mut best: Option<(u32, Holder<'_>)> = None;
        // One loop, so that what is asked of each core is compiled into it.
        for (at, cpu) in iter::once(&member.cpu).chain(&domain.cores).enumerate() {
            let Some(from) = self.holder(&taker, *cpu) else {
                continue;
            };
            if let Some((_, best)) = &best {
                debug_assert_eq!(best.order() < from.order(), best.rate() < from.rate());
                if best.order() >= from.order() {
                    continue;
                }
            }
            // Whether it takes it at all is the dearer question.
            if self.takes(&taker, &from) {
                if at == 0 && ostler_boost::stays(from.rate(), domain.now) {
                    return Some(*cpu);
                }
                best = Some((*cpu, from));
            }
        }
        best.map(|best| best.0)
    }

    fn take_core(&mut self, cpu: u32, thread: u32) {
        let core = &mut self.cores[cpu as usize];
        core.next = thread;
        if core.runs != NONE {
            self.kicks.push(Kick::Preempt(cpu));
        }
    }

    /// `boost_enqueue`.
    pub fn enqueue(&mut self, thread: u32, cpu: u32, wakes: bool, sight: &Sight<'_>) {
        let number = self.cores[cpu as usize].domain;
        let now = self.domains[number as usize].now;
        let Some(member) = self.member_mut(thread) else {
            return;
        };
        let guest = member.guest as usize;
        let from = (member.domain != number).then_some(member.domain);
        let (served, moved) = (member.guest != NOBODY, member.moved);
        let works = member.works && served;
        if works && wakes {
            member.note_event(sight.now);
        }
        let (vtime, has_event) = (member.vcpu.vtime, member.has_event);
        let (mut least, mut met) = (u64::MAX, NONE);
        if from.is_some() || moved || has_event || vtime + self.config.slice_ns < now {
            (least, met) = self.meets(number, cpu, thread, sight);
        }
        if wakes && from.is_none() && !moved {
            self.redeem(thread, met, least);
        }
        self.rise(
            thread,
            (from.is_none() && least < u64::MAX).then_some(least),
        );
        if works {
            let member = &mut self.members[thread as usize];
            accounts::hand_on(member, &mut self.services[guest]);
        }
        if let Some(from) = from {
            let vtime = self.members[thread as usize].vcpu.vtime;
            let vtime = self.rescaled(vtime, from, number);
            self.move_to(thread, number, vtime);
        }
        if works {
            let service = &self.services[guest];
            let leads = self.rescaled(service.vtime, service.domain, number);
            accounts::follow(&mut self.members[thread as usize], service, leads);
        }
        let member = &mut self.members[thread as usize];
        if least == u64::MAX {
            least = now;
        } else if (from.is_some() || moved) && member.vcpu.vtime > least + self.config.slice_ns {
            member.vcpu.vtime = least + self.config.slice_ns;
        }
        if wakes || from.is_some() || moved {
            member.vcpu.arrives(&self.config, least);
        }
        member.followed = member.vcpu.vtime;
        member.moved = false;
        member.at = At::Waits;
        member.cpu = cpu;
        member.waits_since = sight.now;
        let vtime = member.vcpu.vtime;
        // No event: its timer.
        let patient = !has_event && member.vcpu.does_io(&self.config);
        let mut taken = None;
        if has_event && served {
            taken = self.victim(thread, least, true, sight);
            self.note_boost(thread, taken.is_some());
        }
        if taken.is_none() && wakes && !patient {
            taken = self.victim(thread, least, false, sight);
        }
        if let Some(cpu) = taken {
            if self.cores[cpu as usize].runs != NONE {
                let slice = self.stretch(vtime, least);
                if let Some(member) = self.member_mut(thread) {
                    member.slice = slice;
                }
                self.cores[cpu as usize].local.push_front(thread);
                self.kicks.push(Kick::Preempt(cpu));
                return;
            }
            self.take_core(cpu, thread);
        }
        if let Some(member) = self.member_mut(thread) {
            member.ahead = taken.is_some();
        }
        if taken.is_some() || self.stirs(thread) {
            self.domains[number as usize].stirred = true;
        }
        self.insert(number, thread, sight);
        let allowed = &sight.allowed[thread as usize];
        if !sight.idle.is_disjoint(allowed)
            && let Some(idle) = sight.idle.intersection(allowed).first()
        {
            self.kicks.push(Kick::Idle(idle.0));
        }
    }

    fn note_boost(&mut self, thread: u32, taken: bool) {
        let Some(member) = self.member_mut(thread) else {
            return;
        };
        member.boosted |= taken;
        let told = &mut self.told[thread as usize];
        if taken {
            told.0 += 1;
        } else {
            told.1 += 1;
        }
    }

    /// How long a vCPU that goes before others may run.
    fn stretch(&self, vtime: u64, least: u64) -> u64 {
        let slice = self.config.slice_ns;
        let room = (least + slice).saturating_sub(vtime);
        if room > 0 {
            room.clamp(slice / 4, slice)
        } else {
            slice
        }
    }

    /// The virtual time of a domain goes on with whoever has a core by its own right.
    fn advance(&mut self, number: u32, vtime: u64) {
        let domain = &mut self.domains[number as usize];
        domain.now = domain.now.max(vtime);
    }

    /// Whether one that has an event goes before another whose turn it is; if so, it is boosted.
    fn goes_before(&mut self, urgent: u32, other: u32, least: u64) -> bool {
        let (Some(mine), Some(theirs)) = (self.member(urgent), self.member(other)) else {
            return false;
        };
        let boosted = theirs.boosted || theirs.vcpu.does_io(&self.config);
        let (guest, others) = (
            &self.guests[mine.guest as usize],
            &self.guests[theirs.guest as usize],
        );
        if mine.guest == theirs.guest
            || !mine
                .vcpu
                .preempts(&self.config, guest, least, (&theirs.vcpu, others), boosted)
        {
            return false;
        }
        self.note_boost(urgent, true);
        true
    }

    /// Gives the core to one of those that a look at the queue has found.
    fn choose(&mut self, number: u32, cpu: u32, head: &Head, sight: &Sight<'_>) -> bool {
        let vtime = |boost: &Boost, thread| boost.member(thread).map_or(0, |m| m.vcpu.vtime);
        let (mut first, mut second) = (head.first, head.second);
        if second != NONE && vtime(self, second) < vtime(self, first) {
            (first, second) = (second, first);
        }
        let least = self.domains[number as usize].now;
        if head.urgent != NONE
            && head.urgent != first
            && self.goes_before(head.urgent, first, least)
        {
            first = head.urgent;
        } else if second != NONE {
            self.pay(first, second);
            if vtime(self, second) < vtime(self, first) {
                first = second;
            }
        }
        self.take(number, cpu, first, sight)
    }

    /// Gives the core to whoever waits in a domain: whether there was anybody.
    fn serve(&mut self, number: u32, cpu: u32, sight: &Sight<'_>) -> bool {
        if !self.domains[number as usize].stirred {
            return self.go_on(number, cpu, sight) || self.take_first(number, cpu, sight);
        }
        let head = self.glance(number, cpu, sight);
        head.first != NONE && self.choose(number, cpu, &head, sight)
    }

    /// Whether the one that has had its turn keeps its core.
    fn keeps(&mut self, thread: u32, cpu: u32, ran: u64, head: &Head, sight: &Sight<'_>) -> bool {
        let number = self.cores[cpu as usize].domain;
        if head.first == NONE {
            self.settle(thread, None, ran, false, sight);
            self.charged(thread, ran, sight.now);
            let vtime = self.member(thread).map_or(0, |member| member.vcpu.vtime);
            self.advance(number, vtime);
            return true;
        }
        if let (Some(runs), Some(first)) = (self.member(thread), self.member(head.first))
            && runs.guest != NOBODY
            && runs.guest != first.guest
            && runs.vcpu.goes_on(
                &self.config,
                &self.guests[runs.guest as usize],
                (&first.vcpu, &self.guests[first.guest as usize]),
                ran,
                runs.event_age(sight.now),
            )
        {
            return true;
        }
        self.settle(thread, Some(head.first), ran, false, sight);
        self.charged(thread, ran, sight.now);
        if let Some(runs) = self.member_mut(thread) {
            runs.boosted = false;
        }
        let behind = |boost: &Boost| {
            let vtime = |thread| boost.member(thread).map_or(0, |member| member.vcpu.vtime);
            vtime(thread) > vtime(head.first)
        };
        if !behind(self) {
            self.pay(thread, head.first);
        } else if head.second == NONE {
            // Nobody else waits whom the one that is about to run could pay.
            self.pay(head.first, thread);
        }
        if behind(self) {
            return false;
        }
        let vtime = self.member(thread).map_or(0, |member| member.vcpu.vtime);
        self.advance(number, vtime);
        true
    }

    fn charged(&mut self, thread: u32, ran: u64, now: u64) {
        if let Some(member) = self.member_mut(thread) {
            member.charged_at += ran;
            member.runs_since = now;
        }
    }

    /// `boost_dispatch`: `prev` has had its turn and would go on; its run time is told.
    pub fn dispatch(&mut self, cpu: u32, prev: Option<(u32, u64)>, sight: &Sight<'_>) {
        let number = self.cores[cpu as usize].domain;
        let next = std::mem::replace(&mut self.cores[cpu as usize].next, NONE);
        if next != NONE && self.take_next(number, cpu, next, sight) {
            if let Some((prev, _)) = prev
                && let Some(member) = self.member_mut(prev)
            {
                member.boosted = false;
            }
            return;
        }
        let Some((prev, ran)) = prev else {
            if !self.serve(number, cpu, sight) {
                self.steal(number, cpu, sight);
            }
            return;
        };
        let uncharged = self
            .member(prev)
            .map_or(0, |member| ran.saturating_sub(member.charged_at));
        let head = self.glance(number, cpu, sight);
        if self.keeps(prev, cpu, uncharged, &head, sight) {
            let slice = self.config.slice_ns;
            if let Some(member) = self.member_mut(prev) {
                member.slice = slice;
            }
            self.begin_turn(cpu, slice, sight.now);
        } else if !head.walked || !self.choose(number, cpu, &head, sight) {
            self.serve(number, cpu, sight);
        }
    }

    /// Gives the core to the one that is to be next there.
    fn take_next(&mut self, number: u32, cpu: u32, thread: u32, sight: &Sight<'_>) -> bool {
        let Some(member) = self.member(thread).filter(|member| member.at == At::Waits) else {
            return false;
        };
        if member.ahead {
            self.take_first(number, cpu, sight)
        } else {
            self.take(number, cpu, thread, sight)
        }
    }

    fn steal(&mut self, number: u32, cpu: u32, sight: &Sight<'_>) {
        let domains = self.domains.len();
        for at in 1..STEAL_MAX.min(domains) {
            let other = (number as usize + at) % domains;
            if self.serve(other as u32, cpu, sight) {
                return;
            }
        }
    }

    /// A virtual time of one domain's scale on another's.
    fn rescaled(&self, vtime: u64, from: u32, to: u32) -> u64 {
        let now = |domain: u32| self.domains[domain as usize].now;
        (vtime + now(to)).saturating_sub(now(from))
    }

    /// One comes to a core that sleeps, without [`Boost::enqueue`] there.
    pub(super) fn arrive(&mut self, thread: u32, number: u32) {
        if self.member(thread).is_none() {
            return;
        }
        self.rise(thread, None);
        let member = &self.members[thread as usize];
        if member.domain != number {
            let vtime = self.rescaled(member.vcpu.vtime, member.domain, number);
            self.move_to(thread, number, vtime);
        }
        let now = self.domains[number as usize].now;
        let member = &mut self.members[thread as usize];
        member.vcpu.arrives(&self.config, now);
        member.followed = member.vcpu.vtime;
    }

    /// `boost_running`; the time from its event, if it had one.
    pub fn running(&mut self, thread: u32, cpu: u32, ran: u64, now: u64) -> Option<u64> {
        let core = &mut self.cores[cpu as usize];
        core.local.retain(|local| *local != thread);
        core.runs = thread;
        core.held = NONE;
        if core.next != NONE && core.next != thread {
            self.kicks.push(Kick::Over(cpu));
        }
        let number = self.cores[cpu as usize].domain;
        let member = self.member(thread)?;
        if member.at == At::Asleep || member.domain != number {
            self.arrive(thread, number);
        }
        let member = *self.member(thread)?;
        if !member.boosted && !member.ahead {
            self.advance(member.domain, member.vcpu.vtime);
        }
        let known = self.member_mut(thread)?;
        known.ahead = false;
        known.at = At::Runs;
        known.cpu = cpu;
        known.runs_since = now;
        known.charged_at = ran;
        let event = known.take_event().filter(|_| !known.works);
        if event.is_some() {
            known.served_at = Moment::at(now);
        }
        let slice = known.slice;
        self.begin_turn(cpu, slice, now);
        event.map(|event| now - event)
    }

    /// `boost_stopping`.
    pub fn stopping(&mut self, thread: u32, cpu: u32, runnable: bool, ran: u64, sight: &Sight<'_>) {
        let number = self.cores[cpu as usize].domain;
        let Some(member) = self.member(thread) else {
            return;
        };
        let now = self.domains[number as usize].now;
        let uncharged = ran.saturating_sub(member.charged_at);
        let borrows = (member.boosted || member.vcpu.does_io(&self.config))
            && may_borrow(&self.config, member.vcpu.vtime + uncharged, now);
        let held = runnable && member.slice > 0;
        let core = &mut self.cores[cpu as usize];
        core.runs = NONE;
        core.held = if held { thread } else { NONE };
        let mut waits = None;
        if borrows {
            waits = Some(self.glance(number, cpu, sight).first).filter(|first| *first != NONE);
        }
        self.settle(thread, waits, uncharged, !runnable, sight);
        if let Some(member) = self.member_mut(thread) {
            member.charged_at += uncharged;
            member.boosted = false;
            member.waits_since = sight.now;
            member.at = if runnable { At::Waits } else { At::Asleep };
        }
    }

    /// `boost_tick`, with the task that the guest runs.
    pub fn tick(&mut self, thread: u32, task: u64) {
        let config = self.config;
        if let Some(member) = self.member_mut(thread)
            && !member.works
        {
            member.vcpu.tick(&config, task);
        }
    }

    /// An event for a vCPU, or from it.
    pub fn event(&mut self, thread: u32, task: u64, device: bool, sight: &Sight<'_>) {
        let Some(member) = self.member_mut(thread) else {
            return;
        };
        member.vcpu.point(if device { task } else { 0 });
        if member.at == At::Runs {
            member.boosted = member.guest != NOBODY;
            // Nothing that it touched itself keeps it from being stopped.
            if !device {
                member.served_at = Moment::at(sight.now);
            }
            return;
        }
        let (waits, knew) = (member.at == At::Waits, member.has_event);
        member.note_event(sight.now);
        if waits && !knew {
            self.shows(thread);
        }
        let Some(member) = self.member(thread) else {
            return;
        };
        if member.at != At::Waits || member.boosted || member.guest == NOBODY {
            return;
        }
        let (number, cpu) = (member.domain, member.cpu);
        self.domains[number as usize].stirred = true;
        let core = &self.cores[cpu as usize];
        if core.held == thread && core.next == NONE {
            self.note_boost(thread, true);
            return;
        }
        let (least, _) = self.meets(number, cpu, thread, sight);
        let taken = self.victim(thread, least, true, sight);
        self.note_boost(thread, taken.is_some());
        if let Some(cpu) = taken {
            self.take_core(cpu, thread);
        }
    }

    /// What one of a guest's threads that isn't let in has run.
    pub fn served(&mut self, group: u32, ran: u64) {
        if let Some(service) = self.services.get_mut(group as usize + 1) {
            service.ran_ns += ran;
        }
    }

    fn begin_turn(&mut self, cpu: u32, slice: u64, now: u64) {
        // The tick ends it.
        if slice > self.tick / 2 {
            return;
        }
        let core = &mut self.cores[cpu as usize];
        core.turn_ends = now + slice;
        if core.turn_fires <= now || core.turn_fires > core.turn_ends {
            core.turn_fires = core.turn_ends;
            self.kicks.push(Kick::Turn(cpu, core.turn_ends));
        }
    }

    /// Whether a turn ends at this tick, as the next one would be further from its end.
    pub fn is_over(&self, thread: u32) -> bool {
        let half = self.tick / 2;
        self.config.slice_ns > half && self.slice_left(thread) <= half
    }

    /// A core's timer has gone off.
    pub fn turn_over(&mut self, cpu: u32, now: u64) {
        let core = &mut self.cores[cpu as usize];
        if core.turn_fires != now {
            return;
        }
        core.turn_fires = 0;
        if core.runs == NONE {
            return;
        }
        if now < core.turn_ends {
            core.turn_fires = core.turn_ends;
            self.kicks.push(Kick::Turn(cpu, core.turn_ends));
        } else {
            self.kicks.push(Kick::Over(cpu));
        }
    }

    /// One that has a core has run for a time, of its slice; or its slice is taken from it.
    pub fn spend(&mut self, thread: u32, ran: u64) {
        if let Some(member) = self.member_mut(thread) {
            member.slice = member.slice.saturating_sub(ran);
        }
    }

    /// What it has of its slice.
    pub fn slice_left(&self, thread: u32) -> u64 {
        self.member(thread).map_or(0, |member| member.slice)
    }

    /// A whole slice, where nobody else wants the core.
    pub fn refill(&mut self, thread: u32) {
        let slice = self.config.slice_ns;
        if let Some(member) = self.member_mut(thread) {
            member.slice = slice;
        }
    }
}
