//! The steward in a cell: configured from what the lab knows and what the policy says, started, ended, and asked what it
//! decided.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use ostler_model::{BoostOutcome, Class};
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use serde_json::Value;
use toml::Table;

use crate::child::wait_timeout;
use crate::machine;
use crate::program::Program;
use ostler_outcome::events::BoostPeriod;

/// A steward told to end restores what it changed.
const END_WITHIN: Duration = Duration::from_mins(2);

/// From its start to a decision about every guest: 2 to 5 s on a quiet machine of two cores.
const READY_WITHIN: Duration = Duration::from_secs(100);

/// So many periods of the scheduler of vCPUs under load are kept: enough for a drawing.
const BOOST_PERIODS_MAX: usize = 60;

/// A steward that runs.
#[derive(Debug)]
pub struct Steward {
    child: Child,
    log: PathBuf,
    /// The line that it prints for each period.
    periods: PathBuf,
    decisions: Vec<String>,
}

impl Steward {
    /// Starts the steward with the policy's configuration over the lab's; its files go to `out`.
    pub fn start(
        program: &Program,
        own: &Table,
        pnic: &str,
        out: &Path,
    ) -> anyhow::Result<Steward> {
        let mut config = facts(program, pnic, out);
        crate::scenario::merge(&mut config, own);
        let path = out.join("steward.toml");
        std::fs::write(&path, config.to_string())
            .with_context(|| format!("could not write {}", path.display()))?;
        let since = unix_ms() / 1000;
        let fill = |word: &String| {
            word.replace("{config}", &path.display().to_string())
                .replace("{out}", &out.display().to_string())
                .replace("{since}", &since.to_string())
        };
        let words: Vec<String> = program.steward.iter().map(fill).collect();
        let (command, args) = words
            .split_first()
            .context("the program names no steward")?;
        let log = out.join("steward.log");
        let output =
            File::create(&log).with_context(|| format!("could not create {}", log.display()))?;
        let periods = out.join("periods.jsonl");
        let lines = File::create(&periods)
            .with_context(|| format!("could not create {}", periods.display()))?;
        let child = Command::new(command)
            .args(args)
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(lines)
            .stderr(output)
            .spawn()
            .with_context(|| format!("could not start the steward `{}`", words.join(" ")))?;
        Ok(Steward {
            child,
            log,
            periods,
            decisions: program.decisions.iter().map(fill).collect(),
        })
    }

    /// Waits until it has decided about every guest that it is to manage. On an emulated core, loading its BPF programs
    /// takes seconds, and a load that began before would measure a host without a steward.
    pub fn wait_ready(&mut self, program: &Program) -> anyhow::Result<()> {
        let managed = program
            .scenario
            .guests
            .iter()
            .filter(|guest| guest.class != Class::Unmanaged)
            .count();
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                anyhow::bail!("the steward ended before its first decision ({status})");
            }
            let mut ready = false;
            // While it isn't listening yet, this fails; that is what we wait for.
            let _ = json_values(&program.status, |status| {
                let guests = status["guests"].as_array().map_or(0, Vec::len);
                ready |= guests >= managed && status["generation"].as_u64() >= Some(2);
            });
            if ready {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "the steward had not decided about {managed} guests within {} s",
                READY_WITHIN.as_secs()
            );
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    /// Where the line of each period is.
    pub fn periods(&self) -> &Path {
        &self.periods
    }

    /// Ends it; says what was wrong with it.
    pub fn end(mut self) -> Option<String> {
        let wrong = self.end_child()?;
        let last = crate::tail::last_lines(&self.log, 3);
        Some(format!("{wrong}; its last words: {}", last.trim()))
    }

    fn end_child(&mut self) -> Option<String> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(format!("the steward ended early ({status})"));
        }
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // A failure means that it is gone, and the wait below says how.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        match wait_timeout(&mut self.child, END_WITHIN) {
            Some(status) if status.success() => None,
            Some(status) => Some(format!("the steward ended with {status}")),
            None => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                let seconds = END_WITHIN.as_secs();
                Some(format!("the steward did not end within {seconds} s"))
            }
        }
    }

    /// The command that asks its record what it decided.
    pub fn decisions_command(&self) -> Vec<String> {
        self.decisions.clone()
    }
}

