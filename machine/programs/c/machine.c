// The machines: their clocks, timers, interrupts and serial lines.
#include "machine.h"

volatile u64 timer_count, bell_count, timer_at, bell_at;

static volatile struct {
	char magic[16];
	u64 words[6];
} parameters __attribute__((section(".data"))) = {"ostler-parameter", {0}};

u64 parameter(int index)
{
	return parameters.words[index];
}

void interrupt(void);
void fault(u64 at, u64 why) __attribute__((noreturn));
static void put(char c);

#ifdef __x86_64__

#define APIC 0xfee00000UL
#define TIMER_VECTOR 0x41
#define BELL_VECTOR 0x42

void interrupt_entry(void);
void fault_entry(void);

static struct {
	u64 low, high;
} table[256];

static void out8(u16 port, u8 value)
{
	__asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port));
}

static void out16(u16 port, u16 value)
{
	__asm__ volatile("outw %0, %1" ::"a"(value), "Nd"(port));
}

static void put(char c)
{
	out8(0x3f8, (u8)c);
}

u64 now(void)
{
	u32 low, high;
	__asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high));
	return (u64)high << 32 | low;
}

void interrupts(void)
{
	struct __attribute__((packed)) {
		u16 limit;
		u64 base;
	} pointer = {sizeof table - 1, (u64)table};
	out8(0x21, 0xff);
	out8(0xa1, 0xff);
	for (int i = 0; i < 256; i++) {
		u64 to = (u64)(i < 32 ? fault_entry : interrupt_entry);
		table[i].low = (to & 0xffff) | 8UL << 16 | 0x8eUL << 40 | (to >> 16 & 0xffff) << 48;
		table[i].high = to >> 32;
	}
	__asm__ volatile("lidt %0" ::"m"(pointer));
	AT(u32, APIC + 0xf0) = 0x1ff;
	AT(u32, APIC + 0x80) = 0;
}

void interrupts_on(void)
{
	__asm__ volatile("sti" ::: "memory");
}

void interrupts_off(void)
{
	__asm__ volatile("cli" ::: "memory");
}

void wait(void)
{
	__asm__ volatile("sti; hlt; cli" ::: "memory");
}

void timer(u64 ns)
{
	AT(u32, APIC + 0x3e0) = 0xb; // a tick is a nanosecond
	AT(u32, APIC + 0x320) = TIMER_VECTOR;
	AT(u32, APIC + 0x380) = (u32)ns;
}

static int in_service(int vector)
{
	return AT(u32, APIC + 0x100 + (u64)(vector / 32) * 16) >> (vector % 32) & 1;
}

void interrupt(void)
{
	u64 time = now();
	if (in_service(BELL_VECTOR)) {
		bell_at = time;
		bell_count++;
	} else if (in_service(TIMER_VECTOR)) {
		timer_at = time;
		timer_count++;
	}
	AT(u32, APIC + 0xb0) = 0;
}

void loop(u64 rounds)
{
	__asm__ volatile("1: dec %0; jnz 1b" : "+r"(rounds)::"cc");
}

void relax(void)
{
	__asm__ volatile("pause");
}

void off(void)
{
	for (;;)
		out16(0x604, 0x2000);
}

void bell_open(void)
{
	AT(u64, DOORBELL + BELL_ADDRESS) = APIC;
	AT(u64, DOORBELL + BELL_DATA) = BELL_VECTOR;
}

#else

#define DISTRIBUTOR 0x08000000UL
#define REDISTRIBUTOR 0x080a0000UL
#define SERIAL 0x09000000UL
#define TIMER_INTERRUPT 27
#define BELL_INTERRUPT (32 + BELL_SPI)

static void put(char c)
{
	AT(u32, SERIAL) = (u32)c;
}

static u64 frequency(void)
{
	u64 hz;
	__asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
	return hz;
}

u64 now(void)
{
	u64 ticks;
	__asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks * (1000000000UL / frequency());
}

