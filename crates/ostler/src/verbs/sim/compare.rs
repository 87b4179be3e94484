//! `ostler sim compare`: two runs of the same scenario, or fleet, side by side: of the lab and the simulator, of two programs, of two seeds.
//!
//! What is compared and when directions agree: `ostler_outcome::compare`. Here runs are read, and what came of it is shown.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use ostler_outcome::compare::{Compared, Line, Pair, compare, lines};
use ostler_outcome::events::{Event, Stamped};
use ostler_outcome::gather::{self, Summary};
use ostler_outcome::report::{Side, render_compared};
use ostler_report::say::{short, times};

use crate::output::{self, Paint, Table};

/// Show two runs of a scenario, or of a fleet, side by side: the lab's and the simulator's, say
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each run is a file with its JSON lines, of `ostler lab run --json FILE` or `ostler sim --json`, or the folder that the lab keeps of it. Policies are compared with the \
    first of them, and each with each other, in each run.\n\n\
    Examples:\n  ostler sim scenarios/vspace-ramp.toml --json > sim.jsonl\n  ostler sim compare lab.jsonl sim.jsonl --report beside.html\n  \
    ostler sim compare target/lab/runs/0001-vspace-ramp sim.jsonl --json\n\n\
    What isn't simulated yet is simulated and laid beside a run by `ostler sim SCENARIO --beside RUN`.\n\n\
    Exit codes: 0 shown; 1 a run can't be read, or they have nothing in common, or with --agree, one says that a policy has more of a figure than another and the other that it has less."
)]
pub struct Args {
    /// The JSON lines of one run, or its folder
    one: PathBuf,
    /// And of the other
    other: PathBuf,
    /// Fail where directions don't agree
    #[arg(long)]
    agree: bool,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
    /// Write a report here
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let [one, other] = [Read::new(&args.one)?, Read::new(&args.other)?];
    let compared = show(one, other, args.json, args.report.as_deref())?;
    Ok(if args.agree && compared.agree < compared.told {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Shows two runs side by side, as text or JSON lines, and as a page where one is wanted.
pub fn show(one: Read, other: Read, json: bool, report: Option<&Path>) -> anyhow::Result<Compared> {
    let compared = compare(&one.lines, &other.lines);
    if compared.pairs.is_empty() {
        bail!(
            "{} and {} have no figure of a policy under the same load in common: {} has {}; {} has {}; give it two runs of the same scenario",
            one.path,
            other.path,
            one.path,
            one.has(),
            other.path,
            other.has(),
        );
    }
    let sides = sides(one, other);
    if let Some(path) = report {
        super::write(path, &render_compared(&compared, &sides))?;
        ostler_lab::tell!("sim: report: {}", path.display());
    }
    if json {
        for pair in &compared.pairs {
            output::print(&format!(
                "{}\n",
                serde_json::to_string(pair).context("a pair is always JSON")?
            ))?;
        }
    } else {
        output::print(&text(&compared.pairs, &sides, Paint(output::colours())))?;
    }
    for (only, side) in compared.only.iter().zip(&sides) {
        for (workload, policy) in only {
            ostler_lab::tell!("sim: only {} has {policy} under {workload}", side.name);
        }
    }
    ostler_lab::tell!(
        "sim: {} times two policies differ by a figure in both runs, {} times the same way",
        compared.told,
        compared.agree
    );
    Ok(compared)
}

/// A run as it was read.
pub struct Read {
    lines: Vec<Line>,
    /// Where from, in words.
    path: String,
    side: Side,
}

impl Read {
    /// What was simulated just now, of a scenario's file.
    pub fn simulated(
        summaries: &[Summary],
        scenario: &Path,
        revision: &str,
    ) -> anyhow::Result<Read> {
        let mut text = String::new();
        for line in gather::result_lines(summaries) {
            let line = serde_json::to_string(&line).context("a line is always JSON")?;
            text.push_str(&line);
            text.push('\n');
        }
        let lines = lines(&text).map_err(|mistake| anyhow::anyhow!(mistake.what))?;
        Ok(Read {
            lines,
            path: format!("what was simulated of {}", scenario.display()),
            side: Side {
                name: "simulated".to_owned(),
                from: format!("revision {revision}, {}", scenario.display()),
            },
        })
    }

    /// A run's JSON lines, or its folder.
    pub fn new(path: &Path) -> anyhow::Result<Read> {
        let folder = path.is_dir();
        let file = if folder {
            path.join("summary.jsonl")
        } else {
            path.to_owned()
        };
        let text = std::fs::read_to_string(&file).with_context(|| {
            let what = if folder {
                "a folder of a run has a summary.jsonl, once it is over"
            } else {
                "give it the JSON lines of a run, or the folder that the lab keeps of one"
            };
            format!("could not read {}: {what}", file.display())
        })?;
        let lines = match lines(&text) {
            Ok(lines) => lines,
            Err(mistake) => bail!("{}:{}: {}", file.display(), mistake.line, mistake.what),
        };
        if lines.is_empty() {
            bail!(
                "{} has no line of a policy: either the run isn't over yet, or something went wrong in all of its rounds; give it one that is",
                file.display()
            );
        }
        let name = if folder {
            path.file_name()
        } else {
            path.file_stem()
        };
        let name = name.map_or_else(
            || path.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        );
        let from = told(&path.join("events.jsonl"))
            .filter(|_| folder)
            .unwrap_or_else(|| path.display().to_string());
        Ok(Read {
            lines,
            path: path.display().to_string(),
            side: Side { name, from },
        })
    }

    /// Its policies and loads, in words.
    fn has(&self) -> String {
        let each = self.lines.iter();
        let each = each.map(|line| format!("{} under {}", line.policy, line.workload));
        let mut each: Vec<String> = each.collect();
        let more = each.len().saturating_sub(4);
        each.truncate(4);
        if more > 0 {
            each.push(format!("{more} more"));
        }
        each.join(", ")
    }
}

/// What made a run, by its first event.
fn told(events: &Path) -> Option<String> {
    use std::io::BufRead as _;
    let mut line = String::new();
    let file = std::fs::File::open(events).ok()?;
    std::io::BufReader::new(file).read_line(&mut line).ok()?;
    let first: Stamped = serde_json::from_str(&line).ok()?;
    let Event::Run {
        revision,
        started,
        qemu,
        ..
    } = first.event
    else {
        return None;
    };
    Some(format!("revision {revision}, {started}, {qemu}"))
}

/// Both by name, where names tell them apart.
fn sides(one: Read, other: Read) -> [Side; 2] {
    let mut sides = [one.side, other.side];
    if sides[0].name == sides[1].name {
        for (side, name) in sides.iter_mut().zip(["one", "other"]) {
            name.clone_into(&mut side.name);
        }
    }
    sides
}

fn text(pairs: &[Pair], sides: &[Side; 2], paint: Paint) -> String {
    let mut text = String::new();
    let mut workloads: Vec<&str> = Vec::new();
    for pair in pairs {
        if !workloads.contains(&pair.workload.as_str()) {
            workloads.push(&pair.workload);
        }
    }
    let [one, other] = [0, 1].map(|at| sides[at].name.to_uppercase());
    let by_first = [&one, &other].map(|name| format!("{name} BY FIRST"));
    for workload in workloads {
        text.push_str(&paint.bold(workload));
        text.push('\n');
        let mut table = Table::new(&[
            "POLICY",
            "FIGURE",
            &one,
            &other,
            "RATIO",
            &by_first[0],
            &by_first[1],
            "AGREE",
            "CONTRADICTS OF",
        ]);
        let said = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), times);
        for pair in pairs.iter().filter(|pair| pair.workload == workload) {
            table.row(vec![
                pair.policy.clone(),
                pair.figure.to_owned(),
                short(pair.one),
                short(pair.other),
                said(pair.ratio),
                said(pair.one_by_first),
                said(pair.other_by_first),
                match pair.agree {
                    Some(true) => paint.good("yes"),
                    Some(false) => paint.bad("NO"),
                    None => "-".to_owned(),
                },
                if pair.against.is_empty() {
                    "-".to_owned()
                } else {
                    paint.bad(pair.against.join(" "))
                },
            ]);
        }
        text.push_str(&table.render(paint));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "{\"workload\":\"w\",\"policy\":\"p\",\"p95_us\":10}\n{\"workload\":\"w\",\"policy\":\"q\",\"p95_us\":5}\n";
    const TURNED: &str = "{\"workload\":\"w\",\"policy\":\"p\",\"p95_us\":5}\n{\"workload\":\"w\",\"policy\":\"q\",\"p95_us\":10}\n";
    const ELSEWHERE: &str = "{\"workload\":\"v\",\"policy\":\"p\",\"p95_us\":5}\n";

    fn args(one: &Path, other: &Path) -> Args {
        Args {
            one: one.to_owned(),
            other: other.to_owned(),
            agree: true,
            json: true,
            report: None,
        }
    }

    #[test]
    fn what_cant_be_compared_is_refused_with_why_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let good = write("good.jsonl", GOOD);
        let folder = dir.path().join("0001-run");
        std::fs::create_dir(&folder).unwrap();
        for (path, why) in [
            (dir.path().join("none.jsonl"), "could not read"),
            (folder, "has a summary.jsonl, once it is over"),
            (write("empty.jsonl", ""), "no line of a policy"),
            (
                write("a.jsonl", &(GOOD.to_owned() + "nonsense")),
                ":3: no JSON",
            ),
            (write("v.jsonl", ELSEWHERE), "p under w, q under w"),
        ] {
            let error = run(&args(&good, &path)).expect_err(why);
            let said = format!("{error:#}");
            assert!(said.contains(why), "{said}");
            assert!(said.contains(&path.display().to_string()), "{said}");
        }
    }

    #[test]
    fn a_folder_of_a_run_is_read_and_names_itself() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("0001-run");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("summary.jsonl"), GOOD).unwrap();
        std::fs::write(
            folder.join("events.jsonl"),
            "{\"t_ms\":0,\"event\":\"run\",\"revision\":\"abc\",\"started\":\"then\",\"qemu\":\"QEMU 10\"}\nmore\n",
        )
        .unwrap();
        let read = Read::new(&folder).expect("a run");
        assert_eq!(read.side.name, "0001-run");
        assert_eq!(read.side.from, "revision abc, then, QEMU 10");
        let same = sides(Read::new(&folder).unwrap(), Read::new(&folder).unwrap());
        assert_eq!([&same[0].name, &same[1].name], ["one", "other"]);
    }

    #[test]
    fn contradictions_fail_where_they_are_asked_for_and_stand_in_all_forms() {
        let dir = tempfile::tempdir().unwrap();
        let [good, turned] = [("lab", GOOD), ("sim", TURNED)].map(|(name, text)| {
            let path = dir.path().join(name).with_extension("jsonl");
            std::fs::write(&path, text).unwrap();
            path
        });
        let report = dir.path().join("beside.html");
        let against = Args {
            report: Some(report.clone()),
            ..args(&good, &turned)
        };
        let [failure, success] =
            [ExitCode::FAILURE, ExitCode::SUCCESS].map(|code| format!("{code:?}"));
        assert_eq!(format!("{:?}", run(&against).unwrap()), failure);
        let html = std::fs::read_to_string(&report).unwrap();
        assert!(html.contains("lab beside sim"));
        assert_eq!(format!("{:?}", run(&args(&good, &good)).unwrap()), success);
        let asked = Args {
            agree: false,
            ..args(&good, &turned)
        };
        assert_eq!(format!("{:?}", run(&asked).unwrap()), success);
        let [one, other] = [Read::new(&good).unwrap(), Read::new(&turned).unwrap()];
        let compared = compare(&one.lines, &other.lines);
        let said = text(&compared.pairs, &sides(one, other), Paint(false));
        let row: Vec<&str> = said.lines().nth(3).unwrap().split_whitespace().collect();
        assert_eq!(
            row,
            [
                "q",
                "p95_us",
                "5",
                "10",
                "2.00\u{d7}",
                "0.50\u{d7}",
                "2.00\u{d7}",
                "NO",
                "p"
            ]
        );
        assert!(said.lines().nth(1).unwrap().contains("LAB  SIM"), "{said}");
    }
}
