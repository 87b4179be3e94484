// SPDX-License-Identifier: GPL-2.0
/*
 * The least that a scheduler for several cores does with sched_ext: one queue, whoever came first
 * goes first, a turn each. No accounts, no maps.
 *
 * It isn't for use. bench/boost lays it beside ours: what it takes is nearly all sched_ext's own,
 * and one that keeps accounts and still shares its cores has that to pay, too.
 */
#include "ostler_sched.h"
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

#define QUEUE 0
/* As long as ours are, in whole ticks of 4 ms. */
#define TURN_NS 4000000ULL

/*
 * An idle core, or the queue. The kernel's own choice would keep two that wake each other on a core
 * past all that wait, which costs little and shares nothing.
 */
SEC("struct_ops/least_select_cpu")
__s32 BPF_PROG(least_select_cpu, struct task_struct *p, __s32 prev_cpu, __u64 wake_flags)
{
	__s32 idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

	if (idle < 0)
		return prev_cpu;
	scx_insert(p, SCX(scx_dsq_id_flags, SCX_DSQ_LOCAL), TURN_NS, 0);
	return idle;
}

SEC("struct_ops/least_enqueue")
void BPF_PROG(least_enqueue, struct task_struct *p, __u64 enq_flags)
{
	scx_insert(p, QUEUE, TURN_NS, enq_flags);
}

SEC("struct_ops/least_dispatch")
void BPF_PROG(least_dispatch, __s32 cpu, struct task_struct *prev)
{
	scx_move_first(QUEUE);
}

SEC("struct_ops.s/least_init")
__s32 BPF_PROG(least_init)
{
	return scx_bpf_create_dsq(QUEUE, -1);
}

SEC(".struct_ops.link")
struct sched_ext_ops least_ops = {
    .select_cpu = (void *)least_select_cpu,
    .enqueue = (void *)least_enqueue,
    .dispatch = (void *)least_dispatch,
    .init = (void *)least_init,
    .flags = 8, /* SCX_OPS_SWITCH_PARTIAL */
    .timeout_ms = 5000,
    .name = "least",
};