void interrupts(void)
{
	const u64 bell = BELL_INTERRUPT;
	AT(u32, DISTRIBUTOR) = 0x37;				    // both groups, affinity routing
	__asm__ volatile("msr s3_0_c12_c12_5, %0; isb" ::"r"(7UL)); // ICC_SRE_EL1
	AT(u32, REDISTRIBUTOR + 0x14) &= ~2U;
	while (AT(u32, REDISTRIBUTOR + 0x14) & 4)
		;
	AT(u32, REDISTRIBUTOR + 0x10080) = ~0U; // group 1
	AT(u32, REDISTRIBUTOR + 0x10100) = 1U << TIMER_INTERRUPT;
	AT(u32, DISTRIBUTOR + 0x080 + bell / 32 * 4) |= 1U << bell % 32;     // group 1
	AT(u32, DISTRIBUTOR + 0xc00 + bell / 16 * 4) |= 2U << bell % 16 * 2; // by its edge
	AT(u8, DISTRIBUTOR + 0x400 + bell) = 0x80;
	AT(u64, DISTRIBUTOR + 0x6000 + bell * 8) = 0; // to core 0
	AT(u32, DISTRIBUTOR + 0x100 + bell / 32 * 4) = 1U << bell % 32;
	__asm__ volatile("msr s3_0_c4_c6_0, %0; isb" ::"r"(0xffUL)); // ICC_PMR_EL1
	__asm__ volatile("msr s3_0_c12_c12_7, %0; isb" ::"r"(1UL));  // ICC_IGRPEN1_EL1
}

void interrupts_on(void)
{
	__asm__ volatile("msr daifclr, #2" ::: "memory");
}

void interrupts_off(void)
{
	__asm__ volatile("msr daifset, #2" ::: "memory");
}

void wait(void)
{
	__asm__ volatile("dsb sy; wfi; msr daifclr, #2; isb; msr daifset, #2" ::: "memory");
}

void timer(u64 ns)
{
	u64 ticks = ns / (1000000000UL / frequency());
	__asm__ volatile("msr cntv_tval_el0, %0; msr cntv_ctl_el0, %1; isb" ::"r"(ticks), "r"(1UL));
}

void interrupt(void)
{
	u64 time = now(), id;
	__asm__ volatile("mrs %0, s3_0_c12_c12_0" : "=r"(id)); // ICC_IAR1_EL1
	if (id == TIMER_INTERRUPT) {
		timer_at = time;
		timer_count++;
		__asm__ volatile("msr cntv_ctl_el0, xzr; isb");
	} else if (id == BELL_INTERRUPT) {
		bell_at = time;
		bell_count++;
	}
	if (id < 1020)
		__asm__ volatile("msr s3_0_c12_c12_1, %0; isb" ::"r"(id)); // ICC_EOIR1_EL1
}

void loop(u64 rounds)
{
	__asm__ volatile("1: subs %0, %0, #1; b.ne 1b" : "+r"(rounds)::"cc");
}

void relax(void)
{
	__asm__ volatile("yield");
}

void off(void)
{
	register u64 x0 __asm__("x0") = 0x84000008; // PSCI: system off
	for (;;)
		__asm__ volatile("hvc #0" : "+r"(x0)::"memory");
}

void bell_open(void)
{
	AT(u64, DOORBELL + BELL_ADDRESS) = 0;
	AT(u64, DOORBELL + BELL_DATA) = BELL_SPI;
}

#endif

void bell_ring(u64 core)
{
	AT(u64, DOORBELL + BELL_RING) = (u64)!ME << 32 | core;
}

static void text(const char *s)
{
	while (*s)
		put(*s++);
}

static void number(u64 value)
{
	char digits[20];
	int n = 0;
	do
		digits[n++] = (char)('0' + value % 10);
	while (value /= 10);
	while (n)
		put(digits[--n]);
}

void say(const char *word, u64 value)
{
	text(word);
	put(' ');
	number(value);
	put('\n');
}

void fault(u64 at, u64 why)
{
	say("FAULT", at);
	say("WHY", why);
	off();
}
