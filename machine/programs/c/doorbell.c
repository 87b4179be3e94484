// Interrupts between fused machines. Both run this. Parameters: rounds; what the waiting machine
// does meanwhile: 0 sleeps, 1 runs, 2 walks through memory; memory that both see; 64 MiB to walk
// through. The first rings and waits for the answer, each round.
#include "machine.h"

static u64 shared;
#define SENT (shared + 0x1000)
#define READY (shared + 0x1040)

static void meet(u64 stage)
{
	AT(u64, READY + ME * 64) = stage;
	while (AT(u64, READY + !ME * 64) < stage)
		relax();
}

// In one block of code, so that a doorbell mostly comes while it is executed.
static void walk(void)
{
	static u64 at;
	u64 from = parameter(3) + (at & 0x3ffffff);
#define LOAD(n) (void)AT(u64, from + (n) * 256)
#define LOADS(n) LOAD(n), LOAD(n + 1), LOAD(n + 2), LOAD(n + 3)
	LOADS(0), LOADS(4), LOADS(8), LOADS(12);
	at += 16 * 256;
}

static void hear(u64 before, int awake)
{
	if (!awake) {
		while (bell_count == before)
			wait();
		return;
	}
	interrupts_on();
	while (bell_count == before) {
		if (awake == 2)
			walk();
		else
			relax();
	}
	interrupts_off();
}

void run(void)
{
	u64 rounds = parameter(0), awake = parameter(1), latency = AT(u64, DOORBELL + 0x18);
	u64 least = ~0UL, most = 0;
	shared = parameter(2);
	interrupts();
	bell_open();
	say("MACHINE", AT(u64, DOORBELL + 0x08));
	say("LATENCY", latency);
	meet(1);
	for (u64 i = 0; i < rounds; i++) {
		u64 before = bell_count;
		if (ME == 0) {
			AT(u64, SENT) = 0; // so that the line is here when the time is taken
			AT(u64, SENT) = now();
			bell_ring(0);
			hear(before, awake);
			// From the other's ring, by the other's clock, to the interrupt, by ours.
		} else {
			hear(before, awake);
		}
		u64 took = bell_at - AT(u64, SENT);
		if (took < least)
			least = took;
		if (took > most)
			most = took;
		if (ME == 1) {
			AT(u64, SENT) = 0; // so that the line is here when the time is taken
			AT(u64, SENT) = now();
			bell_ring(0);
		}
	}
	meet(2);
	say("HEARD", bell_count);
	say("LEAST", least);
	say("MOST", most);
	off();
}
