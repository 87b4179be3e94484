//! What this host can be sensed for and acted on, and why not where it can't.

use std::path::Path;

use ostler_model::Capability;

use crate::bpf::host::HostBpf;
use crate::config::Roots;
use crate::files;

/// A capability that is there, or is missing for a reason.
pub(crate) fn capability(name: &str, missing: Option<String>) -> Capability {
    Capability {
        name: name.to_owned(),
        missing,
    }
}

/// An error with all its causes, as one sentence.
pub(crate) fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}

/// What can be told by looking at file systems only.
pub(crate) fn of_files(roots: &Roots) -> Vec<Capability> {
    let controllers = files::value(&roots.cgroup.join("cgroup.controllers"));
    let unified = controllers.as_ref().err().map(|error| {
        format!(
            "no unified cgroup hierarchy at {} ({error}); mount cgroup2 there",
            roots.cgroup.display()
        )
    });
    let without = |name: &str| {
        let there = controllers.as_ref().is_ok_and(|controllers| {
            controllers
                .split_ascii_whitespace()
                .any(|controller| controller == name)
        });
        let why = format!(
            "the unified cgroup hierarchy has no {name} controller; is it in use by cgroup v1?"
        );
        unified.clone().or((!there).then_some(why))
    };
    let (cpuset, weight) = (without("cpuset"), without("cpu"));
    let freezer = unified.clone();
    let irq = roots.proc.join("irq/default_smp_affinity");
    let sched_ext = roots.sys.join("kernel/sched_ext");
    vec![
        capability("cgroup-v2", unified),
        capability("cpuset", cpuset),
        capability("cpu-weight", weight),
        capability("freezer", freezer),
        capability(
            "irq-affinity",
            missing_file(&irq, "the kernel lets no interrupt be moved"),
        ),
        capability(
            "vcpu-scheduler",
            missing_file(
                &sched_ext,
                "the kernel has no sched_ext (Linux 6.12 and later have it, built with CONFIG_SCHED_CLASS_EXT)",
            ),
        ),
    ]
}

fn missing_file(path: &Path, why: &str) -> Option<String> {
    (!path.exists()).then(|| format!("{why}: there is no {}", path.display()))
}

/// What BPF brings, or why it doesn't. `off` is the reason when it was not tried.
pub(crate) fn of_bpf(bpf: Option<&HostBpf>, why_not: Option<&str>) -> Vec<Capability> {
    let missing = || why_not.map(str::to_owned);
    let Some(bpf) = bpf else {
        return ["bpf-busy", "bpf-threads", "irq-vectors", "kvm-exits"]
            .map(|name| capability(name, missing()))
            .into();
    };
    vec![
        capability("bpf-busy", None),
        capability("bpf-threads", missing()),
        capability(
            "irq-vectors",
            (bpf.vectors() == 0).then(|| {
                "the kernel traces no timer and inter-processor interrupts; their time counts as their tasks'".to_owned()
            }),
        ),
        capability(
            "kvm-exits",
            (!bpf.counts_kvm_exits()).then(|| "KVM is not loaded; load kvm_amd or kvm_intel".to_owned()),
        ),
    ]
}
