//! The machine at a client's end: a thread that sends requests and reads answers, one at a time, and a NIC of its own.
//!
//! A client that is a machine of the same kind as the host, as the lab's is, takes its time: what is due or has come while its thread is at something else waits, and that is in response times. Its NIC
//! interrupts it once in the moderation time, and again when that is over where it has echoes ([`crate::net::nic`]), so answers that come soon after others are read later. Papers' clients have no such end: what
//! they take isn't in their figures, and a wire is all that is between.
//!
//! Whoever is served is the first to come. An answer is reckoned with when it leaves the host, and so before a request that falls due until its interrupt is over.

use ostler_model::Nanos;

/// What things take at a client's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndCosts {
    /// From when a request is sent until the NIC of the host interrupts for it, if nothing has that wait.
    pub device: Nanos,
    /// To send a request, or to read an answer; zero: there is no such end.
    pub each: Nanos,
    /// To wake the thread, where it sleeps.
    pub wake: Nanos,
    /// An interrupt for answers, with its softirq.
    pub interrupt: Nanos,
    /// Interrupts come at most once in this time, and again when it is over.
    pub moderation: Nanos,
}

impl EndCosts {
    /// Whether there is such an end.
    pub fn there(&self) -> bool {
        self.each > Nanos::ZERO
    }
}

/// A client's end.
#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    /// When its thread has nothing more to do.
    free: Nanos,
    /// Until when its NIC interrupts nobody.
    quiet: Nanos,
}

impl End {
    /// A request falls due: when the thread turns to it, and when it has left.
    pub fn sends(&mut self, due: Nanos, costs: &EndCosts) -> (Nanos, Nanos) {
        self.serve(due, costs)
    }

    /// An answer comes: when it has been read.
    pub fn reads(&mut self, at: Nanos, costs: &EndCosts) -> Nanos {
        let interrupt = if at > self.quiet {
            self.quiet = at.saturating_add(costs.moderation);
            at
        } else {
            self.quiet
        };
        self.serve(interrupt.saturating_add(costs.interrupt), costs)
            .1
    }

    fn serve(&mut self, at: Nanos, costs: &EndCosts) -> (Nanos, Nanos) {
        let begins = if at > self.free {
            at.saturating_add(costs.wake)
        } else {
            self.free
        };
        self.free = begins.saturating_add(costs.each);
        (begins, self.free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: EndCosts = EndCosts {
        device: Nanos(50),
        each: Nanos(70),
        wake: Nanos(90),
        interrupt: Nanos(60),
        moderation: Nanos(200),
    };

    #[test]
    fn who_comes_alone_waits_for_nobody() {
        let mut end = End::default();
        assert_eq!(end.sends(Nanos(1000), &COSTS), (Nanos(1090), Nanos(1160)));
        assert_eq!(end.reads(Nanos(5000), &COSTS), Nanos(5220));
        assert_eq!(end.sends(Nanos(9000), &COSTS).1, Nanos(9160));
    }

    #[test]
    fn others_wait_for_the_thread_which_is_woken_once_for_all_of_them() {
        let mut end = End::default();
        let mut sends = |due| end.sends(Nanos(due), &COSTS);
        assert_eq!(sends(1000), (Nanos(1090), Nanos(1160)));
        assert_eq!(sends(1001), (Nanos(1160), Nanos(1230)));
        assert_eq!(sends(1230), (Nanos(1230), Nanos(1300)));
        assert_eq!(sends(1301), (Nanos(1391), Nanos(1461)));
    }

    #[test]
    fn answers_soon_after_others_come_by_the_interrupt_when_the_moderation_time_is_over() {
        let mut end = End::default();
        assert_eq!(end.reads(Nanos(1000), &COSTS), Nanos(1220));
        // Both by the one at 1200, which keeps none back that comes after it.
        assert_eq!(end.reads(Nanos(1100), &COSTS), Nanos(1420));
        assert_eq!(end.reads(Nanos(1200), &COSTS), Nanos(1490));
        assert_eq!(end.reads(Nanos(1900), &COSTS), Nanos(2120));
    }
}
