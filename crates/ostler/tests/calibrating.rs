//! Weights from records, as an operator finds them.

mod place;

use place::{Place, json, ostler, text};
use serde_json::Value;

/// The shortest of the loads by which figure 13's weights were found, under two policies.
#[test]
fn what_slows_packets_down_is_found_in_records() {
    let place = Place::new("");
    let scenario = include_str!("../../../bench/paper/vflowcomb-13/calibration.toml");
    let (host, loads) = scenario.split_once("[[load]]").expect("it has loads");
    let policies = &loads[loads.find("[steward").expect("it has policies")..];
    let rates = [4000, 16_000].map(|rate| {
        format!(
            "[[load]]\nguest = \"vnf3\"\nconnections = 4\npackets = 8\nsteps = [{{ rate = {rate}, seconds = 2 }}]\n\n"
        )
    });
    let file = place.path("short.toml");
    std::fs::write(&file, format!("{host}{}{policies}", rates.concat())).expect("it is written");
    let (file, kept) = (place.shown("short.toml"), place.shown("kept"));
    let ran = ostler(&["sim", &file, "--records", &kept]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let records: Vec<String> = (0..6)
        .map(|cell| format!("{kept}/cell-{cell}/record.db"))
        .collect();
    let run = |first: &[&str]| {
        let records = records.iter().map(String::as_str);
        ostler(&first.iter().copied().chain(records).collect::<Vec<_>>())
    };
    let found = json(&run(&["calibrate", "--json"]));
    let stages = found["stages"].as_array().expect("stages");
    let names: Vec<&Value> = stages.iter().map(|stage| &stage["stage"]).collect();
    assert_eq!(names, ["softirq", "vhost", "vcpu"]);
    for stage in stages {
        let figure = |key: &str| stage[key].as_f64().expect("a figure");
        assert!(figure("error") < 0.5, "{stage}");
        // A packet's time at its best is all but what places and loads make of it.
        assert!(figure("base") + figure("remote") > 0.5, "{stage}");
        assert!(figure("samples") > 100.0, "{stage}");
    }
    // What is printed is a part of a configuration.
    let sections = text(&run(&["calibrate"]).stdout);
    let config = place.path("placed.toml");
    let head = "[placement]\npolicy = \"chains\"\n\n";
    std::fs::write(&config, format!("{head}{sections}")).expect("it is written");
    let checked = ostler(&["check-config", &place.shown("placed.toml")]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
}
