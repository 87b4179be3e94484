//! What Linux's tracer would have written of a simulated host: who is woken, by whom and where, who has each core, interrupts and softirqs, and what a guest's workers send.
//!
//! The same lines, of the same events, as the lab keeps of its hosts (`ostler lab run --trace`): so what reads a host's trace reads a simulated one, and what a figure is made of can be laid side by side.
//!
//! Nothing is written unless it is asked for, and writing takes nothing of the world's time: a host's own tracer takes some of whoever is traced, which the lab's readers leave out.
//!
//! Formats are after kernel/trace/trace_output.c and include/trace/events/{sched,irq,net,kvm}.h. What a simulated kernel doesn't know, a priority or an interrupt's vector, is what a host most often has there.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use ostler_model::{CpuId, Nanos};

use crate::host::Doing;
use crate::work::{Effect, ThreadId};

/// Process numbers of the host's own threads are beyond those that Linux gives by itself (`PID_MAX_DEFAULT`); all others have their thread's, as the steward is told.
const OWN: u32 = 1 << 21;
/// How long a packet is that asks for something, with its headers, as many of the lab's are; and one that acknowledges alone, which is all headers.
const REQUEST: u32 = 102;
const ACKNOWLEDGES: u32 = 66;
/// Nobody: the core's idle task.
const NOBODY: u32 = u32::MAX;

/// Something that a tracer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A thread is woken, and is to be on a core.
    Waking {
        /// Which.
        thread: ThreadId,
        /// Where.
        to: CpuId,
    },
    /// A core has somebody else.
    Switch {
        /// Who had it; `None`: nobody.
        from: Option<ThreadId>,
        /// Whether that sleeps now.
        sleeps: bool,
        /// Who has it.
        to: Option<ThreadId>,
    },
    /// A worker hands a packet to the NIC.
    Transmits {
        /// From which of its guest's queues.
        queue: u32,
    },
    /// A packet goes to a guest's tap.
    Taps {
        /// Which guest's.
        guest: u32,
        /// For which of its queues.
        queue: u32,
        /// Whether it is more than an acknowledgement.
        asks: bool,
    },
    /// A worker interrupts its guest.
    Rings,
    /// A handler begins.
    Enters,
    /// It ends.
    Leaves,
    /// Softirqs begin.
    EntersSoft,
    /// They end.
    LeavesSoft,
}

/// What was seen, when, and on which core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// When.
    pub at: Nanos,
    /// Where.
    pub cpu: CpuId,
    /// Who had the core; `None`: nobody.
    pub on: Option<ThreadId>,
    /// Whether an interrupt or a softirq of that core's did it.
    pub by_interrupt: bool,
    /// What.
    pub seen: Seen,
}

/// What a core is in, besides a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Within {
    hard: bool,
    soft: bool,
}

/// How a core was seen last.
#[derive(Clone, Copy, Debug)]
struct Core {
    on: u32,
    within: Within,
}

impl Default for Core {
    fn default() -> Core {
        Core {
            on: NOBODY,
            within: Within::default(),
        }
    }
}

/// Keeps what is seen.
#[derive(Clone, Debug, Default)]
pub struct Tracer {
    lines: Vec<Line>,
    cores: Vec<Core>,
    /// Which of the effects that wait are of interrupts.
    of_interrupts: Vec<bool>,
    /// The one that is carried out is.
    by_interrupt: bool,
}

impl Tracer {
    fn core(&mut self, cpu: CpuId) -> &mut Core {
        let at = cpu.0 as usize;
        if self.cores.len() <= at {
            self.cores.resize(at + 1, Core::default());
        }
        &mut self.cores[at]
    }

    /// Something of a core.
    pub fn see(&mut self, at: Nanos, cpu: CpuId, seen: Seen) {
        self.put(at, cpu, false, seen);
    }

    fn put(&mut self, at: Nanos, cpu: CpuId, by_interrupt: bool, seen: Seen) {
        let on = known(self.core(cpu).on);
        self.lines.push(Line {
            at,
            cpu,
            on,
            by_interrupt,
            seen,
        });
    }

    /// A core turns to something: handlers and softirqs begin and end. A handler that comes into softirqs is within them.
    pub fn turns(&mut self, at: Nanos, cpu: CpuId, to: Doing) {
        let now = self.core(cpu).within;
        let next = match to {
            Doing::Hard => Within { hard: true, ..now },
            Doing::Soft => Within {
                hard: false,
                soft: true,
            },
            _ => Within::default(),
        };
        if now == next {
            return;
        }
        self.core(cpu).within = next;
        if now.hard && !next.hard {
            self.see(at, cpu, Seen::Leaves);
        }
        if now.soft != next.soft {
            let seen = if next.soft {
                Seen::EntersSoft
            } else {
                Seen::LeavesSoft
            };
            self.see(at, cpu, seen);
        }
        if next.hard && !now.hard {
            self.see(at, cpu, Seen::Enters);
        }
    }

