/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The few kernel types that our programs touch, written by hand.
 *
 * A vmlinux.h taken from the build machine would tie the build to that machine's kernel. With
 * preserve_access_index, libbpf relocates each field by name when the program is loaded, so only
 * the fields that we use need to be here, in any order. UAPI types (__sk_buff, map types, flags)
 * are the kernel's stable interface and are copied as they are.
 */
#ifndef OSTLER_KERNEL_H
#define OSTLER_KERNEL_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef __u16 __sum16;
typedef _Bool bool;

#define false 0
#define true 1
#define NULL ((void *)0)

/* From <linux/bpf.h>. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
};

#define BPF_F_MMAPABLE (1U << 10)

/* What a tcx program returns to let the next one decide. */
#define TCX_NEXT (-1)

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct sched_ext_entity {
	__u32 flags;
	__u64 slice;
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

struct sched_info {
	__u64 run_delay;
	__u64 last_queued;
};

struct signal_struct {
	int nr_threads;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct cpumask {
	unsigned long bits[1];
};

/* Of a cgroup with the cpu controller, among the others of its parent's. */
struct task_group {
	int idle;
	struct task_group *parent;
};

struct task_struct {
	unsigned int flags;
	unsigned int policy;
	int pid;
	int tgid;
	/* Of one byte or four, by kernel: unsigned, so that the load can be fitted. */
	unsigned int on_rq;
	int exit_state;
	__u64 start_boottime;
	struct sched_entity se;
	struct sched_ext_entity scx;
	struct task_group *sched_task_group;
	struct sched_info sched_info;
	struct signal_struct *signal;
	struct css_set *cgroups;
	const struct cpumask *cpus_ptr;
	struct cpumask cpus_mask;
	char comm[16];
};

/* Of kvm and kvm_amd. */
struct kvm_timer {
	atomic_t pending;
};

struct kvm_lapic {
	struct kvm_vcpu *vcpu;
	struct kvm_timer lapic_timer;
	void *regs;
	bool irr_pending;
};

struct kvm_vcpu_arch {
	struct kvm_lapic *apic;
};

struct kvm_vcpu {
	int vcpu_id;
	struct pid *pid;
	struct kvm_vcpu_arch arch;
};

struct kvm_vmcb_info {
	unsigned long pa;
};

struct vmcb_save_area {
	__u64 cr3;
};

struct vmcb {
	struct vmcb_save_area save;
};

struct vcpu_svm {
	struct kvm_vcpu vcpu;
	struct vmcb *vmcb;
	struct kvm_vmcb_info *current_vmcb;
};

#pragma clang attribute pop

#define PF_KTHREAD 0x00200000

/* From <linux/sched.h>. */
#define SCHED_NORMAL 0
#define SCHED_BATCH 3
#define SCHED_IDLE 5

#endif
