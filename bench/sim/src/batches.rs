//! What a request costs that comes with others: stretches of a guest's only vCPU by what they have in them, and those of its worker.
//!
//! One vCPU receives, answers and sends. Its only thread of memcached's that answers sleeps when nothing is left to answer, and so does the vCPU then. So of a stretch that one interrupt for what was received has woken, in which
//! the worker is told once and in which no other interrupt comes, all that is there once is the vCPU's wake-up, the thread's and the doorbell, however many requests are answered: what each has more is the request's own.
//!
//! A worker's takes so much for being woken, for each message that it sends, and for each vCPU that it wakes: least absolute deviations ([`super::fit::steady`]).
//!
//! Where nothing but a timer wakes the vCPU, that is its tick, or one that somebody set: a tick comes at the same place in each [`TICK`], where most of them are.

use std::collections::HashMap;

use anyhow::{Result, ensure};

use super::cells::whole;
use super::fit::{Row, steady};
use super::overhead::Overhead;
use super::stretches::{Step, Stretch, each};
use super::tails::{Kind, middle};

/// Between a guest's ticks, s (kernel/Kconfig.hz: HZ=250, Debian's).
const TICK: f64 = 0.004;
/// Parts of it that are told apart.
const PARTS: u64 = 40;
/// What a trace's times are rounded by, s.
const ROUNDED: f64 = 1e-6;

/// A stretch of a vCPU's or a worker's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    pub worker: bool,
    /// A timer has woken it, at this time.
    pub timer: Option<f64>,
    /// Interrupts of the guest for what was received, and for what was sent.
    pub rings: (u32, u32),
    /// Requests that are answered.
    pub answers: u32,
    /// How often it has woken the other kind.
    pub told: u32,
    /// From the switch until it sleeps, s.
    pub took: f64,
}

impl Batch {
    fn new(stretch: &Stretch) -> Batch {
        let count = |of: Step| {
            let steps = stretch.steps.iter().filter(|(step, _)| *step == of);
            u32::try_from(steps.count()).unwrap_or(u32::MAX)
        };
        let (answers, told) = if stretch.worker {
            (count(Step::Transmits), count(Step::Vcpu))
        } else {
            (stretch.answers, count(Step::Worker))
        };
        Batch {
            worker: stretch.worker,
            timer: (stretch.woken == Step::Interrupt).then_some(stretch.woken_at),
            rings: stretch.rings,
            answers,
            told,
            took: stretch.steps.iter().map(|(_, before)| before).sum(),
        }
    }

    /// Whether it is a worker's that a vCPU woke to send.
    fn sends(&self) -> bool {
        self.worker && self.timer.is_none() && self.answers > 0
    }
}

/// Those that begin within a time; `event` is what a traced event takes, s.
pub fn batches(
    lines: impl Iterator<Item = std::io::Result<String>>,
    threads: &HashMap<u32, Kind>,
    nic: &str,
    within: &std::ops::Range<f64>,
    overhead: Overhead,
) -> Result<Vec<Batch>> {
    let vcpus = threads.values().filter(|kind| **kind == Kind::Vcpu).count();
    ensure!(
        vcpus == 1,
        "the guest has {vcpus} vCPUs, and whose an answer is can be told of one alone; name runs of `bench/sim/batches.toml`"
    );
    let mut all = Vec::new();
    each(lines, threads, nic, within, overhead, |stretch| {
        all.push(Batch::new(&stretch));
    })?;
    Ok(all)
}

/// What goes with a worker's stretch that a vCPU has woken to send, with a message that it sends, and with a vCPU that it wakes, s; `None` where these can't be told apart.
pub fn explain(all: &[Batch]) -> Option<[f64; 3]> {
    let count = f64::from;
    let rows: Vec<Row<3>> = all
        .iter()
        .filter(|batch| batch.sends())
        .map(|batch| ([1.0, count(batch.answers), count(batch.told)], batch.took))
        .collect();
    steady(&rows, ROUNDED)
}

/// How long the vCPU's took that answered so many requests and in which nothing else happened, s.
pub fn answered(all: &[Batch], answers: u32) -> Vec<f64> {
    let alone = all.iter().filter(|batch| {
        !batch.worker && batch.timer.is_none() && batch.rings == (1, 0) && batch.told == 1
    });
    let of = alone.filter(|batch| batch.answers == answers);
    of.map(|batch| batch.took).collect()
}

