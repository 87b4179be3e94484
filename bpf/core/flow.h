/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Request-response times of one flow, seen from the middle of the wire, without its contents.
 *
 * A request is the first payload toward the guest since the guest last answered. Its response is
 * the guest's first new payload that acknowledges the request's first segment. The time between the
 * two is one sample, taken once. What follows from it:
 *
 * - A request of several segments counts from its first, a response ends with its first: the time
 * to the first byte.
 * - A request that is sent again is not sampled (Karn): which of the two was answered can't be
 * told. Nor is a response sent again a new one.
 * - Pipelining: messages toward the guest that come before the answer are owed an answer of their
 *   own. As long as any is owed, a new request can't be told from them, so it is not sampled. A
 *   message ends with a segment that has PSH set (for UDP, with each datagram). The debt is
 * forgotten when the guest has been quiet for as long as its last response took, so that a request
 * sent in two writes doesn't blind us. Flows that keep the pipe full all the time (HTTP/2) are
 * therefore sampled seldom, and may be sampled too short.
 */
#ifndef OSTLER_CORE_FLOW_H
#define OSTLER_CORE_FLOW_H

#include "types.h"

/* The most messages that can be owed; beyond it, only quiet brings the flow back. */
#define FLOW_OWED_MAX 15

#define FLOW_SENT 1
#define FLOW_RESPONDED 2

struct flow {
	/* When the request was sent; 0 when none is waiting. Taken by exchange, so by one CPU only.
	 */
	u64 sent_ns;
	/* When the guest last sent payload, and how long the last sampled response took. */
	u64 responded_ns;
	u64 latency_ns;
	/* The end of the request's first segment, and of all payload toward the guest so far. */
	u32 request_end;
	u32 sent_end;
	/* The end of all payload from the guest so far. */
	u32 response_end;
	/* Messages toward the guest that still await an answer besides the one that is sampled. */
	u8 owed;
	/* Whether sent_end and response_end hold anything yet: FLOW_SENT, FLOW_RESPONDED. */
	u8 seen;
	/* Whether more segments of the request that is waiting are to come. */
	u8 request_open;
	/* Whether the guest opened the connection, so that its payload asks and does not answer. */
	u8 guest_asks;
};

_Static_assert(sizeof(struct flow) == 40, "struct flow is shared");

/* One segment or datagram with payload. For UDP: seq, end and ack are 0, and message is 1. */
struct flow_segment {
	u64 now_ns;
	u32 seq;
	u32 end;
	u32 ack;
	/* 1 for UDP, which has no order. */
	u8 unordered;
	/* Whether a message ends with it. */
	u8 message;
};

/* a >= b in sequence space. */
static __always_inline int flow_at_or_after(u32 a, u32 b)
{
	return (s32)(a - b) >= 0;
}

/* Payload toward the guest. */
static __always_inline void flow_request(struct flow *flow, const struct flow_segment *seg)
{
	u64 quiet_ns = seg->now_ns - flow->responded_ns;

	if (!seg->unordered) {
		if ((flow->seen & FLOW_SENT) && flow_at_or_after(flow->sent_end, seg->end)) {
			/* Sent again: neither it nor what it repeats can be timed. */
			flow->sent_ns = 0;
			return;
		}
		flow->sent_end = seg->end;
		flow->seen |= FLOW_SENT;
	}
	if (flow->sent_ns) {
		if (!seg->message)
			return;
		if (flow->request_open)
			flow->request_open = 0;
		else if (flow->owed < FLOW_OWED_MAX)
			flow->owed++;
		return;
	}
	if (flow->owed) {
		if (quiet_ns <= flow->latency_ns)
			return;
		flow->owed = 0;
	}
	flow->request_end = seg->end;
	flow->request_open = !seg->message;
	flow->sent_ns = seg->now_ns;
}

/* Payload from the guest. Returns the sample in nanoseconds, at least 1, or 0 when it yields none.
 */
static __always_inline u64 flow_response(struct flow *flow, const struct flow_segment *seg)
{
	u64 sent_ns, took_ns;

	if (!seg->unordered) {
		if ((flow->seen & FLOW_RESPONDED) && flow_at_or_after(flow->response_end, seg->end))
			return 0;
		flow->response_end = seg->end;
		flow->seen |= FLOW_RESPONDED;
	}
	flow->responded_ns = seg->now_ns;

	if (!flow->sent_ns) {
		if (seg->message && flow->owed)
			flow->owed--;
		return 0;
	}
	if (!seg->unordered && !flow_at_or_after(seg->ack, flow->request_end))
		return 0;

	sent_ns = __atomic_exchange_n(&flow->sent_ns, 0, __ATOMIC_RELAXED);
	if (!sent_ns)
		return 0;
	took_ns = seg->now_ns > sent_ns ? seg->now_ns - sent_ns : 1;
	flow->latency_ns = took_ns;
	return took_ns;
}

#endif
