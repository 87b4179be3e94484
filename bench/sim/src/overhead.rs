//! What a trace takes of who is traced: lines of a trace by what they are of, and where they were written.

/// What an event takes, instructions: that of an interrupt or a softirq, and any other. `request events` has 585 ± 2 and 722 ± 5 of the tracer's own functions (one run of bench/sim/busy.toml's host at 2400 requests a second, beside one that isn't traced;
/// 6 cores, R2 1.000; debaab1); the clock takes 43 more each time, and what copies names and hashes 62 of others.
const SHORT: f64 = 628.0;
const OTHER: f64 = 827.0;
/// The way into a handler or a softirq and back: half of what `HARDIRQ` (`crates/ostler-sim/src/costs/emulated.rs`) is beyond the handler and some of what traces it, as one of both mostly follows the other.
const WAY: f64 = 435.0;

/// What the events of a trace take, s.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overhead {
    /// One of an interrupt or a softirq.
    pub short: f64,
    /// Any other.
    pub event: f64,
    /// The way into a handler or a softirq and back: none of its time, nor of whose it comes upon.
    pub way: f64,
}

impl Overhead {
    /// On a host whose instructions take so long, ns.
    pub fn of(ns: f64) -> Overhead {
        Overhead {
            short: SHORT * ns / 1e9,
            event: OTHER * ns / 1e9,
            way: WAY * ns / 1e9,
        }
    }
}

/// Whether a line is of an interrupt or a softirq, which say little; others say who, where and what, and take longer to write.
pub fn is_short(event: &str) -> bool {
    matches!(
        event,
        "irq_handler_entry" | "irq_handler_exit" | "softirq_entry" | "softirq_exit"
    )
}

/// When a line was written, on which core, of which event, and what it says.
pub fn told(line: &str) -> Option<(f64, u32, &str, &str)> {
    let (head, what) = line.split_once(": ")?;
    let (_, head) = head.split_once('[')?;
    let (cpu, head) = head.split_once(']')?;
    let at = head.split_whitespace().next_back()?.parse().ok()?;
    // A system call's begins with a bracket, and says what it comes to behind an arrow.
    let (event, rest) = what.split_at(what.find([':', '(', ' '])?);
    let rest = rest.strip_prefix(':').unwrap_or(rest).trim_start();
    Some((at, cpu.parse().ok()?, event, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_are_told() {
        let told = |what: &str| {
            let line = format!("ostler-load-9 [007] ..... 1.5: {what}");
            told(&line).map(|(at, cpu, event, rest)| (at, cpu, event.to_owned(), rest.to_owned()))
        };
        let is = |event: &str, rest: &str| Some((1.5, 7, event.to_owned(), rest.to_owned()));
        let begins = "sys_epoll_wait(epfd: 0x13, timeout: 0x0)";
        assert_eq!(
            told(begins),
            is("sys_epoll_wait", "(epfd: 0x13, timeout: 0x0)")
        );
        assert_eq!(told("sys_recvfrom -> 0x3e"), is("sys_recvfrom", "-> 0x3e"));
    }
}
