/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The boost layer's arithmetic, as functions that Rust can call. */
#include "boost.h"
#include "boost_maps.h"

void core_boost_point(struct boost_vcpu *vcpu, u64 task);
void core_boost_tick(const struct boost_config *config, struct boost_vcpu *vcpu, u64 task);
u32 core_boost_does_io(const struct boost_config *config, const struct boost_vcpu *vcpu);
u32 core_boost_pays(const struct boost_config *config, const struct boost_vcpu *vcpu);
u64 core_boost_room(const struct boost_config *config, const struct boost_guest *borrower,
		    const struct boost_guest *lender);
void core_boost_charge(const struct boost_config *config, struct boost_vcpu *vcpu,
		       struct boost_guest *guest, struct boost_vcpu *waits,
		       struct boost_guest *lender, u64 ran_ns, u32 boosted);
u64 core_boost_pay(const struct boost_config *config, struct boost_vcpu *vcpu,
		   struct boost_guest *guest, struct boost_vcpu *waits, struct boost_guest *paid);
s64 core_boost_allowance(const struct boost_config *config, const struct boost_vcpu *vcpu,
			 const struct boost_guest *guest, u64 least,
			 const struct boost_guest *lender);
u32 core_boost_preempts(const struct boost_config *config, const struct boost_vcpu *vcpu,
			const struct boost_guest *guest, u64 least, const struct boost_vcpu *runs,
			const struct boost_guest *runs_guest, u32 runs_boosted);
u32 core_boost_goes_on(const struct boost_config *config, const struct boost_vcpu *vcpu,
		       const struct boost_guest *guest, const struct boost_vcpu *waits,
		       const struct boost_guest *lender, u64 ran_ns, u64 event_ns);
u64 core_boost_rate(u64 vtime, u32 boosted, u32 runs);
u32 core_boost_stays(u64 rated, u64 now);
u64 core_boost_left(const struct boost_config *config, u64 vtime, u64 least);
u64 core_boost_order(const struct boost_config *config, u64 vtime, u64 now);
u32 core_boost_misplaced(const struct boost_config *config, u64 before, u64 vtime);
u64 core_boost_instalment(const struct boost_config *config, u64 late, u64 ran_ns);
u32 core_boost_place(u32 tid, u32 way);
u32 core_boost_may_borrow(const struct boost_config *config, u64 vtime, u64 now);
u64 core_boost_arrives(const struct boost_config *config, u64 vtime, u64 least);
u64 core_boost_redeem(const struct boost_config *config, struct boost_vcpu *vcpu,
		      struct boost_guest *guest, struct boost_vcpu *waits, struct boost_guest *paid,
		      u64 least, struct boost_pool *pool, u64 now);
u32 core_boost_joins(const struct boost_config *config, struct boost_pool *pools,
		     struct boost_vcpu *vcpu, u32 domain, u64 now);
void core_boost_leaves(const struct boost_config *config, struct boost_pool *pool,
		       const struct boost_vcpu *vcpu, u64 now);
void core_boost_sleeps(const struct boost_config *config, struct boost_pool *pool,
		       const struct boost_vcpu *vcpu, u64 now);
void core_boost_wakes(const struct boost_config *config, struct boost_pool *pool,
		      struct boost_vcpu *vcpu, u64 least, u64 now);
u64 core_boost_bear(const struct boost_config *config, struct boost_pool *pool,
		    struct boost_vcpu *vcpu, u64 vtime, u64 now, u64 ran_ns);

void core_boost_point(struct boost_vcpu *vcpu, u64 task)
{
	boost_point(vcpu, task);
}

void core_boost_tick(const struct boost_config *config, struct boost_vcpu *vcpu, u64 task)
{
	boost_tick(config, vcpu, task);
}

u32 core_boost_does_io(const struct boost_config *config, const struct boost_vcpu *vcpu)
{
	return boost_does_io(config, vcpu);
}

u32 core_boost_pays(const struct boost_config *config, const struct boost_vcpu *vcpu)
{
	return boost_pays(config, vcpu);
}

u64 core_boost_room(const struct boost_config *config, const struct boost_guest *borrower,
		    const struct boost_guest *lender)
{
	return boost_room(config, borrower, lender);
}

