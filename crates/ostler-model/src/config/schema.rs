//! The keys of a configuration, what each may say, and what they may not say together.

use toml::de::DeTable;

use super::daemon::{
    AgentConfig, ApiConfig, DaemonConfig, DiscoveryConfig, JournalConfig, RecordConfig,
};
use super::error::{Errors, Problem};
use super::section::{Located, Section};
use super::{Config, ConfigErrors, TEXT_BYTES_MAX};
use super::{layers, read, rules};
use crate::{
    ActIntent, ActMode, BoostSettings, Bytes, Class, Conflict, CoreIntent, CpuSet, Degradation,
    ExitPolicy, Exploration, Facts, ForeignPolicy, Intent, Nanos, PartitionIntent, PartitionPolicy,
    QueueCount, SharedCores, Thresholds,
};

const MODES: &[(&str, ActMode)] = &[("observe", ActMode::Observe), ("act", ActMode::Act)];

const EXITS: &[(&str, ExitPolicy)] =
    &[("restore", ExitPolicy::Restore), ("keep", ExitPolicy::Keep)];

const FOREIGN: &[(&str, ForeignPolicy)] = &[
    ("respect", ForeignPolicy::Respect),
    ("reown", ForeignPolicy::Reown),
];

pub(super) const CLASSES: &[(&str, Class)] = &[
    ("latency-critical", Class::LatencyCritical),
    ("best-effort", Class::BestEffort),
    ("unmanaged", Class::Unmanaged),
];

/// A policy's name, before its parameters are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PolicyName {
    Performance,
    Energy,
    Resource,
    TimeSharing,
    Static,
    CoreNap,
    Demeter,
}

const POLICIES: &[(&str, PolicyName)] = &[
    ("energy", PolicyName::Energy),
    ("performance", PolicyName::Performance),
    ("resource", PolicyName::Resource),
    ("time-sharing", PolicyName::TimeSharing),
    ("static", PolicyName::Static),
    ("corenap", PolicyName::CoreNap),
    ("demeter", PolicyName::Demeter),
];

const QUEUES: &[(&str, QueueCount)] = &[("one", QueueCount::One), ("max", QueueCount::Max)];

const SHARED: &[(&str, SharedCores)] =
    &[("idle", SharedCores::Idle), ("equal", SharedCores::Equal)];

/// What the boost layer is to do: nothing, equal turns, or turns by who does IO.
pub(super) const BOOSTS: &[(&str, Option<bool>)] =
    &[("off", None), ("fair", Some(false)), ("io", Some(true))];

pub(super) const DEGRADATIONS: &[(&str, Degradation)] = &[
    ("halve", Degradation::Halve),
    ("decrement", Degradation::Decrement),
    ("forget", Degradation::Forget),
];

pub(super) const CONFLICTS: &[(&str, Conflict)] = &[
    ("confidence", Conflict::Confidence),
    ("balance", Conflict::Balance),
    ("neither", Conflict::Neither),
];

pub(super) fn parse(text: &str, file: &str, facts: Option<&Facts>) -> Result<Config, ConfigErrors> {
    let mut errors = Errors::new(file, text);
    let mut config = Config::default();
    if text.len() > TEXT_BYTES_MAX {
        errors.at(
            TEXT_BYTES_MAX..TEXT_BYTES_MAX,
            Problem::new(
                format!("the file has more than {TEXT_BYTES_MAX} bytes"),
                "a configuration is a few dozen lines: is this the right file?",
            ),
        );
    } else {
        let (root, syntax) = DeTable::parse_recoverable(text);
        for error in &syntax {
            let span = error.span().unwrap_or(0..0);
            errors.at(
                span,
                Problem::new(
                    error.message().to_owned(),
                    "the file is TOML: `key = value` under [section] headers",
                ),
            );
        }
        if !syntax.is_empty() {
            errors.one_per_line();
        }
        let whole = root.span();
        let root = root.into_inner();
        config = read_root(
            &mut Section::new("a configuration", &root, whole),
            &mut errors,
            facts,
        );
        let mut sections = Section::new("a configuration", &root, 0..0);
        for name in SECTIONS {
            sections.raw(name);
        }
        sections.finish(&mut errors);
    }
    match errors.finish() {
        None => Ok(config),
        Some(errors) => Err(errors),
    }
}

const SECTIONS: &[&str] = &[
    "steward",
    "cores",
    "partition",
    "boost",
    "placement",
    "tier",
    "sizing",
    "hints",
    "guest",
    "network",
    "discovery",
    "agent",
    "api",
    "metrics",
    "record",
    "journal",
];

