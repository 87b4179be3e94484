// What two machines' accesses to the same memory may come to. Both run this. Parameters: operations
// of each kind; rounds of store buffering; where the shared memory is.
#include "machine.h"

struct line {
	volatile u64 word;
	u64 rest[15];
};

static struct shared {
	struct line added, exchanged, locked, lock, data, flag, ready[2], mine[2], seen[2];
} *shared;

static u64 stage;

// Waits for the other.
static void meet(void)
{
	__atomic_store_n(&shared->ready[ME].word, ++stage, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&shared->ready[!ME].word, __ATOMIC_SEQ_CST) < stage)
		relax();
}

static void fence(void)
{
#ifdef __x86_64__
	__asm__ volatile("mfence" ::: "memory");
#else
	__asm__ volatile("dmb ish" ::: "memory");
#endif
}

static void count(u64 times)
{
	for (u64 i = 0; i < times; i++)
		__atomic_fetch_add(&shared->added.word, 1, __ATOMIC_SEQ_CST);
	for (u64 i = 0; i < times; i++) {
		u64 old = __atomic_load_n(&shared->exchanged.word, __ATOMIC_RELAXED);
		while (!__atomic_compare_exchange_n(&shared->exchanged.word, &old, old + 1, 0,
						    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			;
	}
	for (u64 i = 0; i < times; i++) {
		while (__atomic_exchange_n(&shared->lock.word, 1, __ATOMIC_ACQUIRE))
			relax();
		shared->locked.word = shared->locked.word + 1;
		__atomic_store_n(&shared->lock.word, 0, __ATOMIC_RELEASE);
	}
	meet();
	say("ADDED", shared->added.word);
	say("EXCHANGED", shared->exchanged.word);
	say("LOCKED", shared->locked.word);
}

// Message passing, with ordinary accesses: who sees the flag sees the data. One way, then the
// other.
static void pass(u64 times)
{
	for (int writer = 0; writer < 2; writer++) {
		u64 broken = 0, passed = 0;
		meet();
		shared->data.word = 0;
		shared->flag.word = 0;
		meet();
		if (ME == writer) {
			for (u64 i = 1; i <= times; i++) {
				shared->data.word = i;
				shared->flag.word = i;
			}
		} else {
			for (u64 flag = 0; flag < times;) {
				u64 last = flag;
				flag = shared->flag.word;
				broken += shared->data.word < flag;
				passed += flag != last;
			}
			say("PASSED", passed);
			say("BROKEN", broken);
		}
	}
}

// Store buffering: each stores, and loads what the other stores. Without a fence both may miss the
// other's store; with one, never.
static void buffer(u64 times, int fenced)
{
	u64 both = 0;
	for (u64 i = 1; i <= times; i++) {
		meet();
		shared->mine[ME].word = i;
		if (fenced)
			fence();
		shared->seen[ME].word = shared->mine[!ME].word;
		meet();
		both += shared->seen[0].word < i && shared->seen[1].word < i;
	}
	say(fenced ? "FENCED" : "UNFENCED", both);
}

void run(void)
{
	u64 times = parameter(0), rounds = parameter(1);
	shared = (struct shared *)parameter(2);
	u64 from = now();
	meet();
	count(times);
	pass(times);
	buffer(rounds, 0);
	buffer(rounds, 1);
	meet();
	say("TOOK", now() - from);
	off();
}
