// What a program without an operating system needs of its machine, the same for both instruction
// sets.
#pragma once

typedef unsigned long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

#define AT(type, address) (*(volatile type *)(address))

#ifdef __x86_64__
// This machine's number among the fused ones.
#define ME 0
#define ISA "x86-64"
#else
#define ME 1
#define ISA "aarch64"
#endif

// Interrupts so far: the timer's, the doorbell's, and when the last one of each was taken, ns.
extern volatile u64 timer_count, bell_count, timer_at, bell_at;

// The machine's clock, ns.
u64 now(void);
// Sets interrupts up. They stay masked but in wait() and between on() and off().
void interrupts(void);
void interrupts_on(void);
void interrupts_off(void);
// Halts until there has been an interrupt.
void wait(void);
// One interrupt of the timer in so many ns.
void timer(u64 ns);
// Two instructions, so often.
void loop(u64 rounds);
// A hint that this is a loop that waits.
void relax(void);
// Turns the machine off.
void off(void) __attribute__((noreturn));

// Prints "WORD NUMBER".
void say(const char *word, u64 number);
// Numbers that whoever starts the program has written into its image.
u64 parameter(int index);

// The program.
void run(void);

// The doorbell between machines: see machine/time/src/doorbell.rs.
#define DOORBELL 0x3f00000000UL
#define BELL_ADDRESS 0x20
#define BELL_DATA 0x28
#define BELL_RING 0x30
// Where the AArch64 machine's doorbell interrupts come in: this one and one per core.
#define BELL_SPI 160

void bell_open(void);
// Rings a core of the other machine.
void bell_ring(u64 core);
