/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Which vCPU now? The boost layer's arithmetic (Anubis; see docs/decisions/0014).
 *
 * Fair sharing. Each vCPU has a virtual time: the run time that it was charged, on its core's
 * scale. The one that waits with the least runs next; of several that have about as much, the one
 * that came first. So vCPUs that are always ready have equal shares of a core, to within a turn.
 *
 * Boost. A vCPU that does IO runs before its turn, and longer than one. What that takes beyond its
 * share is not charged to it, or it would have to wait it off, which is what hurts IO. It is
 * charged to the vCPU that waited, as if that had run; and the two guests' balances keep what one
 * has had of the other's. vCPUs that don't do IO pay their guest's debts by the same transfer the
 * other way round. So virtual times and run times on a core always have the same sum, all balances
 * together are zero, and for each guest
 *
 *	run time = charged virtual time + balance
 *
 * exactly, transfer by transfer.
 *
 * Sleep. A vCPU that sleeps loses what it doesn't use of its share, but for a turn. What it loses
 * pays what its guest owes first, though it does IO: that costs it nothing, and else a guest that
 * is well within its share would have no boost left after its first busy moment, for as long as it
 * does IO.
 *
 * Pool. Shares are each vCPU's, but they are the guest's to use: what those of its vCPUs leave that
 * sleep for longer than a turn, its others have. So a guest of four vCPUs of which one is busy has
 * what four are due, as it would under a scheduler that shares by guest, and never more than that:
 * each nanosecond that virtual time goes on gives a sleeper one, which is kept by it or its
 * siblings, pays its guest's debts, or is lost. Siblings that are awake have equal parts of it.
 *
 * Fairness. No balance ever leaves [-limit, limit]: at its end nothing is lent or borrowed, and
 * scheduling is fair sharing alone. Between any two moments a balance moves by twice the limit at
 * most, so that is how far the boost can bring a guest from its share, whatever the guests do:
 * interrupts, IPIs and doorbells that a guest makes for show get it to run earlier, but not more.
 * The thesis bounds only what is borrowed (its Maximum Debt), and lets a guest pay on one core what
 * it borrowed on another; then whoever shares only the first core with it starves for good. Here
 * the lender's balance is bounded as well.
 *
 * Detection. An IO Point for each interrupt of a device, each rescheduling IPI and each exit to a
 * device's memory. At each tick points have grown, and confidence with them; or the guest runs
 * another task than when it last did IO, and the IO has ended; or nobody knows, and confidence is
 * degraded. A vCPU does IO from a threshold of confidence on (thesis, 3.4.2 and 3.5.2).
 */
#ifndef OSTLER_CORE_BOOST_H
#define OSTLER_CORE_BOOST_H

#include "types.h"

/* What becomes of confidence when a tick tells nothing. */
enum boost_degradation {
	BOOST_HALVE,
	BOOST_DECREMENT,
	BOOST_FORGET,
};

/* Which of two that do IO has the core. */
enum boost_conflict {
	BOOST_BY_CONFIDENCE,
	BOOST_BY_BALANCE,
	BOOST_NEITHER,
};

struct boost_config {
	/* A turn. */
	u64 slice_ns;
	/* The longest that one that does IO runs at a stretch. */
	u64 slice_max_ns;
	/* No balance is further from zero. */
	u64 limit_ns;
	/* Confidence from which a vCPU does IO, and the most that it can have. */
	u32 threshold;
	u32 confidence_max;
	/* enum boost_degradation, enum boost_conflict. */
	u32 degradation;
	u32 conflict;
	/* Whether anything is boosted at all. */
	u32 enabled;
	u32 spare;
};

_Static_assert(sizeof(struct boost_config) == 48, "struct boost_config is shared");

