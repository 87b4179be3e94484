/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What sched_ext and KVM show to BPF, by hand, as in ostler_kernel.h: libbpf finds fields, members
 * of sched_ext_ops, enumerators and kfuncs by name when the program is loaded.
 *
 * sched_ext renamed its kfuncs twice: 6.12 has scx_bpf_dispatch*(), 6.13 and later have
 * scx_bpf_dsq_*(), and some got a second version since, which the kernel calls NAME___v2. libbpf
 * drops what follows the last ___ when it looks for a kfunc, hence the NAME___v2___compat. The
 * first name that the kernel has is used; what isn't there is never called, and the verifier drops
 * it.
 */
#ifndef OSTLER_SCHED_H
#define OSTLER_SCHED_H

#include "ostler_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* From <linux/sched/ext.h> and kernel/sched/ext_internal.h; numbers are of the running kernel. */
enum scx_dsq_id_flags {
	SCX_DSQ_LOCAL = 0x8000000000000002ULL,
	SCX_DSQ_LOCAL_ON = 0xc000000000000000ULL,
};

enum scx_enq_flags {
	SCX_ENQ_WAKEUP = 1ULL,
	/* select_cpu() was asked before; from 6.14 on. */
	SCX_ENQ_CPU_SELECTED = 0x400ULL,
	SCX_ENQ_HEAD = 0x10000ULL,
	SCX_ENQ_PREEMPT = 0x100000000ULL,
};

enum scx_wake_flags {
	SCX_WAKE_SYNC = 0x10,
};

enum scx_kick_flags {
	SCX_KICK_IDLE = 1,
	SCX_KICK_PREEMPT = 2,
};

enum scx_ent_flags {
	SCX_TASK_QUEUED = 1,
};

enum scx_exit_kind {
	SCX_EXIT_NONE = 0,
};

enum scx_ops_flags {
	SCX_OPS_SWITCH_PARTIAL = 8ULL,
};

/* From <linux/bpf.h>. */
struct bpf_spin_lock {
	__u32 val;
};

struct bpf_timer {
	__u64 __opaque[2];
} __attribute__((aligned(8)));

#define CLOCK_MONOTONIC 1
#define BPF_F_TIMER_CPU_PIN 2ULL

#define SCX(set, name) bpf_core_enum_value(enum set, name)

struct scx_init_task_args;
struct scx_exit_task_args;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct scx_exit_info {
	enum scx_exit_kind kind;
	__s64 exit_code;
	const char *reason;
	char *msg;
};

struct scx_bpf_dsq_insert_vtime_args {
	__u64 dsq_id;
	__u64 slice;
	__u64 vtime;
	__u64 enq_flags;
};

struct bpf_iter_scx_dsq {
	__u64 __opaque[6];
};

struct bpf_iter_num {
	__u64 __opaque[1];
};

/* Of kvm. */
struct upid {
	int nr;
};

struct pid {
	struct upid numbers[1];
};

#pragma clang attribute pop

/* Not relocated: libbpf looks for each member in the kernel's. */
struct sched_ext_ops {
	__s32 (*select_cpu)(struct task_struct *p, __s32 prev_cpu, __u64 wake_flags);
	void (*enqueue)(struct task_struct *p, __u64 enq_flags);
	void (*dispatch)(__s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, __u64 deq_flags);
	void (*set_cpumask)(struct task_struct *p, const struct cpumask *cpumask);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	__s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	__u64 flags;
	__u32 timeout_ms;
	char name[128];
};

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __weak __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __weak __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __weak __ksym;

extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, __u64 dsq_id, __u64 flags) __ksym;
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;

extern __s32 scx_bpf_create_dsq(__u64 dsq_id, __s32 node) __ksym;
extern __s32 scx_bpf_dsq_nr_queued(__u64 dsq_id) __ksym;
/* The first of a queue, without a walk; from 6.19 on. */
extern struct task_struct *scx_bpf_dsq_peek(__u64 dsq_id) __weak __ksym;
extern __s32 scx_bpf_select_cpu_dfl(struct task_struct *p, __s32 prev_cpu, __u64 wake_flags,
				    bool *is_idle) __ksym;
extern __s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, __u64 flags) __ksym;
extern __s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern void scx_bpf_kick_cpu(__s32 cpu, __u64 flags) __ksym;
extern __u32 scx_bpf_nr_cpu_ids(void) __ksym;
/* The run queue's clock, which the kernel has read already; from 6.14 on. */
extern __u64 scx_bpf_now(void) __weak __ksym;

extern __u32 bpf_cpumask_first(const struct cpumask *cpumask) __ksym;
extern bool bpf_cpumask_test_cpu(__u32 cpu, const struct cpumask *cpumask) __ksym;
extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;

