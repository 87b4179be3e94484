// The clock: what a counted loop takes, and whether timers come on time, to a core that sleeps and
// to one that runs. Parameters: rounds of the loop; figures of each kind; the timer's ns.
#include "machine.h"

void run(void)
{
	u64 rounds = parameter(0), figures = parameter(1), ns = parameter(2);
	interrupts();
	for (u64 i = 0; i < figures; i++) {
		u64 from = now();
		loop(rounds);
		say("LOOP", now() - from);
	}
	for (u64 i = 0; i < figures; i++) {
		u64 from = now(), before = timer_count;
		timer(ns);
		while (timer_count == before)
			wait();
		say("ASLEEP", timer_at - from);
	}
	for (u64 i = 0; i < figures; i++) {
		u64 from = now(), before = timer_count;
		timer(ns);
		interrupts_on();
		while (timer_count == before)
			relax();
		interrupts_off();
		say("AWAKE", timer_at - from);
	}
	off();
}
