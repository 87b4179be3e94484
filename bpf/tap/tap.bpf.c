// SPDX-License-Identifier: GPL-2.0
/*
 * Request-response times on guests' taps.
 *
 * What a tap sends (egress) goes to the guest, what it receives (ingress) comes from it. A
 * request's time is noted on its way in, and the difference taken on the response's way out;
 * core/flow.h says which is which. Packets are only looked at: each hook returns TCX_NEXT.
 *
 * A guest may send whatever it likes. Each tap has a table of flows of its own, of fixed size, in
 * which the least recently used give way: a flood costs the guest that is flooded its own samples
 * and nobody else anything. Histograms are shared by all CPUs and mapped by user space: samples are
 * far rarer than packets, and reading 64 taps then costs no system call.
 */
#include "ostler_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"

char LICENSE[] SEC("license") = "GPL";

#define FLOWS_MAX 4096

struct flows {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOWS_MAX);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows_template SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, u32);
	__array(values, struct flows);
} flows_of_slot SEC(".maps") = {
    .values = {&flows_template},
};

/* Which slot of the arrays a tap has, by its ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} slot_of_tap SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tap_hist);
} hists SEC(".maps");

#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define VLAN_TAGS_MAX 2
#define IPPROTO_HOPOPTS 0
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_ROUTING 43
#define IPPROTO_DSTOPTS 60
#define IPV6_EXTENSIONS_MAX 4
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10

struct ipv4 {
	u8 version_ihl;
	u8 tos;
	__be16 total;
	__be16 id;
	__be16 fragment;
	u8 ttl;
	u8 protocol;
	__be16 check;
	u8 source[4];
	u8 dest[4];
};

struct ipv6 {
	__be32 flow;
	__be16 payload;
	u8 next;
	u8 hops;
	u8 source[16];
	u8 dest[16];
};

struct tcp {
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack;
	u8 offset;
	u8 flags;
};

struct udp {
	__be16 source;
	__be16 dest;
	__be16 len;
	__be16 check;
};

/* One packet, as far as we need it. */
struct packet {
	struct flow_key key;
	struct flow_segment seg;
	u32 payload;
	u8 flags;
};

/*
 * Fills everything but the times; `inward` packets go to the guest. Returns false for what is no
 * TCP or UDP packet, or a fragment other than the first.
 */
static __always_inline bool parse(struct __sk_buff *skb, bool inward, struct packet *p)
{
	u32 at = ETH_HLEN, end, sport, dport;
	__be16 type;
	u8 next;

	if (bpf_skb_load_bytes(skb, ETH_HLEN - 2, &type, 2))
		return false;
	for (int i = 0; i < VLAN_TAGS_MAX; i++) {
		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		if (bpf_skb_load_bytes(skb, at + 2, &type, 2))
			return false;
		at += 4;
	}

	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 ip;
		u32 header;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return false;
		header = (ip.version_ihl & 15) * 4;
		/* A later fragment, or an impossible header. */
		if ((ip.fragment & bpf_htons(0x1fff)) || header < sizeof(ip))
			return false;
		/* 0 in packets too large for the field (BIG TCP). */
		end = ip.total ? at + bpf_ntohs(ip.total) : skb->len;
		next = ip.protocol;
		p->key.version = 4;
		__builtin_memcpy(inward ? p->key.guest : p->key.peer, ip.dest, 4);
		__builtin_memcpy(inward ? p->key.peer : p->key.guest, ip.source, 4);
		at += header;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return false;
		at += sizeof(ip);
		end = ip.payload ? at + bpf_ntohs(ip.payload) : skb->len;
		next = ip.next;
		p->key.version = 6;
		__builtin_memcpy(inward ? p->key.guest : p->key.peer, ip.dest, 16);
		__builtin_memcpy(inward ? p->key.peer : p->key.guest, ip.source, 16);
		for (int i = 0; i < IPV6_EXTENSIONS_MAX; i++) {
			u8 option[2];

			if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING &&
			    next != IPPROTO_DSTOPTS)
				break;
			if (bpf_skb_load_bytes(skb, at, option, 2))
				return false;
			next = option[0];
			at += (option[1] + 1) * 8;
		}
	} else {
		return false;
	}

	p->key.protocol = next;
	if (next == IPPROTO_TCP) {
		struct tcp tcp;

		if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
			return false;
		at += (tcp.offset >> 4) * 4;
		p->flags = tcp.flags;
		p->seg.seq = bpf_ntohl(tcp.seq);
		p->seg.ack = bpf_ntohl(tcp.ack);
		p->seg.message = !!(tcp.flags & TCP_PSH);
		sport = bpf_ntohs(tcp.source);
		dport = bpf_ntohs(tcp.dest);
	} else if (next == IPPROTO_UDP) {
		struct udp udp;

		if (bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)))
			return false;
		at += sizeof(udp);
		p->seg.unordered = 1;
		p->seg.message = 1;
		sport = bpf_ntohs(udp.source);
		dport = bpf_ntohs(udp.dest);
	} else {
		return false;
	}
	p->key.guest_port = inward ? dport : sport;
	p->key.peer_port = inward ? sport : dport;
	p->payload = end > at ? end - at : 0;
	if (!p->seg.unordered)
		p->seg.end = p->seg.seq + p->payload;
	p->seg.now_ns = bpf_ktime_get_ns();
	return true;
}

