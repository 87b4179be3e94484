//! Reads QEMU's machine code: where it keeps things is told by the functions that use them.
//!
//! QEMU's structures aren't part of any interface and differ between builds. But a function like `cpu_exit` consists of two
//! stores, and their operands are the offsets that we need. Here are the patterns of such instructions. All of it works on
//! slices of bytes, and is tested with the bytes of both builds of Debian's that are known.

/// An instruction looked for: fixed bytes, and the four bytes of a displacement.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// What comes before the displacement.
    pub before: &'static [u8],
    /// What comes after it.
    pub after: &'static [u8],
    /// The instruction as a person writes it.
    pub written: &'static str,
}

impl Pattern {
    /// The displacements of all places where the pattern is found.
    pub fn displacements(self, code: &[u8]) -> Vec<i32> {
        let length = self.before.len() + 4 + self.after.len();
        code.windows(length)
            .filter(|window| window.starts_with(self.before) && window.ends_with(self.after))
            .filter_map(|window| {
                let bytes = window[self.before.len()..].first_chunk::<4>()?;
                Some(i32::from_le_bytes(*bytes))
            })
            .collect()
    }

    /// The displacement, if the pattern is found exactly once and the displacement can be an offset in a structure.
    pub fn offset(self, code: &[u8]) -> Option<usize> {
        match self.displacements(code)[..] {
            [one] => usize::try_from(one).ok().filter(|&offset| offset < 1 << 20),
            _ => None,
        }
    }
}

/// `cpu_exit`: tells a core to leave its guest's code for good.
pub const EXIT_REQUEST: Pattern = Pattern {
    before: &[0xc6, 0x87],
    after: &[0x01],
    written: "movb $1,offset(%rdi)",
};
/// `cpu_exit` again: the flag that each block of translated code looks at.
pub const LEAVE: Pattern = Pattern {
    before: &[0x66, 0xc7, 0x87],
    after: &[0xff, 0xff],
    written: "movw $-1,offset(%rdi)",
};
/// `end_exclusive`: how deep a core is in sections in which all others are stopped.
pub const EXCLUSIVE: Pattern = Pattern {
    before: &[0x83, 0xaa],
    after: &[0x01],
    written: "subl $1,offset(%rdx)",
};
/// `tcg_handle_interrupt`: a core's pending interrupts.
pub const INTERRUPTS: Pattern = Pattern {
    before: &[0x09, 0xab],
    after: &[],
    written: "or %ebp,offset(%rbx)",
};
/// `cpu_interrupt`: the slot of the function that it calls.
pub const INTERRUPT_SLOT: Pattern = Pattern {
    before: &[0x53, 0x48, 0x89, 0xfb, 0x48, 0x8b, 0x80],
    after: &[0x48, 0x85, 0xc0],
    written: "push %rbx; mov %rdi,%rbx; mov offset(%rax),%rax; test %rax,%rax",
};
/// `blk_inc_in_flight`: a disk's requests on their way.
pub const IN_FLIGHT: Pattern = Pattern {
    before: &[0xf0, 0x83, 0x87],
    after: &[0x01],
    written: "lock addl $1,offset(%rdi)",
};

/// Length of `and $0x7fffffff,%reg32` for any register but %eax.
const AND_LENGTH: usize = 6;

/// Where `and $0x7fffffff,%reg32` is found: the places at which a VMCB's injected event loses its VALID bit.
pub fn valid_bit_clears(code: &[u8]) -> Vec<usize> {
    code.windows(AND_LENGTH)
        .enumerate()
        .filter(|(_, w)| {
            w[0] == 0x81 && (0xe0..=0xe7).contains(&w[1]) && w[2..] == [0xff, 0xff, 0xff, 0x7f]
        })
        .map(|(at, _)| at)
        .collect()
}

/// The same instruction, but clearing all bits: `and $0,%reg32`.
pub fn clears_all(instruction: &[u8]) -> Option<[u8; AND_LENGTH]> {
    let mut changed = *instruction.first_chunk::<AND_LENGTH>()?;
    changed[2..].fill(0);
    Some(changed)
}

