//! Who waits in a domain: `bpf/boost/queue.h`.

use ostler_boost::NOBODY;

use super::{At, Boost, Sight, Waiting};
use crate::host::fair::NONE;

/// As far as the head of a queue is looked at, by what virtual times are now.
pub(super) const LOOK_MAX: usize = 16;
/// As far as it is searched.
const SEARCH_MAX: usize = 1024;

/// The two with the least virtual times of those that wait and may run on a core, and the first that has an event.
pub(super) struct Head {
    pub first: u32,
    pub second: u32,
    pub urgent: u32,
    /// How many were searched for them.
    searched: usize,
    /// More than the first was looked at.
    pub walked: bool,
    first_vtime: u64,
    second_vtime: u64,
}

impl Head {
    const NOBODY: Head = Head {
        first: NONE,
        second: NONE,
        urgent: NONE,
        searched: 0,
        walked: false,
        first_vtime: u64::MAX,
        second_vtime: u64::MAX,
    };
}

impl Boost {
    /// Whether one that comes to wait is to be told from its place in the queue.
    pub(super) fn stirs(&self, thread: u32) -> bool {
        self.member(thread).is_some_and(|member| {
            member.has_event || self.guests[member.guest as usize].balance_ns > 0
        })
    }

    /// [`Boost::look`], of no more than are needed: in a calm queue the first, if it may run here.
    pub(super) fn glance(&mut self, number: u32, cpu: u32, sight: &Sight<'_>) -> Head {
        let domain = &mut self.domains[number as usize];
        if std::mem::take(&mut domain.stirred) {
            let head = self.look(number, cpu, LOOK_MAX, sight);
            self.domains[number as usize].stirred = !self.is_calm(number, head.searched);
            return head;
        }
        let first = domain.queue.front().copied();
        match first.filter(|first| sight.may(first.thread, cpu)) {
            Some(first) => Head {
                first: first.thread,
                first_vtime: first.vtime,
                ..Head::NOBODY
            },
            None => self.look(number, cpu, 2, sight),
        }
    }