    /// A thread is woken: on a core, by whoever that is at, or by a timer there.
    pub fn wakes(&mut self, at: Nanos, cause: Option<CpuId>, thread: ThreadId, to: CpuId) {
        let by_interrupt = self.by_interrupt || cause.is_none();
        let seen = Seen::Waking { thread, to };
        self.put(at, cause.unwrap_or(to), by_interrupt, seen);
    }

    /// A core's new thread; `NONE` of the host's is nobody, here too. `sleeps` is asked whether the one before does.
    pub fn switches(&mut self, at: Nanos, cpu: CpuId, to: u32, sleeps: impl Fn(u32) -> bool) {
        let from = self.core(cpu).on;
        if from == to {
            return;
        }
        let seen = Seen::Switch {
            from: known(from),
            sleeps: from != NOBODY && sleeps(from),
            to: known(to),
        };
        self.see(at, cpu, seen);
        self.core(cpu).on = to;
    }

    /// Effects from one on are an interrupt's.
    pub fn of_interrupt(&mut self, effects: &[Effect], from: usize) {
        self.of_interrupts.resize(from, false);
        self.of_interrupts.resize(effects.len(), true);
    }

    /// An effect is carried out.
    pub fn carries_out(&mut self, at: usize) {
        self.by_interrupt = self.of_interrupts.get(at).copied().unwrap_or(false);
    }

    /// All are.
    pub fn carried_out(&mut self) {
        self.of_interrupts.clear();
        self.by_interrupt = false;
    }

    /// What was seen since the last time.
    pub fn take(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.lines)
    }
}

fn known(thread: u32) -> Option<ThreadId> {
    (thread != NOBODY).then_some(ThreadId(thread))
}

/// What threads are called.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// So many are the host's own, one for each core.
    pub own: u32,
    /// Of others that have one.
    pub names: BTreeMap<u32, String>,
    /// Of the guests.
    pub taps: Vec<String>,
}

impl Names {
    /// A thread's name and number.
    fn of(&self, thread: Option<ThreadId>, cpu: CpuId) -> (String, u32) {
        match thread {
            None => (format!("swapper/{cpu}"), 0),
            Some(ThreadId(own)) if own < self.own => (format!("ksoftirqd/{own}"), OWN + own),
            Some(ThreadId(other)) => {
                let name = self.names.get(&other);
                let name = name.map_or_else(|| format!("thread-{other}"), Clone::clone);
                (name, other)
            }
        }
    }

