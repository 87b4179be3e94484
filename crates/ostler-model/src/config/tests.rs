//! Properties of configurations, and one example of each refusal.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::testing::boost_settings;
use crate::{
    ActIntent, ActMode, Bytes, Class, CoreIntent, Cpu, CpuId, CpuSet, ExitPolicy, Exploration,
    FilesWish, ForeignPolicy, GuestMatch, GuestRule, GuestTerms, HintsIntent, MemoryFacts,
    MemoryNode, Nanos, NicFacts, NodeId, PartitionIntent, PartitionPolicy, PlacementPolicy,
    PlacementSettings, QueueCount, ServiceTime, SharedCores, SizingParts, SizingSettings,
    StageSettings, TenantFloor, Thresholds, TierSettings, Topology,
};

const EXAMPLE: &str = include_str!("../../../../docs/ostler.toml");

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
        (nanos(1, 1_000_000), proptest::array::uniform6(0.0..=1000.0)).prop_map(
            |(packet, [cache, memory, interconnect, remote, crossing, load])| StageSettings {
                packet,
                cache,
                memory,
                interconnect,
                remote,
                crossing,
                load,
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
        let text = render(&config);
        let lines: Vec<&str> = text.lines().collect();
        let keys: Vec<usize> = (0..lines.len()).filter(|&at| lines[at].contains(" = ")).collect();
        let line = keys[at.index(keys.len())];
        let key = lines[line].split(" = ").next().unwrap_or_default();
        let mutated: String = lines
            .iter()
            .enumerate()
            .map(|(at, text)| if at == line { format!("{key}x{}\n", &text[key.len()..]) } else { format!("{text}\n") })
            .collect();
        let errors = parse(&mutated, "x.toml", None).expect_err("a misspelt key is refused");
        let found = errors.iter().find(|error| error.line == line + 1).expect("an error on the line of the key");
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
        let text = render(&config);
        let lines: Vec<&str> = text.lines().collect();
        let keys: Vec<usize> = (0..lines.len()).filter(|&at| lines[at].contains(" = ")).collect();
        let line = keys[at.index(keys.len())];
        let key = lines[line].split(" = ").next().unwrap_or_default();
        let mutated: String = lines
            .iter()
            .enumerate()
            .map(|(at, text)| if at == line { format!("{key} = 1979-05-27\n") } else { format!("{text}\n") })
            .collect();
        let errors = parse(&mutated, "x.toml", None).expect_err("a wrong type is refused");
        let found = errors.iter().find(|error| error.line == line + 1).expect("an error on the line of the key");
        prop_assert!(found.what.contains("not a date"), "{}", found);
    }
}

fn refused(text: &str) -> Vec<(usize, usize, String)> {
    match parse(text, "x.toml", Some(&host())) {
        Ok(_) => Vec::new(),
        Err(errors) => errors
            .iter()
            .map(|error| (error.line, error.column, error.what.clone()))
            .collect(),
    }
}

fn host() -> Facts {
    let cpus = (0..6).map(|id| Cpu {
        id: CpuId(id),
        node: NodeId(0),
        core: CpuId(id),
        cache_group: CpuId(0),
    });
    Facts {
        topology: Topology {
            cpus: cpus.collect(),
        },
        nics: vec![NicFacts {
            name: "eth0".to_owned(),
            queues_max: 4,
            rss_settable: true,
            node: None,
        }],
        memory: MemoryFacts {
            nodes: vec![MemoryNode {
                node: NodeId(0),
                bytes: Bytes(16 << 30),
                far: false,
                latency: None,
                bytes_per_s: None,
            }],
            distances: Vec::new(),
        },
        ..Facts::default()
    }
}

