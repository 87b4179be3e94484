//! What a block of translated code is to the clock, in one word: QEMU hands it back each time the block is executed, and
//! nothing has to be kept, looked up or freed.

/// Bits of the word: how many instructions, how many lines of memory they are in, and the first of those lines.
const INSTRUCTIONS: u32 = 10;
const LINES: u32 = 7;
/// A cache line.
pub const LINE_BYTES: u64 = 64;

/// A block, or the part of it that is in one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Instructions to count; none for a block's second page.
    pub instructions: u64,
    /// The first physical line that the code is in.
    pub first_line: u64,
    /// How many lines it is in; none if it isn't in memory.
    pub lines: u64,
}

impl Block {
    /// Code of `bytes` from a physical address on.
    pub fn at(instructions: usize, physical: u64, bytes: u64) -> Block {
        let first_line = physical / LINE_BYTES;
        let end = physical + bytes.max(1) - 1;
        Block {
            instructions: instructions as u64,
            first_line,
            lines: end / LINE_BYTES - first_line + 1,
        }
    }

    /// As a word. What doesn't fit is cut: a block has 512 instructions and a page 64 lines at most.
    pub fn word(self) -> u64 {
        let cut = |value: u64, bits: u32| value.min((1 << bits) - 1);
        cut(self.instructions, INSTRUCTIONS)
            | cut(self.lines, LINES) << INSTRUCTIONS
            | self.first_line << (INSTRUCTIONS + LINES)
    }

    /// From a word.
    #[inline]
    pub fn of(word: u64) -> Block {
        Block {
            instructions: word & ((1 << INSTRUCTIONS) - 1),
            lines: word >> INSTRUCTIONS & ((1 << LINES) - 1),
            first_line: word >> (INSTRUCTIONS + LINES),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_word_holds_all_of_it(instructions in 0..=512_usize, physical in 0..1_u64 << 52, bytes in 0..=4096_u64) {
            let block = Block::at(instructions, physical, bytes);
            prop_assert_eq!(Block::of(block.word()), block);
            let last = (physical + bytes.max(1) - 1) / LINE_BYTES;
            prop_assert_eq!(block.first_line + block.lines - 1, last);
        }
    }

    #[test]
    fn code_outside_of_memory_has_no_lines() {
        let block = Block {
            instructions: 7,
            first_line: 0,
            lines: 0,
        };
        assert_eq!(Block::of(block.word()), block);
    }
}
