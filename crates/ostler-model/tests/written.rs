//! What is written to records and to JSON, and read back from them.

use std::fmt::Debug;

use ostler_model::{
    Class, Facts, GuestMatch, GuestRule, Intent, Nanos, PlacementSettings, PlacementState, Plan,
    Reason, Snapshot, State,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What is written of a value, which is read back as the same.
fn written<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, expected: &str) {
    assert_eq!(serde_json::to_string(value).unwrap(), expected);
    let read: T = serde_json::from_str(expected).unwrap();
    assert_eq!(read, *value);
}

/// Byte for byte what was written before there were these layers, so that records of then are still read.
#[test]
fn layers_that_are_off_leave_no_trace() {
    written(
        &Facts::default(),
        r#"{"kernel":"","topology":{"cpus":[]},"nics":[],"capabilities":[]}"#,
    );
    written(
        &Snapshot::default(),
        r#"{"seq":0,"at":0,"interval":0,"cpus":[],"guests":[],"nics":[],"counters":{"ctx_switches":null,"migrations":null,"irqs":null,"kvm_exits":null}}"#,
    );
    let mut intent = Intent::default();
    let rule = GuestRule::new(GuestMatch::Name("a".into()), Class::BestEffort, None);
    intent.guests.push(rule);
    written(
        &intent,
        r#"{"period":100000000,"cores":{"managed":null,"reserved":""},"partition":{"policy":"energy","thresholds":{"vcpu":0.7,"nq":0.7},"margin":1.1,"hold":1000000000,"best_effort":"idle","leftovers":true,"exploration":{"samples":1000,"allow_violation":0.01,"weight":0.7,"reward":1.03}},"boost":null,"guests":[{"matches":{"name":"a"},"class":"best-effort","slo":null,"boost":true}],"default_class":"unmanaged","nics":[],"act":{"mode":"observe","on_exit":"restore","foreign":"respect"}}"#,
    );
    written(
        &Plan::default(),
        r#"{"generation":0,"parent":null,"at":0,"groups":{"vcpu":"","nq":"","best_effort":"","idle":"","reserved":"","shared":false},"guests":[],"nics":[],"boost":null}"#,
    );
    written(
        &State::default(),
        r#"{"generation":0,"partition":{"thresholds":null,"configured":null,"previous":null,"vcpu_peaks":[],"nq_peaks":[],"average":null,"samples":[],"explorations":0}}"#,
    );
}

/// Records of placements are read that were written before stages had a base, and moves were trusted or not.
#[test]
fn what_placement_has_learned_since_leaves_records_readable() {
    let intent = Intent {
        placement: Some(PlacementSettings::default()),
        ..Intent::default()
    };
    let now = serde_json::to_string(&intent).unwrap();
    let then = now.replace(r#","base":0.0"#, "");
    assert_eq!(now.len() - then.len(), 3 * r#","base":0.0"#.len());
    assert_eq!(serde_json::from_str::<Intent>(&then).unwrap(), intent);
    // A state in which moves are trusted is written as it was.
    written(
        &PlacementState {
            decided: Some(Nanos(7)),
            ..PlacementState::default()
        },
        r#"{"decided":7,"plan":null}"#,
    );
    let reason = Reason::Placed {
        queues: 2,
        slowdown: 1.5,
        present: None,
        kept: false,
        wary: None,
    };
    let text = serde_json::to_string(&reason).unwrap();
    assert!(!text.contains("wary"), "{text}");
    assert_eq!(serde_json::from_str::<Reason>(&text).unwrap(), reason);
}
