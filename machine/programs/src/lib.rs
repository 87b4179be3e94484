//! Programs that run on a simulated machine without an operating system, for both instruction sets: what the tests and benches of
//! machine time and of fused machines boot.
//!
//! They are freestanding C and a little assembler (`c/`), entered by PVH on x86-64 and directly on AArch64. Each prints lines of a
//! word and a number to the machine's first serial line, and turns the machine off. Numbers for it are written into its
//! image ([`Program::x86_64`], [`Program::aarch64`]).
//!
//! May depend on: nothing. Building it takes a C compiler for each of the two.

/// What stands before the parameters in an image, with the zeros that fill its 16 bytes.
const MARK: &[u8; 16] = b"ostler-parameter";
/// How many there may be.
const PARAMETERS: usize = 6;

/// A program, as ELF files.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    x86_64: &'static [u8],
    aarch64: &'static [u8],
}

macro_rules! program {
    ($name:literal) => {
        Program {
            x86_64: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".x86_64")),
            aarch64: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".aarch64")),
        }
    };
}

/// A counted loop, and timers to a core that sleeps and to one that runs. Parameters: rounds (two instructions each), figures, the
/// timer's ns. Prints `LOOP`, `ASLEEP` and `AWAKE`, all in ns.
pub const CLOCK: Program = program!("clock");

/// A line of memory that goes to and fro between two fused machines, of which only one runs at a time; both boot it. Parameters: rounds;
/// the address of memory that both see. Prints `BROKEN` (wrong values read), `LEAST` and `MOST` (a load of what the other has
/// written) and `WARM` (the same load once more), ns.
pub const BALL: Program = program!("ball");

/// Loads that only memory can serve. Parameters: steps; up to three addresses of memory that nobody has touched, 256 bytes a step.
/// Prints what as many loads take that L1 serves (`WARM`), and those from each address (`FIRST`, `SECOND`, `THIRD`), ns.
pub const MEMORY: Program = program!("memory");

/// The other machine's data, read where it lies and by copies of its pages; both boot it, and each reads in turn. Parameters: pages, 16 or more;
/// the address of memory that both see, all zeros; of as many pages that the other reads; of the other's; of as many of its own.
/// Prints `OWN`, `DIRECT`, `AGAIN`, `COPIED` and `REPLICA` (all pages, ns), for 1 to 64 lines of a page `LINES`, `LINES-DIRECT` and
/// `LINES-COPIED` (ns a page), and `BROKEN`: sums that were wrong.
pub const PAGES: Program = program!("pages");

/// Numbers sorted and searched for. Parameters: how many, 2^19 at most; how often. Prints `SORT` (ns) each time, and `SUM`: of all that
/// was found.
pub const SORT: Program = program!("sort");

/// Interrupts between two fused machines, there and back; both boot it. Parameters: rounds; whether who waits sleeps (0), runs (1), or
/// walks through memory (2); the address of memory that both see; that of 64 MiB to walk through. Prints `MACHINE`, `LATENCY`, `HEARD`, and `LEAST` and `MOST`: from the other's ring, by
/// the other's clock, to the interrupt, by its own, ns.
pub const DOORBELL: Program = program!("doorbell");

/// Atomic operations, locks, message passing and store buffering between two fused machines; both boot it. Parameters: operations of
/// each kind; rounds of store buffering; the address of memory that both see, all zeros. Prints `ADDED`, `EXCHANGED` and `LOCKED`
/// (by both together); `PASSED` and `BROKEN` (by who reads); `UNFENCED` and `FENCED`: how often both missed the other's store; `TOOK`,
/// ns.
pub const LITMUS: Program = program!("litmus");

impl Program {
    /// The image for x86-64, with parameters written into it.
    pub fn x86_64(&self, parameters: &[u64]) -> Vec<u8> {
        with(self.x86_64, parameters)
    }

    /// The image for AArch64, likewise.
    pub fn aarch64(&self, parameters: &[u64]) -> Vec<u8> {
        with(self.aarch64, parameters)
    }
}

/// # Panics
/// If there are too many parameters, or the image has no place for them: a fault of whoever built or called.
fn with(image: &[u8], parameters: &[u64]) -> Vec<u8> {
    assert!(
        parameters.len() <= PARAMETERS,
        "a program has {PARAMETERS} parameters at most"
    );
    let at = image
        .windows(MARK.len())
        .position(|window| window == MARK)
        .expect("every image has a place for parameters");
    let mut image = image.to_vec();
    for (word, value) in image[at + MARK.len()..].chunks_exact_mut(8).zip(parameters) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    image
}

/// Lines of a word and a number, as the programs print them; others are passed over.
pub fn figures(printed: &str) -> Vec<(&str, u64)> {
    printed
        .lines()
        .filter_map(|line| {
            let (word, number) = line.trim().split_once(' ')?;
            Some((word, number.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_written_and_nothing_else_changes() {
        for (plain, image) in [
            (CLOCK.x86_64, CLOCK.x86_64(&[7, u64::MAX])),
            (CLOCK.aarch64, CLOCK.aarch64(&[7, u64::MAX])),
        ] {
            let changed: Vec<_> = (0..plain.len()).filter(|&i| plain[i] != image[i]).collect();
            assert_eq!(changed.len(), 9, "a byte of the 7, and eight of the other");
            assert_eq!(image[..4], *b"\x7fELF");
        }
    }

    #[test]
    fn figures_are_told_from_noise() {
        assert_eq!(figures("SeaBIOS\r\nLOOP 12\r\nLOOP x\n"), [("LOOP", 12)]);
    }
}