#[test]
#[allow(clippy::too_many_lines)] // A table of examples is as long as it has rows.
fn each_mistake_is_refused_at_its_place() {
    for (text, line, column, what) in [
        (
            "[steward]\nperiod = 100",
            2,
            10,
            "must be a duration in quotes, not an integer",
        ),
        ("[steward]\nperiod = \"100\"", 2, 10, "has no unit"),
        (
            "[steward]\nperiod = \"100 parsecs\"",
            2,
            10,
            "unit `parsecs`",
        ),
        ("[steward]\nperiod = \"1ms\"", 2, 10, "outside 10ms to 1min"),
        ("[steward]\nmode = \"atc\"", 2, 8, "not known"),
        (
            "[steward]\ndefault_class = \"latency-critical\"",
            2,
            17,
            "needs an objective",
        ),
        (
            "[discovery]\nqmp = [\"/run/qemu/*.qmp\", \"/var/lib/libvirt/qemu/*/monitor.sock\"]",
            2,
            27,
            "libvirt's own monitor",
        ),
        ("[boost]\nmode = \"io\"", 2, 8, "knows no weights"),
        ("[boost]\nslice = \"20ms\"", 2, 9, "shorter than `slice`"),
        (
            "[boost]\nthreshold = 100",
            2,
            13,
            "no vCPU would ever do IO",
        ),
        ("[boost]\nslice = \"0ms\"", 2, 9, "outside 100us to 100ms"),
        ("[boost]\nconflict = \"me\"", 2, 12, "not known"),
        (
            "[[guest]]\nname = \"x\"\nclass = \"unmanaged\"\nboost = false",
            4,
            9,
            "`boost` says nothing",
        ),
        (
            "[[guest]]\nname = \"x\"\nclass = \"unmanaged\"\npriority = true",
            4,
            12,
            "`priority` says nothing",
        ),
        (
            "[[guest]]\nname = \"x\"\nclass = \"best-effort\"\nfiles = { response = \"1s\" }",
            4,
            9,
            "says no `service`",
        ),
        (
            "[[guest]]\nname = \"x\"\nclass = \"best-effort\"\nfiles = { response = \"1s\", service = [[\"1MiB\", \"1s\"], [\"1MiB\", \"1s\"]] }",
            4,
            55,
            "no more memory than",
        ),
        (
            "[[guest]]\nname = \"x\"\nclass = \"best-effort\"\nfiles = { response = \"1s\", service = [\"1MiB\"] }",
            4,
            39,
            "must be a list of a size and a time",
        ),
        (
            "[[guest]]\nname = \"x\"\nclass = \"best-effort\"\nfiles = { response = \"1s\", service = [] }",
            4,
            28,
            "`service` has 0 times",
        ),
        (
            "[[guest]]\nname = \"x\"\nclass = \"best-effort\"\nfiles = { response = \"1s\", least = \"2GiB\", most = \"1GiB\", service = [[\"1MiB\", \"1s\"]] }",
            4,
            51,
            "`most` is below `least`",
        ),
        ("[placement]\npolicy = \"chain\"", 2, 10, "not known"),
        ("[placement]\ncores_max = 0", 2, 13, "outside 1 to"),
        ("[placement.vhost]\ncache = -1", 2, 9, "outside 0 to 1000"),
        ("[tier]\nenabled = \"yes\"", 2, 11, "must be true or false"),
        (
            "[tier]\ntenants = { a = \"1GiB\" }",
            2,
            11,
            "no [[guest]] rule has the tenant `a`",
        ),
        (
            "[tier]\ntenants = { a = \"17GiB\" }\n[[guest]]\nname = \"x\"\nclass = \"best-effort\"\ntenant = \"a\"",
            2,
            11,
            "take 17GiB, and this host has 16GiB",
        ),
        ("[sizing]\nenabled = true", 2, 11, "nothing to share out"),
        (
            "[sizing]\nbudget = \"17GiB\"",
            2,
            10,
            "take 17GiB, and this host has 16GiB",
        ),
        (
            "[sizing]\ninterval_max = \"10s\"",
            2,
            16,
            "shorter than `interval_min`",
        ),
        ("[hints]\ninterval = \"2min\"", 2, 12, "outside 1ms to 1min"),
        ("[stewart]\nmode = \"act\"", 1, 2, "`stewart` is not known"),
        ("steward = 1", 1, 11, "must be a table"),
        (
            "[cores]\nmanaged = \"0-3\"\nreserved = \"3\"",
            3,
            12,
            "CPU 3 is both managed and reserved",
        ),
        (
            "[cores]\nmanaged = \"0-7\"",
            2,
            11,
            "names CPU 6-7, which is not online",
        ),
        ("[cores]\nmanaged = \"0-3,2\"", 2, 11, "names CPU 2 twice"),
        ("[cores]\nmanaged = \"3-0\"", 2, 11, "runs backwards"),
        ("[cores]\nmanaged = \"1\"", 2, 11, "only 1 CPU is left"),
        ("[cores]\nreserved = \"0-4\"", 2, 12, "only 1 CPU is left"),
        (
            "[partition]\npolicy = \"static\"\nvcpu = 5\nnq = 3",
            3,
            8,
            "ask for 8 cores, and 6",
        ),
        (
            "[partition]\npolicy = \"static\"\nvcpu = 5",
            2,
            10,
            "needs `nq`",
        ),
        (
            "[partition]\npolicy = \"energy\"\nnq = 2",
            3,
            1,
            "is a parameter of the policy \"static\"",
        ),
        (
            "[partition]\nthresholds = { vcpu = 1.5 }",
            2,
            23,
            "outside 0.05 to 1",
        ),
        (
            "[partition]\nthresholds = { nq = \"150%\" }",
            2,
            21,
            "outside 0.05 to 1",
        ),
        (
            "[partition]\nthresholds = { nq = nan }",
            2,
            21,
            "not a finite number",
        ),
        ("[partition]\nmargin = 0.9", 2, 10, "outside 1 to 10"),
        (
            "[partition]\nbest_effort = 100",
            2,
            15,
            "is 100, outside 1 to 99",
        ),
        (
            "[partition]\nbest_effort = 0",
            2,
            15,
            "is 0, outside 1 to 99",
        ),
        (
            "[partition]\nbest_effort = \"idel\"",
            2,
            15,
            "is `idel`, which is not known",
        ),
        (
            "[partition]\npolicy = \"corenap\"\nbest_effort = \"idle\"",
            3,
            1,
            "is a parameter of the policies \"energy\"",
        ),
        (
            "[partition]\nleftovers = true",
            2,
            1,
            "is a parameter of the policy \"resource\"",
        ),
        (
            "[partition.exploration]\nsamples = 0",
            2,
            11,
            "outside 1 to",
        ),
        (
            "[[guest]]\nname = \"a\"\nclass = \"latency-critical\"",
            3,
            9,
            "needs an objective",
        ),
        (
            "[[guest]]\nname = \"a\"\nclass = \"best-effort\"\nslo = \"1ms\"",
            4,
            1,
            "has no objective",
        ),
        (
            "[[guest]]\nname = \"a\"\nclass = \"latency-critical\"\nslo = \"0ms\"",
            4,
            7,
            "no guest can meet",
        ),
        (
            "[[guest]]\nname = \"a\"\nclass = \"latency-critical\"\nslo = \"2min\"",
            4,
            7,
            "no one waits for",
        ),
        (
            "[[guest]]\nname = \"a\"\nuuid = \"c7a5fdbd-edaf-9455-926a-d65c16db1809\"\nclass = \"best-effort\"",
            3,
            1,
            "both `name` and `uuid`",
        ),
        (
            "[[guest]]\nclass = \"best-effort\"",
            1,
            1,
            "says of no guest",
        ),
        ("[[guest]]\nname = \"a\"", 1, 1, "no class"),
        (
            "[[guest]]\nname = \"a\"\nclass = \"best-effort\"\n[[guest]]\nname = \"a\"\nclass = \"unmanaged\"",
            5,
            8,
            "never applies",
        ),
        (
            "[[guest]]\nname = \"*\"\nclass = \"best-effort\"\n[[guest]]\nname = \"a\"\nclass = \"unmanaged\"",
            5,
            8,
            "never applies",
        ),
        (
            "[network]\nnics = [\"eth0\", \"eth1\"]",
            2,
            17,
            "`eth1` is no physical NIC",
        ),
        (
            "[network]\nnics = [\"../x\"]",
            2,
            9,
            "no network interface can be called",
        ),
        (
            "[api]\nsocket = \"run/x\"",
            2,
            10,
            "does not begin with a slash",
        ),
        (
            "[record]\nmax_size = \"1KiB\"",
            2,
            12,
            "outside 1MiB to 1TiB",
        ),
        ("a = [1\nb = 2", 2, 1, ""),
    ] {
        let found = refused(text);
        assert!(
            found
                .iter()
                .any(|(l, c, w)| (*l, *c) == (line, column) && w.contains(what)),
            "wanted {line}:{column} {what}\nin {text}\nfound {found:?}"
        );
    }
}