void core_boost_charge(const struct boost_config *config, struct boost_vcpu *vcpu,
		       struct boost_guest *guest, struct boost_vcpu *waits,
		       struct boost_guest *lender, u64 ran_ns, u32 boosted)
{
	boost_charge(config, vcpu, guest, waits, lender, ran_ns, boosted);
}

u64 core_boost_pay(const struct boost_config *config, struct boost_vcpu *vcpu,
		   struct boost_guest *guest, struct boost_vcpu *waits, struct boost_guest *paid)
{
	return boost_pay(config, vcpu, guest, waits, paid);
}

s64 core_boost_allowance(const struct boost_config *config, const struct boost_vcpu *vcpu,
			 const struct boost_guest *guest, u64 least,
			 const struct boost_guest *lender)
{
	return boost_allowance(config, vcpu, guest, least, lender);
}

u32 core_boost_preempts(const struct boost_config *config, const struct boost_vcpu *vcpu,
			const struct boost_guest *guest, u64 least, const struct boost_vcpu *runs,
			const struct boost_guest *runs_guest, u32 runs_boosted)
{
	return boost_preempts(config, vcpu, guest, least, runs, runs_guest, runs_boosted);
}

u32 core_boost_goes_on(const struct boost_config *config, const struct boost_vcpu *vcpu,
		       const struct boost_guest *guest, const struct boost_vcpu *waits,
		       const struct boost_guest *lender, u64 ran_ns, u64 event_ns)
{
	return boost_goes_on(config, vcpu, guest, waits, lender, ran_ns, event_ns);
}

u64 core_boost_rate(u64 vtime, u32 boosted, u32 runs)
{
	return boost_rate(vtime, boosted, runs);
}

u32 core_boost_stays(u64 rated, u64 now)
{
	return boost_stays(rated, now);
}

u32 core_boost_may_borrow(const struct boost_config *config, u64 vtime, u64 now)
{
	return boost_may_borrow(config, vtime, now);
}

u32 core_boost_place(u32 tid, u32 way)
{
	return boost_place(tid, way);
}

u64 core_boost_instalment(const struct boost_config *config, u64 late, u64 ran_ns)
{
	return boost_instalment(config, late, ran_ns);
}

u64 core_boost_left(const struct boost_config *config, u64 vtime, u64 least)
{
	return boost_left(config, vtime, least);
}

u64 core_boost_order(const struct boost_config *config, u64 vtime, u64 now)
{
	return boost_order(config, vtime, now);
}

u32 core_boost_misplaced(const struct boost_config *config, u64 before, u64 vtime)
{
	return boost_misplaced(config, before, vtime);
}

u64 core_boost_arrives(const struct boost_config *config, u64 vtime, u64 least)
{
	return boost_arrives(config, vtime, least);
}

u64 core_boost_redeem(const struct boost_config *config, struct boost_vcpu *vcpu,
		      struct boost_guest *guest, struct boost_vcpu *waits, struct boost_guest *paid,
		      u64 least, struct boost_pool *pool, u64 now)
{
	return boost_redeem(config, vcpu, guest, waits, paid, least, pool, now);
}

u32 core_boost_joins(const struct boost_config *config, struct boost_pool *pools,
		     struct boost_vcpu *vcpu, u32 domain, u64 now)
{
	return boost_joins(config, pools, vcpu, domain, now);
}

void core_boost_leaves(const struct boost_config *config, struct boost_pool *pool,
		       const struct boost_vcpu *vcpu, u64 now)
{
	boost_leaves(config, pool, vcpu, now);
}

void core_boost_sleeps(const struct boost_config *config, struct boost_pool *pool,
		       const struct boost_vcpu *vcpu, u64 now)
{
	boost_sleeps(config, pool, vcpu, now);
}

void core_boost_wakes(const struct boost_config *config, struct boost_pool *pool,
		      struct boost_vcpu *vcpu, u64 least, u64 now)
{
	boost_wakes(config, pool, vcpu, least, now);
}

u64 core_boost_bear(const struct boost_config *config, struct boost_pool *pool,
		    struct boost_vcpu *vcpu, u64 vtime, u64 now, u64 ran_ns)
{
	return boost_bear(config, pool, vcpu, vtime, now, ran_ns);
}