fn read_root(root: &mut Section<'_, '_>, errors: &mut Errors<'_>, facts: Option<&Facts>) -> Config {
    let default = Intent::default();

    let mut steward = root.section(errors, "steward", "[steward]");
    let period = steward.get(
        errors,
        "period",
        read::duration(Nanos::from_millis(10)..=Nanos::from_secs(60), "100ms"),
    );
    let act = ActIntent {
        mode: value(
            steward.get(errors, "mode", read::choice(MODES)),
            default.act.mode,
        ),
        on_exit: value(
            steward.get(errors, "on_exit", read::choice(EXITS)),
            default.act.on_exit,
        ),
        foreign: value(
            steward.get(errors, "foreign", read::choice(FOREIGN)),
            default.act.foreign,
        ),
    };
    let default_class = steward.get(errors, "default_class", read::choice(CLASSES));
    if let Some(Located {
        value: Class::LatencyCritical,
        span,
    }) = &default_class
    {
        errors.at(
            span.clone(),
            Problem::new(
                "`default_class` can't be latency-critical: such a guest needs an objective",
                "write a [[guest]] rule with a class and an slo; name = \"*\" matches all",
            ),
        );
    }
    steward.finish(errors);

    let (cores, available) = read_cores(root, errors, facts);
    let partition = read_partition(root, errors, available);
    let boost = read_boost(root, errors, &partition);
    let guests = rules::read(root, errors);
    let nics = read_network(root, errors, facts);
    let daemon = read_daemon(root, errors);
    let mut intent = Intent {
        period: value(period, default.period),
        cores,
        partition,
        boost,
        guests,
        default_class: value(default_class, default.default_class),
        nics,
        act,
        ..default
    };
    layers::read(root, errors, facts, &mut intent);
    Config { intent, daemon }
}

fn value<T>(read: Option<Located<T>>, default: T) -> T {
    read.map_or(default, |located| located.value)
}

/// The cores, and how many of them can be handed out where that is known.
fn read_cores(
    root: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
    facts: Option<&Facts>,
) -> (CoreIntent, Option<u32>) {
    let mut section = root.section(errors, "cores", "[cores]");
    let managed = section.get(errors, "managed", read::cpus);
    let reserved = section.get(errors, "reserved", read::cpus);
    let online = facts.map(|facts| facts.topology.online());
    for (key, cpus) in [("managed", &managed), ("reserved", &reserved)] {
        if let (Some(cpus), Some(online)) = (cpus, &online) {
            let absent = cpus.value.difference(online);
            if !absent.is_empty() {
                errors.at(
                    cpus.span.clone(),
                    Problem::new(
                        format!("`{key}` names CPU {absent}, which is not online on this host"),
                        format!("online are {online}"),
                    ),
                );
            }
        }
    }
    if let (Some(managed), Some(reserved)) = (&managed, &reserved) {
        let both = managed.value.intersection(&reserved.value);
        if !both.is_empty() {
            errors.at(
                reserved.span.clone(),
                Problem::new(
                    format!("CPU {both} is both managed and reserved"),
                    "take it out of `managed` to keep it for the host, or out of `reserved` to hand it to guests",
                ),
            );
        }
    }
    let kept = reserved.as_ref().map_or(CpuSet::EMPTY, |cpus| cpus.value);
    let handed_out = match (&managed, &online) {
        (Some(managed), _) => Some(managed.value.difference(&kept)),
        (None, Some(online)) => Some(online.difference(&kept)),
        (None, None) => None,
    };
    // Fewer than two can't be divided. Reported at what the operator wrote, if anything was: a host with one CPU is no mistake of the text.
    if let Some(cpus) = &handed_out
        && cpus.len() < 2
        && let Some(written) = managed.as_ref().or(reserved.as_ref())
    {
        errors.at(
            written.span.clone(),
            Problem::new(
                format!("only {} CPU is left to hand out", cpus.len()),
                "leave at least two: one for vCPUs and one for network queues",
            ),
        );
    }
    section.finish(errors);
    let cores = CoreIntent {
        managed: managed.map(|managed| managed.value.union(&kept)),
        reserved: kept,
    };
    (cores, handed_out.map(|cpus| cpus.len()))
}

