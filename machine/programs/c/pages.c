// What it costs a machine to use the other's data where it lies, line by line, kept coherent by
// hardware; and by software, which copies whole pages by messages, as multikernels do. Both boot
// this; first the one reads what the other has written, then the other way round. The one that
// reads is in charge: it asks by a word in memory and a doorbell, and sleeps until the answer.
// Parameters: pages; memory that both see, zeros, for messages; this machine's pages; the other's
// pages; as much memory of this machine's own.
#include "machine.h"

#define WORDS 512 // of a page
#define LINE_WORDS 8
#define MOST_LINES 64
#define ROUNDS 16 // pages that a figure of fig. 4.12's is the mean of

#define READY (shared + 0x40)
#define REQUEST (shared + 0x100)
#define ARGUMENT (shared + 0x108)
#define MESSAGE (shared + 0x1000)

// What the one that reads asks for.
enum { WRITE_ALL, SEND_PAGE, CHANGE_ROLES };

static u64 shared, pages, mine, others, own, broken;
// Doorbells that were waited for. Each side rings once and waits for one, in turn.
static u64 heard;

static void meet(u64 stage)
{
	AT(u64, READY + ME * 64) = stage;
	while (AT(u64, READY + !ME * 64) < stage)
		relax();
}

static void write(u64 at, u64 words, u64 value)
{
	for (u64 i = 0; i < words; i++)
		AT(u64, at + 8 * i) = value + i;
}

static void copy(u64 to, u64 from, u64 words)
{
	for (u64 i = 0; i < words; i++)
		AT(u64, to + 8 * i) = AT(u64, from + 8 * i);
}

// Reads words in order, which count up from a value.
static __attribute__((noinline, noclone)) void read(u64 at, u64 words, u64 value)
{
	u64 sum = 0;
	for (u64 i = 0; i < words; i++)
		sum += AT(u64, at + 8 * i);
	broken += sum != words * value + words * (words - 1) / 2;
}

static void hear(void)
{
	while (bell_count == heard)
		wait();
	heard++;
}

static void tell(u64 request, u64 argument)
{
	AT(u64, ARGUMENT) = argument;
	AT(u64, REQUEST) = request;
	bell_ring(0);
}

static void ask(u64 request, u64 argument)
{
	tell(request, argument);
	hear();
}

// Does what the other asks until it asks for the other's role.
static void serve(void)
{
	for (;;) {
		hear();
		u64 argument = AT(u64, ARGUMENT);
		switch (AT(u64, REQUEST)) {
		case WRITE_ALL:
			write(mine, pages * WORDS, argument);
			break;
		case SEND_PAGE:
			copy(MESSAGE, mine + argument * 8 * WORDS, WORDS);
			break;
		default:
			return;
		}
		bell_ring(0);
	}
}

// The software's way: a page is asked for and copied to one's own memory before it is used.
static void fetch(u64 page)
{
	ask(SEND_PAGE, page);
	copy(own + page * 8 * WORDS, MESSAGE, WORDS);
}

static u64 direct_lines(u64 lines, u64 value)
{
	u64 from = now();
	for (u64 page = 0; page < ROUNDS; page++)
		read(others + page * 8 * WORDS, lines * LINE_WORDS, value + page * WORDS);
	return (now() - from) / ROUNDS;
}

static u64 copied_lines(u64 lines, u64 value)
{
	u64 from = now();
	for (u64 page = 0; page < ROUNDS; page++) {
		fetch(page);
		read(own + page * 8 * WORDS, lines * LINE_WORDS, value + page * WORDS);
	}
	return (now() - from) / ROUNDS;
}

static u64 read_all(u64 at, u64 value)
{
	u64 from = now();
	read(at, pages * WORDS, value);
	return now() - from;
}

static void measure(void)
{
	u64 value = 1 + ME, all[5];
	write(own, pages * WORDS, value);
	all[0] = read_all(own, value);
	ask(WRITE_ALL, ++value);
	all[1] = read_all(others, value);
	all[2] = read_all(others, value);
	ask(WRITE_ALL, ++value);
	u64 from = now();
	for (u64 page = 0; page < pages; page++) {
		fetch(page);
		read(own + page * 8 * WORDS, WORDS, value + page * WORDS);
	}
	all[3] = now() - from;
	all[4] = read_all(own, value);

	u64 direct[7], copied[7];
	for (u64 at = 0, lines = 1; lines <= MOST_LINES; lines *= 2, at++) {
		// Written anew each time, so that each line is the other's.
		ask(WRITE_ALL, ++value);
		direct[at] = direct_lines(lines, value);
		ask(WRITE_ALL, ++value);
		copied[at] = copied_lines(lines, value);
	}
	static const char *const words[] = {"OWN", "DIRECT", "AGAIN", "COPIED", "REPLICA"};
	for (int i = 0; i < 5; i++)
		say(words[i], all[i]);
	for (int at = 0; at < 7; at++) {
		say("LINES", 1UL << at);
		say("LINES-DIRECT", direct[at]);
		say("LINES-COPIED", copied[at]);
	}
}

void run(void)
{
	pages = parameter(0);
	shared = parameter(1);
	mine = parameter(2);
	others = parameter(3);
	own = parameter(4);
	interrupts();
	bell_open();
	meet(1);
	for (int reader = 0; reader < 2; reader++) {
		if (reader != ME) {
			serve();
			continue;
		}
		measure();
		tell(CHANGE_ROLES, 0);
	}
	meet(2);
	say("BROKEN", broken);
	off();
}
