//! The first thing one reads: what was run, and in four numbers what came of it.

use ostler_report::figures::Figures;
use ostler_report::say::{micros, percent, short, times};
use ostler_report::{Family, Node, Spread, el};

use super::summary::{Clock, PolicySummary, RunSummary};

/// The page's head.
pub fn header(run: &RunSummary) -> Node {
    let fact = |name: &str, value: String| {
        el("div")
            .child(el("dt").text(name))
            .child(el("dd").text(value))
    };
    let clock = match run.clock {
        Clock::Wall => "wall clock",
        Clock::Machine => "machine time",
        Clock::Simulated => "simulated",
    };
    let facts = [
        fact("workload", run.workload.clone()),
        fact("objective", format!("P95 \u{2264} {}", micros(run.slo_us))),
        fact(
            "policies",
            format!(
                "{} \u{d7} {} rounds, interleaved",
                run.policies.len(),
                run.rounds
            ),
        ),
        fact("time", clock.to_owned()),
        fact(
            "host",
            format!("{}, {} cores", run.host.name, run.host.cores),
        ),
        fact("kernel", run.host.kernel.clone()),
        fact("hypervisor", run.host.hypervisor.clone()),
        fact("revision", run.revision.clone()),
        fact("started", run.started.clone()),
    ];
    el("header")
        .child(el("p").class("kicker").text(run.clock.world()))
        .child(el("h1").text(run.scenario.clone()))
        .child(el("p").class("lead").text(run.description.clone()))
        .child(el("dl").class("facts").children(facts))
}

/// What must be known before any figure is read: whose seconds they are in.
pub fn caveat(run: &RunSummary) -> Node {
    let (clock, meaning) = match run.clock {
        Clock::Wall => (
            "Wall time. ",
            "Whatever else the real machine did is in these figures: rates and latencies are indicative. Counts, core-seconds and the \
             plans' behaviour are firm."
                .to_owned(),
        ),
        Clock::Machine => (
            "Machine time. ",
            format!(
                "A second is what the emulated cores execute in it, {}: what else the real machine did isn't in these figures.",
                match &run.host.part {
                    Some(part) => format!("an instruction a cycle of {part}, and memory as that has it"),
                    None => format!(
                        "an instruction each {} ns, and caches and memory nodes cost nothing of their own",
                        short(run.host.instruction_ns)
                    ),
                }
            ),
        ),
        Clock::Simulated => (
            "Simulated. ",
            "Nothing ran: what things cost is from papers' tables and from measurements (crates/ostler-sim/src/costs, each with its source), and who waits for whom \
             is reckoned. The same seed gives the same figures to the last digit; how near they are to a real host's is another question."
                .to_owned(),
        ),
    };
    let paragraph = el("p").class("caveat").attr("role", "note");
    paragraph.child(el("strong").text(clock)).text(meaning)
}

/// Four numbers against the baseline; what wasn't measured says so.
pub fn cards(run: &RunSummary) -> Node {
    let baseline = run.policies.iter().find(|p| p.policy == run.baseline);
    let more = |a: f64, b: f64| a > b;
    let less = |a: f64, b: f64| a < b;
    let within_slo = |p: &&PolicySummary| {
        let share = |p: &PolicySummary| {
            p.figures
                .slo_met_share
                .and_then(Spread::finite)
                .map(|s| s.median)
        };
        // Few cores are no feat when the objective is missed more often than without us.
        match (share(p), baseline.and_then(share)) {
            (Some(ours), Some(theirs)) => ours >= theirs,
            _ => true,
        }
    };
    let card = |title: &str,
                ours: Option<(&PolicySummary, f64)>,
                read: Read,
                say: fn(f64) -> String,
                unit: &str| {
        let base = baseline
            .and_then(|b| read(&b.figures))
            .and_then(Spread::finite)
            .map(|s| s.median);
        let body = el("div").class("card").child(el("h3").text(title));
        let Some((policy, value)) = ours else {
            return body.child(el("p").class("big missing").text("not measured"));
        };
        let versus = match base {
            Some(base) if base > 0.0 => format!(
                "{} of {}: {}{unit}",
                times(value / base),
                run.baseline,
                say(base)
            ),
            Some(base) => format!("{}: {}{unit}", run.baseline, say(base)),
            None => format!("{} was not measured", run.baseline),
        };
        body.child(
            el("p")
                .class("big")
                .text(say(value))
                .child(el("small").text(unit)),
        )
        .child(el("p").class("who").text(policy.policy.clone()))
        .child(el("p").class("versus").text(versus))
    };
    let highest = pick(run, |f| f.max_rate_under_slo, more, |_| true);
    let fewest = pick(run, |f| f.core_seconds, less, |p| within_slo(&p));
    let best_effort = pick(run, |f| f.be_core_seconds, more, |_| true);
    let calmest = pick(run, |f| f.ctx_switches_per_s, less, |_| true);
    el("div").class("cards").children([
        card(
            "Highest load within the SLO",
            highest,
            |f| f.max_rate_under_slo,
            short,
            "/s",
        ),
        card(
            "Fewest cores, SLO kept as often",
            fewest,
            |f| f.core_seconds,
            short,
            " core\u{b7}s",
        ),
        card(
            "Most given to best effort",
            best_effort,
            |f| f.be_core_seconds,
            short,
            " core\u{b7}s",
        ),
        card(
            "Fewest context switches",
            calmest,
            |f| f.ctx_switches_per_s,
            short,
            "/s",
        ),
    ])
}

type Read = fn(&Figures) -> Option<Spread>;

/// Ours with the best median, among those that qualify.
fn pick(
    run: &RunSummary,
    read: Read,
    better: fn(f64, f64) -> bool,
    qualifies: impl Fn(&PolicySummary) -> bool,
) -> Option<(&PolicySummary, f64)> {
    run.policies
        .iter()
        .filter(|p| p.family == Family::Ostler && qualifies(p))
        .filter_map(|p| Some((p, read(&p.figures).and_then(Spread::finite)?.median)))
        .reduce(|best, next| if better(next.1, best.1) { next } else { best })
}

/// A policy's own line of figures, above its timeline.
pub fn strapline(policy: &PolicySummary) -> String {
    let said = |spread: Option<Spread>, say: fn(f64) -> String| {
        spread.and_then(Spread::finite).map(|s| say(s.median))
    };
    let f = &policy.figures;
    let parts = [
        said(f.max_rate_under_slo, short).map(|x| format!("{x}/s within the SLO")),
        said(f.slo_met_share, percent).map(|x| format!("{x} of the time")),
        said(f.p95_us, micros).map(|x| format!("P95 {x}")),
        said(f.core_seconds, short).map(|x| format!("{x} core\u{b7}s")),
        said(f.be_core_seconds, short).map(|x| format!("{x} core\u{b7}s for best effort")),
    ];
    parts
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" \u{b7} ")
}
