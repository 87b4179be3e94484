// SPDX-License-Identifier: GPL-2.0
/*
 * A scheduler for vCPUs (sched_ext), and the hooks in KVM that tell it who does IO.
 *
 * Only threads whose policy is SCHED_EXT are scheduled here (SCX_OPS_SWITCH_PARTIAL): user space
 * gives it to the vCPU threads of guests that take part. All else stays with the kernel's own
 * scheduler, which goes before: softirqs and the host's services are never held up by a vCPU.
 *
 * Where vhost workers share cores with vCPUs, user space lets them in too. A worker has the virtual
 * time of its guest, whose vCPUs are charged for it, and that it is woken is an event. So it runs
 * at once while its guest has time coming to it, and waits with its guest's vCPUs when not. Then
 * packets gather, and it and the vCPU handle many at a time. Were it to go before everybody, a
 * guest at its share's end would spend that on being interrupted for each packet.
 *
 * Cores are in domains, a few that share memory close by, and each domain has one queue. Virtual
 * times are on a domain's scale, so that a vCPU is as well off on one of its cores as on another,
 * and nothing has to be balanced between them. A core whose domain has nothing to do takes what it
 * may from others.
 *
 * Where vCPUs may run on some of a domain's cores only, those on a crowded core fall behind those
 * on a quiet one, and rightly so: whoever may run on both goes to the quiet one. But then one that
 * wakes, or is moved, must be compared with those that it meets, and not with the domain's
 * foremost; or it would have to wait for all others on its core to come as far as that (meets()).
 *
 * Work of the kernel's own scheduler that takes a core, as the vhost worker does that brings a
 * guest's event, leaves the vCPU there at the head of the core's own queue: the kernel has it go on
 * afterwards without asking anybody. One that takes such a core for an event is noted as the next
 * there, and the other is stopped as soon as it goes on. Where that work goes on for longer than a
 * turn, the vCPU comes to wait with all others (kept.h).
 */
#include "ostler_sched.h"
#include <bpf/bpf_tracing.h>
#include "boost_maps.h"
#include "guest.h"
#include "state.h"
#include "queue.h"
#include "accounts.h"
#include "coming.h"
#include "turns.h"
#include "kept.h"

char LICENSE[] SEC("license") = "GPL";

/* Other domains that a core without work looks into. */
#define STEAL_MAX 64

SEC("struct_ops/boost_select_cpu")
s32 BPF_PROG(boost_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct boost_core *wakers = core_of(bpf_get_smp_processor_id());
	bool idle = false;
	s32 cpu;

	/*
	 * A waker that is about to sleep has its core handed on past the queue: fine, if nobody
	 * waits there. Or two that wake each other would keep all others from it for good.
	 */
	if (wake_flags & SCX(scx_wake_flags, SCX_WAKE_SYNC) &&
	    (!wakers || scx_bpf_dsq_nr_queued(wakers->domain)))
		wake_flags &= ~(u64)SCX(scx_wake_flags, SCX_WAKE_SYNC);
	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
	if (idle)
		scx_insert(p, SCX(scx_dsq_id_flags, SCX_DSQ_LOCAL), config.slice_ns, 0);
	return cpu;
}

