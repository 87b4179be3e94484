/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Who waits in a domain.
 *
 * The queue is sorted by what virtual times were when each came to wait, and by who came first
 * where they were about the same (boost_order). boost.h moves virtual time
 * between a vCPU that runs and the first that waits, so the few at the head are compared by what
 * they have now, as long as anybody there has something to pay or an event to run for, or isn't in
 * its place. If not, the first is taken as it is, which is several times cheaper. Who runs next is
 * decided in dispatch() alone, except that a vCPU that wakes for an event is put on the core that
 * it takes at once, or goes to the head of the queue if that is another than where it woke.
 */
#ifndef OSTLER_BOOST_QUEUE_H
#define OSTLER_BOOST_QUEUE_H

#include "state.h"

/* As far as the head of a queue is looked at, by what virtual times are now. */
#define LOOK_MAX 16
/* As far as a queue is searched for one that may run here, or one that is known by its number. */
#define SEARCH_MAX 1024

/* Whether a thread that comes to wait is to be told from its place in the queue. */
static __always_inline bool stirs(const struct boost_thread *thread)
{
	struct boost_guest *guest = guest_of(thread);

	return thread->event_at || (guest && guest->balance_ns > 0);
}

/*
 * The two with the least virtual times of those that wait in a domain and may run on a core. The
 * search is of so many, since others' threads may fill the head. What is counted is counted here,
 * where the verifier doesn't track it: it would go through the loop once for each number otherwise.
 */
struct head {
	u32 looked;
	u32 searched;
	u32 first;
	u32 second;
	/* The first that has an event. */
	u32 urgent;
	/* The first in the queue that may run here: it is taken without a walk. */
	u32 front;
	/* Nobody in the whole queue has one, or a debt, and all are in their places. */
	u32 calm;
	u32 spare;
	/* Of the one before in the queue. */
	u64 before;
	u64 first_vtime;
	u64 second_vtime;
};

__noinline int look(u32 number, u32 cpu, u32 most, struct head *head)
{
	struct task_struct *p;

	if (!head)
		return 0;
	head->looked = 0;
	head->searched = 0;
	head->first = 0;
	head->second = 0;
	head->urgent = 0;
	head->front = 0;
	head->calm = 1;
	head->before = 0;
	head->first_vtime = ~0ULL;
	head->second_vtime = ~0ULL;
	/* To begin a walk costs several times as much. */
	if (!scx_bpf_dsq_nr_queued(number))
		return 0;
	bpf_for_each(scx_dsq, p, number, 0)
	{
		struct boost_thread *thread;
		u64 vtime;

		if (++head->searched > SEARCH_MAX || head->looked >= most) {
			head->calm = 0;
			break;
		}
		thread = thread_of(p->pid);
		vtime = thread ? thread->vcpu.vtime : 0;
		if (!thread || boost_misplaced(&config, head->before, vtime) || stirs(thread))
			head->calm = 0;
		head->before = vtime;
		if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		head->looked++;
		if (!head->front)
			head->front = p->pid;
		if (thread && thread->event_at && thread->guest && !head->urgent)
			head->urgent = p->pid;
		if (vtime < head->first_vtime) {
			head->second = head->first;
			head->second_vtime = head->first_vtime;
			head->first = p->pid;
			head->first_vtime = vtime;
		} else if (vtime < head->second_vtime) {
			head->second = p->pid;
			head->second_vtime = vtime;
		}
	}
	return head->looked;
}

/*
 * The first of a queue that is calm, if it may run on a core: then it is the one with the least
 * virtual time, and nobody is to pay, so no second is needed. A walk costs several times as much,
 * and is to be made if this returns 1: whether it is known who is there, if anybody.
 */
static __always_inline int peek(u32 number, u32 cpu, struct head *head)
{
	struct boost_thread *thread;
	struct task_struct *p;

	if (!bpf_ksym_exists(scx_bpf_dsq_peek))
		return 1;
	p = scx_bpf_dsq_peek(number);
	if (!p) {
		*head = (struct head){.calm = 1, .first_vtime = ~0ULL, .second_vtime = ~0ULL};
		return 0;
	}
	if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return 1;
	thread = thread_of(p->pid);
	*head = (struct head){
	    .looked = 1,
	    .first = p->pid,
	    .front = p->pid,
	    .calm = 1,
	    .first_vtime = thread ? thread->vcpu.vtime : 0,
	    .second_vtime = ~0ULL,
	};
	return 0;
}