/// Length of `orl $imm32,disp32(%reg)`, and of `andl` likewise.
const OR_LENGTH: usize = 10;

/// Where `orl $0x100,disp32(%reg)` is found: the place at which VMRUN notes the guest's virtual interrupt.
pub fn virtual_interrupt_sets(code: &[u8]) -> Vec<usize> {
    code.windows(OR_LENGTH)
        .enumerate()
        .filter(|(_, w)| {
            // ModRM: disp32, /1 (OR), any register but the one that would mean another byte follows.
            w[0] == 0x81
                && w[1] & 0xf8 == 0x88
                && w[1] != 0x8c
                && w[6..] == [0x00, 0x01, 0x00, 0x00]
        })
        .map(|(at, _)| at)
        .collect()
}

/// What `orl $0x100,disp32(%reg)` adds to: its displacement.
pub fn or_displacement(instruction: &[u8]) -> Option<i32> {
    let bytes = instruction.get(2..)?.first_chunk::<4>()?;
    Some(i32::from_le_bytes(*bytes))
}

/// The same, done atomically and in as many bytes: `lock orb $1,disp32+1(%reg)`, and a two-byte `nop`.
pub fn sets_atomically(instruction: &[u8]) -> Option<[u8; OR_LENGTH]> {
    let old = instruction.first_chunk::<OR_LENGTH>()?;
    let displacement = or_displacement(old)?.checked_add(1)?.to_le_bytes();
    let mut new = [0xf0, 0x80, old[1], 0, 0, 0, 0, 0x01, 0x66, 0x90];
    new[3..7].copy_from_slice(&displacement);
    Some(new)
}

/// Where `andl $0xffffff7f,disp32(%reg)` is found: the place at which the first core's flags lose IGNNE.
pub fn ignne_clears(code: &[u8]) -> Vec<usize> {
    code.windows(OR_LENGTH)
        .enumerate()
        .filter(|(_, w)| {
            // ModRM: disp32, /4 (AND), any register but the one that would mean another byte follows.
            w[0] == 0x81
                && w[1] & 0xf8 == 0xa0
                && w[1] != 0xa4
                && w[6..] == [0x7f, 0xff, 0xff, 0xff]
        })
        .map(|(at, _)| at)
        .collect()
}

/// The same, done atomically and in as many bytes: `lock andb $0x7f,disp32(%reg)`, and a two-byte `nop`.
pub fn clears_atomically(instruction: &[u8]) -> Option<[u8; OR_LENGTH]> {
    let old = instruction.first_chunk::<OR_LENGTH>()?;
    let mut new = [0xf0, 0x80, old[1], 0, 0, 0, 0, 0x7f, 0x66, 0x90];
    new[3..7].copy_from_slice(&old[2..6]);
    Some(new)
}

/// Length of `mov %reg32,disp32(%rbx)`.
const STORE_LENGTH: usize = 6;

/// Where VMRUN notes an injected interrupt's vector as an exception still to be delivered, just before it delivers it itself: `mov
/// %reg32,disp32(%rbx)`, soon before a call of `delivers`, to the same word that a non-maskable interrupt's vector is put into by
/// `movl $2,disp32(%rbx)`. `at` is the address of `code`.
pub fn vector_notes(code: &[u8], at: usize, delivers: usize) -> Vec<usize> {
    /// From the note to the call there are a few more stores.
    const SOON: usize = 80;
    let call = |place: usize| -> bool {
        let Some(&[0xe8, a, b, c, d]) = code.get(place..).and_then(|rest| rest.first_chunk::<5>())
        else {
            return false;
        };
        let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
        let after = i64::try_from(at + place + 5).unwrap_or(i64::MAX);
        after
            .checked_add(distance)
            .and_then(|to| usize::try_from(to).ok())
            == Some(delivers)
    };
    let words: Vec<&[u8]> = code
        .windows(10)
        .filter(|w| w[..2] == [0xc7, 0x83] && w[6..] == [0x02, 0, 0, 0])
        .map(|w| &w[2..6])
        .collect();
    code.windows(STORE_LENGTH)
        .enumerate()
        // ModRM: disp32(%rbx), from any of the first eight registers; a byte before it would tell of another.
        .filter(|(place, w)| {
            w[0] == 0x89
                && w[1] & 0xc7 == 0x83
                && words.contains(&&w[2..])
                && (*place == 0 || !matches!(code[place - 1], 0x40..=0x4f))
                && (place + STORE_LENGTH..place + STORE_LENGTH + SOON).any(call)
        })
        .map(|(place, _)| place)
        .collect()
}

