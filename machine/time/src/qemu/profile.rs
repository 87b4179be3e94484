//! A profile's counters in QEMU: each translated block adds its instructions to one of them ([`crate::profile`]).

use std::ffi::c_uint;

use super::layout::Offsets;
use super::symbols::{Faulty, Opaque, PerCore, Symbols};
use super::vcpus::Place;
use super::{ADD, Target, machine, say};
use crate::options::Options;
use crate::profile::{Profile, SLOTS};
use crate::threads::{Role, role};

/// The counters, and how a guest's code is told from the machine's own.
#[derive(Debug)]
pub struct Profiler {
    profile: Profile,
    counters: Opaque,
    place: Option<Place>,
}

impl Profiler {
    /// Counters for a profile, if one is wanted.
    pub fn wanted(
        options: &Options,
        symbols: &Symbols,
        target: Target,
        offsets: &Offsets,
    ) -> Option<Profiler> {
        let file = options.profile.as_ref()?;
        let place = match target {
            Target::X86_64 => Faulty::find()
                .ok()
                .and_then(|functions| Place::read(&functions, offsets)),
            Target::Aarch64 => None,
        };
        if target == Target::X86_64 && place.is_none() {
            say(
                "the code of VMRUN isn't as expected, so guests' code is the machine's own in profiles",
            );
        }
        // SAFETY: QEMU's own plugin interface, at the time for it.
        let counters = unsafe { (symbols.qemu_plugin_scoreboard_new)(SLOTS * size_of::<u64>()) };
        Some(Profiler {
            profile: Profile::new(file),
            counters,
            place,
        })
    }

    fn counter(&self, slot: usize) -> PerCore {
        PerCore {
            scoreboard: self.counters,
            offset: slot * size_of::<u64>(),
        }
    }

    /// Has a block count its instructions. A translation is of a guest's code or of the machine's, never of both: QEMU looks it up by
    /// the flag that says which.
    ///
    /// # Safety
    /// Only within the callback for translations, with its block.
    pub unsafe fn watch(&self, symbols: &Symbols, block: Opaque, instructions: usize) {
        let cpu = match role() {
            Role::Core(core) => machine().emulator.cpu(core),
            Role::Ours | Role::Other => None,
        };
        // SAFETY: QEMU's own plugin interface, a block that has instructions, and the thread of the core that translates.
        unsafe {
            let first = (symbols.qemu_plugin_tb_get_insn)(block, 0);
            let address = (symbols.qemu_plugin_insn_vaddr)(first);
            let guest = match (self.place, cpu) {
                (Some(place), Some(cpu)) => place.vmcb(cpu.0) != 0,
                _ => false,
            };
            let counter = self.counter(self.profile.slot(guest, address));
            (symbols.qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu)(
                block,
                ADD,
                counter,
                instructions as u64,
            );
        }
    }

    /// A core of so many sees a mark. By its own thread.
    pub fn marked(&self, mark: u64, symbols: &Symbols, cores: usize) {
        let count = |slot, core| {
            let core = c_uint::try_from(core).unwrap_or(c_uint::MAX);
            // SAFETY: QEMU's own plugin interface; the other cores' threads add to words that are read whole.
            unsafe { (symbols.qemu_plugin_u64_get)(self.counter(slot), core) }
        };
        if let Err(problem) = self.profile.marked(mark, cores, count) {
            say(&problem);
        }
    }
}
