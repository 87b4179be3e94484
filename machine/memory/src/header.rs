//! How a block begins, so that who comes second sees whether it is a block of the same machine.
//!
//! A block of zeros is a machine whose caches are empty, and needs no other beginning. So whoever comes only has to
//! agree on these words: each is set by compare-exchange if it is still zero, and compared if not. Of two that come at once with different
//! machines, one is refused, whichever.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thiserror::Error;

use crate::block::{Area, Carver};
use crate::topology::TopologyError;

/// What a block begins with: this word of letters, less its last, which is the version of the layout. To be raised by whoever changes
/// what is where in a block, or what it means.
const MAGIC: u64 = u64::from_be_bytes(*b"OSTLMEM\0");
const VERSION: u64 = 2;

/// Why a system can't be in a block.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BlockError {
    /// The machine is none.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// It doesn't fit in.
    #[error(
        "the block has {found} bytes, and a system of this topology takes {needed}; make it as long as System::block_bytes says"
    )]
    Short {
        /// As given.
        found: usize,
        /// What it takes.
        needed: usize,
    },
    /// Its caches lines aren't the real machine's.
    #[error(
        "the block begins at {0:#x}, which isn't a multiple of 128; map it at the start of a page"
    )]
    Misaligned(usize),
    /// Something else is in it.
    #[error("the block begins with {0:#018x}, so something else is in it; give one of zeros")]
    Foreign(u64),
    /// It was begun by another build.
    #[error(
        "the block's layout is version {found}, and this build's is {VERSION}; use the same build for all who share the block"
    )]
    Version {
        /// What the block says.
        found: u64,
    },
    /// It was begun for another machine.
    #[error(
        "the block is another machine's (its topology and parts have hash {found:#018x}, those given {given:#018x}); give all who share \
         the block the same topology, and each machine a new block"
    )]
    OtherMachine {
        /// What the block says.
        found: u64,
        /// What the caller's topology comes to.
        given: u64,
    },
}

/// The block's first words.
#[derive(Debug)]
pub(crate) struct Header {
    words: Area<AtomicU64>,
}

impl Header {
    pub(crate) fn new(carver: &mut Carver) -> Header {
        Header {
            words: carver.area(3),
        }
    }

    /// Begins the block, or sees that it was begun for the same machine.
    pub(crate) fn begin(&self, machine: u64) -> Result<(), BlockError> {
        let agree = |at: usize, ours: u64| {
            let word: &AtomicU64 = &self.words[at];
            let found = word.compare_exchange(0, ours, Relaxed, Relaxed);
            found.err().filter(|found| *found != ours)
        };
        match agree(0, MAGIC | VERSION) {
            None => {}
            Some(other) if other & !0xff == MAGIC => {
                return Err(BlockError::Version {
                    found: other & 0xff,
                });
            }
            Some(other) => return Err(BlockError::Foreign(other)),
        }
        match agree(1, machine) {
            None => Ok(()),
            Some(found) => Err(BlockError::OtherMachine {
                found,
                given: machine,
            }),
        }
    }

    /// How many locks were taken by force.
    #[inline]
    pub(crate) fn forced(&self) -> &AtomicU64 {
        &self.words[2]
    }
}

/// FNV-1a, 64 bits, of a text, and never 0: http://www.isthe.com/chongo/tech/comp/fnv.
pub(crate) fn hash(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnvs() {
        // From the test vectors of FNV's own site.
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash("foobar"), 0x8594_4171_f739_67e8);
    }
}
