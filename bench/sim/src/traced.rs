//! What an event takes that is traced, of profiles: the machine counts the instructions of each function (`ostler lab run --profile`), and those of the tracer's own are in no run that isn't traced.
//!
//! What a core is busier by tells less: the busier it is the more comes together in its polls, and it does less besides.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::fit::Row;
use super::overhead::{is_short, told};

/// Instructions by function, on each core under test.
pub type Profile = BTreeMap<String, Vec<f64>>;

/// A cell's `profile.tsv`, and which cores its figures are of.
pub fn profile(file: &Path) -> Result<(Vec<u32>, Profile)> {
    let text = std::fs::read_to_string(file).with_context(|| {
        format!(
            "could not read {}; name runs with a profile (`ostler lab run SCENARIO --profile`)",
            file.display()
        )
    })?;
    parse(&text).with_context(|| format!("{} is no profile", file.display()))
}

fn parse(text: &str) -> Result<(Vec<u32>, Profile)> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or("").split('\t').collect();
    let column = |wanted: &str| names.iter().position(|name| *name == wanted);
    let function = column("function").context("it names no functions")?;
    let of_core =
        |(at, name): (usize, &&str)| Some((at, name.strip_prefix("core_")?.parse().ok()?));
    let cores: Vec<(usize, u32)> = names.iter().enumerate().filter_map(of_core).collect();
    ensure!(!cores.is_empty(), "it tells no core apart");
    let mut profile = Profile::new();
    for (line, number) in lines.zip(2..) {
        let words: Vec<&str> = line.split('\t').collect();
        let count = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok());
        let counts: Option<Vec<f64>> = cores.iter().map(|(at, _)| count(*at)).collect();
        let row = words.get(function).zip(counts);
        let (name, counts) = row.with_context(|| format!("line {number}: {line}"))?;
        // A function of a module and one of the kernel may have one name.
        let all = profile
            .entry((*name).to_owned())
            .or_insert_with(|| vec![0.0; cores.len()]);
        for (sum, more) in all.iter_mut().zip(counts) {
            *sum += more;
        }
    }
    Ok((cores.into_iter().map(|(_, core)| core).collect(), profile))
}

/// What each core's events took, instructions: events of interrupts and softirqs, others, and what the functions took that no untraced run has.
pub fn rows(
    trace: impl BufRead,
    until: f64,
    (cores, traced): &(Vec<u32>, Profile),
    plain: &BTreeSet<String>,
) -> Result<Vec<Row<2>>> {
    // Short ones and others, by core.
    let mut counts: BTreeMap<u32, [f64; 2]> = BTreeMap::new();
    for line in trace.lines() {
        let line = line?;
        if let Some(kept) = line.strip_prefix("# entries-in-buffer/entries-written: ") {
            let counts = kept
                .split_whitespace()
                .next()
                .and_then(|counts| counts.split_once('/'));
            let whole = counts.is_some_and(|(kept, written)| kept == written);
            ensure!(
                whole,
                "the trace has lost events; name a run with less in it"
            );
        }
        if let Some((_, core, event, _)) = told(&line).filter(|(at, ..)| *at <= until) {
            counts.entry(core).or_default()[usize::from(!is_short(event))] += 1.0;
        }
    }
    let tell = |(at, core): (usize, &u32)| {
        let own = traced.iter().filter(|(name, _)| !plain.contains(*name));
        let took = own.map(|(_, counts)| counts[at]).sum();
        (counts.get(core).copied().unwrap_or_default(), took)
    };
    Ok(cores.iter().enumerate().map(tell).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "instructions\tshare\ton_other_cores\tcore_1\tcore_4\tfunction\tmodule\n\
        50\t0.5\t8\t30\t20\tschedule\n\
        30\t0.3\t0\t10\t20\trb_commit\n\
        9\t0.1\t0\t4\t5\trb_commit\t[other]\n";
    const TRACE: &str = "# entries-in-buffer/entries-written: 4/4   #P:2
            <idle>-0 [001] d.h1. 10.000100: irq_handler_entry: irq=30 name=eth0-tx-1
            <idle>-0 [001] d.h1. 10.000150: irq_handler_exit: irq=30 ret=handled
            <idle>-0 [004] d..2. 10.000200: sched_switch: prev_comm=a prev_pid=1 prev_state=S ==> next_comm=b next_pid=2
            <idle>-0 [004] d..2. 11.000200: sched_switch: prev_comm=a prev_pid=1 prev_state=S ==> next_comm=b next_pid=2";

    #[test]
    fn events_are_told_with_what_the_tracers_functions_took() {
        let told = parse(PROFILE).expect("a profile");
        assert_eq!(told.0, [1, 4]);
        let plain = BTreeSet::from(["schedule".to_owned()]);
        let rows = rows(TRACE.as_bytes(), 10.5, &told, &plain).expect("a trace");
        assert_eq!(rows, [([2.0, 0.0], 14.0), ([0.0, 1.0], 25.0)]);
    }

    #[test]
    fn what_lacks_something_is_refused() {
        let told = parse(PROFILE).expect("a profile");
        let lost = TRACE.replace("4/4", "4/9");
        let error = rows(lost.as_bytes(), 11.0, &told, &BTreeSet::new()).expect_err("lost");
        assert!(error.to_string().contains("lost events"), "{error}");
        for (text, said) in [
            ("", "no functions"),
            ("instructions\tfunction", "no core"),
            ("core_1\tfunction\nmany\tschedule", "line 2"),
            ("core_1\tfunction\n7", "line 2"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
