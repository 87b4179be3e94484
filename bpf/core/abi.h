/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What the programs share with user space; crates/ostler-abi/src/bpf.rs says the same in Rust. */
#ifndef OSTLER_CORE_ABI_H
#define OSTLER_CORE_ABI_H

#include "acct.h"
#include "hist.h"
#include "flow.h"

/* The CPUs that an affinity can name, as ostler-model's MAX_CPUS. */
#define ABI_CPUS_MAX 1024

/* One CPU's time and events. A cache line pair each, so that CPUs don't disturb each other. */
struct cpu_acct {
	u64 word;
	u64 started_ns;
	u64 ns[ACCT_BUCKETS];
	u64 switches;
	u64 migrations;
	u64 irqs;
	u64 kvm_exits;
	u64 spare[5];
};

_Static_assert(sizeof(struct cpu_acct) == 128, "struct cpu_acct is shared");

/* A thread to be read: user space sets the first two fields, the program the rest. */
struct thread_slot {
	u32 tid;
	/* 1 to read what its process as a whole has, too: threads and cgroup_id. */
	u32 leader;
	/* 1 when there was such a thread, else 0 and nothing below holds. */
	u32 found;
	u32 tgid;
	/* Threads of its process. */
	u32 threads;
	u32 spare;
	u64 start_boottime_ns;
	u64 run_ns;
	u64 wait_ns;
	/* When it was queued if it waits for a CPU now, on the run queue's clock; wait_ns is
	 * without it. */
	u64 queued_ns;
	u64 cgroup_id;
	u64 allowed[ABI_CPUS_MAX / 64];
};

_Static_assert(sizeof(struct thread_slot) == 192, "struct thread_slot is shared");

/* The argument of the program that reads threads. */
struct thread_args {
	u32 count;
	/* Bytes of an affinity that can be other than zero on this host. */
	u32 allowed_bytes;
};

_Static_assert(sizeof(struct thread_args) == 8, "struct thread_args is shared");

/* Which flow: addresses as on the wire, IPv4 ones in the first four bytes. */
struct flow_key {
	u8 guest[16];
	u8 peer[16];
	u16 guest_port;
	u16 peer_port;
	u8 protocol;
	u8 version;
	u16 spare;
};

_Static_assert(sizeof(struct flow_key) == 40, "struct flow_key is shared");

/* The samples of one tap. */
struct tap_hist {
	u64 samples;
	u32 counts[HIST_BUCKETS];
};

_Static_assert(HIST_BUCKETS == 368, "HIST_BUCKETS is shared");
_Static_assert(sizeof(struct tap_hist) == 8 + 4 * 368, "struct tap_hist is shared");

#endif
