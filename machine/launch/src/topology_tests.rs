use std::path::Path;

use ostler_machine_memory::{Kind, Level, System};
use proptest::prelude::*;

use super::*;

const PARTS: [&str; 5] = [
    "cortex-a72",
    "thunderx2-cn9980",
    "xeon-e5-2620-v4",
    "xeon-gold-6230r",
    "epyc-7742",
];

/// Two machines in a model of the documentation's layouts.
fn world(model: &str, parts: [&str; 2], cores: [u32; 2], memory: &str) -> World {
    let machines = [("x86", "x86-64"), ("arm", "aarch64")]
        .into_iter()
        .zip(parts)
        .zip(cores)
        .map(|(((name, isa), part), cores)| {
            format!("[[machine]]\nname = \"{name}\"\nisa = \"{isa}\"\ncores = {cores}\npart = \"{part}\"\nkernel = \"k\"\n")
        });
    let machines = machines.collect::<Vec<_>>().concat();
    let ranges: &[(&str, &str, &str)] = match model {
        "separated" => &[
            ("0M", "1G", "x86"),
            ("1G", "3G", "arm"),
            ("4G", "1G", "x86"),
        ],
        "shared" => &[
            ("0M", "1G", "x86"),
            ("1G", "3G", "arm"),
            ("4G", "1G", "pool"),
        ],
        _ => &[("0M", "1G", "x86"), ("1G", "1G", "pool")],
    };
    let ranges = ranges.iter().map(|(start, size, owner)| {
        format!("[[memory.range]]\nstart = \"{start}\"\nsize = \"{size}\"\nowner = \"{owner}\"\n")
    });
    let ranges = ranges.collect::<Vec<_>>().concat();
    let text = format!(
        "{machines}[memory]\nmodel = \"{model}\"\n{memory}{ranges}[time]\ninterrupt_ns = 20000\n"
    );
    World::parse(&text, Path::new("w.toml")).unwrap_or_else(|error| panic!("{error}"))
}

/// What a machine's first core pays for memory that nobody has touched, ps.
fn pays(system: &System, world: &World, machine: usize, address: u64) -> (Level, u64) {
    let core = world.first_core(machine) as usize;
    let charge = system.access(core, Kind::Load, address, || 0);
    (charge.level, charge.picoseconds)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn each_machine_pays_by_its_own_parts_table(
        parts in prop::sample::select(vec![[0, 1], [3, 1], [2, 0], [4, 1], [1, 4]]),
        cores in (1_u32..6, 1_u32..6),
        line in 0_u64..1 << 22,
    ) {
        let parts = parts.map(|part| PARTS[part]);
        let catalogue = Catalogue::built_in();
        for model in ["separated", "shared", "fully-shared"] {
            let world = world(model, parts, [cores.0, cores.1], "");
            let topology = world.topology().expect("there are parts");
            let system = System::new(&topology, &catalogue).expect("it is good");
            prop_assert_eq!(system.cores(), (cores.0.max(2) + cores.1.max(2)) as usize);
            for (machine, part) in parts.iter().enumerate() {
                let part = catalogue.part(part).expect("it is known");
                let ps = |cycles: u32| u64::from(cycles) * 1_000_000 / u64::from(part.clock_mhz);
                let (near, far) = (ps(part.cycles.memory), ps(part.cycles.remote));
                let pool = u64::from(catalogue.device(POOL).expect("it is known").latency_ns) * 1000;
                // Lines that aren't next to the other machine's, or to another access's.
                let at = |gib: u64| (gib << 30) + ((line ^ machine as u64) << 8);
                let expected = match model {
                    "separated" if machine == 0 => [(0, Level::Local, near), (1, Level::Remote, far), (4, Level::Local, near)],
                    "separated" => [(0, Level::Remote, far), (1, Level::Local, near), (4, Level::Remote, far)],
                    "shared" if machine == 0 => [(0, Level::Local, near), (1, Level::Remote, far), (4, Level::Pool, pool)],
                    "shared" => [(0, Level::Remote, far), (1, Level::Local, near), (4, Level::Pool, pool)],
                    _ => [(0, Level::Local, near), (1, Level::Local, near), (2, Level::Nowhere, 0)],
                };
                for (gib, level, ps) in expected {
                    let paid = pays(&system, &world, machine, at(gib));
                    prop_assert_eq!(paid, (level, ps), "{} in {}, at {} GiB", part.summary, model, gib);
                }
            }
        }
    }
}

