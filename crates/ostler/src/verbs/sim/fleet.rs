//! A fleet's what-if: a trace's VMs, or generated ones, on hosts that they share so and so, under each policy: whose users wait too long?

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use ostler_outcome::fleet::{FleetEvent, FleetLine};
use ostler_outcome::report::{self, FleetResult, FleetRun};
use ostler_report::Family;
use ostler_report::say::{micros, percent, short};
use ostler_scenario::{Policy, Scenario, Vms};
use ostler_sim::fleet::{Demand, Fleet};
use ostler_sim::scenario;
use ostler_sim::trace::read::{Damage, Readings, Selection, names, table};
use ostler_sim::trace::{STEP, VmId};
use serde::Serialize;

use super::Args;
use super::log::Hosts;
use crate::output::{self, Paint, Table};

/// A line of `--json`: a policy's, or one of a VM that misses the objective.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Policy(&'a FleetLine),
    Vm {
        policy: &'a str,
        oversubscription: f64,
        #[serde(flatten)]
        vm: &'a ostler_outcome::fleet::VmOutcome,
    },
}

pub fn run(args: &Args, path: &Path, scenario: &Scenario) -> anyhow::Result<ExitCode> {
    let Some(fleet) = scenario.fleet.clone() else {
        bail!("the scenario has no fleet");
    };
    ensure!(
        args.rounds.is_none(),
        "--rounds is for scenarios of one host; leave it out"
    );
    let mut scenario = scenario.clone();
    if let Err(error) = scenario::only(&mut scenario, &args.policies) {
        return Ok(super::refused(&error));
    }
    for left_out in scenario::left_out(&scenario) {
        ostler_lab::tell!("sim: {left_out}");
    }
    let (demand, vms) = demand(path, &fleet.vms, args.seed)?;
    let ratios = if args.oversubscription.is_empty() {
        vec![fleet.oversubscription]
    } else {
        args.oversubscription.clone()
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = NonZeroUsize::new(args.jobs.unwrap_or(cores));
    let threads = threads.context("--jobs 0: write 1 or more, or leave it out")?;
    let revision = ostler_lab::run::revision();
    let mut log = match &args.events {
        Some(path) => Hosts::open(
            path,
            &FleetEvent::Fleet {
                revision: revision.clone(),
                scenario: scenario.to_toml(),
                seed: args.seed,
                oversubscription: ratios.clone(),
                vms: demand.digest(),
                audited: args.audit,
            },
        )?,
        None => Hosts::in_memory(),
    };
    let mut run = FleetRun {
        scenario: scenario.name.clone(),
        description: scenario.summary.clone(),
        revision,
        seed: args.seed,
        vms,
        host: format!(
            "{} of {} cores and {} GiB",
            fleet.hosts,
            scenario.host.under_test.len(),
            scenario
                .host
                .nodes
                .iter()
                .map(|node| node.memory_mib)
                .sum::<u64>()
                >> 10
        ),
        slo_us: fleet.slo_p95_us as f64,
        results: Vec::new(),
    };
    for ratio in ratios {
        let mut scenario = scenario.clone();
        if let Some(fleet) = &mut scenario.fleet {
            fleet.oversubscription = ratio;
        }
        let fleet = match Fleet::new(scenario, demand.clone(), args.seed) {
            Ok(fleet) => fleet.audited(args.audit),
            Err(error) => return Ok(super::refused(&error)),
        };
        for policy in &fleet.scenario().policies {
            run.results
                .push(one(&fleet, policy, ratio, threads, &mut log)?);
        }
    }
    if let Vms::Trace { table, .. } = &fleet.vms {
        name(
            &mut run,
            &path.parent().unwrap_or(Path::new(".")).join(table),
        );
    }
    show(args, &run)?;
    Ok(if tell_problems(&run) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Names the VMs that miss the objective as their trace does: numbers made of names tell an operator nothing.
fn name(run: &mut FleetRun, table: &Path) {
    let vms = || run.results.iter().flat_map(|result| &result.hosts);
    let missed = vms().flat_map(|host| &host.vms).filter(|vm| vm.breaks_slo);
    let wanted: BTreeSet<VmId> = missed.map(|vm| VmId(vm.vm)).collect();
    let read = File::open(table)
        .map_err(anyhow::Error::from)
        .and_then(|file| Ok(names(BufReader::new(file), &wanted)?));
    let names = match read {
        Ok(names) => names,
        // They are known by their numbers then.
        Err(error) => {
            ostler_lab::tell!(
                "sim: VMs have numbers for names, as {} can't be read any more: {error:#}",
                table.display()
            );
            return;
        }
    };
    let hosts = run.results.iter_mut().flat_map(|result| &mut result.hosts);
    for vm in hosts.flat_map(|host| &mut host.vms) {
        if vm.breaks_slo {
            vm.name = names.get(&VmId(vm.vm)).cloned();
        }
    }
}

/// Tells what was wrong; whether anything was.
fn tell_problems(run: &FleetRun) -> bool {
    let mut wrong = false;
    for result in &run.results {
        let (policy, ratio) = (&result.line.policy, short(result.line.oversubscription));
        for host in &result.hosts {
            for problem in &host.problems {
                wrong = true;
                ostler_lab::tell!(
                    "sim: host {} under {policy} at {ratio}:1: {problem}",
                    host.host
                );
            }
        }
    }
    let results = run.results.iter();
    let refused: u64 = results.map(|result| result.line.plans_refused).sum();
    if refused > 0 {
        wrong = true;
        ostler_lab::tell!("sim: {refused} plans were refused by the checker: a fault of ostler's");
    }
    wrong
}

/// One policy at one oversubscription: those of its hosts that aren't there yet.
fn one(
    fleet: &Fleet,
    policy: &Policy,
    ratio: f64,
    threads: NonZeroUsize,
    log: &mut Hosts,
) -> anyhow::Result<FleetResult> {
    let there: BTreeSet<u32> = log.of(&policy.name, ratio).iter().map(|h| h.host).collect();
    let all = 0..u32::try_from(fleet.placed().hosts.len()).unwrap_or(u32::MAX);
    let left: Vec<u32> = all.filter(|host| !there.contains(host)).collect();
    let lasts = fleet
        .scenario()
        .fleet
        .as_ref()
        .map_or(0.0, |fleet| fleet.vms.lasts().as_secs_f64());
    let (done, begun) = (Mutex::new((0.0, 0.0)), Instant::now());
    let what = format!("{} at {}:1", policy.name, short(ratio));
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    if !there.is_empty() {
        ostler_lab::tell!(
            "sim: {what}: {} hosts are there already, {} are to be run",
            there.len(),
            left.len()
        );
    }
    let on = |seconds: f64| {
        let Ok(mut done) = done.lock() else { return };
        done.0 += seconds;
        let share = done.0 / (left.len() as f64 * lasts).max(1e-9);
        // A log has a line for each quarter.
        if share >= done.1 + if terminal { 0.01 } else { 0.25 } {
            done.1 = share;
            if terminal {
                eprint!("\r\x1b[Ksim: {:3.0} %  {what}", share * 100.0);
            } else {
                ostler_lab::tell!("sim: {what}: {:.0} %", share * 100.0);
            }
        }
    };
    let (mut kept, mut events) = (Ok(()), 0);
    fleet.each(policy, &left, threads, &on, &mut |outcome| {
        events += outcome.events;
        kept = log.add(&policy.name, ratio, outcome);
        if kept.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    kept?;
    if terminal {
        eprint!("\r\x1b[K");
    }
    if !left.is_empty() {
        ostler_lab::tell!("sim: {what}: {}", super::effort(events, begun.elapsed()));
    }
    let hosts = log.of(&policy.name, ratio);
    let turned_away = fleet.placed().turned_away.len();
    let line = FleetLine::of(&policy.name, ratio, turned_away, &hosts);
    Ok(FleetResult {
        about: policy.about.clone(),
        family: if policy.is_ours() || policy.scheduler().is_some() {
            Family::Ostler
        } else {
            Family::Baseline
        },
        line,
        hosts,
    })
}

/// The VMs, and where they are from, in words.
fn demand(path: &Path, vms: &Vms, seed: u64) -> anyhow::Result<(Demand, String)> {
    let (table_path, readings, one_of, from, lasts) = match vms {
        Vms::Generated { count, lasts } => {
            let demand = Demand::generated(*count, *lasts, seed);
            let words = format!(
                "{} generated, {count} at a time in the mean",
                demand.vms.len()
            );
            return Ok((demand, words));
        }
        Vms::Trace {
            table,
            readings,
            one_of,
            from,
            lasts,
        } => (table, readings, one_of, from.0 / 1_000_000_000, *lasts),
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    let open = |name: &str| {
        let path = folder.join(name);
        let file = File::open(&path).with_context(|| {
            format!(
                "could not open {} of the trace; paths are from the scenario's folder on",
                path.display()
            )
        })?;
        Ok::<_, anyhow::Error>(BufReader::new(file))
    };
    let selection = Selection {
        one_of: u64::from(*one_of),
        from,
        until: from + lasts.0.div_ceil(1_000_000_000),
        ..Selection::default()
    };
    let found = table(open(table_path)?, &selection)
        .with_context(|| format!("{table_path} of the trace"))?;
    told(table_path, &found.damage);
    let mut demand = Demand::of(found.vms, from, lasts);
    if !readings.is_empty() {
        tell(&mut demand, from, readings, open)?;
    }
    if demand.vms.is_empty() {
        bail!(
            "{table_path} has no VM in that time; look at `from`, `lasts` and `one_of` of [fleet]"
        );
    }
    let words = format!("{} of {table_path}", demand.vms.len());
    Ok((demand, words))
}

/// Tells how busy VMs are by files of readings, in order.
fn tell(
    demand: &mut Demand,
    from: u64,
    readings: &[String],
    open: impl Fn(&str) -> anyhow::Result<BufReader<File>>,
) -> anyhow::Result<()> {
    let wanted: BTreeSet<_> = demand.vms.iter().map(|vm| vm.vm.id).collect();
    let until = from + demand.lasts.0.div_ceil(1_000_000_000);
    let mut known = BTreeSet::new();
    let mut before: Option<(u64, &str)> = None;
    let mut step = Vec::new();
    // Before hours are spent on the first, the last must be there.
    let files: Vec<_> = readings
        .iter()
        .map(|name| open(name))
        .collect::<Result<_, _>>()?;
    for (name, file) in readings.iter().zip(files) {
        let mut steps = Readings::new(file);
        while let Some(at) = steps
            .step(|vm| wanted.contains(&vm), &mut step)
            .with_context(|| format!("{name} of the trace"))?
        {
            if let Some((last, earlier)) = before.filter(|(last, _)| at < *last) {
                bail!(
                    "{name} of the trace is of second {at}, after second {last} of {earlier}; name files of `readings` in order of time"
                );
            }
            before = Some((at, name));
            if at < until && at + STEP > from {
                known.extend(step.iter().map(|reading| reading.vm));
            }
            demand.tell(from, at, &step);
        }
        told(name, steps.damage());
    }
    if known.len() < wanted.len() {
        ostler_lab::tell!(
            "sim: {} of {} VMs have no reading in that time, and are as busy as in the mean of their lives",
            wanted.len() - known.len(),
            wanted.len()
        );
    }
    Ok(())
}

fn told(what: &str, damage: &Damage) {
    if damage.lines > 0 {
        let first: Vec<_> = damage
            .first
            .iter()
            .map(|(line, why)| format!("line {line} {why}"))
            .collect();
        ostler_lab::tell!(
            "sim: {} of {} lines of {what} are no rows and were left out: {}",
            damage.lines,
            damage.of,
            first.join("; ")
        );
    }
}

fn show(args: &Args, run: &FleetRun) -> anyhow::Result<()> {
    let printed = print(args, run);
    if let Some(path) = &args.report {
        super::write(path, &report::render_fleet(run))?;
        ostler_lab::tell!("sim: report: {}", path.display());
    }
    printed
}

fn print(args: &Args, run: &FleetRun) -> anyhow::Result<()> {
    if args.json {
        for result in &run.results {
            let vms = result.hosts.iter().flat_map(|host| &host.vms);
            let broken = vms.filter(|vm| vm.breaks_slo).map(|vm| Line::Vm {
                policy: &result.line.policy,
                oversubscription: result.line.oversubscription,
                vm,
            });
            for line in std::iter::once(Line::Policy(&result.line)).chain(broken) {
                output::print(&format!(
                    "{}\n",
                    serde_json::to_string(&line).context("a line is always JSON")?
                ))?;
            }
        }
        return Ok(());
    }
    let paint = Paint(output::colours());
    let mut table = Table::new(&[
        "POLICY",
        "RATIO",
        "VMS",
        "TURNED AWAY",
        "WITH USERS",
        "MISS SLO",
        "SHARE",
        "P95 MEDIAN",
        "P95 WORST 5 %",
        "USERS WAIT",
        "OTHERS WAIT",
        "BUSY",
        "HOSTS",
    ]);
    let said =
        |value: Option<f64>, say: fn(f64) -> String| value.map_or_else(|| "-".to_owned(), say);
    for result in &run.results {
        let line = &result.line;
        table.row(vec![
            line.policy.clone(),
            format!("{}:1", short(line.oversubscription)),
            line.vms.to_string(),
            line.turned_away.to_string(),
            line.interactive.to_string(),
            line.broken.to_string(),
            said(line.broken_share, percent),
            said(line.p95_median_us, micros),
            said(line.p95_worst_us, micros),
            said(line.waiting_share, percent),
            said(line.others_waiting_share, percent),
            percent(line.busy),
            line.hosts_used.to_string(),
        ]);
    }
    output::print(&table.render(paint))
}

#[cfg(test)]
mod tests {
    use ostler_model::Nanos;
    use ostler_sim::trace::generate::{Settings, generate};
    use ostler_sim::trace::{write_readings, write_table};

    use super::*;

    /// A generated trace, in the public one's files, of which the second of readings goes on where the first ends.
    fn files(folder: &Path) {
        let mut trace = generate(&Settings {
            population: 20,
            seconds: 7200,
            seed: 9,
        });
        let mut text = Vec::new();
        write_table(&mut text, &trace.vms).unwrap();
        text.extend(b"damaged,line\n");
        std::fs::write(folder.join("vmtable.csv"), text).unwrap();
        let (mut step, mut parts) = (Vec::new(), [Vec::new(), Vec::new()]);
        while let Some(at) = trace.step(&mut step) {
            write_readings(&mut parts[usize::from(at >= 3600)], &step).unwrap();
        }
        for (number, part) in parts.iter().enumerate() {
            std::fs::write(folder.join(format!("cpu-{number}.csv")), part).unwrap();
        }
    }

    fn trace(readings: &[&str]) -> Vms {
        Vms::Trace {
            table: "vmtable.csv".to_owned(),
            readings: readings.iter().map(|&name| name.to_owned()).collect(),
            one_of: 1,
            from: Nanos::from_secs(3000),
            lasts: Nanos::from_secs(1800),
        }
    }

    #[test]
    fn a_traces_files_are_read_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        files(dir.path());
        let scenario = dir.path().join("fleet.toml");
        let (told, words) = demand(&scenario, &trace(&["cpu-0.csv", "cpu-1.csv"]), 1).unwrap();
        assert!(words.ends_with("of vmtable.csv"), "{words}");
        assert!(told.vms.len() > 5);
        let stays = told
            .vms
            .iter()
            .find(|vm| vm.from == Nanos::ZERO && vm.until == told.lasts);
        // Readings come every five minutes, from before the watch on.
        assert_eq!(stays.unwrap().busy.len(), 6);
        let (mean, _) = demand(&scenario, &trace(&[]), 1).unwrap();
        assert!(mean.vms.iter().all(|vm| vm.busy.len() == 1));
        assert_eq!(mean.vms.len(), told.vms.len());
    }

    /// Where a file's last line has no end, as editors and `split` leave it, the next file's first isn't taken for the rest of it.
    #[test]
    fn no_reading_is_lost_where_a_file_ends_without_a_newline() {
        let dir = tempfile::tempdir().unwrap();
        files(dir.path());
        let scenario = dir.path().join("fleet.toml");
        let told = || demand(&scenario, &trace(&["cpu-0.csv", "cpu-1.csv"]), 1).unwrap();
        let whole = told();
        let first = dir.path().join("cpu-0.csv");
        let text = std::fs::read_to_string(&first).unwrap();
        std::fs::write(&first, text.trim_end()).unwrap();
        assert_eq!(told(), whole);
    }

    #[test]
    fn files_of_readings_that_are_not_in_order_are_told_by_name() {
        let dir = tempfile::tempdir().unwrap();
        files(dir.path());
        let scenario = dir.path().join("fleet.toml");
        let turned = trace(&["cpu-1.csv", "cpu-0.csv"]);
        let error = format!("{:#}", demand(&scenario, &turned, 1).unwrap_err());
        assert!(
            error.contains("cpu-0.csv of the trace is of second 0")
                && error.contains("of cpu-1.csv")
                && error.contains("in order of time"),
            "{error}"
        );
        let text = "600,vm-1,1,2,3\n300,vm-1,1,2,3\n";
        std::fs::write(dir.path().join("cpu-1.csv"), text).unwrap();
        let error = demand(&scenario, &trace(&["cpu-1.csv"]), 1).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("cpu-1.csv of the trace: line 2 is of second 300"),
            "{error}"
        );
    }

    #[test]
    fn a_trace_that_is_not_there_is_told_by_its_path() {
        let dir = tempfile::tempdir().unwrap();
        files(dir.path());
        let scenario = dir.path().join("fleet.toml");
        let error = demand(&scenario, &trace(&["none.csv"]), 1).unwrap_err();
        let path = dir.path().join("none.csv").display().to_string();
        assert!(format!("{error:#}").contains(&path), "{error:#}");
        std::fs::write(dir.path().join("vmtable.csv"), "no\ntable\nat\nall\n").unwrap();
        let error = demand(&scenario, &trace(&[]), 1).unwrap_err();
        assert!(format!("{error:#}").contains("vmtable.csv"), "{error:#}");
    }
}
