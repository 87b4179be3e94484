//! What accesses cost, on the parts that come with the room: each level's latency is the table's, and a stream gets a
//! device's bandwidth.
#![allow(clippy::format_push_string, reason = "short texts, made once")]

mod common;

use common::Random;
use ostler_machine_memory::{Catalogue, Charge, Kind, Level, Node, Range, System, Topology};

const GIB: u64 = 1 << 30;

/// Two sockets of four cores, and a pool attached to neither.
fn two_sockets(part: &str, device: &str) -> Topology {
    let mut text = String::new();
    for socket in 0..2 {
        let first = socket * 4;
        let last = first + 3;
        text += &format!(
            "[[cores]]\nfirst = {first}\nlast = {last}\npart = '{part}'\nnode = {socket}\n"
        );
    }
    for node in 0..3 {
        text += &format!(
            "[[nodes]]\nranges = [{{ start = {}, bytes = {GIB} }}]\n",
            node * GIB
        );
    }
    text += &format!("device = '{device}'\n");
    Topology::parse(&text).expect("a good topology")
}

/// A core and its time.
struct Walker<'a> {
    system: &'a System,
    core: usize,
    now_ps: u64,
}

impl Walker<'_> {
    fn access(&mut self, kind: Kind, address: u64) -> Charge {
        let charge = self.system.access(self.core, kind, address, || self.now_ps);
        self.now_ps += charge.picoseconds;
        charge
    }

    /// Chases pointers around a ring of lines, once to warm up and twice to measure. Returns the mean latency, ns, and the
    /// share that `level` served.
    fn chase(&mut self, start: u64, lines: u64, level: Level) -> (f64, f64) {
        let mut ring: Vec<u64> = (0..lines).collect();
        Random(lines).shuffle(&mut ring);
        let mut around = || -> (u64, u64) {
            let mut served = 0;
            let before = self.now_ps;
            for line in &ring {
                served += u64::from(self.access(Kind::Load, start + line * 64).level == level);
            }
            (self.now_ps - before, served)
        };
        around();
        let (one, other) = (around(), around());
        let all = 2.0 * lines as f64;
        (
            (one.0 + other.0) as f64 / 1000.0 / all,
            (one.1 + other.1) as f64 / all,
        )
    }
}

impl Walker<'_> {
    /// The same with lines that nobody has touched.
    fn cold(&mut self, start: u64, lines: u64, level: Level) -> (f64, f64) {
        // Every other line: two neighbours one after the other would be a stream.
        let mut all: Vec<u64> = (0..lines).map(|line| start + line * 128).collect();
        Random(lines).shuffle(&mut all);
        let before = self.now_ps;
        let mut served = 0;
        for address in all {
            served += u64::from(self.access(Kind::Load, address).level == level);
        }
        let latency = (self.now_ps - before) as f64 / 1000.0 / lines as f64;
        (latency, served as f64 / lines as f64)
    }
}

/// Lines that a cache of so many KiB has room for.
fn lines(kib: u64) -> u64 {
    kib * 16
}

#[test]
fn a_pointer_chase_costs_what_the_table_says() {
    let catalogue = Catalogue::built_in();
    for name in [
        "cortex-a72",
        "thunderx2-cn9980",
        "xeon-e5-2620-v4",
        "xeon-gold-6230r",
        "epyc-7742",
    ] {
        let part = catalogue
            .part(name)
            .expect("it comes with the room")
            .clone();
        let device = catalogue.device("cxl2-e3s-x8").expect("likewise").clone();
        let system =
            System::new(&two_sockets(name, "cxl2-e3s-x8"), &catalogue).expect("a good machine");
        let ns = |cycles: u32| f64::from(cycles) * 1000.0 / f64::from(part.clock_mhz);
        let check = |what: &str, (latency, share): (f64, f64), expected: f64| {
            let off = (latency / expected - 1.0).abs();
            assert!(
                off <= 0.01 && share >= 0.99,
                "{name}, {what}: {latency:.3} ns, expected {expected:.3}; {share:.3} of them there"
            );
        };
        let mut walker = Walker {
            system: &system,
            core: 0,
            now_ps: 0,
        };
        let cycles = part.cycles;
        check(
            "L1",
            walker.chase(0, lines(part.l1d.kib) / 2, Level::L1),
            ns(cycles.l1),
        );
        let l1 = lines(part.l1d.kib);
        check(
            "L2",
            walker.chase(0, (2 * l1).min(lines(part.l2.kib) / 2), Level::L2),
            ns(cycles.l2),
        );
        if let Some(l3) = cycles.l3 {
            check(
                "L3",
                walker.chase(0, 2 * lines(part.l2.kib), Level::L3),
                ns(l3),
            );
        }
        for (what, start, level, expected) in [
            ("memory", GIB / 2, Level::Local, ns(cycles.memory)),
            ("remote", GIB, Level::Remote, ns(cycles.remote)),
            ("pool", 2 * GIB, Level::Pool, f64::from(device.latency_ns)),
        ] {
            check(what, walker.cold(start, 20_000, level), expected);
        }
        assert_eq!(
            system.counts(0).queued_ps,
            0,
            "a single core that waits for each access finds no queue"
        );
        assert_eq!(
            system.counts(0).charged_ps,
            walker.now_ps,
            "{name}: what was charged is what was counted"
        );
    }
}

