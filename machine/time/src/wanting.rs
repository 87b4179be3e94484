//! Which of this process's threads want a real core and don't get one.
//!
//! A core that doesn't move may wait for something inside QEMU, or its thread may have had no real core: because others have them all, or because the
//! hypervisor under them stands still. Nobody else can tell these apart but Linux, which knows what each thread wants and has had
//! (Documentation/scheduler/sched-stats.rst; proc_pid_stat(5)). All threads are looked at and not the core's alone: what a core waits for inside QEMU is
//! often another of them.

use std::collections::BTreeMap;
use std::path::Path;

/// Where Linux shows a process its own threads.
const THREADS: &str = "/proc/self/task";

/// The threads that want a real core just now, or have one: what each has had of it so far, ns, by thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanting(BTreeMap<i32, u64>);

impl Wanting {
    /// As it is now. What can't be read is left out: then nobody is taken to starve.
    pub fn now() -> Wanting {
        let threads = std::fs::read_dir(THREADS).into_iter().flatten().flatten();
        Wanting(
            threads
                .filter_map(|entry| {
                    let thread = entry.file_name().to_str()?.parse().ok()?;
                    Some((thread, wants(&entry.path())?))
                })
                .collect(),
        )
    }

    /// Whether any thread wanted a real core then, still does `now`, and has had none in between.
    pub fn starved_until(&self, now: &Wanting) -> bool {
        self.0
            .iter()
            .any(|(thread, had)| now.0.get(thread) == Some(had))
    }
}

/// What a thread has had of the real cores, if it wants one.
fn wants(folder: &Path) -> Option<u64> {
    let read = |name| std::fs::read_to_string(folder.join(name)).ok();
    // The name is in brackets, and may have brackets in it.
    let stat = read("stat")?;
    let (_, after_name) = stat.rsplit_once(')')?;
    if after_name.split_whitespace().next()? != "R" {
        return None;
    }
    read("schedstat")?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
impl Wanting {
    /// Threads that want a real core and have had so much.
    pub fn made_up(threads: &[(i32, u64)]) -> Wanting {
        Wanting(threads.iter().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn only_who_wants_a_core_all_the_while_and_gets_none_starves() {
        let before = Wanting::made_up(&[(1, 10), (2, 20)]);
        assert!(before.starved_until(&Wanting::made_up(&[(2, 20), (1, 11)])));
        assert!(!before.starved_until(&Wanting::made_up(&[(1, 11), (2, 21)])));
        assert!(!before.starved_until(&Wanting::made_up(&[(1, 11)])));
        assert!(!before.starved_until(&Wanting::made_up(&[(3, 20)])));
        assert!(!Wanting::default().starved_until(&before));
    }

    /// Linux itself: a thread that sleeps wants nothing, one that looks has what it looks with.
    #[test]
    fn a_thread_that_runs_is_told_from_one_that_sleeps() {
        let (say, hear) = mpsc::channel();
        let (end, until) = mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            let own = std::fs::read_link("/proc/thread-self").expect("Linux shows it");
            say.send(own).expect("the test listens");
            let _ = until.recv();
        });
        let number = |link: &Path| -> i32 {
            let name = link.file_name().and_then(|name| name.to_str());
            name.and_then(|name| name.parse().ok())
                .expect("it is a number")
        };
        let other = number(&hear.recv().expect("it tells"));
        let own = number(&std::fs::read_link("/proc/thread-self").expect("Linux shows it"));
        // It is on its way to sleep.
        while Wanting::now().0.contains_key(&other) {
            std::thread::yield_now();
        }
        let now = Wanting::now();
        assert!(now.0.contains_key(&own), "{now:?}");
        drop(end);
        sleeper.join().expect("it ended well");
    }
}
