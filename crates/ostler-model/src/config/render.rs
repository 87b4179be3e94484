//! A configuration as text: the inverse of [`parse`](super::parse).

use std::fmt::Write as _;

use toml::Value;

use super::Config;
use super::read::{write_duration, write_size};
use super::schema::{BOOSTS, CONFLICTS, DEGRADATIONS};
use super::{layers, terms};
use crate::{
    ActMode, BoostSettings, Class, ExitPolicy, ForeignPolicy, GuestMatch, GuestRule, GuestTerms,
    HintsIntent, PartitionIntent, PartitionPolicy, PlacementSettings, QueueCount, SharedCores,
    SizingSettings, TierSettings,
};

/// Writes a configuration as TOML, every key spelt out. What it writes reads as the same configuration.
pub fn render(config: &Config) -> String {
    let mut out = Lines(String::new());
    let intent = &config.intent;
    out.section("[steward]");
    out.text("period", &write_duration(intent.period));
    out.text(
        "mode",
        match intent.act.mode {
            ActMode::Observe => "observe",
            ActMode::Act => "act",
        },
    );
    out.text(
        "on_exit",
        match intent.act.on_exit {
            ExitPolicy::Keep => "keep",
            ExitPolicy::Restore => "restore",
        },
    );
    out.text(
        "foreign",
        match intent.act.foreign {
            ForeignPolicy::Respect => "respect",
            ForeignPolicy::Reown => "reown",
        },
    );
    out.text("default_class", class(intent.default_class));

    out.section("[cores]");
    if let Some(managed) = intent.cores.managed {
        out.text(
            "managed",
            &managed.difference(&intent.cores.reserved).to_string(),
        );
    }
    out.text("reserved", &intent.cores.reserved.to_string());

    partition(&mut out, &intent.partition);
    boost(&mut out, intent.boost);
    placement(&mut out, intent.placement.as_ref());
    tier(&mut out, intent.tier.as_ref());
    sizing(&mut out, intent.sizing.as_ref());
    hints(&mut out, intent.hints);
    for rule in &intent.guests {
        guest(&mut out, rule);
    }

    out.section("[network]");
    out.list("nics", intent.nics.iter().map(|nic| quoted(nic)));

    let daemon = &config.daemon;
    out.section("[discovery]");
    out.list("qmp", daemon.discovery.qmp.iter().map(|path| quoted(path)));
    if let Some(uri) = &daemon.discovery.libvirt {
        out.text("libvirt", uri);
    }

    out.section("[agent]");
    out.bare("enabled", daemon.agent.enabled);
    out.bare("port", daemon.agent.port);

    out.section("[api]");
    out.text("socket", &daemon.api.socket);
    if let Some(group) = &daemon.api.group {
        out.text("group", group);
    }
    out.list("uids", daemon.api.uids.iter().map(u32::to_string));

    out.section("[metrics]");
    out.bare("enabled", daemon.api.metrics);

    out.section("[record]");
    out.bare("enabled", daemon.record.enabled);
    out.text("path", &daemon.record.path);
    out.text("max_size", &write_size(daemon.record.max_size));
    out.text("max_age", &write_duration(daemon.record.max_age));

    out.section("[journal]");
    out.text("path", &daemon.journal.path);
    out.0
}

