//! Metrics in Prometheus' manner: base units, totals that only grow, labels that are bounded by what the host has.
//!
//! Nothing is counted here: the loop keeps its totals, and a scrape reads the view of the last period.

use std::fmt;
use std::sync::Arc;

use ostler_model::{AgentHealth, CpuId, CpuSet, CpuWeight, GuestBoost, GuestId, RunState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, MetricEncoder,
    NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::output::tame;
use crate::steward::totals::{BUCKETS_S, Histogram};
use crate::steward::view::{Shared, View};

/// The metrics of a steward.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    /// Metrics read from this view.
    pub fn new(shared: Arc<Shared>) -> Metrics {
        let mut registry = Registry::with_prefix("ostler");
        registry.register_collector(Box::new(Source(shared)));
        Metrics(registry)
    }

    /// The metrics as OpenMetrics text.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.0)?;
        Ok(text)
    }
}

#[derive(Debug)]
struct Source(Arc<Shared>);

/// Labels of one series.
type Labels<'a, const N: usize> = [(&'a str, String); N];

/// Writes families one by one.
struct Families<'a>(DescriptorEncoder<'a>);

fn label<const N: usize>(labels: Labels<'_, N>) -> impl EncodeLabelSet {
    labels.map(|(key, value)| (key.to_owned(), value))
}

#[allow(clippy::needless_pass_by_value)] // Values are numbers.
impl Families<'_> {
    fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        unit: Option<&'s Unit>,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, unit, kind)
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.family(name, help, unit, MetricType::Gauge)?
            .encode_gauge(&value)
    }

    fn gauges<'a, V: EncodeGaugeValue, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        series: impl IntoIterator<Item = (Labels<'a, N>, V)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, unit, MetricType::Gauge)?;
        for (labels, value) in series {
            family.encode_family(&label(labels))?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: impl EncodeCounterValue,
    ) -> fmt::Result {
        self.family(name, help, unit, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn counters<'a, V: EncodeCounterValue, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        series: impl IntoIterator<Item = (Labels<'a, N>, V)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, unit, MetricType::Counter)?;
        for (labels, value) in series {
            family
                .encode_family(&label(labels))?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> fmt::Result {
        let family = self.family(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        encode_histogram(family, histogram)
    }

    fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'a, 1>, &'a Histogram)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, histogram) in series {
            encode_histogram(family.encode_family(&label(labels))?, histogram)?;
        }
        Ok(())
    }
}

fn encode_histogram(mut encoder: MetricEncoder<'_>, histogram: &Histogram) -> fmt::Result {
    let bounds = BUCKETS_S.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(histogram.counts).collect();
    let count = histogram.counts.iter().sum();
    encoder.encode_histogram::<NoLabelSet>(histogram.sum_s, count, &buckets, None)
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let view = self.0.get();
        let mut families = Families(encoder);
        steward(&mut families, &view)?;
        plan(&mut families, &view)?;
        guests(&mut families, &view)?;
        guest_threads(&mut families, &view)?;
        boost(&mut families, &view)?;
        host(&mut families, &view)
    }
}

fn steward(out: &mut Families<'_>, view: &View) -> fmt::Result {
    let totals = &view.totals;
    out.gauges(
        "build_info",
        "The steward's version, as a label.",
        None,
        [([("version", env!("CARGO_PKG_VERSION").to_owned())], 1_u32)],
    )?;
    out.gauge(
        "acting",
        "1 when plans are carried out, 0 when they are only recorded.",
        None,
        u32::from(view.acting),
    )?;
    out.gauge(
        "period",
        "How often the steward senses and decides.",
        Some(&Unit::Seconds),
        view.intent.period.as_secs_f64(),
    )?;
    for (name, help, total) in [
        ("decisions", "Decisions made.", totals.decisions),
        (
            "plan_changes",
            "Decisions that asked for something new.",
            totals.plan_changes,
        ),
        (
            "plan_violations",
            "Rules broken by plans, which were then not acted on.",
            totals.violations,
        ),
        (
            "sense_failures",
            "Periods skipped because the host could not be sensed.",
            totals.sense_failures,
        ),
        (
            "missed_periods",
            "Periods skipped because the one before took too long.",
            totals.missed_periods,
        ),
        (
            "config_reloads",
            "Times the configuration was read again.",
            totals.reloads,
        ),
        (
            "config_reloads_refused",
            "Times it was refused and the old one stayed in force.",
            totals.reloads_refused,
        ),
        ("writes", "Values written to the host.", totals.written),
        ("write_failures", "Writes that failed.", totals.failures),
        (
            "foreign_changes",
            "Values found changed by someone else, once for each period that they are.",
            totals.foreign_changes,
        ),
    ] {
        out.counter(name, help, None, total)?;
    }
    out.histograms(
        "phase",
        "Time that a period's phases took.",
        [
            ([("phase", "sense".to_owned())], &totals.sense),
            ([("phase", "decide".to_owned())], &totals.decide),
            ([("phase", "act".to_owned())], &totals.act),
        ],
    )?;
    out.histogram(
        "period_lateness",
        "How late periods began.",
        &totals.lateness,
    )?;
    if let Some(record) = &view.record {
        out.counter("record_periods", "Periods recorded.", None, record.written)?;
        out.counters(
            "record_lost_periods",
            "Periods not recorded.",
            None,
            [
                ([("why", "queue-full".to_owned())], record.dropped),
                ([("why", "write-failed".to_owned())], record.failed),
            ],
        )?;
        out.gauge(
            "record_size",
            "Bytes of the record in use.",
            Some(&Unit::Bytes),
            record.bytes,
        )?;
    }
    Ok(())
}

