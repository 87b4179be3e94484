//! A fleet's page: whose users waited too long, under each policy and at each oversubscription.

use ostler_report::lines::{Axis, Chart, Objective, Series};
use ostler_report::say::{MISSING, micros, percent, short};
use ostler_report::{Family, Node, Spread, chart, el, looks, page, section};
use serde::{Deserialize, Serialize};

use crate::fleet::{FleetLine, HostOutcome, VmOutcome};

/// As many VMs are named.
const NAMED: usize = 100;

/// A fleet's run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetRun {
    /// The scenario's name.
    pub scenario: String,
    /// One sentence on what it does.
    pub description: String,
    /// Revision of the source that ran.
    pub revision: String,
    /// What all was drawn from.
    pub seed: u64,
    /// Where VMs are from, in words.
    pub vms: String,
    /// What hosts are, in words.
    pub host: String,
    /// The objective for P95.
    pub slo_us: f64,
    /// Each policy at each oversubscription.
    pub results: Vec<FleetResult>,
}

/// A policy at an oversubscription.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetResult {
    /// What the policy does, in a few words.
    pub about: String,
    /// Ours or not.
    pub family: Family,
    /// All hosts together.
    pub line: FleetLine,
    /// Each of them.
    pub hosts: Vec<HostOutcome>,
}

impl FleetResult {
    fn name(&self) -> String {
        format!(
            "{} at {}:1",
            self.line.policy,
            short(self.line.oversubscription)
        )
    }

    fn with_users(&self) -> impl Iterator<Item = &VmOutcome> {
        let vms = self.hosts.iter().flat_map(|host| &host.vms);
        vms.filter(|vm| vm.interactive)
    }
}

/// The whole page.
pub fn render_fleet(run: &FleetRun) -> String {
    let fact = |name: &str, value: String| {
        el("div")
            .child(el("dt").text(name))
            .child(el("dd").text(value))
    };
    let facts = [
        fact("hosts", run.host.clone()),
        fact("VMs", run.vms.clone()),
        fact("objective", format!("P95 \u{2264} {}", micros(run.slo_us))),
        fact("seed", run.seed.to_string()),
        fact("revision", run.revision.clone()),
    ];
    let header = el("header")
        .child(el("p").class("kicker").text("ostler sim"))
        .child(el("h1").text(run.scenario.clone()))
        .child(el("p").class("lead").text(run.description.clone()))
        .child(el("dl").class("facts").children(facts));
    let caveat = el("p").class("caveat").attr("role", "note").child(el("strong").text("Simulated. ")).text(
        "A trace tells how busy VMs were and not what they did. Here, those with users answer requests of 10 ms each (exponentially distributed) and the others work off \
         pieces of 100 ms, at random times, as many as make them as busy. What this can tell is which way of sharing hosts has whose users wait; not what a certain \
         VM's response times were.",
    );
    let main = el("main")
        .child(caveat)
        .child(section("policies", "Whose users wait too long").child(table(run)))
        .child(
            section("spread", "How response times are spread over VMs")
                .child(el("p").text("Each VM with users by its P95, from the one with the least on: where a line crosses the objective, that share of them meets it."))
                .child(curves(run)),
        )
        .child(section("broken", "The VMs that miss it most").child(broken(run)));
    page(
        format!("{} \u{b7} ostler sim", run.scenario),
        el("body").child(header).child(main),
    )
}

fn cell(value: Option<String>) -> Node {
    value.map_or_else(ostler_report::table::missing, |text| el("td").text(text))
}

fn heads(heads: &[&str]) -> Node {
    let cells = heads
        .iter()
        .map(|head| el("th").attr("scope", "col").text(*head));
    el("thead").child(el("tr").children(cells))
}

fn framed(table: Node) -> Node {
    el("figure")
        .class("summary")
        .child(el("div").class("scroll").child(table))
}

fn table(run: &FleetRun) -> Node {
    let rows = run.results.iter().map(|result| {
        let line = &result.line;
        let number = |count: u32| Some(count.to_string());
        el("tr")
            .child(
                el("th")
                    .attr("scope", "row")
                    .text(result.name())
                    .child(el("span").class("about").text(result.about.clone())),
            )
            .children([
                cell(number(line.vms)),
                cell(number(line.turned_away)),
                cell(number(line.interactive)),
                cell(number(line.broken)),
                cell(line.broken_share.map(percent)),
                cell(line.p95_median_us.map(micros)),
                cell(line.p95_worst_us.map(micros)),
                cell(line.waiting_share.map(percent)),
                cell(line.others_waiting_share.map(percent)),
                cell(Some(percent(line.busy))),
                cell(number(line.hosts_used)),
                cell(Some(short(line.energy_j / 1e3))),
            ])
    });
    framed(
        el("table")
            .attr("id", "fleet-table")
            .child(heads(&[
                "policy",
                "VMs",
                "turned away",
                "with users",
                "miss the objective",
                "of those with users",
                "P95, median VM",
                "P95, 95th of 100 VMs",
                "users\u{2019} vCPUs wait",
                "others wait",
                "cores busy",
                "hosts used",
                "energy, kJ",
            ]))
            .child(el("tbody").children(rows)),
    )
}

