//! What threads and guests are charged: `bpf/boost/accounts.h`.

use ostler_boost::{Config, NOBODY, Pool, Service, instalment};

use super::{Boost, Member, Pooled, Sight};

/// What was charged to a worker since its guest's account last had it is the guest's to bear.
pub(super) fn hand_on(member: &mut Member, service: &mut Service) {
    service.owed_ns += member.vcpu.vtime as i64 - member.followed as i64;
    member.followed = member.vcpu.vtime;
}

/// A worker comes to wait where the vCPU that it works for would, had that run what all workers of its guest have. `leads` is that vCPU's virtual time, on
/// the domain's scale.
pub(super) fn follow(member: &mut Member, service: &Service, leads: u64) {
    if service.vtime == 0 {
        return;
    }
    let vtime = leads as i64 + service.owed_ns;
    member.vcpu.vtime = vtime.max(0) as u64;
    member.vcpu.confidence = service.confidence;
}

/// Charges a vCPU that has run for a time for what its guest's other threads have; no further than `most`. Returns how much.
fn charge_service(
    config: &Config,
    member: &mut Member,
    service: &mut Service,
    most: u64,
    ran: u64,
) -> u64 {
    let late = service.ran_ns - service.settled_ns;
    let part = instalment(config, late.min(config.limit_ns), ran);
    service.settled_ns += part + late.saturating_sub(config.limit_ns);
    let owed = service.owed_ns + part as i64;
    service.owed_ns = 0;
    if owed < 0 {
        if owed.unsigned_abs() > member.vcpu.vtime {
            service.owed_ns = owed;
        } else {
            member.vcpu.vtime -= owed.unsigned_abs();
        }
        return 0;
    }
    let charged = owed
        .unsigned_abs()
        .min(most.saturating_sub(member.vcpu.vtime));
    member.vcpu.vtime += charged;
    charged
}

impl Boost {
    /// What is told of a vCPU's pool, if it is in one, and its domain's virtual time.
    fn in_pool(&mut self, member: &Member) -> Option<(&mut Pool, u64)> {
        let now = self.domains[member.domain as usize].now;
        let pools = &mut self.services[member.guest as usize].pools;
        pools.at(member.pooled.number()).map(|pool| (pool, now))
    }

    /// One that sleeps leaves its guest's pool what it is due.
    pub(super) fn rest(&mut self, member: &mut Member) {
        let config = self.config;
        if !member.rests()
            && let Some((pool, now)) = self.in_pool(member)
        {
            pool.sleeps(&config, &member.vcpu, now);
            member.pooled = member.pooled.rests();
        }
    }

    /// One that has slept does so no longer. `least`: the virtual time that it is compared with, if it is another than that of the domain where it slept.
    pub(super) fn rise(&mut self, member: &mut Member, least: Option<u64>) {
        let config = self.config;
        if member.rests()
            && let Some((pool, now)) = self.in_pool(member)
        {
            pool.wakes(&config, &mut member.vcpu, least.unwrap_or(now), now);
            member.pooled = member.pooled.rises();
        }
    }

    /// One is in its guest's pool no longer.
    pub(super) fn leave(&mut self, member: &mut Member) {
        let config = self.config;
        self.rise(member, None);
        if let Some((pool, now)) = self.in_pool(member) {
            pool.leaves(&config, &member.vcpu, now);
        }
        member.pooled = Pooled::Not;
    }

    /// One that is awake is in its guest's pool where it is now.
    pub(super) fn join(&mut self, member: &mut Member) {
        if member.guest != NOBODY && !member.works {
            let now = self.domains[member.domain as usize].now;
            let pools = &mut self.services[member.guest as usize].pools;
            let number = pools.joins(&self.config, &mut member.vcpu, member.domain, now);
            if number > 0 {
                member.pooled = Pooled::Awake(number as u8);
            }
        }
    }

    /// One is on another domain's scale from now on, where its virtual time is as told.
    pub(super) fn move_to(&mut self, member: &mut Member, number: u32, vtime: u64) {
        self.leave(member);
        member.vcpu.vtime = vtime;
        member.domain = number;
        self.join(member);
    }

