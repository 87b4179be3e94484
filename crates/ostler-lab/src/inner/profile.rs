//! Where the emulated host's instructions go while a load is on: the machine counts them (`machine/time`), and is told where to begin and to end. What
//! its addresses mean only the host's kernel knows, and only while its modules and BPF programs are there.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use ostler_abi::pmu::Marker;

use super::{read, write};

/// What marks a profile's windows, by number: one for each cell, or of whoever else runs in an emulated host.
pub struct Profiler {
    marker: Marker,
}

impl Profiler {
    /// Makes ready to profile.
    ///
    /// # Errors
    ///
    /// The machine has no counters, or the kernel doesn't tell its symbols.
    pub fn new() -> anyhow::Result<Profiler> {
        let marker = Marker::find(Path::new("/sys"))?;
        let marker = marker.context("--profile: the machine has no counters to mark")?;
        // Also of BPF programs, and whole.
        write("/proc/sys/net/core/bpf_jit_kallsyms", "1")?;
        write("/proc/sys/kernel/kptr_restrict", "0")?;
        Ok(Profiler { marker })
    }

    /// What is to be counted begins.
    pub fn begin(&self, window: u32) {
        self.marker.begin(window);
    }

    /// It ends.
    pub fn end(&self, window: u32) {
        self.marker.end(window);
    }

    /// What addresses mean right now, as `/proc/kallsyms` has it, of code.
    ///
    /// # Errors
    ///
    /// The file can't be read.
    pub fn symbols() -> anyhow::Result<String> {
        Ok(code_only(&read("/proc/kallsyms")?))
    }
}

/// Of all symbols those of code: a tenth of the whole is other.
fn code_only(kallsyms: &str) -> String {
    let mut code = String::new();
    for line in kallsyms.lines() {
        let kind = line.split_ascii_whitespace().nth(1);
        if matches!(kind, Some("t" | "T" | "w" | "W")) {
            // Writing to a string can't fail.
            let _ = writeln!(code, "{line}");
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_code_are_kept() {
        let all = "ffffffff81000000 T _text\nffffffff82000000 D jiffies\nffffffffc0000000 t svm_vcpu_run\t[kvm_amd]\n\
                   ffffffffc0100000 t bpf_prog_1f_boost_enqueue\t[bpf]\nffffffff81000010 W weak\n0000000000000000 A fixed\n";
        let code = code_only(all);
        let names: Vec<&str> = code.lines().filter_map(|l| l.split(' ').nth(2)).collect();
        assert_eq!(
            names,
            [
                "_text",
                "svm_vcpu_run\t[kvm_amd]",
                "bpf_prog_1f_boost_enqueue\t[bpf]",
                "weak"
            ]
        );
    }
}
