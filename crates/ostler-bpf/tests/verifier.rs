//! What loading our programs costs the kernel: how many instructions its verifier goes through, by program.
//!
//! The verifier follows each path through a program, and gives up after a million instructions. A loop or a branch more can double the figure, or
//! multiply it, and what is far below the bound in one kernel is beyond it in the next. So the figures of each series of kernels that the lab boots
//! are recorded (`bpf/verifier.toml`), and a program that takes notably more is a failure long before any kernel refuses it.
//!
//! What is printed is a table to record. Skipped, with the reason, where programs can't be loaded.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::Path;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{ObjectBuilder, Program};
use ostler_bpf::{BOOST_ON_TICK, boost_wants_ticks};

/// Name, object, and what must be there for it to load. `LEAST` is for a bench alone.
const OBJECTS: [(&str, &[u8], &[&str]); 4] = [
    ("boost", ostler_bpf::BOOST, &[SCHED_EXT, "/sys/module/kvm"]),
    ("sense", ostler_bpf::SENSE, &[]),
    ("tap", ostler_bpf::TAP, &[]),
    ("vcpus", ostler_bpf::VCPUS, &["/sys/module/kvm_amd"]),
];

const SCHED_EXT: &str = "/sys/kernel/sched_ext";

/// The kernel's own limit (`BPF_COMPLEXITY_LIMIT_INSNS`).
const KERNEL_MAX: u32 = 1_000_000;

/// What a program may take beyond what is recorded: compilers differ a little from each other, and releases of a series.
const ROOM_PERCENT: u32 = 25;
/// The same for programs so small that a single look-up is a quarter.
const ROOM: u32 = 50;

/// By series of kernels, object and program.
type Recorded = BTreeMap<String, BTreeMap<String, BTreeMap<String, u32>>>;

fn recorded() -> Recorded {
    let text = include_str!("../../../bpf/verifier.toml");
    toml::from_str(text).expect("bpf/verifier.toml is a table of figures")
}

/// The most that a program took on any kernel of which that is recorded.
fn most(recorded: &Recorded, object: &str, program: &str) -> Option<u32> {
    let kernels = recorded.values();
    kernels
        .filter_map(|of| of.get(object)?.get(program).copied())
        .max()
}

fn allowed(recorded: u32) -> u32 {
    recorded + (recorded / 100 * ROOM_PERCENT).max(ROOM)
}

#[derive(Debug, PartialEq, Eq)]
enum Judged {
    AsRecorded,
    /// Less than is recorded: what to tell.
    Gain(String),
    /// Why.
    Wrong(String),
}

fn judge(before: Option<u32>, figure: u32) -> Judged {
    match before {
        None => Judged::Wrong(format!("{figure}, and none is recorded")),
        Some(before) if figure > allowed(before) => Judged::Wrong(format!(
            "{figure}, and {before} is recorded; find out why, or record it"
        )),
        Some(before) if before > allowed(figure) => Judged::Gain(format!(
            "{figure}, and {before} is recorded: record the gain"
        )),
        Some(_) => Judged::AsRecorded,
    }
}

/// "7.3" of "7.3.4+deb13-amd64".
fn series(release: &str) -> String {
    let mut numbers = release.split(['.', '-', '+']);
    let (major, minor) = (numbers.next().unwrap_or("?"), numbers.next().unwrap_or("?"));
    format!("{major}.{minor}")
}

