//! Configurations drawn at random: they read as they are rendered, and damage is refused where it is.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::*;
use crate::testing::boost_settings;
use crate::{
    ActIntent, ActMode, Bytes, Class, CoreIntent, CpuSet, ExitPolicy, Exploration, FilesWish,
    ForeignPolicy, GuestMatch, GuestRule, GuestTerms, HintsIntent, Nanos, PartitionIntent,
    PartitionPolicy, PlacementPolicy, PlacementSettings, QueueCount, ServiceTime, SharedCores,
    SizingParts, SizingSettings, StageSettings, TenantFloor, Thresholds, TierSettings,
};

fn nanos(least: u64, most: u64) -> impl Strategy<Value = Nanos> {
    (least..=most).prop_map(Nanos)
}

fn queues() -> impl Strategy<Value = QueueCount> {
    prop_oneof![Just(QueueCount::One), Just(QueueCount::Max)]
}

fn policy() -> impl Strategy<Value = PartitionPolicy> {
    prop_oneof![
        Just(PartitionPolicy::Performance),
        Just(PartitionPolicy::Energy),
        Just(PartitionPolicy::Resource),
        Just(PartitionPolicy::CoreNap),
        queues().prop_map(|queues| PartitionPolicy::TimeSharing { queues }),
        queues().prop_map(|queues| PartitionPolicy::Demeter { queues }),
        (1..4_u32, 1..4_u32).prop_map(|(vcpu, nq)| PartitionPolicy::Static { vcpu, nq }),
    ]
}

fn shared() -> impl Strategy<Value = SharedCores> {
    prop_oneof![
        Just(SharedCores::Idle),
        Just(SharedCores::Equal),
        (1..100_u32).prop_map(SharedCores::Weight),
    ]
}

fn cores() -> impl Strategy<Value = CoreIntent> {
    let reserved = (0..4_u32).prop_map(|end| CpuSet::range(0, end));
    // Six cores at the least, so that every static split above fits.
    let managed = option::of((10..60_u32).prop_map(|end| CpuSet::range(4, end)));
    (managed, reserved).prop_map(|(managed, reserved)| CoreIntent {
        managed: managed.map(|managed| managed.union(&reserved)),
        reserved,
    })
}

fn partition() -> impl Strategy<Value = PartitionIntent> {
    let exploration = (1..=100_000_u32, 0.0..=0.5, 0.01..=1.0, 1.0..=2.0).prop_map(
        |(samples, allow_violation, weight, reward)| Exploration {
            samples,
            allow_violation,
            weight,
            reward,
        },
    );
    let thresholds = (0.05..=1.0, 0.05..=1.0).prop_map(|(vcpu, nq)| Thresholds { vcpu, nq });
    (
        policy(),
        thresholds,
        1.0..=10.0,
        nanos(0, 60_000_000_000),
        option::of(exploration),
        shared(),
        any::<bool>(),
    )
        .prop_map(
            |(policy, thresholds, margin, hold, exploration, shared, leftovers)| PartitionIntent {
                policy,
                thresholds,
                margin,
                hold,
                // The others don't take it.
                best_effort: if policy.weighs() {
                    shared
                } else {
                    SharedCores::default()
                },
                leftovers: leftovers || policy != PartitionPolicy::Resource,
                exploration,
            },
        )
}

fn bytes(least: u64) -> impl Strategy<Value = Bytes> {
    (least..=1 << 50).prop_map(Bytes)
}

fn terms() -> impl Strategy<Value = GuestTerms> {
    let time = nanos(1, 3_600_000_000_000);
    let service = proptest::collection::btree_map(0..=1_u64 << 50, time, 1..5);
    let files = (nanos(1, 3_600_000_000_000), bytes(1), bytes(1), service).prop_map(
        |(response, a, b, service)| FilesWish {
            response,
            least: a.min(b),
            most: a.max(b),
            service: service
                .into_iter()
                .map(|(bytes, time)| ServiceTime {
                    bytes: Bytes(bytes),
                    time,
                })
                .collect(),
        },
    );
    (
        option::of("[ab]"),
        option::of(bytes(0)),
        any::<bool>(),
        any::<bool>(),
        option::of((1..9_u32).prop_map(|end| CpuSet::range(0, end))),
        option::of(files),
    )
        .prop_map(
            |(tenant, local_min, priority, hints, cpus, files)| GuestTerms {
                tenant,
                local_min: local_min.unwrap_or_default(),
                priority,
                hints,
                cpus,
                files,
            },
        )
}

fn placement() -> impl Strategy<Value = PlacementSettings> {
    let policy = prop_oneof![
        Just(PlacementPolicy::Chains),
        Just(PlacementPolicy::NumaAware),
        Just(PlacementPolicy::ContentionAware),
    ];
    let stage = || {
        (nanos(1, 1_000_000), proptest::array::uniform7(0.0..=1000.0)).prop_map(
            |(packet, [cache, memory, interconnect, remote, crossing, load, base])| StageSettings {
                packet,
                cache,
                memory,
                interconnect,
                remote,
                crossing,
                load,
                base,
            },
        )
    };
    (
        policy,
        nanos(10_000_000, 3_600_000_000_000),
        0.0..=1.0,
        any::<bool>(),
        option::of(1..=crate::MAX_CPUS),
        (stage(), stage(), stage()),
    )
        .prop_map(
            |(policy, interval, margin, vcpus, cores_max, (softirq, vhost, vcpu))| {
                PlacementSettings {
                    policy,
                    interval,
                    margin,
                    vcpus,
                    cores_max,
                    softirq,
                    vhost,
                    vcpu,
                }
            },
        )
}

fn tier() -> impl Strategy<Value = TierSettings> {
    (
        (
            nanos(10_000_000, 3_600_000_000_000),
            nanos(0, 3_600_000_000_000),
        ),
        (0.0..=1e12, 0.0..=1.0, 0.0..=1e12),
        (bytes(0), bytes(0), bytes(0)),
        proptest::collection::btree_map("[ab]", bytes(0), 0..3),
    )
        .prop_map(
            |((interval, hold), (misses, hot, io), (moved, step, reserve), tenants)| TierSettings {
                interval,
                misses_per_s: misses,
                hot_share: hot,
                io_per_s: io,
                hold,
                bytes_per_s: moved,
                step,
                reserve,
                tenants: tenants
                    .into_iter()
                    .map(|(tenant, local_min)| TenantFloor { tenant, local_min })
                    .collect(),
            },
        )
}

fn sizing() -> impl Strategy<Value = SizingSettings> {
    let parts = prop_oneof![
        Just(SizingParts::Corrected),
        Just(SizingParts::Both),
        Just(SizingParts::Queue),
        Just(SizingParts::Adaptive),
    ];
    let span = || nanos(100_000_000, 86_400_000_000_000);
    (
        bytes(1),
        bytes(1),
        parts,
        nanos(1, 3_600_000_000_000),
        (span(), span()),
        0.5..=1.0,
    )
        .prop_map(
            |(budget, size_step, parts, response_step, (a, b), memory)| SizingSettings {
                budget,
                parts,
                response_step,
                size_step,
                interval_min: a.min(b),
                interval_max: a.max(b),
                memory,
            },
        )
}

fn hints() -> impl Strategy<Value = HintsIntent> {
    (nanos(1_000_000, 60_000_000_000), 0..=1024_u32, 0..=1024_u32).prop_map(
        |(interval, grants_max, pins_per_core_max)| HintsIntent {
            interval,
            grants_max,
            pins_per_core_max,
        },
    )
}

