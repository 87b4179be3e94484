/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a guest's other threads run: a program of boost.bpf.c, which includes this at its end.
 *
 * Above all these are its vhost workers, which move what its vCPUs send and receive. They are the
 * kernel's own scheduler's, and so go before any vCPU; nobody could have them wait. So what they
 * run is charged to their guest's vCPUs, when one of those is next charged for its own. Or a guest
 * would have more of the cores, the more IO it does.
 */
#ifndef OSTLER_BOOST_SERVICES_H
#define OSTLER_BOOST_SERVICES_H

/* <uapi/linux/sched.h> */
#define SCHED_EXT 7

/* The thread of a guest that isn't let in and has a core, by core. */
struct served {
	/* Its run time when it came. */
	u64 began;
	/* Its guest; 0: no such thread is there. */
	u32 guest;
	u32 spare;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BOOST_CORES_MAX);
	__type(key, u32);
	__type(value, struct served);
} served SEC(".maps");

SEC("tp_btf/sched_switch")
int BPF_PROG(boost_on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u32 cpu = bpf_get_smp_processor_id(), process, number;
	struct served *here = bpf_map_lookup_elem(&served, &cpu);
	struct boost_service *service;
	u32 *owner;

	if (!here)
		return 0;
	if (here->guest) {
		number = here->guest;
		here->guest = 0;
		service = bpf_map_lookup_elem(&services, &number);
		if (service)
			__sync_fetch_and_add(&service->ran_ns,
					     prev->se.sum_exec_runtime - here->began);
	}
	if (next->policy == SCHED_EXT || next->flags & PF_KTHREAD)
		return 0;
	process = next->tgid;
	owner = bpf_map_lookup_elem(&owners, &process);
	if (owner) {
		here->guest = *owner;
		here->began = next->se.sum_exec_runtime;
	}
	return 0;
}

#endif