struct boost_vcpu {
	/* Charged so far, ns. */
	u64 vtime;
	/* IO Points, and those at the last tick. */
	u64 points;
	u64 points_seen;
	/* The guest's task when it last did IO; 0 where nobody can tell. */
	u64 io_task;
	u32 confidence;
	/* The guest has gone on to another task since. */
	u32 ended;
	/* How much of its pool's `each_ns` it has had. */
	s64 had_ns;
};

_Static_assert(sizeof(struct boost_vcpu) == 48, "struct boost_vcpu is shared");

struct boost_guest {
	/* Run time beyond its share, ns; below zero where it has had less. */
	s64 balance_ns;
	/* Of all time: what its vCPUs ran beyond their shares, and what they gave back. */
	u64 borrowed_ns;
	u64 paid_ns;
	/* Of all time: what others' vCPUs took of its share, and gave back to it. */
	u64 lent_ns;
	u64 returned_ns;
};

_Static_assert(sizeof(struct boost_guest) == 40, "struct boost_guest is shared");

/* What those of a guest's vCPUs leave that sleep in one domain of cores. */
struct boost_pool {
	/* The domain's virtual time up to which it is reckoned. */
	u64 seen;
	/* What they didn't use of their shares; below zero while they have had more than that. */
	s64 left_ns;
	/* What each of those has been due of that, of all time, that are awake; and what is yet to
	 * be shared out, a few ns. */
	s64 each_ns;
	u32 rest_ns;
	u32 domain;
	/* How many sleep there, and how many don't; both 0: the pool is free. */
	u32 asleep;
	u32 awake;
};

_Static_assert(sizeof(struct boost_pool) == 40, "struct boost_pool is shared");

/* A device's interrupt or a rescheduling IPI comes, or the vCPU touches a device. */
static __always_inline void boost_point(struct boost_vcpu *vcpu, u64 task)
{
	vcpu->points++;
	vcpu->ended = 0;
	if (task)
		vcpu->io_task = task;
}

/* A tick, with the task that the guest runs now; 0 where nobody can tell. */
static __always_inline void boost_tick(const struct boost_config *config, struct boost_vcpu *vcpu,
				       u64 task)
{
	if (vcpu->points != vcpu->points_seen) {
		vcpu->points_seen = vcpu->points;
		if (vcpu->confidence < config->confidence_max)
			vcpu->confidence++;
		return;
	}
	/*
	 * That it has ended is no reason to forget how often there was any: the next point makes it
	 * one that does IO again, without four ticks of proof.
	 */
	if (task && vcpu->io_task && task != vcpu->io_task)
		vcpu->ended = 1;
	if (config->degradation == BOOST_HALVE)
		vcpu->confidence /= 2;
	else if (config->degradation == BOOST_DECREMENT && vcpu->confidence)
		vcpu->confidence--;
	else
		vcpu->confidence = 0;
}

/* Whether it does IO: it keeps its core, and doesn't pay. */
static __always_inline u32 boost_does_io(const struct boost_config *config,
					 const struct boost_vcpu *vcpu)
{
	return !vcpu->ended && vcpu->confidence >= config->threshold;
}

/*
 * Whether it pays its guest's debt. One that has just had a point may be about to do IO: it isn't
 * boosted for it yet, but it isn't held back either (thesis, 3.4.5).
 */
static __always_inline u32 boost_pays(const struct boost_config *config,
				      const struct boost_vcpu *vcpu)
{
	return !boost_does_io(config, vcpu) && vcpu->points == vcpu->points_seen;
}

/* How much one guest may yet take of another's share, ns. */
static __always_inline u64 boost_room(const struct boost_config *config,
				      const struct boost_guest *borrower,
				      const struct boost_guest *lender)
{
	s64 limit = (s64)config->limit_ns;
	s64 above = limit - borrower->balance_ns;
	s64 below = limit + lender->balance_ns;
	s64 room = above < below ? above : below;

	if (!config->enabled || borrower == lender || room < 0)
		return 0;
	return (u64)room;
}

/*
 * Whether a vCPU may have come beyond its share, so that it is worth a look at who waits. Not if it
 * has had no more than its domain, whose virtual time is `now`; but where it is far behind that it
 * shares a crowded core with others that are as well.
 */