SEC("struct_ops/boost_enqueue")
void BPF_PROG(boost_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct boost_thread *thread = thread_of(p->pid);
	bool wakes = enq_flags & SCX(scx_enq_flags, SCX_ENQ_WAKEUP);
	u32 cpu = scx_bpf_task_cpu(p), number = 0;
	struct boost_core *core = core_of(cpu);
	u64 vtime = 0, slice = config.slice_ns;
	struct boost_domain *domain;
	s32 taken = -1;

	if (core)
		number = core->domain;
	domain = domain_of(number);
	if (thread && domain) {
		struct newcomer how = {
		    .number = number,
		    .wakes = wakes,
		    .least = ~0ULL,
		};
		struct met met = {};
		u64 now = scx_now();

		/* It waits behind other work no longer, wherever that was. */
		core = core_of(thread->cpu);
		if (core && core->held == p->pid)
			core->held = 0;
		/* One that came as the vCPU was about to sleep is what wakes it now. */
		if (wakes && !thread->event_at) {
			if (thread->works)
				thread->event_at = now;
			else if (thread->met_at && interrupt_waits(thread))
				thread->event_at = thread->met_at;
		}
		/*
		 * Whom it meets matters to one that comes from elsewhere, that has slept for
		 * longer than a turn, or that has an event. Of all others, which most are, it is
		 * known well enough, and to look costs more than the rest of this.
		 */
		if (thread->domain != number || thread->moved || thread->event_at ||
		    thread->vcpu.vtime + config.slice_ns < domain->now)
			how.least = meets(number, cpu, p->pid, &met);
		if (met.tid && wakes && thread->domain == number && !thread->moved)
			redeem(thread, met.tid, how.least);
		line_up(thread, &how);
		vtime = boost_order(&config, thread->vcpu.vtime, domain->now);
		if (thread->state != BOOST_WAITS)
			thread->waits_since = now;
		thread->state = BOOST_WAITS;
		thread->cpu = cpu;
		if (thread->event_at && thread->guest) {
			taken = victim(p, thread, how.least, true);
			if (taken >= 0) {
				thread->boosted = 1;
				thread->boosts++;
			} else {
				thread->refused++;
			}
		}
		/*
		 * Of one that serves requests it is events that are urgent. Its timer, most often
		 * the tick with which its kernel finds that it has nothing to do, waits for
		 * somebody's turn to end: to stop one for it costs both more than it takes. One
		 * that has an event as well comes for that, by its own right where it isn't
		 * boosted.
		 */
		if (taken < 0 && wakes &&
		    (thread->event_at || !boost_does_io(&config, &thread->vcpu) ||
		     !timer_waits(thread)))
			taken = victim(p, thread, how.least, false);
		core = taken < 0 ? NULL : core_of(taken);
		if (core)
			slice = stretch(thread, how.least);
		if (core && core->runs && (u32)taken == cpu) {
			scx_insert(p, SCX(scx_dsq_id_flags, SCX_DSQ_LOCAL_ON) | taken, slice,
				   enq_flags | SCX(scx_enq_flags, SCX_ENQ_HEAD) |
				       SCX(scx_enq_flags, SCX_ENQ_PREEMPT));
			return;
		}
		/*
		 * It waits where all do: other cores may have time for it sooner. Nor does 6.18
		 * stop who runs on another core for one that is put into that core's own queue.
		 */
		thread->ahead = core != NULL;
		if (core) {
			take_core(core, taken, p->pid);
			vtime = 0;
		}
		if (core || stirs(thread))
			domain->stirred = 1;
	}
	scx_insert_vtime(p, number, slice, vtime, enq_flags);
	/* select_cpu() has found none that sleeps; one that is about to looks here. */
	if (wakes && bpf_core_enum_value_exists(enum scx_enq_flags, SCX_ENQ_CPU_SELECTED) &&
	    enq_flags & SCX(scx_enq_flags, SCX_ENQ_CPU_SELECTED))
		return;
	taken = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (taken >= 0)
		scx_bpf_kick_cpu(taken, SCX(scx_kick_flags, SCX_KICK_IDLE));
}

/* The virtual time of a domain goes on with whoever has a core by its own right. */
static __always_inline void advance(u32 number, const struct boost_thread *thread)
{
	struct boost_domain *domain = domain_of(number);

	if (domain && domain->now < thread->vcpu.vtime)
		domain->now = thread->vcpu.vtime;
}

/* Whether one that has an event goes before another whose turn it is; if so, it is boosted. */
__noinline int goes_before(struct boost_thread *urgent, struct boost_thread *other, u64 least)
{
	struct boost_guest *guest, *theirs;
	u32 boosted;

	if (!urgent || !other)
		return 0;
	guest = guest_of(urgent);
	theirs = guest_of(other);
	boosted = other->boosted || boost_does_io(&config, &other->vcpu);
	if (!guest || !theirs ||
	    !boost_preempts(&config, &urgent->vcpu, guest, least, &other->vcpu, theirs, boosted))
		return 0;
	urgent->boosted = 1;
	urgent->boosts++;
	return 1;
}

/*
 * Gives the core to one of those that a look at the queue has found. Virtual times may have changed
 * since, by what was charged or paid.
 */
__noinline int choose(u32 number, u32 cpu, struct head *head)
{
	struct boost_domain *domain = domain_of(number);
	struct boost_thread *first, *second;
	u32 tid;

	if (!domain || !head)
		return 0;
	tid = head->first;
	first = thread_of(tid);
	second = thread_of(head->second);
	if (first && second && second->vcpu.vtime < first->vcpu.vtime) {
		struct boost_thread *other = first;

		tid = head->second;
		first = second;
		second = other;
	}
	if (head->urgent && head->urgent != tid &&
	    goes_before(thread_of(head->urgent), first, domain->now)) {
		tid = head->urgent;
	} else if (first && second) {
		pay(first, second);
		if (second->vcpu.vtime < first->vcpu.vtime)
			tid = tid == head->first ? head->second : head->first;
	}
	/* To come to another takes a walk. */
	return tid == head->front ? scx_move_first(number) : take(number, cpu, tid, head);
}

