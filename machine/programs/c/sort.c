// Work that isn't a loop without memory: numbers are made, sorted by heapsort and searched for.
// Parameters: how many numbers; how often. Each time prints what it took, ns, and in the end a sum
// by which to tell that all of it was done.
#include "machine.h"

#define MOST 0x80000UL

static u64 numbers[MOST];
static u64 seed;

static u64 next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

// Below `root` all is a heap; it becomes part of it.
static void sift(u64 root, u64 count)
{
	u64 number = numbers[root], child;
	while ((child = 2 * root + 1) < count) {
		if (child + 1 < count && numbers[child] < numbers[child + 1])
			child++;
		if (numbers[child] <= number)
			break;
		numbers[root] = numbers[child];
		root = child;
	}
	numbers[root] = number;
}

static void sort(u64 count)
{
	for (u64 at = count / 2; at-- > 0;)
		sift(at, count);
	for (u64 end = count; --end > 0;) {
		u64 most = numbers[0];
		numbers[0] = numbers[end];
		numbers[end] = most;
		sift(0, end);
	}
}

// How many are less than `wanted`.
static u64 below(u64 wanted, u64 count)
{
	u64 from = 0, to = count;
	while (from < to) {
		u64 middle = from + (to - from) / 2;
		if (numbers[middle] < wanted)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

void run(void)
{
	u64 count = parameter(0), times = parameter(1), sum = 0;
	if (count > MOST)
		count = MOST;
	seed = 88172645463325252UL;
	while (count && times--) {
		u64 from = now();
		for (u64 i = 0; i < count; i++)
			numbers[i] = next();
		sort(count);
		for (u64 i = 0; i < count; i++)
			sum += below(next(), count);
		say("SORT", now() - from);
	}
	say("SUM", sum);
	off();
}
