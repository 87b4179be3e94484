//! Each mistake is refused at its place, with what to do.

use super::super::*;
use crate::{Bytes, Cpu, CpuId, MemoryFacts, MemoryNode, NicFacts, NodeId, Topology};

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
