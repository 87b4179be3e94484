//! When memcached's thread that sees to its lists looks at them.
//!
//! Items of a class of sizes are in lists by how lately they were asked for, and a thread moves them from one to the next (items.c, `lru_maintainer_thread`). For each class it sleeps half as long as before
//! where it has just moved something there, and not at all from below a millisecond on; where it hasn't it sleeps an eighth longer, up to a second. It looks when the first class is due, or a millisecond after it last
//! looked where it found by then that items had been asked for again which were cold (`lru_maintainer_bumps`). So a class comes to rest where one look in seven finds something, and a guest that is asked for much
//! looks about as often as it sleeps for a millisecond: as many timers beside its ticks, and wake-ups of a vCPU that no request is behind.
//!
//! What there is to move: what is written comes into a list that is full, so that another goes; and what is asked for while it is cold is warm from then on, by which another becomes cold as soon as
//! the list of those is full. How often that is was counted ([`emulated::UPKEEP_WARMED`]); items aren't simulated, but how many are warm in a class is.

use ostler_model::Nanos;

use super::spec::value;
use crate::costs::emulated;
use crate::random::Stream;

/// How long it sleeps at the least, and at the most (items.c: `MIN_LRU_MAINTAINER_SLEEP`, `MAX_LRU_MAINTAINER_SLEEP`).
const LEAST: Nanos = Nanos::from_millis(1);
const MOST: Nanos = Nanos::from_secs(1);
/// Sizes of the smallest class, and of each by the one before it (memcached.c: `chunk_size` and an item's head; `factor`).
const SMALLEST: f64 = 96.0;
const FACTOR: f64 = 1.25;
/// What an item takes beside its value: its head, and a key of ETC's mean length.
const BESIDE: f64 = 48.0 + 31.0;
/// The share of a class's items that may be warm (memcached.c: `warm_lru_pct`).
const WARM: f64 = 0.4;

/// What it knows of a class of sizes.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// How long it sleeps for it.
    sleeps: Nanos,
    /// What is left of that.
    left: Nanos,
    /// Something is to be moved.
    waits: bool,
    /// So many more may be warm.
    room: f64,
}

/// A guest's.
#[derive(Clone, Debug)]
pub struct Upkeep {
    classes: Vec<Class>,
    /// Something cold was asked for.
    asked: bool,
    /// How long it has slept.
    slept: Nanos,
    stream: Stream,
}

/// The class of a value that is drawn.
fn class(stream: &mut Stream) -> usize {
    let size = (value(stream) + BESIDE).max(SMALLEST);
    let steps = libm::log(size / SMALLEST) / libm::log(FACTOR);
    crate::round::whole(libm::floor(steps)) as usize
}

impl Upkeep {
    /// One that sees to so many items, all of them cold, and that has found nothing for long.
    pub fn new(keys: u32, mut stream: Stream) -> Upkeep {
        let mut classes: Vec<Class> = Vec::new();
        let rests = |stream: &mut Stream| Class {
            sleeps: MOST,
            left: Nanos(stream.below(MOST.0)),
            waits: false,
            room: 0.0,
        };
        // The last has nothing, and stands for all that have nothing.
        classes.push(rests(&mut stream));
        for _ in 0..keys {
            let class = class(&mut stream);
            while classes.len() < class + 2 {
                classes.push(rests(&mut stream));
            }
            classes[class].room += WARM;
        }
        Upkeep {
            classes,
            asked: false,
            slept: Nanos::ZERO,
            stream,
        }
    }

    /// A request has come.
    pub fn asked(&mut self) {
        let writes = self.stream.chance(emulated::UPKEEP_WRITTEN.value);
        let warms = self.stream.chance(emulated::UPKEEP_WARMED.value);
        if !writes && !warms {
            return;
        }
        // Who asks, asks for what is there.
        let largest = self.classes.len().saturating_sub(2);
        let class = class(&mut self.stream).min(largest);
        let class = &mut self.classes[class];
        class.waits |= writes || class.room < 1.0;
        if warms {
            class.room = (class.room - 1.0).max(0.0);
            self.asked = true;
        }
    }