/// How long vCPUs took that a timer woke and that did nothing else, s: their ticks, and others.
pub fn timers(all: &[Batch]) -> [Vec<f64>; 2] {
    let alone = all.iter().filter(|batch| {
        !batch.worker && batch.answers == 0 && batch.told == 0 && batch.rings == (0, 0)
    });
    let alone: Vec<(u64, f64)> = alone
        .filter_map(|batch| {
            let part = batch.timer?.rem_euclid(TICK) / TICK * PARTS as f64;
            Some((whole(part) % PARTS, batch.took))
        })
        .collect();
    let of_part = |part| alone.iter().filter(|(other, _)| *other == part).count();
    let ticks = (0..PARTS).max_by_key(|part| of_part(*part)).unwrap_or(0);
    let mut told = [Vec::new(), Vec::new()];
    for (part, took) in &alone {
        // What holds a tick up is among them.
        let after = (part + PARTS - ticks) % PARTS;
        told[usize::from(after > 1 && after < PARTS - 1)].push(*took);
    }
    told
}

/// How long the vCPU's take by how much they answer, and how long those that a timer wakes; an instruction takes `ns`.
pub fn say(which: &str, all: &[Batch], ns: f64) {
    let instructions = |s: f64| s * 1e9 / ns;
    let say = |what: &str, mut times: Vec<f64>| {
        if let Some((median, mean, count)) = middle(&mut times) {
            let (median, mean) = (instructions(median), instructions(mean));
            println!(
                "{which}: {what}: median {median:.0} instructions, mean {mean:.0}, of {count}"
            );
        }
    };
    for answers in 1..=all.iter().map(|batch| batch.answers).max().unwrap_or(0) {
        say(
            &format!("the vCPU answers {answers}"),
            answered(all, answers),
        );
    }
    let [ticks, others] = timers(all);
    say("its tick wakes the vCPU", ticks);
    say("another timer wakes the vCPU", others);
    if let Some(told) = explain(all) {
        let [once, message, vcpu] = told.map(instructions);
        let sends = all.iter().filter(|batch| batch.sends()).count();
        println!(
            "{which}: the worker: {once:.0} instructions where the vCPU wakes it, {message:.0} a message that it sends, {vcpu:.0} where it wakes the vCPU ({sends} stretches)"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ostler_sim::costs::Cost;
    use ostler_sim::costs::emulated::{
        MISSED_TICK, REQUEST, TICK as TICK_WOKEN, UPKEEP, VCPU_WAKE, VHOST_DONE, VHOST_FLUSH,
        VHOST_RX, VHOST_SENT, VHOST_TELL, VHOST_TELL_WAKES, VHOST_TX, VHOST_WAKE,
    };
    use ostler_sim::run::{Meanwhile, Run, Watch};
    use ostler_sim::scenario;

    use super::super::fit::fit;
    use super::super::received::received;
    use super::*;

    fn batch(
        worker: bool,
        timer: Option<f64>,
        answers: u32,
        told: u32,
        rings: (u32, u32),
    ) -> Batch {
        let count = f64::from;
        let took = if worker {
            7.0 + 8.0 * count(answers) + 2.0 * count(told)
        } else {
            35.0 + 18.0 * count(answers) + 12.0 * count(rings.0 + rings.1)
        };
        Batch {
            worker,
            timer,
            rings,
            answers,
            told,
            took: took * 1e-5,
        }
    }

    /// Stretches of a worker, of which each fourth has something in it that nobody sees.
    #[test]
    fn causes_are_told_apart_whatever_comes_into_a_quarter_of_stretches() {
        let mut all = Vec::new();
        for nth in 0..400_u32 {
            let mut one = batch(true, None, 1 + nth % 5, u32::from(nth % 3 > 0), (0, 0));
            if nth % 4 == 0 {
                one.took += 1e-4;
            }
            all.push(one);
            // None of these was woken to send.
            all.push(batch(true, Some(1.0), 1, 1, (0, 0)));
            all.push(batch(true, None, 0, 1, (0, 0)));
            all.push(batch(false, None, 1, 1, (1, 0)));
        }
        let told = explain(&all).expect("all kinds");
        for (found, wanted) in told.into_iter().zip([7.0, 8.0, 2.0]) {
            assert!((found * 1e5 - wanted).abs() < 0.05, "{told:?}");
        }
        assert_eq!(explain(&all[..4]), None, "too few");
    }

    #[test]
    fn only_stretches_in_which_nothing_else_happens_tell_what_answers_take() {
        let mut all = vec![
            batch(false, None, 2, 1, (1, 0)),
            batch(false, None, 2, 1, (2, 0)),
            batch(false, None, 2, 1, (1, 1)),
            batch(false, None, 2, 2, (1, 0)),
            batch(false, Some(1.0), 2, 1, (1, 0)),
            batch(true, None, 2, 1, (1, 0)),
        ];
        let found = answered(&all, 2);
        assert_eq!(found, [83.0 * 1e-5]);
        all.clear();
        assert!(answered(&all, 2).is_empty());
    }

    #[test]
    fn ticks_are_where_most_timers_are() {
        let tick = |nth: u32| batch(false, Some(0.0007 + f64::from(nth) * TICK), 0, 0, (0, 0));
        let mut all: Vec<Batch> = (0..20).map(tick).collect();
        all.extend((0..12).map(|nth| batch(false, Some(0.00215 * f64::from(nth)), 0, 0, (0, 0))));
        // One that does more than that is none of either.
        all.push(batch(false, Some(0.0007), 1, 1, (0, 0)));
        let [ticks, others] = timers(&all);
        assert!((20..23).contains(&ticks.len()), "{}", ticks.len());
        assert_eq!(ticks.len() + others.len(), 32);
    }

    /// What a simulated host of the lab's kind takes is what is counted in its trace: the same that was put in, by the way that the lab's were found.
    #[test]
    fn what_goes_into_a_simulated_host_comes_out_of_its_trace() {
        let text = include_str!("../batches.toml");
        let scenario = scenario::parse(text, Path::new("batches.toml")).expect("a scenario");
        let watch = Watch {
            trace: true,
            ..Watch::default()
        };
        let run = Run::new(scenario, 1, watch).expect("a run");
        let mut trace = String::new();
        run.cell(&run.cells()[0], &mut |what| {
            if let Meanwhile::Trace(more) = what {
                trace.push_str(&more);
            }
        })
        .expect("a cell");
        // Cores have threads of their own, then comes the guest's vCPU and its worker.
        let threads = HashMap::from([(8, Kind::Vcpu), (9, Kind::Worker)]);
        let lines = trace.lines().map(|line| Ok(line.trim().to_owned()));
        // After it settled, while 200 to 900 requests a second come.
        let all =
            batches(lines, &threads, "eth0", &(2.0..11.0), Overhead::default()).expect("a trace");
        // Ten nanoseconds an instruction.
        let instructions = |s: f64| s * 1e8;
        let near = |what: &str, found: f64, wanted: &[Cost], within: f64| {
            let wanted: f64 = wanted.iter().map(|cost| cost.value).sum();
            let found = instructions(found);
            assert!(
                (found / wanted - 1.0).abs() < within,
                "{what}: {found} for {wanted}"
            );
        };
        let [once, message, told] = explain(&all).expect("it sends");
        let alone = [
            VHOST_WAKE,
            VHOST_TX,
            VHOST_SENT,
            VHOST_FLUSH,
            VHOST_DONE,
            VHOST_TELL,
        ];
        near("a message alone", once + message, &alone, 0.03);
        // One more leaves with it, or alone.
        let (with, by_itself) = (VHOST_TX.value + VHOST_SENT.value, VHOST_FLUSH.value);
        let more = instructions(message);
        assert!((with..with + by_itself).contains(&more), "{more} more");
        let wakes = [&alone[..], &[VHOST_TELL_WAKES]].concat();
        near("one that wakes", once + message + told, &wakes, 0.03);
        // And what it receives, to a few hundred instructions.
        let lines = trace.lines().map(|line| Ok(line.trim().to_owned()));
        let rows = received(lines, &threads, &(2.0..11.0), Overhead::default()).expect("a trace");
        let found = fit(&rows).expect("all kinds").each;
        let each = [VHOST_WAKE, VHOST_RX, VHOST_TELL, VHOST_TELL_WAKES];
        for ((found, _), cost) in found.iter().zip(each) {
            let found = instructions(*found);
            assert!((found - cost.value).abs() < 250.0, "{cost:?}: {found}");
        }
        let median = |mut times: Vec<f64>| middle(&mut times).expect("some").0;
        near(
            "a request",
            median(answered(&all, 1)),
            &[VCPU_WAKE, REQUEST],
            0.03,
        );
        let [ticks, others] = timers(&all);
        near("a tick", median(ticks), &[VCPU_WAKE, TICK_WOKEN], 0.01);
        let looks = [VCPU_WAKE, MISSED_TICK, UPKEEP];
        near("a look at lists", median(others), &looks, 0.02);
    }
}
