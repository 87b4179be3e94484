//! What a guest says that it has done. It says so once a second, so what the lab last heard at either end of a cell is up to a second old: in four
//! seconds, a quarter too much or too little. Hence it says when by its own clock, and what it did between two such words is brought to the time
//! that is asked for.

/// A guest says what it has done this often, s: `assets/guest-init.sh` has the same number. With what a busy host adds, no two words of one that
/// runs are further apart than twice that.
const SAID_EVERY_S: f64 = 1.0;

/// What a guest has done since its boot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// In its own unit: rounds, or blocks of a disk.
    pub work: u64,
    /// When, on its own clock, s since its boot.
    pub at_s: f64,
}

impl Done {
    /// What a guest says: `WORK SECONDS`.
    pub fn parse(said: &str) -> Option<Done> {
        let (work, at_s) = said.trim().split_once(' ')?;
        let (work, at_s) = (work.parse().ok()?, at_s.parse().ok()?);
        let sane = f64::is_finite(at_s) && at_s >= 0.0;
        sane.then_some(Done { work, at_s })
    }

    /// The later of two words.
    #[must_use]
    pub fn later(self, other: Done) -> Done {
        if other.at_s > self.at_s { other } else { self }
    }

    /// What was done in `seconds` that this ends and `earlier` begins, both as of up to a second before.
    ///
    /// A guest that was frozen for a while has said nothing meanwhile, and its words tell of a time that is much shorter or longer than what is
    /// asked for: its work is told as it is.
    pub fn since(self, earlier: Done, seconds: f64) -> f64 {
        let work = self.work.saturating_sub(earlier.work) as f64;
        let took = self.at_s - earlier.at_s;
        if took > 0.0 && (took - seconds).abs() <= 2.0 * SAID_EVERY_S {
            work * seconds / took
        } else {
            work
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(work: u64, at_s: f64) -> Done {
        Done { work, at_s }
    }

    #[test]
    fn words_are_read_or_left_out() {
        assert_eq!(Done::parse(" 12 3.45\n"), Some(done(12, 3.45)));
        for wrong in [
            "", "12", "12 ", "x 3", "12 x", "-1 3", "12 nan", "12 inf", "12 -1", "1 2 3",
        ] {
            assert_eq!(Done::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_later_word_counts_however_they_come() {
        let (early, late) = (done(5, 1.0), done(9, 2.0));
        assert_eq!(early.later(late), late);
        assert_eq!(late.later(early), late);
        assert_eq!(
            late.later(done(9, 3.0)),
            done(9, 3.0),
            "nothing was done since"
        );
    }

    /// Ten rounds a second, said at whole seconds of its clock and never known before: whatever part of a second a cell begins and ends in.
    #[test]
    fn what_is_told_does_not_depend_on_when_it_was_said() {
        let heard = |at_ms: u32| {
            let second = at_ms / 1000;
            done(10 * u64::from(second), f64::from(second))
        };
        for begin_ms in (20_000..22_000).step_by(50) {
            for took_ms in [2_200, 4_240, 10_500] {
                let seconds = f64::from(took_ms) / 1e3;
                let told = heard(begin_ms + took_ms).since(heard(begin_ms), seconds);
                assert!(
                    (told - 10.0 * seconds).abs() < 1e-9,
                    "{begin_ms} {took_ms}: {told}"
                );
            }
        }
    }

    #[test]
    fn a_frozen_guest_has_done_what_it_has_done() {
        // Ten seconds, of which it ran for three.
        assert!((done(130, 13.0).since(done(100, 10.0), 10.0) - 30.0).abs() < 1e-9);
        // It was frozen throughout.
        assert!(done(100, 10.0).since(done(100, 10.0), 4.0).abs() < 1e-9);
        // It had been until then, and said what it had done before only once it ran.
        assert!((done(180, 18.0).since(done(100, 2.0), 8.0) - 80.0).abs() < 1e-9);
    }
}
