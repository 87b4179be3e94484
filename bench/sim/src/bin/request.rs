//! What a request takes of its guest's host, counted in runs: the sources of `crates/ostler-sim/src/costs/emulated.rs`, and what to hold a simulated run against.
//!
//! `wakes RUN...` reads runs of the lab that were traced (`ostler lab run bench/sim/request.toml --trace sched_switch,timer:hrtimer_expire_entry`). In each second of a load it counts the requests that were answered, how often the guest's
//! vCPUs and the workers of its queues were woken, which timers of guests' were due between ticks, and how long they ran, and finds what of that goes with a request, what with a wake-up and what with such a timer, which is a
//! thread of memcached's that looks after its lists: least squares, without a constant, since a second in which nothing is done takes nothing. Whoever is taken off its core by another isn't woken when it comes back.
//!
//! `softirqs RUN...` does the same for softirqs on cores of queues and the NIC's interrupts, which the steward's record has, and tells how many interrupts there were for an answer.
//!
//! `polls RUN...` tells what softirqs of a NIC take: to see what was sent, where vectors are a ring's own, for the first packet that was received and for each, and to wake somebody for it, least squares of all polls; and how long a core without threads takes from then on until it has who was woken: of runs that were traced
//! (`--trace sched_switch,sched_waking,net:net_dev_start_xmit,irq:irq_handler_entry,irq:irq_handler_exit,irq:softirq_entry,irq:softirq_exit`).
//!
//! `tails RUN...` tells what vCPUs and workers have left to do when they have told each other of a message, until they sleep, how long it takes a core that sleeps, or that a guest computes on, to switch to one that is woken, and how long vCPUs that took the core of who woke them are on it: medians of each rate, of runs that were traced
//! (`--trace sched_switch,sched_waking`).
//!
//! `stretches RUN...` tells what vCPUs and workers take from the switch to them until they sleep, by what woke them and what they did, for each policy and rate, of runs that were traced
//! (`--trace sched_switch,sched_waking,net:net_dev_start_xmit,kvm:kvm_msi_set_irq`); what interrupts took meanwhile is left out where `irq:irq_handler_entry,irq:irq_handler_exit,irq:softirq_entry,irq:softirq_exit` are traced, too.
//!
//! `batches RUN...` tells what a guest's only vCPU takes by how many requests it answers in a stretch in which nothing else happens, what its tick and other timers take that wake it, and what its worker takes for each message (`ostler lab run bench/sim/batches.toml`, traced as for `stretches`, with interrupts and softirqs).
//!
//! `client RUN...` says what the load generator's thread takes from one of its steps to the next, of runs in which its system calls were traced.
//!
//! `asks RUN...` tells what the guest's vCPUs take to answer the steward that asks its agent, by policy, of runs in which little else is asked of the guest
//! (`ostler lab run bench/sim/asks.toml --trace sched_switch,sched_waking`).
//!
//! `received RUN...` tells what a worker takes to have its guest receive: once, for each packet, to interrupt the guest, and to wake its vCPU, of runs traced as for `stretches`, with interrupts and softirqs.
//!
//! `events RUN... --beside RUN` finds what an event takes that is traced, one of an interrupt or a softirq and any other: instructions of functions that a run which isn't traced never has, of runs with profiles (`--profile`).
//!
//! `shares RUN...` tells where time of the cores of vCPUs and of queues goes, by policy and rate, of what the steward recorded: nobody is held up by being counted so, and simulated runs that were kept
//! (`ostler sim SCENARIO --events RUN/events.jsonl --records RUN/results`) are read likewise.
//!
//! `waits RUN...` tells how long the guest's vCPUs and workers waited for a core for an answer, of the same seconds, by policy, rate and round: of a run of the lab, or of a simulated one
//! that was kept like one (`ostler sim SCENARIO --events RUN/events.jsonl --records RUN/results`).
//!
//! `loads FILE...` reads the JSON lines of runs, of the lab's and of simulated ones, and tells the guest's CPU time with its workers for an answer, by policy, rate and round: of all seconds but
//! the first of each step.

