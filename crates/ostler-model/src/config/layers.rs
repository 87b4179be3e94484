//! The layers that an operator opts in to: placement, tier, sizing and hints.
//!
//! Each section's keys are checked whether the layer is on or not; what they say counts only when it is.

use toml::de::DeValue;

use super::error::{Errors, Problem};
use super::read;
use super::section::{Located, Section};
use crate::{
    Bytes, Facts, GuestRule, HintsIntent, Intent, MAX_CPUS, Nanos, PlacementPolicy,
    PlacementSettings, SizingParts, SizingSettings, StageSettings, TenantFloor, TierSettings,
};

/// How queues' threads are placed, if at all.
pub(super) const PLACEMENTS: &[(&str, Option<PlacementPolicy>)] = &[
    ("off", None),
    ("chains", Some(PlacementPolicy::Chains)),
    ("numa-aware", Some(PlacementPolicy::NumaAware)),
    ("contention-aware", Some(PlacementPolicy::ContentionAware)),
];

pub(super) const PARTS: &[(&str, SizingParts)] = &[
    ("corrected", SizingParts::Corrected),
    ("both", SizingParts::Both),
    ("queue", SizingParts::Queue),
    ("adaptive", SizingParts::Adaptive),
];

/// The longest name of a tenant, in bytes.
const TENANT_BYTES_MAX: usize = 64;

/// Reads the four sections into an intent.
pub(super) fn read(
    root: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
    facts: Option<&Facts>,
    intent: &mut Intent,
) {
    intent.placement = read_placement(root, errors);
    intent.tier = read_tier(root, errors, facts, &intent.guests);
    intent.sizing = read_sizing(root, errors, facts);
    intent.hints = read_hints(root, errors);
}

fn value<T>(read: Option<Located<T>>, default: T) -> T {
    read.map_or(default, |located| located.value)
}

fn read_placement(
    root: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
) -> Option<PlacementSettings> {
    let usual = PlacementSettings::default();
    let mut section = root.section(errors, "placement", "[placement]");
    let policy = value(
        section.get(errors, "policy", read::choice(PLACEMENTS)),
        None,
    );
    let interval = section.get(errors, "interval", interval());
    let margin = section.get(errors, "margin", read::share(0.0..=1.0, "\"5%\""));
    let vcpus = section.get(errors, "vcpus", read::boolean);
    let cores_max = section.get(errors, "cores_max", read::count(1..=MAX_CPUS, "8"));
    let [softirq, vhost, vcpu] = [
        ("softirq", "[placement.softirq]", usual.softirq),
        ("vhost", "[placement.vhost]", usual.vhost),
        ("vcpu", "[placement.vcpu]", usual.vcpu),
    ]
    .map(|(key, name, usual)| read_stage(section.section(errors, key, name), errors, usual));
    section.finish(errors);
    Some(PlacementSettings {
        policy: policy?,
        interval: value(interval, usual.interval),
        margin: value(margin, usual.margin),
        vcpus: value(vcpus, usual.vcpus),
        cores_max: cores_max.map(|most| most.value),
        softirq,
        vhost,
        vcpu,
    })
}

fn read_stage(
    mut section: Section<'_, '_>,
    errors: &mut Errors<'_>,
    usual: StageSettings,
) -> StageSettings {
    let packet = section.get(
        errors,
        "packet",
        read::duration(Nanos(1)..=Nanos::from_millis(1), "1us"),
    );
    let mut weight = |key, usual| {
        value(
            section.get(errors, key, read::number(0.0..=1000.0, "1.0")),
            usual,
        )
    };
    let stage = StageSettings {
        packet: value(packet, usual.packet),
        cache: weight("cache", usual.cache),
        memory: weight("memory", usual.memory),
        interconnect: weight("interconnect", usual.interconnect),
        remote: weight("remote", usual.remote),
        crossing: weight("crossing", usual.crossing),
        load: weight("load", usual.load),
        base: weight("base", usual.base),
    };
    section.finish(errors);
    stage
}