    /// A line as the tracer has it, with its end.
    pub fn write(&self, line: &Line, text: &mut String) {
        let (on, pid) = self.of(line.on, line.cpu);
        let (seconds, micros) = (line.at.0 / 1_000_000_000, line.at.0 % 1_000_000_000 / 1000);
        // irqs-off, need-resched, hardirq or softirq, preempt-depth: Documentation/trace/ftrace.rst
        let (irqs, context) = match line.seen {
            Seen::Enters | Seen::Leaves => ('d', 'h'),
            Seen::EntersSoft | Seen::LeavesSoft => ('.', 's'),
            Seen::Transmits { .. } => ('b', '.'),
            Seen::Taps { .. } => ('b', 's'),
            _ if line.by_interrupt => ('d', 's'),
            _ => ('d', '.'),
        };
        let mut say = |what: fmt::Arguments<'_>| {
            // Nothing that is written to a string fails.
            let _ = text.write_fmt(what);
        };
        say(format_args!(
            "{on:>16}-{pid:<7} [{:03}] {irqs}.{context}.. {seconds:5}.{micros:06}: ",
            line.cpu.0
        ));
        let nic = crate::tenants::NIC;
        match line.seen {
            Seen::Waking { thread, to } => {
                let (name, pid) = self.of(Some(thread), to);
                say(format_args!(
                    "sched_waking: comm={name} pid={pid} prio=120 target_cpu={:03}",
                    to.0
                ));
            }
            Seen::Switch { from, sleeps, to } => {
                let (before, from) = self.of(from, line.cpu);
                let (after, to) = self.of(to, line.cpu);
                let state = if sleeps { 'S' } else { 'R' };
                say(format_args!(
                    "sched_switch: prev_comm={before} prev_pid={from} prev_prio=120 prev_state={state} ==> next_comm={after} next_pid={to} next_prio=120"
                ));
            }
            Seen::Transmits { queue } => say(format_args!(
                "net_dev_start_xmit: dev={nic} queue_mapping={queue}"
            )),
            Seen::Taps { guest, queue, asks } => {
                let tap = self.taps.get(guest as usize).map_or("", String::as_str);
                let len = if asks { REQUEST } else { ACKNOWLEDGES };
                say(format_args!(
                    "net_dev_start_xmit: dev=tap-{tap} queue_mapping={queue} len={len}"
                ));
            }
            Seen::Rings => say(format_args!(
                "kvm_msi_set_irq: dst 0 vec 0 (Fixed|physical|edge)"
            )),
            Seen::Enters => say(format_args!("irq_handler_entry: irq=0 name={nic}")),
            Seen::Leaves => say(format_args!("irq_handler_exit: irq=0 ret=handled")),
            Seen::EntersSoft => say(format_args!("softirq_entry: vec=3 [action=NET_RX]")),
            Seen::LeavesSoft => say(format_args!("softirq_exit: vec=3 [action=NET_RX]")),
        }
        say(format_args!("\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lab's kernel writes its lines like these.
    #[test]
    fn lines_are_as_linux_has_them() {
        let mut tracer = Tracer::default();
        let (at, cpu) = (Nanos(57_091_136_400), CpuId(3));
        let sleeps = |thread| thread == 214;
        tracer.switches(at, cpu, 214, sleeps);
        tracer.see(at, cpu, Seen::Transmits { queue: 1 });
        for (queue, asks) in [(3, true), (0, false)] {
            let guest = 1;
            tracer.see(at, cpu, Seen::Taps { guest, queue, asks });
        }
        tracer.see(at, cpu, Seen::Rings);
        let woken = ThreadId(7);
        tracer.wakes(at, Some(cpu), woken, CpuId(0));
        tracer.wakes(at, None, ThreadId(2), CpuId(2));
        tracer.turns(at, cpu, Doing::Hard);
        tracer.turns(at, cpu, Doing::Soft);
        tracer.turns(at, cpu, Doing::Thread);
        tracer.switches(at, cpu, NOBODY, sleeps);
        tracer.switches(at, cpu, NOBODY, sleeps);
        let names = Names {
            own: 4,
            names: BTreeMap::from([(214, "CPU 0/KVM".to_owned()), (7, "vhost-4".to_owned())]),
            taps: vec!["be".to_owned(), "lc".to_owned()],
        };
        let mut text = String::new();
        for line in tracer.take() {
            names.write(&line, &mut text);
        }
        let wanted = "       swapper/3-0       [003] d....    57.091136: sched_switch: prev_comm=swapper/3 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=CPU 0/KVM next_pid=214 next_prio=120
       CPU 0/KVM-214     [003] b....    57.091136: net_dev_start_xmit: dev=eth0 queue_mapping=1
       CPU 0/KVM-214     [003] b.s..    57.091136: net_dev_start_xmit: dev=tap-lc queue_mapping=3 len=102
       CPU 0/KVM-214     [003] b.s..    57.091136: net_dev_start_xmit: dev=tap-lc queue_mapping=0 len=66
       CPU 0/KVM-214     [003] d....    57.091136: kvm_msi_set_irq: dst 0 vec 0 (Fixed|physical|edge)
       CPU 0/KVM-214     [003] d....    57.091136: sched_waking: comm=vhost-4 pid=7 prio=120 target_cpu=000
       swapper/2-0       [002] d.s..    57.091136: sched_waking: comm=ksoftirqd/2 pid=2097154 prio=120 target_cpu=002
       CPU 0/KVM-214     [003] d.h..    57.091136: irq_handler_entry: irq=0 name=eth0
       CPU 0/KVM-214     [003] d.h..    57.091136: irq_handler_exit: irq=0 ret=handled
       CPU 0/KVM-214     [003] ..s..    57.091136: softirq_entry: vec=3 [action=NET_RX]
       CPU 0/KVM-214     [003] ..s..    57.091136: softirq_exit: vec=3 [action=NET_RX]
       CPU 0/KVM-214     [003] d....    57.091136: sched_switch: prev_comm=CPU 0/KVM prev_pid=214 prev_prio=120 prev_state=S ==> next_comm=swapper/3 next_pid=0 next_prio=120
";
        assert_eq!(text, wanted);
    }
}
