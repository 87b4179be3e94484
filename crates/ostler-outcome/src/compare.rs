//! Two runs of a scenario side by side: of the lab and the simulator, of two programs, of two seeds; or two runs of a fleet.
//!
//! Two worlds needn't agree about a figure to be of the same mind about policies. So each figure is told twice, one run's beside the other's; and for every two policies, which of
//! them has more of it. **Directions agree** unless one run says that a policy has more and the other that it has less; less than [`SAME`] between two policies is no difference, and
//! contradicts nothing. Nor is it one where a run has several rounds and the least of the one policy's isn't more than the most of the other's: which of them has more
//! is then what that run doesn't know.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

/// Policies that differ by less, of the larger figure, don't.
pub const SAME: f64 = 0.05;

/// The figures that are compared, where both runs have them.
pub const FIGURES: [&str; 22] = [
    "max_rate_under_slo",
    "slo_met_share",
    "core_seconds",
    "be_core_seconds",
    "p50_us",
    "p95_us",
    "p99_us",
    "ops_per_s",
    "ctx_switches_per_s",
    "migrations_per_s",
    "irqs_per_s",
    "irq_to_run_p99_us",
    "neighbour_throughput",
    "energy_j",
    "local_unused",
    "moved_mib",
    // A fleet's.
    "broken_share",
    "p95_median_us",
    "p95_worst_us",
    "waiting_share",
    "others_waiting_share",
    "busy",
];

/// A policy's line under a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Which load, in words.
    pub workload: String,
    /// Which policy.
    pub policy: String,
    /// Those of [`FIGURES`] that were measured.
    pub figures: BTreeMap<&'static str, f64>,
    /// Least and most of those that aren't the same in all rounds.
    pub ranges: BTreeMap<&'static str, [f64; 2]>,
}

impl Line {
    /// A figure's median, least and most.
    fn told(&self, figure: &'static str) -> Option<[f64; 3]> {
        let median = *self.figures.get(figure)?;
        let [least, most] = self.ranges.get(figure).copied().unwrap_or([median; 2]);
        Some([median, least, most])
    }
}

/// What is no run's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it, and what to do.
    pub what: String,
}

/// A figure of a policy in two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Under which load.
    pub workload: String,
    /// Which policy's.
    pub policy: String,
    /// Which.
    pub figure: &'static str,
    /// In the one run.
    pub one: f64,
    /// In the other.
    pub other: f64,
    /// The other's by the one's; `None` where that is zero.
    pub ratio: Option<f64>,
    /// By the first policy's, in each run; `None` for that itself, and where its figure is zero.
    pub one_by_first: Option<f64>,
    /// Likewise.
    pub other_by_first: Option<f64>,
    /// Whether both runs say the same of it and the first policy; `None` for that itself.
    pub agree: Option<bool>,
    /// The policies of which one run says that this one has more than they, and the other that it has less.
    pub against: Vec<String>,
}

/// Two runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// Every figure of every policy that both have, load by load.
    pub pairs: Vec<Pair>,
    /// Policies that one of them has under a load and the other hasn't: workload and policy.
    pub only: [Vec<(String, String)>; 2],
    /// How often two policies differ by a figure in both.
    pub told: usize,
    /// How often both runs say then that the same one has more.
    pub agree: usize,
}

/// The lines of a run, as `--json` writes them; those of cells are left out, and of a fleet those of VMs. A fleet's loads are its oversubscriptions. A scenario may ask the same of a guest at several rates, and says so in the same
/// words: where policies begin anew under them, it is the next of these loads, and told by its number.
///
/// # Errors
///
/// A line is none.
pub fn lines(text: &str) -> Result<Vec<Line>, Mistake> {
    let mut lines = Vec::new();
    // By words of a load: how many there were before this one, and whose lines this one has.
    let mut loads: BTreeMap<String, (usize, BTreeSet<String>)> = BTreeMap::new();
    let written = text.lines().enumerate();
    for (at, line) in written.filter(|(_, line)| !line.trim().is_empty()) {
        let mistake = |what: String| Mistake { line: at + 1, what };
        let value: Value = serde_json::from_str(line).map_err(|error| {
            mistake(format!(
                "no JSON ({error}); give it the lines that `--json` writes"
            ))
        })?;
        if value.get("event").is_some() {
            return Err(mistake(
                "an event of a run, and not what came of it; give it the run's summary.jsonl, or the lines that `--json` writes".to_owned(),
            ));
        }
        if value.get("cell").is_some() || value.get("vm").is_some() {
            continue;
        }
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let ratio = value.get("oversubscription").and_then(Value::as_f64);
        let fleet = ratio.map(|ratio| format!("a fleet at {ratio}:1"));
        let (Some(mut workload), Some(policy)) = (text("workload").or(fleet), text("policy"))
        else {
            return Err(mistake(
                "no line of a policy under a load; give it the lines that `--json` writes"
                    .to_owned(),
            ));
        };
        let (before, policies) = loads.entry(workload.clone()).or_default();
        if !policies.insert(policy.clone()) {
            *before += 1;
            *policies = BTreeSet::from([policy.clone()]);
        }
        if *before > 0 {
            workload = format!("{workload}, load {}", *before + 1);
        }
        let figure = |name: &'static str| Some((name, value.get(name)?.as_f64()?));
        let mut ranges = BTreeMap::new();
        for name in FIGURES {
            let Some(range) = value.get("ranges").and_then(|ranges| ranges.get(name)) else {
                continue;
            };
            let range = serde_json::from_value::<[f64; 2]>(range.clone())
                .ok()
                .filter(|[least, most]| least <= most)
                .ok_or_else(|| {
                    mistake(format!(
                        "{range} is no least and most of {name}; give it the lines that `--json` writes"
                    ))
                })?;
            ranges.insert(name, range);
        }
        lines.push(Line {
            figures: FIGURES.into_iter().filter_map(figure).collect(),
            ranges,
            workload,
            policy,
        });
    }
    Ok(lines)
}

