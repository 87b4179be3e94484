//! What the clock asks of QEMU: its functions called, and its fields read, in the ways that it allows the thread that asks.

use std::ffi::{CStr, c_uint};
use std::sync::atomic::Ordering;

use super::layout::{Cpu, in_flight};
use super::symbols::Opaque;
use super::{ALL_TIMERS, Qemu, Target, VIRTUAL, device};
use crate::fused::BLOCK;
use crate::machine::{Emulator, SoFar};
use crate::options::Options;
use crate::wanting::Wanting;

impl Qemu {
    /// Whether breakpoints look at themselves: the fault is any target's, but only x86's Linux changes its code by breakpoints.
    pub(super) fn looks_for_stale_code(&self, options: &Options) -> bool {
        options.cure && self.target == Target::X86_64
    }

    pub(super) fn cpu(&self, core: usize) -> Option<Cpu> {
        let cpu = self.cpus[core].load(Ordering::Acquire);
        (!cpu.is_null()).then_some(Cpu(cpu))
    }

    pub(super) fn core_of(&self, cpu: Opaque) -> Option<usize> {
        self.cpus
            .iter()
            .position(|known| known.load(Ordering::Acquire) == cpu)
    }

    /// All block devices. Under the big lock.
    fn disks(&self) -> impl Iterator<Item = Opaque> {
        // SAFETY: a null argument asks for the first, any other for the one after it.
        let next = |backend: Opaque| unsafe { (self.symbols.blk_all_next)(backend) };
        std::iter::successors(Some(next(std::ptr::null_mut())), move |&b| {
            (!b.is_null()).then(|| next(b))
        })
        .filter(|backend| !backend.is_null())
    }
}

impl Emulator for Qemu {
    fn counted(&self, core: usize) -> u64 {
        if let Some(accesses) = &self.accesses {
            return accesses.elapsed_ps(core);
        }
        // SAFETY: QEMU's own plugin interface.
        unsafe { (self.symbols.qemu_plugin_u64_get)(self.counter, index(core)) }
    }

    fn restart_count(&self, core: usize, from: u64) {
        if let Some(accesses) = &self.accesses {
            return accesses.restart(core, from);
        }
        // SAFETY: QEMU's own plugin interface.
        unsafe { (self.symbols.qemu_plugin_u64_set)(self.counter, index(core), from) };
    }

    fn uninterrupted(&self, core: usize) -> u64 {
        match &self.accesses {
            Some(accesses) => accesses.uninterrupted_ps(core),
            None => BLOCK,
        }
    }

    fn has_work(&self, core: usize) -> bool {
        self.cpu(core)
            // SAFETY: it only looks; without the lock its answer may be old, which all callers allow for.
            .is_some_and(|cpu| unsafe { !(self.symbols.cpu_thread_is_idle)(cpu.0) })
    }

    fn asked_to_leave(&self, core: usize) -> bool {
        self.cpu(core)
            .is_some_and(|cpu| cpu.leave(&self.offsets).load(Ordering::SeqCst) != 0)
    }

    fn called_away(&self, core: usize) -> bool {
        // A kick from another thread asks for an exit; an interrupt by the core's own thread only ends the block.
        self.cpu(core)
            .is_some_and(|cpu| cpu.exit_request(&self.offsets))
    }

    fn must_not_wait(&self, core: usize) -> bool {
        // SAFETY: it looks at a variable of this thread.
        let locked = unsafe { (self.symbols.bql_locked)() };
        locked
            || self
                .cpu(core)
                .is_some_and(|cpu| cpu.exclusive(&self.offsets) != 0)
    }

    fn locked(&self, body: &mut dyn FnMut()) {
        // SAFETY: the lock isn't recursive, so it is taken only where this thread hasn't got it; `body` doesn't unwind
        // into C, as all our callbacks abort instead.
        unsafe {
            let had = (self.symbols.bql_locked)();
            if !had {
                (self.symbols.bql_lock_impl)(c"machine time".as_ptr(), 0);
            }
            body();
            if !had {
                (self.symbols.bql_unlock)();
            }
        }
    }

    fn due_in(&self) -> Option<i64> {
        // SAFETY: it takes the locks that it needs.
        let ns = unsafe { (self.symbols.qemu_clock_deadline_ns_all)(VIRTUAL, ALL_TIMERS) };
        (ns >= 0).then_some(ns)
    }

    fn run_timers(&self) {
        // SAFETY: under the big lock, as its callers are.
        unsafe { (self.symbols.qemu_clock_run_timers)(VIRTUAL) };
    }

    fn wake_main_loop(&self) {
        // SAFETY: under the big lock, as its callers are.
        unsafe { (self.symbols.qemu_clock_notify)(VIRTUAL) };
    }

    fn disk_is_busy(&self) -> bool {
        self.disks().any(|disk| in_flight(disk, &self.offsets) > 0)
    }

    fn busy_disks(&self) -> Vec<String> {
        let requests = |disk| in_flight(disk, &self.offsets);
        self.disks()
            .filter(|&disk| requests(disk) > 0)
            .map(|disk| {
                // SAFETY: it returns the backend's name, which may be empty but isn't null.
                let name = unsafe { CStr::from_ptr((self.symbols.blk_name)(disk)) };
                format!("{} ({} requests)", name.to_string_lossy(), requests(disk))
            })
            .collect()
    }

    fn ring(&self, core: usize) {
        if let Some(devices) = &self.devices {
            device::ring(devices, self.target, core);
        }
    }

    fn describe(&self, core: usize) -> String {
        let Some(cpu) = self.cpu(core) else {
            return "not made yet".to_owned();
        };
        // SAFETY: it looks at a pointer; its answer may be old.
        let queued = unsafe { !(self.symbols.cpu_work_list_empty)(cpu.0) };
        format!(
            "pending interrupts {:#x}, {}, {}, {}, exclusive depth {}",
            cpu.interrupts(&self.offsets).load(Ordering::SeqCst),
            if self.has_work(core) {
                "has work"
            } else {
                "has no work"
            },
            if queued {
                "work is queued"
            } else {
                "no work is queued"
            },
            match (self.asked_to_leave(core), cpu.exit_request(&self.offsets)) {
                (false, false) => "not asked to leave",
                (true, false) => "asked to leave its block",
                (_, true) => "asked to leave",
            },
            cpu.exclusive(&self.offsets)
        )
    }

    fn say(&self, text: &str) {
        super::say(text);
    }

    fn wanting(&self) -> Wanting {
        Wanting::now()
    }

    fn show(&self, core: usize, so_far: SoFar) {
        if let Some(pmu) = &self.pmu {
            pmu.show(core, so_far, self.accesses.as_ref());
            if let Some(profiler) = &self.profiler {
                profiler.marked(pmu.mark(), &self.symbols, self.cpus.len());
            }
        }
    }
}

fn index(core: usize) -> c_uint {
    c_uint::try_from(core).unwrap_or(c_uint::MAX)
}
