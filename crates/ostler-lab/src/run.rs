//! Runs a scenario: boot, follow the cells, keep everything, sum up.
//!
//! A run's folder holds `scenario.toml` as it was, `program.json`, `events.jsonl` (all that a report needs), `summary.jsonl`,
//! the serial log, and `results/` with the logs of guests, steward and load generator.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::binaries::Binaries;
use crate::error::{IoContext, LabError, Result};
use crate::image::{Image, LabDir, workspace_root};
use crate::machine::{Time, files};
use crate::profile;
use crate::program::Program;
use crate::progress::{Progress, Step};
use crate::share;
use crate::vm::{Boot, Life, Vm};
use ostler_outcome::events::{Cell, Event, Stamped};
use ostler_outcome::gather::{self, Summary};
use ostler_outcome::report;

/// All that a report needs of a run.
const EVENTS: &str = "events.jsonl";
/// A run may take this many times what its steps add up to, plus [`SLACK`]; beyond that it hangs.
const PATIENCE: f64 = 3.0;
/// The same on machine time, whose seconds take as long as the cores' instructions do: six busy cores on two real ones need
/// six to ten real seconds for each, and twice that beside other work.
const PATIENCE_ON_MACHINE_TIME: f64 = 24.0;
const SLACK: Duration = Duration::from_mins(5);
/// To power off.
const POWER_OFF: Duration = Duration::from_secs(20);

/// What a run left behind.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// Its folder.
    pub folder: PathBuf,
    /// All events.
    pub events: PathBuf,
    /// One summary per load.
    pub summaries: Vec<Summary>,
    /// The report of them all, an HTML file.
    pub report: PathBuf,
    /// How many of its faults did no harm, and how many did; `None` for a scenario without any.
    pub faults: Option<(usize, usize)>,
    /// What went wrong without ending the run, and what was expected and did not hold, in words.
    pub problems: Vec<String>,
}

/// Runs a program's cells on a freshly booted host.
pub fn run(
    lab: &LabDir,
    image: &Image,
    binaries: &Binaries,
    program: &Program,
    time: &Time,
    progress: Progress,
) -> Result<RunResult> {
    let folder = new_folder(lab, &program.scenario.name)?;
    let events_path = folder.join(EVENTS);
    let mut log = EventLog::create(&events_path)?;
    log.add(&Stamped {
        t_ms: 0,
        event: Event::Run {
            revision: revision(),
            started: utc(SystemTime::now()),
            qemu: image.manifest.qemu.clone(),
            clock: time.clock(),
        },
    });
    let boot = Boot {
        image,
        binaries,
        program,
        run: &folder,
        time,
        life: Life::Bound,
    };
    let mut vm = Vm::boot(boot, progress, &mut |stamped| log.add(stamped))?;

    let patience = match time {
        Time::Wall { .. } => PATIENCE,
        Time::Machine { .. } => PATIENCE_ON_MACHINE_TIME,
    };
    let expected = Duration::from_secs_f64(program.scenario.expected_s() * patience);
    let deadline = Instant::now() + expected + SLACK;
    let mut following = Following {
        cells: program.cells(),
        progress,
        step: progress.step(work_of(program)),
        waiting_for: "starting the first cell".to_owned(),
        problems: Vec::new(),
        faults: (0, 0),
    };
    loop {
        let Some(stamped) = vm.next(deadline, &following.waiting_for)? else {
            return Err(vm.failure("did not end in time", &following.waiting_for));
        };
        log.add(&stamped);
        match &stamped.event {
            Event::Problem { what } => {
                return Err(vm.failure(&format!("reported: {what}"), &following.waiting_for));
            }
            Event::Done => break,
            event => following.take(event),
        }
    }
    let Following {
        step,
        mut problems,
        faults,
        ..
    } = following;
    step.done(&format!("everything is kept in {}", folder.display()));
    vm.finish(POWER_OFF);
    let step = progress.step("gather results");
    share::unpack_results(&folder)?;
    if program.profile {
        let under_test = &program.scenario.host.under_test;
        profile::put_together(&folder, program.cells().len(), under_test)?;
    }
    let _ = std::fs::remove_file(folder.join(files::INPUT)); // made anew for every run
    log.finish()?;
    let (summaries, report) = sum_up(&folder, program)?;
    step.done("");
    let asked = program.scenario.faults.len();
    if faults.0 + faults.1 != asked {
        problems.push(format!(
            "{} of {asked} faults were done",
            faults.0 + faults.1
        ));
    }
    for unmet in gather::unmet(&program.scenario.expectations, &summaries) {
        problems.push(format!("not as expected: {unmet}"));
    }
    Ok(RunResult {
        folder,
        events: events_path,
        summaries,
        report,
        faults: (asked > 0).then_some(faults),
        problems,
    })
}