static __always_inline u32 boost_may_borrow(const struct boost_config *config, u64 vtime, u64 now)
{
	return vtime > now || vtime + 2 * config->slice_ns < now;
}

/*
 * A vCPU has run for a time while the lender's waited, the one of least virtual time of all that
 * did. Exactly that time is charged, to the one or the other.
 *
 * One that does IO, or was boosted for an event, is charged itself until it is a turn ahead of who
 * waits: that much it would have had anyhow. The rest is borrowed, as long as there is room.
 */
static __always_inline void boost_charge(const struct boost_config *config, struct boost_vcpu *vcpu,
					 struct boost_guest *guest, struct boost_vcpu *waits,
					 struct boost_guest *lender, u64 ran_ns, u32 boosted)
{
	u64 share = waits->vtime + config->slice_ns;
	u64 beyond, room;

	vcpu->vtime += ran_ns;
	if (!boosted || vcpu->vtime <= share)
		return;
	beyond = vcpu->vtime - share;
	if (beyond > ran_ns)
		beyond = ran_ns;
	room = boost_room(config, guest, lender);
	if (beyond > room)
		beyond = room;
	vcpu->vtime -= beyond;
	waits->vtime += beyond;
	guest->balance_ns += (s64)beyond;
	guest->borrowed_ns += beyond;
	lender->balance_ns -= (s64)beyond;
	lender->lent_ns += beyond;
}

/*
 * A vCPU is charged for what another guest's, which waits, will have: for so much at most. That
 * brings the two balances towards each other and never past, so payments end, and two guests don't
 * pay each other in turn. Returns what was paid, ns.
 */
static __always_inline u64 boost_give(struct boost_vcpu *vcpu, struct boost_guest *guest,
				      struct boost_vcpu *waits, struct boost_guest *paid, u64 most)
{
	s64 apart = guest->balance_ns - paid->balance_ns;
	u64 pay;

	if (guest == paid || guest->balance_ns <= 0 || apart < 2)
		return 0;
	pay = (u64)apart / 2;
	if (pay > (u64)guest->balance_ns)
		pay = (u64)guest->balance_ns;
	if (pay > most)
		pay = most;
	if (pay > waits->vtime)
		pay = waits->vtime;
	vcpu->vtime += pay;
	waits->vtime -= pay;
	guest->balance_ns -= (s64)pay;
	guest->paid_ns += pay;
	paid->balance_ns += (s64)pay;
	paid->returned_ns += pay;
	return pay;
}

/*
 * A vCPU is about to run while one of another guest waits. If it is to pay, it gives a turn, or a
 * part of one. Returns what was paid, ns.
 */
static __always_inline u64 boost_pay(const struct boost_config *config, struct boost_vcpu *vcpu,
				     struct boost_guest *guest, struct boost_vcpu *waits,
				     struct boost_guest *paid)
{
	if (!boost_pays(config, vcpu))
		return 0;
	return boost_give(vcpu, guest, waits, paid, config->slice_ns);
}

/*
 * How long a vCPU that is boosted may run while the least virtual time of those that wait is
 * `least`, ns: until it is a turn ahead, and then for as long as there is room. What it is ahead
 * by more than that, because it was stopped late, counts against the room; or the least bit of room
 * would have it run a turn again and again, and with nothing but its own events as payment.
 */
static __always_inline s64 boost_allowance(const struct boost_config *config,
					   const struct boost_vcpu *vcpu,
					   const struct boost_guest *guest, u64 least,
					   const struct boost_guest *lender)
{
	u64 share = least + config->slice_ns;

	if (!config->enabled || guest == lender)
		return 0;
	return (s64)(share - vcpu->vtime) + (s64)boost_room(config, guest, lender);
}

