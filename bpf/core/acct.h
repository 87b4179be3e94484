/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Where a CPU's time goes: idle, a task, one that yields to all others, a softirq or a hard
 * interrupt.
 *
 * Each CPU has one word: the time since which its present state holds, in nanoseconds, shifted left
 * by four, and the state in the low four bits. An event (a switch, an interrupt's entry or exit,
 * ...) makes a new word from the old one; the time between the two is charged to the old state's
 * bucket.
 *
 * Time and state share a word so that both change at once: the caller replaces it by
 * compare-and-swap, so an interrupt that comes between reading and replacing makes the caller try
 * again, and no span of time is ever charged twice or lost. Hence also the check that a reader on
 * another CPU uses: when it is not in the middle of a change,
 *
 *	started + idle + task + yielding + softirq + hardirq == since
 *
 * The word overflows after 36 years of uptime.
 */
#ifndef OSTLER_CORE_ACCT_H
#define OSTLER_CORE_ACCT_H

#include "types.h"

/* The state bits. A hard interrupt may come on top of a softirq, and both on top of a task or idle.
 */
#define ACCT_TASK 1ULL
#define ACCT_SOFTIRQ 2ULL
#define ACCT_HARDIRQ 4ULL
/* With ACCT_TASK: the task's cgroup is idle for the scheduler, so it makes nobody else wait. */
#define ACCT_YIELDS 8ULL
#define ACCT_STATE_MASK 15ULL
#define ACCT_STATE_BITS 4

enum acct_bucket {
	ACCT_NS_IDLE,
	ACCT_NS_TASK,
	ACCT_NS_SOFTIRQ,
	ACCT_NS_HARDIRQ,
	ACCT_NS_YIELDING,
	ACCT_BUCKETS,
};

enum acct_event {
	/* The CPU switches to the idle task. */
	ACCT_TO_IDLE,
	/* The CPU switches to a task that yields to nobody. */
	ACCT_TO_TASK,
	ACCT_SOFTIRQ_ENTRY,
	ACCT_SOFTIRQ_EXIT,
	ACCT_HARDIRQ_ENTRY,
	ACCT_HARDIRQ_EXIT,
	/* The CPU switches to a task that yields to all others. */
	ACCT_TO_YIELDING,
};

static __always_inline u64 acct_since(u64 word)
{
	return word >> ACCT_STATE_BITS;
}

/* The bucket that time in this state belongs to: the innermost context has it. */
static __always_inline u32 acct_bucket(u64 word)
{
	if (word & ACCT_HARDIRQ)
		return ACCT_NS_HARDIRQ;
	if (word & ACCT_SOFTIRQ)
		return ACCT_NS_SOFTIRQ;
	if (word & ACCT_TASK)
		return word & ACCT_YIELDS ? ACCT_NS_YIELDING : ACCT_NS_TASK;
	return ACCT_NS_IDLE;
}

/* The word after an event. Time never runs backwards: a clock that does is held. */
static __always_inline u64 acct_step(u64 word, u64 now_ns, u32 event)
{
	u64 since = acct_since(word);
	u64 state = word & ACCT_STATE_MASK;

	if (now_ns > since)
		since = now_ns;

	switch (event) {
	/*
	 * No switch happens inside an interrupt, so whatever exit was missed (a program attached
	 * between an entry and its exit) is forgotten here.
	 */
	case ACCT_TO_IDLE:
		state = 0;
		break;
	case ACCT_TO_TASK:
		state = ACCT_TASK;
		break;
	case ACCT_TO_YIELDING:
		state = ACCT_TASK | ACCT_YIELDS;
		break;
	case ACCT_SOFTIRQ_ENTRY:
		state |= ACCT_SOFTIRQ;
		break;
	case ACCT_SOFTIRQ_EXIT:
		state &= ~ACCT_SOFTIRQ;
		break;
	case ACCT_HARDIRQ_ENTRY:
		state |= ACCT_HARDIRQ;
		break;
	case ACCT_HARDIRQ_EXIT:
		state &= ~ACCT_HARDIRQ;
		break;
	}
	return since << ACCT_STATE_BITS | state;
}

#endif