/// Hands every JSON value that a command prints to `each`.
pub fn json_values(words: &[String], mut each: impl FnMut(Value)) -> anyhow::Result<()> {
    let Some((command, args)) = words.split_first() else {
        return Ok(());
    };
    let mut child = Command::new(command)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("could not start `{}`", words.join(" ")))?;
    if let Some(stdout) = child.stdout.take() {
        // One object after the other, whether they are on a line each or laid out for people.
        let values = serde_json::Deserializer::from_reader(BufReader::new(stdout));
        for value in values.into_iter::<Value>().map_while(Result::ok) {
            each(value);
        }
    }
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "`{}` failed ({status})", words.join(" "));
    Ok(())
}

/// What every steward in the lab must know: its cores, NIC, guests, and where to keep its files.
pub(super) fn facts(program: &Program, pnic: &str, out: &Path) -> Table {
    let scenario = &program.scenario;
    let table = |pairs: Vec<(&str, toml::Value)>| -> toml::Value {
        toml::Value::Table(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
    };
    let text = |text: &str| toml::Value::String(text.to_owned());
    let file = |name: &str| text(&out.join(name).display().to_string());
    let list = |item: toml::Value| toml::Value::Array(vec![item]);
    let guests = scenario
        .guests
        .iter()
        .filter(|guest| guest.class != Class::Unmanaged)
        .map(|guest| {
            let mut rule = vec![
                ("name", text(&guest.name)),
                ("class", text(&guest.class.to_string())),
            ];
            if let Some(us) = guest.slo_p95_us {
                rule.push(("slo", text(&format!("{us}us"))));
            }
            table(rule)
        })
        .collect();
    let qmp = format!("{}/*", machine::QMP_FOLDER);
    let managed = scenario.host.under_test.to_string();
    let sections = [
        ("cores", table(vec![("managed", text(&managed))])),
        ("network", table(vec![("nics", list(text(pnic)))])),
        ("discovery", table(vec![("qmp", list(text(&qmp)))])),
        ("record", table(vec![("path", file("record.db"))])),
        ("journal", table(vec![("path", file("journal.db"))])),
        ("guest", toml::Value::Array(guests)),
    ];
    sections
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v))
        .collect()
}

/// What the steward saw on a guest's tap between two times: per period with fresh response times, their P50 and P95 in microseconds.
pub fn tap_times(periods: &Path, guest: &str, from_ms: u64, to_ms: u64) -> Vec<(f64, f64)> {
    let Ok(file) = File::open(periods) else {
        return Vec::new();
    };
    let mut times = Vec::new();
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        // The last line of a steward that was killed may be cut off.
        let Ok(period) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        let at_ms = period["wall"].as_u64().unwrap_or(0) / 1_000_000;
        if !(from_ms..to_ms).contains(&at_ms) {
            continue;
        }
        let guests = period["guests"].as_array().into_iter().flatten();
        for seen in guests.filter(|seen| seen["name"] == guest) {
            let latency = &seen["latency"];
            if latency["age"] != 0 {
                continue;
            }
            if let (Some(p50), Some(p95)) = (latency["p50"].as_f64(), latency["p95"].as_f64()) {
                times.push((p50 / 1e3, p95 / 1e3));
            }
        }
    }
    times
}

