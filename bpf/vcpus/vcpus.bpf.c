// SPDX-License-Identifier: GPL-2.0
/*
 * Which thread runs which vCPU, by the physical address of the vCPU's VMCB.
 *
 * An emulated machine counts what its cores do for each VMCB (crates/ostler-abi/src/pmu); here is
 * told whose it is. kvm_amd's own types are looked up when this is loaded, so it is a program of
 * its own: without that module, or without its type information, only this is missing.
 */
#include "ostler_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

/* VMCBs that are known at once; those entered longest ago are forgotten first. */
#define VMCBS_MAX 1024

/* From the physical address to the process (high half) and the thread (low half). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, VMCBS_MAX);
	__type(key, __u64);
	__type(value, __u64);
} vmcbs SEC(".maps");

SEC("raw_tp/kvm_entry")
int on_kvm_entry(__u64 *ctx)
{
	struct vcpu_svm *svm = (void *)(ctx[0] - bpf_core_field_offset(struct vcpu_svm, vcpu));
	__u64 vmcb = BPF_CORE_READ(svm, current_vmcb, pa);
	__u64 thread = bpf_get_current_pid_tgid();
	__u64 *known = bpf_map_lookup_elem(&vmcbs, &vmcb);

	/* Nearly always it is known, and nothing is written. */
	if (vmcb && (!known || *known != thread))
		bpf_map_update_elem(&vmcbs, &vmcb, &thread, BPF_ANY);
	return 0;
}
