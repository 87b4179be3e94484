//! The baseline: everything read anew from `/proc` each period.

use std::fs;
use std::hint::black_box;

/// Reads and parses what a period needs, for the processes given.
pub fn read(pids: &[u32]) {
    black_box(numbers("/proc/stat"));
    black_box(numbers("/proc/interrupts"));
    for pid in pids {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let folder = task.path();
            for file in ["stat", "schedstat"] {
                black_box(numbers(folder.join(file)));
            }
            let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
            let allowed = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            black_box(allowed.map(str::trim).map(str::to_owned));
        }
    }
}

fn numbers(path: impl AsRef<std::path::Path>) -> Vec<u64> {
    fs::read_to_string(path)
        .unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}