    /// Charges a thread for what it has run. What its guest's other vCPUs leave, asleep, bears that first; what is beyond its share then is borrowed from the one
    /// that waits.
    pub(super) fn settle(
        &mut self,
        thread: u32,
        waits: Option<u32>,
        mut ran: u64,
        sleeps: bool,
        sight: &Sight<'_>,
    ) {
        let Some(mut member) = self.member(thread).copied() else {
            return;
        };
        let guest = member.guest as usize;
        let served = member.guest != NOBODY;
        let mut waited = 0;
        let mut lender = waits.and_then(|waits| self.member(waits).copied());
        if let Some(lends) = &lender
            && lends.guest != member.guest
            && served
        {
            waited = sight.now.saturating_sub(lends.waits_since).min(ran);
        }
        let all = ran;
        let now = self.domains[member.domain as usize].now;
        if !member.works && served {
            let service = &mut self.services[guest];
            let vcpu = &mut member.vcpu;
            if let Some(pool) = service.pools.at(member.pooled.number()) {
                ran -= pool.bear(&self.config, vcpu, vcpu.vtime + ran, now, ran);
                waited = waited.min(ran);
            }
            let most = now + self.config.limit_ns;
            let charged = charge_service(&self.config, &mut member, service, most, all);
            let vcpu = &mut member.vcpu;
            if let Some(pool) = service.pools.at(member.pooled.number())
                && charged > 0
            {
                vcpu.vtime -= pool.bear(&self.config, vcpu, vcpu.vtime, now, charged);
            }
        }
        member.vcpu.vtime += ran - waited;
        if waited > 0
            && let Some(lends) = &mut lender
        {
            let boosted = member.boosted || member.vcpu.does_io(&self.config);
            let was = lends.vcpu.vtime;
            let (mine, theirs) = two(&mut self.guests, guest, lends.guest as usize);
            member.vcpu.charge(
                &self.config,
                mine,
                (&mut lends.vcpu, theirs),
                waited,
                boosted,
            );
            if self.guests[guest].balance_ns > 0 || lends.vcpu.vtime != was {
                self.domains[member.domain as usize].stirred = true;
            }
        }
        if served {
            let service = &mut self.services[guest];
            if member.works {
                service.ran_ns += all;
                service.settled_ns += all;
                hand_on(&mut member, service);
            } else {
                service.vtime = member.vcpu.vtime;
                service.domain = member.domain;
                service.confidence = member.vcpu.confidence;
                if sleeps {
                    self.rest(&mut member);
                }
            }
        }
        self.members[thread as usize] = member;
        if let (Some(waits), Some(lender)) = (waits, lender) {
            self.changes(waits, lender);
        }
    }

    /// Has the first in a queue pay the second, if it is to.
    pub(super) fn pay(&mut self, first: u32, second: u32) {
        let (Some(mut pays), Some(mut paid)) =
            (self.member(first).copied(), self.member(second).copied())
        else {
            return;
        };
        if pays.guest == paid.guest || pays.guest == NOBODY || pays.works {
            return;
        }
        let (mine, theirs) = two(&mut self.guests, pays.guest as usize, paid.guest as usize);
        pays.vcpu.pay(&self.config, mine, (&mut paid.vcpu, theirs));
        self.changes(first, pays);
        self.changes(second, paid);
    }

    /// A member that may wait is as told from now on.
    fn changes(&mut self, thread: u32, member: Member) {
        let known = &mut self.members[thread as usize];
        let was = std::mem::replace(known, member);
        if was.vcpu.vtime != member.vcpu.vtime {
            self.shows(thread);
        }
    }
}

impl Boost {
    /// Has a vCPU that wakes pay with what it is about to lose, where `least` is the least virtual time, that of `met`. A worker's is its guest's, and lost by
    /// that.
    pub(super) fn redeem(&mut self, wakes: &mut Member, met: u32, least: u64) {
        let Some(mut waits) = self.member(met).copied() else {
            return;
        };
        let owes = self.guests[wakes.guest as usize].balance_ns > 0;
        if !owes
            || wakes.works
            || [wakes.guest, waits.guest].contains(&NOBODY)
            || wakes.guest == waits.guest
        {
            return;
        }
        let (mine, theirs) = two(&mut self.guests, wakes.guest as usize, waits.guest as usize);
        let now = self.domains[wakes.domain as usize].now;
        let pools = &mut self.services[wakes.guest as usize].pools;
        let pool = match wakes.pooled {
            Pooled::Asleep(number) => pools.at(number.into()),
            _ => None,
        };
        let pool = pool.map(|pool| (pool, now));
        let waits_for = (&mut waits.vcpu, theirs);
        let paid = wakes
            .vcpu
            .redeem(&self.config, mine, waits_for, least, pool);
        if paid > 0 {
            self.domains[wakes.domain as usize].stirred = true;
        }
        self.changes(met, waits);
    }
}

/// Two of a row at once; they aren't the same.
fn two<T>(row: &mut [T], one: usize, other: usize) -> (&mut T, &mut T) {
    if one < other {
        let (left, right) = row.split_at_mut(other);
        (&mut left[one], &mut right[0])
    } else {
        let (left, right) = row.split_at_mut(one);
        (&mut right[0], &mut left[other])
    }
}
