//! Whether a machine that keeps its own time is at work, or hung.
//!
//! How long a boot takes by the real clock says little of it: beside enough other work, the emulator of a sound machine had 3 % of a real core, and was taken to hang after
//! 450 s, 1.7 s into its kernel's boot. So what counts is the machine's own clock, which its counters' pages show: one that is still before its bound, and whose cores have
//! executed something since the last look, is slow. A loop without end comes to the bound by executing, one that waits for ever by skipping idle time, and one whose
//! cores wait for each other executes nothing.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ostler_abi::pmu;

/// A machine that is waited for.
#[derive(Debug)]
pub struct Pulse {
    /// The pages of its counters.
    pages: PathBuf,
    /// Its time when the wait began.
    began: Duration,
    /// What its cores had executed at the last look.
    executed: u64,
}

impl Pulse {
    /// A machine that has only been started.
    pub fn of(pages: PathBuf) -> Pulse {
        Pulse {
            pages,
            began: Duration::ZERO,
            executed: 0,
        }
    }

    /// The wait for something else begins.
    pub fn begin(&mut self) {
        (self.began, self.executed) = self.look();
    }

    /// Whether it is only slow: it has executed something since the last look, and has been waited for less than `within` by its own clock.
    pub fn is_slow(&mut self, within: Duration) -> bool {
        let before = self.executed;
        let (time, executed) = self.look();
        self.executed = executed;
        executed > before && time.saturating_sub(self.began) < within
    }

    /// How far its furthest core has come, and what all of them have executed. Nothing where it has shown nothing yet.
    fn look(&self) -> (Duration, u64) {
        let bytes = std::fs::read(&self.pages).unwrap_or_default();
        let words = bytes.as_chunks().0.iter();
        let pages: Vec<AtomicU64> = words
            .map(|word| AtomicU64::new(u64::from_le_bytes(*word)))
            .collect();
        let cores = pmu::header(&pages).map_or(0, |header| header.cores);
        let counts = || (0..cores).filter_map(|core| pmu::read(&pages, core).ok());
        let furthest = counts().map(|core| core.time_ns).max().unwrap_or(0);
        let executed = counts().map(|core| core.instructions).sum();
        (Duration::from_nanos(furthest), executed)
    }
}

#[cfg(test)]
mod tests {
    use ostler_abi::pmu::{BYTES, Counts, Header};

    use super::*;

    const BOUND: Duration = Duration::from_secs(150);

    /// Two cores, of which the second has come so far and executed so much.
    fn show(pulse: &Pulse, seconds: u64, instructions: u64) {
        let pages: Vec<AtomicU64> = (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        let header = Header {
            cores: 2,
            nodes: 1,
            caches: false,
        };
        pmu::begin(&pages, header);
        let counts = Counts {
            time_ns: seconds * 1_000_000_000,
            instructions,
            ..Counts::default()
        };
        pmu::write(&pages, 1, &counts);
        let bytes: Vec<u8> = pages
            .into_iter()
            .flat_map(|word| word.into_inner().to_le_bytes())
            .collect();
        std::fs::write(&pulse.pages, bytes).expect("a file in a folder of our own");
    }

    #[test]
    fn what_executes_and_is_before_its_bound_is_slow_and_all_else_hangs() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut pulse = Pulse::of(folder.path().join("pmu"));
        assert!(!pulse.is_slow(BOUND), "it shows nothing");
        show(&pulse, 2, 1_000);
        assert!(pulse.is_slow(BOUND));
        assert!(!pulse.is_slow(BOUND), "it has executed nothing since");
        show(&pulse, 149, 2_000);
        assert!(pulse.is_slow(BOUND));
        show(&pulse, 150, 3_000);
        assert!(!pulse.is_slow(BOUND), "it has had its time");
        pulse.begin();
        show(&pulse, 151, 4_000);
        assert!(pulse.is_slow(BOUND), "for something else");
    }
}