fn read_partition(
    root: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
    available: Option<u32>,
) -> PartitionIntent {
    let default = PartitionIntent::default();
    let mut section = root.section(errors, "partition", "[partition]");
    let policy = read_policy(&mut section, errors, available);

    let mut thresholds = section.section(errors, "thresholds", "[partition.thresholds]");
    let bounds = 0.05..=1.0;
    let vcpu = thresholds.get(
        errors,
        "vcpu",
        read::share(bounds.clone(), "0.7 or \"70%\""),
    );
    let nq = thresholds.get(errors, "nq", read::share(bounds, "0.7 or \"70%\""));
    thresholds.finish(errors);

    let margin = section.get(errors, "margin", read::number(1.0..=10.0, "1.1"));
    let hold = section.get(
        errors,
        "hold",
        read::duration(Nanos::ZERO..=Nanos::from_secs(60), "1s"),
    );

    let best_effort = section.get(errors, "best_effort", read::weight_or(SHARED));
    // A policy that can't be read was reported; it may be one that takes this.
    if best_effort.is_some() && !policy.weighs() {
        errors.at(
            section.key_span("best_effort"),
            Problem::new(
                "`best_effort` is a parameter of the policies \"energy\", \"performance\" and \"resource\", not of this one",
                "take `best_effort` out, or set policy to one of these",
            ),
        );
    }

    let leftovers = section.get(errors, "leftovers", read::boolean);
    if leftovers.is_some() && policy != PartitionPolicy::Resource {
        errors.at(
            section.key_span("leftovers"),
            Problem::new(
                "`leftovers` is a parameter of the policy \"resource\", not of this one",
                "take `leftovers` out, or set policy = \"resource\"",
            ),
        );
    }

    let usual = Exploration::default();
    let mut explore = section.section(errors, "exploration", "[partition.exploration]");
    let enabled = value(explore.get(errors, "enabled", read::boolean), true);
    let exploration = Exploration {
        samples: value(
            explore.get(errors, "samples", read::count(1..=100_000, "1000")),
            usual.samples,
        ),
        allow_violation: value(
            explore.get(errors, "allow_violation", read::share(0.0..=0.5, "\"1%\"")),
            usual.allow_violation,
        ),
        weight: value(
            explore.get(errors, "weight", read::share(0.01..=1.0, "0.7")),
            usual.weight,
        ),
        reward: value(
            explore.get(errors, "reward", read::number(1.0..=2.0, "1.03")),
            usual.reward,
        ),
    };
    explore.finish(errors);
    section.finish(errors);

    PartitionIntent {
        policy,
        thresholds: Thresholds {
            vcpu: value(vcpu, default.thresholds.vcpu),
            nq: value(nq, default.thresholds.nq),
        },
        margin: value(margin, default.margin),
        hold: value(hold, default.hold),
        best_effort: value(best_effort, default.best_effort),
        leftovers: value(leftovers, default.leftovers),
        exploration: enabled.then_some(exploration),
    }
}

fn read_boost(
    root: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
    partition: &PartitionIntent,
) -> Option<BoostSettings> {
    let usual = BoostSettings::default();
    let mut section = root.section(errors, "boost", "[boost]");
    let mode = section.get(errors, "mode", read::choice(BOOSTS));
    let span = |least: u64, most: u64, example| {
        read::duration(
            Nanos::from_micros(least)..=Nanos::from_micros(most),
            example,
        )
    };
    let slice = section.get(errors, "slice", span(100, 100_000, "3ms"));
    let slice_max = section.get(errors, "slice_max", span(100, 1_000_000, "12ms"));
    let limit = section.get(errors, "limit", span(0, 3_600_000_000, "50ms"));
    let count = read::count(1..=1_000_000, "4");
    let threshold = section.get(errors, "threshold", &count);
    let confidence_max = section.get(errors, "confidence_max", &count);
    let settings = BoostSettings {
        io: mode.as_ref().is_some_and(|mode| mode.value == Some(true)),
        slice: slice.as_ref().map_or(usual.slice, |slice| slice.value),
        slice_max: slice_max
            .as_ref()
            .map_or(usual.slice_max, |most| most.value),
        limit: value(limit, usual.limit),
        threshold: threshold
            .as_ref()
            .map_or(usual.threshold, |least| least.value),
        confidence_max: confidence_max
            .as_ref()
            .map_or(usual.confidence_max, |most| most.value),
        degradation: value(
            section.get(errors, "degradation", read::choice(DEGRADATIONS)),
            usual.degradation,
        ),
        conflict: value(
            section.get(errors, "conflict", read::choice(CONFLICTS)),
            usual.conflict,
        ),
        workers: value(section.get(errors, "workers", read::boolean), usual.workers),
    };
    section.finish(errors);
    // Reported at whichever of the two was written.
    if settings.slice_max < settings.slice
        && let Some(at) = slice_max.or(slice)
    {
        errors.at(
            at.span,
            Problem::new(
                "`slice_max`, the longest stretch of a vCPU that does IO, is shorter than `slice`, a turn of any",
                "raise `slice_max`, or lower `slice`",
            ),
        );
    }
    if settings.confidence_max < settings.threshold
        && let Some(at) = confidence_max.or(threshold)
    {
        errors.at(
            at.span,
            Problem::new(
                "`confidence_max` is below `threshold`, so no vCPU would ever do IO",
                "raise `confidence_max`, or lower `threshold`",
            ),
        );
    }
    let mode = mode?;
    mode.value?;
    if partition.policy.weighs() && partition.best_effort != SharedCores::Equal {
        errors.at(
            mode.span,
            Problem::new(
                "this scheduler of vCPUs knows no weights, and [partition] has best-effort guests yield by theirs",
                "set best_effort = \"equal\" in [partition], or mode = \"off\" here",
            ),
        );
    }
    Some(settings)
}

