//! CPU time of other processes: what a figure of speed is reckoned by on a machine that others work on too.
//!
//! All threads of a process count, whatever the real machine's other work makes them wait. Linux tells it in hundredths of a second
//! (`USER_HZ`, the same on all that we run on; `proc_pid_stat(5)`), so what is measured should take seconds.

use std::fs::read_to_string;

/// `USER_HZ`.
const TICKS_PER_S: f64 = 100.0;
/// Fields after the program's name, which may itself have spaces: `utime`, and `cutime`; what the system did for either comes next.
const OWN: usize = 11;
const CHILDREN: usize = 13;

/// What a process has used so far, s; nothing if it isn't there.
#[must_use]
pub fn of_process(pid: u32) -> Option<f64> {
    used(&read_to_string(format!("/proc/{pid}/stat")).ok()?, OWN)
}

/// What this process's children have used that have ended and been waited for, and theirs, s.
#[must_use]
pub fn of_children() -> Option<f64> {
    used(&read_to_string("/proc/self/stat").ok()?, CHILDREN)
}

fn used(stat: &str, field: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let ticks = rest.split(' ').skip(field).take(2);
    let ticks: Vec<f64> = ticks.map_while(|ticks| ticks.parse().ok()).collect();
    (ticks.len() == 2).then(|| ticks.iter().sum::<f64>() / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn fields_are_counted_from_the_end_of_the_name() {
        let stat = "7 (CPU 0) (x) R 1 7 7 0 -1 4 5 6 7 8 250 50 30 5 20 0 9";
        assert_eq!(used(stat, OWN), Some(3.0));
        assert_eq!(used(stat, CHILDREN), Some(0.35));
        assert_eq!(used("7 (x) R 1 2", OWN), None);
    }

    #[test]
    fn work_shows_once_its_process_has_ended() {
        let before = of_children().expect("Linux tells");
        let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let ended = Command::new("sh").args(["-c", work]).status();
        assert!(ended.expect("there is a shell").success());
        assert!(of_children().expect("Linux tells") > before);
        assert!(of_process(std::process::id()).is_some());
    }
}
