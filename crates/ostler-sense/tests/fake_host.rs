//! A host made of files: what is read from `/proc` and `/sys`, without the machine's own getting in.

use std::fs;
use std::path::Path;

use ostler_model::{CpuId, IrqId, Nanos, NodeId, Ring};
use ostler_sense::{Roots, SenseConfig, SenseError, Sensor};

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Two nodes, two cores each, two threads per core; CPU 7 is offline.
fn host(root: &Path) {
    write(root, "sys/devices/system/cpu/online", "0-6\n");
    write(root, "sys/devices/system/cpu/possible", "0-7\n");
    for cpu in 0..8 {
        let own = format!("sys/devices/system/cpu/cpu{cpu}");
        let node = cpu / 4;
        let core = cpu / 2 * 2;
        write(
            root,
            &format!("{own}/topology/core_cpus_list"),
            &format!("{core}-{}\n", core + 1),
        );
        write(root, &format!("{own}/cache/index2/level"), "2\n");
        write(
            root,
            &format!("{own}/cache/index2/shared_cpu_list"),
            &format!("{core}-{}\n", core + 1),
        );
        write(root, &format!("{own}/cache/index3/level"), "3\n");
        let first = node * 4;
        write(
            root,
            &format!("{own}/cache/index3/shared_cpu_list"),
            &format!("{first}-{}\n", first + 3),
        );
        fs::create_dir_all(root.join(format!("{own}/node{node}"))).unwrap();
    }
    write(root, "proc/sys/kernel/osrelease", "6.12.0-test\n");
    write(root, "proc/irq/default_smp_affinity", "ff\n");
    write(root, "cgroup/cgroup.controllers", "cpuset cpu memory\n");
    write(
        root,
        "proc/stat",
        "cpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nctxt 5\n",
    );
}

fn nic(root: &Path) {
    let own = "sys/class/net/pnic0";
    write(root, &format!("{own}/device/numa_node"), "1\n");
    let vectors = (0..4)
        .map(|queue| (40 + queue, queue, "TxRx"))
        // Of its own, as some drivers have them.
        .chain([(44, 1, "tx")]);
    for (irq, queue, ring) in vectors {
        fs::create_dir_all(root.join(format!("{own}/queues/rx-{queue}"))).unwrap();
        fs::create_dir_all(root.join(format!("{own}/queues/tx-{queue}"))).unwrap();
        write(root, &format!("{own}/device/msi_irqs/{irq}"), "msix\n");
        write(
            root,
            &format!("sys/kernel/irq/{irq}/actions"),
            &format!("pnic0-{ring}-{}\n", 3 - queue),
        );
        write(
            root,
            &format!("sys/kernel/irq/{irq}/per_cpu_count"),
            "1,2,3,4,0,0,0,0\n",
        );
        write(
            root,
            &format!("proc/irq/{irq}/smp_affinity_list"),
            &format!("{queue}\n"),
        );
    }
    // The link interrupt serves no queue.
    write(root, &format!("{own}/device/msi_irqs/39"), "msix\n");
    write(root, "sys/kernel/irq/39/actions", "pnic0\n");
}

fn sensor(root: &Path) -> Result<Sensor, SenseError> {
    Sensor::new(SenseConfig {
        roots: Roots {
            proc: root.join("proc"),
            sys: root.join("sys"),
            cgroup: root.join("cgroup"),
        },
        nics: vec!["pnic0".to_owned(), "absent0".to_owned()],
        bpf: false,
        ..SenseConfig::default()
    })
}

#[test]
fn topology_is_read_from_sysfs() {
    let root = tempfile::tempdir().unwrap();
    host(root.path());
    let sensor = sensor(root.path()).unwrap();
    let facts = sensor.facts();
    assert_eq!(facts.kernel, "6.12.0-test");
    assert_eq!(facts.topology.online().to_string(), "0-6");
    let last = facts.topology.cpus.last().unwrap();
    assert_eq!(
        (last.id, last.node, last.core, last.cache_group),
        (CpuId(6), NodeId(1), CpuId(6), CpuId(4))
    );
    assert_eq!(facts.topology.siblings(CpuId(3)).to_string(), "2-3");
    assert_eq!(
        facts.topology.siblings(CpuId(6)).to_string(),
        "6",
        "7 is offline"
    );
}

#[test]
fn each_capability_is_there_or_says_why_not() {
    let root = tempfile::tempdir().unwrap();
    host(root.path());
    let missing = |name: &str| {
        let sensor = sensor(root.path()).unwrap();
        let found = sensor.facts().capabilities.iter().find(|c| c.name == name);
        found
            .unwrap_or_else(|| panic!("{name} is not told of"))
            .missing
            .clone()
    };
    for name in [
        "cgroup-v2",
        "cpuset",
        "cpu-weight",
        "freezer",
        "irq-affinity",
    ] {
        assert_eq!(missing(name), None, "{name}");
    }
    for name in [
        "bpf-busy",
        "bpf-threads",
        "irq-vectors",
        "kvm-exits",
        "tap-latency",
        "rss",
    ] {
        assert!(missing(name).is_some(), "{name}");
    }
    write(root.path(), "cgroup/cgroup.controllers", "memory\n");
    for (name, controller) in [("cpuset", "no cpuset"), ("cpu-weight", "no cpu controller")] {
        let why = missing(name).unwrap();
        assert!(
            why.contains(controller) && why.contains("cgroup v1"),
            "{why}"
        );
    }
    fs::remove_dir_all(root.path().join("cgroup")).unwrap();
    for name in ["freezer", "cpuset", "cpu-weight"] {
        assert!(missing(name).unwrap().contains("mount cgroup2"), "{name}");
    }
}