/*
 * Whether a vCPU with an event takes the core from one that runs there, where `least` is the least
 * virtual time of all others. `runs_boosted` says that the one that runs was boosted, or does IO:
 * then it is a conflict.
 *
 * Without room none does, though it be within its share. A guest that wants more than that would
 * spend it on being woken for each event alone, again and again as its share grows; as it waits its
 * turn its events gather, and one turn serves many.
 */
static __always_inline u32 boost_preempts(const struct boost_config *config,
					  const struct boost_vcpu *vcpu,
					  const struct boost_guest *guest, u64 least,
					  const struct boost_vcpu *runs,
					  const struct boost_guest *runs_guest, u32 runs_boosted)
{
	if (!boost_room(config, guest, runs_guest) ||
	    boost_allowance(config, vcpu, guest, least, runs_guest) <= 0)
		return 0;
	if (!runs_boosted)
		return 1;
	switch (config->conflict) {
	case BOOST_BY_CONFIDENCE:
		return vcpu->confidence > runs->confidence;
	case BOOST_BY_BALANCE:
		return guest->balance_ns < runs_guest->balance_ns;
	default:
		return 0;
	}
}

/* What makes a core a better one to take than any that lacks it. Virtual times stay below. */
#define BOOST_TAKES_UNBOOSTED (1ULL << 63)
#define BOOST_TAKES_AT_ONCE (1ULL << 62)

/*
 * How readily a vCPU takes a core from the one that has it, if it may, above 0: from one that isn't
 * boosted before one that is, then from one that runs before one that waits for other work to end,
 * and of those from the one that has had most. `vtime` is that one's, up to now.
 */
static __always_inline u64 boost_rate(u64 vtime, u32 boosted, u32 runs)
{
	if (!boosted)
		vtime |= BOOST_TAKES_UNBOOSTED;
	if (runs)
		vtime |= BOOST_TAKES_AT_ONCE;
	return vtime + 1;
}

/*
 * Whether a vCPU stays on the core that it was on, by how readily it takes that, where `now` is the
 * domain's virtual time: then it needn't look at any other. What it left there is still in that
 * core's caches. And who has had as much as whoever last came to a core of the domain loses no more
 * by making room than anybody: it goes behind all that wait, for about a turn. One that is further
 * back, as those are that share a crowded core, gives it up only if it has had most.
 */
static __always_inline u32 boost_stays(u64 rated, u64 now)
{
	return rated > (BOOST_TAKES_UNBOOSTED | BOOST_TAKES_AT_ONCE | now);
}

/*
 * What is left of the turn of one that was stopped in it, where `least` is the least virtual time
 * of those that wait: it may go on with that on the core where it was, whose caches are still its
 * own, and is no further ahead of who waits then than any is at a turn's end. 0: less than half.
 */
static __always_inline u64 boost_left(const struct boost_config *config, u64 vtime, u64 least)
{
	u64 ahead = vtime > least ? vtime - least : 0;

	return ahead <= config->slice_ns / 2 ? config->slice_ns - ahead : 0;
}

/*
 * Whether one that has had its turn, and has run for a time that it isn't charged yet, goes on
 * while others wait: as it does IO, or as its last event came less than half a turn ago
 * (`event_ns`; ~0: it has had none since it runs). One that computes as well, and so is seldom
 * known to do IO, would else be stopped amid an answer, if the request came as its turn ended or if
 * there was little left of its share, and wait for others' turns until it has paid for what it had.
 */
static __always_inline u32 boost_goes_on(const struct boost_config *config,
					 const struct boost_vcpu *vcpu,
					 const struct boost_guest *guest,
					 const struct boost_vcpu *waits,
					 const struct boost_guest *lender, u64 ran_ns, u64 event_ns)
{
	return (boost_does_io(config, vcpu) || event_ns < config->slice_ns / 2) &&
	       ran_ns < config->slice_max_ns &&
	       boost_allowance(config, vcpu, guest, waits->vtime, lender) > (s64)ran_ns;
}

