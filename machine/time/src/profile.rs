//! Where a machine's instructions went: how many its cores executed in each block of its kernel's code, counted and not sampled.
//!
//! A sampling profiler asks where the code is, time after time, by an interrupt: it sees nothing of what runs with interrupts off,
//! as a kernel's scheduler does, and what it sees it disturbs. Here each translated block adds its instructions to a counter of
//! its own, inline, and what is profiled has no part in that: the machine's time is to the nanosecond what it is without.
//!
//! The machine says where what it wants to know of begins and ends ([`ostler_abi::pmu::MARK`]). At the begin all counters are
//! read, and at the end again; what each core has added between is written to `FILE.n` for window n, a line for each address at which a
//! block begins, and one for each kind of code of which the addresses aren't kept. Of two cores:
//!
//! ```text
//! kernel ffffffff81234560 12345 0
//! user - 678 90
//! guest-kernel - 0 1234
//! guest-user - 0 567
//! elsewhere - 0 0
//! ```
//!
//! Addresses are those of the kernel that has the machine, whose symbols tell what is there; whoever reads the file needs its
//! `/proc/kallsyms`. Programs share addresses, and so do guests: each is one line.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counters that each core has. A host and its modules have some tens of thousands of blocks that are ever executed; what comes when all
/// are taken is `elsewhere`.
pub const SLOTS: usize = 1 << 18;

/// Code of which no addresses are kept, by counter: `elsewhere` is last.
const KINDS: [&str; 4] = ["user", "guest-kernel", "guest-user", "elsewhere"];
/// The lowest address of a kernel, of both instruction sets' Linux.
const KERNEL: u64 = 1 << 63;

/// The counters' meaning, and what they were.
#[derive(Debug)]
pub struct Profile {
    file: PathBuf,
    /// The last mark that was seen.
    seen: AtomicU64,
    blocks: Mutex<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    slots: HashMap<u64, usize>,
    addresses: Vec<u64>,
    /// What counters were when the window began.
    before: Vec<u64>,
}

impl Profile {
    /// Windows are written to files of this name and `.n`.
    pub fn new(file: &Path) -> Profile {
        Profile {
            file: file.to_owned(),
            seen: AtomicU64::new(0),
            blocks: Mutex::default(),
        }
    }

    fn blocks(&self) -> std::sync::MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counter of a block of code at an address, of a guest's or not. The same for the same block.
    pub fn slot(&self, guest: bool, address: u64) -> usize {
        match (guest, address >= KERNEL) {
            (false, false) => return 0,
            (true, true) => return 1,
            (true, false) => return 2,
            (false, true) => {}
        }
        let mut blocks = self.blocks();
        let Blocks {
            slots, addresses, ..
        } = &mut *blocks;
        if addresses.len() + KINDS.len() == SLOTS && !slots.contains_key(&address) {
            return KINDS.len() - 1;
        }
        *slots.entry(address).or_insert_with(|| {
            addresses.push(address);
            KINDS.len() + addresses.len() - 1
        })
    }

    /// A core of so many sees this mark. `count` is what a counter of a core has counted, of all time. Returns why a window couldn't be
    /// written.
    ///
    /// One core does what is to be done, once for each mark, and the others wait for it within a quantum. What a core has
    /// executed of the present quantum it adds as it goes, so a window's ends are true to a quantum.
    pub fn marked(
        &self,
        mark: u64,
        cores: usize,
        count: impl Fn(usize, usize) -> u64,
    ) -> Result<(), String> {
        let seen = self.seen.load(Ordering::Relaxed);
        let is_first = |seen| {
            let swap = |from| {
                let (done, order) = (Ordering::AcqRel, Ordering::Relaxed);
                self.seen.compare_exchange(from, mark, done, order).is_ok()
            };
            seen != mark && swap(seen)
        };
        if !is_first(seen) || mark == 0 {
            return Ok(());
        }
        let mut blocks = self.blocks();
        let counters = KINDS.len() + blocks.addresses.len();
        let of = |slot| {
            let count = &count;
            (0..cores).map(move |core| count(slot, core))
        };
        let now: Vec<u64> = (0..counters).flat_map(of).collect();
        if mark % 2 == 1 {
            blocks.before = now;
            return Ok(());
        }
        let before = std::mem::take(&mut blocks.before);
        if before.is_empty() {
            return Err(format!("window {} ends and hasn't begun", mark / 2 - 1));
        }
        let file = format!("{}.{}", self.file.display(), mark / 2 - 1);
        let text = lines(&blocks.addresses, cores, &before, &now);
        std::fs::write(&file, text)
            .map_err(|error| format!("the profile can't be written to {file}: {error}"))
    }
}

