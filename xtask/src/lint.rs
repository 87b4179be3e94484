//! Formats, lints, and the direction of dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Result, bail};
use serde::Deserialize;

use crate::{run, sources};

/// Which of our rooms each room may depend on; `ARCHITECTURE.md` draws the same picture.
///
/// `model` knows nobody; the policies and the checker know only the model, and never each other; what touches Linux never
/// meets what decides but in the binary.
const MAY_DEPEND: &[(&str, &[&str])] = &[
    ("ostler-model", &[]),
    ("ostler-abi", &[]),
    ("ostler-boost", &[]),
    ("ostler-hints", &["ostler-abi"]),
    ("ostler-bpf", &[]),
    ("ostler-policy", &["ostler-model"]),
    ("ostler-check", &["ostler-model"]),
    (
        "ostler-sense",
        &["ostler-model", "ostler-abi", "ostler-bpf"],
    ),
    (
        "ostler-act",
        &["ostler-model", "ostler-abi", "ostler-boost", "ostler-bpf"],
    ),
    ("ostler-record", &["ostler-model"]),
    ("ostler-outlet", &[]),
    ("ostler-guest", &["ostler-abi", "ostler-outlet"]),
    ("ostler-load", &[]),
    ("ostler-report", &[]),
    ("ostler-scenario", &["ostler-model"]),
    (
        "ostler-outcome",
        &[
            "ostler-load",
            "ostler-model",
            "ostler-report",
            "ostler-scenario",
        ],
    ),
    (
        "ostler-sim",
        &[
            "ostler-model",
            "ostler-abi",
            "ostler-policy",
            "ostler-check",
            "ostler-boost",
            "ostler-hints",
            "ostler-record",
            "ostler-load",
            "ostler-outcome",
            "ostler-scenario",
            "machine-memory",
        ],
    ),
    (
        "ostler-lab",
        &[
            "ostler-model",
            "ostler-abi",
            "ostler-load",
            "ostler-outcome",
            "ostler-scenario",
            "machine-memory",
        ],
    ),
    (
        "ostler",
        &[
            "ostler-model",
            "ostler-policy",
            "ostler-check",
            "ostler-sense",
            "ostler-act",
            "ostler-record",
            "ostler-guest",
            "ostler-lab",
            "ostler-outcome",
            "ostler-outlet",
            "ostler-report",
            "ostler-scenario",
            "ostler-sim",
            "machine-launch",
        ],
    ),
    ("machine-launch", &["machine-memory"]),
    ("machine-memory", &[]),
    ("machine-programs", &[]),
    ("machine-time", &["machine-memory", "ostler-abi"]),
    ("xtask", &["ostler-lab", "ostler-outcome", "ostler-report"]),
    ("bench-harness", &[]),
];

/// Benches may use any library room, but not the binary.
const BENCH_PREFIX: &str = "bench-";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
}

pub fn lint() -> Result<()> {
    run::setup()?;
    run::step("direction of dependencies");
    directions()?;
    run::step("promises have tests");
    promises()?;
    run::step("formats");
    run::run(run::cargo().args(["fmt", "--all", "--check"]))?;
    c_format()?;
    run::step("clippy");
    run::run(run::cargo().args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]))
}

fn c_format() -> Result<()> {
    let files = sources::with_extension(run::root(), &["c", "h"])?;
    if files.is_empty() {
        return Ok(());
    }
    run::run(
        Command::new("clang-format-19")
            .current_dir(run::root())
            .args(["--dry-run", "--Werror"])
            .args(files),
    )
}

fn directions() -> Result<()> {
    let metadata: Metadata = serde_json::from_str(&run::output(run::cargo().args([
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
    ]))?)?;
    let wrong = wrong_directions(&metadata);
    if !wrong.is_empty() {
        bail!(
            "rooms depend on rooms that they must not know (xtask/src/lint.rs):\n{}",
            wrong.join("\n")
        );
    }
    Ok(())
}

