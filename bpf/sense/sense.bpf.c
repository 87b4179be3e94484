// SPDX-License-Identifier: GPL-2.0
/*
 * What a host's CPUs and threads did, to the nanosecond.
 *
 * The accounting itself is in core/acct.h; here are only the events that drive it. All maps are
 * arrays of fixed size that user space maps into its own memory: reading every CPU costs no system
 * call, and reading every thread of every guest costs one (read_threads).
 */
#include "ostler_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"

char LICENSE[] SEC("license") = "GPL";

/* How often a change is tried again when interrupts keep coming between. One is usual, two is rare.
 */
#define CHARGE_TRIES 8

/* How deep a cgroup is looked at, from its own level up. A guest's is four or five deep. */
#define GROUPS_MAX 12

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_acct);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct thread_slot);
} threads SEC(".maps");

extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *p) __ksym __weak;

static __always_inline struct cpu_acct *this_cpu(void)
{
	u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline void charge(struct cpu_acct *acct, u32 event)
{
	for (int i = 0; i < CHARGE_TRIES; i++) {
		u64 old = *(volatile u64 *)&acct->word;
		/* After the word, so that an interrupt between the two can't make it the older. */
		u64 now = bpf_ktime_get_ns();
		u64 new = acct_step(old, now, event);
		u32 bucket = acct_bucket(old);

		/* Not told yet whether this CPU idles (see start): the first switch tells. */
		if (!old && event != ACCT_TO_IDLE && event != ACCT_TO_TASK &&
		    event != ACCT_TO_YIELDING)
			return;
		if (__sync_val_compare_and_swap(&acct->word, old, new) != old)
			continue;
		if (!old)
			acct->started_ns = now;
		else if (bucket < ACCT_BUCKETS)
			__sync_fetch_and_add(&acct->ns[bucket], acct_since(new) - acct_since(old));
		return;
	}
}

/*
 * Which event a switch to a task is. Of the tasks that the fair scheduler has, those in a cgroup
 * with cpu.idle, or below one, yield to all outside of it.
 */
static __always_inline u32 to(struct task_struct *next)
{
	struct task_group *group = NULL;

	if (!next->pid)
		return ACCT_TO_IDLE;
	if (!bpf_core_field_exists(next->sched_task_group) || !bpf_core_field_exists(group->idle))
		return ACCT_TO_TASK;
	if (next->policy != SCHED_NORMAL && next->policy != SCHED_BATCH &&
	    next->policy != SCHED_IDLE)
		return ACCT_TO_TASK;
	group = next->sched_task_group;
	for (int i = 0; group && i < GROUPS_MAX; i++) {
		if (group->idle)
			return ACCT_TO_YIELDING;
		group = group->parent;
	}
	return ACCT_TO_TASK;
}

/* Run once on each CPU when switches are traced, so that a CPU that never switches is counted too.
 */
SEC("raw_tp/sched_switch")
int start(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct cpu_acct *acct = this_cpu();

	if (acct && !acct->word)
		charge(acct, to(task));
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct cpu_acct *acct = this_cpu();

	if (!acct)
		return 0;
	acct->switches++;
	charge(acct, to(next));
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *task, int dest)
{
	struct cpu_acct *acct = this_cpu();

	if (acct)
		__sync_fetch_and_add(&acct->migrations, 1);
	return 0;
}

/*
 * Device interrupts come by irq_handler_entry; the processor's own (timer, reschedule, function
 * call) have a pair of tracepoints each, which are attached where the architecture has them.
 */
static __always_inline int irq_entry(void)
{
	struct cpu_acct *acct = this_cpu();

	if (acct) {
		__sync_fetch_and_add(&acct->irqs, 1);
		charge(acct, ACCT_HARDIRQ_ENTRY);
	}
	return 0;
}

static __always_inline int irq_exit(void)
{
	struct cpu_acct *acct = this_cpu();

	if (acct)
		charge(acct, ACCT_HARDIRQ_EXIT);
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_entry)
{
	return irq_entry();
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_exit)
{
	return irq_exit();
}

SEC("raw_tp")
int on_vector_entry(void *ctx)
{
	return irq_entry();
}

SEC("raw_tp")
int on_vector_exit(void *ctx)
{
	return irq_exit();
}

/* ksoftirqd runs softirqs as a task of its own, which the scheduler charges and places as any
 * other. */
static __always_inline bool in_ksoftirqd(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const char *comm = task->comm;

	return (task->flags & PF_KTHREAD) && comm[0] == 'k' && comm[1] == 's' && comm[2] == 'o' &&
	       comm[3] == 'f' && comm[4] == 't' && comm[5] == 'i' && comm[6] == 'r' &&
	       comm[7] == 'q';
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry)
{
	struct cpu_acct *acct = this_cpu();

	if (acct && !in_ksoftirqd())
		charge(acct, ACCT_SOFTIRQ_ENTRY);
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit)
{
	struct cpu_acct *acct = this_cpu();

	if (acct)
		charge(acct, ACCT_SOFTIRQ_EXIT);
	return 0;
}

SEC("raw_tp")
int on_kvm_exit(void *ctx)
{
	struct cpu_acct *acct = this_cpu();

	if (acct)
		__sync_fetch_and_add(&acct->kvm_exits, 1);
	return 0;
}

/*
 * Reading is bound by cache misses, not by instructions: nobody has touched these tasks since the
 * last period. So no more is read of each than is asked for.
 */
static long read_thread(u64 index, void *ctx)
{
	const struct thread_args *args = ctx;
	u32 allowed_bytes = args->allowed_bytes;
	u32 at = index;
	struct thread_slot *slot = bpf_map_lookup_elem(&threads, &at);
	u32 mask_bytes = bpf_core_type_size(struct cpumask);
	struct task_struct *task;

	if (!slot)
		return 1;
	slot->found = 0;
	task = bpf_task_from_pid(slot->tid);
	if (!task)
		return 0;
	/* A zombie waits for its parent only: it is gone. */
	if (!task->exit_state) {
		slot->tgid = task->tgid;
		slot->start_boottime_ns = task->start_boottime;
		/* Absent from a kernel without scheduling statistics, where nobody knows. */
		if (bpf_core_field_exists(task->sched_info.run_delay)) {
			slot->queued_ns = task->sched_info.last_queued;
			slot->wait_ns = task->sched_info.run_delay;
		}
		slot->run_ns = task->se.sum_exec_runtime;
		if (slot->leader) {
			slot->threads = BPF_CORE_READ(task, signal, nr_threads);
			slot->cgroup_id = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
		}
		if (mask_bytes > allowed_bytes)
			mask_bytes = allowed_bytes;
		if (mask_bytes > sizeof(slot->allowed))
			mask_bytes = sizeof(slot->allowed);
		bpf_probe_read_kernel(slot->allowed, mask_bytes, &task->cpus_mask);
		slot->found = 1;
	}
	bpf_task_release(task);
	return 0;
}

/* Reads all threads that user space listed, in one call. */
SEC("syscall")
int read_threads(struct thread_args *args)
{
	struct thread_args own = *args;

	bpf_loop(own.count, read_thread, &own, 0);
	return 0;
}
