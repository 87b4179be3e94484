use std::io::Write as _;
use std::sync::atomic::Ordering;

use ostler_abi::pmu::{self, Header, VERSION};

use super::*;

/// A tree with PCI devices: one of another kind, somebody else's shared memory, and perhaps a machine's counters.
struct Tree {
    root: tempfile::TempDir,
    pages: Vec<AtomicU64>,
}

const COUNTERS: &str = "0000:00:05.0";

impl Tree {
    fn new() -> Tree {
        let tree = Tree {
            root: tempfile::tempdir().unwrap(),
            pages: (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect(),
        };
        tree.device("0000:00:03.0", "0x1af4", "0x1041", &[]);
        tree.device("0000:00:04.0", "0x1af4", "0x1110", &[7; 4096]);
        tree
    }

    fn device(&self, address: &str, vendor: &str, device: &str, memory: &[u8]) -> PathBuf {
        let folder = self.root.path().join("bus/pci/devices").join(address);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
        fs::write(folder.join("device"), format!("{device}\n")).unwrap();
        let file = folder.join("resource2");
        fs::write(&file, memory).unwrap();
        file
    }

    /// The machine's pages as they are now, in the device's memory. Written in place, as a mapping must stay one of it.
    fn show(&self) {
        let file = self
            .root
            .path()
            .join("bus/pci/devices")
            .join(COUNTERS)
            .join("resource2");
        let bytes: Vec<u8> = self
            .pages
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .collect();
        let mut file = fs::OpenOptions::new().write(true).open(file).unwrap();
        file.write_all(&bytes).unwrap();
    }

    fn machine(caches: bool) -> Tree {
        let tree = Tree::new();
        let header = Header {
            cores: 2,
            nodes: if caches { 3 } else { 0 },
            caches,
        };
        pmu::begin(&tree.pages, header);
        tree.device(COUNTERS, "0x1af4", "0x1110", &vec![0; BYTES]);
        tree.show();
        tree
    }

    fn find(&self) -> Result<Option<Pmu>, NoPmu> {
        Pmu::find(self.root.path())
    }
}

fn counts(of: u64) -> CoreCounts {
    let mut served = [[0; pmu::LEVELS]; pmu::KINDS];
    for (kind, row) in served.iter_mut().enumerate() {
        for (level, count) in row.iter_mut().enumerate() {
            *count = of * (1 + kind as u64) * (1 + level as u64);
        }
    }
    CoreCounts {
        time_ns: 10 * of,
        halted_ns: 4 * of,
        instructions: 6 * of,
        stall_ps: 2000 * of,
        queued_ps: 1000 * of,
        snoops_sent: 3 * of,
        snoops_received: 5 * of,
        served,
        node_bytes: std::array::from_fn(|node| 64 * of * node as u64),
        ..CoreCounts::default()
    }
}

#[test]
fn a_machines_counters_are_told_as_differences() {
    let tree = Tree::machine(true);
    let online: CpuSet = "0-1".parse().unwrap();
    let mut found = tree.find().unwrap().expect("it has them");
    pmu::write(&tree.pages, 0, &counts(100));
    pmu::write(&tree.pages, 1, &counts(7));
    tree.show();
    assert_eq!(
        found.advance(&online),
        [],
        "there is nothing to compare with"
    );
    pmu::write(&tree.pages, 0, &counts(103));
    tree.show();
    let views = found.advance(&online);
    assert_eq!(views.len(), 2);
    let accesses = Accesses {
        l1: 30,
        l2: 60,
        l3: 90,
        peer: 120,
        local: 150,
        remote: 180,
        pool: 210,
        stall: Nanos(6),
        queued: Nanos(3),
        snoops_sent: 9,
        snoops_received: 15,
        node_bytes: vec![0, 192, 384],
    };
    assert_eq!(accesses.total(), 840);
    let first = CpuPmu {
        cpu: CpuId(0),
        elapsed: Nanos(30),
        halted: Nanos(12),
        instructions: 18,
        accesses: Some(accesses),
    };
    assert_eq!(views[0], first);
    assert_eq!((views[1].cpu, views[1].instructions), (CpuId(1), 0));
    // Who is offline isn't told of.
    let views = found.advance(&"1".parse().unwrap());
    assert_eq!(views.len(), 1);
    assert_eq!(views[0].cpu, CpuId(1));
}

#[test]
fn without_caches_there_are_no_accesses() {
    let tree = Tree::machine(false);
    let online: CpuSet = "0-1".parse().unwrap();
    let mut found = tree.find().unwrap().expect("it has them");
    found.advance(&online);
    let views = found.advance(&online);
    assert_eq!(views.len(), 2);
    assert!(views.iter().all(|view| view.accesses.is_none()));
}

#[test]
fn hosts_without_such_a_device_have_none() {
    assert!(Pmu::find(Path::new("/nonexistent")).unwrap().is_none());
    assert!(Tree::new().find().unwrap().is_none(), "others' memory");
}

#[test]
fn what_cant_be_read_is_told_with_the_reason() {
    let tree = Tree::machine(true);
    tree.pages[1].store(VERSION + 1, Ordering::Relaxed);
    tree.show();
    let error = crate::capability::explain(&tree.find().unwrap_err());
    assert!(
        error.contains(COUNTERS) && error.contains("version 2"),
        "{error}"
    );
    let cut = Tree::machine(true);
    let file = cut
        .root
        .path()
        .join("bus/pci/devices")
        .join(COUNTERS)
        .join("resource2");
    fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(1024)
        .unwrap();
    let error = crate::capability::explain(&cut.find().unwrap_err());
    assert!(error.contains("2 cores in 1024 bytes"), "{error}");
    fs::remove_file(&file).unwrap();
    let error = crate::capability::explain(&cut.find().unwrap_err());
    assert!(error.contains("it takes root"), "{error}");
}