/*
 * The virtual time of one that comes to a core where the least is `least`: who has slept keeps no
 * more than a turn of what it didn't use, and who comes from another core is no further ahead than
 * it was there.
 */
static __always_inline u64 boost_arrives(const struct boost_config *config, u64 vtime, u64 least)
{
	u64 oldest = least > config->slice_ns ? least - config->slice_ns : 0;

	return vtime < oldest ? oldest : vtime;
}

/*
 * What has a place in a domain's queue, where `now` is the domain's virtual time: virtual time, but
 * those that have had about as much as their domain, to within an eighth of a turn, go in the order
 * in which they come. Were the least first to the nanosecond, one that has had a little less, as
 * its siblings have slept, would be served again and again until it has made up for that, and those
 * that came before it would wait as long. No share is further from what it is due for it than by
 * that eighth.
 */
static __always_inline u64 boost_order(const struct boost_config *config, u64 vtime, u64 now)
{
	u64 near = config->slice_ns / 8;

	return vtime + near >= now && vtime <= now + near ? now : vtime;
}

/*
 * Whether one that comes after another in a queue is out of its place there, by what their virtual
 * times are.
 */
static __always_inline u32 boost_misplaced(const struct boost_config *config, u64 before, u64 vtime)
{
	return vtime + config->slice_ns / 4 < before;
}

/*
 * How much of what a guest's other threads have run a vCPU of it is charged for at a time, as it
 * has run for a time itself. As much as that, and a quarter of all there is, but not less than a
 * quarter of a turn: whoever has others work for it all the time pays for it as it goes, and a
 * burst, as when its emulator answers somebody, doesn't keep it from the cores for as long at a
 * stretch, with all that comes for it meanwhile. Returns ns.
 */
static __always_inline u64 boost_instalment(const struct boost_config *config, u64 late, u64 ran_ns)
{
	u64 part = late / 4, least = config->slice_ns / 4;

	part = (part < least ? least : part) + ran_ns;
	return part < late ? part : late;
}

/* What is in a pool beyond what its sleepers keep for themselves, ns. */
static __always_inline u64 boost_spare(const struct boost_config *config,
				       const struct boost_pool *pool)
{
	s64 spare = pool->left_ns - (s64)(config->slice_ns * pool->asleep);

	return spare > 0 ? (u64)spare : 0;
}

/*
 * Gives those of a pool that are awake more to have, or takes it from them if it is below zero:
 * each an equal part, to the nanosecond over time. So what they are due together is what is spare.
 * (BPF divides what is above zero only.)
 */
static __always_inline void boost_spread(struct boost_pool *pool, s64 more)
{
	u64 all, each;

	if (!pool->awake)
		return;
	if (more >= 0) {
		all = (u64)more + pool->rest_ns;
		each = all / pool->awake;
		pool->each_ns += (s64)each;
		pool->rest_ns = (u32)(all - each * pool->awake);
		return;
	}
	all = (u64)-more;
	if (all <= pool->rest_ns) {
		pool->rest_ns -= (u32)all;
		return;
	}
	all -= pool->rest_ns;
	each = (all + pool->awake - 1) / pool->awake;
	pool->each_ns -= (s64)each;
	pool->rest_ns = (u32)(each * pool->awake - all);
}

/*
 * Puts into a pool what sleepers left, or takes from it, where `spare` is what was before. They
 * keep two turns each: the one for when they wake, the other for their siblings or their guest's
 * debts.
 */
static __always_inline void boost_put(const struct boost_config *config, struct boost_pool *pool,
				      s64 more, u64 spare)
{
	s64 most = (s64)(2 * config->slice_ns * pool->asleep);

	pool->left_ns += more;
	if (pool->left_ns > most)
		pool->left_ns = most;
	boost_spread(pool, (s64)(boost_spare(config, pool) - spare));
}