/// What each core added to counters between two readings, as text.
fn lines(addresses: &[u64], cores: usize, before: &[u64], now: &[u64]) -> String {
    let mut text = String::new();
    for (slot, counts) in now.chunks(cores.max(1)).enumerate() {
        let since = |(core, count): (usize, &u64)| {
            let before = before.get(slot * cores + core).copied();
            count.wrapping_sub(before.unwrap_or(0))
        };
        let added = || counts.iter().enumerate().map(since);
        // Writing to a string can't fail.
        match (KINDS.get(slot), slot.checked_sub(KINDS.len())) {
            (Some(kind), _) => {
                let _ = write!(text, "{kind} -");
            }
            (None, Some(block)) if added().any(|count| count > 0) => {
                let _ = write!(text, "kernel {:016x}", addresses[block]);
            }
            _ => continue,
        }
        for count in added() {
            let _ = write!(text, " {count}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = (bool, u64)> {
        (any::<bool>(), any::<bool>(), 0..50_u64)
            .prop_map(|(guest, kernel, at)| (guest, at + if kernel { KERNEL } else { 0 }))
    }

    proptest! {
        /// Whatever blocks come when, before the window or in it: what the file tells is what was counted in the window, by place.
        #[test]
        fn a_window_has_what_was_executed_in_it(
            before in prop::collection::vec((address(), 0..3_usize, 1..9_u64), 0..60),
            during in prop::collection::vec((address(), 0..3_usize, 1..9_u64), 0..60),
            after in prop::collection::vec((address(), 0..3_usize, 1..9_u64), 0..60),
            window in 0..5_u64,
        ) {
            let folder = tempfile::tempdir().expect("a folder");
            let profile = Profile::new(&folder.path().join("profile"));
            let counters = std::cell::RefCell::new(BTreeMap::new());
            let run = |blocks: &[((bool, u64), usize, u64)]| {
                for ((guest, address), core, instructions) in blocks {
                    let slot = profile.slot(*guest, *address);
                    assert_eq!(slot, profile.slot(*guest, *address));
                    *counters.borrow_mut().entry((slot, *core)).or_insert(0) += instructions;
                }
            };
            let count = |slot, core| counters.borrow().get(&(slot, core)).copied().unwrap_or(0);
            run(&before);
            profile.marked(0, 3, count).expect("nothing is marked");
            profile.marked(2 * window + 1, 3, count).expect("it begins");
            run(&during);
            // Another core, which sees the same mark later.
            profile.marked(2 * window + 1, 3, count).expect("it has begun");
            profile.marked(2 * window + 2, 3, count).expect("it ends");
            run(&after);
            profile.marked(2 * window + 2, 3, count).expect("it has ended");

            let mut expected: BTreeMap<String, [u64; 3]> =
                KINDS.iter().map(|kind| (format!("{kind} -"), [0; 3])).collect();
            for ((guest, address), core, instructions) in during {
                let place = match (guest, address >= KERNEL) {
                    (false, true) => format!("kernel {address:016x}"),
                    (false, false) => "user -".to_owned(),
                    (true, true) => "guest-kernel -".to_owned(),
                    (true, false) => "guest-user -".to_owned(),
                };
                expected.entry(place).or_insert([0; 3])[core] += instructions;
            }
            let file = folder.path().join(format!("profile.{window}"));
            let text = std::fs::read_to_string(file).expect("it is written");
            let told: BTreeMap<String, [u64; 3]> = text
                .lines()
                .map(|line| {
                    let words: Vec<&str> = line.split(' ').collect();
                    let count = |at: usize| words[at].parse().expect("a number");
                    assert_eq!(words.len(), 5);
                    (words[..2].join(" "), [count(2), count(3), count(4)])
                })
                .collect();
            prop_assert_eq!(told, expected);
        }
    }

    #[test]
    fn blocks_beyond_the_counters_are_counted_elsewhere() {
        let profile = Profile::new(Path::new("profile"));
        let all = SLOTS - KINDS.len();
        for (at, slot) in (0_u64..).zip(KINDS.len()..SLOTS) {
            assert_eq!(profile.slot(false, KERNEL + at), slot);
        }
        let beyond = KERNEL + u64::try_from(all).expect("some");
        assert_eq!(profile.slot(false, beyond), KINDS.len() - 1);
        assert_eq!(profile.slot(false, KERNEL + 7), KINDS.len() + 7);
    }

    #[test]
    fn what_cant_be_written_is_told() {
        let profile = Profile::new(Path::new("/nonexistent/profile"));
        let unbegun = profile.marked(2, 1, |_, _| 0).expect_err("no begin");
        assert!(unbegun.contains("window 0"), "{unbegun}");
        profile.marked(3, 1, |_, _| 0).expect("it begins");
        let lost = profile
            .marked(4, 1, |_, _| 0)
            .expect_err("there is no such folder");
        assert!(lost.contains("/nonexistent/profile.1"), "{lost}");
    }
}
