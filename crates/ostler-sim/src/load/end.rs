//! The machine at a client's end: a thread that sends requests and reads answers, in turns, and a NIC of its own.
//!
//! A client that is a machine of the same kind as the host, as the lab's is, takes its time: what is due or has come while its thread is at something else waits, and that is in response times. Its NIC
//! interrupts it once in the moderation time, and again when that is over where it has echoes ([`crate::net::nic`]), so answers that come soon after others are read later. Papers' clients have no such end: what
//! they take isn't in their figures, and a wire is all that is between.
//!
//! **In turns** (`ostler_load::net::Worker::run`): the thread reads all that has come by then, one after the other; then it sends all that is due by then and has room; and again, until there is neither, and it
//! sleeps. So what falls due while it reads leaves together: requests come to the host in small bursts, more so the busier the client is, and not as they fall due. What is due within [`EndCosts::spin`]
//! finds it awake, as it looks for it again and again.
//!
//! **On either of two cores.** A client has a core for what its NIC receives and one for what it has sent, and its thread is on one of these: which is chance, and it moves now and then (whoever writes down
//! what a second was like may have its core). What interrupts that core the thread waits for.

use std::collections::VecDeque;

use ostler_model::Nanos;

use crate::random::Stream;

/// What things take at a client's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndCosts {
    /// From when either driver has what it is to send until the other's NIC interrupts for it, if nothing has that wait.
    pub device: Nanos,
    /// To look for what is to be done, from the last of one turn to the first of the next.
    pub look: Nanos,
    /// What a turn takes in which requests are sent, before the first.
    pub begin: Nanos,
    /// To send a request, until the NIC's driver has it; zero: there is no such end.
    pub send: Nanos,
    /// And from then on.
    pub sent: Nanos,
    /// To read an answer.
    pub read: Nanos,
    /// Until the thread is at what falls due, where it sleeps.
    pub due: Nanos,
    /// Until it is at an answer, from the end of its interrupt.
    pub wake: Nanos,
    /// What is due so soon is waited for awake.
    pub spin: Nanos,
    /// An interrupt for answers, with the softirq of the first.
    pub interrupt: Nanos,
    /// And of each more.
    pub packet: Nanos,
    /// One for what was sent.
    pub told: Nanos,
    /// Interrupts come at most once in this time, and again when it is over.
    pub moderation: Nanos,
}

impl EndCosts {
    /// Whether there is such an end.
    pub fn there(&self) -> bool {
        self.send > Nanos::ZERO
    }
}

/// What the thread does in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// Sends what is due.
    #[default]
    Sends,
    /// Reads what has come.
    Reads,
}

/// A request that waits for the thread alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it was due.
    pub due: Nanos,
    /// Its connection.
    pub flow: u32,
    /// How often it has been sent, with this.
    pub times: u32,
}

/// An answer that the thread hasn't read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When its interrupt is over.
    pub at: Nanos,
    /// When the request was due.
    pub due: Nanos,
    /// Its connection.
    pub flow: u32,
}

/// A client's end.
#[derive(Clone, Debug)]
pub struct End {
    /// What is to be sent, beside what waits for a connection.
    pub requests: VecDeque<Request>,
    answers: VecDeque<Answer>,
    /// When the thread turns to something next, if it is known, and to what.
    next: Option<Nanos>,
    turn: Turn,
    awake: bool,
    /// When it went to sleep.
    slept: Nanos,
    /// Until when its NIC interrupts nobody.
    quiet: Nanos,
    /// When its NIC interrupts for answers, and for how long each.
    interrupts: VecDeque<(Nanos, Nanos)>,
    /// Where the thread is: drawn for each second, by this seed.
    seed: u64,
    second: u64,
    receives: bool,
}

const SECOND: u64 = 1_000_000_000;

impl End {
    /// One whose thread sleeps.
    pub fn new(seed: u64) -> End {
        End {
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            next: None,
            turn: Turn::default(),
            awake: false,
            slept: Nanos::ZERO,
            quiet: Nanos::ZERO,
            interrupts: VecDeque::new(),
            seed,
            second: u64::MAX,
            receives: false,
        }
    }

    /// Whether the thread is where the NIC interrupts for answers, and not where it does for what was sent.
    pub fn receives(&mut self, now: Nanos) -> bool {
        let second = now.0 / SECOND;
        if std::mem::replace(&mut self.second, second) != second {
            self.receives = Stream::new(self.seed, "client's core", second).chance(0.5);
        }
        self.receives
    }