#[test]
fn a_nics_queues_and_interrupts_are_read() {
    let root = tempfile::tempdir().unwrap();
    host(root.path());
    nic(root.path());
    let mut sensor = sensor(root.path()).unwrap();
    let facts = &sensor.facts().nics;
    assert_eq!(facts.len(), 1, "absent0 is absent");
    assert_eq!((facts[0].queues_max, facts[0].node), (4, Some(NodeId(1))));

    let first = sensor.snapshot(Nanos(1));
    let irqs = &first.nics[0].irqs;
    let of: Vec<_> = irqs
        .iter()
        .map(|i| (i.ring, i.queue, i.irq, i.affinity.to_string(), i.count))
        .collect();
    let want = |queue: u32, irq: u32, ring| (ring, queue, IrqId(irq), (3 - queue).to_string(), 0);
    let both = |queue: u32| want(queue, 43 - queue, Ring::Receive);
    assert_eq!(
        of,
        [
            both(0),
            both(1),
            both(2),
            both(3),
            want(2, 44, Ring::Transmit)
        ],
        "in order of ring and queue"
    );

    write(
        root.path(),
        "sys/kernel/irq/43/per_cpu_count",
        "1,2,3,4,0,0,0,90\n",
    );
    write(root.path(), "proc/irq/43/smp_affinity_list", "4-6\n");
    let second = sensor.snapshot(Nanos(2));
    let irq = &second.nics[0].irqs[0];
    assert_eq!((irq.count, irq.affinity.to_string().as_str()), (90, "4-6"));
    // A counter that wrapped or was reset tells nothing.
    write(
        root.path(),
        "sys/kernel/irq/43/per_cpu_count",
        "0,0,0,0,0,0,0,0\n",
    );
    assert_eq!(sensor.snapshot(Nanos(3)).nics[0].irqs[0].count, 0);
}

#[test]
fn cpu_times_come_from_proc_without_bpf() {
    let root = tempfile::tempdir().unwrap();
    host(root.path());
    let mut sensor = sensor(root.path()).unwrap();
    let first = sensor.snapshot(Nanos::from_secs(1));
    assert_eq!((first.seq, first.interval), (1, Nanos::ZERO));
    assert!(first.cpus.iter().all(|cpu| cpu.busy == Nanos::ZERO));
    write(
        root.path(),
        "proc/stat",
        "cpu0 30 0 10 60 0 3 7 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\nctxt 45\n",
    );
    let second = sensor.snapshot(Nanos::from_secs(2));
    assert_eq!((second.seq, second.interval), (2, Nanos::from_secs(1)));
    let cpu = second.cpus[0];
    assert_eq!(cpu.busy, Nanos::from_millis(500));
    assert_eq!(
        (cpu.irq, cpu.softirq),
        (Nanos::from_millis(30), Nanos::from_millis(70))
    );
    assert_eq!(second.counters.ctx_switches, Some(40));
    assert_eq!(second.counters.migrations, None, "nobody counts them here");
    // A CPU comes online: it is told of, and has done nothing yet.
    write(root.path(), "sys/devices/system/cpu/online", "0-7\n");
    let third = sensor.snapshot(Nanos::from_secs(1_000_000));
    assert_eq!(third.cpus.len(), 8);
    assert_eq!(sensor.facts().topology.cpus.len(), 8);
}

#[test]
fn a_host_without_cpus_is_refused() {
    let root = tempfile::tempdir().unwrap();
    assert!(matches!(sensor(root.path()), Err(SenseError::Read { .. })));
    write(root.path(), "sys/devices/system/cpu/online", "\n");
    assert!(matches!(
        sensor(root.path()),
        Err(SenseError::NoCpus { .. })
    ));
    write(root.path(), "sys/devices/system/cpu/online", "0-\n");
    assert!(matches!(sensor(root.path()), Err(SenseError::Cpus { .. })));
}

#[test]
fn a_pattern_that_is_no_path_is_refused() {
    for pattern in ["", "qmp.sock", "/", "/run/../x"] {
        let config = SenseConfig {
            qmp_globs: vec![pattern.to_owned()],
            bpf: false,
            ..SenseConfig::default()
        };
        let refused = Sensor::new(config).err();
        assert!(
            matches!(refused, Some(SenseError::Pattern { .. })),
            "{pattern}: {refused:?}"
        );
    }
}
