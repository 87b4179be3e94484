/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Where does a woken task run? The guest's half of the hints layer (CPS, sections 4 and 5).
 *
 * The Refer-Table. The host tells a guest two things of each vCPU: which cache group it is in, by
 * the guest's own numbering, and whether the core under it has a low load. A row for each vCPU
 * says which row of which block has the one and the other, so that a block can be added, or a row
 * shared, without a guest that doesn't know of it having to. The paper has the wish to be pinned in
 * the vCPU's row, which makes the whole table writable by the guest. Here it is a block of its own:
 * all else can be mapped read-only.
 *
 * Pload (5.1). An idle vCPU is available to a task that wakes if it is online, or if it was
 * preempted on a core of low load: there it will soon run. The search begins with the vCPU that the
 * task ran on, and takes the first. The paper's two baselines differ in one word: HVM takes any
 * idle vCPU, PVM only those that are online.
 *
 * The paper doesn't say what becomes of a task for which no vCPU is available; a kernel's own
 * choice is the vCPU that it ran on. Where another task has that meanwhile, it waits behind it
 * while idle vCPUs sleep, and stays there as often as none is available: the threads of a barrier
 * gather on fewer and fewer vCPUs, the faster the busier the host is. So where none is available,
 * any idle one will do (hints_place_task): its core is busy, but the host shares that, and a
 * guest's own queue has no share of anything.
 *
 * Who makes a core busy? The paper counts all vCPUs that are runnable there, and so the guest's
 * own: one that ran as the host looked is told that its core is busy, by itself, and the next task
 * that it had goes elsewhere. And of those that were told of an idle core, the threads of a
 * barrier, which wake together, take several at once, for each vCPU that sleeps there stands for
 * it. The host can't mend either: what its guest does next is the guest's to know. So the host
 * tells of other guests' vCPUs alone, and which of the guest's own are on one core: these have one
 * row of the load block, as the paper has one page for a core. The guest keeps count of what it
 * does there itself (struct hints_cores), and a vCPU that was preempted isn't available while
 * another is busy on its core.
 *
 * CGsched (5.2). Threads that interact go to one virtual cache group (vCG):
 *
 *	vCG_Quota = max(#vCG_vCPU, ceil(#IT / #vCPU * #vCG_vCPU))
 *
 * and the vCG with most threads of the group (its LTM) that is below its quota is chosen. The paper
 * holds the group's own threads against the quota, and looks at the totals in the CG-Tree when
 * there is a conflict. Here the totals are held against the quota: then no vCG is ever filled
 * beyond it, by however many groups; and of vCGs that have as many of the group's threads, the one
 * with the fewest threads to a vCPU is taken, which is what sends a second group elsewhere. The
 * quotas add up to the number of threads at least, so there is always a vCG below its own.
 *
 * #vCPU counts those whose vCG is known. Nothing here is trusted to be in bounds: a damaged table
 * costs speed. Every loop ends by a constant.
 */
#ifndef OSTLER_CORE_HINTS_H
#define OSTLER_CORE_HINTS_H

#include "types.h"

#define HINTS_MAGIC 0x43505331 /* "CPS1" */
#define HINTS_VERSION 1
#define HINTS_VCPUS_MAX 1024
#define HINTS_WORDS (HINTS_VCPUS_MAX / 64)
#define HINTS_GROUPS_MAX 256
/* No vCPU, or no group. */
#define HINTS_NONE 0xffffffff

/* Blocks. */
#define HINTS_BLOCK_TOPOLOGY 0
#define HINTS_BLOCK_LOAD 1
#define HINTS_BLOCK_PIN 2

enum hints_load {
	HINTS_LOW,
	HINTS_HIGH,
};

/* Which idle vCPUs are available. */
enum hints_rule {
	/* All: the paper's HVM. */
	HINTS_HVM,
	/* Those that are online: its PVM. */
	HINTS_PVM,
	/* And those that were preempted on a core of low load. */
	HINTS_PLOAD,
};

struct hints_header {
	u32 magic;
	u32 version;
	/* Odd while the host writes; from 2 on when it has. */
	u32 sequence;
	/* Rows in use, and what groups are numbered below. */
	u32 vcpus;
	u32 groups;
	u32 spare[11];
};

_Static_assert(sizeof(struct hints_header) == 64, "struct hints_header is shared");

struct hints_ref {
	u16 block;
	u16 row;
};

struct hints_row {
	struct hints_ref topology;
	struct hints_ref load;
	struct hints_ref pin;
	struct hints_ref spare;
};

_Static_assert(sizeof(struct hints_row) == 16, "struct hints_row is shared");

/* What the host writes: whole pages, read-only to the guest. */
struct hints_table {
	struct hints_header header;
	u32 spare[1008];
	struct hints_row vcpu[HINTS_VCPUS_MAX];
	/* BLK-0: virtual cache groups, HINTS_NONE where nobody knows. */
	u32 topology[HINTS_VCPUS_MAX];
	/* BLK-1: enum hints_load. */
	u32 load[HINTS_VCPUS_MAX];
};

_Static_assert(sizeof(struct hints_table) == 7 * 4096, "struct hints_table is shared");

/* What the guest writes, BLK-2: 1 asks that the vCPU stays in its group. */
struct hints_pins {
	u32 pin[HINTS_VCPUS_MAX];
};

_Static_assert(sizeof(struct hints_pins) == 4096, "struct hints_pins is shared");

/* Sets of vCPUs, as the guest's scheduler has them. */
struct hints_sets {
	/* Where the task may run. */
	u64 allowed[HINTS_WORDS];
	u64 idle[HINTS_WORDS];
	/* Not on a core, as KVM's steal time has it. */
	u64 preempted[HINTS_WORDS];
};

_Static_assert(sizeof(struct hints_sets) == 384, "struct hints_sets is shared");

/* Where the guest's own vCPUs are busy, by rows of the load block: those on one core have one. */
struct hints_cores {
	u16 busy[HINTS_VCPUS_MAX];
	/* Of each vCPU, the row that it counts in, and 1; 0 where it is idle. */
	u16 in[HINTS_VCPUS_MAX];
};

_Static_assert(sizeof(struct hints_cores) == 4096, "struct hints_cores is shared");

struct hints_group {
	/* Interactive threads, of all groups of threads. */
	u32 threads;
	u32 vcpus;
};

/* The CG-Tree: the guest's totals. */
struct hints_tree {
	/* #IT and #vCPU. */
	u32 threads;
	u32 vcpus;
	u32 groups;
	/* The table's, when vCPUs were counted. */
	u32 sequence;
	struct hints_group group[HINTS_GROUPS_MAX];
};

_Static_assert(sizeof(struct hints_tree) == 2064, "struct hints_tree is shared");

/* The LTM: where the threads of one group of threads are. */
struct hints_map {
	u32 threads[HINTS_GROUPS_MAX];
};

_Static_assert(sizeof(struct hints_map) == 1024, "struct hints_map is shared");

/* The host may write at any time: a word is read once. */
#define HINTS_READ(word) (*(const volatile __typeof__(word) *)&(word))

/* How many vCPUs the table tells of; 0 when it is none that can be read. */
static __always_inline u32 hints_vcpus(const struct hints_table *table)
{
	u32 vcpus = HINTS_READ(table->header.vcpus);

	if (HINTS_READ(table->header.magic) != HINTS_MAGIC ||
	    HINTS_READ(table->header.version) != HINTS_VERSION || vcpus > HINTS_VCPUS_MAX)
		return 0;
	return vcpus;
}

/* The group that a vCPU is in; HINTS_NONE where nobody knows. */
static __always_inline u32 hints_group_of(const struct hints_table *table, u32 vcpu)
{
	u32 row, group;

	if (vcpu >= HINTS_VCPUS_MAX)
		return HINTS_NONE;
	row = HINTS_READ(table->vcpu[vcpu].topology.row);
	if (HINTS_READ(table->vcpu[vcpu].topology.block) != HINTS_BLOCK_TOPOLOGY ||
	    row >= HINTS_VCPUS_MAX)
		return HINTS_NONE;
	group = HINTS_READ(table->topology[row]);
	return group < HINTS_GROUPS_MAX ? group : HINTS_NONE;
}

/* The row of the load block that tells of the core under a vCPU; HINTS_NONE where there is none. */
static __always_inline u32 hints_core_of(const struct hints_table *table, u32 vcpu)
{
	u32 row;

	if (vcpu >= HINTS_VCPUS_MAX)
		return HINTS_NONE;
	row = HINTS_READ(table->vcpu[vcpu].load.row);
	if (HINTS_READ(table->vcpu[vcpu].load.block) != HINTS_BLOCK_LOAD || row >= HINTS_VCPUS_MAX)
		return HINTS_NONE;
	return row;
}

/* A vCPU of the guest has something to run from now on, or has nothing more. */
static __always_inline void hints_busy(struct hints_cores *cores, const struct hints_table *table,
				       u32 vcpu, u32 busy)
{
	u32 row, in;

	if (vcpu >= HINTS_VCPUS_MAX)
		return;
	in = cores->in[vcpu];
	if (!!in == !!busy)
		return;
	/* It leaves where it came, whatever the table says by now. */
	row = busy ? hints_core_of(table, vcpu) : in - 1;
	if (row >= HINTS_VCPUS_MAX)
		return;
	if (busy)
		cores->busy[row]++;
	else if (cores->busy[row])
		cores->busy[row]--;
	cores->in[vcpu] = busy ? row + 1 : 0;
}

/* The table has changed: counts anew. */
static __always_inline void hints_recount(struct hints_cores *cores,
					  const struct hints_table *table,
					  const struct hints_sets *sets, u32 vcpus)
{
	u32 i;

	for (i = 0; i < HINTS_VCPUS_MAX; i++) {
		cores->busy[i] = 0;
		cores->in[i] = 0;
	}
	for (i = 0; i < HINTS_VCPUS_MAX && i < vcpus; i++)
		hints_busy(cores, table, i, !(sets->idle[i / 64] >> (i % 64) & 1));
}

/*
 * Whether a vCPU that was preempted soon has its core: few others want that, and the guest itself
 * has nothing to run there.
 */
static __always_inline u32 hints_free(const struct hints_table *table,
				      const struct hints_cores *cores, u32 vcpu)
{
	u32 row = hints_core_of(table, vcpu);

	return row < HINTS_VCPUS_MAX && HINTS_READ(table->load[row]) == HINTS_LOW &&
	       !cores->busy[row];
}

/*
 * The first available vCPU from `prev` on, around the end, of those below `vcpus`; within a group,
 * unless that is HINTS_NONE. HINTS_NONE when there is no such vCPU.
 */
static __always_inline u32 hints_choose_vcpu(const struct hints_table *table,
					     const struct hints_sets *sets,
					     const struct hints_cores *cores, u32 rule, u32 vcpus,
					     u32 prev, u32 group)
{
	u32 told = hints_vcpus(table);
	u64 from;
	u32 i, n;

	if (vcpus > HINTS_VCPUS_MAX)
		vcpus = HINTS_VCPUS_MAX;
	if (prev >= vcpus)
		prev = 0;
	from = ~0ull << (prev % 64);
	for (i = 0; i <= HINTS_WORDS; i++) {
		u32 word = (prev / 64 + i) % HINTS_WORDS;
		u64 preempted = sets->preempted[word];
		u64 bits = sets->allowed[word] & sets->idle[word];

		/* The word that it begins in is looked at twice, a part at a time. */
		if (i == 0)
			bits &= from;
		if (i == HINTS_WORDS)
			bits &= ~from;
		if (rule == HINTS_PVM)
			bits &= ~preempted;
		for (n = 0; n < 64 && bits; n++) {
			u32 bit = (u32)__builtin_ctzll(bits);
			u32 vcpu = word * 64 + bit;

			bits &= bits - 1;
			if (vcpu >= vcpus)
				break;
			if (group != HINTS_NONE &&
			    (vcpu >= told || hints_group_of(table, vcpu) != group))
				continue;
			if (rule != HINTS_PLOAD || !(preempted >> bit & 1) ||
			    (vcpu < told && hints_free(table, cores, vcpu)))
				return vcpu;
		}
	}
	return HINTS_NONE;
}

/* Of a task in no group: likewise, but where Pload has none available it is the first idle one, on
 * a busy core or not. */
static __always_inline u32 hints_place_task(const struct hints_table *table,
					    const struct hints_sets *sets,
					    const struct hints_cores *cores, u32 rule, u32 vcpus,
					    u32 prev)
{
	u32 vcpu = hints_choose_vcpu(table, sets, cores, rule, vcpus, prev, HINTS_NONE);

	if (vcpu == HINTS_NONE && rule == HINTS_PLOAD)
		vcpu = hints_choose_vcpu(table, sets, cores, HINTS_HVM, vcpus, prev, HINTS_NONE);
	return vcpu;
}

/* vCG_Quota, with #vCG_vCPU, #IT and #vCPU. */
static __always_inline u64 hints_quota(u32 group_vcpus, u32 threads, u32 vcpus)
{
	u64 even;

	if (!vcpus)
		return group_vcpus;
	even = ((u64)threads * group_vcpus + vcpus - 1) / vcpus;
	return even > group_vcpus ? even : group_vcpus;
}

/* Counts vCPUs anew if the table has changed. Returns whether threads are to be placed again. */
static __always_inline u32 hints_refresh(struct hints_tree *tree, const struct hints_table *table)
{
	u32 sequence = HINTS_READ(table->header.sequence);
	u32 groups = HINTS_READ(table->header.groups);
	u32 vcpus = hints_vcpus(table);
	u32 i;

	if (!vcpus || (sequence & 1) || sequence == tree->sequence || groups > HINTS_GROUPS_MAX)
		return 0;
	for (i = 0; i < HINTS_GROUPS_MAX; i++)
		tree->group[i].vcpus = 0;
	tree->vcpus = 0;
	tree->groups = groups;
	for (i = 0; i < HINTS_VCPUS_MAX && i < vcpus; i++) {
		u32 group = hints_group_of(table, i);

		if (group >= groups || group >= HINTS_GROUPS_MAX)
			continue;
		tree->group[group].vcpus++;
		tree->vcpus++;
	}
	/* Written meanwhile: what was counted will do until the next time. */
	tree->sequence = HINTS_READ(table->header.sequence) == sequence ? sequence : 0;
	return 1;
}

/*
 * The vCG for a thread of a group of threads that is in `from`, HINTS_NONE for a new one.
 * HINTS_NONE when no vCG has room, which is so only when none has vCPUs.
 */
static __always_inline u32 hints_choose_group(const struct hints_tree *tree,
					      const struct hints_map *map, u32 from)
{
	u32 total = tree->threads + (from >= HINTS_GROUPS_MAX);
	u32 best = HINTS_NONE, best_mine = 0, best_threads = 0, best_vcpus = 1;
	u32 i;

	for (i = 0; i < HINTS_GROUPS_MAX && i < tree->groups; i++) {
		u32 vcpus = tree->group[i].vcpus;
		u32 threads = tree->group[i].threads;
		u32 mine = map->threads[i];
		u64 here, there;

		if (!vcpus)
			continue;
		/* It doesn't crowd itself. */
		if (i == from) {
			threads -= !!threads;
			mine -= !!mine;
		}
		if (threads >= hints_quota(vcpus, total, tree->vcpus))
			continue;
		here = (u64)threads * best_vcpus;
		there = (u64)best_threads * vcpus;
		if (best == HINTS_NONE || mine > best_mine ||
		    (mine == best_mine && (here < there || (here == there && i == from)))) {
			best = i;
			best_mine = mine;
			best_threads = threads;
			best_vcpus = vcpus;
		}
	}
	return best;
}

/*
 * A thread of a group of threads goes from one vCG to another; HINTS_NONE: it is new, or it ends.
 * Returns whether it could: nothing is taken from where nothing is.
 */
static __always_inline u32 hints_move(struct hints_tree *tree, struct hints_map *map, u32 from,
				      u32 to)
{
	if ((from != HINTS_NONE && from >= HINTS_GROUPS_MAX) ||
	    (to != HINTS_NONE && to >= HINTS_GROUPS_MAX))
		return 0;
	if (from < HINTS_GROUPS_MAX) {
		if (!map->threads[from] || !tree->group[from].threads || !tree->threads)
			return 0;
		map->threads[from]--;
		tree->group[from].threads--;
		tree->threads--;
	}
	if (to < HINTS_GROUPS_MAX) {
		map->threads[to]++;
		tree->group[to].threads++;
		tree->threads++;
	}
	return 1;
}

/* Whether a vCG's threads are as many as its quota: then its vCPUs should stay. */
static __always_inline u32 hints_full(const struct hints_tree *tree, u32 group)
{
	u32 vcpus, threads;

	if (group >= HINTS_GROUPS_MAX)
		return 0;
	vcpus = tree->group[group].vcpus;
	threads = tree->group[group].threads;
	return vcpus && threads >= hints_quota(vcpus, tree->threads, tree->vcpus);
}

/* Asks the host to keep the vCPUs of full vCGs where they are, and takes back what was asked for
 * others. */
static __always_inline void hints_ask(const struct hints_tree *tree,
				      const struct hints_table *table, struct hints_pins *pins)
{
	u32 vcpus = hints_vcpus(table);
	u32 i;

	for (i = 0; i < HINTS_VCPUS_MAX; i++) {
		u32 row = HINTS_READ(table->vcpu[i].pin.row);

		if (i >= vcpus)
			break;
		if (HINTS_READ(table->vcpu[i].pin.block) == HINTS_BLOCK_PIN &&
		    row < HINTS_VCPUS_MAX)
			pins->pin[row] = hints_full(tree, hints_group_of(table, i));
	}
}

#endif