/* Put a task at the end, or the head, of a queue. */
extern bool scx_bpf_dsq_insert___v2___compat(struct task_struct *p, __u64 dsq_id, __u64 slice,
					     __u64 enq_flags) __weak __ksym;
extern void scx_bpf_dsq_insert___v1(struct task_struct *p, __u64 dsq_id, __u64 slice,
				    __u64 enq_flags) __weak __ksym;
extern void scx_bpf_dispatch___old(struct task_struct *p, __u64 dsq_id, __u64 slice,
				   __u64 enq_flags) __weak __ksym;

static __always_inline void scx_insert(struct task_struct *p, __u64 dsq, __u64 slice, __u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert___v2___compat))
		scx_bpf_dsq_insert___v2___compat(p, dsq, slice, flags);
	else if (bpf_ksym_exists(scx_bpf_dsq_insert___v1))
		scx_bpf_dsq_insert___v1(p, dsq, slice, flags);
	else
		scx_bpf_dispatch___old(p, dsq, slice, flags);
}

/* Put a task into a queue by its virtual time. */
extern bool __scx_bpf_dsq_insert_vtime(struct task_struct *p,
				       struct scx_bpf_dsq_insert_vtime_args *args) __weak __ksym;
extern void scx_bpf_dsq_insert_vtime___v1(struct task_struct *p, __u64 dsq_id, __u64 slice,
					  __u64 vtime, __u64 enq_flags) __weak __ksym;
extern void scx_bpf_dispatch_vtime___old(struct task_struct *p, __u64 dsq_id, __u64 slice,
					 __u64 vtime, __u64 enq_flags) __weak __ksym;

static __always_inline void scx_insert_vtime(struct task_struct *p, __u64 dsq, __u64 slice,
					     __u64 vtime, __u64 flags)
{
	if (bpf_ksym_exists(__scx_bpf_dsq_insert_vtime)) {
		struct scx_bpf_dsq_insert_vtime_args args = {
		    .dsq_id = dsq,
		    .slice = slice,
		    .vtime = vtime,
		    .enq_flags = flags,
		};

		__scx_bpf_dsq_insert_vtime(p, &args);
	} else if (bpf_ksym_exists(scx_bpf_dsq_insert_vtime___v1)) {
		scx_bpf_dsq_insert_vtime___v1(p, dsq, slice, vtime, flags);
	} else {
		scx_bpf_dispatch_vtime___old(p, dsq, slice, vtime, flags);
	}
}

/* Take a task that a walk has come to out of its queue, to the core that dispatches. */
extern bool scx_bpf_dsq_move___v1(struct bpf_iter_scx_dsq *it, struct task_struct *p, __u64 dsq_id,
				  __u64 enq_flags) __weak __ksym;
extern bool scx_bpf_dispatch_from_dsq___old(struct bpf_iter_scx_dsq *it, struct task_struct *p,
					    __u64 dsq_id, __u64 enq_flags) __weak __ksym;

static __always_inline bool scx_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, __u64 dsq,
				     __u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move___v1))
		return scx_bpf_dsq_move___v1(it, p, dsq, flags);
	return scx_bpf_dispatch_from_dsq___old(it, p, dsq, flags);
}

/* Take the first task of a queue that may run on the core that dispatches: whether there was one.
 */
extern bool scx_bpf_dsq_move_to_local___v2___compat(__u64 dsq_id, __u64 enq_flags) __weak __ksym;
extern bool scx_bpf_dsq_move_to_local___v1(__u64 dsq_id) __weak __ksym;
extern bool scx_bpf_consume___old(__u64 dsq_id) __weak __ksym;

static __always_inline bool scx_move_first(__u64 dsq)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___compat))
		return scx_bpf_dsq_move_to_local___v2___compat(dsq, 0);
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v1))
		return scx_bpf_dsq_move_to_local___v1(dsq);
	return scx_bpf_consume___old(dsq);
}

/* Have those in this core's own queue come to enqueue() again; from 6.19 on. (Its first version,
 * for cpu_release() alone, is of no use here.) */
extern void scx_bpf_reenqueue_local___v2___compat(void) __weak __ksym;

/* How long a task may yet run. */
extern bool scx_bpf_task_set_slice(struct task_struct *p, __u64 slice) __weak __ksym;

static __always_inline void scx_set_slice(struct task_struct *p, __u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice);
	else
		p->scx.slice = slice;
}

/* Nanoseconds since some time or other: near enough the same on all cores, though one may be
 * behind. */
static __always_inline __u64 scx_now(void)
{
	return bpf_ksym_exists(scx_bpf_now) ? scx_bpf_now() : bpf_ktime_get_ns();
}

/* Since an earlier time; 0 where that was told by a core that is ahead. */
static __always_inline __u64 scx_since(__u64 then, __u64 now)
{
	return now > then ? now - then : 0;
}

#endif