fn plan(out: &mut Families<'_>, view: &View) -> fmt::Result {
    let Some(last) = &view.last else {
        return Ok(());
    };
    out.gauge(
        "plan_generation",
        "The last plan's generation.",
        None,
        last.plan.generation,
    )?;
    let groups = &last.plan.groups;
    let named: [(&str, &CpuSet); 5] = [
        ("vcpu", &groups.vcpu),
        ("nq", &groups.nq),
        ("best_effort", &groups.best_effort),
        ("idle", &groups.idle),
        ("reserved", &groups.reserved),
    ];
    out.gauges(
        "cores",
        "Cores that the plan gives each group.",
        None,
        named.map(|(name, cpus)| ([("group", name.to_owned())], cpus.len())),
    )?;
    out.gauges(
        "busy_cores",
        "Busy share of each group's cores, summed.",
        None,
        named.map(|(name, cpus)| ([("group", name.to_owned())], last.snapshot.busy_cores(cpus))),
    )
}

fn guests(out: &mut Families<'_>, view: &View) -> fmt::Result {
    let Some(last) = &view.last else {
        return Ok(());
    };
    let guests = &last.snapshot.guests;
    let of = |guest: &ostler_model::GuestView| ("guest", tame(guest.id.as_str()));
    out.gauges(
        "guest_info",
        "A guest's name and class, as labels.",
        None,
        guests.iter().map(|guest| {
            let class = view.intent.classify(guest).0.to_string();
            (
                [of(guest), ("name", tame(&guest.name)), ("class", class)],
                1_u32,
            )
        }),
    )?;
    out.gauges(
        "guest_latency",
        "Response times seen on the guest's tap in the last window that saw any.",
        Some(&Unit::Seconds),
        guests.iter().flat_map(|guest| {
            guest.latency.into_iter().flat_map(|latency| {
                [
                    ("0.5", latency.p50),
                    ("0.95", latency.p95),
                    ("0.99", latency.p99),
                ]
                .map(|(quantile, time)| {
                    (
                        [of(guest), ("quantile", quantile.to_owned())],
                        time.as_secs_f64(),
                    )
                })
            })
        }),
    )?;
    out.gauges(
        "guest_latency_age",
        "How long ago that window ended.",
        Some(&Unit::Seconds),
        guests
            .iter()
            .filter_map(|guest| Some(([of(guest)], guest.latency?.age.as_secs_f64()))),
    )?;
    out.gauges(
        "guest_slo",
        "The P95 that must not be exceeded.",
        Some(&Unit::Seconds),
        guests
            .iter()
            .filter_map(|guest| Some(([of(guest)], view.intent.classify(guest).1?.as_secs_f64()))),
    )?;
    let totals = || {
        view.totals
            .guests
            .iter()
            .map(|(id, totals)| (tame(id.as_str()), totals))
    };
    out.counters(
        "guest_slo_periods",
        "Periods in which a latency-critical guest answered requests.",
        None,
        totals().map(|(id, totals)| ([("guest", id)], totals.slo_samples)),
    )?;
    out.counters(
        "guest_slo_violations",
        "Of them, those whose P95 exceeded the objective.",
        None,
        totals().map(|(id, totals)| ([("guest", id)], totals.slo_violations)),
    )
}

