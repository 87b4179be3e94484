/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The threads that are let in, by their numbers.
 *
 * They are looked up some ten times at each switch. A hash map takes more than a hundred
 * instructions for that, calls of functions among them, and the verifier makes of an array's
 * look-up a comparison and a multiplication. So threads are in an array, each in one of a few
 * places in a row, the first of which is its number modulo the array's length: as threads of a
 * process are numbered one after the other, most are in their first place. One that finds all of
 * its places taken is in a hash map, and nobody looks there while nobody is.
 */
#ifndef OSTLER_BOOST_THREADS_H
#define OSTLER_BOOST_THREADS_H

#include "ostler_kernel.h"
#include <bpf/bpf_helpers.h>
#include "boost_maps.h"

/* A place that somebody is about to take. */
#define THREAD_COMES (~0U)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BOOST_PLACES);
	__type(key, u32);
	__type(value, struct boost_thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BOOST_THREADS_MAX);
	__type(key, u32);
	__type(value, struct boost_thread);
} overflow SEC(".maps");

/* How many are in the other map. */
static u32 overflown;

/* The thread of a number in an array's place of its own, if it is there. */
static __always_inline struct boost_thread *thread_in(u32 tid, u32 way)
{
	u32 at = boost_place(tid, way);
	struct boost_thread *thread = bpf_map_lookup_elem(&threads, &at);

	return thread && thread->tid == tid ? thread : NULL;
}

/* The thread of a number, if it is let in; a function, as it is in many places of the program. */
static __noinline struct boost_thread *thread_of(u32 tid)
{
	struct boost_thread *thread = NULL;

	if (!tid)
		return NULL;
#pragma unroll
	for (u32 way = 0; way < BOOST_WAYS; way++) {
		thread = thread_in(tid, way);
		if (thread)
			return thread;
	}
	return overflown ? bpf_map_lookup_elem(&overflow, &tid) : NULL;
}

/* Lets a thread in, as told: it is nobody's before all of it is there. */
static __always_inline void put_thread(u32 tid, struct boost_thread *as)
{
#pragma unroll
	for (u32 way = 0; way < BOOST_WAYS; way++) {
		u32 at = boost_place(tid, way);
		struct boost_thread *thread = bpf_map_lookup_elem(&threads, &at);

		if (thread && !__sync_val_compare_and_swap(&thread->tid, 0, THREAD_COMES)) {
			as->tid = THREAD_COMES;
			*thread = *as;
			__sync_lock_test_and_set(&thread->tid, tid);
			return;
		}
	}
	as->tid = tid;
	if (!bpf_map_update_elem(&overflow, &tid, as, BPF_ANY))
		__sync_fetch_and_add(&overflown, 1);
}

/* A thread is let in no longer. */
static __always_inline void remove_thread(u32 tid)
{
#pragma unroll
	for (u32 way = 0; way < BOOST_WAYS; way++) {
		struct boost_thread *thread = thread_in(tid, way);

		if (thread) {
			__sync_lock_test_and_set(&thread->tid, 0);
			return;
		}
	}
	if (!bpf_map_delete_elem(&overflow, &tid))
		__sync_fetch_and_sub(&overflown, 1);
}

#endif