/* Reckons a pool up to its domain's virtual time. */
static __always_inline void boost_reckon(const struct boost_config *config, struct boost_pool *pool,
					 u64 now)
{
	u64 most = 2 * config->slice_ns, went = now - pool->seen;

	if (now <= pool->seen)
		return;
	if (went > most)
		went = most;
	pool->seen = now;
	boost_put(config, pool, (s64)(went * pool->asleep), boost_spare(config, pool));
}

/*
 * What a vCPU of a virtual time brings into its guest's pool, or takes out: what it didn't use, ns,
 * two turns at most.
 */
static __always_inline s64 boost_unused(const struct boost_config *config, u64 vtime, u64 now)
{
	s64 unused = (s64)(now - vtime), most = (s64)(2 * config->slice_ns);

	return unused > most ? most : unused;
}

/* A vCPU is awake from now on: nothing is due to it yet, or, as the only one, all there is. */
static __always_inline void boost_counts(const struct boost_config *config, struct boost_pool *pool,
					 struct boost_vcpu *vcpu)
{
	vcpu->had_ns = pool->each_ns;
	if (!pool->awake) {
		vcpu->had_ns -= (s64)boost_spare(config, pool);
		pool->rest_ns = 0;
	}
	pool->awake++;
}

/* It is so no longer: what is due to it yet is those', that are. */
static __always_inline void boost_counts_not(struct boost_pool *pool, const struct boost_vcpu *vcpu)
{
	if (pool->awake)
		pool->awake--;
	boost_spread(pool, pool->each_ns - vcpu->had_ns);
}

/* A guest's vCPUs are told apart by domain, so many, a power of two; those in more have no pool. */
#define BOOST_POOLS 4

/* The pool of a number, or NULL. */
static __always_inline struct boost_pool *boost_pool_at(struct boost_pool *pools, u32 number)
{
	return number ? &pools[(number - 1) % BOOST_POOLS] : 0;
}

/*
 * A vCPU comes to a domain, awake: it is in its guest's pool there. Returns the pool's number, from
 * 1 on; 0: all are taken.
 */
static __always_inline u32 boost_joins(const struct boost_config *config, struct boost_pool *pools,
				       struct boost_vcpu *vcpu, u32 domain, u64 now)
{
	struct boost_pool *pool;
	u32 found = 0;

	for (u32 at = BOOST_POOLS; at > 0; at--) {
		if (!pools[at - 1].asleep && !pools[at - 1].awake)
			found = at;
	}
	for (u32 at = 0; at < BOOST_POOLS; at++) {
		if ((pools[at].asleep || pools[at].awake) && pools[at].domain == domain)
			found = at + 1;
	}
	pool = boost_pool_at(pools, found);
	if (!pool)
		return 0;
	/* Who kept more of it than was there has gone. */
	if (!pool->asleep && !pool->awake)
		pool->left_ns = 0;
	pool->domain = domain;
	boost_reckon(config, pool, now);
	boost_counts(config, pool, vcpu);
	return found;
}

/* One that is awake goes from a domain, or is gone. */
static __always_inline void boost_leaves(const struct boost_config *config, struct boost_pool *pool,
					 const struct boost_vcpu *vcpu, u64 now)
{
	boost_reckon(config, pool, now);
	boost_counts_not(pool, vcpu);
}

/*
 * A vCPU falls asleep. What those that woke kept of more than was there, this makes up for first: a
 * turn for each at most.
 */
static __always_inline void boost_sleeps(const struct boost_config *config, struct boost_pool *pool,
					 const struct boost_vcpu *vcpu, u64 now)
{
	u64 spare;
	s64 least;

	boost_reckon(config, pool, now);
	boost_counts_not(pool, vcpu);
	spare = boost_spare(config, pool);
	least = -(s64)(config->slice_ns * (pool->awake + 1));
	if (!pool->asleep && pool->left_ns < least)
		pool->left_ns = least;
	pool->asleep++;
	boost_put(config, pool, boost_unused(config, vcpu->vtime, now), spare);
}