#[test]
fn a_line_that_goes_to_and_fro_costs_snoops() {
    let catalogue = Catalogue::built_in();
    let part = catalogue
        .part("epyc-7742")
        .expect("it comes with the room")
        .clone();
    let mut topology = two_sockets("epyc-7742", "cxl2-e3s-x8");
    topology.cores[0].group_cores = Some(2);
    let system = System::new(&topology, &catalogue).expect("a good machine");
    let ps = |cycles: u32| u64::from(cycles) * 1_000_000 / u64::from(part.clock_mhz);
    let data = part.snoop_data_cycles;
    for (other, expected) in [(1, data.group), (2, data.socket), (4, data.remote)] {
        system.access(0, Kind::Store, 4096, || 0);
        for core in [other, 0, other] {
            let charge = system.access(core, Kind::Store, 4096, || 0);
            assert_eq!(
                charge,
                Charge {
                    picoseconds: ps(expected),
                    level: Level::Peer
                },
                "core {core}"
            );
        }
    }
    // Shared by three, in three groups: a store by one of them tells the furthest.
    for core in [0, 2, 4] {
        system.access(core, Kind::Load, 8192, || 0);
    }
    let before = system.counts(4).snoops_received;
    let charge = system.access(0, Kind::Store, 8192, || 0);
    let invalidate = part.snoop_invalidate_cycles.remote;
    assert_eq!(
        charge,
        Charge {
            picoseconds: ps(part.cycles.l1) + ps(invalidate),
            level: Level::L1
        }
    );
    assert_eq!(system.counts(4).snoops_received, before + 1);
}

#[test]
fn a_full_filter_takes_lines_back() {
    let catalogue = Catalogue::built_in();
    let device = catalogue
        .device("cxl3-pool")
        .expect("it comes with the room")
        .clone();
    let filter = device.filter.expect("it has one");
    let system = System::new(&two_sockets("thunderx2-cn9980", "cxl3-pool"), &catalogue)
        .expect("a good machine");
    // The first line of each of one set's ways, and one more.
    let step = filter.lines / filter.ways as u64 * 64;
    for way in 0..filter.ways as u64 {
        let charge = system.access(0, Kind::Store, 2 * GIB + way * step, || 0);
        assert_eq!(charge.picoseconds, u64::from(device.latency_ns) * 1000);
    }
    // The first has left L2 meanwhile, and comes back; the filter doesn't see that.
    let charge = system.access(0, Kind::Load, 2 * GIB, || 0);
    assert_eq!(charge.level, Level::L3);
    let charge = system.access(4, Kind::Load, 2 * GIB + filter.ways as u64 * step, || 0);
    let expected = u64::from(device.latency_ns + device.back_invalidate_ns) * 1000;
    assert_eq!(
        charge,
        Charge {
            picoseconds: expected,
            level: Level::Pool
        }
    );
    let (loser, winner) = (system.counts(0), system.counts(4));
    assert_eq!((loser.back_invalidated, winner.back_invalidations), (1, 1));
    assert_eq!(
        winner.node_bytes,
        [0, 0, 128],
        "what it read and what was written back for it"
    );
}