fn guest_threads(out: &mut Families<'_>, view: &View) -> fmt::Result {
    let Some(last) = &view.last else {
        return Ok(());
    };
    let totals = || {
        view.totals
            .guests
            .iter()
            .map(|(id, totals)| (tame(id.as_str()), totals))
    };
    out.counters(
        "guest_run",
        "CPU time of the guest's threads.",
        Some(&Unit::Seconds),
        totals().flat_map(|(id, totals)| {
            [
                (
                    [("guest", id.clone()), ("thread", "vcpu".to_owned())],
                    totals.vcpu_run.as_secs_f64(),
                ),
                (
                    [("guest", id), ("thread", "vhost".to_owned())],
                    totals.vhost_run.as_secs_f64(),
                ),
            ]
        }),
    )?;
    out.counters(
        "guest_wait",
        "Time that the guest's vCPUs waited for a CPU.",
        Some(&Unit::Seconds),
        totals().map(|(id, totals)| ([("guest", id)], totals.vcpu_wait.as_secs_f64())),
    )?;
    out.gauges(
        "guest_suspended",
        "1 when the plan suspends the guest.",
        None,
        last.plan.guests.iter().map(|given| {
            let suspended = u32::from(given.run == RunState::Suspended);
            ([("guest", tame(given.guest.as_str()))], suspended)
        }),
    )?;
    out.gauges(
        "guest_cpu_weight",
        "CPU weight that the plan gives a best-effort guest on cores that it shares with latency-critical ones; 0 when it has only what those leave.",
        None,
        last.plan.guests.iter().filter_map(|given| {
            let weight = match given.weight {
                CpuWeight::Idle => 0,
                CpuWeight::Weight(weight) => weight,
                CpuWeight::Untouched | CpuWeight::AsFound => return None,
            };
            Some(([("guest", tame(given.guest.as_str()))], weight))
        }),
    )?;
    out.gauges(
        "agent_healthy",
        "1 when the guest's agent can be relied on.",
        None,
        last.snapshot.guests.iter().filter_map(|guest| {
            let healthy = guest.agent.as_ref()?.health == AgentHealth::Healthy;
            Some(([("guest", tame(guest.id.as_str()))], u32::from(healthy)))
        }),
    )
}

/// Counts begin anew when the scheduler of vCPUs is loaded again, as counters may.
fn boost(out: &mut Families<'_>, view: &View) -> fmt::Result {
    let boost = view.outcome.as_ref().and_then(|o| o.boost.as_ref());
    out.gauge(
        "vcpu_scheduler_loaded",
        "1 while vCPUs have the steward's scheduler, 0 when they have the kernel's.",
        None,
        u32::from(boost.is_some()),
    )?;
    let Some(boost) = boost else { return Ok(()) };
    let of = |guest: &GuestBoost| ("guest", tame(guest.guest.as_str()));
    out.gauges(
        "guest_boost_balance",
        "Run time that the boost has brought the guest beyond its share; below zero where others had it.",
        Some(&Unit::Seconds),
        boost
            .guests
            .iter()
            .map(|guest| ([of(guest)], guest.balance_ns as f64 / 1e9)),
    )?;
    out.gauges(
        "guest_io_vcpus",
        "vCPUs of the guest that do IO.",
        None,
        boost
            .guests
            .iter()
            .map(|guest| ([of(guest)], guest.io_vcpus)),
    )?;
    out.counters(
        "guest_boost_time",
        "Run time by what it was: run, waited for a core, run by its other threads, borrowed from others and paid back, lent to others and returned.",
        Some(&Unit::Seconds),
        boost.guests.iter().flat_map(|guest| {
            [
                ("ran", guest.ran),
                ("waited", guest.waited),
                ("served", guest.served),
                ("borrowed", guest.borrowed),
                ("paid", guest.paid),
                ("lent", guest.lent),
                ("returned", guest.returned),
            ]
            .map(|(what, time)| ([of(guest), ("what", what.to_owned())], time.as_secs_f64()))
        }),
    )?;
    out.counters(
        "guest_boosts",
        "Events of the guest by what came of them: a vCPU was put before others, or no core could be had at once.",
        None,
        boost.guests.iter().flat_map(|guest| {
            [("boosted", guest.boosts), ("refused", guest.refused)]
                .map(|(what, count)| ([of(guest), ("what", what.to_owned())], count))
        }),
    )
}

