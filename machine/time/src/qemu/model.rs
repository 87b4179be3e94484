//! The model of what accesses cost, made from the file that describes the machines: this process's own, or one in a block that fused
//! machines' processes share.
#![allow(unsafe_code, reason = "a block is mapped that other processes map too")]

use std::path::Path;
use std::sync::atomic::AtomicU64;

use ostler_machine_memory::{Catalogue, System, Topology};

use super::mapping;
use crate::options::{Block, Options};
use crate::refusal::Refusal;

/// The model, and the number that this machine's first core has in it.
pub fn build(file: &Path, cores: usize, options: &Options) -> Result<(System, usize), Refusal> {
    let refuse = |problem: String| Refusal::Topology {
        file: file.display().to_string(),
        problem,
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| refuse(format!("it can't be read: {error}")))?;
    let mut topology = Topology::parse(&text).map_err(|error| refuse(error.to_string()))?;
    topology.skew_ns = options.quantum_ns.unsigned_abs();
    let catalogue = Catalogue::built_in();
    let Some(block) = &options.block else {
        let system =
            System::new(&topology, &catalogue).map_err(|error| refuse(error.to_string()))?;
        if system.cores() != cores {
            return Err(refuse(format!(
                "it has {} cores, and this machine has {cores}; make them agree",
                system.cores()
            )));
        }
        return Ok((system, 0));
    };
    let bytes = System::block_bytes(&topology, &catalogue);
    let bytes = bytes.map_err(|error| refuse(error.to_string()))?;
    let system = attach(block, bytes, &topology, &catalogue)?;
    if block.first + cores > system.cores() {
        return Err(refuse(format!(
            "it has {} cores, and this machine's are {} to {}; make them agree",
            system.cores(),
            block.first,
            block.first + cores - 1
        )));
    }
    Ok((system, block.first))
}

/// Maps a block and takes part in the system that is in it.
fn attach(
    block: &Block,
    bytes: usize,
    topology: &Topology,
    catalogue: &Catalogue,
) -> Result<System, Refusal> {
    let refuse = |problem: String| Refusal::Block {
        block: block.file.display().to_string(),
        problem,
    };
    let words = bytes.div_ceil(size_of::<AtomicU64>());
    let mapped = mapping::shared(&block.file, words * size_of::<AtomicU64>()).map_err(refuse)?;
    // SAFETY: it is mapped for ever, page-aligned and that long; whoever has it mapped uses it as atomics.
    let words: &'static [AtomicU64] =
        unsafe { std::slice::from_raw_parts(mapped.cast().as_ptr(), words) };
    System::attach(topology, catalogue, words).map_err(|error| refuse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::path::PathBuf;

    use ostler_machine_memory::{Kind, Level};

    use super::*;
    use crate::options::Timing;

    const TOPOLOGY: &str = r#"
        [[cores]]
        first = 0
        last = 1
        part = "xeon-gold-6230r"
        node = 0
        [[cores]]
        first = 2
        last = 3
        part = "thunderx2-cn9980"
        node = 1
        [[nodes]]
        ranges = [{ start = 0, bytes = 0x10_0000 }]
        [[nodes]]
        ranges = [{ start = 0x4000_0000, bytes = 0x10_0000 }]
    "#;

    /// A topology and a block of zeros for it, in a folder that goes with it.
    struct Shared(PathBuf);

    impl Drop for Shared {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    impl Shared {
        fn new(name: &str) -> Shared {
            let name = format!("ostler-{name}-{}", std::process::id());
            let shared = Shared(std::env::temp_dir().join(name));
            std::fs::create_dir_all(&shared.0).expect("a folder");
            std::fs::write(shared.topology(), TOPOLOGY).expect("a file");
            let topology = Topology::parse(TOPOLOGY).expect("it is good");
            let bytes = System::block_bytes(&topology, &Catalogue::built_in());
            shared.resize(bytes.expect("it is good") as u64 + 4096);
            shared
        }

        fn topology(&self) -> PathBuf {
            self.0.join("topology")
        }

        fn block(&self) -> std::fs::File {
            let open = std::fs::File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(self.0.join("block"));
            open.expect("a file")
        }

        fn resize(&self, bytes: u64) {
            self.block().set_len(bytes).expect("it is sparse");
        }

        /// A machine of two cores comes.
        fn comes(&self, first: usize, quantum_ns: i64) -> Result<(System, usize), Refusal> {
            let options = Options {
                timing: Timing::Caches,
                quantum_ns,
                block: Some(Block {
                    file: self.0.join("block"),
                    first,
                }),
                ..Options::default()
            };
            build(&self.topology(), 2, &options)
        }

        fn refused(&self, first: usize, quantum_ns: i64, expected: &str) {
            let refusal = self.comes(first, quantum_ns).expect_err(expected);
            let told = refusal.to_string();
            assert!(told.contains(expected), "{told}\nshould say: {expected}");
        }
    }

    #[test]
    fn what_one_machine_wrote_the_other_snoops() {
        let shared = Shared::new("model");
        let (one, first) = shared.comes(0, 1000).expect("a new block");
        let (other, second) = shared.comes(2, 1000).expect("the same machine's");
        assert_eq!((first, second), (0, 2));
        let written = one.access(first, Kind::Store, 0x4000_0040, || 0);
        assert_eq!(written.level, Level::Remote);
        let read = other.access(second, Kind::Load, 0x4000_0040, || 0);
        assert_eq!((read.level, read.picoseconds), (Level::Peer, 310_000));
        assert_eq!(other.counts(second).snoops_sent, 1);
        assert_eq!(one.counts(first).snoops_received, 1);
    }

    #[test]
    fn a_block_that_isnt_these_machines_is_refused() {
        let shared = Shared::new("block");
        drop(shared.comes(0, 1000).expect("a new block"));
        shared.refused(2, 2000, "the block is another machine's");
        shared.refused(3, 1000, "it has 4 cores, and this machine's are 3 to 4");
        let block = shared.block();
        block.write_at(&[7], 0).expect("a byte");
        shared.refused(2, 1000, "the block's layout is version 7");
        block.write_at(b"anything", 0).expect("some bytes");
        shared.refused(2, 1000, "something else is in it");
        shared.resize(4096);
        shared.refused(2, 1000, "it has 4096 bytes and needs");
        std::fs::remove_file(shared.0.join("block")).expect("it was there");
        shared.refused(2, 1000, "block of what memory costs");
    }
}
