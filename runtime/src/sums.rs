//! Sums over the vocabulary that do not lose digits, however many terms they have.
//!
//! Kernels form the sum of 64 columns at a time and add it to a total, and beside the total they keep all that its roundings
//! have lost. So the error of a total is that of a sum of 64 terms, at most 64 · 2⁻²⁴ of the sum of their magnitudes, whether
//! the vocabulary has a thousand entries or a million.

/// Adds to totals what they have lost. An infinite total has lost nothing that could be given back.
pub(crate) fn restore(totals: &mut [f32], lost: &[f32]) {
    for (total, lost) in totals.iter_mut().zip(lost).filter(|(total, _)| total.is_finite()) {
        *total += lost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinite_totals_stay_as_they_are() {
        let mut totals = [1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 16_777_216.0];
        restore(&mut totals, &[0.5, f32::NAN, 1.0, 1.0, 3.0]);
        assert_eq!((totals[0], totals[1], totals[2], totals[4]), (1.5, f32::INFINITY, f32::NEG_INFINITY, 16_777_220.0));
        assert!(totals[3].is_nan());
    }
}
