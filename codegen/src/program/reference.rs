//! The reference of a row: a logit near the largest one, from which everything that is kept of the row is measured.
//!
//! Row statistics hold e^(y - place) and y - place, never y itself, where `place` is what the reference stands for. A
//! common offset of the logits then costs no digit, whatever its size:
//!
//! - A reference up to [`LARGEST_POWER`] in size stands for the nearest multiple of ln 2. When such a reference moves, sums
//!   are multiplied by a power of two, which does not round.
//! - A larger one stands for itself. f32 has no digits left there for multiples of ln 2, but the difference of two near
//!   logits is exact.

/// Version of what a row holds, and of the order in which it is summed. Ranks must agree on it.
pub const ROW_FORMAT: u32 = 2;

/// The reference of a row that has seen no finite logit: the lowest number, so that none is below it.
pub const NO_REFERENCE: f32 = f32::MIN;

/// Above this size a reference stands for itself and not for a multiple of ln 2. Up to it, f32 holds the multiple to a
/// sixteenth of ln 2 and better, so that it can be told which one is meant.
pub const LARGEST_POWER: f32 = 1_048_576.0;

/// The logit that a reference stands for.
pub fn place(reference: f64) -> f64 {
    if reference.abs() <= f64::from(LARGEST_POWER) {
        (reference * std::f64::consts::LOG2_E).round_ties_even() * std::f64::consts::LN_2
    } else {
        reference
    }
}

/// The reference for a row whose largest logit is `peak`: none of its logits is above it by more than a rounding.
pub fn reference_of(peak: f32) -> f32 {
    if peak.abs() <= LARGEST_POWER {
        (f64::from(peak) * std::f64::consts::LOG2_E).ceil() as f32 * std::f32::consts::LN_2
    } else {
        peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_stand_for_multiples_of_ln_2_or_for_themselves() {
        for k in (-1_500_000..1_500_000).step_by(37) {
            let reference = k as f32 * std::f32::consts::LN_2;
            if reference.abs() <= LARGEST_POWER {
                assert_eq!(place(reference.into()), f64::from(k) * std::f64::consts::LN_2);
            }
        }
        for peak in [0.0f32, 0.1, -0.1, 19.3, -4e5, 1_048_575.9, 1_048_576.0, 1e8, -1e30, f32::MAX, f32::MIN] {
            let above = place(reference_of(peak).into()) - f64::from(peak);
            assert!((-0.2..0.8).contains(&above), "{peak}: {above}");
        }
        assert_eq!((place(1e8), place(f64::from(1e30f32))), (1e8, f64::from(1e30f32)));
    }
}
