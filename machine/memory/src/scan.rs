//! Searching a set: vectors of its words, as many at once as fit.
//!
//! The compiler never makes vector loads of atomics, so each is an instruction of inline assembly. A search word by word, without a branch that
//! nobody can foretell, took three times as long and half of an L2 hit's time.
#![allow(unsafe_code, reason = "instructions that the compiler won't choose")]

use std::sync::atomic::AtomicU32;

/// Which of a set's words are what was sought, and which are free, as bits from the first on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) found: u32,
    pub(crate) free: u32,
}

/// Words of a set are scanned by fours.
pub(crate) const STEP: usize = 4;

/// Two or four words as one vector, read as if each were loaded relaxed: what others write at the same time is there or isn't.
///
/// # Safety
/// Sixteen bytes of words are there.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn load<T>(from: *const T) -> std::arch::x86_64::__m128i {
    let vector;
    // SAFETY: the machine loads aligned words of a vector whole; nothing is written.
    unsafe {
        std::arch::asm!(
            "movdqu {vector}, xmmword ptr [{from}]",
            vector = out(xmm_reg) vector,
            from = in(reg) from,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    vector
}

/// Looks through up to 32 words, in steps of [`STEP`]. Found are those that aren't 0 and are as `sought` above the lowest
/// `SHIFT` bits.
#[inline]
pub(crate) fn narrow<const SHIFT: i32>(words: &[AtomicU32], sought: u32) -> Scan {
    steps(words, |four| four_narrow::<SHIFT>(four, sought))
}

/// Which of eight words, with these bits set, are as sought.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn eight(words: &[AtomicU32; 8], with: u32, sought: u32) -> u32 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_or_si128, _mm_packs_epi16, _mm_packs_epi32,
        _mm_set1_epi32, _mm_setzero_si128,
    };
    // SAFETY: eight words are two vectors of sixteen bytes; every x86-64 has these instructions.
    unsafe {
        let with = _mm_set1_epi32(with.cast_signed());
        let sought = _mm_set1_epi32(sought.cast_signed());
        let alike = |from| _mm_cmpeq_epi32(_mm_or_si128(load(from), with), sought);
        let (low, high) = (alike(words.as_ptr()), alike(words.as_ptr().add(4)));
        let bytes = _mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128());
        _mm_movemask_epi8(bytes).cast_unsigned()
    }
}

/// The same, one after the other.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn eight(words: &[AtomicU32; 8], with: u32, sought: u32) -> u32 {
    use std::sync::atomic::Ordering::Relaxed;
    let alike = |word: &AtomicU32| u32::from(word.load(Relaxed) | with == sought);
    words
        .iter()
        .zip(0..)
        .fold(0, |all, (word, at)| all | alike(word) << at)
}

#[inline]
fn steps<T>(words: &[T], of: impl Fn(&[T; STEP]) -> (u32, u32)) -> Scan {
    let mut scan = Scan { found: 0, free: 0 };
    for (four, place) in words.as_chunks().0.iter().zip((0..).step_by(STEP)) {
        let (found, free) = of(four);
        scan.found |= found << place;
        scan.free |= free << place;
    }
    scan
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn four_narrow<const SHIFT: i32>(four: &[AtomicU32; STEP], sought: u32) -> (u32, u32) {
    use std::arch::x86_64::{
        _mm_andnot_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_movemask_ps, _mm_set1_epi32,
        _mm_setzero_si128, _mm_srli_epi32, _mm_xor_si128,
    };
    // SAFETY: four words are sixteen bytes; every x86-64 has these instructions.
    unsafe {
        let zero = _mm_setzero_si128();
        let words = load(four.as_ptr());
        let other = _mm_xor_si128(words, _mm_set1_epi32(sought.cast_signed()));
        let free = _mm_cmpeq_epi32(words, zero);
        let alike = _mm_cmpeq_epi32(_mm_srli_epi32::<SHIFT>(other), zero);
        let found = _mm_andnot_si128(free, alike);
        (
            _mm_movemask_ps(_mm_castsi128_ps(found)).cast_unsigned(),
            _mm_movemask_ps(_mm_castsi128_ps(free)).cast_unsigned(),
        )
    }
}

/// The bits of a scan, word by word.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn word_by_word(words: impl Iterator<Item = u64>, shift: i32, sought: u64) -> (u32, u32) {
    words.zip(0..).fold((0, 0), |(found, free), (word, at)| {
        let alike = word != 0 && (word ^ sought) >> shift == 0;
        (
            found | u32::from(alike) << at,
            free | u32::from(word == 0) << at,
        )
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn four_narrow<const SHIFT: i32>(four: &[AtomicU32; STEP], sought: u32) -> (u32, u32) {
    use std::sync::atomic::Ordering::Relaxed;
    let words = four.iter().map(|word| word.load(Relaxed).into());
    word_by_word(words, SHIFT, sought.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, reason = "halves of words")]

    use proptest::prelude::*;

    use super::*;

    /// Words that are often free or alike.
    fn words() -> impl Strategy<Value = Vec<u64>> {
        let word = prop_oneof![
            2 => Just(0),
            4 => 0_u64..32,
            2 => (0_u64..32).prop_map(|low| low | 7 << 32),
            2 => (0_u64..32).prop_map(|low| low | 1 << 31),
            1 => any::<u64>(),
        ];
        proptest::collection::vec(word, 32)
    }

    proptest! {
        /// What the vectors say is what the words are.
        #[test]
        fn a_scan_finds_what_is_there(all in words(), sought in words(), steps in 0_usize..9) {
            let all = &all[..steps * STEP];
            let narrow_words: Vec<_> = all.iter().map(|word| AtomicU32::new(*word as u32)).collect();
            for sought in sought {
                let halves = all.iter().map(|word| u64::from(*word as u32));
                let (found, free) = word_by_word(halves, 3, u64::from(sought as u32));
                prop_assert_eq!(narrow::<3>(&narrow_words, sought as u32), Scan { found, free });
                for (eight_words, words) in narrow_words.as_chunks().0.iter().zip(all.chunks(8)) {
                    for with in [0, 3] {
                        let alike = |word: &u64| *word as u32 | with == sought as u32;
                        let expected = words.iter().zip(0..).map(|(word, at)| u32::from(alike(word)) << at);
                        prop_assert_eq!(eight(eight_words, with, sought as u32), expected.sum::<u32>());
                    }
                }
            }
        }
    }
}