/// How often a layer decides.
fn interval() -> impl Fn(&DeValue<'_>) -> Result<Nanos, Problem> {
    read::duration(Nanos::from_millis(10)..=Nanos::from_secs(3600), "1s")
}

fn read_tier(
    root: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
    facts: Option<&Facts>,
    rules: &[GuestRule],
) -> Option<TierSettings> {
    let usual = TierSettings::default();
    let mut section = root.section(errors, "tier", "[tier]");
    let enabled = value(section.get(errors, "enabled", read::boolean), false);
    let rate = |example| read::number(0.0..=1e12, example);
    let span = read::duration(Nanos::ZERO..=Nanos::from_secs(3600), "10s");
    let size = read::size(Bytes(0)..=Bytes(1 << 50), "1GiB");
    let tenants = section.get(errors, "tenants", read_tenants);
    let settings = TierSettings {
        interval: value(section.get(errors, "interval", interval()), usual.interval),
        misses_per_s: value(
            section.get(errors, "misses_per_s", rate("1000000")),
            usual.misses_per_s,
        ),
        hot_share: value(
            section.get(errors, "hot_share", read::share(0.0..=1.0, "\"10%\"")),
            usual.hot_share,
        ),
        io_per_s: value(
            section.get(errors, "io_per_s", rate("1000")),
            usual.io_per_s,
        ),
        hold: value(section.get(errors, "hold", span), usual.hold),
        bytes_per_s: value(section.get(errors, "bytes_per_s", &size), usual.bytes_per_s),
        step: value(section.get(errors, "step", &size), usual.step),
        reserve: value(section.get(errors, "reserve", &size), usual.reserve),
        tenants: tenants
            .as_ref()
            .map_or_else(Vec::new, |tenants| tenants.value.clone()),
    };
    section.finish(errors);
    if let Some(tenants) = tenants {
        check_tenants(&tenants, errors, facts, rules);
    }
    enabled.then_some(settings)
}

fn read_tenants(toml: &DeValue<'_>) -> Result<Vec<TenantFloor>, Problem> {
    let remedy = "write sizes by tenant, such as { web = \"8GiB\" }";
    let DeValue::Table(table) = toml else {
        return Err(Problem::new(
            format!("must be a table, not {}", read::kind(toml)),
            remedy,
        ));
    };
    let mut tenants = Vec::new();
    for (name, size) in table {
        let name: &str = name.get_ref();
        check_tenant(name)?;
        let size = read::size(Bytes(0)..=Bytes(1 << 50), "8GiB")(size.get_ref());
        tenants.push(TenantFloor {
            tenant: name.to_owned(),
            local_min: size.map_err(|problem| {
                let what = format!("gives `{name}` what {}", problem.what);
                Problem::new(what, problem.remedy)
            })?,
        });
    }
    tenants.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    Ok(tenants)
}

/// The name of a tenant, wherever it stands.
pub(super) fn check_tenant(name: &str) -> Result<(), Problem> {
    if name.is_empty() || name.len() > TENANT_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Problem::new(
            format!("names the tenant `{}`", name.escape_debug()),
            format!("write a name of 1 to {TENANT_BYTES_MAX} bytes without control characters"),
        ));
    }
    Ok(())
}

fn check_tenants(
    tenants: &Located<Vec<TenantFloor>>,
    errors: &mut Errors<'_>,
    facts: Option<&Facts>,
    rules: &[GuestRule],
) {
    for floor in &tenants.value {
        let named = |rule: &GuestRule| rule.terms.tenant.as_deref() == Some(&floor.tenant);
        if !rules.iter().any(named) {
            errors.at(
                tenants.span.clone(),
                Problem::new(
                    format!("no [[guest]] rule has the tenant `{}`", floor.tenant),
                    "add tenant = \"...\" to the rules of its guests, or take it out here",
                ),
            );
        }
    }
    let floors = tenants.value.iter();
    let sum = floors.fold(0_u64, |sum, floor| sum.saturating_add(floor.local_min.0));
    within_local(sum, "floors of tenants", tenants, errors, facts);
}

