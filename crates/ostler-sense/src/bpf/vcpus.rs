//! `bpf/vcpus`: which thread runs which vCPU.

use std::path::Path;

use libbpf_rs::{Link, MapCore as _, MapFlags, Object, ObjectBuilder};
use ostler_model::Tid;

use ostler_bpf::{BpfError, forget_warning, map, program, quiet_libbpf, require_btf};

/// The loaded program. It is detached when it is dropped.
#[derive(Debug)]
pub(crate) struct VcpuBpf {
    object: Object,
    _link: Link,
}

impl VcpuBpf {
    /// Loads and attaches it. It takes a kernel with `kvm_amd` loaded, and that module's type information.
    pub(crate) fn load(sys: &Path) -> Result<VcpuBpf, BpfError> {
        quiet_libbpf();
        require_btf(sys)?;
        let open = ObjectBuilder::default().open_memory(ostler_bpf::VCPUS);
        let mut object = open
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(|error| BpfError::step("load the program for vCPUs", &error, "6.2"))?;
        let link = program(&object, "on_kvm_entry").attach_raw_tracepoint("kvm_entry");
        let link =
            link.map_err(|error| BpfError::step("attach the program for vCPUs", &error, "6.2"))?;
        forget_warning();
        // It is there: it is looked for now rather than at each look-up.
        map(&mut object, "vmcbs");
        Ok(VcpuBpf {
            object,
            _link: link,
        })
    }

    /// The thread that last entered the vCPU whose VMCB is at this physical address.
    pub(crate) fn thread(&self, vmcb: u64) -> Option<Tid> {
        let map = self.object.maps().find(|map| map.name() == "vmcbs")?;
        let value = map.lookup(&vmcb.to_ne_bytes(), MapFlags::ANY).ok()??;
        let word = u64::from_ne_bytes(*value.first_chunk()?);
        let tid = u32::try_from(word & u64::from(u32::MAX)).ok()?;
        Some(Tid(tid))
    }
}
