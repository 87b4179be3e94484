//! A scenario as the text of a file. The types are those that files are read into, so that what is written is what is read.

use ostler_model::{Bytes, Nanos};
use toml::Spanned;

use crate::check::raw::{
    RawBarrier, RawFault, RawFiles, RawFleet, RawForward, RawGuest, RawHeat, RawHost, RawLoad,
    RawLock, RawNode, RawPages, RawPhase, RawPolicy, RawScenario, RawServe, nowhere,
};
use crate::{
    Arrivals, Fault, Fleet, Guest, Heat, Host, Load, Node, Policy, Program, Scenario, Time,
    TimedFault, TimedKind, Vms, Wait, Wakeups, Weights,
};

/// The text.
pub(crate) fn text(scenario: &Scenario) -> String {
    // Plain values of types that TOML has: nothing of them can fail to be written.
    toml::to_string(&raw(scenario)).unwrap_or_default()
}

fn raw(scenario: &Scenario) -> RawScenario {
    let faults = scenario.faults.iter().map(fault);
    let timed = scenario.timed_faults.iter().map(timed_fault);
    let policies = scenario.policies.iter().chain(&scenario.left_out);
    RawScenario {
        name: nowhere(scenario.name.clone()),
        summary: scenario.summary.clone(),
        rounds: nowhere(scenario.rounds),
        settle_s: nowhere(scenario.settle_s),
        host: host(&scenario.host),
        fleet: scenario.fleet.as_ref().map(|own| nowhere(fleet(own))),
        guest: scenario.guests.iter().map(guest).collect(),
        load: scenario.loads.iter().map(load).collect(),
        // Each policy and fault has its own already, with the common one in it.
        steward: None,
        policy: policies.map(policy).collect(),
        expect: scenario.expectations.iter().cloned().map(nowhere).collect(),
        fault: faults.chain(timed).collect(),
    }
}

fn mebibytes(mib: u64) -> Spanned<String> {
    nowhere(if mib.is_multiple_of(1024) && mib > 0 {
        format!("{}G", mib / 1024)
    } else {
        format!("{mib}M")
    })
}

fn bytes(size: Bytes) -> Spanned<String> {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let fits = units
        .into_iter()
        .find(|(shift, _)| size.0.is_multiple_of(1 << shift) && size.0 > 0);
    nowhere(match fits {
        Some((shift, unit)) => format!("{}{unit}", size.0 >> shift),
        None => format!("{}B", size.0),
    })
}

fn nanos(time: Nanos) -> String {
    let units = [
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
    ];
    let fits = units
        .into_iter()
        .find(|(unit, _)| time.0.is_multiple_of(*unit) && time.0 > 0);
    match fits {
        Some((factor, unit)) => format!("{}{unit}", time.0 / factor),
        None => format!("{}ns", time.0),
    }
}

fn micros(us: u64) -> Spanned<String> {
    nowhere(if us.is_multiple_of(1_000_000) {
        format!("{}s", us / 1_000_000)
    } else if us.is_multiple_of(1_000) {
        format!("{}ms", us / 1_000)
    } else {
        format!("{us}us")
    })
}

fn time(time: &Time) -> Spanned<toml::Value> {
    let text = |time: &Nanos| toml::Value::String(nanos(*time));
    let table = |pairs: &[(&str, toml::Value)]| {
        let pairs = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()));
        toml::Value::Table(pairs.collect())
    };
    nowhere(match time {
        Time::Fixed(time) => text(time),
        Time::Exponential { mean } => table(&[("mean", text(mean))]),
        Time::LogNormal { median, sigma } => {
            table(&[("median", text(median)), ("sigma", (*sigma).into())])
        }
        Time::Either { usual, rare, share } => table(&[
            ("usual", text(usual)),
            ("rare", text(rare)),
            ("share", (*share).into()),
        ]),
    })
}