fn host(out: &mut Families<'_>, view: &View) -> fmt::Result {
    let totals = &view.totals;
    for (name, help, total) in [
        (
            "context_switches",
            "Context switches of the host.",
            totals.ctx_switches,
        ),
        (
            "migrations",
            "Tasks moved between the host's CPUs.",
            totals.migrations,
        ),
        ("interrupts", "Interrupts of the host.", totals.irqs),
        ("kvm_exits", "Exits from guests.", totals.kvm_exits),
    ] {
        // What the host can't tell has no series, rather than one that stays at zero.
        if let Some(total) = total {
            out.counter(name, help, None, total)?;
        }
    }
    out.counters(
        "cpu_busy",
        "Time that each CPU was busy: tasks, guests, interrupts and softirqs.",
        Some(&Unit::Seconds),
        totals
            .busy
            .iter()
            .map(|(cpu, busy)| ([("cpu", cpu.to_string())], busy.as_secs_f64())),
    )?;
    out.counters(
        "nic_interrupts",
        "Queue interrupts of the managed NICs.",
        None,
        totals
            .nic_irqs
            .iter()
            .map(|(nic, count)| ([("nic", nic.clone())], *count)),
    )?;
    machine(out, view)
}

/// What an emulated machine counts of itself. Others have no such series.
fn machine(out: &mut Families<'_>, view: &View) -> fmt::Result {
    let counted = &view.totals.pmu;
    if counted.is_empty() {
        return Ok(());
    }
    let cpu = |cpu: &CpuId| ("cpu", cpu.to_string());
    out.counters(
        "machine_instructions",
        "Instructions that each CPU executed.",
        None,
        counted
            .iter()
            .map(|(id, counted)| ([cpu(id)], counted.instructions)),
    )?;
    let accesses = || {
        counted
            .iter()
            .filter_map(|(id, counted)| Some((id, counted.accesses.as_ref()?)))
    };
    out.counters(
        "machine_accesses",
        "Accesses to memory by what served them.",
        None,
        accesses().flat_map(|(id, accesses)| {
            accesses
                .levels()
                .map(|(level, count)| ([cpu(id), ("level", level.to_owned())], count))
        }),
    )?;
    out.counters(
        "machine_stall",
        "Time that accesses took beyond hits of the first cache.",
        Some(&Unit::Seconds),
        accesses().map(|(id, accesses)| ([cpu(id)], accesses.stall.as_secs_f64())),
    )?;
    out.counters(
        "machine_memory_traffic",
        "Bytes read from and written back to each memory node.",
        Some(&Unit::Bytes),
        accesses().flat_map(|(id, accesses)| {
            accesses
                .node_bytes
                .iter()
                .enumerate()
                .map(move |(node, bytes)| ([cpu(id), ("node", node.to_string())], *bytes))
        }),
    )?;
    machine_guests(out, view)
}

/// The same of its guests.
fn machine_guests(out: &mut Families<'_>, view: &View) -> fmt::Result {
    let counted = &view.totals.guest_pmu;
    if counted.is_empty() {
        return Ok(());
    }
    let guest = |id: &GuestId| ("guest", tame(id.as_str()));
    out.counters(
        "machine_guest_executed",
        "Time that CPUs executed each guest's vCPUs.",
        Some(&Unit::Seconds),
        counted
            .iter()
            .map(|(id, counted)| ([guest(id)], counted.executed.as_secs_f64())),
    )?;
    out.counters(
        "machine_guest_instructions",
        "Instructions that each guest executed.",
        None,
        counted
            .iter()
            .map(|(id, counted)| ([guest(id)], counted.instructions)),
    )?;
    out.counters(
        "machine_guest_accesses",
        "Guests' accesses to memory by what served them.",
        None,
        counted.iter().flat_map(|(id, counted)| {
            counted
                .accesses
                .levels()
                .map(|(level, count)| ([guest(id), ("level", level.to_owned())], count))
        }),
    )?;
    out.counters(
        "machine_guest_stall",
        "Time that guests' accesses took beyond hits of the first cache.",
        Some(&Unit::Seconds),
        counted
            .iter()
            .map(|(id, counted)| ([guest(id)], counted.accesses.stall.as_secs_f64())),
    )
}