/// Everything that an operator opts in to.
fn layers(intent: crate::Intent) -> impl Strategy<Value = crate::Intent> {
    (
        option::of(placement()),
        option::of(tier()),
        option::of(sizing()),
        option::of(hints()),
    )
        .prop_map(move |(placement, tier, sizing, hints)| {
            let mut intent = crate::Intent {
                placement,
                tier,
                sizing,
                hints,
                ..intent.clone()
            };
            // Only those that some guest has may have a floor.
            let rules = &intent.guests;
            if let Some(tier) = &mut intent.tier {
                tier.tenants.retain(|floor| {
                    let tenant = Some(&floor.tenant);
                    rules
                        .iter()
                        .any(|rule| rule.terms.tenant.as_ref() == tenant)
                });
            }
            intent
        })
}

fn rules() -> impl Strategy<Value = Vec<GuestRule>> {
    let matches = prop_oneof![
        "[a-z\"\\\\é'=#-]{1,12}\\*?".prop_map(|name| GuestMatch::Name(name.into())),
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".prop_map(GuestMatch::Uuid),
        ("[ -~]{1,8}", "[ -~]{1,8}").prop_map(|(key, value)| GuestMatch::Metadata { key, value }),
    ];
    let class = prop_oneof![
        nanos(1, 60_000_000_000).prop_map(|slo| (Class::LatencyCritical, Some(slo))),
        Just((Class::BestEffort, None)),
        Just((Class::Unmanaged, None)),
    ];
    let rule = (matches, class, any::<bool>(), terms()).prop_map(
        |(matches, (class, slo), boost, terms)| GuestRule {
            boost: boost || class == Class::Unmanaged,
            terms: match class {
                Class::Unmanaged => GuestTerms::default(),
                Class::BestEffort => GuestTerms {
                    cpus: None,
                    ..terms
                },
                Class::LatencyCritical => terms,
            },
            ..GuestRule::new(matches, class, slo)
        },
    );
    vec(rule, 0..6).prop_map(|rules| {
        let mut distinct: Vec<GuestRule> = Vec::new();
        for rule in rules {
            if distinct
                .iter()
                .all(|earlier| earlier.matches != rule.matches)
            {
                distinct.push(rule);
            }
        }
        distinct
    })
}

fn intent() -> impl Strategy<Value = crate::Intent> {
    let act = (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(a, b, c)| ActIntent {
        mode: if a { ActMode::Act } else { ActMode::Observe },
        on_exit: if b {
            ExitPolicy::Keep
        } else {
            ExitPolicy::Restore
        },
        foreign: if c {
            ForeignPolicy::Reown
        } else {
            ForeignPolicy::Respect
        },
    });
    let default_class = prop_oneof![Just(Class::BestEffort), Just(Class::Unmanaged)];
    let nics = proptest::collection::btree_set("[a-z][a-z0-9.-]{0,14}", 0..4);
    (
        nanos(10_000_000, 60_000_000_000),
        cores(),
        partition(),
        rules(),
        default_class,
        nics,
        act,
        option::of(boost_settings()),
    )
        .prop_map(
            |(period, cores, partition, guests, default_class, nics, act, boost)| crate::Intent {
                period,
                cores,
                // That scheduler knows no weights.
                boost: boost.filter(|_| {
                    !partition.policy.weighs() || partition.best_effort == SharedCores::Equal
                }),
                partition,
                guests,
                default_class,
                nics: nics.into_iter().collect(),
                act,
                ..crate::Intent::default()
            },
        )
        .prop_flat_map(layers)
}

