use ostler_model::{Class, CpuId, CpuSet};

use super::*;
use crate::image::Manifest;
use crate::scenario::{Cpus, Node};

fn words(command: &Command) -> String {
    command
        .get_args()
        .map(|a| a.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

fn image() -> Image {
    let manifest = Manifest {
        recipe: "0".into(),
        kernel: "7".into(),
        qemu: "10".into(),
    };
    Image {
        folder: "/image".into(),
        manifest,
        other: None,
    }
}

#[test]
fn another_kernel_boots_from_the_same_disk_and_comes_with_the_run() {
    let own = image();
    assert!(own.brought().is_empty());
    let other = Image {
        other: Some("/image/kernels/6.18".into()),
        ..image()
    };
    let kernel: std::path::PathBuf = "/image/kernels/6.18/kernel/vmlinuz".into();
    assert_eq!(other.kernel(), kernel);
    assert_eq!(
        other.host_initramfs(),
        std::path::Path::new("/image/kernels/6.18/host.cpio")
    );
    assert_eq!(other.disk(), own.disk());
    assert!(other.brought().contains(&(kernel, "vmlinuz")));
}

fn world(nodes: Vec<Node>) -> Host {
    Host {
        cpus: Cpus {
            sockets: 2,
            cores: 2,
            threads: 1,
        },
        nodes,
        under_test: CpuSet::range(0, 3),
        client: CpuSet::single(CpuId(3)),
        pnic_queues: 4,
        instruction_ns: 2.5,
        caches: None,
        cache_group_cores: None,
    }
}

fn node(cpus: CpuSet, latency_ns: u32) -> Node {
    Node {
        memory_mib: 1024,
        cpus,
        latency_ns,
        bandwidth_mib_per_s: 1000,
    }
}

#[test]
fn machine_time_is_kept_by_the_plugin_and_knows_of_every_request() {
    let line = |time: &Time| {
        let world = world(vec![node(CpuSet::range(0, 4), 80)]);
        words(&host(&image(), &world, Path::new("/run"), time))
    };
    let bare = line(&Time::Wall { plugin: None });
    assert!(
        !bare.contains("-plugin") && !bare.contains("ioeventfd"),
        "{bare}"
    );
    let wall = line(&Time::Wall {
        plugin: Some("/p.so".into()),
    });
    assert!(wall.contains("-plugin file=/p.so,clock=wall "), "{wall}");
    assert!(!wall.contains("ioeventfd"), "{wall}");
    let machine = |pace| {
        line(&Time::Machine {
            plugin: "/a,b/p.so".into(),
            pace,
            profile: pace,
        })
    };
    assert!(
        machine(false)
            .contains("-plugin file=/a,,b/p.so,cost=2.5,quantum=25000,idle=skip,pmu=pmu "),
        "{}",
        machine(false)
    );
    assert!(machine(true).contains(",idle=pace,profile=profile,pmu=pmu "));
    // The host reads what the plugin writes: one file, as long as its layout says.
    let devices = machine(false);
    let size = ostler_abi::pmu::BYTES;
    let backend = format!("memory-backend-file,id=pmu,share=on,size={size},mem-path=pmu ");
    assert!(
        devices.contains(&backend) && devices.contains("ivshmem-plain,memdev=pmu"),
        "{devices}"
    );
    assert!(!wall.contains("pmu"), "nobody writes it: {wall}");
    for device in devices
        .split(" -device ")
        .filter(|d| d.starts_with("virtio-blk") || d.starts_with("virtio-serial"))
    {
        assert!(device.contains("ioeventfd=off"), "{device}");
    }
}

#[test]
fn one_node_needs_no_numa() {
    let line = words(&host(
        &image(),
        &world(vec![node(CpuSet::range(0, 4), 80)]),
        Path::new("/run"),
        &Time::Wall { plugin: None },
    ));
    assert!(
        line.contains("-smp 4,sockets=2,cores=2,threads=1 -m 1024M -M q35 "),
        "{line}"
    );
    assert!(!line.contains("-numa"), "{line}");
}

#[test]
fn a_far_node_is_described_by_hmat() {
    let nodes = vec![
        node(CpuSet::range(0, 2), 80),
        node(CpuSet::range(2, 4), 80),
        node(CpuSet::EMPTY, 400),
    ];
    let line = words(&host(
        &image(),
        &world(nodes),
        Path::new("/run"),
        &Time::Wall { plugin: None },
    ));
    for wanted in [
        "-m 3072M -M q35,hmat=on",
        "node,nodeid=1,memdev=mem1,cpus=2,cpus=3,initiator=1",
        "node,nodeid=2,memdev=mem2,initiator=0",
        "initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=140",
        "initiator=1,target=2,hierarchy=memory,data-type=access-latency,latency=400",
    ] {
        assert!(line.contains(wanted), "`{wanted}` is not in\n{line}");
    }
    assert!(
        !line.contains("initiator=2,"),
        "a node without CPUs initiates nothing: {line}"
    );
}

#[test]
fn a_path_with_a_comma_stays_one_path() {
    assert_eq!(escape(Path::new("/a,b/c")), "/a,,b/c");
}

#[test]
fn a_guest_has_a_vector_for_every_queue() {
    let mut lc = Guest::new("lc", Class::LatencyCritical, 4, 256, Workload::Memcached);
    lc.queues = 4;
    let paths = GuestPaths {
        kernel: "k".into(),
        initrd: "i".into(),
        serial: "s".into(),
        qmp: "q".into(),
        disk: None,
    };
    let line = words(&guest(&lc, 0, false, &paths));
    assert!(
        line.contains(",queues=4") && line.contains(",mq=on,vectors=10"),
        "{line}"
    );
    lc.queues = 1;
    let line = words(&guest(&lc, 0, false, &paths));
    assert!(
        !line.contains("queues=") && !line.contains("mq=on"),
        "a tap of one queue is opened without multi_queue: {line}"
    );
}

#[test]
fn a_guest_has_a_disk_where_it_works_on_one_and_takes_turns_where_it_is_told() {
    let disk = Guest::new("d", Class::BestEffort, 1, 160, Workload::DiskRead);
    let paths = |disk| GuestPaths {
        kernel: "k".into(),
        initrd: "i".into(),
        serial: "s".into(),
        qmp: "q".into(),
        disk,
    };
    let line = words(&guest(&disk, 0, true, &paths(Some("/run/d,1".into()))));
    assert!(
        line.contains("id=disk,file=/run/d,,1 -device virtio-blk-pci,drive=disk"),
        "{line}"
    );
    assert!(
        line.contains("lab.workload=disk-read lab.memory_mb=160 lab.rests "),
        "{line}"
    );
    let line = words(&guest(&disk, 0, false, &paths(None)));
    assert!(
        !line.contains("virtio-blk") && !line.contains("lab.rests"),
        "{line}"
    );
}