/* Gives the core to whoever waits in a domain: whether there was anybody. */
__noinline int serve(u32 number, u32 cpu)
{
	struct boost_domain *domain = domain_of(number);
	struct head head = {};

	if (!domain)
		return 0;
	/* As where nobody does IO: a walk is the most of what a switch costs. */
	if (!domain->stirred)
		return go_on(number, cpu, &head) ?: scx_move_first(number);
	return glance(number, cpu, &head) ? choose(number, cpu, &head) : 0;
}

/* A core without work looks into other domains. */
__noinline int steal(u32 number, u32 cpu)
{
	int i;

	bpf_for(i, 1, STEAL_MAX)
	{
		u32 other = number + i;

		if (i >= settings.domains)
			break;
		if (other >= settings.domains)
			other -= settings.domains;
		if (serve(other, cpu))
			return 1;
	}
	return 0;
}

/* One that has a core was charged up to now. */
static __always_inline void goes_on_from(u32 cpu, struct boost_thread *thread, u64 now)
{
	struct boost_core *core = core_of(cpu);

	thread->runs_since = now;
	if (core)
		core->vtime = thread->vcpu.vtime - now;
}

/*
 * How long ago the last event came that a thread runs with, one that found it running, or it came
 * to its core with one; ~0: there was none. Other work that had its core for a moment since is no
 * end of that.
 */
static __always_inline u64 event_age(const struct boost_thread *runs)
{
	return runs->served_at ? scx_since(runs->served_at, scx_now()) : ~0ULL;
}

/*
 * Whether the one that has had its turn keeps its core: as nobody waits, as it does IO and may go
 * on, or as it still has had the least and, where it is to pay, has paid.
 */
__noinline int keeps(struct boost_thread *runs, u32 number, u32 cpu, u64 ran, struct head *head)
{
	struct boost_thread *first;
	struct boost_guest *guest, *lender;

	if (!runs || !head)
		return 0;
	if (!glance(number, cpu, head)) {
		settle(runs, NULL, ran, false);
		runs->charged_at += ran;
		goes_on_from(cpu, runs, scx_now());
		advance(number, runs);
		return 1;
	}
	first = thread_of(head->first);
	guest = guest_of(runs);
	lender = first ? guest_of(first) : NULL;
	if (guest && lender && runs->guest &&
	    boost_goes_on(&config, &runs->vcpu, guest, &first->vcpu, lender, ran, event_age(runs)))
		return 1;
	settle(runs, first, ran, false);
	runs->charged_at += ran;
	runs->boosted = 0;
	if (first && runs->vcpu.vtime <= first->vcpu.vtime)
		pay(runs, first);
	/* Nobody else waits whom the one that is about to run could pay. */
	else if (first && !head->second)
		pay(first, runs);
	goes_on_from(cpu, runs, scx_now());
	if (!first || runs->vcpu.vtime > first->vcpu.vtime)
		return 0;
	advance(number, runs);
	return 1;
}

/*
 * Gives the core to the one that is to be next there. One that came to the queue for that is at its
 * head, unless another core has had time for it sooner; one that waited before must be come to.
 */
__noinline int take_next(u32 number, u32 cpu, u32 tid, struct head *head)
{
	struct boost_thread *thread = thread_of(tid);

	if (!thread || !head || thread->state != BOOST_WAITS)
		return 0;
	return thread->ahead ? scx_move_first(number) : take(number, cpu, tid, head);
}

SEC("struct_ops/boost_dispatch")
void BPF_PROG(boost_dispatch, s32 cpu, struct task_struct *prev)
{
	bool queued = prev && (prev->scx.flags & SCX(scx_ent_flags, SCX_TASK_QUEUED));
	struct boost_thread *runs = queued ? thread_of(prev->pid) : NULL;
	struct boost_core *core = core_of(cpu);
	u32 number, next;
	struct head head = {};

	if (!core)
		return;
	number = core->domain;
	next = core->next;
	core->next = 0;
	if (next && take_next(number, cpu, next, &head)) {
		if (runs)
			runs->boosted = 0;
		return;
	}
	if (!queued) {
		if (!serve(number, cpu))
			steal(number, cpu);
		return;
	}
	if (runs && keeps(runs, number, cpu, uncharged(prev, runs), &head)) {
		scx_set_slice(prev, config.slice_ns);
		begin_turn(cpu, config.slice_ns, scx_now());
	} else if (!head.searched || !choose(number, cpu, &head)) {
		serve(number, cpu);
	}
}