/// Sums up what is in a run's folder, and writes its lines and its report there: what was measured of a run that was cut off,
/// too. Returns the summaries and where the report is.
fn sum_up(folder: &Path, program: &Program) -> Result<(Vec<Summary>, PathBuf)> {
    let summaries = gather::summaries(&program.scenario, &read_events(&folder.join(EVENTS))?);
    let lines = gather::result_lines(&summaries);
    write_lines(&folder.join("summary.jsonl"), &lines)?;
    let report = folder.join("report.html");
    let runs: Vec<_> = summaries.iter().map(|summary| &summary.run).collect();
    std::fs::write(&report, report::render_all(&runs)).on("write", &report)?;
    Ok((summaries, report))
}

/// Sums a run of before up again, from its folder alone. Faults aren't judged anew.
pub fn report(folder: &Path) -> Result<RunResult> {
    let path = folder.join("program.json");
    let text = std::fs::read_to_string(&path).on("read", &path)?;
    let program: Program = serde_json::from_str(&text).map_err(|error| LabError::Format {
        doing: format!("read {}", path.display()),
        why: error.to_string(),
    })?;
    let (summaries, report) = sum_up(folder, &program)?;
    let unmet = gather::unmet(&program.scenario.expectations, &summaries);
    Ok(RunResult {
        folder: folder.to_owned(),
        events: folder.join(EVENTS),
        summaries,
        report,
        faults: None,
        problems: unmet
            .into_iter()
            .map(|unmet| format!("not as expected: {unmet}"))
            .collect(),
    })
}

/// Several runs as one, whose report is left in the folder of the first: `None` of none.
pub fn together(runs: Vec<RunResult>) -> Result<Option<RunResult>> {
    let mut runs = runs.into_iter();
    let Some(mut all) = runs.next() else {
        return Ok(None);
    };
    let mut more = false;
    for run in runs {
        all.summaries.extend(run.summaries);
        all.problems.extend(run.problems);
        more = true;
    }
    if more {
        all.report = all.folder.join("together.html");
        let runs: Vec<_> = all.summaries.iter().map(|summary| &summary.run).collect();
        std::fs::write(&all.report, report::render_all(&runs)).on("write", &all.report)?;
    }
    Ok(Some(all))
}

/// What a program does, in words.
fn work_of(program: &Program) -> String {
    let (cells, faults) = (program.cells().len(), program.scenario.faults.len());
    match (cells, faults) {
        (cells, 0) => format!("run {cells} cells"),
        (0, faults) => format!("do {faults} faults"),
        _ => format!("run {cells} cells and do {faults} faults"),
    }
}

/// A run as it is followed: what is awaited, and what went wrong so far.
struct Following {
    cells: Vec<Cell>,
    progress: Progress,
    step: Step,
    waiting_for: String,
    problems: Vec<String>,
    /// Passed and failed.
    faults: (usize, usize),
}

impl Following {
    fn take(&mut self, event: &Event) {
        match event {
            Event::Stage { name } => self.waiting_for.clone_from(name),
            Event::CellStart { cell, .. } => {
                self.waiting_for = format!("running {cell}");
                let (at, all) = (cell.index + 1, self.cells.len());
                self.step.detail(&format!("{at}/{all}: {cell}"));
                if self.progress == Progress::Lines {
                    self.step.note(&format!("cell {at} of {all}: {cell}"));
                }
            }
            Event::CellEnd { cell, problems, .. } => {
                let named = self
                    .cells
                    .get(*cell as usize)
                    .map_or_else(String::new, ToString::to_string);
                for problem in problems {
                    self.went_wrong(format!("{named}: {problem}"));
                }
            }
            Event::FaultStart { kind, .. } => {
                self.waiting_for = format!("running fault {kind}");
                self.step.detail(&self.waiting_for);
            }
            Event::FaultTime { time, .. } => {
                self.step
                    .detail(&format!("{}, time {}", self.waiting_for, time + 1));
            }
            Event::FaultEnd {
                kind,
                passed,
                of,
                failures,
                notes,
                seconds,
                ..
            } => {
                let good = failures.is_empty() && passed == of;
                let word = if good { "passed" } else { "FAILED" };
                for note in notes {
                    self.step.note(&format!("  {note}"));
                }
                self.step.note(&format!(
                    "fault {kind}: {word} ({passed} of {of}, {seconds:.1} s)"
                ));
                for failure in failures {
                    self.went_wrong(format!("fault {kind}: {failure}"));
                }
                if good {
                    self.faults.0 += 1;
                } else {
                    self.faults.1 += 1;
                }
            }
            Event::GuestLost { name, why } => self.went_wrong(format!("guest {name}: {why}")),
            _ => {}
        }
    }

    fn went_wrong(&mut self, what: String) {
        self.step.note(&what);
        self.problems.push(what);
    }
}

/// Revision of the sources: of the checkout that we are in, else the version of this program.
pub fn revision() -> String {
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git").args(args).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let of_checkout = workspace_root().and_then(|_| git(&["rev-parse", "--short=12", "HEAD"]));
    of_checkout.unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned())
}

