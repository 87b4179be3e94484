// What a load takes that nothing but memory can serve: a walk through memory that nobody has
// touched, whose every address follows from what was loaded before it. Parameters: steps; up to
// three addresses of memory, all zeros, to walk from.
#include "machine.h"

// Not the next line or the one after: those would be on their way already.
#define STRIDE 256

static __attribute__((noinline, noclone)) u64 walk(u64 at, u64 stride, u64 steps)
{
	u64 from = now();
	for (u64 i = 0; i < steps; i++)
		at += stride + AT(u64, at);
	return now() - from;
}

void run(void)
{
	static const char *const words[] = {"FIRST", "SECOND", "THIRD"};
	static u64 zero;
	u64 steps = parameter(0);
	// Once for the code to be in the caches, and then for what the loop and a hit take.
	walk((u64)&zero, 0, steps);
	say("WARM", walk((u64)&zero, 0, steps));
	for (int i = 0; i < 3; i++)
		if (parameter(1 + i))
			say(words[i], walk(parameter(1 + i), STRIDE, steps));
	off();
}