fn wait(wait: Wait) -> Spanned<String> {
    nowhere(match wait {
        Wait::Block => "block".to_owned(),
        Wait::Spin => "spin".to_owned(),
        Wait::SpinFor(time) => nanos(time),
    })
}

fn host(host: &Host) -> RawHost {
    let filled = |set: &ostler_model::CpuSet| (!set.is_empty()).then(|| nowhere(*set));
    RawHost {
        sockets: host.cpus.sockets,
        cores: nowhere(host.cpus.cores),
        threads: host.cpus.threads,
        memory: None,
        under_test: filled(&host.under_test),
        client: filled(&host.client),
        pnic_queues: nowhere(host.pnic_queues),
        instruction_ns: Some(nowhere(host.instruction_ns)),
        part: host
            .caches
            .as_ref()
            .map(|caches| nowhere(caches.part.clone())),
        cache_group_cores: host.cache_group_cores.map(nowhere),
        node: host.nodes.iter().map(node).collect(),
    }
}

fn node(node: &Node) -> RawNode {
    RawNode {
        memory: mebibytes(node.memory_mib),
        cpus: (!node.cpus.is_empty()).then(|| nowhere(node.cpus)),
        latency_ns: Some(node.latency_ns),
        bandwidth_mib_per_s: Some(node.bandwidth_mib_per_s),
    }
}

fn fleet(fleet: &Fleet) -> RawFleet {
    let (trace, readings, one_of, from, generate) = match &fleet.vms {
        Vms::Trace {
            table,
            readings,
            one_of,
            from,
            ..
        } => (
            Some(nowhere(table.clone())),
            (!readings.is_empty()).then(|| nowhere(readings.clone())),
            (*one_of > 1).then(|| nowhere(*one_of)),
            Some(nowhere(nanos(*from))),
            None,
        ),
        Vms::Generated { count, .. } => (None, None, None, None, Some(nowhere(*count))),
    };
    RawFleet {
        hosts: nowhere(fleet.hosts),
        oversubscription: nowhere(fleet.oversubscription),
        placement: fleet.placement,
        slo_p95: micros(fleet.slo_p95_us),
        trace,
        readings,
        one_of,
        from,
        generate,
        lasts: nowhere(nanos(fleet.vms.lasts())),
    }
}

fn guest(guest: &Guest) -> RawGuest {
    let mut raw = RawGuest {
        name: nowhere(guest.name.clone()),
        count: nowhere(guest.count),
        class: nowhere(guest.class),
        vcpus: nowhere(guest.vcpus),
        memory: mebibytes(guest.memory_mib),
        queues: nowhere(guest.queues),
        workload: nowhere(guest.workload),
        slo_p95: guest.slo_p95_us.map(micros),
        wakeups: (guest.wakeups != Wakeups::default()).then(|| nowhere(guest.wakeups)),
        halt_poll: (guest.halt_poll != Nanos::ZERO).then(|| nowhere(nanos(guest.halt_poll))),
        serve: None,
        barrier: None,
        forward: None,
        files: None,
        lock: None,
        heat: guest.heat.as_ref().map(|own| nowhere(heat(own))),
        cpus: (!guest.cpus.is_empty()).then(|| nowhere(guest.cpus.clone())),
        memory_waits: (guest.memory_waits > 0.0).then(|| nowhere(guest.memory_waits)),
    };
    match &guest.program {
        None => {}
        Some(Program::Serve(own)) => {
            raw.serve = Some(nowhere(RawServe {
                time: time(&own.time),
                threads: own.threads.map(nowhere),
            }));
        }
        Some(Program::Barrier(own)) => {
            raw.barrier = Some(nowhere(RawBarrier {
                compute: time(&own.compute),
                threads: Some(nowhere(own.threads)),
                wait: Some(wait(own.wait)),
            }));
        }
        Some(Program::Forward(own)) => {
            raw.forward = Some(nowhere(RawForward {
                to: own.to.clone().map(nowhere),
                work: own.work.as_ref().map(time),
            }));
        }
        Some(Program::Files(own)) => {
            raw.files = Some(nowhere(RawFiles {
                count: nowhere(own.count),
                size: bytes(own.size),
                cacheable: nowhere(own.cacheable),
                time: time(&own.time),
                disk: nowhere(nanos(own.disk)),
                threads: Some(nowhere(own.threads)),
            }));
        }
        Some(Program::Lock(own)) => {
            raw.lock = Some(nowhere(RawLock {
                think: time(&own.think),
                hold: time(&own.hold),
                threads: Some(nowhere(own.threads)),
                locks: nowhere(own.locks),
                lines: nowhere(own.lines),
                wait: Some(wait(own.wait)),
                declared: own.declared,
            }));
        }
    }
    raw
}