fn programs(object: &[u8]) -> Vec<String> {
    let open = ObjectBuilder::default().open_memory(object);
    let open = open.expect("build.rs compiled it");
    let programs = open.progs();
    programs
        .map(|program| program.name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn each_program_has_a_figure_for_each_kernel() {
    let recorded = recorded();
    assert!(!recorded.is_empty());
    for (kernel, objects) in &recorded {
        for (name, object, needs) in OBJECTS {
            let Some(figures) = objects.get(name) else {
                assert!(
                    needs.contains(&SCHED_EXT),
                    "{name} on {kernel} isn't recorded"
                );
                continue;
            };
            let mut known = programs(object);
            // Not all kernels have a use for this one.
            let ticks = figures.contains_key(BOOST_ON_TICK);
            known.retain(|name| ticks || name != BOOST_ON_TICK);
            known.sort();
            assert_eq!(
                figures.keys().cloned().collect::<Vec<_>>(),
                known,
                "{name} on {kernel}"
            );
            for (program, &figure) in figures {
                assert!(
                    allowed(figure) < KERNEL_MAX,
                    "{program} on {kernel}: no kernel would load it"
                );
            }
        }
        let unknown = objects
            .keys()
            .find(|name| OBJECTS.iter().all(|(is, ..)| is != name));
        assert_eq!(unknown, None, "on {kernel}");
    }
}

#[test]
fn a_jump_is_a_failure_and_a_gain_is_told() {
    assert_eq!(judge(Some(2000), 2500), Judged::AsRecorded);
    assert!(matches!(judge(Some(2000), 2501), Judged::Wrong(_)));
    assert!(matches!(judge(Some(2501), 2000), Judged::Gain(_)));
    assert_eq!(judge(Some(8), 58), Judged::AsRecorded);
    assert!(matches!(judge(None, 8), Judged::Wrong(_)));
}

#[test]
fn a_series_is_told_from_a_release() {
    assert_eq!(series("7.3.4+deb13-amd64"), "7.3");
    assert_eq!(series("6.18-rc1"), "6.18");
}

#[test]
fn no_program_costs_the_verifier_more_than_is_recorded() {
    let test = "no_program_costs_the_verifier_more_than_is_recorded";
    if let Err(why) = ostler_bpf::require_btf(Path::new("/sys")) {
        println!("SKIP {test}: {why}");
        return;
    }
    ostler_bpf::quiet_libbpf();
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let kernel = series(&release);
    let recorded = recorded();
    let known = recorded.get(&kernel);
    if known.is_none() {
        println!(
            "NOTE kernel {release} isn't in bpf/verifier.toml: it is held against the most of any that is; record the table that this test prints"
        );
    }
    let mut wrong = Vec::new();
    for (name, object, needs) in OBJECTS {
        if let Some(missing) = needs.iter().find(|path| !Path::new(path).exists()) {
            println!("NOTE {name} isn't verified: {missing} is not there");
            continue;
        }
        let figures = match verified(object) {
            Ok(figures) => figures,
            Err(libbpf_rs::Error { .. }) if !rustix::process::geteuid().is_root() => {
                println!("SKIP {test}: it takes root to load {name}");
                return;
            }
            Err(why) => panic!(
                "{}",
                ostler_bpf::BpfError::step(format!("load {name}"), &why, "6.2")
            ),
        };
        println!("\n[\"{kernel}\".{name}]");
        for (program, figure) in &figures {
            println!("{program} = {figure}");
        }
        let all: u32 = figures.values().sum();
        println!(
            "NOTE {name}: the verifier went through {all} instructions of {} programs on {release}",
            figures.len()
        );
        for (program, figure) in figures {
            let figures = known.and_then(|of| of.get(name));
            let before = match known {
                Some(_) => figures.and_then(|of| of.get(&program).copied()),
                None => most(&recorded, name, &program),
            };
            match judge(before, figure) {
                Judged::Wrong(why) => wrong.push(format!("{program}: {why}")),
                // What is less than on another kernel is no gain.
                Judged::Gain(told) if known.is_some() => println!("NOTE {program}: {told}"),
                Judged::Gain(_) | Judged::AsRecorded => {}
            }
        }
    }
    assert!(wrong.is_empty(), "kernel {release}: {}", wrong.join("; "));
}

/// Loads an object, and asks for each program that is of use here how many instructions that took. Nothing is attached.
fn verified(object: &[u8]) -> Result<BTreeMap<String, u32>, libbpf_rs::Error> {
    let mut open = ObjectBuilder::default().open_memory(object)?;
    let ticks = boost_wants_ticks()?;
    for mut program in open.progs_mut() {
        if program.name() == BOOST_ON_TICK {
            program.set_autoload(ticks);
        }
    }
    let object = open.load()?;
    let programs = object.progs();
    programs
        .filter(libbpf_rs::ProgramImpl::autoload)
        .map(|program| {
            let id = Program::id_from_fd(program.as_fd())?;
            let info = ProgInfoIter::default().find(|info| info.id == id);
            let info = info.expect("it is loaded");
            Ok((
                program.name().to_string_lossy().into_owned(),
                info.verified_insns,
            ))
        })
        .collect()
}
