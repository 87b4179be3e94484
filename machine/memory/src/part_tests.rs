use super::*;

/// A good part, as text.
fn good() -> String {
    include_str!("../parts/xeon-e5-2620-v4.toml").to_owned()
}

#[test]
fn the_parts_that_come_with_the_room_are_good_and_have_stramashs_table() {
    let all = Catalogue::built_in();
    assert_eq!(all.parts.len() + all.devices.len(), BUILT_IN.len());
    for (name, l1, l2, l3, memory, remote) in [
        ("cortex-a72", 4, 9, None, 300, 780),
        ("thunderx2-cn9980", 4, 9, Some(30), 300, 620),
        ("xeon-e5-2620-v4", 4, 12, Some(38), 300, 640),
        ("xeon-gold-6230r", 4, 14, Some(50), 300, 640),
    ] {
        let expected = Cycles {
            l1,
            l2,
            l3,
            memory,
            remote,
        };
        assert_eq!(all.part(name).expect("there").cycles, expected, "{name}");
    }
}

#[test]
fn each_figure_of_each_part_has_a_source_or_is_called_an_estimate() {
    for (name, text) in BUILT_IN {
        let mut told = false;
        for line in text.lines().map(str::trim) {
            let words = line.starts_with("kind") || line.starts_with("summary");
            if line.starts_with('#') {
                told = true;
            } else if line.is_empty() {
                told = false;
            } else if line.contains('=') && !words {
                assert!(told, "{name}: nobody says where `{line}` is from");
            }
        }
    }
}

#[test]
fn what_cant_be_is_refused_and_named() {
    for (from, to, words) in [
        ("kib = 256", "kib = 200", ["l2", "400", "power of two"]),
        (
            "ways = 20",
            "ways = 0",
            ["l3", "no whole number", "power of two"],
        ),
        ("ways = 20", "ways = 33", ["l3", "33 ways", "1 to 32"]),
        (
            "clock_mhz = 2100",
            "clock_mhz = 0",
            ["clock_mhz", "0", "MHz"],
        ),
        ("l2 = 12", "l2 = 3", ["cycles.l2", "3", "further away"]),
        ("l3 = 38\n", "", ["cycles.l3", "both", "neither"]),
        (
            "memory = 300",
            "memory = 30",
            ["cycles.memory", "30", "further away"],
        ),
        (
            "remote = 640",
            "remote = 64",
            ["cycles.remote", "64", "further away"],
        ),
        ("cores = 8", "cores = 0", ["l3.cores", "0", "share"]),
        (
            "outstanding_misses = 10",
            "outstanding_misses = 0",
            ["outstanding_misses", "0", "1 to 256"],
        ),
        (
            "memory_mb_per_s = 68_300",
            "memory_mb_per_s = 0",
            ["memory_mb_per_s", "0", "millions"],
        ),
        (
            "socket = 92",
            "socket = 9",
            ["snoop_data_cycles", "640", "none less"],
        ),
        ("[l1i]", "l4 = 1\n[l1i]", ["l4", "unknown field", "mine"]),
        (
            "policy = \"inclusive\"",
            "policy = \"some\"",
            ["some", "victim", "mine"],
        ),
    ] {
        let text = good().replacen(from, to, 1);
        assert_ne!(text, good(), "{from} is there to be changed");
        let error = Catalogue::default()
            .add("mine", &text)
            .expect_err(to)
            .to_string();
        for word in words {
            assert!(error.contains(word), "{to}: `{word}` isn't in: {error}");
        }
    }
    let mut all = Catalogue::built_in();
    let twice = all.add("epyc-7742", &good()).expect_err("it is there");
    assert!(twice.to_string().contains("another name"), "{twice}");
}

#[test]
fn a_device_that_cant_be_is_refused() {
    let good = include_str!("../parts/cxl3-pool.toml");
    for (from, to, words) in [
        (
            "latency_ns = 250",
            "latency_ns = 0",
            ["latency_ns", "nanoseconds"],
        ),
        (
            "mb_per_s = 25_100",
            "mb_per_s = 0",
            ["mb_per_s", "millions"],
        ),
        (
            "lines = 131_072",
            "lines = 131_000",
            ["filter", "power of two"],
        ),
    ] {
        let text = good.replacen(from, to, 1);
        let error = Catalogue::default()
            .add("mine", &text)
            .expect_err(to)
            .to_string();
        for word in words {
            assert!(error.contains(word), "{to}: `{word}` isn't in: {error}");
        }
    }
}