#[path = "../asks.rs"]
mod asks;
#[path = "../batches.rs"]
mod batches;
#[path = "../cells.rs"]
mod cells;
#[path = "../client.rs"]
mod client;
#[path = "../fit.rs"]
mod fit;
#[path = "../overhead.rs"]
mod overhead;
#[path = "../polls.rs"]
mod polls;
#[path = "../received.rs"]
mod received;
#[path = "../runs.rs"]
mod runs;
#[path = "../shares.rs"]
mod shares;
#[path = "../stretches.rs"]
mod stretches;
#[path = "../tails.rs"]
mod tails;
#[path = "../timers.rs"]
mod timers;
#[path = "../traced.rs"]
mod traced;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use ostler_model::Ring;
use ostler_record::{Period, Reader, Wall};
use ostler_sim::costs::emulated;

use cells::{Taken, Told, Window, due, each_step, threads, told, whole};
use fit::{Fit, fit};
use overhead::Overhead;
use shares::Shares;
use tails::Kind;

#[derive(Parser)]
enum Args {
    /// What goes with a request and what with a wake-up, from traced runs of the lab.
    Wakes {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        /// Only of these policies' cells: where interrupts of queues come to vCPUs' cores, the kernel counts what they take as vCPUs' time.
        #[arg(long, value_delimiter = ',')]
        policies: Vec<String>,
    },
    /// What softirqs take with a request and what with an interrupt, from runs of the lab whose queues have cores of their own.
    Softirqs {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
    },
    /// What softirqs take for what was received and for what was sent, from traced runs of the lab.
    Polls {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        /// The host's NIC.
        #[arg(long, default_value = "eth0")]
        nic: String,
    },
    /// What is left to do once the next stage has been told, and how long a core that sleeps takes to begin, from traced runs of the lab.
    Tails {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
    },
    /// What vCPUs and workers take from the switch to them until they sleep, by what woke them and what they did, from traced runs of the lab.
    Stretches {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        /// The host's NIC.
        #[arg(long, default_value = "eth0")]
        nic: String,
        /// Kinds of which there were fewer are left out.
        #[arg(long, default_value_t = 50)]
        least: usize,
    },
    /// What a guest's only vCPU takes until it sleeps, by how many requests it answers, from traced runs of the lab.
    Batches {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        /// The host's NIC.
        #[arg(long, default_value = "eth0")]
        nic: String,
    },
    /// What the load generator's thread takes for what it does, from runs of the lab in which that was traced.
    Client {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
    },
    /// Where time of the cores of vCPUs and of queues goes, from what the steward of runs recorded.
    Shares {
        /// Their folders, with records.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
    },
    /// What a guest's vCPUs take to answer the steward, from traced runs of the lab in which little else is asked of it.
    Asks {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
    },
    /// What workers take to have their guest receive, from traced runs.
    Received {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
    },
    /// What a traced event takes, from runs of the lab that were traced and profiled.
    Events {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        /// Those that were profiled only.
        #[arg(long, required = true)]
        beside: Vec<PathBuf>,
    },
    /// How long the guest's threads waited for cores for an answer, from runs with a steward, of the lab or simulated.
    Waits {
        /// Their folders.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
    },
    /// CPU time for an answer by load.
    Loads {
        /// JSON lines of runs.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> Result<()> {
    match Args::parse() {
        Args::Wakes { runs, policies } => wakes(&runs, &policies),
        Args::Softirqs { runs } => softirqs(&runs),
        Args::Polls { runs, nic } => polls(&runs, &nic),
        Args::Tails { runs } => tails(&runs),
        Args::Stretches { runs, nic, least } => tell_stretches(&runs, &nic, least),
        Args::Batches { runs, nic } => tell_batches(&runs, &nic),
        Args::Client { runs } => clients(&runs),
        Args::Asks { runs } => tell_asks(&runs),
        Args::Received { runs } => tell_received(&runs),
        Args::Events { runs, beside } => tell_events(&runs, &beside),
        Args::Shares { runs } => tell_shares(&runs),
        Args::Waits { runs } => waits(&runs),
        Args::Loads { files } => loads(&files),
    }
}

/// What threads of a kind did in a second.
#[derive(Clone, Copy, Default)]
struct Did {
    wakes: f64,
    ran: f64,
}

/// A switch: when, on which core, from whom, whether that sleeps, and to whom.
fn switch(line: &str) -> Option<(f64, u32, u32, bool, u32)> {
    let (head, what) = line.split_once(": sched_switch: ")?;
    let (_, head) = head.split_once('[')?;
    let (cpu, head) = head.split_once(']')?;
    let at = head.split_whitespace().next_back()?;
    let after = |key: &str| {
        let (_, rest) = what.split_once(key)?;
        rest.split_whitespace().next()
    };
    let from = after("prev_pid=")?.parse().ok()?;
    let sleeps = after("prev_state=")?.starts_with('S');
    let to = after("next_pid=")?.parse().ok()?;
    Some((at.parse().ok()?, cpu.parse().ok()?, from, sleeps, to))
}

fn of(kind: Kind, did: &mut [Did; 2]) -> &mut Did {
    &mut did[usize::from(kind == Kind::Worker)]
}

/// What vCPUs and workers did in each of some seconds.
fn did(trace: &Path, threads: &HashMap<u32, Kind>, windows: &[Window]) -> Result<Vec<[Did; 2]>> {
    let mut all = vec![[Did::default(); 2]; windows.len()];
    let mut since: HashMap<u32, f64> = HashMap::new();
    let file = File::open(trace).with_context(|| format!("could not read {}", trace.display()))?;
    for line in BufReader::new(file).lines() {
        let Some((at, cpu, from, sleeps, _)) = switch(&line?) else {
            continue;
        };
        let begun = since.insert(cpu, at);
        let (Some(kind), Some(begun)) = (threads.get(&from), begun) else {
            continue;
        };
        for (window, did) in windows.iter().zip(&mut all) {
            let did = of(*kind, did);
            did.ran += (at.min(window.to) - begun.max(window.from)).max(0.0);
            // Who sleeps at the end was woken for what it did.
            did.wakes += f64::from(sleeps && (window.from..window.to).contains(&at));
        }
    }
    Ok(all)
}

/// What causes take, in words.
fn say<const N: usize>(fit: &Fit<N>, what: [&str; N], ns: f64, of: &str) -> String {
    let instructions = |s: f64| s * 1e9 / ns;
    let told = fit.each.iter().zip(what).map(|((each, error), what)| {
        let (each, error) = (instructions(*each), instructions(*error));
        format!("{each:.0} ± {error:.0} {what}")
    });
    let told: Vec<_> = told.collect();
    format!("instructions: {} ({of}, R2 {:.3})", told.join(", "), fit.r2)
}

/// What an instruction takes on the hosts of runs, which are of one kind, ns, and what traced events do.
fn host(runs: &[PathBuf]) -> Result<(f64, Overhead)> {
    let mut all = Vec::new();
    for run in runs {
        all.push(runs::Host::of(run)?);
    }
    let first = all.first().copied().context("no run is named")?;
    anyhow::ensure!(
        all.iter().all(|host| *host == first),
        "instructions take differently long on these runs' hosts, or some are simulated; name those of one kind"
    );
    let ns = first.instruction_ns;
    let overhead = if first.simulated {
        Overhead::default()
    } else {
        Overhead::of(ns)
    };
    Ok((ns, overhead))
}

/// Whether a period is of a second: by its middle.
fn within(period: &Period, window: &Window) -> bool {
    let snapshot = &period.snapshot;
    let middle = snapshot.at.as_secs_f64() - snapshot.interval.as_secs_f64() / 2.0;
    (window.from..window.to).contains(&middle)
}

fn tell_events(runs: &[PathBuf], beside: &[PathBuf]) -> Result<()> {
    let cells = |run: &PathBuf| -> Result<Vec<(PathBuf, f64)>> {
        let folder = |index: u32| run.join(format!("results/cell-{index}"));
        let told = told(&run.join("events.jsonl"))?.into_iter();
        let ends = |told: &Told| told.windows.last().map_or(0.0, |last| last.to);
        Ok(told
            .map(|told| (folder(told.cell.index), ends(&told)))
            .collect())
    };
    let mut plain = BTreeSet::new();
    for run in beside {
        for (cell, _) in cells(run)? {
            plain.extend(traced::profile(&cell.join("profile.tsv"))?.1.into_keys());
        }
    }
    let mut rows = Vec::new();
    for run in runs {
        for (cell, until) in cells(run)? {
            let profile = traced::profile(&cell.join("profile.tsv"))?;
            let trace = cell.join("trace.txt");
            let file = File::open(&trace)
                .with_context(|| format!("could not read {}", trace.display()))?;
            let more = traced::rows(BufReader::new(file), until, &profile, &plain);
            rows.extend(more.with_context(|| trace.display().to_string())?);
        }
    }
    let fit = fit(&rows).context(
        "events can't be told apart; name runs of which cores have different ones, and one that wasn't traced",
    )?;
    let names = ["an event of an interrupt or a softirq", "any other"];
    println!(
        "{}",
        say(&fit, names, 1e9, &format!("{} cores", rows.len()))
    );
    Ok(())
}

/// The periods of a cell, where a steward kept them.
fn periods(run: &Path, cell: u32) -> Result<Option<Vec<Period>>> {
    let record = run.join(format!("results/cell-{cell}/record.db"));
    if !record.exists() {
        return Ok(None);
    }
    let reader = Reader::open(&record)?;
    let all: Result<Vec<_>, _> = reader.range(Wall::MIN, Wall::MAX).collect();
    Ok(Some(all?))
}

/// A second of a load, as the record has it, of the cores of queues.
#[derive(Clone, Copy, Default)]
struct Served {
    /// Interrupts of the NIC's receive rings.
    received: f64,
    /// What softirqs took for them, s.
    softirqs: f64,
    /// Interrupts of all of the NIC's rings, and what these took themselves, s.
    all: f64,
    hard: f64,
}

/// `None` where queues had no cores of their own, or where the record lacks some of it.
fn served(periods: &[Period], window: &Window, ns: f64) -> Option<Served> {
    let mut sum = Served::default();
    let mut covered = 0.0;
    let mut before: Option<&Period> = None;
    for period in periods {
        // A snapshot is of the time in which the plan before it was in force.
        let plan = before.map(|before| &before.plan);
        before = Some(period);
        if !within(period, window) {
            continue;
        }
        let groups = &plan?.groups;
        if groups.shared || groups.nq.is_empty() {
            return None;
        }
        let snapshot = &period.snapshot;
        let irqs = || snapshot.nics.iter().flat_map(|nic| &nic.irqs);
        let received = irqs().filter(|irq| irq.ring == Ring::Receive);
        sum.received += received.map(|irq| irq.count).sum::<u64>() as f64;
        for cpu in snapshot.cpus.iter().filter(|c| groups.nq.contains(c.cpu)) {
            sum.softirqs += cpu.softirq.as_secs_f64();
            sum.hard += cpu.irq.as_secs_f64();
        }
        let own = irqs().filter(|irq| irq.affinity.is_subset(&groups.nq));
        sum.all += own.map(|irq| irq.count).sum::<u64>() as f64;
        // What was sent goes with answers, and can't be told apart from them by counts: it was counted by itself.
        let sent =
            irqs().filter(|irq| irq.ring == Ring::Transmit && irq.affinity.is_subset(&groups.nq));
        let sent: u64 = sent.map(|irq| irq.count).sum();
        sum.softirqs -= sent as f64 * emulated::SENT.nanos(ns).as_secs_f64();
        covered += snapshot.interval.as_secs_f64();
    }
    let whole = window.to - window.from;
    let share = whole / covered;
    (covered > 0.85 * whole).then_some(Served {
        received: sum.received * share,
        softirqs: sum.softirqs * share,
        all: sum.all * share,
        hard: sum.hard * share,
    })
}

fn softirqs(runs: &[PathBuf]) -> Result<()> {
    let (ns, _) = host(runs)?;
    let mut rows = Vec::new();
    let mut each: BTreeMap<(u64, String), (f64, f64, f64)> = BTreeMap::new();
    let (mut all, mut hard) = (0.0, 0.0);
    for run in runs {
        for told in told(&run.join("events.jsonl"))? {
            let Some(periods) = periods(run, told.cell.index)? else {
                continue;
            };
            for window in told.windows.iter().filter(|window| !window.first) {
                let Some(served) = served(&periods, window, ns) else {
                    continue;
                };
                let key = (whole(window.rate), told.cell.policy.clone());
                let sums = each.entry(key).or_default();
                *sums = (
                    sums.0 + window.answers,
                    sums.1 + served.received,
                    sums.2 + served.softirqs,
                );
                rows.push(([window.answers, served.received], served.softirqs));
                (all, hard) = (all + served.all, hard + served.hard);
            }
        }
    }
    for ((rate, policy), (answers, interrupts, time)) in &each {
        println!(
            "{rate}/s, {policy}: {:.2} interrupts and {:.0} us an answer",
            interrupts / answers,
            time * 1e6 / answers
        );
    }
    let fit = fit(&rows).context(
        "requests and interrupts can't be told apart; name runs whose queues have cores of their own",
    )?;
    println!(
        "{}",
        say(
            &fit,
            ["a request", "an interrupt"],
            ns,
            &format!("{} seconds", rows.len())
        )
    );
    println!(
        "{:.0} instructions an interrupt of any ring, before its softirq",
        hard * 1e9 / ns / all.max(1.0)
    );
    Ok(())
}

fn polls(runs: &[PathBuf], nic: &str) -> Result<()> {
    let (ns, overhead) = host(runs)?;
    let besides = polls::Besides {
        overhead,
        handler: emulated::HARDIRQ.nanos(ns).0 as f64 / 1e9,
    };
    let (mut rows, mut leaves) = (Vec::new(), Vec::new());
    for run in runs {
        for told in told(&run.join("events.jsonl"))? {
            let trace = run.join(format!("results/cell-{}/trace.txt", told.cell.index));
            let file = File::open(&trace)
                .with_context(|| format!("could not read {}", trace.display()))?;
            let polls = polls::polled(BufReader::new(file).lines(), nic, besides)?;
            rows.extend(polls.rows);
            leaves.extend(polls.leaves);
        }
    }
    for (packets, count, mean) in polls::by_packets(&rows) {
        println!(
            "{count} polls of {packets} packets: {:.0} instructions",
            mean * 1e9 / ns
        );
    }
    let fit = fit(&rows).context("polls can't be told apart; name runs with all of the events")?;
    let names = ["what was sent", "a first packet", "a packet", "a waking"];
    println!("{}", say(&fit, names, ns, &format!("{} polls", rows.len())));
    println!(
        "{:.0} instructions from the end of one that woke somebody on a core without threads to the switch, mean of {}",
        leaves.iter().sum::<f64>() / leaves.len() as f64 * 1e9 / ns,
        leaves.len()
    );
    Ok(())
}

fn tell_received(runs: &[PathBuf]) -> Result<()> {
    let (ns, overhead) = host(runs)?;
    let mut rows = Vec::new();
    each_step(runs, |_, threads, lines, within| {
        rows.extend(received::received(lines, threads, &within, overhead)?);
        Ok(())
    })?;
    let fit = fit(&rows).context("packets and interrupts can't be told apart; name runs with all of the events, and queues that have cores of their own")?;
    let names = [
        "once",
        "a packet",
        "to interrupt the guest",
        "to wake its vCPU",
        "to come into an interrupt and back",
    ];
    let of = format!("{} stretches", rows.len());
    println!("{}", say(&fit, names, ns, &of));
    Ok(())
}

fn tails(runs: &[PathBuf]) -> Result<()> {
    let (ns, _) = host(runs)?;
    let mut any = false;
    each_step(runs, |which, threads, lines, within| {
        let mut all = tails::tails(lines, threads, &within)?;
        for (what, times) in [
            ("from a vCPU's doorbell to its sleep", &mut all.vcpu),
            ("from a worker's interrupt to its sleep", &mut all.worker),
            (
                "from a wake-up on a core that sleeps to the switch",
                &mut all.idle,
            ),
            (
                "from a wake-up on a core of which a guest that computes is stopped to the switch",
                &mut all.stops,
            ),
            ("from taking a waker's core to its sleep", &mut all.held),
        ] {
            if let Some((median, mean, count)) = tails::middle(times) {
                any = true;
                println!(
                    "{which}: {what}: median {:.0} instructions, mean {:.0}, of {count}",
                    median * 1e9 / ns,
                    mean * 1e9 / ns,
                );
            }
        }
        Ok(())
    })?;
    anyhow::ensure!(
        any,
        "no cell of these runs has wake-ups of a guest's threads; name runs that were traced with `--trace sched_switch,sched_waking`"
    );
    Ok(())
}

fn tell_stretches(runs: &[PathBuf], nic: &str, least: usize) -> Result<()> {
    let (ns, overhead) = host(runs)?;
    let mut any = false;
    each_step(runs, |which, threads, lines, within| {
        for (pattern, mut before) in stretches::stretches(lines, threads, nic, &within, overhead)? {
            let count = before.first().map_or(0, Vec::len);
            if count < least {
                continue;
            }
            any = true;
            let mut whole: Vec<f64> = (0..count)
                .map(|nth| before.iter().map(|times| times[nth]).sum())
                .collect();
            let whole = tails::middle(&mut whole).map_or(0.0, |(median, ..)| median);
            let each = before.iter_mut().filter_map(|times| tails::middle(times));
            let (medians, means): (Vec<_>, Vec<_>) = each
                .map(|(median, mean, _)| {
                    let instructions = |s: f64| format!("{:.0}", s * 1e9 / ns);
                    (instructions(median), instructions(mean))
                })
                .unzip();
            println!(
                "{which}: {pattern}: medians {} instructions ({:.0} of all), means {}, of {count}",
                medians.join(" + "),
                whole * 1e9 / ns,
                means.join(" + ")
            );
        }
        Ok(())
    })?;
    anyhow::ensure!(
        any,
        "no cell of these runs has {least} stretches of a kind; name runs that were traced with `--trace sched_switch,sched_waking,net:net_dev_start_xmit`, or ask for fewer by `--least`"
    );
    Ok(())
}

fn tell_batches(runs: &[PathBuf], nic: &str) -> Result<()> {
    let (ns, overhead) = host(runs)?;
    let mut all = Vec::new();
    each_step(runs, |which, threads, lines, within| {
        let found = batches::batches(lines, threads, nic, &within, overhead)?;
        batches::say(which, &found, ns);
        all.extend(found);
        Ok(())
    })?;
    anyhow::ensure!(
        batches::explain(&all).is_some(),
        "too little is sent to tell what a message takes; name runs of `bench/sim/batches.toml` that were traced as for `stretches`"
    );
    batches::say("all", &all, ns);
    Ok(())
}

fn tell_shares(runs: &[PathBuf]) -> Result<()> {
    let mut any = false;
    for run in runs {
        for told in told(&run.join("events.jsonl"))? {
            let record = run.join(format!("results/cell-{}/record.db", told.cell.index));
            if !record.exists() {
                // There was no steward.
                continue;
            }
            any = true;
            let steps = told
                .windows
                .chunk_by(|one, next| !next.first && whole(one.rate) == whole(next.rate));
            for step in steps {
                let shares = Shares::of(&record, &told.cell.guest, step)?;
                let (policy, rate) = (&told.cell.policy, step[0].rate);
                print!("{}, {policy}, {rate} a second:\n{shares}", run.display());
            }
        }
    }
    anyhow::ensure!(
        any,
        "no cell has a record; name runs with a steward, simulated ones that were kept with `--records`"
    );
    Ok(())
}

fn clients(runs: &[PathBuf]) -> Result<()> {
    let (ns, overhead) = host(runs)?;
    let (mut all, mut late) = (client::Took::new(), Vec::new());
    for run in runs {
        for told in told(&run.join("events.jsonl"))? {
            let trace = run.join(format!("results/cell-{}/trace.txt", told.cell.index));
            let file = File::open(&trace).with_context(|| {
                format!(
                    "could not read {}; name runs that were traced (`ostler lab run SCENARIO --trace {}`)",
                    trace.display(),
                    client::EVENTS
                )
            })?;
            let (took, slept) = client::took(BufReader::new(file).lines(), &due(&told)?, overhead)?;
            for (which, times) in took {
                all.entry(which).or_default().extend(times);
            }
            late.extend(slept);
        }
    }
    // Those that are hardly there are what a trace breaks off in.
    for ((from, to), times) in all.iter().filter(|(_, times)| times.len() >= 10) {
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        println!(
            "client: from {from} until {to}: {:.0} instructions, mean of {}",
            mean * 1e9 / ns,
            times.len()
        );
    }
    if let Some((median, mean, count)) = tails::middle(&mut late) {
        println!(
            "client: from when a request is due while it sleeps to the switch: median {:.0} instructions, mean {:.0}, of {count}",
            median * 1e9 / ns,
            mean * 1e9 / ns
        );
    }
    Ok(())
}

fn tell_asks(runs: &[PathBuf]) -> Result<()> {
    let (ns, overhead) = host(runs)?;
    let mut all = Vec::new();
    each_step(runs, |which, threads, lines, within| {
        let took = asks::asks(lines, threads, &within, overhead.event)?;
        asks::say(which, &took, ns);
        all.extend(took);
        Ok(())
    })?;
    anyhow::ensure!(
        !all.is_empty(),
        "nobody asked anything; name runs with a steward that were traced with `--trace sched_switch,sched_waking`"
    );
    asks::say("all", &all, ns);
    Ok(())
}

/// How long a guest's vCPUs and its workers waited for cores in a second.
fn waited(periods: &[Period], guest: &str, window: &Window) -> Option<(f64, f64)> {
    let (mut vcpus, mut workers, mut covered) = (0.0, 0.0, 0.0);
    for period in periods.iter().filter(|period| within(period, window)) {
        let snapshot = &period.snapshot;
        let found = snapshot.guests.iter().find(|found| found.name == guest)?;
        let seconds = |wait: ostler_model::Nanos| wait.as_secs_f64();
        let of = found.vcpus.iter().map(|vcpu| seconds(vcpu.usage.wait));
        vcpus += of.sum::<f64>();
        let of = found.vhost.iter().map(|vhost| seconds(vhost.usage.wait));
        workers += of.sum::<f64>();
        covered += seconds(snapshot.interval);
    }
    let whole = window.to - window.from;
    (covered > 0.85 * whole).then_some((vcpus * whole / covered, workers * whole / covered))
}

fn waits(runs: &[PathBuf]) -> Result<()> {
    for run in runs {
        let mut each: BTreeMap<(String, u64, u32), (f64, f64, f64)> = BTreeMap::new();
        for told in told(&run.join("events.jsonl"))? {
            let Some(periods) = periods(run, told.cell.index)? else {
                continue;
            };
            for window in told.windows.iter().filter(|window| !window.first) {
                let Some((vcpus, workers)) = waited(&periods, &told.cell.guest, window) else {
                    continue;
                };
                let key = (
                    told.cell.policy.clone(),
                    whole(window.rate),
                    told.cell.round + 1,
                );
                let sums = each.entry(key).or_default();
                *sums = (sums.0 + window.answers, sums.1 + vcpus, sums.2 + workers);
            }
        }
        println!("{}", run.display());
        for ((policy, rate, round), (answers, vcpus, workers)) in each {
            println!(
                "{policy}, {rate}/s, round {round}: vCPUs waited {:.2} ms, workers {:.2} ms an answer",
                vcpus * 1e3 / answers,
                workers * 1e3 / answers
            );
        }
    }
    Ok(())
}

fn wakes(runs: &[PathBuf], policies: &[String]) -> Result<()> {
    let (mut vcpu_rows, mut worker_rows) = (Vec::new(), Vec::new());
    let (ns, _) = host(runs)?;
    println!(
        "run / cell / policy, second: rate, answers; vCPUs: wake-ups, timers, ms; workers: wake-ups, ms"
    );
    for run in runs {
        for told in told(&run.join("events.jsonl"))? {
            if !policies.is_empty() && !policies.contains(&told.cell.policy) {
                continue;
            }
            let cell = run.join(format!("results/cell-{}", told.cell.index));
            let threads = threads(&cell.join("record.db"), &told.cell.guest)?;
            let trace = cell.join("trace.txt");
            let did = did(&trace, &threads, &told.windows)?;
            let file = File::open(&trace)
                .with_context(|| format!("could not read {}", trace.display()))?;
            let timers = timers::between_ticks(BufReader::new(file).lines())?;
            for (second, (window, did)) in told.windows.iter().zip(&did).enumerate() {
                let [vcpus, workers] = *did;
                let in_it = |at: &&f64| (window.from..window.to).contains(*at);
                let timers = timers.iter().filter(in_it).count() as f64;
                println!(
                    "{} / {} / {}, {second}: {}, {}; {}, {timers}, {:.1}; {}, {:.1}",
                    run.display(),
                    told.cell.index,
                    told.cell.policy,
                    window.rate,
                    window.answers,
                    vcpus.wakes,
                    vcpus.ran * 1e3,
                    workers.wakes,
                    workers.ran * 1e3,
                );
                vcpu_rows.push(([window.answers, vcpus.wakes, timers], vcpus.ran));
                worker_rows.push(([window.answers, workers.wakes], workers.ran));
            }
        }
    }
    let found = fit(&vcpu_rows).context(
        "vCPUs: requests, wake-ups and timers can't be told apart; name runs of several rates, traced with `timer:hrtimer_expire_entry`",
    )?;
    let what = ["a request", "a wake-up", "a timer between ticks"];
    println!(
        "vCPUs: {}",
        say(&found, what, ns, &format!("{} seconds", vcpu_rows.len()))
    );
    let found = fit(&worker_rows).context(
        "workers: requests and wake-ups can't be told apart; name runs of several rates",
    )?;
    let what = ["a request", "a wake-up"];
    println!(
        "workers: {}",
        say(&found, what, ns, &format!("{} seconds", worker_rows.len()))
    );
    Ok(())
}

/// CPU time of a guest in a second, of samples that were taken at other times.
fn cpu(samples: &[Taken], guest: &str, window: &Window) -> Option<f64> {
    let mut sum = 0.0;
    let mut covered = 0.0;
    for two in samples.windows(2) {
        let (from, to) = (two[0].0, two[1].0);
        let both = to.min(window.to) - from.max(window.from);
        if both > 0.0 {
            sum += two[1].1.get(guest)? * both / (to - from);
            covered += both;
        }
    }
    (covered > 0.99 * (window.to - window.from)).then_some(sum)
}

fn loads(files: &[PathBuf]) -> Result<()> {
    for file in files {
        let mut all: BTreeMap<(String, u64, u32), (f64, f64)> = BTreeMap::new();
        for told in told(file)? {
            for window in told.windows.iter().filter(|window| !window.first) {
                if let Some(time) = cpu(&told.samples, &told.cell.guest, window) {
                    let policy = told.cell.policy.clone();
                    let key = (policy, whole(window.rate), told.cell.round + 1);
                    let sums = all.entry(key).or_default();
                    sums.0 += time;
                    sums.1 += window.answers;
                }
            }
        }
        println!("{}", file.display());
        for ((policy, rate, round), (time, answers)) in all {
            println!(
                "{policy}, {rate}/s, round {round}: {:.2} ms an answer",
                time * 1e3 / answers
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second's.
    fn window(from: f64) -> Window {
        Window {
            from,
            to: from + 1.0,
            rate: 1.0,
            answers: 1.0,
            first: false,
        }
    }

    #[test]
    fn switches_are_read_and_only_whoever_sleeps_was_woken() {
        let line = "       CPU 0/KVM-214     [003] d..2.    57.091136: sched_switch: prev_comm=CPU 0/KVM prev_pid=214 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120";
        assert_eq!(switch(line), Some((57.091_136, 3, 214, true, 0)));
        let taken = line.replace("prev_state=S", "prev_state=R+");
        assert_eq!(switch(&taken), Some((57.091_136, 3, 214, false, 0)));
        assert_eq!(switch("# tracer: nop"), None);

        let folder = std::env::temp_dir().join(format!("bench-request-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let text = "\
            <idle>-0 [000] d..2. 10.100000: sched_switch: prev_comm=a prev_pid=0 prev_prio=1 prev_state=R ==> next_comm=v next_pid=7 next_prio=1\n\
            v-7 [000] d..2. 10.300000: sched_switch: prev_comm=v prev_pid=7 prev_prio=1 prev_state=R ==> next_comm=w next_pid=8 next_prio=1\n\
            w-8 [000] d..2. 10.400000: sched_switch: prev_comm=w prev_pid=8 prev_prio=1 prev_state=S ==> next_comm=v next_pid=7 next_prio=1\n\
            v-7 [000] d..2. 11.100000: sched_switch: prev_comm=v prev_pid=7 prev_prio=1 prev_state=S ==> next_comm=a next_pid=0 next_prio=1\n";
        let trace = folder.join("trace.txt");
        std::fs::write(&trace, text).expect("a trace");
        let threads = HashMap::from([(7, Kind::Vcpu), (8, Kind::Worker)]);
        let did = did(&trace, &threads, &[window(10.0), window(11.0)]).expect("a trace");
        let told: Vec<_> = did
            .iter()
            .flatten()
            .map(|did| (did.wakes, (did.ran * 10.0).round()))
            .collect();
        // The vCPU's 0.2 s and 0.6, then 0.1; the worker's 0.1.
        assert_eq!(told, [(0.0, 8.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0)]);
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn samples_are_shared_out_over_seconds() {
        let sample = |at: f64, cpu: f64| (at, BTreeMap::from([("g".to_owned(), cpu)]));
        let samples = [sample(0.5, 9.0), sample(1.5, 1.0), sample(2.5, 2.0)];
        assert_eq!(cpu(&samples, "g", &window(1.0)), Some(1.5));
        assert_eq!(cpu(&samples, "g", &window(2.0)), None, "not all of it");
        assert_eq!(cpu(&samples, "h", &window(1.0)), None);
    }
}