fn read_policy(
    section: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
    available: Option<u32>,
) -> PartitionPolicy {
    let name = section.get(errors, "policy", read::choice(POLICIES));
    let queues = section.get(errors, "queues", read::choice(QUEUES));
    let cores = read::count(1..=crate::MAX_CPUS, "2");
    let vcpu = section.get(errors, "vcpu", &cores);
    let nq = section.get(errors, "nq", &cores);
    // A policy that can't be read was reported; its parameters can't be judged.
    if name.is_none() && section.raw("policy").is_some() {
        return PartitionPolicy::Energy;
    }
    let name_span = name
        .as_ref()
        .map_or(section.span.clone(), |name| name.span.clone());
    let name = value(name, PolicyName::Energy);
    let takes_queues = matches!(name, PolicyName::TimeSharing | PolicyName::Demeter);
    let takes_cores = name == PolicyName::Static;
    for (key, takes, whose) in [
        ("queues", takes_queues, "\"time-sharing\" and \"demeter\""),
        ("vcpu", takes_cores, "\"static\""),
        ("nq", takes_cores, "\"static\""),
    ] {
        if !takes && section.raw(key).is_some() {
            errors.at(
                section.key_span(key),
                Problem::new(
                    format!("`{key}` is a parameter of the policy {whose}, not of this one"),
                    format!("take `{key}` out, or set policy to {whose}"),
                ),
            );
        }
    }
    let queues = value(queues, QueueCount::Max);
    match name {
        PolicyName::Performance => PartitionPolicy::Performance,
        PolicyName::Energy => PartitionPolicy::Energy,
        PolicyName::Resource => PartitionPolicy::Resource,
        PolicyName::TimeSharing => PartitionPolicy::TimeSharing { queues },
        PolicyName::CoreNap => PartitionPolicy::CoreNap,
        PolicyName::Demeter => PartitionPolicy::Demeter { queues },
        PolicyName::Static => {
            for key in ["vcpu", "nq"] {
                if section.raw(key).is_none() {
                    errors.at(
                        name_span.clone(),
                        Problem::new(
                            format!("the policy \"static\" needs `{key}`"),
                            format!("add {key} = the number of cores for it"),
                        ),
                    );
                }
            }
            if let (Some(vcpu), Some(nq), Some(available)) = (&vcpu, &nq, available)
                && vcpu.value + nq.value > available
            {
                errors.at(
                    vcpu.span.clone(),
                    Problem::new(
                        format!(
                            "`vcpu` and `nq` ask for {} cores, and {available} can be handed out",
                            vcpu.value + nq.value
                        ),
                        "lower one of them, or manage more cores",
                    ),
                );
            }
            PartitionPolicy::Static {
                vcpu: value(vcpu, 1),
                nq: value(nq, 1),
            }
        }
    }
}

fn read_network(
    root: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
    facts: Option<&Facts>,
) -> Vec<String> {
    let mut section = root.section(errors, "network", "[network]");
    let nics = section
        .list(
            errors,
            "nics",
            "write the NICs' names, such as [\"eth0\"]",
            read::interface,
        )
        .unwrap_or_default();
    section.finish(errors);
    let mut names: Vec<String> = Vec::new();
    for nic in nics {
        if names.contains(&nic.value) {
            errors.at(
                nic.span.clone(),
                Problem::new(
                    format!("`{}` is named twice", nic.value),
                    "name each NIC once",
                ),
            );
        }
        if let Some(facts) = facts
            && !facts.nics.iter().any(|known| known.name == nic.value)
        {
            let known: Vec<&str> = facts.nics.iter().map(|known| known.name.as_str()).collect();
            let remedy = if known.is_empty() {
                "this host has no physical NIC: take it out".to_owned()
            } else {
                format!("this host has {}", known.join(", "))
            };
            errors.at(
                nic.span,
                Problem::new(
                    format!("`{}` is no physical NIC of this host", nic.value),
                    remedy,
                ),
            );
        }
        names.push(nic.value);
    }
    names
}

