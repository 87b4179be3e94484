/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How a turn ends.
 *
 * The kernel ends turns at ticks, which may come every ten milliseconds only. So each core has a
 * timer for the end of a turn of at most half a tick. Others end at the tick that is nearest: a
 * timer is an interrupt for each turn, a softirq, and all that these stop.
 */
#ifndef OSTLER_BOOST_TURNS_H
#define OSTLER_BOOST_TURNS_H

#include "state.h"

/*
 * The end of the turn that runs on each core, and when its timer goes off. That may be sooner: a
 * turn that begins before it has, as most do where vCPUs sleep and wake all the time, leaves it as
 * it is, and it is set for the rest when it does.
 */
struct turn {
	struct bpf_timer timer;
	u64 ends_at;
	u64 fires_at;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BOOST_CORES_MAX);
	__type(key, u32);
	__type(value, struct turn);
} turns SEC(".maps");

/* Half of the time between two ticks, ns. */
static __always_inline u64 half_tick(void)
{
	return settings.tick_us * (u64)(1000 / 2);
}

/* At a tick: the next would be further from the turn's end. */
static __always_inline void end_turn(struct task_struct *p)
{
	if (config.slice_ns > half_tick() && p->scx.slice <= half_tick())
		scx_set_slice(p, 0);
}

static __always_inline void set_timer(struct turn *turn, u64 now)
{
	if (!bpf_timer_start(&turn->timer, turn->ends_at - now, BPF_F_TIMER_CPU_PIN))
		turn->fires_at = turn->ends_at;
}

static int turn_over(void *map, u32 *cpu, struct turn *turn)
{
	struct boost_core *core = core_of(*cpu);
	u64 now = scx_now();

	turn->fires_at = 0;
	if (!core || !core->runs)
		return 0;
	if (now < turn->ends_at)
		set_timer(turn, now);
	else
		scx_bpf_kick_cpu(*cpu, SCX(scx_kick_flags, SCX_KICK_PREEMPT));
	return 0;
}

/* A turn of some length begins, on the core that this runs on. */
static __always_inline void begin_turn(u32 cpu, u64 slice, u64 now)
{
	struct turn *turn;

	if (slice > half_tick())
		return;
	turn = bpf_map_lookup_elem(&turns, &cpu);
	if (!turn)
		return;
	turn->ends_at = now + slice;
	if (turn->fires_at <= now || turn->fires_at > turn->ends_at)
		set_timer(turn, now);
}

/*
 * One comes to a core where another is to be next: the core was its before other work came, and
 * isn't now. It makes room at once; but whoever comes after it has part of a turn.
 *
 * For the kernel puts some threads back into the core's own queue and not before enqueue(): those
 * that exit, and those that may not migrate, as while a BPF program runs in their context. As long
 * as anybody is there, dispatch() isn't called, which would give the core to the one that is to be
 * next. Two of them told to make room at once, again and again, would stop each other for good
 * before either got anywhere, and with them the grace periods of RCU, in whose sections they are.
 */
static __always_inline void make_room(struct boost_core *core, u32 cpu, struct task_struct *p,
				      u64 now)
{
	u64 part = config.slice_ns / 8;

	if (!core->told) {
		core->told = 1;
		scx_bpf_kick_cpu(cpu, SCX(scx_kick_flags, SCX_KICK_PREEMPT));
		return;
	}
	if (p->scx.slice > part)
		scx_set_slice(p, part);
	begin_turn(cpu, part, now);
}

#endif