/// Lays two runs side by side, in the order of the one.
pub fn compare(one: &[Line], other: &[Line]) -> Compared {
    let key = |line: &Line| (line.workload.clone(), line.policy.clone());
    let [ones, others] = [one, other].map(|lines| -> BTreeMap<_, _> {
        let each = lines.iter().map(|line| (key(line), line));
        each.collect()
    });
    let missing = |lines: &[Line], there: &BTreeMap<(String, String), &Line>| {
        let keys = lines.iter().map(key);
        keys.filter(|key| !there.contains_key(key)).collect()
    };
    let both: Vec<(&Line, &Line)> = one
        .iter()
        .filter_map(|line| Some((line, *others.get(&key(line))?)))
        .collect();
    let mut compared = Compared {
        only: [missing(one, &others), missing(other, &ones)],
        ..Compared::default()
    };
    for (at, (line, _)) in both.iter().enumerate() {
        let same = |place: &usize| both[*place].0.workload == line.workload;
        let alike: Vec<usize> = (0..both.len()).filter(same).collect();
        for figure in FIGURES {
            let figures = |place: usize| {
                let (one, other) = both[place];
                Some((one.told(figure)?, other.told(figure)?))
            };
            let Some((of_one, of_other)) = figures(at) else {
                continue;
            };
            let (one, other) = (of_one[0], of_other[0]);
            let mut pair = Pair {
                workload: line.workload.clone(),
                policy: line.policy.clone(),
                figure,
                one,
                other,
                ratio: by(other, one),
                one_by_first: None,
                other_by_first: None,
                agree: None,
                against: Vec::new(),
            };
            for &place in alike.iter().filter(|place| **place != at) {
                let Some((beside, there)) = figures(place) else {
                    continue;
                };
                let ways = [way(beside, of_one), way(there, of_other)];
                if ways[0] * ways[1] < 0 {
                    pair.against.push(both[place].0.policy.clone());
                }
                if place < at && ways[0] * ways[1] != 0 {
                    compared.told += 1;
                    compared.agree += usize::from(ways[0] == ways[1]);
                }
                if place == alike[0] {
                    pair.one_by_first = by(one, beside[0]);
                    pair.other_by_first = by(other, there[0]);
                    pair.agree = Some(ways[0] * ways[1] >= 0);
                }
            }
            compared.pairs.push(pair);
        }
    }
    compared
}

fn by(value: f64, unit: f64) -> Option<f64> {
    (unit != 0.0).then(|| value / unit)
}

