// A line of memory that goes to and fro between two fused machines, each of which writes it and
// rings the other, so that no two ever run at once. Both boot this. Parameters: rounds; the address
// of memory that both see.
#include "machine.h"

static u64 shared;
#define BALL (shared + 0x2000)
#define READY (shared + 0x1040)
// Rounds in which code and data come into the caches.
#define COLD 3

static void meet(u64 stage)
{
	AT(u64, READY + ME * 64) = stage;
	while (AT(u64, READY + !ME * 64) < stage)
		relax();
}

static __attribute__((noinline, noclone)) u64 read(u64 *value)
{
	u64 from = now();
	*value = AT(u64, BALL);
	return now() - from;
}

void run(void)
{
	u64 rounds = parameter(0) + COLD, least = ~0UL, most = 0, warm = 0, broken = 0;
	shared = parameter(1);
	interrupts();
	bell_open();
	meet(1);
	for (u64 i = 0; i < rounds; i++) {
		u64 before = bell_count, value;
		if (ME == 0) {
			AT(u64, BALL) = 2 * i + 1;
			bell_ring(0);
		}
		while (bell_count == before)
			wait();
		u64 took = read(&value);
		broken += value != 2 * i + 1 + !ME;
		warm = read(&value);
		if (i >= COLD) {
			least = took < least ? took : least;
			most = took > most ? took : most;
		}
		if (ME == 1) {
			AT(u64, BALL) = 2 * i + 2;
			bell_ring(0);
		}
	}
	meet(2);
	say("BROKEN", broken);
	say("LEAST", least);
	say("MOST", most);
	say("WARM", warm);
	off();
}