/// Cores stream through memory, each through its own part, in quanta that they run one after the other: as skewed as it gets.
/// Returns bytes per nanosecond, and the share of time that was spent in the queue.
fn stream(system: &System, cores: usize, start: u64, quanta: u64) -> (f64, f64) {
    const QUANTUM: u64 = 10_000_000;
    let mut walkers: Vec<(Walker, u64)> = (0..cores)
        .map(|core| {
            (
                Walker {
                    system,
                    core,
                    now_ps: 0,
                },
                start + core as u64 * (GIB / 64),
            )
        })
        .collect();
    let mut bytes = 0_u64;
    for quantum in 1..=quanta {
        for (walker, next) in &mut walkers {
            while walker.now_ps < quantum * QUANTUM {
                walker.access(Kind::Load, *next);
                *next += 64;
                bytes += 64;
            }
        }
    }
    let time: u64 = walkers.iter().map(|(walker, _)| walker.now_ps).sum::<u64>() / cores as u64;
    let queued: u64 = (0..cores).map(|core| system.counts(core).queued_ps).sum();
    (
        bytes as f64 * 1000.0 / time as f64,
        queued as f64 / (time * cores as u64) as f64,
    )
}

#[test]
fn a_stream_gets_the_devices_bandwidth_and_a_lighter_one_never_waits() {
    let catalogue = Catalogue::built_in();
    for mb_per_s in [1_000, 6_000, 25_100] {
        let mut topology = two_sockets("xeon-gold-6230r", "cxl2-e3s-x8");
        topology.nodes[2].mb_per_s = Some(mb_per_s);
        let limit = mb_per_s as f64 / 1000.0;
        let system = System::new(&topology, &catalogue).expect("a good machine");
        // Eight cores with twelve lines on their way each, 250 ns for each twelve: 24.6 GB/s if nothing holds them.
        let (got, queued) = stream(&system, 8, 2 * GIB, 40);
        let wanted = 8.0 * 64.0 * 12.0 / 250.0;
        let expected = limit.min(wanted);
        assert!(
            (got / expected - 1.0).abs() <= 0.05,
            "{got:.2} GB/s of {expected:.2}"
        );
        assert_eq!(
            queued > 0.0,
            wanted > limit,
            "it waits if, and only if, it wants more than there is"
        );
    }
}

#[test]
fn without_overlap_each_line_of_a_stream_costs_its_latency() {
    let catalogue = Catalogue::built_in();
    let mut topology = two_sockets("xeon-gold-6230r", "cxl2-e3s-x8");
    topology.overlap = false;
    let system = System::new(&topology, &catalogue).expect("a good machine");
    for line in 0..100 {
        let charge = system.access(0, Kind::Load, line * 64, || 0);
        assert_eq!(charge.picoseconds, 300 * 1_000_000 / 2100);
    }
}

#[test]
fn an_access_of_several_lines_costs_them_all() {
    let catalogue = Catalogue::built_in();
    let system = System::new(&two_sockets("xeon-gold-6230r", "cxl2-e3s-x8"), &catalogue)
        .expect("a good machine");
    let latency = 300 * 1_000_000 / 2100;
    let charge = system.access_bytes(0, Kind::Load, 60, 8, || 0);
    assert_eq!(
        charge,
        Charge {
            picoseconds: latency + latency / 12,
            level: Level::Local
        }
    );
    assert_eq!(system.counts(0).accesses(), 2);
    let outside = system.access(0, Kind::Store, 3 * GIB, || 0);
    assert_eq!(
        outside,
        Charge {
            picoseconds: 0,
            level: Level::Nowhere
        }
    );
}

#[test]
fn a_node_may_say_how_far_and_how_fast_it_is() {
    let catalogue = Catalogue::built_in();
    let mut topology = two_sockets("xeon-gold-6230r", "cxl2-e3s-x8");
    topology.nodes[2].attached_to = Some(1);
    topology.nodes[0].latency_ns = Some(110);
    topology.nodes.push(Node {
        ranges: vec![Range {
            start: 3 * GIB,
            bytes: GIB,
        }],
        latency_ns: Some(400),
        mb_per_s: Some(9_000),
        ..Node::default()
    });
    let system = System::new(&topology, &catalogue).expect("a good machine");
    let hop = 640 * 1_000_000 / 2100 - 300 * 1_000_000 / 2100;
    for (core, address, ps, level) in [
        (0, 0, 110_000, Level::Local),
        (4, 4096, 110_000 + hop, Level::Remote),
        (4, 2 * GIB, 250_000, Level::Pool),
        (0, 2 * GIB + 4096, 250_000 + hop, Level::Pool),
        (0, 3 * GIB, 400_000, Level::Pool),
    ] {
        let charge = system.access(core, Kind::Load, address, || 0);
        assert_eq!(
            charge,
            Charge {
                picoseconds: ps,
                level
            },
            "core {core}, {address:#x}"
        );
    }
}