/*
 * A vCPU wakes where `least` is the least virtual time, and has out of the pool again what it keeps
 * there. That is a turn where those that it meets have had as much as their domain. They may be
 * behind it by a turn of their own, as who runs is charged at its end: what one keeps more for that
 * mustn't be left to its siblings as well, each time that it sleeps.
 */
static __always_inline void boost_wakes(const struct boost_config *config, struct boost_pool *pool,
					struct boost_vcpu *vcpu, u64 least, u64 now)
{
	u64 keeps = boost_arrives(config, vcpu->vtime, least), spare;

	boost_reckon(config, pool, now);
	spare = boost_spare(config, pool);
	if (pool->asleep)
		pool->asleep--;
	boost_put(config, pool, -boost_unused(config, keeps, now), spare);
	boost_counts(config, pool, vcpu);
}

/*
 * What a vCPU is due of what its siblings leave, ns. It is no more than its part of the most that
 * they leave: what is beyond it has had no use for, and those have it that are awake beside it.
 */
static __always_inline s64 boost_part(const struct boost_config *config, struct boost_pool *pool,
				      struct boost_vcpu *vcpu)
{
	s64 part = pool->each_ns - vcpu->had_ns, most, each;

	if (pool->awake < 2)
		return part;
	most = (s64)(config->slice_ns * pool->asleep / pool->awake);
	if (part <= most)
		return part;
	each = pool->each_ns;
	pool->awake--;
	boost_spread(pool, part - most);
	pool->awake++;
	vcpu->had_ns += part - most + (pool->each_ns - each);
	return most;
}

/*
 * How much of what a vCPU has run, or is charged for, those of its siblings bear that sleep, where
 * `vtime` is its virtual time if it bears that itself: its part of what they leave, an equal one
 * for each that is awake. Were it all that is there, one that is charged more often than its
 * siblings would have it all, go before them for it, and be charged more often still.
 *
 * That may bring it behind its domain, or one that is due a core of its own could never have it, as
 * others of the same virtual time would go before it half of the time. Nobody is further behind
 * than a turn for it: who can't run any more than it does saves nothing for later. Returns ns.
 */
static __always_inline u64 boost_bear(const struct boost_config *config, struct boost_pool *pool,
				      struct boost_vcpu *vcpu, u64 vtime, u64 now, u64 ran_ns)
{
	s64 most = (s64)(vtime - now) + (s64)config->slice_ns, part, bear;

	boost_reckon(config, pool, now);
	part = boost_part(config, pool, vcpu);
	bear = (s64)boost_spare(config, pool);
	if (bear > part)
		bear = part;
	if (bear > (s64)ran_ns)
		bear = (s64)ran_ns;
	if (bear > most)
		bear = most;
	if (bear <= 0)
		return 0;
	pool->left_ns -= bear;
	vcpu->had_ns += bear;
	return (u64)bear;
}

/*
 * A vCPU wakes where `least` is the least virtual time, that of one that waits or runs there: what
 * it is about to lose, and no sibling has had, pays what its guest owes. A turn at most, each time,
 * as whoever is paid goes before all others for it. It is still in its guest's pool, if it was in
 * one. Returns what was paid, ns.
 */
static __always_inline u64 boost_redeem(const struct boost_config *config, struct boost_vcpu *vcpu,
					struct boost_guest *guest, struct boost_vcpu *waits,
					struct boost_guest *paid, u64 least,
					struct boost_pool *pool, u64 now)
{
	u64 lost = boost_arrives(config, vcpu->vtime, least) - vcpu->vtime, pay, spare = 0;

	if (lost > config->slice_ns)
		lost = config->slice_ns;
	if (pool) {
		boost_reckon(config, pool, now);
		spare = boost_spare(config, pool);
		if (lost > spare)
			lost = spare;
	}
	pay = boost_give(vcpu, guest, waits, paid, lost);
	if (pool)
		boost_put(config, pool, -(s64)pay, spare);
	return pay;
}

#endif