fn partition(out: &mut Lines, partition: &PartitionIntent) {
    out.section("[partition]");
    let queues = |out: &mut Lines, queues| {
        out.text(
            "queues",
            match queues {
                QueueCount::One => "one",
                QueueCount::Max => "max",
            },
        );
    };
    match partition.policy {
        PartitionPolicy::Performance => out.text("policy", "performance"),
        PartitionPolicy::Energy => out.text("policy", "energy"),
        PartitionPolicy::Resource => out.text("policy", "resource"),
        PartitionPolicy::CoreNap => out.text("policy", "corenap"),
        PartitionPolicy::TimeSharing { queues: count } => {
            out.text("policy", "time-sharing");
            queues(out, count);
        }
        PartitionPolicy::Demeter { queues: count } => {
            out.text("policy", "demeter");
            queues(out, count);
        }
        PartitionPolicy::Static { vcpu, nq } => {
            out.text("policy", "static");
            out.bare("vcpu", vcpu);
            out.bare("nq", nq);
        }
    }
    let thresholds = partition.thresholds;
    out.bare(
        "thresholds",
        format!(
            "{{ vcpu = {:?}, nq = {:?} }}",
            thresholds.vcpu, thresholds.nq
        ),
    );
    out.number("margin", partition.margin);
    out.text("hold", &write_duration(partition.hold));
    if partition.policy.weighs() {
        match partition.best_effort {
            SharedCores::Idle => out.text("best_effort", "idle"),
            SharedCores::Equal => out.text("best_effort", "equal"),
            SharedCores::Weight(weight) => out.bare("best_effort", weight),
        }
    }
    if partition.policy == PartitionPolicy::Resource {
        out.bare("leftovers", partition.leftovers);
    }
    out.section("[partition.exploration]");
    out.bare("enabled", partition.exploration.is_some());
    if let Some(exploration) = partition.exploration {
        out.bare("samples", exploration.samples);
        out.number("allow_violation", exploration.allow_violation);
        out.number("weight", exploration.weight);
        out.number("reward", exploration.reward);
    }
}

fn boost(out: &mut Lines, settings: Option<BoostSettings>) {
    out.section("[boost]");
    out.text("mode", name(BOOSTS, settings.map(|settings| settings.io)));
    let Some(settings) = settings else { return };
    out.text("slice", &write_duration(settings.slice));
    out.text("slice_max", &write_duration(settings.slice_max));
    out.text("limit", &write_duration(settings.limit));
    out.bare("threshold", settings.threshold);
    out.bare("confidence_max", settings.confidence_max);
    out.text("degradation", name(DEGRADATIONS, settings.degradation));
    out.text("conflict", name(CONFLICTS, settings.conflict));
    out.bare("workers", settings.workers);
}

fn placement(out: &mut Lines, settings: Option<&PlacementSettings>) {
    out.section("[placement]");
    let policy = settings.map(|settings| settings.policy);
    out.text("policy", name(layers::PLACEMENTS, policy));
    let Some(settings) = settings else { return };
    out.text("interval", &write_duration(settings.interval));
    out.number("margin", settings.margin);
    out.bare("vcpus", settings.vcpus);
    if let Some(most) = settings.cores_max {
        out.bare("cores_max", most);
    }
    for (header, stage) in [
        ("[placement.softirq]", settings.softirq),
        ("[placement.vhost]", settings.vhost),
        ("[placement.vcpu]", settings.vcpu),
    ] {
        out.section(header);
        out.text("packet", &write_duration(stage.packet));
        for (key, weight) in stage.weights() {
            out.number(key, weight);
        }
    }
}

fn tier(out: &mut Lines, settings: Option<&TierSettings>) {
    out.section("[tier]");
    out.bare("enabled", settings.is_some());
    let Some(settings) = settings else { return };
    out.text("interval", &write_duration(settings.interval));
    out.number("misses_per_s", settings.misses_per_s);
    out.number("hot_share", settings.hot_share);
    out.number("io_per_s", settings.io_per_s);
    out.text("hold", &write_duration(settings.hold));
    out.text("bytes_per_s", &write_size(settings.bytes_per_s));
    out.text("step", &write_size(settings.step));
    out.text("reserve", &write_size(settings.reserve));
    let floors = settings.tenants.iter().map(|floor| {
        format!(
            "{} = {}",
            quoted(&floor.tenant),
            quoted(&write_size(floor.local_min))
        )
    });
    let floors = floors.collect::<Vec<_>>().join(", ");
    out.bare("tenants", format_args!("{{ {floors} }}"));
}

