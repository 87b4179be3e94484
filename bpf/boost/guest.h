/* SPDX-License-Identifier: GPL-2.0 */
/* What a guest does, as far as it can be told from outside. */
#ifndef OSTLER_BOOST_GUEST_H
#define OSTLER_BOOST_GUEST_H

#include "ostler_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "boost_maps.h"

/*
 * The task that a guest runs on a vCPU, as far as it can be told from outside: its address space,
 * by the page table that the vCPU had when it last left the guest; 0: unknown. That takes no
 * knowledge of the guest's kernel. Tasks of one process are one, and a kernel thread is the process
 * whose address space it has borrowed, which is as well: it is IO's own work that is done like
 * that.
 *
 * Only AMD's processors keep it in memory. Bits that say how it is used are left out: the process's
 * identifier, and which of two tables it is where the kernel's is kept from user space.
 */
static __always_inline u64 guest_task(const struct boost_thread *thread)
{
	struct vcpu_svm *svm;

	if (!thread->kvm_vcpu || !bpf_core_type_exists(struct vcpu_svm))
		return 0;
	svm = (void *)(thread->kvm_vcpu - bpf_core_field_offset(struct vcpu_svm, vcpu));
	return BPF_CORE_READ(svm, vmcb, save.cr3) & ~0x1fffULL;
}

/*
 * Whether an interrupt waits to be taken by a vCPU, other than its own timer's: KVM makes one of
 * that only when the vCPU runs. Where the processor delivers interrupts itself, KVM says so always.
 */
static __always_inline bool interrupt_waits(const struct boost_thread *thread)
{
	struct kvm_vcpu *vcpu = (void *)thread->kvm_vcpu;

	if (!vcpu || !bpf_core_type_exists(struct kvm_lapic))
		return false;
	return BPF_CORE_READ(vcpu, arch.apic, irr_pending);
}

/*
 * Whether a vCPU's own timer has gone off that it has taken no notice of yet: that is what wakes
 * one that no event is known of.
 */
static __always_inline bool timer_waits(const struct boost_thread *thread)
{
	struct kvm_vcpu *vcpu = (void *)thread->kvm_vcpu;

	if (!vcpu || !bpf_core_field_exists(struct kvm_lapic, lapic_timer))
		return false;
	return BPF_CORE_READ(vcpu, arch.apic, lapic_timer.pending.counter) > 0;
}

#endif