#[test]
fn all_mistakes_are_reported_at_once_in_order() {
    let text = "[steward]\nperoid = \"100ms\"\nmode = 3\n[partition]\nmargin = 0\n[[guest]]\nname = \"x\"\nclass = \"best\"\n";
    let lines: Vec<usize> = refused(text).iter().map(|&(line, ..)| line).collect();
    assert_eq!(lines, [2, 3, 5, 8]);
}

#[test]
fn an_error_underlines_what_it_is_about() {
    let errors = parse("[steward]\n\tperoid = \"1s\"\n", "etc/o.toml", None).expect_err("refused");
    assert_eq!(
        errors.to_string(),
        "error: `peroid` is not known in [steward]\n --> etc/o.toml:2:2\n  |\n2 | \tperoid = \"1s\"\n  | \t^^^^^^\n  = did you mean `period`?"
    );
}

#[test]
fn the_number_of_errors_is_bounded() {
    let text = (0..500).fold(String::new(), |text, n| text + &format!("k{n} = 1\n"));
    let errors = parse(&text, "x.toml", None).expect_err("refused");
    assert_eq!(errors.iter().count(), ERRORS_MAX);
    assert!(parse(&" ".repeat(TEXT_BYTES_MAX + 1), "x.toml", None).is_err());
}

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

/// A word that isn't known has two ways out here, and both are told.
#[test]
fn an_unknown_word_for_a_weight_is_told_of_weights_too() {
    let text = "[partition]\nbest_effort = \"sometimes\"";
    let errors = parse(text, "x.toml", None).expect_err("it is no weight");
    let told: Vec<_> = errors.iter().map(|error| error.remedy.clone()).collect();
    assert!(
        told.iter()
            .any(|remedy| remedy.contains("\"idle\"") && remedy.contains("a weight from 1 to 99")),
        "{told:?}"
    );
}
