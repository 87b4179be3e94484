//! What the kernel counts of BPF programs: how often each ran, and for how long.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use libbpf_rs::query::ProgInfoIter;

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// The kernel counts while this lives.
pub struct Counting;

impl Counting {
    pub fn start() -> Result<Counting> {
        std::fs::write(SWITCH, "1").with_context(|| format!("could not write {SWITCH}"))?;
        Ok(Counting)
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = std::fs::write(SWITCH, "0");
    }
}

/// A program's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hook {
    pub runs: u64,
    pub ns: u64,
}

/// By the kernel's name of the program, which is our own cut off.
pub fn read() -> Result<BTreeMap<String, Hook>> {
    let ours =
        ProgInfoIter::default().filter(|info| info.name.to_string_lossy().starts_with("boost_"));
    let hooks: BTreeMap<_, _> = ours
        .map(|info| {
            let hook = Hook {
                runs: info.run_cnt,
                ns: info.run_time_ns,
            };
            (info.name.to_string_lossy().into_owned(), hook)
        })
        .collect();
    anyhow::ensure!(!hooks.is_empty(), "the kernel knows no program of ours");
    Ok(hooks)
}
