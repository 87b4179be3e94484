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

#[cfg(test)]
mod tests {
    use super::*;

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
