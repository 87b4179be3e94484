/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What threads and guests are charged.
 *
 * One lock guards all virtual times and balances. It is taken where a vCPU leaves a core or pays,
 * some hundred times a second and core, and held for some tens of instructions.
 */
#ifndef OSTLER_BOOST_ACCOUNTS_H
#define OSTLER_BOOST_ACCOUNTS_H

#include "state.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BOOST_GUESTS_MAX);
	__type(key, u32);
	__type(value, struct boost_service);
} services SEC(".maps");

/* In a section of its own, since what user space can map must not hold a lock. */
static struct bpf_spin_lock ledger SEC(".data.ledger");

/*
 * Charges a vCPU that has run for a time for what its guest's other threads have, by the lock's
 * holder: at once for its workers, which wait with it for that, and by instalments for the others.
 * It is behind its domain by no more than the limit for that, nor is more than the limit ever due:
 * what it sleeps through, as somebody floods it with packets, must not keep it from the cores for
 * as long. Returns what it was charged, ns.
 */
static __always_inline u64 charge_service(struct boost_thread *thread,
					  struct boost_service *service,
					  const struct boost_domain *domain, u64 ran)
{
	u64 late, part, most;
	s64 owed;

	if (!service || !domain)
		return 0;
	late = service->ran_ns - service->settled_ns;
	part = boost_instalment(&config, late < config.limit_ns ? late : config.limit_ns, ran);
	service->settled_ns += part;
	if (late > config.limit_ns)
		service->settled_ns += late - config.limit_ns;
	owed = service->owed_ns + (s64)part;
	service->owed_ns = 0;
	if (owed < 0) {
		/* Others have paid its workers; what it can't be given back stays owed to it. */
		if ((u64)-owed > thread->vcpu.vtime)
			service->owed_ns = owed;
		else
			thread->vcpu.vtime -= (u64)-owed;
		return 0;
	}
	most = domain->now + config.limit_ns;
	if (thread->vcpu.vtime >= most)
		return 0;
	most -= thread->vcpu.vtime;
	if ((u64)owed < most)
		most = (u64)owed;
	thread->vcpu.vtime += most;
	return most;
}

/* What was charged to a worker since its guest's account last had it, is the guest's to bear. */
static __always_inline void hand_on(struct boost_thread *thread, struct boost_service *service)
{
	service->owed_ns += (s64)(thread->vcpu.vtime - thread->followed);
	thread->followed = thread->vcpu.vtime;
}

/* A vCPU's virtual time is its guest's, for those that work for it, by the lock's holder. */
static __always_inline void lead(const struct boost_thread *thread, struct boost_service *service)
{
	service->vtime = thread->vcpu.vtime;
	service->domain = thread->domain;
	service->confidence = thread->vcpu.confidence;
}

/*
 * A worker comes to wait in a domain, by the lock's holder: where the vCPU that it works for would,
 * had that run what all workers of its guest have. `leads` is that vCPU's virtual time, on the
 * domain's scale.
 */
static __always_inline void follow(struct boost_thread *thread, struct boost_service *service,
				   u64 leads)
{
	s64 vtime = (s64)leads + service->owed_ns;

	if (!service->vtime)
		return;
	thread->vcpu.vtime = vtime > 0 ? (u64)vtime : 0;
	thread->vcpu.confidence = service->confidence;
}

/* One that sleeps leaves its guest's pool what it is due, by the lock's holder. */
static __always_inline void rest(struct boost_thread *thread, struct boost_service *service,
				 const struct boost_domain *domain)
{
	struct boost_pool *pool = boost_pool_at(service->pools, thread->pool);

	if (!pool || thread->rests)
		return;
	boost_sleeps(&config, pool, &thread->vcpu, domain->now);
	thread->rests = 1;
}

/*
 * One that has slept does so no longer, by the lock's holder. `least` is the virtual time that it
 * is compared with, of the domain where it slept.
 */
static __always_inline void rise(struct boost_thread *thread, struct boost_service *service,
				 const struct boost_domain *slept, u64 least)
{
	struct boost_pool *pool = boost_pool_at(service->pools, thread->pool);

	if (pool && thread->rests)
		boost_wakes(&config, pool, &thread->vcpu, least, slept->now);
	thread->rests = 0;
}

/* One is in its guest's pool no longer, by the lock's holder. */
static __always_inline void leave(struct boost_thread *thread, struct boost_service *service,
				  const struct boost_domain *domain)
{
	struct boost_pool *pool;

	rise(thread, service, domain, domain->now);
	pool = boost_pool_at(service->pools, thread->pool);
	if (pool)
		boost_leaves(&config, pool, &thread->vcpu, domain->now);
	thread->pool = 0;
}

/*
 * A thread is on another domain's scale from now on, where its virtual time is as told, and awake
 * in its guest's pool there, if that is told; by the lock's holder.
 */
static __always_inline void move_to(struct boost_thread *thread, struct boost_service *service,
				    const struct boost_domain *slept, u32 number,
				    const struct boost_domain *domain, u64 vtime)
{
	bool joins = service && !thread->works;

	if (joins && slept)
		leave(thread, service, slept);
	thread->vcpu.vtime = vtime;
	thread->domain = number;
	if (joins)
		thread->pool =
		    boost_joins(&config, service->pools, &thread->vcpu, number, domain->now);
}