static __always_inline void *flows_of(struct __sk_buff *skb, u32 *slot)
{
	u32 ifindex = skb->ifindex;
	u32 *found = bpf_map_lookup_elem(&slot_of_tap, &ifindex);

	if (!found)
		return NULL;
	*slot = *found;
	return bpf_map_lookup_elem(&flows_of_slot, slot);
}

SEC("tcx/egress")
int to_guest(struct __sk_buff *skb)
{
	struct packet p = {};
	struct flow *flow;
	void *flows;
	u32 slot;

	flows = flows_of(skb, &slot);
	if (!flows || !parse(skb, true, &p))
		return TCX_NEXT;
	if (p.flags & (TCP_SYN | TCP_FIN | TCP_RST)) {
		struct flow fresh = {};

		/* The peer connects, so the guest serves, whatever the ports are. */
		if ((p.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
			bpf_map_update_elem(flows, &p.key, &fresh, BPF_ANY);
		else if (p.flags & TCP_RST)
			bpf_map_delete_elem(flows, &p.key);
		return TCX_NEXT;
	}
	if (!p.payload)
		return TCX_NEXT;
	flow = bpf_map_lookup_elem(flows, &p.key);
	if (!flow) {
		struct flow fresh = {};

		/*
		 * A flow older than we are, or UDP. Who serves isn't known: the lower port does, by
		 * custom. Were the guest the client, its think time would be taken for its
		 * response time.
		 */
		if (p.key.guest_port >= p.key.peer_port)
			return TCX_NEXT;
		flow_request(&fresh, &p.seg);
		bpf_map_update_elem(flows, &p.key, &fresh, BPF_NOEXIST);
		return TCX_NEXT;
	}
	if (!flow->guest_asks)
		flow_request(flow, &p.seg);
	return TCX_NEXT;
}

SEC("tcx/ingress")
int from_guest(struct __sk_buff *skb)
{
	struct packet p = {};
	struct tap_hist *hist;
	struct flow *flow;
	void *flows;
	u64 took_ns;
	u32 slot, bucket;

	flows = flows_of(skb, &slot);
	if (!flows || !parse(skb, false, &p))
		return TCX_NEXT;
	if ((p.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN && p.key.guest_port < p.key.peer_port) {
		struct flow fresh = {.guest_asks = 1};

		/* The guest connects, though the ports look as if it served. */
		bpf_map_update_elem(flows, &p.key, &fresh, BPF_ANY);
		return TCX_NEXT;
	}
	if (!p.payload)
		return TCX_NEXT;
	flow = bpf_map_lookup_elem(flows, &p.key);
	if (!flow || flow->guest_asks)
		return TCX_NEXT;
	took_ns = flow_response(flow, &p.seg);
	if (!took_ns)
		return TCX_NEXT;
	hist = bpf_map_lookup_elem(&hists, &slot);
	bucket = hist_bucket(took_ns);
	if (!hist || bucket >= HIST_BUCKETS)
		return TCX_NEXT;
	__sync_fetch_and_add(&hist->counts[bucket], 1);
	/* Last: who sees this count sees the bucket too. */
	__sync_fetch_and_add(&hist->samples, 1);
	return TCX_NEXT;
}