/* The same as look(), of no more than are needed: in a calm queue the first that may run. */
__noinline int glance(u32 number, u32 cpu, struct head *head)
{
	struct boost_domain *domain = domain_of(number);
	int looked;

	if (!domain || !head)
		return 0;
	if (!domain->stirred)
		return peek(number, cpu, head) ? look(number, cpu, 2, head) : head->looked;
	/* Before the look, so that who comes after it isn't missed. */
	domain->stirred = 0;
	looked = look(number, cpu, LOOK_MAX, head);
	if (!head->calm)
		domain->stirred = 1;
	return looked;
}

/*
 * Has one go on with its turn that was stopped in it on a core, for an event of another's say,
 * if there is one among the foremost of a queue that is calm: whether there was. Or two that two
 * events stop at about the same time would come to each other's cores, event after event.
 */
__noinline int go_on(u32 number, u32 cpu, struct head *head)
{
	struct boost_thread *thread;
	struct task_struct *p;

	if (!head)
		return 0;
	/* Each way to ask for a queue looks it up, which costs as much as what is asked. */
	if (bpf_ksym_exists(scx_bpf_dsq_peek)) {
		p = scx_bpf_dsq_peek(number);
		thread = p ? thread_of(p->pid) : NULL;
		/* As it is most of the time, and nobody else is looked for. */
		if (!thread || thread->cpu == cpu)
			return 0;
	} else if (scx_bpf_dsq_nr_queued(number) < 2) {
		return 0;
	}
	head->searched = 0;
	bpf_for_each(scx_dsq, p, number, 0)
	{
		u64 left;

		thread = thread_of(p->pid);
		if (!thread || ++head->searched > LOOK_MAX)
			break;
		if (head->searched == 1)
			head->first_vtime = thread->vcpu.vtime;
		left = boost_left(&config, thread->vcpu.vtime, head->first_vtime);
		if (!left)
			break;
		if (thread->cpu != cpu || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		scx_set_slice(p, left);
		/* Another core may have taken it: then it is the first in no queue. */
		if (!scx_move(&___it, p, SCX(scx_dsq_id_flags, SCX_DSQ_LOCAL), 0))
			return 0;
		thread->ahead = head->searched > 1;
		return 1;
	}
	return 0;
}

/* Of the others on a thread's core. */
struct met {
	/* The one with the least virtual time. */
	u32 tid;
	u32 spare;
};

/*
 * The least virtual time of the others on a thread's core, those that wait for it and the one that
 * runs there; ~0: nobody is there. The worker that brings a vCPU its event is none of them: it has
 * the virtual time of the vCPU's own guest, by which that can't be measured.
 */
__noinline u64 meets(u32 number, u32 cpu, u32 tid, struct met *met)
{
	struct boost_core *core = core_of(cpu);
	struct boost_thread *runs, *own;
	struct head head = {};
	u64 least;
	u32 has;

	if (!met)
		return ~0ULL;
	glance(number, cpu, &head);
	least = head.first == tid ? head.second_vtime : head.first_vtime;
	met->tid = head.first == tid ? head.second : head.first;
	has = core ? has_core(core) : 0;
	runs = !has || has == tid ? NULL : thread_of(has);
	own = thread_of(tid);
	if (runs && own && runs->works && runs->guest == own->guest)
		return least;
	if (runs && runs->vcpu.vtime < least) {
		least = runs->vcpu.vtime;
		met->tid = has;
	}
	return least;
}

/*
 * Takes one that waits in a domain to the core that dispatches, if it is still there and may still
 * run here: it was chosen a while ago, and the kernel ends a scheduler that puts a thread where it
 * may not be. Who is told to run elsewhere from here on has left the queue, and isn't moved.
 */
__noinline int take(u32 number, u32 cpu, u32 tid, struct head *head)
{
	struct task_struct *p;

	if (!head)
		return 0;
	head->searched = 0;
	bpf_for_each(scx_dsq, p, number, 0)
	{
		if (++head->searched > SEARCH_MAX)
			break;
		if (p->pid == tid)
			return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
			       scx_move(&___it, p, SCX(scx_dsq_id_flags, SCX_DSQ_LOCAL), 0);
	}
	return 0;
}

#endif
