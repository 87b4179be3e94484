/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the scheduler knows: its maps, and how they are looked into.
 *
 * Nothing that a guest does makes a map grow: entries are for threads that user space has let in.
 */
#ifndef OSTLER_BOOST_STATE_H
#define OSTLER_BOOST_STATE_H

#include "ostler_sched.h"
#include "boost_maps.h"
#include "threads.h"

/* In sections of their own, each of which user space sees as a map with one value. */
struct boost_settings settings SEC(".data.settings") = {};
#define config (settings.config)

struct boost_end end SEC(".data.end") = {};

/* For whom user space tells an event. */
u32 told SEC(".data.told") = 0;

/* From a process to its guest: written by user space before its threads are let in. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BOOST_GUESTS_MAX);
	__type(key, u32);
	__type(value, u32);
} owners SEC(".maps");

/* From a thread that works for a guest to the guest: likewise. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BOOST_THREADS_MAX);
	__type(key, u32);
	__type(value, u32);
} workers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BOOST_GUESTS_MAX);
	__type(key, u32);
	__type(value, struct boost_guest);
} guests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BOOST_GUESTS_MAX);
	__type(key, u32);
	__type(value, struct boost_delays);
} delays SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BOOST_CORES_MAX);
	__type(key, u32);
	__type(value, struct boost_domain);
} domains SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BOOST_CORES_MAX);
	__type(key, u32);
	__type(value, struct boost_core);
} cores SEC(".maps");

static __always_inline struct boost_guest *guest_of(const struct boost_thread *thread)
{
	u32 number = thread->guest;

	return bpf_map_lookup_elem(&guests, &number);
}

static __always_inline struct boost_core *core_of(u32 cpu)
{
	return bpf_map_lookup_elem(&cores, &cpu);
}

static __always_inline struct boost_domain *domain_of(u32 number)
{
	return bpf_map_lookup_elem(&domains, &number);
}

/*
 * A virtual time of one domain's scale on another's. It may be from before the other's beginning,
 * when most of it was slept through.
 */
static __always_inline u64 rescaled(u64 vtime, u32 from, u32 to)
{
	struct boost_domain *here, *there;
	u64 on_both;

	if (from == to)
		return vtime;
	here = domain_of(to);
	there = domain_of(from);
	if (!here || !there)
		return vtime;
	on_both = vtime + here->now;
	return on_both > there->now ? on_both - there->now : 0;
}

/* The vCPU that a core is with, though other work may have it right now; 0: none. */
static __always_inline u32 has_core(const struct boost_core *core)
{
	return core->runs ? core->runs : core->held;
}

/* The virtual time of the vCPU that a core is with, by now, as far as it is known there. */
static __always_inline u64 vtime_of_core(const struct boost_core *core, u64 now)
{
	return core->runs ? core->vtime + now : core->vtime;
}

/* How long a task's run is that it hasn't been charged for. */
static __always_inline u64 uncharged(const struct task_struct *p, const struct boost_thread *thread)
{
	u64 now = p->se.sum_exec_runtime;

	return now > thread->charged_at ? now - thread->charged_at : 0;
}

/*
 * A task comes to its core. What the kernel has counted of it since it was stopped is charged as it
 * is next: one that sleeps is told of as stopped first, and who follows it is looked for in its
 * time, which is a twentieth of all that one has that is woken for each packet. A turn and more it
 * has run elsewhere, under another scheduler.
 */
static __always_inline void begin_from(const struct task_struct *p, struct boost_thread *thread)
{
	if (uncharged(p, thread) > config.slice_ns)
		thread->charged_at = p->se.sum_exec_runtime;
}

#endif