fn sizing(out: &mut Lines, settings: Option<&SizingSettings>) {
    out.section("[sizing]");
    out.bare("enabled", settings.is_some());
    let Some(settings) = settings else { return };
    out.text("budget", &write_size(settings.budget));
    out.text("parts", name(layers::PARTS, settings.parts));
    out.text("response_step", &write_duration(settings.response_step));
    out.text("size_step", &write_size(settings.size_step));
    out.text("interval_min", &write_duration(settings.interval_min));
    out.text("interval_max", &write_duration(settings.interval_max));
    out.number("memory", settings.memory);
}

fn hints(out: &mut Lines, settings: Option<HintsIntent>) {
    out.section("[hints]");
    out.bare("enabled", settings.is_some());
    let Some(settings) = settings else { return };
    out.text("interval", &write_duration(settings.interval));
    out.bare("grants_max", settings.grants_max);
    out.bare("pins_per_core_max", settings.pins_per_core_max);
}

/// The word for a choice.
fn name<T: Copy + PartialEq>(choices: &[(&'static str, T)], value: T) -> &'static str {
    let named = choices.iter().find(|(_, choice)| *choice == value);
    named.map_or("", |(name, _)| name)
}

fn guest(out: &mut Lines, rule: &GuestRule) {
    out.section("[[guest]]");
    match &rule.matches {
        GuestMatch::Name(name) => out.text("name", name.as_str()),
        GuestMatch::Uuid(uuid) => out.text("uuid", uuid),
        GuestMatch::Metadata { key, value } => out.bare(
            "metadata",
            // A quoted key may hold anything; TOML's strings and quoted keys are written alike.
            format!("{{ {} = {} }}", quoted(key), quoted(value)),
        ),
    }
    out.text("class", class(rule.class));
    if let Some(slo) = rule.slo {
        out.text("slo", &write_duration(slo));
    }
    if !rule.boost {
        out.bare("boost", false);
    }
    guest_terms(out, &rule.terms);
}

fn guest_terms(out: &mut Lines, said: &GuestTerms) {
    if let Some(tenant) = &said.tenant {
        out.text("tenant", tenant);
    }
    if said.local_min.0 > 0 {
        out.text("local_min", &write_size(said.local_min));
    }
    for (key, said) in [("priority", said.priority), ("hints", said.hints)] {
        if said {
            out.bare(key, true);
        }
    }
    if let Some(cpus) = &said.cpus {
        out.text("cpus", &cpus.to_string());
    }
    let Some(files) = &said.files else { return };
    let service = files.service.iter().map(|service| {
        let (bytes, time) = (write_size(service.bytes), write_duration(service.time));
        format!("[{}, {}]", quoted(&bytes), quoted(&time))
    });
    let service = service.collect::<Vec<_>>().join(", ");
    let most = terms::most(files).map_or_else(String::new, |most| {
        format!("most = {}, ", quoted(&write_size(most)))
    });
    out.bare(
        "files",
        format_args!(
            "{{ response = {}, least = {}, {most}service = [{service}] }}",
            quoted(&write_duration(files.response)),
            quoted(&write_size(files.least)),
        ),
    );
}

fn class(class: Class) -> &'static str {
    match class {
        Class::LatencyCritical => "latency-critical",
        Class::BestEffort => "best-effort",
        Class::Unmanaged => "unmanaged",
    }
}

/// A basic string on one line, whatever is in it.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    debug_assert!(matches!(
        toml::from_str::<toml::Table>(&format!("x = {out}")).ok().and_then(|t| t.get("x").cloned()),
        Some(Value::String(read)) if read == text
    ));
    out
}

/// The text as it grows. Writing to a `String` can't fail.
struct Lines(String);

impl Lines {
    fn section(&mut self, header: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(header);
        self.0.push('\n');
    }

    fn bare(&mut self, key: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{key} = {value}");
    }

    fn text(&mut self, key: &str, value: &str) {
        self.bare(key, quoted(value));
    }

    fn number(&mut self, key: &str, value: f64) {
        self.bare(key, format_args!("{value:?}"));
    }

    fn list(&mut self, key: &str, items: impl Iterator<Item = String>) {
        self.bare(
            key,
            format_args!("[{}]", items.collect::<Vec<_>>().join(", ")),
        );
    }
}
