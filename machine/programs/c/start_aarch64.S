/* From QEMU's entry (EL1, no MMU) to C: 512 GiB mapped one to one by blocks of 1 GiB. The first, and all from 252 GiB on, is
   devices. */
	.text
	.globl start
start:
	ldr x0, =stack_top
	mov sp, x0
	ldr x0, =directory
	mov x1, #0
	mov x4, #0x401 /* block, accessed, device */
	mov x5, #0x705 /* block, accessed, inner shareable, normal */
1:	lsl x2, x1, #30
	cmp x1, #0
	csel x3, x4, x5, eq
	cmp x1, #252
	csel x3, x4, x3, hs
	orr x2, x2, x3
	str x2, [x0, x1, lsl #3]
	add x1, x1, #1
	cmp x1, #512
	b.ne 1b
	msr ttbr0_el1, x0
	ldr x1, =0xff00 /* attribute 0: device; 1: write-back */
	msr mair_el1, x1
	ldr x1, =(25 | (1 << 8) | (1 << 10) | (3 << 12) | (1 << 23) | (2 << 32))
	msr tcr_el1, x1
	isb
	tlbi vmalle1
	dsb sy
	mrs x1, sctlr_el1
	ldr x2, =0x1005
	orr x1, x1, x2
	msr sctlr_el1, x1
	isb
	ldr x0, =vectors
	msr vbar_el1, x0
	isb
	bl run
2:	wfi
	b 2b

	.align 11
vectors:
	.rept 4
	b fault_entry
	.align 7
	.endr
	b fault_entry
	.align 7
	b interrupt_entry
	.align 7
	.rept 10
	b fault_entry
	.align 7
	.endr

fault_entry:
	mrs x0, elr_el1
	mrs x1, esr_el1
	bl fault

interrupt_entry:
	sub sp, sp, #160
	stp x0, x1, [sp]
	stp x2, x3, [sp, #16]
	stp x4, x5, [sp, #32]
	stp x6, x7, [sp, #48]
	stp x8, x9, [sp, #64]
	stp x10, x11, [sp, #80]
	stp x12, x13, [sp, #96]
	stp x14, x15, [sp, #112]
	stp x16, x17, [sp, #128]
	stp x18, x30, [sp, #144]
	bl interrupt
	ldp x0, x1, [sp]
	ldp x2, x3, [sp, #16]
	ldp x4, x5, [sp, #32]
	ldp x6, x7, [sp, #48]
	ldp x8, x9, [sp, #64]
	ldp x10, x11, [sp, #80]
	ldp x12, x13, [sp, #96]
	ldp x14, x15, [sp, #112]
	ldp x16, x17, [sp, #128]
	ldp x18, x30, [sp, #144]
	add sp, sp, #160
	eret

	.bss
	.align 12
directory:
	.skip 4096
	.skip 16384
stack_top:
