use std::io::Write as _;
use std::sync::atomic::Ordering;

use super::super::{VERSION, begin, write};
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

    /// The memory of the machine's counters.
    fn memory(&self) -> PathBuf {
        let device = self.root.path().join("bus/pci/devices").join(COUNTERS);
        device.join("resource2")
    }

    /// The machine's pages as they are now, in the device's memory. Written in place, as a mapping must stay one of it.
    fn show(&self) {
        let file = self.memory();
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
        begin(&tree.pages, header);
        tree.device(COUNTERS, "0x1af4", "0x1110", &vec![0; BYTES]);
        tree.show();
        tree
    }

    fn find(&self) -> Result<Option<Device>, NoDevice> {
        Device::find(self.root.path())
    }
}

/// An error with its cause.
fn explain(error: &NoDevice) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    format!("{error}: {}", cause.unwrap_or_default())
}

#[test]
fn a_machines_counters_are_read_live() {
    let tree = Tree::machine(true);
    let found = tree.find().unwrap().expect("it has them");
    assert_eq!(
        found.header(),
        Header {
            cores: 2,
            nodes: 3,
            caches: true
        }
    );
    assert_eq!(found.read(1), Ok(Counts::default()));
    let counts = Counts {
        instructions: 7,
        ..Counts::default()
    };
    write(&tree.pages, 1, &counts);
    tree.show();
    assert_eq!(found.read(1), Ok(counts));
    assert_eq!(found.read(2), Err(PmuError::NoCore(2)));
}

#[test]
fn windows_are_marked_for_the_machine_and_nothing_else_changes() {
    let tree = Tree::machine(false);
    let file = tree.memory();
    let before = fs::read(&file).unwrap();
    let marker = Marker::find(tree.root.path()).unwrap().expect("it has one");
    let differs = |mark: u64| {
        let mut expected = before.clone();
        expected[8 * MARK..][..8].copy_from_slice(&mark.to_le_bytes());
        assert_eq!(fs::read(&file).unwrap(), expected);
    };
    marker.begin(0);
    differs(1);
    marker.end(0);
    differs(2);
    marker.begin(3);
    differs(7);
    assert!(Marker::find(Tree::new().root.path()).unwrap().is_none());
}

#[test]
fn hosts_without_such_a_device_have_none() {
    assert!(Device::find(Path::new("/nonexistent")).unwrap().is_none());
    assert!(Tree::new().find().unwrap().is_none(), "others' memory");
}

#[test]
fn what_cant_be_read_is_told_with_the_reason() {
    let tree = Tree::machine(true);
    tree.pages[1].store(VERSION + 1, Ordering::Relaxed);
    tree.show();
    let error = explain(&tree.find().unwrap_err());
    assert!(
        error.contains(COUNTERS) && error.contains("version 3"),
        "{error}"
    );
    let cut = Tree::machine(true);
    let file = cut.memory();
    let opened = fs::OpenOptions::new().write(true).open(&file).unwrap();
    opened.set_len(1024).unwrap();
    let error = explain(&cut.find().unwrap_err());
    assert!(error.contains("2 cores in 1024 bytes"), "{error}");
    fs::remove_file(&file).unwrap();
    let error = explain(&cut.find().unwrap_err());
    assert!(error.contains("it takes root"), "{error}");
}
