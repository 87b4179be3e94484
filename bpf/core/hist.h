/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * A log-linear histogram of times, in the manner of HdrHistogram: each power of two is divided into
 * 16 buckets of equal width, so a bucket is at most 1/16 as wide as its values are large, at any
 * scale.
 *
 * Times are counted in units of 256 ns. The first 16 buckets are one unit wide each; the last one
 * also takes everything above 17 s.
 */
#ifndef OSTLER_CORE_HIST_H
#define OSTLER_CORE_HIST_H

#include "types.h"

#define HIST_UNIT_SHIFT 8
#define HIST_SUB_SHIFT 4
#define HIST_SUB (1U << HIST_SUB_SHIFT)
/* The highest power of two told apart: 2^(25 + 1 + 8) ns are 17 s. */
#define HIST_EXP_MAX 25
#define HIST_BUCKETS (HIST_SUB + (HIST_EXP_MAX - HIST_SUB_SHIFT + 1) * HIST_SUB)

/* The position of the highest bit; 0 for 0. BPF has no instruction for it, so by halves. */
static __always_inline u32 hist_log2(u64 v)
{
	u32 r = 0;

	if (v >> 32) {
		r += 32;
		v >>= 32;
	}
	if (v >> 16) {
		r += 16;
		v >>= 16;
	}
	if (v >> 8) {
		r += 8;
		v >>= 8;
	}
	if (v >> 4) {
		r += 4;
		v >>= 4;
	}
	if (v >> 2) {
		r += 2;
		v >>= 2;
	}
	if (v >> 1)
		r += 1;
	return r;
}

/* The bucket that a time belongs to. */
static __always_inline u32 hist_bucket(u64 ns)
{
	u64 v = ns >> HIST_UNIT_SHIFT;
	u32 exp;

	if (v < HIST_SUB)
		return (u32)v;
	exp = hist_log2(v);
	if (exp > HIST_EXP_MAX)
		return HIST_BUCKETS - 1;
	return HIST_SUB + (exp - HIST_SUB_SHIFT) * HIST_SUB +
	       (u32)((v >> (exp - HIST_SUB_SHIFT)) & (HIST_SUB - 1));
}

/* The smallest time of a bucket; of HIST_BUCKETS, where the last one ends. */
static __always_inline u64 hist_lower_ns(u32 bucket)
{
	u32 exp, sub;

	if (bucket < HIST_SUB)
		return (u64)bucket << HIST_UNIT_SHIFT;
	exp = (bucket - HIST_SUB) / HIST_SUB;
	sub = (bucket - HIST_SUB) % HIST_SUB;
	return (u64)(HIST_SUB + sub) << exp << HIST_UNIT_SHIFT;
}

/*
 * The time below which `permille` thousandths of the `total` counted times lie, by linear
 * interpolation within the bucket; 0 when nothing was counted.
 */
static __always_inline u64 hist_percentile_ns(const u32 *counts, u64 total, u32 permille)
{
	/* In thousandths of a count, so that the rank needs no rounding. */
	u64 rank = total * permille;
	u64 below = 0;
	u32 last = 0;

	if (!total)
		return 0;
	for (u32 b = 0; b < HIST_BUCKETS; b++) {
		u64 here = (u64)counts[b] * 1000;

		if (!here)
			continue;
		last = b;
		if (below + here >= rank) {
			u64 low = hist_lower_ns(b);
			u64 width = hist_lower_ns(b + 1) - low;

			/* In 1024ths of the bucket: (rank - below) <= here < 2^42, width < 2^30. */
			return low + width * ((rank - below) * 1024 / here) / 1024;
		}
		below += here;
	}
	return hist_lower_ns(last + 1);
}

#endif
