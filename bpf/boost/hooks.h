/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The hooks in KVM that tell the scheduler who does IO: programs of boost.bpf.c, which includes
 * this at its end.
 */
#ifndef OSTLER_BOOST_HOOKS_H
#define OSTLER_BOOST_HOOKS_H

/* What the local APIC's registers hold, and which messages are interrupts (<asm/apicdef.h>). */
#define APIC_LVTT 0x320
#define APIC_DM_FIXED 0
#define APIC_DM_LOWEST 0x100
/* The vectors that Linux keeps to itself (<asm/irq_vectors.h>). */
#define SYSTEM_VECTORS 0xec
#define RESCHEDULE_VECTOR 0xfd

/*
 * An event for a vCPU. One that runs keeps its core for it; one that sleeps is about to be woken,
 * and enqueue() does the rest; one that waits takes a core now.
 */
static __always_inline void event(u32 tid, u64 kvm_vcpu)
{
	struct boost_thread *thread = thread_of(tid);
	bool device = tid == (u32)bpf_get_current_pid_tgid();
	struct task_struct *p;
	struct boost_domain *domain;
	struct boost_core *core;
	struct met met = {};
	int taken;

	if (!thread)
		return;
	if (kvm_vcpu)
		thread->kvm_vcpu = kvm_vcpu;
	/* Who touches a device does IO. Whom an interrupt finds running may have nothing to do with
	 * it. */
	boost_point(&thread->vcpu, device ? guest_task(thread) : 0);
	if (thread->state == BOOST_RUNS) {
		thread->boosted = thread->guest != 0;
		/* Nothing that it touched itself wakes it, however soon it sleeps. */
		if (!device)
			thread->met_at = thread->served_at = scx_now();
		return;
	}
	if (!thread->event_at)
		thread->event_at = scx_now();
	if (thread->state != BOOST_WAITS || thread->boosted || !thread->guest)
		return;
	domain = domain_of(thread->domain);
	if (domain)
		domain->stirred = 1;
	core = core_of(thread->cpu);
	if (core && core->held == tid && !core->next) {
		/* Other work has its core, and it goes on after that. */
		thread->boosted = 1;
		thread->boosts++;
		return;
	}
	p = bpf_task_from_pid(tid);
	if (!p)
		return;
	taken = victim(p, thread, meets(thread->domain, thread->cpu, tid, &met), true);
	bpf_task_release(p);
	core = taken < 0 ? NULL : core_of(taken);
	if (!core) {
		thread->refused++;
		return;
	}
	thread->boosted = 1;
	thread->boosts++;
	take_core(core, taken, tid);
}

/*
 * An interrupt comes to a vCPU's local APIC, in the context of whoever sends it. The guest's own
 * timer isn't IO, whatever vector its system gives it. Nor is what a vCPU sends itself, nor a
 * system vector of Linux other than that for rescheduling.
 */
SEC("fentry/__apic_accept_irq")
int BPF_PROG(boost_on_interrupt, struct kvm_lapic *apic, int delivery_mode, int vector)
{
	u32 timer = 0, tid;
	char *registers;

	if (delivery_mode != APIC_DM_FIXED && delivery_mode != APIC_DM_LOWEST)
		return 0;
	if (vector >= SYSTEM_VECTORS && vector != RESCHEDULE_VECTOR)
		return 0;
	registers = BPF_CORE_READ(apic, regs);
	bpf_probe_read_kernel(&timer, sizeof(timer), registers + APIC_LVTT);
	if ((timer & 0xff) == vector)
		return 0;
	tid = BPF_CORE_READ(apic, vcpu, pid, numbers[0].nr);
	if (tid != (u32)bpf_get_current_pid_tgid())
		event(tid, (u64)BPF_CORE_READ(apic, vcpu));
	return 0;
}

/*
 * A vCPU touches a device: its own thread does, so it runs. These are of type tp_btf: not all
 * kernels that have sched_ext let raw_tp programs call its kfuncs (6.18 doesn't).
 */
static __always_inline int on_device(void)
{
	event((u32)bpf_get_current_pid_tgid(), 0);
	return 0;
}

SEC("tp_btf/kvm_mmio")
int boost_on_mmio(void *ctx)
{
	return on_device();
}

SEC("tp_btf/kvm_fast_mmio")
int boost_on_fast_mmio(void *ctx)
{
	return on_device();
}

SEC("tp_btf/kvm_pio")
int boost_on_pio(void *ctx)
{
	return on_device();
}

/*
 * An event told by user space, for devices outside the kernel, and for tests: it says for whom, and
 * calls a function that the kernel has for nothing but that, by BPF_PROG_TEST_RUN. A program of
 * type syscall may sleep, and victim() may not.
 */
SEC("fentry/bpf_fentry_test1")
int boost_on_event(void *ctx)
{
	u32 tid = told;

	told = 0;
	if (tid)
		event(tid, 0);
	return 0;
}

#endif