    /// Something falls due. When to have the thread take its turn, if that is new.
    pub fn falls_due(&mut self, now: Nanos, costs: &EndCosts) -> Option<Nanos> {
        let spins = now <= self.slept.saturating_add(costs.spin);
        let takes = if spins { costs.look } else { costs.due };
        let wakes = now.saturating_add(takes);
        if self.awake || self.next.is_some_and(|next| next <= wakes) {
            return None;
        }
        self.turn = Turn::Sends;
        self.next = Some(self.interrupted(now, wakes));
        self.next
    }

    /// An answer of a request that was due then has left the host. When to have the thread take its turn, if that is new.
    pub fn hears(&mut self, now: Nanos, due: Nanos, flow: u32, costs: &EndCosts) -> Option<Nanos> {
        let before = self.answers.back().map_or(Nanos::ZERO, |last| last.at);
        let comes = now.saturating_add(costs.device);
        let interrupt = if comes > self.quiet {
            self.quiet = comes.saturating_add(costs.moderation);
            comes
        } else {
            self.quiet
        };
        // Who comes while there is one is seen to by that.
        let (from, takes) = if before > interrupt {
            (before, costs.packet)
        } else {
            (interrupt, costs.interrupt)
        };
        let at = from.saturating_add(takes);
        self.answers.push_back(Answer { at, due, flow });
        self.interrupts.push_back((from, takes));
        if self.awake || self.next.is_some() {
            let next = self.next?;
            self.next = Some(self.interrupted(now, next));
            return self.next.filter(|later| *later > next);
        }
        self.rests(now, costs)
    }

    /// When the thread, at it from then, has done what it would have by then if its core weren't interrupted.
    fn interrupted(&mut self, from: Nanos, until: Nanos) -> Nanos {
        let here = self.receives(from);
        let mut until = until;
        while let Some((at, takes)) = self.interrupts.pop_front_if(|(at, _)| *at < until) {
            if here {
                let over = at.saturating_add(takes).saturating_sub(from.max(at));
                until = until.saturating_add(over);
            }
        }
        until
    }

    /// The thread's turn, if it is now.
    pub fn turns(&mut self, now: Nanos) -> Option<Turn> {
        let turns = self.next == Some(now);
        self.awake |= turns;
        turns.then_some(self.turn)
    }

    /// The next answer that has come by now.
    pub fn reads(&mut self, now: Nanos) -> Option<Answer> {
        self.answers.pop_front_if(|answer| answer.at <= now)
    }

    /// The thread has had its turn, which would last until then; when the other one is.
    pub fn goes_on(&mut self, now: Nanos, until: Nanos, did: Turn, costs: &EndCosts) -> Nanos {
        let (turn, look) = match did {
            Turn::Sends => (Turn::Reads, costs.look),
            Turn::Reads => (Turn::Sends, Nanos::ZERO),
        };
        self.turn = turn;
        let next = self.interrupted(now, until.saturating_add(look));
        self.next = Some(next);
        next
    }