/// Each dependency between our own packages that [`MAY_DEPEND`] doesn't allow. Development dependencies are free: a test may
/// hold two rooms against each other.
fn wrong_directions(metadata: &Metadata) -> Vec<String> {
    let allowed: BTreeMap<&str, BTreeSet<&str>> = MAY_DEPEND
        .iter()
        .map(|(name, on)| (*name, on.iter().copied().collect()))
        .collect();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let bench = package.name.starts_with(BENCH_PREFIX) && !allowed.contains_key(&*package.name);
        let own = package
            .dependencies
            .iter()
            .filter(|on| on.path.is_some() && on.kind.as_deref() != Some("dev"));
        for on in own {
            let fine = if bench {
                on.name != "ostler" && on.name != "xtask"
            } else {
                allowed
                    .get(&*package.name)
                    .is_some_and(|allowed| allowed.contains(&*on.name))
            };
            if !fine {
                wrong.push(format!("{} -> {}", package.name, on.name));
            }
        }
        if !bench && !allowed.contains_key(&*package.name) {
            wrong.push(format!("{} is not in the list", package.name));
        }
    }
    wrong
}

/// Each test, bench, scenario or file that SPECIFICATION.md names as holding a promise exists.
fn promises() -> Result<()> {
    let text = std::fs::read_to_string(run::root().join("SPECIFICATION.md"))?;
    let mut tests = BTreeSet::new();
    for source in sources::with_extension(run::root(), &["rs"])? {
        tests.extend(functions(&std::fs::read_to_string(&source)?).map(str::to_owned));
    }
    let broken: Vec<&str> = holders(&text)
        .filter(|name| !tests.contains(*name) && !stands(name))
        .collect();
    if !broken.is_empty() {
        bail!(
            "SPECIFICATION.md names what isn't there: {}",
            broken.join(", ")
        );
    }
    Ok(())
}

/// The names of the functions that Rust's text declares.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ").skip(1).filter_map(|rest| {
        let end =
            rest.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'))?;
        rest[end..].starts_with('(').then(|| &rest[..end])
    })
}

/// What the last column of each table names.
fn holders(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| {
            line.strip_suffix(" |")?
                .strip_prefix("| ")?
                .rsplit(" | ")
                .next()
        })
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
}

/// Whether a path, a bench or a scenario is there.
fn stands(name: &str) -> bool {
    let path = run::root().join(name);
    path.exists() || path.with_extension("toml").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, on: &str, kind: Option<&str>) -> Metadata {
        Metadata {
            packages: vec![Package {
                name: name.into(),
                dependencies: vec![Dependency {
                    name: on.into(),
                    kind: kind.map(Into::into),
                    path: Some("/x".into()),
                }],
            }],
        }
    }

    #[test]
    fn rooms_depend_only_downwards() {
        directions().unwrap();
    }

    #[test]
    fn a_wrong_direction_is_seen() {
        for (from, on) in [
            ("ostler-model", "ostler-policy"),
            ("ostler-policy", "ostler-act"),
            ("ostler-sense", "ostler-act"),
            ("bench-decide", "ostler"),
        ] {
            assert_eq!(
                wrong_directions(&package(from, on, None)).len(),
                1,
                "{from} -> {on}"
            );
        }
        assert_eq!(
            wrong_directions(&package("new-room", "serde", None)).len(),
            2
        );
        assert!(
            wrong_directions(&package("ostler-policy", "ostler-check", Some("dev"))).is_empty()
        );
    }

    #[test]
    fn every_promise_names_what_holds_it() {
        promises().unwrap();
        let table = "| promise | number | held by |\n|---|---|---|\n| a | 1 `x` | `b`, `c/d` |\n";
        assert_eq!(holders(table).collect::<Vec<_>>(), ["b", "c/d"]);
        assert!(!stands("scenarios/no-such-world"));
        let rust = "    fn holds_so() {}\npub async fn a_1(x: u8)\nfn generic<T>()\nfn(u8)";
        assert_eq!(functions(rust).collect::<Vec<_>>(), ["holds_so", "a_1"]);
    }

    #[test]
    fn the_list_has_no_cycle() {
        let mut done = BTreeSet::new();
        for _ in 0..MAY_DEPEND.len() {
            for (name, on) in MAY_DEPEND {
                if on.iter().all(|on| done.contains(on)) {
                    done.insert(*name);
                }
            }
        }
        assert_eq!(done.len(), MAY_DEPEND.len());
    }
}