/// Local memory is what there is.
fn within_local<T>(
    bytes: u64,
    what: &str,
    at: &Located<T>,
    errors: &mut Errors<'_>,
    facts: Option<&Facts>,
) {
    let memory = facts.map(|facts| &facts.memory);
    let Some(memory) = memory.filter(|memory| !memory.is_empty()) else {
        return;
    };
    let local = memory.bytes(false);
    if bytes > local.0 {
        errors.at(
            at.span.clone(),
            Problem::new(
                format!(
                    "{what} take {}, and this host has {} of local memory",
                    read::write_size(Bytes(bytes)),
                    read::write_size(local)
                ),
                "lower them",
            ),
        );
    }
}

fn read_sizing(
    root: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
    facts: Option<&Facts>,
) -> Option<SizingSettings> {
    let usual = SizingSettings::default();
    let mut section = root.section(errors, "sizing", "[sizing]");
    let enabled = section.get(errors, "enabled", read::boolean);
    let size = |least| read::size(Bytes(least)..=Bytes(1 << 50), "4GiB");
    let span = || read::duration(Nanos::from_millis(100)..=Nanos::from_secs(86_400), "30s");
    let budget = section.get(errors, "budget", size(1));
    let interval_min = section.get(errors, "interval_min", span());
    let interval_max = section.get(errors, "interval_max", span());
    let settings = SizingSettings {
        budget: budget.as_ref().map_or(usual.budget, |size| size.value),
        parts: value(
            section.get(errors, "parts", read::choice(PARTS)),
            usual.parts,
        ),
        response_step: value(
            section.get(
                errors,
                "response_step",
                read::duration(Nanos(1)..=Nanos::from_secs(3600), "200ms"),
            ),
            usual.response_step,
        ),
        size_step: value(section.get(errors, "size_step", size(1)), usual.size_step),
        interval_min: interval_min
            .as_ref()
            .map_or(usual.interval_min, |span| span.value),
        interval_max: interval_max
            .as_ref()
            .map_or(usual.interval_max, |span| span.value),
        memory: value(
            section.get(errors, "memory", read::number(0.5..=1.0, "1.0")),
            usual.memory,
        ),
    };
    section.finish(errors);
    if settings.interval_max < settings.interval_min
        && let Some(at) = interval_max.or(interval_min)
    {
        errors.at(
            at.span,
            Problem::new(
                "`interval_max` is shorter than `interval_min`",
                "raise `interval_max`, or lower `interval_min`",
            ),
        );
    }
    if let Some(budget) = &budget {
        within_local(budget.value.0, "guests' files", budget, errors, facts);
    }
    let enabled = enabled.filter(|enabled| enabled.value)?;
    if budget.is_none() {
        errors.at(
            enabled.span,
            Problem::new(
                "there is nothing to share out among guests' files",
                "add budget = \"...\", what they may have of local memory together, such as \"4GiB\"",
            ),
        );
    }
    Some(settings)
}

fn read_hints(root: &mut Section<'_, '_>, errors: &mut Errors<'_>) -> Option<HintsIntent> {
    let usual = HintsIntent::default();
    let mut section = root.section(errors, "hints", "[hints]");
    let enabled = value(section.get(errors, "enabled", read::boolean), false);
    let span = read::duration(Nanos::from_millis(1)..=Nanos::from_secs(60), "100ms");
    let settings = HintsIntent {
        interval: value(section.get(errors, "interval", span), usual.interval),
        grants_max: value(
            section.get(errors, "grants_max", read::count(0..=1024, "4")),
            usual.grants_max,
        ),
        pins_per_core_max: value(
            section.get(errors, "pins_per_core_max", read::count(0..=1024, "2")),
            usual.pins_per_core_max,
        ),
    };
    section.finish(errors);
    enabled.then_some(settings)
}