    /// It looks, and says how long it sleeps until it looks next.
    pub fn looks(&mut self) -> Nanos {
        let slept = self.slept.max(LEAST);
        let mut next = MOST;
        for class in &mut self.classes {
            class.left = class.left.saturating_sub(slept);
            if class.left == Nanos::ZERO {
                class.sleeps = if std::mem::take(&mut class.waits) {
                    Nanos(class.sleeps.0 / 2)
                } else {
                    Nanos(class.sleeps.0 + class.sleeps.0 / 8).clamp(LEAST, MOST)
                };
                if class.sleeps < LEAST {
                    class.sleeps = Nanos::ZERO;
                }
                class.left = class.sleeps;
            }
            next = next.min(class.left);
        }
        if std::mem::take(&mut self.asked) {
            next = next.min(LEAST);
        }
        self.slept = next;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it looks a second, of the last half of so many seconds in which requests come so often.
    fn looks(keys: u32, rate: u64, seconds: u64) -> f64 {
        let mut upkeep = Upkeep::new(keys, Stream::new(1, "upkeep", 0));
        let end = seconds * 1_000_000_000;
        let (mut now, mut asked, mut looked) = (0, 0, 0);
        while now < end {
            // A look takes a tenth of a millisecond.
            now += upkeep.looks().0 + 100_000;
            while rate > 0 && asked * 1_000_000_000 / rate < now {
                upkeep.asked();
                asked += 1;
            }
            looked += u32::from(now > end / 2);
        }
        f64::from(looked) / (seconds as f64 / 2.0)
    }

    #[test]
    fn nobody_asks_and_each_class_is_looked_at_once_a_second() {
        let upkeep = Upkeep::new(1000, Stream::new(1, "upkeep", 0));
        let classes = upkeep.classes.len() as f64;
        // 96 bytes to a megabyte in steps of a quarter are 42 classes, of which a thousand values of ETC are in fewer than twenty.
        assert!((10.0..25.0).contains(&classes), "{classes}");
        let found = looks(1000, 0, 100);
        assert!(
            (0.8 * classes..=classes).contains(&found),
            "{found} of {classes}"
        );
        let found = looks(0, 0, 100);
        assert!(
            found < 1.1,
            "{found} of the one that stands for those with nothing"
        );
    }

    #[test]
    fn the_more_is_asked_for_the_more_often_it_looks() {
        let found = [10, 100, 1000, 10_000].map(|rate| looks(1000, rate, 60));
        assert!(found.is_sorted(), "{found:?}");
        // A millisecond after most looks; where each finds something, at once.
        assert!(found[2] > 0.5e3 && found[2] < 1e3, "{found:?}");
        assert!(found[3] > 1e3, "{found:?}");
    }

    /// While there is room for what is asked for to become warm nothing else has to go.
    #[test]
    fn what_becomes_warm_moves_others_only_where_no_room_is_left() {
        let mut upkeep = Upkeep::new(1000, Stream::new(1, "upkeep", 0));
        let room: f64 = upkeep.classes.iter().map(|class| class.room).sum();
        assert!((room - 400.0).abs() < 1e-6);
        let waits = |upkeep: &Upkeep| upkeep.classes.iter().filter(|class| class.waits).count();
        let mut before = 0;
        for _ in 0..100 {
            upkeep.asked();
            before = waits(&upkeep);
        }
        assert!(before <= 10, "{before} by what was written alone");
        for _ in 0..100_000 {
            upkeep.asked();
        }
        assert_eq!(waits(&upkeep), upkeep.classes.len() - 1, "all but the last");
    }

    /// Where each look finds something a class isn't slept for at all; where one in seven does it stays as it is.
    #[test]
    fn a_class_sleeps_half_as_long_or_an_eighth_longer() {
        let mut upkeep = Upkeep::new(1, Stream::new(1, "upkeep", 0));
        let class = 0;
        upkeep.classes[class].sleeps = Nanos::from_millis(8);
        for (waits, sleeps) in [
            (true, 4_000_000),
            (false, 4_500_000),
            (true, 2_250_000),
            (true, 1_125_000),
            (true, 0),
            (true, 0),
            (false, 1_000_000),
        ] {
            upkeep.classes[class].left = Nanos::ZERO;
            upkeep.classes[class].waits = waits;
            upkeep.looks();
            assert_eq!(upkeep.classes[class].sleeps, Nanos(sleeps));
        }
    }
}