SEC("struct_ops/boost_running")
void BPF_PROG(boost_running, struct task_struct *p)
{
	struct boost_thread *thread = thread_of(p->pid);
	u32 cpu = scx_bpf_task_cpu(p);
	struct boost_core *core = core_of(cpu);
	u64 now = scx_now();

	if (core) {
		core->runs = p->pid;
		/* Else other work had its core, and has gone. */
		if (thread && core->held != p->pid)
			thread->met_at = 0;
		core->held = 0;
		core->kept = 0;
		/* The kernel's own, for one that it has put into the core's own queue. */
		if (p->scx.slice > config.slice_ns)
			scx_set_slice(p, config.slice_ns);
		if (core->next && core->next != p->pid)
			make_room(core, cpu, p, now);
	}
	if (!thread)
		return;
	if (core && (thread->state == BOOST_ASLEEP || thread->domain != core->domain))
		arrive(thread, core->domain);
	if (core)
		core->vtime = thread->vcpu.vtime - now;
	if (thread->state == BOOST_WAITS)
		thread->waited_ns += scx_since(thread->waits_since, now);
	if (!thread->boosted && !thread->ahead)
		advance(thread->domain, thread);
	thread->ahead = 0;
	thread->state = BOOST_RUNS;
	thread->cpu = cpu;
	thread->runs_since = now;
	begin_from(p, thread);
	begin_turn(cpu, p->scx.slice, now);
	if (thread->works) {
		thread->event_at = 0;
	} else if (thread->event_at) {
		u64 us = scx_since(thread->event_at, now) / 1000;
		struct boost_delays *delay;
		u32 bin = 0, guest = thread->guest;

		while (us > 1 && bin < BOOST_BINS - 1) {
			us >>= 1;
			bin++;
		}
		delay = bpf_map_lookup_elem(&delays, &guest);
		if (delay && bin < BOOST_BINS)
			__sync_fetch_and_add(&delay->bins[bin], 1);
		thread->event_at = 0;
		thread->served_at = now;
	}
}

SEC("struct_ops/boost_stopping")
void BPF_PROG(boost_stopping, struct task_struct *p, bool runnable)
{
	struct boost_thread *thread = thread_of(p->pid), *waits;
	u32 cpu = scx_bpf_task_cpu(p);
	struct boost_core *core = core_of(cpu);
	struct boost_domain *domain;
	struct head head = {};
	u64 ran;

	if (!core)
		return;
	core->runs = 0;
	/* With a slice left, other work takes the core, and the kernel keeps it for this one. */
	if (runnable && p->scx.slice && !may_be_called_back())
		scx_set_slice(p, 0);
	core->held = runnable && p->scx.slice ? p->pid : 0;
	core->vtime = 0;
	if (!thread)
		return;
	ran = uncharged(p, thread);
	/* Only what goes beyond a share is anybody else's; most never do, and need no search. */
	waits = NULL;
	domain = domain_of(core->domain);
	if ((thread->boosted || boost_does_io(&config, &thread->vcpu)) && domain &&
	    boost_may_borrow(&config, thread->vcpu.vtime + ran, domain->now) &&
	    glance(core->domain, cpu, &head))
		waits = thread_of(head.first);
	settle(thread, waits, ran, !runnable);
	thread->charged_at += ran;
	thread->boosted = 0;
	if (core->held)
		core->vtime = thread->vcpu.vtime;
	/* It needn't come to enqueue() before it runs again. */
	thread->waits_since = scx_now();
	thread->state = runnable ? BOOST_WAITS : BOOST_ASLEEP;
}

SEC("struct_ops/boost_tick")
void BPF_PROG(boost_tick_op, struct task_struct *p)
{
	struct boost_thread *thread = thread_of(p->pid);
	u64 task;

	end_turn(p);
	if (!thread || thread->works)
		return;
	task = guest_task(thread);
	thread->tasks_seen += task != 0;
	boost_tick(&config, &thread->vcpu, task);
}