/// A time in words, in UTC.
fn utc(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // The civil calendar counted from 1 March 0000, so that leap days come last in a year (Howard Hinnant's algorithm).
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12 + 1;
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Makes the next run's folder: `runs/0007-NAME`.
pub fn new_folder(lab: &LabDir, name: &str) -> Result<PathBuf> {
    let runs = lab.runs();
    std::fs::create_dir_all(&runs).on("create", &runs)?;
    let last = std::fs::read_dir(&runs)
        .on("list", &runs)?
        .flatten()
        .filter_map(|e| {
            e.file_name()
                .to_str()?
                .split('-')
                .next()?
                .parse::<u32>()
                .ok()
        })
        .max()
        .unwrap_or(0);
    // Another run may begin at the same moment: creation is what decides.
    for number in last + 1..last + 100 {
        let folder = runs.join(format!("{number:04}-{name}"));
        match std::fs::create_dir(&folder) {
            Ok(()) => return std::path::absolute(&folder).on("find", &folder),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e).on("create", &folder),
        }
    }
    Err(LabError::State(format!(
        "could not find a free name for a run in {}",
        runs.display()
    )))
}

/// All events of a run.
pub fn read_events(path: &Path) -> Result<Vec<Stamped>> {
    let text = std::fs::read_to_string(path).on("read", path)?;
    text.lines()
        .enumerate()
        .map(|(number, line)| {
            serde_json::from_str(line).map_err(|e| LabError::Format {
                doing: format!("read line {} of {}", number + 1, path.display()),
                why: e.to_string(),
            })
        })
        .collect()
}

/// Writes JSON lines.
pub fn write_lines<T: serde::Serialize>(path: &Path, values: &[T]) -> Result<()> {
    let mut text = String::new();
    for value in values {
        text += &serde_json::to_string(value).map_err(|e| LabError::Format {
            doing: format!("write {}", path.display()),
            why: e.to_string(),
        })?;
        text.push('\n');
    }
    std::fs::write(path, text).on("write", path)
}

/// The run's events, those of the lab itself among them.
struct EventLog {
    path: PathBuf,
    file: std::io::BufWriter<std::fs::File>,
    failed: Option<std::io::Error>,
}

impl EventLog {
    fn create(path: &Path) -> Result<EventLog> {
        let file = std::fs::File::create(path).on("create", path)?;
        Ok(EventLog {
            path: path.to_owned(),
            file: std::io::BufWriter::new(file),
            failed: None,
        })
    }

    /// Errors are kept for [`EventLog::finish`]: the run itself goes on.
    fn add(&mut self, stamped: &Stamped) {
        let line = serde_json::to_string(stamped).unwrap_or_default();
        // Flushed line by line, so that a report can be made of a run that is under way or was cut off.
        if let Err(e) = writeln!(self.file, "{line}").and_then(|()| self.file.flush()) {
            self.failed.get_or_insert(e);
        }
    }

    fn finish(self) -> Result<()> {
        match self.failed {
            None => Ok(()),
            Some(e) => Err(e).on("write", &self.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_through_leap_years() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00 UTC");
        assert_eq!(at(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(at(1_795_296_068), "2026-11-21 21:21 UTC");
    }

    #[test]
    fn runs_are_numbered() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let lab = LabDir::new(dir.path());
        assert!(
            new_folder(&lab, "a")
                .expect("a folder")
                .ends_with("runs/0001-a")
        );
        assert!(
            new_folder(&lab, "b")
                .expect("a folder")
                .ends_with("runs/0002-b")
        );
    }

    #[test]
    fn a_run_that_was_cut_off_is_summed_up_as_far_as_it_came() {
        use ostler_outcome::testing::{cell, scenario};
        let dir = tempfile::tempdir().expect("a temporary folder");
        let program = Program::new(scenario(), false);
        let text = serde_json::to_string(&program).expect("JSON");
        std::fs::write(dir.path().join("program.json"), text).expect("a program");
        let mut events = cell(0, "vanilla", [500.0, 900.0], &[]);
        let mut cut = cell(1, "ours", [500.0, 900.0], &[]);
        cut.pop();
        events.extend(cut);
        write_lines(&dir.path().join(EVENTS), &events).expect("events");
        let result = report(dir.path()).expect("a report");
        let lines: Vec<_> = result.summaries.iter().flat_map(Summary::lines).collect();
        let rates: Vec<_> = lines.iter().map(|l| l.line.max_rate_under_slo).collect();
        assert_eq!(rates, [Some(200.0), None], "the second wasn't over");
        let page = std::fs::read_to_string(&result.report).expect("a page");
        assert!(page.contains("vanilla"));
        let kept = std::fs::read_to_string(dir.path().join("summary.jsonl")).expect("lines");
        let of_cells = |line: &&str| line.starts_with("{\"cell\":0,");
        assert_eq!(kept.lines().count(), 3, "two policies' and a cell's");
        assert_eq!(kept.lines().filter(of_cells).count(), 1);

        std::fs::write(dir.path().join("program.json"), "{").expect("damage");
        let refused = report(dir.path()).expect_err("it is damaged").to_string();
        assert!(refused.contains("program.json"), "{refused}");
    }
}
