//! Which events of the emulated host's kernel are written down while loads are on (`--trace`).

use serde::{Deserialize, Serialize};

/// An event as tracefs names it: `sched_switch`, or with its group, `kvm:kvm_exit`. A group alone is no event: it may be hundreds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceEvent(String);

impl TraceEvent {
    /// As tracefs takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for TraceEvent {
    type Err = String;

    fn from_str(text: &str) -> Result<TraceEvent, String> {
        let word = |word: &str| {
            let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            !word.is_empty() && word.len() <= 100 && word.bytes().all(ok)
        };
        let mut words = text.splitn(2, ':');
        if words.all(word) {
            Ok(TraceEvent(text.to_owned()))
        } else {
            Err(format!(
                "{text} names no event of the kernel's; write sched_switch, or kvm:kvm_exit, as /sys/kernel/tracing/available_events has it"
            ))
        }
    }
}

impl TryFrom<String> for TraceEvent {
    type Error = String;

    fn try_from(text: String) -> Result<TraceEvent, String> {
        text.parse()
    }
}

impl From<TraceEvent> for String {
    fn from(event: TraceEvent) -> String {
        event.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_word_or_two() {
        for good in ["sched_switch", "kvm:kvm_exit", "x86_64"] {
            assert_eq!(good.parse(), Ok(TraceEvent(good.to_owned())));
        }
        // What would switch all of a group on, another instance's, or nothing.
        for bad in [
            "",
            ":",
            "sched:",
            ":sched_switch",
            "*",
            "sched:*",
            "a b",
            "a:b:c",
            "!sched_switch",
            "a\nb",
        ] {
            let error = bad.parse::<TraceEvent>().unwrap_err();
            assert!(error.contains("sched_switch"), "{bad}: {error}");
        }
    }
}
