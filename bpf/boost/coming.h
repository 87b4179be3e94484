/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How a thread comes to a domain: to wait there, or to a core of it that sleeps.
 *
 * Either way it is on that domain's scale from then on, sleeps no longer in its guest's pool, and
 * keeps of what it slept through what boost.h allows (line_up(), arrive()). One that comes to wait
 * may take a core at once, for an event or because it has had so much less than who has it
 * (victim()).
 */
#ifndef OSTLER_BOOST_COMING_H
#define OSTLER_BOOST_COMING_H

#include "accounts.h"

/* One that comes to wait. */
struct newcomer {
	/* The domain where, and whether it has slept. */
	u32 number;
	u32 wakes;
	/* What meets() tells of it; ~0: it was no use to look. Then what it is compared with. */
	u64 least;
};

/*
 * A thread comes to wait: it is on the scale of the domain where it does, sleeps no longer, and has
 * no more or less virtual time than it may have among those that it meets. A function of its own,
 * so that the verifier goes through its branches apart from those of enqueue().
 */
__noinline int line_up(struct boost_thread *thread, struct newcomer *how)
{
	struct boost_service *service = NULL;
	struct boost_domain *domain, *slept;
	u64 vtime = 0, least, leads = 0;
	u32 number, guest;
	bool from;

	if (!thread || !how)
		return 0;
	number = how->number;
	least = how->least;
	domain = domain_of(number);
	slept = domain;
	if (!domain)
		return 0;
	guest = thread->guest;
	from = thread->domain != number;
	if (guest && (thread->works || thread->rests || from))
		service = bpf_map_lookup_elem(&services, &guest);
	if (thread->works && service)
		leads = rescaled(service->vtime, service->domain, number);
	if (from) {
		slept = domain_of(thread->domain);
		vtime = rescaled(thread->vcpu.vtime, thread->domain, number);
	}
	bpf_spin_lock(&ledger);
	if (service && thread->works)
		hand_on(thread, service);
	else if (service && slept)
		rise(thread, service, slept, from || least == ~0ULL ? slept->now : least);
	if (from)
		move_to(thread, service, slept, number, domain, vtime);
	if (service && thread->works)
		follow(thread, service, leads);
	if (least == ~0ULL)
		least = domain->now;
	else if ((from || thread->moved) && thread->vcpu.vtime > least + config.slice_ns)
		thread->vcpu.vtime = least + config.slice_ns;
	if (how->wakes || from || thread->moved)
		thread->vcpu.vtime = boost_arrives(&config, thread->vcpu.vtime, least);
	thread->followed = thread->vcpu.vtime;
	bpf_spin_unlock(&ledger);
	thread->moved = 0;
	how->least = least;
	return 0;
}

/*
 * One comes to a core that sleeps: it woke, and was put there without enqueue(), or another domain
 * had no time for it. It meets nobody, as whoever waited would have that core; so it is its domain
 * that it is compared with. Or it would go before all that come later, until they have waited for
 * as long as it slept.
 */
static __always_inline void arrive(struct boost_thread *thread, u32 number)
{
	struct boost_domain *domain = domain_of(number), *slept = domain_of(thread->domain);
	struct boost_service *service = NULL;
	u64 vtime;

	if (!domain || !slept)
		return;
	if (thread->rests || domain != slept)
		service = pools_of(thread);
	vtime = rescaled(thread->vcpu.vtime, thread->domain, number);
	bpf_spin_lock(&ledger);
	if (service)
		rise(thread, service, slept, slept->now);
	if (domain != slept)
		move_to(thread, service, slept, number, domain, vtime);
	thread->vcpu.vtime = boost_arrives(&config, thread->vcpu.vtime, domain->now);
	thread->followed = thread->vcpu.vtime;
	bpf_spin_unlock(&ledger);
}

/*
 * How readily a thread takes a core from the one that has it, 0: not at all. A function of its
 * own, so that the verifier goes through it apart from the loop over cores: what it learns of
 * branches here would be carried around that, which 6.18's can't ("verifier bug: backtracking").
 */
