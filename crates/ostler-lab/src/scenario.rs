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

/// Which of a scenario's loads are meant, by their number, from 1 on, or by their guest. Those in the background are none to choose.
///
/// # Errors
///
/// Which there isn't, and which there are.
pub fn chosen_loads(scenario: &Scenario, wanted: &[String]) -> anyhow::Result<Vec<u32>> {
    let loads: Vec<(u32, [String; 2])> = (0..)
        .zip(&scenario.loads)
        .filter(|(_, load)| !load.background)
        .map(|(at, load): (u32, _)| (at, [(at + 1).to_string(), load.guest.clone()]))
        .collect();
    for word in wanted {
        if loads.iter().any(|(_, names)| names.contains(word)) {
            continue;
        }
        let each = loads.iter();
        let each = each.map(|(_, [number, guest])| format!("{number} ({guest})"));
        let each: Vec<_> = each.collect();
        let all = if each.is_empty() {
            "none".to_owned()
        } else {
            each.join(", ")
        };
        anyhow::bail!("--loads {word}: the scenario has {all}");
    }
    let is_wanted = |names: &[String; 2]| names.iter().any(|name| wanted.contains(name));
    let chosen = loads.iter().filter(|(_, names)| is_wanted(names));
    Ok(chosen.map(|(at, _)| *at).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_chosen_by_number_and_guest_and_others_are_refused() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let scenario = load(&path.join("anubis-small.toml")).expect("a good scenario");
        let chosen = |scenario: &Scenario, words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            chosen_loads(scenario, &words)
        };
        let is = |words: &[&str]| chosen(&scenario, words).expect("they are there");
        assert_eq!(is(&["2"]), [1]);
        // Both are the same guest's.
        assert_eq!(is(&["lc"]), [0, 1]);
        assert_eq!(is(&["2", "1"]), [0, 1]);
        assert_eq!(is(&[]), [0; 0]);
        for word in ["0", "3", "be1", ""] {
            let why = chosen(&scenario, &["1", word]).expect_err("it isn't there");
            assert_eq!(
                why.to_string(),
                format!("--loads {word}: the scenario has 1 (lc), 2 (lc)")
            );
        }
        // What is in the background goes on, and is none to choose.
        let mut behind = scenario.clone();
        behind.loads[0].background = true;
        assert_eq!(chosen(&behind, &["lc"]).expect("it has one"), [1]);
        assert!(chosen(&behind, &["1"]).is_err());
        // Its cells are those that it has among all others.
        let mut program = crate::program::Program::new(scenario, false);
        let seeds = |program: &crate::program::Program| -> Vec<_> {
            let cells = program.cells();
            assert!((0..).zip(&cells).all(|(at, cell)| cell.index == at));
            let of = |cell: &_| program.seed_of(cell);
            cells.iter().filter(|c| c.load == 1).map(of).collect()
        };
        let all = seeds(&program);
        program.loads = vec![1];
        assert_eq!(seeds(&program), all);
        assert_eq!(program.cells().len(), all.len());
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