    /// The thread has nothing to do, and sleeps; until when, if that is known.
    pub fn rests(&mut self, now: Nanos, costs: &EndCosts) -> Option<Nanos> {
        let first = self.answers.front();
        if std::mem::take(&mut self.awake) {
            self.slept = now;
        }
        self.turn = Turn::Reads;
        self.next = first.map(|answer| answer.at.saturating_add(costs.wake));
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: EndCosts = EndCosts {
        device: Nanos(50),
        look: Nanos(20),
        begin: Nanos(15),
        send: Nanos(40),
        sent: Nanos(15),
        read: Nanos(30),
        due: Nanos(90),
        wake: Nanos(80),
        spin: Nanos(10),
        interrupt: Nanos(60),
        packet: Nanos(25),
        told: Nanos(5),
        moderation: Nanos(200),
    };

    /// One whose thread is where its NIC interrupts for answers, or isn't, all through the first second.
    fn at(receives: bool) -> End {
        End {
            second: 0,
            receives,
            ..End::new(1)
        }
    }

    #[test]
    fn who_sleeps_is_woken_once_for_what_comes_first() {
        let mut end = at(false);
        assert_eq!(end.falls_due(Nanos(1000), &COSTS), Some(Nanos(1090)));
        assert_eq!(end.falls_due(Nanos(1001), &COSTS), None, "it is on its way");
        assert_eq!(end.turns(Nanos(1089)), None);
        assert_eq!(end.turns(Nanos(1090)), Some(Turn::Sends));
        assert_eq!(end.falls_due(Nanos(1091), &COSTS), None, "it is awake");
        let (now, until) = (Nanos(1090), Nanos(1230));
        assert_eq!(
            end.goes_on(now, until, Turn::Sends, &COSTS),
            Nanos(1250),
            "it looks for what there is"
        );
        assert_eq!(end.turns(Nanos(1250)), Some(Turn::Reads));
        assert_eq!(end.rests(Nanos(1250), &COSTS), None);
        assert_eq!(end.turns(Nanos(1250)), None);
        // An answer's interrupt takes longer than a timer's.
        assert_eq!(
            end.hears(Nanos(2000), Nanos(1000), 3, &COSTS),
            Some(Nanos(2190))
        );
        assert_eq!(end.falls_due(Nanos(2010), &COSTS), Some(Nanos(2100)));
        assert_eq!(end.turns(Nanos(2100)), Some(Turn::Sends));
        let (now, until) = (Nanos(2100), Nanos(2150));
        assert_eq!(end.goes_on(now, until, Turn::Sends, &COSTS), Nanos(2170));
        assert_eq!(end.turns(Nanos(2190)), None, "that was before it was awake");
        assert_eq!(end.turns(Nanos(2170)), Some(Turn::Reads));
        let read = end
            .reads(Nanos(2170))
            .map(|answer| (answer.at, answer.due, answer.flow));
        assert_eq!(read, Some((Nanos(2110), Nanos(1000), 3)));
        let (now, until) = (Nanos(2170), Nanos(2200));
        assert_eq!(
            end.goes_on(now, until, Turn::Reads, &COSTS),
            until,
            "what is due by then is sent at once"
        );
    }

    #[test]
    fn what_is_due_soon_after_it_has_gone_to_sleep_finds_it_awake() {
        for (after, turns) in [(0, 1020), (10, 1030), (11, 1101)] {
            let mut end = at(false);
            end.falls_due(Nanos(900), &COSTS);
            assert_eq!(end.turns(Nanos(990)), Some(Turn::Sends));
            end.rests(Nanos(1000), &COSTS);
            let next = end.falls_due(Nanos(1000 + after), &COSTS);
            assert_eq!(next, Some(Nanos(turns)), "{after}");
        }
    }

    /// Two by the interrupt at 1250, one after the other; it keeps none back that comes after it.
    #[test]
    fn answers_soon_after_others_come_by_the_interrupt_when_the_moderation_time_is_over() {
        let mut end = at(false);
        for at in [1000, 1100, 1200, 1900] {
            end.hears(Nanos(at), Nanos(0), 0, &COSTS);
        }
        let mut come = Vec::new();
        for now in (0..3000).map(Nanos) {
            come.extend(std::iter::from_fn(|| end.reads(now)).map(|_| now.0));
        }
        assert_eq!(come, [1110, 1310, 1335, 2010]);
    }

    /// What it is at takes as much longer as interrupts take of its core: those that come before it would be done, whether they are known of when it begins or not.
    #[test]
    fn a_thread_waits_for_interrupts_of_its_own_core_alone() {
        for (receives, later) in [(false, 0), (true, 1)] {
            let mut end = at(receives);
            let until = |until: u64, interrupts: u64| Nanos(until + later * interrupts);
            end.falls_due(Nanos(1000), &COSTS);
            end.turns(Nanos(1090));
            end.goes_on(Nanos(1090), Nanos(1180), Turn::Sends, &COSTS);
            let next = end.hears(Nanos(1100), Nanos(0), 0, &COSTS);
            assert_eq!(next, receives.then_some(Nanos(1260)), "by 60");
            let next = end.hears(Nanos(1110), Nanos(0), 0, &COSTS);
            assert_eq!(next, None, "it comes at 1350");
            let now = until(1200, 60);
            assert_eq!(end.turns(now), Some(Turn::Reads));
            let next = end.goes_on(now, now.saturating_add(Nanos(30)), Turn::Reads, &COSTS);
            assert_eq!(next, until(1230, 60), "nothing has come meanwhile");
            let (now, done) = (next, next.saturating_add(Nanos(100)));
            let next = end.goes_on(now, done, Turn::Sends, &COSTS);
            assert_eq!(next, until(1350, 120), "the second has");
        }
    }

    #[test]
    fn where_the_thread_is_is_chance_and_stays_for_a_second() {
        let mut end = End::new(1);
        let mut seconds = 0;
        for second in 0..400 {
            let first = end.receives(Nanos(second * SECOND));
            assert_eq!(end.receives(Nanos(second * SECOND + SECOND - 1)), first);
            seconds += u64::from(first);
        }
        assert!((160..240).contains(&seconds), "{seconds} of 400");
        // Whatever was asked before.
        let mut other = End::new(1);
        for second in (0..400)
            .rev()
            .step_by(7)
            .map(|second| Nanos(second * SECOND))
        {
            assert_eq!(other.receives(second), end.receives(second));
        }
    }
}