/* Whether a thread may run on a core of a domain. */
__noinline int may_run_in(struct task_struct *p __arg_trusted, u32 number)
{
	struct boost_domain *domain = domain_of(number);
	int i;

	if (!p || !domain)
		return 0;
	bpf_for(i, 0, BOOST_DOMAIN_CORES_MAX)
	{
		if (i >= domain->cores)
			break;
		if (bpf_cpumask_test_cpu(domain->core[i], p->cpus_ptr))
			return 1;
	}
	return 0;
}

/*
 * A thread is told where it may run: it meets others from now on. enqueue() comes next, or when it
 * wakes. Until then one that sleeps does so where it is to wake, as far as that is known, and its
 * siblings there have what it leaves: a turn, not what it has left elsewhere so far.
 */
SEC("struct_ops/boost_set_cpumask")
void BPF_PROG(boost_set_cpumask, struct task_struct *p, const struct cpumask *cpumask)
{
	struct boost_thread *thread = thread_of(p->pid);
	struct boost_core *core;

	if (!thread)
		return;
	thread->moved = 1;
	if (!thread->rests || may_run_in(p, thread->domain))
		return;
	core = core_of(bpf_cpumask_first(p->cpus_ptr));
	if (core && core->domain != thread->domain) {
		arrive(thread, core->domain);
		let_in(thread, true, true);
	}
}

SEC("struct_ops/boost_enable")
void BPF_PROG(boost_enable, struct task_struct *p)
{
	struct boost_thread new = {};
	struct boost_core *core = core_of(scx_bpf_task_cpu(p));
	struct boost_domain *domain;
	u32 tid = p->pid, process = p->tgid;
	u32 *owner = bpf_map_lookup_elem(&workers, &tid);

	if (owner)
		new.works = 1;
	else
		owner = bpf_map_lookup_elem(&owners, &process);
	if (owner)
		new.guest = *owner;
	if (core)
		new.domain = core->domain;
	domain = domain_of(new.domain);
	if (domain)
		new.vcpu.vtime = domain->now;
	new.followed = new.vcpu.vtime;
	new.moved = 1;
	new.charged_at = p->se.sum_exec_runtime;
	put_thread(tid, &new);
	/* Zero is for one that sleeps, also as its policy changes (kernel/sched/core.c). */
	let_in(thread_of(tid), true, !p->on_rq);
}

SEC("struct_ops/boost_disable")
void BPF_PROG(boost_disable, struct task_struct *p)
{
	u32 tid = p->pid;

	/* Who is gone leaves nothing. */
	let_in(thread_of(tid), false, false);
	remove_thread(tid);
}

SEC("struct_ops.s/boost_init")
s32 BPF_PROG(boost_init)
{
	int i, error;

	bpf_for(i, 0, BOOST_CORES_MAX)
	{
		u32 cpu = i;
		struct turn *turn = bpf_map_lookup_elem(&turns, &cpu);

		if (!turn)
			break;
		error = bpf_timer_init(&turn->timer, &turns, CLOCK_MONOTONIC);
		if (error)
			return error;
		bpf_timer_set_callback(&turn->timer, turn_over);
	}

	bpf_for(i, 0, BOOST_CORES_MAX)
	{
		if (i >= settings.domains)
			break;
		error = scx_bpf_create_dsq(i, -1);
		if (error)
			return error;
	}
	return 0;
}

SEC("struct_ops/boost_exit")
void BPF_PROG(boost_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(end.text, sizeof(end.text), info->msg);
	if (!end.text[0])
		bpf_probe_read_kernel_str(end.text, sizeof(end.text), info->reason);
	end.kind = info->kind;
}

SEC(".struct_ops.link")
struct sched_ext_ops boost_ops = {
    .select_cpu = (void *)boost_select_cpu,
    .enqueue = (void *)boost_enqueue,
    .dispatch = (void *)boost_dispatch,
    .tick = (void *)boost_tick_op,
    .running = (void *)boost_running,
    .stopping = (void *)boost_stopping,
    .set_cpumask = (void *)boost_set_cpumask,
    .enable = (void *)boost_enable,
    .disable = (void *)boost_disable,
    .init = (void *)boost_init,
    .exit = (void *)boost_exit,
    .flags = 8, /* SCX_OPS_SWITCH_PARTIAL */
    .timeout_ms = 5000,
    .name = "ostler",
};

#include "hooks.h"
#include "services.h"