/// As many bytes that do nothing: `nopw 0(%rax,%rax,1)`.
pub const NO_STORE: [u8; STORE_LENGTH] = [0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00];

/// `timerlistgroup_deadline_ns`: where it asks whether QEMU counts instructions itself, and goes on to the virtual clock's timers if
/// it doesn't: `test %eax,%eax; je over; cmp $1,%rbx; je past`. The places of the first jump.
pub fn virtual_deadline_jumps(code: &[u8]) -> Vec<usize> {
    code.windows(9)
        .enumerate()
        .filter(|(_, w)| w[..3] == [0x85, 0xc0, 0x74] && w[4..] == [0x48, 0x83, 0xfb, 0x01, 0x74])
        .map(|(at, _)| at + 2)
        .collect()
}

/// A short jump's length, done nothing in.
pub const NO_JUMP: [u8; 2] = [0x66, 0x90];

/// Bytes in hexadecimal, as a disassembler shows them; at most the first 48.
pub fn hex(code: &[u8]) -> String {
    let shown: Vec<String> = code
        .iter()
        .take(48)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        text.split(' ')
            .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
            .collect()
    }

    /// The functions as they are in Debian's 10.0.13 (trixie; with `endbr64`) and 10.0.2 (bookworm-backports; without).
    #[test]
    fn both_known_builds_are_read() {
        let exits = [
            "f3 0f 1e fa c6 87 c7 00 00 00 01 66 c7 87 ba 2b 00 00 ff ff 31 ff c3",
            "c6 87 c7 00 00 00 01 66 c7 87 ba 2b 00 00 ff ff 31 ff c3",
        ];
        for code in exits.map(bytes) {
            assert_eq!(EXIT_REQUEST.offset(&code), Some(0xc7));
            assert_eq!(LEAVE.offset(&code), Some(0x2bba));
        }
        let ends = bytes("f3 0f 1e fa 64 48 8b 14 25 28 fd ff ff 83 aa c8 00 00 00 01 74 0a 31 c0");
        assert_eq!(EXCLUSIVE.offset(&ends), Some(0xc8));
        let handles = bytes("e8 3c fb f7 ff 84 c0 74 45 09 ab d0 00 00 00 48 89 df e8 9a fa f7 ff");
        assert_eq!(INTERRUPTS.offset(&handles), Some(0xd0));
        let interrupts = bytes(
            "f3 0f 1e fa 48 8b 05 bd fd 44 01 53 48 89 fb 48 8b 80 b8 00 00 00 48 85 c0 74 05 5b ff e0 48 8b 80 80 00 00 00 48 85 c0",
        );
        assert_eq!(INTERRUPT_SLOT.offset(&interrupts), Some(0xb8));
        let (new, old) = (
            bytes("f3 0f 1e fa f0 83 87 84 03 00 00 01 31 ff c3"),
            bytes("f0 83 87 b4 03 00 00 01 31 ff c3"),
        );
        assert_eq!(IN_FLIGHT.offset(&new), Some(0x384));
        assert_eq!(IN_FLIGHT.offset(&old), Some(0x3b4));
    }

    #[test]
    fn what_is_ambiguous_or_absurd_is_no_offset() {
        let once = bytes("c6 87 c7 00 00 00 01");
        assert_eq!(EXIT_REQUEST.offset(&once), Some(0xc7));
        assert_eq!(
            EXIT_REQUEST.offset(&[once.clone(), once.clone()].concat()),
            None
        );
        assert_eq!(EXIT_REQUEST.offset(&once[..6]), None);
        assert_eq!(
            EXIT_REQUEST.offset(&bytes("c6 87 c7 00 00 80 01")),
            None,
            "negative"
        );
        assert_eq!(
            EXIT_REQUEST.offset(&bytes("c6 87 c7 00 00 10 01")),
            None,
            "too far"
        );
        assert_eq!(
            EXIT_REQUEST.offset(&bytes("c6 87 c7 00 00 00 02")),
            None,
            "another store"
        );
    }

    #[test]
    fn the_valid_bit_is_found_and_the_rest_goes_with_it() {
        let code = bytes("90 81 e2 ff ff ff 7f 81 e2 ff ff ff 00 81 fa ff ff ff 7f");
        assert_eq!(
            valid_bit_clears(&code),
            [1],
            "neither another mask nor a comparison"
        );
        assert_eq!(clears_all(&code[1..]), Some([0x81, 0xe2, 0, 0, 0, 0]));
    }

    #[test]
    fn the_virtual_clocks_deadline_is_jumped_to_once() {
        // timerlistgroup_deadline_ns of Debian's 10.0.13, from its test on; then one with another register.
        let code = bytes(
            "8b 05 72 ac 09 01 85 c0 74 06 48 83 fb 01 74 2c 49 8b 3c dc 85 c0 74 06 48 83 f9 01 74 2c",
        );
        assert_eq!(virtual_deadline_jumps(&code), [8]);
    }

    #[test]
    fn the_first_cores_flag_is_cleared_under_a_lock() {
        // cpu_clear_ignne of Debian's 10.0.13, its end; then andl with another mask, and one with an index.
        let code = bytes(
            "e8 42 64 14 00 81 a0 74 2c 00 00 7f ff ff ff 48 83 c4 08 \
             81 a0 74 2c 00 00 7f ff ff 7f 81 a4 24 10 00 00 00 7f ff ff ff",
        );
        assert_eq!(ignne_clears(&code), [5]);
        // lock andb $0x7f,0x2c74(%rax); xchg %ax,%ax
        assert_eq!(
            clears_atomically(&code[5..]).map(Vec::from),
            Some(bytes("f0 80 a0 74 2c 00 00 7f 66 90"))
        );
    }

    #[test]
    fn the_note_of_a_delivered_interrupt_is_told_from_those_of_others() {
        // helper_vmrun of Debian's 10.0.13: an injected interrupt's branch from the note to the call, then the start of an
        // exception's, and a non-maskable interrupt's store.
        let interrupt = "44 89 ab e0 33 00 00 89 b3 10 d7 ff ff c7 83 e4 33 00 00 00 00 00 00 48 c7 83 e8 33 00 00 ff ff ff ff \
             f6 05 ec e2 3d 01 02 0f 85 c1 00 00 00 ba 01 00 00 00 48 89 df e8 b9 ab 06 00";
        let others = "44 89 ab e0 33 00 00 44 89 a3 10 d7 ff ff c7 83 10 d7 ff ff 02 00 00 00";
        let code = bytes(&format!("{interrupt} {others}"));
        let (start, delivers) = (0x7f_c54b, 0x86_7140);
        assert_eq!(vector_notes(&code, start, delivers), [7]);
        assert_eq!(
            vector_notes(&code, start, delivers + 1),
            [],
            "another function is called"
        );
        let without = bytes(interrupt);
        assert_eq!(
            vector_notes(&without, start, delivers),
            [],
            "which word it is isn't known"
        );
    }

    #[test]
    fn the_virtual_interrupt_is_set_under_a_lock() {
        // orl $0x100,-0x2af0(%rbx); then orl $0x100 with another register, orl $0x10, and one with an index.
        let code = bytes(
            "81 8b 10 d5 ff ff 00 01 00 00 81 8b 10 d5 ff ff 10 00 00 00 81 8c 24 10 00 00 00 00 01 00 00",
        );
        assert_eq!(virtual_interrupt_sets(&code), [0]);
        assert_eq!(or_displacement(&code), Some(-0x2af0));
        // lock orb $1,-0x2aef(%rbx); xchg %ax,%ax
        assert_eq!(
            sets_atomically(&code).map(Vec::from),
            Some(bytes("f0 80 8b 11 d5 ff ff 01 66 90"))
        );
    }
}