#[test]
fn what_one_machine_wrote_the_other_snoops_as_far_as_the_model_says() {
    let parts = ["xeon-gold-6230r", "thunderx2-cn9980"];
    let catalogue = Catalogue::built_in();
    // A cache group's snoop where there is one last cache: 60 cycles of 2 GHz; else another socket's, 620.
    for (model, ps) in [
        ("separated", 310_000),
        ("shared", 310_000),
        ("fully-shared", 30_000),
    ] {
        let world = world(model, parts, [1, 1], "");
        let topology = world.topology().expect("there are parts");
        let system = System::new(&topology, &catalogue).expect("it is good");
        let gib = if model == "fully-shared" { 1 } else { 4 };
        let (x86, arm) = (world.first_core(0) as usize, world.first_core(1) as usize);
        system.access(x86, Kind::Store, gib << 30, || 0);
        let read = system.access(arm, Kind::Load, gib << 30, || 0);
        assert_eq!((read.level, read.picoseconds), (Level::Peer, ps), "{model}");
    }
}

/// Each machine finds in the last cache what the other has evicted, at the cost of its own part's L3.
#[test]
fn fully_shared_there_is_one_last_cache() {
    let catalogue = Catalogue::built_in();
    // 30 cycles of 2 GHz; 50 of 2.1; a Cortex-A72 has no L3 of its own, and reaches the other's as fast as that.
    for (reader, ps) in [
        ("thunderx2-cn9980", 15_000),
        ("xeon-gold-6230r", 23_809),
        ("cortex-a72", 23_809),
    ] {
        let world = world("fully-shared", ["xeon-gold-6230r", reader], [3, 2], "");
        let topology = world.topology().expect("there are parts");
        let system = System::new(&topology, &catalogue).expect("it is good");
        let arm = world.first_core(1) as usize;
        // Sixteen ways in each of 1024 sets: the first of seventeen lines of a set is evicted.
        let stride = 1024 * 64;
        for line in 0..17 {
            system.access(0, Kind::Load, (1 << 30) + line * stride, || 0);
        }
        let read = system.access(arm, Kind::Load, 1 << 30, || 0);
        assert_eq!((read.level, read.picoseconds), (Level::L3, ps), "{reader}");
    }
}

#[test]
fn the_pool_is_the_device_that_is_told() {
    let parts = ["xeon-gold-6230r", "thunderx2-cn9980"];
    let device = |memory: &str| {
        let topology = world("shared", parts, [1, 1], memory).topology();
        topology.expect("there are parts").nodes[2].device.clone()
    };
    assert_eq!(device(""), Some(POOL.to_owned()));
    let told = device("pool = \"cxl2-e3s-x8\"\n");
    assert_eq!(told, Some("cxl2-e3s-x8".to_owned()));
}

#[test]
fn one_memory_for_both_has_the_larger_bandwidth() {
    let parts = ["xeon-gold-6230r", "thunderx2-cn9980"];
    let topology = world("fully-shared", parts, [1, 1], "").topology();
    let node = &topology.expect("there are parts").nodes[0];
    assert_eq!(node.mb_per_s, Some(170_600));
}

#[test]
fn cores_that_may_be_made_count() {
    let parts = ["xeon-gold-6230r", "thunderx2-cn9980"];
    let world = world("shared", parts, [1, 3], "");
    assert_eq!((world.width(0), world.width(1)), (2, 3));
    assert_eq!((world.first_core(0), world.first_core(1)), (0, 2));
}