/* A thread's account, where it is one of a guest's vCPUs; NULL else. */
static __always_inline struct boost_service *pools_of(const struct boost_thread *thread)
{
	u32 number = thread->guest;

	return number && !thread->works ? bpf_map_lookup_elem(&services, &number) : NULL;
}

/* A thread is let in where its domain is, awake or not, or is gone. */
__noinline int let_in(struct boost_thread *thread, bool in, bool asleep)
{
	struct boost_service *service;
	struct boost_domain *domain;

	if (!thread)
		return 0;
	service = pools_of(thread);
	domain = domain_of(thread->domain);
	if (!service || !domain)
		return 0;
	bpf_spin_lock(&ledger);
	leave(thread, service, domain);
	if (in)
		thread->pool = boost_joins(&config, service->pools, &thread->vcpu, thread->domain,
					   domain->now);
	if (asleep)
		rest(thread, service, domain);
	bpf_spin_unlock(&ledger);
	return 0;
}

/*
 * Charges a thread for what it has run. What its guest's other vCPUs leave, asleep, bears that
 * first; what is beyond its share then is borrowed from the one that waits, if there is one, for as
 * long as that one has waited.
 */
__noinline int settle(struct boost_thread *thread, struct boost_thread *waits, u64 ran, bool sleeps)
{
	u64 waited = 0, served = 0, all = ran, borne;
	struct boost_guest *guest, *lender;
	struct boost_pool *pool = NULL;
	struct boost_domain *domain;
	struct boost_service *service;
	u32 number;

	if (!thread)
		return 0;
	guest = guest_of(thread);
	if (!guest)
		return 0;
	thread->ran_ns += ran;
	number = thread->guest;
	service = number ? bpf_map_lookup_elem(&services, &number) : NULL;
	domain = domain_of(thread->domain);
	lender = waits ? guest_of(waits) : NULL;
	if (lender && waits->guest != thread->guest && number) {
		waited = scx_since(waits->waits_since, scx_now());
		if (waited > ran)
			waited = ran;
	}
	bpf_spin_lock(&ledger);
	if (service && domain)
		pool = boost_pool_at(service->pools, thread->pool);
	if (pool) {
		ran -= boost_bear(&config, pool, &thread->vcpu, thread->vcpu.vtime + ran,
				  domain->now, ran);
		if (waited > ran)
			waited = ran;
	}
	if (!thread->works)
		served = charge_service(thread, service, domain, all);
	if (pool && served) {
		borne = boost_bear(&config, pool, &thread->vcpu, thread->vcpu.vtime, domain->now,
				   served);
		thread->vcpu.vtime -= borne;
	}
	thread->vcpu.vtime += ran - waited;
	if (waited) {
		u64 was = waits->vcpu.vtime;

		boost_charge(&config, &thread->vcpu, guest, &waits->vcpu, lender, waited,
			     thread->boosted || boost_does_io(&config, &thread->vcpu));
		if (domain && (guest->balance_ns > 0 || waits->vcpu.vtime != was))
			domain->stirred = 1;
	}
	if (service && thread->works) {
		__sync_fetch_and_add(&service->ran_ns, all);
		service->settled_ns += all;
		hand_on(thread, service);
	} else if (service) {
		lead(thread, service);
		if (sleeps && domain)
			rest(thread, service, domain);
	}
	bpf_spin_unlock(&ledger);
	return 0;
}

/* Has the first in a queue pay the second, if it is to: a worker does IO, and so never does. */
__noinline int pay(struct boost_thread *first, struct boost_thread *second)
{
	struct boost_guest *guest, *paid;

	if (!first || !second || first->guest == second->guest || !first->guest || first->works)
		return 0;
	guest = guest_of(first);
	paid = guest_of(second);
	if (!guest || !paid)
		return 0;
	bpf_spin_lock(&ledger);
	boost_pay(&config, &first->vcpu, guest, &second->vcpu, paid);
	bpf_spin_unlock(&ledger);
	return 0;
}

/*
 * Has a vCPU that wakes pay with what it is about to lose, where `least` is the least virtual time,
 * that of a thread by its number; 0: nobody is there. A worker's is its guest's, and lost by that.
 */
__noinline int redeem(struct boost_thread *thread, u32 tid, u64 least)
{
	struct boost_service *service;
	struct boost_thread *waits;
	struct boost_guest *guest, *paid;
	struct boost_domain *domain;
	struct boost_pool *pool = NULL;

	if (!thread || !tid || !thread->guest || thread->works)
		return 0;
	guest = guest_of(thread);
	if (!guest || guest->balance_ns <= 0)
		return 0;
	waits = thread_of(tid);
	if (!waits || !waits->guest)
		return 0;
	paid = guest_of(waits);
	service = pools_of(thread);
	domain = domain_of(thread->domain);
	if (!paid || !service || !domain)
		return 0;
	bpf_spin_lock(&ledger);
	if (thread->rests)
		pool = boost_pool_at(service->pools, thread->pool);
	if (boost_redeem(&config, &thread->vcpu, guest, &waits->vcpu, paid, least, pool,
			 domain->now))
		domain->stirred = 1;
	bpf_spin_unlock(&ledger);
	return 0;
}

#endif
