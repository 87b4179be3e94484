//! A core's own way into a system: what its L1s have is found without looking for the core first, and compiled into the caller.
//!
//! Nearly all accesses end here, a guest's every other instruction is one, and so each instruction here counts. What isn't found goes through
//! [`System::access`], as if nothing had been asked.

use crate::counters::{Kind, Level};
use crate::system::{Core, System};

/// One core's. For its own thread.
#[derive(Clone, Copy, Debug)]
pub struct Port<'a> {
    core: &'a Core,
}

impl System {
    /// A core's port.
    ///
    /// # Panics
    /// When there is no such core.
    pub fn port(&self, core: usize) -> Port<'_> {
        Port {
            core: &self.cores[core],
        }
    }
}

impl Port<'_> {
    /// What an access that L1 serves costs, ps.
    pub fn l1_ps(&self) -> u64 {
        self.core.costs.l1
    }

    /// Reads or writes data: whether L1 serves it; then it is over and counted. If not, nothing has happened. A line's first store isn't found here,
    /// nor is anything in caches of more than eight ways.
    #[inline]
    pub fn touch(&self, kind: Kind, line: u64) -> bool {
        let found = self.core.data.hit_at_once(line, kind.writes());
        if found {
            self.core.counters.served(kind, Level::L1);
        }
        found
    }

    /// The same of a line of instructions.
    #[inline]
    pub fn fetch(&self, line: u64) -> bool {
        let found = self.core.code.hit_at_once(line, false);
        if found {
            self.core.counters.served(Kind::Fetch, Level::L1);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Catalogue, Topology};

    const TOPOLOGY: &str = r#"
        [[cores]]
        first = 0
        last = 1
        part = "epyc-7742"
        node = 0
        [[nodes]]
        ranges = [{ start = 0, bytes = 0x10_0000 }]
    "#;

    fn system() -> System {
        let topology = Topology::parse(TOPOLOGY).expect("it is good");
        System::new(&topology, &Catalogue::built_in()).expect("it is good")
    }

    proptest! {
        /// Whoever asks the ports first pays, counts and changes the same as who doesn't.
        #[test]
        fn ports_are_a_shorter_way_to_the_same(
            accesses in proptest::collection::vec((0_usize..2, 0_usize..4, 0_u64..40, 0_u64..12), 0..400),
        ) {
            let (short, long) = (system(), system());
            let mut through = 0;
            for (at, (core, kind, tag, set)) in (0_u64..).zip(accesses) {
                let kind = Kind::ALL[kind];
                // Few sets, so that lines leave, and some lines that share a guess.
                let line = tag << 6 | set;
                let now = || at * 1000;
                let expected = long.access(core, kind, line * 64, now);
                let port = short.port(core);
                let found = match kind {
                    Kind::Fetch => port.fetch(line),
                    _ => port.touch(kind, line),
                };
                if found {
                    through += 1;
                    prop_assert_eq!((expected.level, expected.picoseconds), (Level::L1, port.l1_ps()));
                } else {
                    prop_assert_eq!(short.access(core, kind, line * 64, now), expected);
                }
            }
            for core in 0..2 {
                prop_assert_eq!(short.counts(core), long.counts(core));
            }
            prop_assert_eq!(format!("{:?}", short.contents()), format!("{:?}", long.contents()));
            prop_assert!(through <= 400);
        }
    }

    #[test]
    fn what_was_used_last_is_found_at_once() {
        let system = system();
        let port = system.port(0);
        assert!(!port.touch(Kind::Load, 5) && !port.fetch(9));
        system.access(0, Kind::Load, 5 * 64, || 0);
        system.access(0, Kind::Fetch, 9 * 64, || 0);
        assert!(port.touch(Kind::Load, 5) && port.fetch(9));
        assert!(
            !port.touch(Kind::Store, 5),
            "the first store is another matter"
        );
        system.access(0, Kind::Store, 5 * 64, || 0);
        assert!(port.touch(Kind::Store, 5) && port.touch(Kind::Atomic, 5));
        assert!(!system.port(1).touch(Kind::Load, 5), "another core's");
        system.access(1, Kind::Load, 5 * 64, || 0);
        assert!(port.touch(Kind::Load, 5) && !port.touch(Kind::Store, 5));
    }
}
