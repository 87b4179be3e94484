/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * What the vCPU scheduler and user space share, beside boost.h's own structs. The Rust side is
 * crates/ostler-boost; both assert the sizes.
 */
#ifndef OSTLER_CORE_BOOST_MAPS_H
#define OSTLER_CORE_BOOST_MAPS_H

#include "boost.h"

/* Guests, vCPU threads, cores and the groups of cores that share a queue: the most of each. */
#define BOOST_GUESTS_MAX 1024
#define BOOST_THREADS_MAX 8192
#define BOOST_CORES_MAX 1024
#define BOOST_DOMAIN_CORES_MAX 16

/*
 * Threads' places: a power of two, twice as many as there can be threads. One is in one of so many
 * in a row.
 */
#define BOOST_PLACES 16384
#define BOOST_WAYS 4

/* A place of a thread of a number, below BOOST_WAYS the how manieth. */
static __always_inline u32 boost_place(u32 tid, u32 way)
{
	return (tid + way) & (BOOST_PLACES - 1);
}

/* From an event to its vCPU running: a bin for each power of two of microseconds, and the rest. */
#define BOOST_BINS 24

/* What user space tells the scheduler, at any time but for the number of domains. */
struct boost_settings {
	struct boost_config config;
	/* One that wakes takes a core by its own right from who has had more by this, ns. */
	u64 wake_granularity_ns;
	/* Domains are numbered below this. */
	u32 domains;
	/* Between two ticks of the kernel's. */
	u32 tick_us;
};

_Static_assert(sizeof(struct boost_settings) == 64, "struct boost_settings is shared");

/* Why the scheduler has ended: the kernel's enum scx_exit_kind, and what it says; 0: it hasn't. */
struct boost_end {
	u32 kind;
	char text[124];
};

_Static_assert(sizeof(struct boost_end) == 128, "struct boost_end is shared");

enum boost_state {
	BOOST_ASLEEP,
	BOOST_WAITS,
	BOOST_RUNS,
};

/* A vCPU's thread. */
struct boost_thread {
	struct boost_vcpu vcpu;
	/* Whose it is: where in `guests`; 0 is for threads of nobody's. */
	u32 guest;
	/* The group of cores on whose scale its virtual time is. */
	u32 domain;
	/* enum boost_state, and where it waits or runs. */
	u32 state;
	u32 cpu;
	/* When it came to wait, and to its core, or was last charged there. */
	u64 waits_since;
	u64 runs_since;
	/* Its run time of all, when it was last charged. */
	u64 charged_at;
	/* When the oldest event came that it hasn't run since; 0: none. */
	u64 event_at;
	/* When the last interrupt came while it had its core; 0: none. */
	u64 met_at;
	/* When the last interrupt came as it ran, or it last came to its core with an event; 0:
	 * never. */
	u64 served_at;
	/* It was put before others for an event, and hasn't given up its core since. */
	u32 boosted;
	/* Others than before may share its cores: it is new, or was told where to run. */
	u32 moved;
	/* Of all time: run, waited, ns; put before others for events; events that were refused it.
	 */
	u64 ran_ns;
	u64 waited_ns;
	u64 boosts;
	u64 refused;
	/* The kernel's struct kvm_vcpu, once an interrupt told it; 0 before. */
	u64 kvm_vcpu;
	/* Ticks at which it was known which task the guest runs. */
	u64 tasks_seen;
	/* It works for its guest's vCPUs, and isn't one of them. */
	u32 works;
	/* Which of its guest's pools it is in, from 1 on; 0: in none. */
	u32 pool;
	/* Such a one's virtual time when its guest's account last had what changed of it. */
	u64 followed;
	/* It sleeps, as its pool knows. */
	u32 rests;
	/* It waits before those of less virtual time, or comes to its core before them. */
	u32 ahead;
	/* Its number; 0: there is none. */
	u32 tid;
	u32 spare;
};

_Static_assert(sizeof(struct boost_thread) == 200, "struct boost_thread is shared");

/* What became of a guest's events: bin n counts those that took [2^n, 2^(n+1)) us. */
struct boost_delays {
	u64 bins[BOOST_BINS];
};

_Static_assert(sizeof(struct boost_delays) == 192, "struct boost_delays is shared");

/*
 * What a guest's threads beside its vCPUs have run, and what its vCPUs owe for it; and what those
 * of them leave that sleep.
 */
struct boost_service {
	/* Of all time; and how much of that vCPUs are charged for, were let off, or owe below. */
	u64 ran_ns;
	u64 settled_ns;
	/* What those that are let in were charged, and no vCPU yet. */
	s64 owed_ns;
	/* The virtual time and the confidence of the vCPU that last had a core, and whose scale
	 * that is; 0: none had one. */
	u64 vtime;
	u32 domain;
	u32 confidence;
	/* What its vCPUs leave that sleep. */
	struct boost_pool pools[BOOST_POOLS];
};

_Static_assert(sizeof(struct boost_service) == 200, "struct boost_service is shared");

/* Cores that share a queue. */
struct boost_domain {
	/* The virtual time of whoever was last given a core by its own right. */
	u64 now;
	u32 cores;
	u32 core[BOOST_DOMAIN_CORES_MAX];
	/*
	 * Somebody who waits may have an event or a debt to pay, or less virtual time than the
	 * queue knows. If not, whoever is first there is the next.
	 */
	u32 stirred;
};

_Static_assert(sizeof(struct boost_domain) == 80, "struct boost_domain is shared");

/* A core. */
struct boost_core {
	/* Whose queue it serves first. */
	u32 domain;
	/* The vCPU thread that runs, and one that is to run next; 0: none. */
	u32 runs;
	u32 next;
	/* One that had the core when other work took it, and goes on after that; 0: none. */
	u32 held;
	/*
	 * The virtual time of the one that has the core: of one that runs less the time when it
	 * was that, so that with any later time added it is what it has by then; 0: none.
	 */
	u64 vtime;
	/* Ticks in a row that found other work here, and a vCPU behind it. */
	u32 kept;
	/* Whoever came to it before the one that is to be next was told to make room. */
	u32 told;
};

_Static_assert(sizeof(struct boost_core) == 32, "struct boost_core is shared");

#endif