__noinline u64 rate(struct task_struct *p __arg_trusted, struct boost_thread *thread, u32 cpu,
		    u64 least, bool event)
{
	struct boost_guest *guest, *theirs;
	struct boost_thread *runs;
	struct boost_core *core;
	u32 boosted, has;
	u64 vtime;

	if (!p || !thread)
		return 0;
	core = core_of(cpu);
	if (!core || core->next || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return 0;
	has = has_core(core);
	runs = thread_of(has);
	theirs = runs ? guest_of(runs) : NULL;
	guest = guest_of(thread);
	if (!theirs || !guest || has == p->pid)
		return 0;
	boosted = runs->boosted || boost_does_io(&config, &runs->vcpu);
	vtime = runs->vcpu.vtime;
	if (core->runs)
		vtime += scx_since(runs->runs_since, scx_now());
	if (event ? !boost_preempts(&config, &thread->vcpu, guest, least, &runs->vcpu, theirs,
				    boosted)
		  : boosted || thread->vcpu.vtime + settings.wake_granularity_ns >= vtime)
		return 0;
	return boost_rate(vtime, boosted, core->runs);
}

/*
 * Whether a core of a domain is with one that has more virtual time than this. It is asked each
 * time that anybody wakes, and the answer is nearly always no: what rate() looks at besides costs
 * many times as much.
 */
__noinline int any_ahead(u32 number, u64 vtime, u64 now)
{
	struct boost_domain *domain = domain_of(number);

	if (!domain)
		return 0;
	for (u32 i = 0; i < BOOST_DOMAIN_CORES_MAX; i++) {
		struct boost_core *core;

		if (i >= domain->cores)
			break;
		core = core_of(domain->core[i]);
		if (core && vtime < vtime_of_core(core, now))
			return 1;
	}
	return 0;
}

/*
 * The core that a thread takes from another, or -1: that where it was, if it stays there, else the
 * one that it takes most readily. `least` is what meets() tells of the thread. `event` tells why it
 * takes one: for an event, as boost.h allows, or by its own right, because it has had so much less.
 */
__noinline int victim(struct task_struct *p __arg_trusted, struct boost_thread *thread, u64 least,
		      bool event)
{
	struct boost_domain *domain;
	int best = -1, i;
	u64 best_rate;

	if (!p || !thread)
		return -1;
	domain = domain_of(thread->domain);
	if (!domain)
		return -1;
	if (!event && !any_ahead(thread->domain, thread->vcpu.vtime + settings.wake_granularity_ns,
				 scx_now()))
		return -1;
	if (least == ~0ULL)
		least = domain->now;
	best_rate = rate(p, thread, thread->cpu, least, event);
	if (best_rate)
		best = thread->cpu;
	if (boost_stays(best_rate, domain->now))
		return best;
	bpf_for(i, 0, BOOST_DOMAIN_CORES_MAX)
	{
		u64 rated;
		u32 cpu;

		if (i >= domain->cores)
			break;
		cpu = domain->core[i];
		if (cpu == thread->cpu)
			continue;
		rated = rate(p, thread, cpu, least, event);
		if (rated > best_rate) {
			best_rate = rated;
			best = cpu;
		}
	}
	return best;
}

/*
 * Has a thread that waits be the next on a core that it takes. Where other work has the core,
 * whoever that work has stopped is in turn stopped by boost_running().
 */
static __always_inline void take_core(struct boost_core *core, u32 cpu, u32 tid)
{
	core->next = tid;
	core->told = 0;
	if (core->runs)
		scx_bpf_kick_cpu(cpu, SCX(scx_kick_flags, SCX_KICK_PREEMPT));
}

/* How long a vCPU that goes before others may run. */
static __always_inline u64 stretch(const struct boost_thread *thread, u64 least)
{
	u64 longest = config.slice_ns;

	/* What it may borrow is reckoned as it runs, in dispatch(). */
	if (thread->vcpu.vtime < least + longest && least + longest - thread->vcpu.vtime < longest)
		longest = least + longest - thread->vcpu.vtime;
	return longest < config.slice_ns / 4 ? config.slice_ns / 4 : longest;
}

#endif
