//! The kernel's own events, while a load is on: they tell who had which core when, and so why a request was late, which no counter does
//! (Documentation/trace/events.rst).
//!
//! They are kept in an instance of tracefs of our own, so that nothing else that traces is disturbed, on the clock that the steward's periods have.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{read, write};
use crate::trace::TraceEvent;

const TRACEFS: &str = "/sys/kernel/tracing";

/// Of each CPU's events. Ten seconds of a busy host's `sched_switch` and `sched_wakeup` take a tenth.
const BUFFER_KB: u32 = 4096;

/// What writes them down.
pub struct Tracer {
    instance: PathBuf,
}

impl Tracer {
    /// Makes ready to trace these; nothing is traced yet.
    pub fn new(events: &[TraceEvent]) -> anyhow::Result<Tracer> {
        Tracer::under(Path::new(TRACEFS), events)
    }

    fn under(tracefs: &Path, events: &[TraceEvent]) -> anyhow::Result<Tracer> {
        let known = read(tracefs.join("available_events"))?;
        for event in events {
            let is = |line: &str| {
                line == event.as_str()
                    || line
                        .split_once(':')
                        .is_some_and(|(_, name)| name == event.as_str())
            };
            anyhow::ensure!(
                known.lines().any(is),
                "--trace {}: the emulated host's kernel has no such event; those that it has are in {}",
                event.as_str(),
                tracefs.join("available_events").display()
            );
        }
        let instance = tracefs.join("instances/ostler-lab");
        std::fs::create_dir_all(&instance)
            .with_context(|| format!("could not create {}", instance.display()))?;
        write(instance.join("tracing_on"), "0")?;
        write(instance.join("trace_clock"), "mono")?;
        write(instance.join("buffer_size_kb"), &BUFFER_KB.to_string())?;
        let names: Vec<&str> = events.iter().map(TraceEvent::as_str).collect();
        write(instance.join("set_event"), &names.join("\n"))?;
        Ok(Tracer { instance })
    }

    /// Begins anew.
    pub fn begin(&self) -> anyhow::Result<()> {
        // Opening it to be written over empties the buffer.
        write(self.instance.join("trace"), "")?;
        write(self.instance.join("tracing_on"), "1")
    }

    /// Ends, and leaves what there was in `trace.txt`, whose head tells how many there were and how many of them are kept.
    pub fn end(&self, out: &Path) -> anyhow::Result<()> {
        write(self.instance.join("tracing_on"), "0")?;
        let (from, to) = (self.instance.join("trace"), out.join("trace.txt"));
        let copy = || std::io::copy(&mut File::open(&from)?, &mut File::create(&to)?).map(|_| ());
        copy().with_context(|| format!("could not keep the trace in {}", to.display()))
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // Only its events cost anything, and the machine ends soon.
        let _ = std::fs::remove_dir(&self.instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_traced_is_kept_and_an_event_that_is_not_there_is_refused() {
        let tracefs = tempfile::tempdir().unwrap();
        let root = tracefs.path();
        std::fs::write(
            root.join("available_events"),
            "sched:sched_switch\nkvm:kvm_exit\n",
        )
        .unwrap();
        let events = |text: &str| -> Vec<TraceEvent> {
            text.split(',')
                .map(|event| event.parse().unwrap())
                .collect()
        };
        for missing in ["sched", "kvm_entry", "sched:kvm_exit"] {
            let error = Tracer::under(root, &events(missing)).err().unwrap();
            assert!(error.to_string().contains(missing), "{error:#}");
        }
        assert!(!root.join("instances").exists());

        let tracer = Tracer::under(root, &events("sched_switch,kvm:kvm_exit")).unwrap();
        let of = |file: &str| read(tracer.instance.join(file)).unwrap();
        assert_eq!(of("set_event"), "sched_switch\nkvm:kvm_exit");
        assert_eq!(
            (of("tracing_on"), of("trace_clock")),
            ("0".into(), "mono".into())
        );
        tracer.begin().unwrap();
        assert_eq!((of("tracing_on"), of("trace")), ("1".into(), String::new()));
        std::fs::write(tracer.instance.join("trace"), "# one\n").unwrap();
        let out = tempfile::tempdir().unwrap();
        tracer.end(out.path()).unwrap();
        assert_eq!(of("tracing_on"), "0");
        assert_eq!(read(out.path().join("trace.txt")).unwrap(), "# one\n");
    }
}
