/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The C that the BPF programs share, as functions that the tests can call. */
#include "abi.h"

u64 core_acct_step(u64 word, u64 now_ns, u32 event);
u32 core_acct_bucket(u64 word);
u32 core_hist_bucket(u64 ns);
u64 core_hist_lower_ns(u32 bucket);
u64 core_hist_percentile_ns(const u32 *counts, u64 total, u32 permille);
void core_flow_request(struct flow *flow, const struct flow_segment *seg);
u64 core_flow_response(struct flow *flow, const struct flow_segment *seg);

u64 core_acct_step(u64 word, u64 now_ns, u32 event)
{
	return acct_step(word, now_ns, event);
}

u32 core_acct_bucket(u64 word)
{
	return acct_bucket(word);
}

u32 core_hist_bucket(u64 ns)
{
	return hist_bucket(ns);
}

u64 core_hist_lower_ns(u32 bucket)
{
	return hist_lower_ns(bucket);
}

u64 core_hist_percentile_ns(const u32 *counts, u64 total, u32 permille)
{
	return hist_percentile_ns(counts, total, permille);
}

void core_flow_request(struct flow *flow, const struct flow_segment *seg)
{
	flow_request(flow, seg);
}

u64 core_flow_response(struct flow *flow, const struct flow_segment *seg)
{
	return flow_response(flow, seg);
}