    pub(super) fn look(&self, number: u32, cpu: u32, most: usize, sight: &Sight<'_>) -> Head {
        let mut head = Head {
            walked: true,
            ..Head::NOBODY
        };
        let home = self.cores[cpu as usize].domain == number;
        let mut looked = 0;
        let (before, after) = self.domains[number as usize].queue.as_slices();
        // Of the first alone, which each comes to be: of all it would be a tenth of a run's time.
        debug_assert!(before.first().is_none_or(|first| {
            self.as_waiting(first.order, first.thread, sight) == Some(*first)
        }));
        let before = &before[..before.len().min(SEARCH_MAX)];
        let after = &after[..after.len().min(SEARCH_MAX - before.len())];
        let mut passed_over = 0;
        // Not by the iterator of both, which finds out for each entry which of them it is in.
        'queue: for part in [before, after] {
            for waits in part {
                if looked >= most {
                    break 'queue;
                }
                if !(home && waits.anywhere || sight.may(waits.thread, cpu)) {
                    passed_over += 1;
                    continue;
                }
                looked += 1;
                if waits.has_event && head.urgent == NONE && waits.guest != NOBODY {
                    head.urgent = waits.thread;
                }
                let vtime = waits.vtime;
                if vtime < head.first_vtime {
                    head.second = head.first;
                    head.second_vtime = head.first_vtime;
                    head.first = waits.thread;
                    head.first_vtime = vtime;
                } else if vtime < head.second_vtime {
                    head.second = waits.thread;
                    head.second_vtime = vtime;
                }
            }
        }
        head.searched = looked + passed_over;
        head
    }

    /// Whether nobody in a queue has to be told from its place there, of which so many were searched. Apart from the look itself, whose loop is the shorter
    /// for it: most queues aren't calm, and one of their first says so.
    fn is_calm(&self, number: u32, searched: usize) -> bool {
        let queue = &self.domains[number as usize].queue;
        if searched < queue.len() {
            return false;
        }
        let mut before_it = 0;
        let (before, after) = queue.as_slices();
        for part in [before, after] {
            for waits in part {
                // What `stirs` says.
                if waits.has_event
                    || ostler_boost::misplaced(&self.config, before_it, waits.vtime)
                    || self.guests[waits.guest as usize].balance_ns > 0
                {
                    return false;
                }
                before_it = waits.vtime;
            }
        }
        true
    }

    /// How one is in its domain's queue, at a place.
    fn as_waiting(&self, order: u64, thread: u32, sight: &Sight<'_>) -> Option<Waiting> {
        let member = self.member(thread)?;
        let set = &self.domains[member.domain as usize].set;
        Some(Waiting {
            order,
            vtime: member.vcpu.vtime,
            thread,
            guest: member.guest,
            has_event: member.has_event,
            anywhere: set.is_subset(&sight.allowed[thread as usize]),
        })
    }

    /// In which domain's queue one is, and where.
    pub(super) fn place(&self, thread: u32) -> Option<(usize, usize)> {
        let member = self
            .member(thread)
            .filter(|member| member.at == At::Waits)?;
        let queue = &self.domains[member.domain as usize].queue;
        let at = queue.iter().position(|waits| waits.thread == thread)?;
        Some((member.domain as usize, at))
    }

    /// Shows in the queue what one that may wait there has now.
    pub(super) fn shows(&mut self, thread: u32) {
        if let Some((domain, at)) = self.place(thread)
            && let Some(member) = self.member(thread).copied()
        {
            let waits = &mut self.domains[domain].queue[at];
            waits.vtime = member.vcpu.vtime;
            waits.has_event = member.has_event;
        }
    }

    /// The least virtual time of the others on a thread's core, and whose it is; the greatest number: nobody is there. The worker that brings a vCPU its event
    /// is none of them: it has the virtual time of the vCPU's own guest, by which that can't be measured.
    pub(super) fn meets(
        &mut self,
        number: u32,
        cpu: u32,
        thread: u32,
        sight: &Sight<'_>,
    ) -> (u64, u32) {
        let head = self.glance(number, cpu, sight);
        let (least, met) = if head.first == thread {
            (head.second_vtime, head.second)
        } else {
            (head.first_vtime, head.first)
        };
        let core = &self.cores[cpu as usize];
        let has = if core.runs == NONE {
            core.held
        } else {
            core.runs
        };
        if has == thread {
            return (least, met);
        }
        let (Some(runs), Some(own)) = (self.member(has), self.member(thread)) else {
            return (least, met);
        };
        if (runs.works && runs.guest == own.guest) || runs.vcpu.vtime >= least {
            return (least, met);
        }
        (runs.vcpu.vtime, has)
    }

    /// Takes the first that may run on a core: whether there was anybody.
    pub(super) fn take_first(&mut self, number: u32, cpu: u32, sight: &Sight<'_>) -> bool {
        let queue = &self.domains[number as usize].queue;
        let mut threads = queue.iter().map(|waits| waits.thread);
        let Some(thread) = threads.find(|thread| sight.may(*thread, cpu)) else {
            return false;
        };
        self.take(number, cpu, thread, sight)
    }

    /// Has one go on with its turn that was stopped in it on a core, if there is one among the foremost of a queue that is calm: whether there was.
    pub(super) fn go_on(&mut self, number: u32, cpu: u32, sight: &Sight<'_>) -> bool {
        let queue = &self.domains[number as usize].queue;
        if queue.len() < 2 {
            return false;
        }
        let mut least = None;
        let mut found = None;
        for (at, waits) in queue.iter().take(LOOK_MAX).enumerate() {
            let (thread, vtime) = (waits.thread, waits.vtime);
            let Some(member) = self.member(thread) else {
                break;
            };
            let left = ostler_boost::left(&self.config, vtime, *least.get_or_insert(vtime));
            if left == 0 {
                break;
            }
            if member.cpu == cpu && sight.may(thread, cpu) {
                found = Some((at, (thread, left)));
                break;
            }
        }
        let Some((at, found)) = found else {
            return false;
        };
        if let Some(member) = self.member_mut(found.0) {
            member.ahead = at > 0;
        }
        self.take_for(number, cpu, found, sight)
    }

    /// Takes one that waits in a domain to a core, if it is still there and may run there.
    pub(super) fn take(&mut self, number: u32, cpu: u32, thread: u32, sight: &Sight<'_>) -> bool {
        self.take_for(number, cpu, (thread, self.config.slice_ns), sight)
    }

    /// The same, for so long.
    fn take_for(
        &mut self,
        number: u32,
        cpu: u32,
        (thread, slice): (u32, u64),
        sight: &Sight<'_>,
    ) -> bool {
        let queue = &mut self.domains[number as usize].queue;
        let Some(at) = queue.iter().position(|waits| waits.thread == thread) else {
            return false;
        };
        if !sight.may(thread, cpu) {
            return false;
        }
        queue.remove(at);
        if let Some(member) = self.member_mut(thread) {
            member.slice = slice;
        }
        self.cores[cpu as usize].local.push_back(thread);
        true
    }

    /// In its order, or at the head.
    pub(super) fn insert(&mut self, number: u32, thread: u32, sight: &Sight<'_>) {
        let member = self.member(thread).filter(|member| !member.ahead);
        let now = self.domains[number as usize].now;
        let order = member.map_or(0, |member| {
            ostler_boost::order(&self.config, member.vcpu.vtime, now)
        });
        if let Some(waits) = self.as_waiting(order, thread, sight) {
            let queue = &mut self.domains[number as usize].queue;
            let at = queue.partition_point(|other| other.order <= order);
            queue.insert(at, waits);
        }
    }

    /// Takes a thread out of whatever it waits in.
    pub fn remove(&mut self, thread: u32) {
        for domain in &mut self.domains {
            domain.queue.retain(|waits| waits.thread != thread);
        }
        for core in &mut self.cores {
            core.local.retain(|waits| *waits != thread);
            if core.held == thread {
                core.held = NONE;
            }
            if core.next == thread {
                core.next = NONE;
            }
        }
    }
}