fn heat(heat: &Heat) -> RawHeat {
    let size = |mib: u64| (mib > 0).then(|| mebibytes(mib));
    let phases = heat.phases.iter().map(|phase| RawPhase {
        at: Some(nowhere(nanos(phase.at))),
        hot: size(phase.hot_mib),
        warm: size(phase.warm_mib),
        cold: size(phase.cold_mib),
    });
    RawHeat {
        mpki: Some(nowhere(heat.mpki)),
        repeat: heat.repeat.map(|repeat| nowhere(nanos(repeat))),
        phases: nowhere(phases.collect()),
    }
}

fn load(load: &Load) -> RawLoad {
    RawLoad {
        guest: nowhere(load.guest.clone()),
        connections: nowhere(load.connections),
        args: (!load.args.is_empty()).then(|| nowhere(load.args.clone())),
        steps: nowhere(load.steps.clone()),
        arrivals: (load.arrivals != Arrivals::default()).then(|| nowhere(load.arrivals)),
        background: load.background.then(|| nowhere(true)),
        packets: (load.packets != 1).then(|| nowhere(load.packets)),
    }
}

fn policy(policy: &Policy) -> RawPolicy {
    RawPolicy {
        name: nowhere(policy.name.clone()),
        about: policy.about.clone(),
        pnic_queues: policy.pnic_queues.map(nowhere),
        host_scheduler: policy
            .host_scheduler
            .as_ref()
            .map(|scheduler| nowhere(scheduler.to_string())),
        pages: policy.pages.map(|pages| {
            nowhere(RawPages {
                demote: Some(nowhere(pages.demote)),
                promote: Some(nowhere(pages.promote)),
                rate: Some(bytes(pages.rate)),
            })
        }),
        weights: (policy.weights != Weights::default()).then(|| nowhere(policy.weights)),
        steward: policy.steward.clone(),
    }
}

fn blank(kind: &str) -> RawFault {
    RawFault {
        kind: nowhere(kind.to_owned()),
        times: nowhere(1),
        rate: nowhere(0),
        programs: None,
        at: None,
        lasts: None,
        guest: None,
        host: None,
        share: None,
        steward: None,
    }
}

fn fault(fault: &Fault) -> RawFault {
    RawFault {
        times: nowhere(fault.times),
        rate: nowhere(fault.rate),
        programs: fault.programs.clone().map(nowhere),
        steward: Some(fault.steward.clone()),
        ..blank(&fault.kind.to_string())
    }
}

fn timed_fault(fault: &TimedFault) -> RawFault {
    let (guest, host, share) = match &fault.kind {
        TimedKind::LostInterrupts { guest, share } => (guest.clone(), None, Some(*share)),
        TimedKind::GuestDies { guest }
        | TimedKind::AgentLies { guest }
        | TimedKind::AgentSilent { guest } => (Some(guest.clone()), None, None),
        TimedKind::HostFails { host } => (None, Some(*host), None),
    };
    RawFault {
        at: Some(nowhere(nanos(fault.at))),
        lasts: fault.lasts.map(|lasts| nowhere(nanos(lasts))),
        guest: guest.map(nowhere),
        host: host.map(nowhere),
        share: share.map(nowhere),
        ..blank(fault.kind.name())
    }
}
