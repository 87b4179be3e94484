//! The lab as a world of scenarios: what it knows of parts, and which figures it measures. The format is `ostler-scenario`'s.

use std::path::Path;

pub use ostler_scenario::*;

use ostler_outcome::gather;

use crate::memory;

/// The lab.
#[derive(Clone, Copy, Debug)]
pub struct Emulated;

impl World for Emulated {
    fn figures(&self) -> Vec<String> {
        gather::figure_names()
    }

    fn cycle_ns(&self, part: &str) -> Option<f64> {
        memory::cycle_ns(part)
    }

    fn check_caches(&self, host: &Host, caches: &Caches) -> Result<(), String> {
        memory::check(host, caches).map_err(|error| error.to_string())
    }

    fn limits(&self) -> Limits {
        Limits {
            simulates: false,
            // What a q35 without an interrupt remapper can tell apart.
            cpus_max: 255,
            // Those of an igb device.
            pnic_queues_max: 8,
            queues_max: 256,
            // The kernel's limit for interface names is 15; ours are `tap-NAME`.
            name_max: 11,
            // A guest of QEMU's `microvm` needs about this much to boot.
            guest_memory_min_mib: 160,
            // The host's own kernel, user space and page cache.
            host_memory_min_mib: 768,
        }
    }
}

/// Reads a file and checks it for the lab.
pub fn load(path: &Path) -> Result<Scenario, ScenarioError> {
    Scenario::load(path, &Emulated)
}

/// Checks a scenario's text for the lab; `path` is for messages.
pub fn parse(text: &str, path: &Path) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, path, &Emulated)
}

/// Leaves a scenario these of its loads, by their number, from 1 on, or by their guest, all if none is told, and those in the background. What it expects is
/// of all its loads: of fewer it expects nothing.
///
/// # Errors
///
/// Which there isn't, and which there are.
pub fn only_loads(scenario: &mut Scenario, wanted: &[String]) -> anyhow::Result<()> {
    let numbered: Vec<(String, String)> = (1..)
        .zip(&scenario.loads)
        .filter(|(_, load)| !load.background)
        .map(|(number, load): (usize, _)| (number.to_string(), load.guest.clone()))
        .collect();
    for word in wanted {
        anyhow::ensure!(
            numbered
                .iter()
                .any(|(number, guest)| [number, guest].contains(&word)),
            "--loads {word}: the scenario has {}",
            if numbered.is_empty() {
                "none".to_owned()
            } else {
                let each = numbered
                    .iter()
                    .map(|(number, guest)| format!("{number} ({guest})"));
                each.collect::<Vec<_>>().join(", ")
            }
        );
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let before = scenario.loads.len();
    let mut number = 0;
    scenario.loads.retain(|load| {
        number += 1;
        load.background || wanted.contains(&load.guest) || wanted.contains(&number.to_string())
    });
    if scenario.loads.len() < before {
        scenario.expectations.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_chosen_by_number_and_guest_and_others_are_refused() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let all = load(&path.join("anubis-small.toml")).expect("a good scenario");
        assert!(all.loads.len() == 2 && !all.expectations.is_empty());
        let chosen = |words: &[&str]| {
            let mut some = all.clone();
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            only_loads(&mut some, &words).map(|()| some)
        };
        let second = chosen(&["2"]).expect("it has two");
        assert_eq!(second.loads, all.loads[1..]);
        assert!(second.expectations.is_empty());
        // Both are the same guest's.
        for whole in [&[][..], &["lc"], &["2", "1"]] {
            assert_eq!(chosen(whole).expect("they are there"), all);
        }
        for word in ["0", "3", "be1", ""] {
            let why = chosen(&["1", word]).expect_err("it isn't there");
            assert_eq!(
                why.to_string(),
                format!("--loads {word}: the scenario has 1 (lc), 2 (lc)")
            );
        }
        // What is in the background goes on, and is none to choose.
        let mut behind = all.clone();
        behind.loads[0].background = true;
        let kept = |mut scenario: Scenario, word: &str| {
            only_loads(&mut scenario, &[word.to_owned()]).map(|()| scenario.loads.len())
        };
        assert_eq!(kept(behind.clone(), "2").expect("it has one"), 2);
        assert!(kept(behind, "1").is_err());
    }

    #[test]
    fn the_scenarios_of_the_repository_are_good() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let mut seen = 0;
        for file in std::fs::read_dir(folder)
            .expect("the folder scenarios")
            .flatten()
        {
            if file.path().extension().is_some_and(|e| e == "toml") {
                load(&file.path()).unwrap_or_else(|e| panic!("{e}"));
                seen += 1;
            }
        }
        assert!(seen >= 2);
    }

    #[test]
    fn the_example_in_the_readme_is_good() {
        let readme = include_str!("../../../scenarios/README.md");
        let (_, rest) = readme.split_once("```toml\n").expect("an example");
        let (example, _) = rest.split_once("```").expect("its end");
        let scenario = parse(example, Path::new("README.md")).expect("a good example");
        assert!(scenario.policies[1].is_ours());
    }
}
