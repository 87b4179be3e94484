//! Timers of a guest's connections, which acknowledge what came if no answer has.
//!
//! TCP sets one whenever it receives (net/ipv4/tcp_output.c, `tcp_send_delayed_ack`), and lets it be when the answer acknowledges: to take it back costs more than to have it find nothing to do
//! (`INET_CSK_CLEAR_TIMERS` isn't defined). The connection's next request sets it anew. So it is due where none follows within its time, and a server that is asked seldom on each of its connections has one for each
//! request: at 200 requests a second on sixteen connections a guest of the lab's has 192 a second (docs/sim.md), of which most find it asleep.
//!
//! It is a timer of the wheel, which counts whole ticks and begins with the next one (kernel/time/timer.c, `calc_index`), and no CPU's own: whichever has its tick sees to those of all others
//! (kernel/time/timer_migration.c). The last one to stop its tick wakes for the first of them.

use std::collections::VecDeque;

use ostler_model::Nanos;

/// A guest's, of all connections.
#[derive(Debug, Default)]
pub struct Acks {
    /// When each was set to be due; all take as long, so that they are in order. Those that were set anew since are among them.
    set: VecDeque<(Nanos, u32)>,
    /// When a connection's is due, by its number.
    due: Vec<Nanos>,
}

impl Acks {
    /// Something has come on a connection. `due` isn't before that of any that was set before.
    pub fn set(&mut self, flow: u32, due: Nanos) {
        let at = flow as usize;
        if self.due.len() <= at {
            self.due.resize(at + 1, Nanos::ZERO);
        }
        // Two requests in one tick leave one timer.
        if std::mem::replace(&mut self.due[at], due) != due {
            self.set.push_back((due, flow));
        }
    }

    /// When the next one is due after a time; whoever was awake has seen to those until then.
    pub fn next(&mut self, now: Nanos) -> Option<Nanos> {
        while let Some((due, flow)) = self.set.front() {
            if *due > now && self.due[*flow as usize] == *due {
                return Some(*due);
            }
            self.set.pop_front();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What a map of connections says, whoever sets what anew and however often somebody looks.
        #[test]
        fn the_next_is_the_first_of_those_that_were_set_last(
            steps in proptest::collection::vec((0_u64..20, 0_u32..5, any::<bool>()), 0..200)
        ) {
            let mut acks = Acks::default();
            let mut known: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = 0;
            for (past, flow, sets) in steps {
                now += past;
                if sets {
                    acks.set(flow, Nanos(now + 44));
                    known.insert(flow, now + 44);
                }
                let wanted = known.values().filter(|due| **due > now).min();
                prop_assert_eq!(acks.next(Nanos(now)), wanted.copied().map(Nanos));
                prop_assert!(acks.set.len() <= known.len() * 45);
            }
        }
    }
}
