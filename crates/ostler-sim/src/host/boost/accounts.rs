//! What threads and guests are charged: `bpf/boost/accounts.h`.

use ostler_boost::{Config, NOBODY, Pool, Service, instalment};

use super::{Boost, Domain, Member, Pooled, Sight};

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

/// A vCPU's pool, if it is in one, and its domain's virtual time.
fn in_pool<'a>(
    member: &Member,
    services: &'a mut [Service],
    domains: &[Domain],
) -> Option<(&'a mut Pool, u64)> {
    let pools = &mut services[member.guest as usize].pools;
    let pool = pools.at(member.pooled.number())?;
    Some((pool, domains[member.domain as usize].now))
}

// Members are changed where they are, as they are two cache lines.
impl Boost {
    /// One that sleeps leaves its guest's pool what it is due.
    pub(super) fn rest(&mut self, thread: u32) {
        let member = &mut self.members[thread as usize];
        if !member.rests()
            && let Some((pool, now)) = in_pool(member, &mut self.services, &self.domains)
        {
            pool.sleeps(&self.config, &member.vcpu, now);
            member.pooled = member.pooled.rests();
        }
    }

    /// One that has slept does so no longer. `least`: the virtual time that it is compared with, if it is another than that of the domain where it slept.
    pub(super) fn rise(&mut self, thread: u32, least: Option<u64>) {
        let member = &mut self.members[thread as usize];
        if member.rests()
            && let Some((pool, now)) = in_pool(member, &mut self.services, &self.domains)
        {
            pool.wakes(&self.config, &mut member.vcpu, least.unwrap_or(now), now);
            member.pooled = member.pooled.rises();
        }
    }

    /// One is in its guest's pool no longer.
    pub(super) fn leave(&mut self, thread: u32) {
        self.rise(thread, None);
        let member = &mut self.members[thread as usize];
        if let Some((pool, now)) = in_pool(member, &mut self.services, &self.domains) {
            pool.leaves(&self.config, &member.vcpu, now);
        }
        member.pooled = Pooled::Not;
    }

    /// One that is awake is in its guest's pool where it is now.
    pub(super) fn join(&mut self, thread: u32) {
        let member = &mut self.members[thread as usize];
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
    pub(super) fn move_to(&mut self, thread: u32, number: u32, vtime: u64) {
        self.leave(thread);
        let member = &mut self.members[thread as usize];
        member.vcpu.vtime = vtime;
        member.domain = number;
        self.join(thread);
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
        let Some(member) = self.member(thread) else {
            return;
        };
        let (guest, served) = (member.guest as usize, member.guest != NOBODY);
        let mut waited = 0;
        if let Some(lends) = waits.and_then(|waits| self.member(waits))
            && lends.guest != member.guest
            && served
        {
            waited = sight.now.saturating_sub(lends.waits_since).min(ran);
        }
        let all = ran;
        let now = self.domains[member.domain as usize].now;
        let member = &mut self.members[thread as usize];
        if !member.works && served {
            let service = &mut self.services[guest];
            let vcpu = &mut member.vcpu;
            if let Some(pool) = service.pools.at(member.pooled.number()) {
                ran -= pool.bear(&self.config, vcpu, vcpu.vtime + ran, now, ran);
                waited = waited.min(ran);
            }
            let most = now + self.config.limit_ns;
            let charged = charge_service(&self.config, member, service, most, all);
            let vcpu = &mut member.vcpu;
            if let Some(pool) = service.pools.at(member.pooled.number())
                && charged > 0
            {
                vcpu.vtime -= pool.bear(&self.config, vcpu, vcpu.vtime, now, charged);
            }
        }
        member.vcpu.vtime += ran - waited;
        if waited > 0
            && let Some(waits) = waits
        {
            self.borrow(thread, waits, waited);
        }
        if served {
            let member = &mut self.members[thread as usize];
            let service = &mut self.services[guest];
            if member.works {
                service.ran_ns += all;
                service.settled_ns += all;
                hand_on(member, service);
            } else {
                service.vtime = member.vcpu.vtime;
                service.domain = member.domain;
                service.confidence = member.vcpu.confidence;
                if sleeps {
                    self.rest(thread);
                }
            }
        }
    }

    /// Charges a thread for a time that it has run while another guest's waited, as far as it doesn't borrow that.
    fn borrow(&mut self, thread: u32, waits: u32, waited: u64) {
        let (member, lends) = two(&mut self.members, thread as usize, waits as usize);
        let (guest, lender) = (member.guest as usize, lends.guest as usize);
        let boosted = member.boosted || member.vcpu.does_io(&self.config);
        let was = lends.vcpu.vtime;
        let (mine, theirs) = two(&mut self.guests, guest, lender);
        let waits_for = (&mut lends.vcpu, theirs);
        member
            .vcpu
            .charge(&self.config, mine, waits_for, waited, boosted);
        let lent = lends.vcpu.vtime != was;
        if self.guests[guest].balance_ns > 0 || lent {
            self.domains[member.domain as usize].stirred = true;
        }
        if lent {
            self.shows(waits);
        }
    }

    /// Has the first in a queue pay the second, if it is to.
    pub(super) fn pay(&mut self, first: u32, second: u32) {
        let (Some(pays), Some(paid)) = (self.member(first), self.member(second)) else {
            return;
        };
        if pays.guest == paid.guest || pays.guest == NOBODY || pays.works {
            return;
        }
        let (pays, paid) = two(&mut self.members, first as usize, second as usize);
        let (mine, theirs) = two(&mut self.guests, pays.guest as usize, paid.guest as usize);
        if pays.vcpu.pay(&self.config, mine, (&mut paid.vcpu, theirs)) > 0 {
            self.shows(first);
            self.shows(second);
        }
    }

    /// Has a vCPU that wakes pay with what it is about to lose, where `least` is the least virtual time, that of `met`. A worker's is its guest's, and lost by
    /// that.
    pub(super) fn redeem(&mut self, thread: u32, met: u32, least: u64) {
        let (Some(wakes), Some(waits)) = (self.member(thread), self.member(met)) else {
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
        let (wakes, waits) = two(&mut self.members, thread as usize, met as usize);
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
            self.shows(met);
        }
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