/// What the steward's scheduler of vCPUs had done: by the end of the last period before a time, and of a choice of those from there to another time.
pub fn boost_periods(periods: &Path, from_ms: u64, to_ms: u64) -> Vec<BoostPeriod> {
    #[derive(Deserialize)]
    struct Period {
        wall: u64,
        boost: Option<BoostOutcome>,
    }
    let Ok(file) = File::open(periods) else {
        return Vec::new();
    };
    let (mut before, mut under_load) = (None, Vec::new());
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        // The last line of a steward that was killed may be cut off.
        let Ok(Period {
            wall,
            boost: Some(boost),
        }) = serde_json::from_str(&line)
        else {
            continue;
        };
        let period = BoostPeriod {
            unix_ms: wall / 1_000_000,
            guests: boost.guests,
        };
        if period.unix_ms < from_ms {
            before = Some(period);
        } else if period.unix_ms < to_ms {
            under_load.push(period);
        }
    }
    let last = under_load.pop();
    let every = under_load.len().div_ceil(BOOST_PERIODS_MAX).max(1);
    let mut kept: Vec<_> = before
        .into_iter()
        .chain(under_load.into_iter().skip(every - 1).step_by(every))
        .chain(last)
        .collect();
    // Two readings give what lies between them; that of a drawing's steps is not needed, and they are most of the text.
    if let [_, between @ .., _] = kept.as_mut_slice() {
        let guests = between.iter_mut().flat_map(|period| &mut period.guests);
        guests.for_each(|guest| guest.delays.clear());
    }
    kept
}

/// Unix time on the host's clock.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario;

    #[test]
    fn of_many_periods_the_last_before_the_load_a_choice_and_the_last_are_kept() {
        let period = |ms: u64, boosts: u64| {
            let guest = serde_json::json!({"guest": "lc", "vcpus": 1, "io_vcpus": 1, "ran": 1, "waited": 2, "served": 0, "balance_ns": -3, "borrowed": 4,
                "paid": 5, "lent": 6, "returned": 7, "boosts": boosts, "refused": 0, "tasks_seen": 0, "delays": [boosts, 0]});
            serde_json::json!({"wall": ms * 1_000_000, "boost": {"deaf_to": [], "guests": [guest]}})
                .to_string()
        };
        let without = serde_json::json!({"wall": 1_050_000_000_u64}).to_string();
        let mut text = vec![without];
        text.extend((0..310).map(|at| period(1000 + at * 10, at)));
        text.push("{\"wall\": 40".to_owned());
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text.join("\n")).expect("lines");
        let kept = boost_periods(file.path(), 1100, 4000);
        let boosts: Vec<_> = kept.iter().map(|p| p.guests[0].boosts).collect();
        assert_eq!(boosts[..4], [9, 14, 19, 24]);
        assert_eq!(boosts.last(), Some(&299), "the last under load");
        assert!(boosts.len() <= BOOST_PERIODS_MAX + 2);
        let told = |at: usize| !kept[at].guests[0].delays.is_empty();
        assert_eq!(
            (told(0), told(1), told(kept.len() - 1)),
            (true, false, true)
        );
        assert_eq!(kept[0].unix_ms, 1090);
        assert_eq!(boost_periods(Path::new("/nowhere"), 0, 1), []);
    }

    #[test]
    fn the_labs_facts_and_the_policys_wishes_are_put_together() {
        let text = "name = \"t\"\nsummary = \"\"\n[host]\ncores = 4\nmemory = \"2G\"\nunder_test = \"0-2\"\nclient = \"3\"\npnic_queues = 1\n\
            [[guest]]\nname = \"lc\"\nclass = \"latency-critical\"\nvcpus = 1\nmemory = \"256M\"\nworkload = \"nginx\"\nslo_p95 = \"5ms\"\n\
            [[policy]]\nname = \"p\"\nsteward.partition.policy = \"energy\"\nsteward.record.enabled = true\n";
        let scenario = scenario::parse(text, Path::new("t")).expect("a scenario");
        let program = Program::new(scenario, false);
        let mut config = facts(&program, "eth0", Path::new("/out"));
        let own = program.scenario.policies[0]
            .steward
            .clone()
            .expect("a steward");
        crate::scenario::merge(&mut config, &own);
        let text = config.to_string();
        for wanted in [
            "managed = \"0-2\"",
            "nics = [\"eth0\"]",
            "qmp = [\"/run/ostler-lab/qmp/*\"]",
            "[[guest]]\nclass = \"latency-critical\"\nname = \"lc\"\nslo = \"5000us\"",
            "policy = \"energy\"",
            "[record]\nenabled = true\npath = \"/out/record.db\"",
        ] {
            assert!(text.contains(wanted), "`{wanted}` is not in\n{text}");
        }
    }
}