/// Whether a figure is more than another in every round, or less, or neither: of each its median, least and most.
fn way(of: [f64; 3], figure: [f64; 3]) -> i32 {
    let change = figure[0] - of[0];
    if change.abs() <= SAME * of[0].abs().max(figure[0].abs()) {
        0
    } else if change > 0.0 {
        i32::from(figure[1] > of[2])
    } else {
        -i32::from(figure[2] < of[1])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(policy: &str, p95_us: f64, cores: Option<f64>) -> Line {
        let figures = [("p95_us", Some(p95_us)), ("core_seconds", cores)];
        Line {
            workload: "w".to_owned(),
            policy: policy.to_owned(),
            figures: figures
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?)))
                .collect(),
            ranges: BTreeMap::new(),
        }
    }

    fn of<'a>(compared: &'a Compared, policy: &str, figure: &str) -> Option<&'a Pair> {
        let mut pairs = compared.pairs.iter();
        pairs.find(|pair| pair.policy == policy && pair.figure == figure)
    }

    #[test]
    fn what_rounds_do_not_agree_about_is_no_difference() {
        let with = |policy: &str, p95_us, least, most| Line {
            ranges: BTreeMap::from([("p95_us", [least, most])]),
            ..line(policy, p95_us, None)
        };
        let sim = [line("a", 100.0, None), line("b", 90.0, None)];
        for (b, told, agree) in [
            // One of b's rounds is within a's: the lab doesn't know which of them has more.
            (with("b", 120.0, 104.0, 150.0), 0, true),
            (with("b", 120.0, 106.0, 150.0), 1, false),
            (with("b", 80.0, 60.0, 96.0), 0, true),
            (with("b", 80.0, 60.0, 94.0), 1, true),
        ] {
            let lab = [with("a", 100.0, 95.0, 105.0), b];
            let compared = compare(&lab, &sim);
            assert_eq!(compared.told, told, "{:?}", lab[1]);
            let b = of(&compared, "b", "p95_us").unwrap();
            assert_eq!(b.agree, Some(agree), "{b:?}");
        }
        let text = r#"{"policy":"a","workload":"w","p95_us":100.0,"p50_us":7.0,"ranges":{"p95_us":[95.0,105.0],"kvm_exits_per_s":[1.0,2.0]}}"#;
        let read = &lines(text).unwrap()[0];
        assert_eq!(read.told("p95_us"), Some([100.0, 95.0, 105.0]));
        assert_eq!(read.told("p50_us"), Some([7.0; 3]));
        for wrong in ["\"x\"", "[1.0]", "[2.0,1.0]"] {
            let text = text.replace("[95.0,105.0]", wrong);
            let said = lines(&text).expect_err("no range");
            assert!(
                said.what.contains("no least and most of p95_us"),
                "{said:?}"
            );
        }
    }

    #[test]
    fn policies_are_held_against_the_first_and_each_other_in_each_run() {
        let lab = [
            line("a", 100.0, Some(10.0)),
            line("b", 50.0, None),
            line("c", 130.0, Some(9.8)),
            line("only-lab", 1.0, None),
        ];
        let sim = [
            line("c", 60.0, Some(20.0)),
            line("a", 100.0, Some(10.0)),
            line("b", 70.0, Some(5.0)),
            line("d", 1.0, None),
        ];
        let compared = compare(&lab, &sim);
        let first = of(&compared, "a", "p95_us").unwrap();
        assert_eq!((first.agree, first.one_by_first), (None, None));
        assert_eq!(first.against, ["c"]);
        let b = of(&compared, "b", "p95_us").unwrap();
        assert_eq!(
            (b.ratio, b.one_by_first, b.other_by_first),
            (Some(1.4), Some(0.5), Some(0.7))
        );
        // Both say that b has less than a; of b and c each says something else.
        assert_eq!((b.agree, &*b.against), (Some(true), &["c".to_owned()][..]));
        let c = of(&compared, "c", "p95_us").unwrap();
        assert_eq!(c.agree, Some(false));
        assert_eq!(c.against, ["a", "b"]);
        // 2 % is no direction.
        let cores = of(&compared, "c", "core_seconds").unwrap();
        assert_eq!((cores.agree, cores.against.len()), (Some(true), 0));
        assert_eq!(
            of(&compared, "b", "core_seconds"),
            None,
            "the lab didn't measure it"
        );
        assert!(of(&compared, "d", "p95_us").is_none());
        let only = |policy: &str| vec![("w".to_owned(), policy.to_owned())];
        assert_eq!(compared.only, [only("only-lab"), only("d")]);
        // a and b, a and c, b and c by P95; by cores they don't differ in one.
        assert_eq!((compared.told, compared.agree), (3, 1));
    }

    #[test]
    fn something_is_more_than_nothing_in_both_runs() {
        let one = [line("a", 0.0, None), line("b", 3.0, None)];
        let other = [line("a", 0.0, None), line("b", 2.0, None)];
        let compared = compare(&one, &other);
        let b = of(&compared, "b", "p95_us").unwrap();
        assert_eq!((b.one_by_first, b.agree), (None, Some(true)));
        assert_eq!((compared.told, compared.agree), (1, 1));
    }

    #[test]
    fn what_is_no_result_is_refused_with_its_line_and_the_remedy() {
        let good = "{\"workload\":\"w\",\"policy\":\"p\",\"p95_us\":1}";
        for (text, line, why) in [
            (format!("{good}\nnonsense"), 2, "no JSON"),
            ("{\"policy\":\"p\"}".to_owned(), 1, "no line of a policy"),
            ("[1]".to_owned(), 1, "no line of a policy"),
            (
                "{\"t_ms\":0,\"event\":\"run\",\"revision\":\"x\"}".to_owned(),
                1,
                "summary.jsonl",
            ),
        ] {
            let mistake = lines(&text).expect_err(&text);
            assert_eq!(mistake.line, line, "{text}");
            assert!(mistake.what.contains(why), "{}", mistake.what);
            assert!(mistake.what.contains("give it the"), "{}", mistake.what);
        }
        // A cell's line is of no policy as a whole.
        let cell = "{\"cell\":0,\"workload\":\"w\",\"policy\":\"p\",\"p95_us\":7}";
        let read = lines(&format!("{good}\n{cell}\n")).expect("lines");
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].figures.get("p95_us"), Some(&1.0));
    }

    #[test]
    fn fleets_are_compared_by_oversubscription() {
        use crate::fleet::FleetLine;
        let fleet = |median: [f64; 2]| {
            let mut text = String::new();
            for ratio in [1.5, 3.0] {
                for (policy, p95) in ["p", "q"].into_iter().zip(median) {
                    let line = FleetLine {
                        policy: policy.to_owned(),
                        oversubscription: ratio,
                        p95_median_us: Some(p95 * ratio),
                        ..FleetLine::default()
                    };
                    text.push_str(&serde_json::to_string(&line).expect("JSON"));
                    let vm = format!(
                        "\n{{\"policy\":\"{policy}\",\"oversubscription\":{ratio:?},\"vm\":7,\"p95_us\":1.0}}\n"
                    );
                    text.push_str(&vm);
                }
            }
            lines(&text).expect("a fleet's run")
        };
        let [one, other] = [fleet([1.0, 2.0]), fleet([2.0, 1.0])];
        let loads: Vec<&str> = one.iter().map(|line| line.workload.as_str()).collect();
        assert_eq!(loads[1..3], ["a fleet at 1.5:1", "a fleet at 3:1"]);
        let compared = compare(&one, &other);
        assert_eq!((compared.told, compared.agree), (2, 0));
        let p95 = of(&compared, "q", "p95_median_us").expect("both have it");
        assert_eq!((p95.one, p95.other), (3.0, 1.5));
    }

    #[test]
    fn loads_of_the_same_words_are_told_apart() {
        let lines = |p95: [u32; 4]| {
            let each = ["p", "q", "p", "q"].into_iter().zip(p95);
            let line = |(policy, p95)| {
                format!("{{\"workload\":\"w\",\"policy\":\"{policy}\",\"p95_us\":{p95}}}\n")
            };
            lines(&each.map(line).collect::<String>()).expect("a run with two loads")
        };
        let [one, other] = [lines([1, 2, 30, 40]), lines([1, 2, 40, 30])];
        let loads: Vec<&str> = one.iter().map(|line| line.workload.as_str()).collect();
        assert_eq!(loads, ["w", "w", "w, load 2", "w, load 2"]);
        // Under the first load both say the same of p and q, under the second not.
        let compared = compare(&one, &other);
        assert_eq!((compared.told, compared.agree), (2, 1));
        let against = compared
            .pairs
            .iter()
            .filter(|pair| !pair.against.is_empty());
        assert!(against.clone().all(|pair| pair.workload == "w, load 2"));
        assert_eq!(against.count(), 2);
    }

    proptest! {
        /// Whatever two runs came to: a run beside itself agrees, and who contradicts whom is mutual and the same from either side.
        #[test]
        fn contradictions_are_mutual(
            figures in proptest::collection::vec((0.0..10.0_f64, 0.0..10.0_f64), 0..8),
        ) {
            let run = |pick: fn(&(f64, f64)) -> f64| -> Vec<Line> {
                let each = figures.iter().enumerate();
                each.map(|(at, both)| line(&format!("p{at}"), pick(both), None)).collect()
            };
            let (one, other) = (run(|both| both.0), run(|both| both.1));
            let itself = compare(&one, &one);
            prop_assert_eq!(itself.told, itself.agree);
            prop_assert!(itself.pairs.iter().all(|pair| pair.against.is_empty()));
            let there = compare(&one, &other);
            let back = compare(&other, &one);
            prop_assert_eq!((there.told, there.agree), (back.told, back.agree));
            let mut contradictions = 0;
            for (pair, turned) in there.pairs.iter().zip(&back.pairs) {
                prop_assert_eq!(&pair.against, &turned.against);
                contradictions += pair.against.len();
                for name in &pair.against {
                    let beside = there.pairs.iter().find(|pair| pair.policy == *name);
                    prop_assert!(beside.is_some_and(|beside| beside.against.contains(&pair.policy)));
                }
            }
            prop_assert_eq!(contradictions, 2 * (there.told - there.agree));
        }
    }
}