fn daemon() -> impl Strategy<Value = DaemonConfig> {
    let path = || "/[a-z0-9/ \"\\\\é*]{0,40}";
    let discovery = (vec(path(), 0..3), option::of("[a-z:/+]{1,20}"))
        .prop_map(|(qmp, libvirt)| DiscoveryConfig { qmp, libvirt });
    let agent =
        (any::<bool>(), 1..u32::MAX).prop_map(|(enabled, port)| AgentConfig { enabled, port });
    let api = (
        path(),
        option::of("[a-z]{1,8}"),
        vec(0..u32::MAX, 0..3),
        any::<bool>(),
    )
        .prop_map(|(socket, group, uids, metrics)| ApiConfig {
            socket,
            group,
            uids,
            metrics,
        });
    let record = (
        any::<bool>(),
        path(),
        (1_u64 << 20..=1 << 40).prop_map(Bytes),
        nanos(60_000_000_000, 3650 * 86_400_000_000_000),
    )
        .prop_map(|(enabled, path, max_size, max_age)| RecordConfig {
            enabled,
            path,
            max_size,
            max_age,
        });
    (discovery, agent, api, record, path()).prop_map(|(discovery, agent, api, record, path)| {
        DaemonConfig {
            discovery,
            agent,
            api,
            record,
            journal: JournalConfig { path },
        }
    })
}

fn config() -> impl Strategy<Value = Config> {
    (intent(), daemon()).prop_map(|(intent, daemon)| Config { intent, daemon })
}

/// A configuration's text in which one of the lines that set a key is another, made of its key and value; that line's number, and its key.
fn with_another_line(
    config: &Config,
    at: prop::sample::Index,
    other: impl Fn(&str, &str) -> String,
) -> (String, usize, String) {
    let text = render(config);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let keys: Vec<usize> = (0..lines.len())
        .filter(|&at| lines[at].contains(" = "))
        .collect();
    let line = keys[at.index(keys.len())];
    let (key, value) = lines[line].split_once(" = ").expect("a key and its value");
    let (key, changed) = (key.to_owned(), other(key, value));
    lines[line] = changed;
    (lines.join("\n") + "\n", line + 1, key)
}

proptest! {
    #[test]
    fn what_is_rendered_reads_the_same(config in config()) {
        let text = render(&config);
        prop_assert_eq!(parse(&text, "x.toml", None), Ok(config), "{}", text);
    }

    #[test]
    fn any_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        fuzz_entry(&bytes);
    }

    #[test]
    fn a_damaged_configuration_never_panics(
        config in config(),
        damage in vec((any::<prop::sample::Index>(), "[ -~\n]{0,6}"), 1..6),
    ) {
        let mut text: Vec<char> = render(&config).chars().collect();
        for (at, with) in damage {
            let at = at.index(text.len());
            text.splice(at..(at + 3).min(text.len()), with.chars());
        }
        fuzz_entry(text.into_iter().collect::<String>().as_bytes());
    }

    /// Each key in turn is misspelt: exactly that line is refused, and the remedy knows the key where the slip is small.
    #[test]
    fn every_misspelt_key_is_refused_where_it_stands(
        config in config(),
        at in any::<prop::sample::Index>(),
    ) {
        let (mutated, line, key) = with_another_line(&config, at, |key, value| format!("{key}x = {value}"));
        let errors = parse(&mutated, "x.toml", None).expect_err("a misspelt key is refused");
        let found = errors.iter().find(|error| error.line == line).expect("an error on the line of the key");
        prop_assert!(found.what.starts_with(&format!("`{key}x` is not known")), "{}", found);
        prop_assert_eq!(&found.remedy, &format!("did you mean `{key}`?"));
        prop_assert_eq!((found.column, found.width), (1, key.len() + 1));
    }

    /// Each value in turn is given a type that no key takes: that line is refused.
    #[test]
    fn every_wrong_type_is_refused_where_it_stands(
        config in config(),
        at in any::<prop::sample::Index>(),
    ) {
        let (mutated, line, _) = with_another_line(&config, at, |key, _| format!("{key} = 1979-05-27"));
        let errors = parse(&mutated, "x.toml", None).expect_err("a wrong type is refused");
        let found = errors.iter().find(|error| error.line == line).expect("an error on the line of the key");
        prop_assert!(found.what.contains("not a date"), "{}", found);
    }
}
