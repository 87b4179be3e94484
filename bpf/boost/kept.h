/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Cores that other work keeps: a program of boost.bpf.c, which includes this.
 *
 * A vCPU that work of the kernel's own scheduler takes its core from is at the head of the core's
 * own queue, and goes on after that. Mostly that is soon, and cheaper than to come to wait with all
 * others. But a process may compute for seconds, and nobody takes from a core's own queue: who is
 * in it would have nothing, or the twentieth part of a core that newer kernels keep for sched_ext,
 * while others share the other cores.
 *
 * So it is called back, to wait with all others, once ticks have found it there for a turn. Kernels
 * before 6.19 call nobody back. There it waits with all others from the first, whatever takes its
 * core: it goes on with its turn as well, if it is among the foremost when the core is free
 * (go_on()), which costs a switch more.
 */
#ifndef OSTLER_BOOST_KEPT_H
#define OSTLER_BOOST_KEPT_H

#include "state.h"

static __always_inline bool may_be_called_back(void)
{
	return bpf_ksym_exists(scx_bpf_reenqueue_local___v2___compat);
}

SEC("fentry/sched_tick")
int boost_on_tick(void *ctx)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct boost_core *core = core_of(cpu);
	u64 own = SCX(scx_dsq_id_flags, SCX_DSQ_LOCAL_ON) | cpu, kept;

	if (!core || !may_be_called_back())
		return 0;
	if (core->runs || scx_bpf_dsq_nr_queued(own) <= 0) {
		core->kept = 0;
		return 0;
	}
	kept = core->kept * (u64)settings.tick_us * 1000;
	core->kept++;
	if (kept && kept >= config.slice_ns) {
		core->kept = 0;
		scx_bpf_reenqueue_local___v2___compat();
	}
	return 0;
}

#endif