/// The name of libvirt's sockets to its guests' monitors.
const LIBVIRT_MONITOR: &str = "monitor.sock";

fn read_daemon(root: &mut Section<'_, '_>, errors: &mut Errors<'_>) -> DaemonConfig {
    let mut section = root.section(errors, "discovery", "[discovery]");
    let usual = DiscoveryConfig::default();
    let qmp = section.list(
        errors,
        "qmp",
        "write patterns of sockets' paths, such as [\"/run/qemu/*.qmp\"]",
        read::path("/run/qemu/*.qmp"),
    );
    for path in qmp.iter().flatten() {
        if path.value.rsplit('/').next() == Some(LIBVIRT_MONITOR) {
            errors.at(
                path.span.clone(),
                Problem::new(
                    format!("`{}` is libvirt's own monitor, which serves nobody else", path.value),
                    "have libvirt asked, with libvirt = \"qemu:///system\", or give the domain a second QMP socket".to_owned(),
                ),
            );
        }
    }
    let discovery = DiscoveryConfig {
        qmp: qmp.map_or(usual.qmp, |paths| {
            paths.into_iter().map(|path| path.value).collect()
        }),
        libvirt: section
            .get(
                errors,
                "libvirt",
                read::text("libvirt's URI", "qemu:///system"),
            )
            .map(|uri| uri.value),
    };
    section.finish(errors);

    let mut section = root.section(errors, "agent", "[agent]");
    let usual = AgentConfig::default();
    let agent = AgentConfig {
        enabled: value(section.get(errors, "enabled", read::boolean), usual.enabled),
        port: value(
            section.get(errors, "port", read::count(1..=u32::MAX - 1, "1077")),
            usual.port,
        ),
    };
    section.finish(errors);

    let mut section = root.section(errors, "api", "[api]");
    let usual = ApiConfig::default();
    let socket = section.get(errors, "socket", read::path("/run/ostler/ostler.sock"));
    if let Some(socket) = &socket
        && socket.value.len() > 107
    {
        errors.at(
            socket.span.clone(),
            Problem::new(
                "`socket` is longer than the 107 bytes that a unix socket's path may have",
                "choose a shorter path, such as \"/run/ostler/ostler.sock\"",
            ),
        );
    }
    let group = section.get(
        errors,
        "group",
        read::text("a group's name or number", "ostler"),
    );
    let uids = section.list(
        errors,
        "uids",
        "write users' numbers, such as [1000]",
        read::count(0..=u32::MAX - 1, "1000"),
    );
    section.finish(errors);

    let mut metrics = root.section(errors, "metrics", "[metrics]");
    let api = ApiConfig {
        socket: value(socket, usual.socket),
        group: group.map(|group| group.value),
        uids: uids.map_or(usual.uids, |uids| {
            uids.into_iter().map(|uid| uid.value).collect()
        }),
        metrics: value(metrics.get(errors, "enabled", read::boolean), usual.metrics),
    };
    metrics.finish(errors);

    let mut section = root.section(errors, "record", "[record]");
    let usual = RecordConfig::default();
    let record = RecordConfig {
        enabled: value(section.get(errors, "enabled", read::boolean), usual.enabled),
        path: value(
            section.get(errors, "path", read::path("/var/lib/ostler/record.db")),
            usual.path,
        ),
        max_size: value(
            section.get(
                errors,
                "max_size",
                read::size(Bytes(1 << 20)..=Bytes(1 << 40), "256MiB"),
            ),
            usual.max_size,
        ),
        max_age: value(
            section.get(
                errors,
                "max_age",
                read::duration(Nanos::from_secs(60)..=Nanos::from_secs(3650 * 86_400), "7d"),
            ),
            usual.max_age,
        ),
    };
    section.finish(errors);

    let mut section = root.section(errors, "journal", "[journal]");
    let journal = JournalConfig {
        path: value(
            section.get(errors, "path", read::path("/var/lib/ostler/journal.db")),
            JournalConfig::default().path,
        ),
    };
    section.finish(errors);
    DaemonConfig {
        discovery,
        agent,
        api,
        record,
        journal,
    }
}
