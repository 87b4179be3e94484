//! `docs/ostler.toml`: it is the defaults, and names every key.

use super::super::*;
use crate::{
    Bytes, Class, CpuSet, FilesWish, GuestMatch, GuestRule, GuestTerms, HintsIntent, Nanos,
    PlacementSettings, SizingSettings, TierSettings,
};

const EXAMPLE: &str = include_str!("../../../../../docs/ostler.toml");

#[test]
fn the_example_is_the_defaults() {
    let example = parse(EXAMPLE, "docs/ostler.toml", None).unwrap_or_else(|e| panic!("{e}"));
    let mut expected = Config::default();
    expected.intent.guests = vec![
        GuestRule::new(
            GuestMatch::Name("web-*".into()),
            Class::LatencyCritical,
            Some(Nanos::from_millis(1)),
        ),
        GuestRule::new(
            GuestMatch::Metadata {
                key: "tier".to_owned(),
                value: "batch".to_owned(),
            },
            Class::BestEffort,
            None,
        ),
    ];
    assert_eq!(example, expected);
    assert_eq!(parse("", "empty.toml", None), Ok(Config::default()));
}

#[test]
fn the_example_names_every_key() {
    let rendered = render(&Config::default());
    let spoken: Vec<&str> = EXAMPLE
        .lines()
        .filter_map(|line| line.trim_start_matches("# ").split_once(" = "))
        .map(|(key, _)| key)
        .collect();
    let mut said = GuestRule::new(GuestMatch::Name("a".into()), Class::BestEffort, None);
    said.terms = GuestTerms {
        tenant: Some("a".to_owned()),
        local_min: Bytes(1),
        priority: true,
        hints: true,
        cpus: Some(CpuSet::range(0, 2)),
        files: Some(FilesWish {
            response: Nanos(1),
            least: Bytes(1),
            most: Bytes(1),
            service: Vec::new(),
        }),
    };
    let all = render(&Config {
        intent: crate::Intent {
            boost: Some(crate::BoostSettings::default()),
            placement: Some(PlacementSettings {
                cores_max: Some(1),
                ..PlacementSettings::default()
            }),
            tier: Some(TierSettings::default()),
            sizing: Some(SizingSettings::default()),
            hints: Some(HintsIntent::default()),
            guests: vec![said],
            ..crate::Intent::default()
        },
        ..Config::default()
    });
    let lines = rendered.lines().chain(all.lines());
    for key in lines.filter_map(|line| line.split_once(" = ")) {
        assert!(
            spoken.contains(&key.0),
            "the example is silent on {}",
            key.0
        );
    }
}
