/* From PVH's entry (32 bits, no paging) to C: 512 GiB mapped one to one by pages of 1 GiB. */
	.section .note.pvh, "a", @note
	.align 4
	.long 4, 4, 18 /* XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz "Xen"
	.long start

	.text
	.code32
	.globl start
start:
	cli
	movl $stack_top, %esp
	movl $directory, %eax
	orl $3, %eax
	movl %eax, root
	xorl %ecx, %ecx
1:	movl %ecx, %eax
	shll $30, %eax
	orl $0x83, %eax /* present, writable, large */
	movl %eax, directory(, %ecx, 8)
	movl %ecx, %eax
	shrl $2, %eax
	movl %eax, directory + 4(, %ecx, 8)
	incl %ecx
	cmpl $512, %ecx
	jne 1b
	movl $root, %eax
	movl %eax, %cr3
	movl %cr4, %eax
	orl $0x620, %eax /* PAE, SSE */
	movl %eax, %cr4
	movl $0xc0000080, %ecx
	rdmsr
	orl $0x100, %eax /* long mode */
	wrmsr
	movl %cr0, %eax
	andl $~4, %eax
	orl $0x80000003, %eax
	movl %eax, %cr0
	lgdt gdt_pointer
	ljmp $8, $2f

	.code64
2:	movw $16, %ax
	movw %ax, %ds
	movw %ax, %es
	movw %ax, %ss
	movq $stack_top, %rsp
	call run
3:	hlt
	jmp 3b

	.globl interrupt_entry
interrupt_entry:
	push %rax
	push %rcx
	push %rdx
	push %rsi
	push %rdi
	push %r8
	push %r9
	push %r10
	push %r11
	call interrupt
	pop %r11
	pop %r10
	pop %r9
	pop %r8
	pop %rdi
	pop %rsi
	pop %rdx
	pop %rcx
	pop %rax
	iretq

	.globl fault_entry
fault_entry:
	movq (%rsp), %rdi
	movq 8(%rsp), %rsi
	call fault

	.data
	.align 8
gdt:	.quad 0
	.quad 0x00af9a000000ffff
	.quad 0x00cf92000000ffff
gdt_pointer:
	.word 23
	.long gdt

	.bss
	.align 4096
root:	.skip 4096
directory:
	.skip 4096
	.skip 16384
stack_top:
