//! Whole numbers of what was reckoned in fractions: nanoseconds and bytes are never split.

use ostler_model::Nanos;

/// A whole number: rounded, and within what there is.
pub fn whole(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and not-a-number is none"
    )]
    let whole = libm::round(value) as u64;
    whole
}

/// Nanoseconds likewise.
pub fn nanos(value: f64) -> Nanos {
    Nanos(whole(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_go_up_and_what_there_is_not_is_none() {
        let values = [0.4, 0.5, 1.5, 2.4999, -3.0, f64::NAN, f64::INFINITY];
        assert_eq!(values.map(whole), [0, 1, 2, 2, 0, 0, u64::MAX]);
        assert_eq!(nanos(1.5), Nanos(2));
    }
}
