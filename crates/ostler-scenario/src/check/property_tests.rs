//! Whatever is read is refused or taken, and what is written is read as the same.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use crate::testing::{Emulator, Simulator, scenario_or_fleet};
use crate::{Scenario, World};

fn parse(text: &str, world: &dyn World) -> Result<Scenario, String> {
    Scenario::parse(text, Path::new("s.toml"), world).map_err(|e| e.to_string())
}

/// Cuts, doubles, or changes a piece of a text.
fn mangled(text: &str, edits: &[(u32, u32, u8, String)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for (from, length, kind, with) in edits {
        let from = *from as usize % (chars.len() + 1);
        let to = (from + *length as usize).min(chars.len());
        let piece: Vec<char> = chars[from..to].to_vec();
        match kind % 3 {
            0 => drop(chars.drain(from..to)),
            1 => drop(chars.splice(from..from, piece)),
            _ => drop(chars.splice(from..to, with.chars())),
        }
    }
    chars.into_iter().collect()
}

fn edits() -> impl Strategy<Value = Vec<(u32, u32, u8, String)>> {
    // What keys and values are made of, and numbers that don't fit where they get to.
    let pieces = prop_oneof![
        "[a-z_=\\[\\]{}\" .,0-9\n\u{e9}-]{0,12}",
        prop::sample::select(vec![
            "-1",
            "0",
            "nan",
            "inf",
            "4294967295",
            "18446744073709551615",
            "1e308",
            "\"\"",
            "[]",
            "{}",
            "= \"9999999G\"",
            "[fleet]",
            "count = 10000\n",
            "at = \"1s\"\n",
            "\"18446744073709551615h\"",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec((any::<u32>(), 0..40_u32, any::<u8>(), pieces), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_written_is_read_as_the_same(scenario in scenario_or_fleet()) {
        let text = scenario.to_toml();
        let read = parse(&text, &Simulator).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(read, scenario, "{}", text);
    }

    #[test]
    fn reading_never_panics(scenario in scenario_or_fleet(), edits in edits()) {
        let text = mangled(&scenario.to_toml(), &edits);
        for world in [&Emulator as &dyn World, &Simulator] {
            match parse(&text, world) {
                Ok(read) => {
                    // Whatever is taken can be written, too.
                    let again = parse(&read.to_toml(), world).map_err(TestCaseError::fail)?;
                    prop_assert_eq!(again, read);
                }
                Err(refusal) => prop_assert!(refusal.starts_with("s.toml:"), "{}", refusal),
            }
        }
    }

    #[test]
    fn noise_is_refused(text in "\\PC{0,200}") {
        prop_assert!(parse(&text, &Simulator).is_err());
    }

    #[test]
    fn a_scenario_travels_as_json(scenario in scenario_or_fleet()) {
        let json = serde_json::to_string(&scenario).expect("JSON");
        let back: Scenario = serde_json::from_str(&json).expect("a scenario");
        prop_assert_eq!(back, scenario);
    }
}

/// Every key that can be written stands in the README: in an example, or in a table by its name.
#[test]
fn every_key_is_in_the_readme() {
    fn keys(value: &toml::Value, seen: &mut BTreeSet<String>) {
        match value {
            toml::Value::Table(table) => {
                for (key, value) in table {
                    // A steward's keys are its own documentation's.
                    if key != "steward" {
                        seen.insert(key.clone());
                        keys(value, seen);
                    }
                }
            }
            toml::Value::Array(values) => values.iter().for_each(|value| keys(value, seen)),
            _ => {}
        }
    }
    let readme = include_str!("../../../../scenarios/README.md");
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    for _ in 0..300 {
        let tree = scenario_or_fleet()
            .new_tree(&mut runner)
            .expect("a scenario");
        let table: toml::Table = toml::from_str(&tree.current().to_toml()).expect("TOML");
        keys(&toml::Value::Table(table), &mut seen);
    }
    for key in [
        "guest",
        "cacheable",
        "generate",
        "readings",
        "oversubscription",
        "declared",
    ] {
        assert!(seen.contains(key), "{key} is among {seen:?}");
    }
    let documented = |key: &String| {
        let assigned = [
            format!("{key} = "),
            format!("`{key}`"),
            format!("[{key}]"),
            format!(".{key}]"),
        ];
        assigned.iter().any(|text| readme.contains(text))
    };
    let missing: Vec<_> = seen.iter().filter(|key| !documented(key)).collect();
    assert!(
        missing.is_empty(),
        "not in scenarios/README.md: {missing:?}"
    );
}