fn curves(run: &FleetRun) -> Node {
    let names: Vec<String> = run.results.iter().map(FleetResult::name).collect();
    let looks = looks(run.results.iter().map(|result| result.family));
    let series = run.results.iter().zip(&names).zip(looks);
    let series: Vec<_> = series
        .map(|((result, name), look)| {
            let mut p95s: Vec<f64> = result.with_users().filter_map(|vm| vm.p95_us).collect();
            p95s.sort_by(f64::total_cmp);
            // A hundred places are enough to see.
            let count = p95s.len();
            let places = (1..=count.min(100)).map(|at| at * count / count.min(100));
            Series {
                name,
                look,
                points: places
                    .map(|rank| {
                        let share = rank as f64 / count as f64 * 100.0;
                        (share, Spread::of([p95s.get(rank - 1).copied()]))
                    })
                    .collect(),
            }
        })
        .collect();
    let plot = Chart {
        id: "fleet-spread".to_owned(),
        title: "P95 of response times over VMs with users",
        description: "One line per policy: VMs with users in order of their P95.",
        x: Axis {
            caption: "VMs with users, %",
            say: short,
            log: false,
        },
        y: Axis {
            caption: "P95 (log scale)",
            say: micros,
            log: true,
        },
        objective: Some(Objective {
            at: run.slo_us,
            label: format!("SLO {}", micros(run.slo_us)),
        }),
        tip: |series, share, spread| {
            format!(
                "{}\n{} % of VMs have a P95 up to {}",
                series.name,
                short(share),
                micros(spread.median)
            )
        },
    };
    chart(plot.svg(&series))
}

fn broken(run: &FleetRun) -> Node {
    let mut all: Vec<(String, &VmOutcome)> = run
        .results
        .iter()
        .flat_map(|result| {
            let name = result.name();
            let missed = result.with_users().filter(|vm| vm.breaks_slo);
            missed.map(move |vm| (name.clone(), vm))
        })
        .collect();
    if all.is_empty() {
        return el("p").class("quiet").text("None does.");
    }
    let count = all.len();
    all.sort_by(|one, other| {
        other
            .1
            .p95_us
            .unwrap_or(0.0)
            .total_cmp(&one.1.p95_us.unwrap_or(0.0))
    });
    let rows = all.into_iter().take(NAMED).map(|(name, vm)| {
        let waited = vm.waited_s / (vm.waited_s + vm.ran_s).max(1e-9);
        let seconds = vm.seconds.max(1e-9) * f64::from(vm.vcpus);
        el("tr")
            .child(
                el("th")
                    .attr("scope", "row")
                    .text(vm.name.clone().unwrap_or_else(|| format!("{:016x}", vm.vm))),
            )
            .children([
                cell(Some(name)),
                cell(Some(vm.host.to_string())),
                cell(Some(vm.vcpus.to_string())),
                cell(Some(percent(vm.ran_s / seconds))),
                cell(Some(vm.p50_us.map_or_else(|| MISSING.to_owned(), micros))),
                cell(vm.p95_us.map(micros)),
                cell(vm.p99_us.map(micros)),
                cell(Some(percent(waited))),
            ])
    });
    let table = el("table")
        .attr("id", "broken-table")
        .child(heads(&[
            "VM", "policy", "host", "vCPUs", "busy", "P50", "P95", "P99", "waiting",
        ]))
        .child(el("tbody").children(rows));
    let note = format!(
        "{} of {count}, the worst first. A VM that waits little and misses it anyway is too busy for its objective on any host.",
        count.min(NAMED)
    );
    el("div").child(el("p").text(note)).child(framed(table))
}

#[cfg(test)]
mod tests {
    use ostler_report::testing::well_formed;

    use super::*;

    fn vm(vm: u64, p95_us: Option<f64>, slo_us: f64) -> VmOutcome {
        VmOutcome {
            vm,
            interactive: true,
            vcpus: 2,
            seconds: 100.0,
            sent: 10,
            p95_us,
            breaks_slo: p95_us.is_some_and(|p95| p95 > slo_us),
            ran_s: 10.0,
            waited_s: 30.0,
            ..VmOutcome::default()
        }
    }

    fn run(vms: Vec<VmOutcome>) -> FleetRun {
        let hosts = vec![HostOutcome {
            vms,
            ..HostOutcome::default()
        }];
        let line = FleetLine::of("<boost>", 3.0, 1, &hosts);
        FleetRun {
            scenario: "a & b".into(),
            description: "d".into(),
            revision: "r".into(),
            seed: 7,
            vms: "generated".into(),
            host: "8 cores".into(),
            slo_us: 1000.0,
            results: vec![FleetResult {
                about: "what it does".into(),
                family: Family::Ostler,
                line,
                hosts,
            }],
        }
    }

    #[test]
    fn a_fleet_is_told_and_vms_that_miss_it_are_named_the_worst_first() {
        let run = run(vec![
            vm(10, Some(500.0), 1000.0),
            vm(11, Some(1500.0), 1000.0),
            vm(12, Some(9000.0), 1000.0),
            vm(13, None, 1000.0),
            VmOutcome {
                name: Some("a/b+c<d=".to_owned()),
                ..vm(14, Some(1500.0), 1000.0)
            },
        ]);
        let line = &run.results[0].line;
        assert_eq!(
            (line.interactive, line.broken, line.broken_share),
            (5, 3, Some(0.6))
        );
        assert_eq!(
            (line.p95_median_us, line.p95_worst_us),
            (Some(1500.0), Some(9000.0))
        );
        assert_eq!(line.waiting_share, Some(0.75));
        let page = render_fleet(&run);
        well_formed(&page).unwrap();
        let (worse, bad) = (
            page.find("000000000000000c").unwrap(),
            page.find("000000000000000b").unwrap(),
        );
        assert!(worse < bad && !page.contains("000000000000000a"));
        assert!(page.contains("a/b+c&lt;d=") && !page.contains("000000000000000e"));
        assert!(page.contains("&lt;boost&gt; at 3:1") && !page.contains("NaN"));
    }

    #[test]
    fn a_fleet_without_vms_is_told_too() {
        let page = render_fleet(&run(Vec::new()));
        well_formed(&page).unwrap();
        assert!(page.contains("None does.") && !page.contains("NaN"));
    }
}
