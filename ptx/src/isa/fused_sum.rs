//! The sums of tensor cores: aligned to the largest term and truncated.
//!
//! A tensor core does not round after each product. It adds a few exact products and the accumulator as integers, all
//! cut to the place of the last bit that it keeps of the largest of them, and cuts the result to f32. What is modelled
//! here are GPUs of compute capability 8.x:
//!
//! - 8 products of 16-bit factors, or 4 of TF32, and the accumulator are one sum. `mma` of a deeper shape does the first
//!   half of its products, then the second half on top of the result.
//! - The exponent of a product is the sum of those of its factors, so its significand is in [1, 4). The largest exponent
//!   decides: the last bit that is kept is 2^-24 of it, one more than f32 has. Lower bits of a term are cut off.
//! - The result is cut, not rounded, to the 24 bits of f32. Subnormal numbers are kept. Infinity and NaN are those of
//!   the sum in wide floats.
//!
//! Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021,
//! found the alignment and the truncation. Two models that were compared with hardware bit by bit agree on the numbers
//! above: Xie, Wang, Yang and Yang, "MMA-Sim", arXiv:2511.10909, and Khattak and Mikaitis, "Accurate models of NVIDIA
//! tensor cores", arXiv:2512.07004. By both, 9.0 and later keep one bit more and add 16 and 8 products at a time, so
//! that they lose less. Where the two differ, in the exponent of a product with a factor of zero, this is the first of
//! them, which loses more: zero counts as 2^-126.

/// Columns of the result.
pub(super) const COLUMNS: usize = 8;

/// Binary places that are kept below the largest exponent.
const KEPT: i32 = 24;

/// A factor or a sum in the form that is added.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Number {
    value: f64,
    exponent: i32,
}

impl Number {
    /// `least` is the exponent of subnormal numbers of its format.
    #[inline]
    pub(super) fn new(value: f32, least: i32) -> Number {
        let field = (value.to_bits() >> 23 & 0xff) as i32;
        let exponent = if value == 0.0 { -126 } else { (field - 127).max(least) };
        Number { value: f64::from(value), exponent }
    }
}

/// A number of each column.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    values: [f64; COLUMNS],
    exponents: [i32; COLUMNS],
}

impl Line {
    /// `least` is the exponent of subnormal numbers of their format.
    #[inline]
    pub(super) fn new(values: &[f32; COLUMNS], least: i32) -> Line {
        let numbers = values.map(|value| Number::new(value, least));
        Line { values: numbers.map(|number| number.value), exponents: numbers.map(|number| number.exponent) }
    }
}

/// Adds one sum's worth of products of a row of A with lines of B to `sums`.
#[inline]
pub(super) fn add_products(sums: &mut [f32; COLUMNS], row: &[Number], lines: &[Line]) {
    let start = Line::new(sums, -126);
    let mut largest = start.exponents;
    for (a, b) in row.iter().zip(lines) {
        for (largest, b) in largest.iter_mut().zip(&b.exponents) {
            *largest = (*largest).max(a.exponent + b);
        }
    }
    let scale = largest.map(|exponent| power_of_two(KEPT - exponent));
    // Each term is below 2^26 in units of the last bit, and there are nine at most.
    let mut units: [i32; COLUMNS] = std::array::from_fn(|j| (start.values[j] * scale[j]) as i32);
    for (a, b) in row.iter().zip(lines) {
        for (units, (b, scale)) in units.iter_mut().zip(b.values.iter().zip(&scale)) {
            *units += (a.value * b * scale) as i32;
        }
    }
    // A sum with an infinity or a NaN has a larger exponent.
    let may_be_special = largest.iter().any(|exponent| *exponent > 1);
    for j in 0..COLUMNS {
        sums[j] = truncated(f64::from(units[j]) * power_of_two(largest[j] - KEPT));
        if may_be_special {
            // In f64 nothing else overflows.
            let wide = row.iter().zip(lines).fold(start.values[j], |sum, (a, b)| sum + a.value * b.values[j]);
            sums[j] = if wide.is_finite() { sums[j] } else { wide as f32 };
        }
    }
}

/// 2 to an exponent of the normal numbers of f64.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// The number of f32 next to `value` on the side of zero; infinite from 2^128 on.
fn truncated(value: f64) -> f32 {
    let nearest = value as f32;
    let size = value.abs();
    if f64::from(nearest).abs() <= size || size >= 2.0f64.powi(128) {
        return nearest;
    }
    // One step towards zero, also from infinity.
    f32::from_bits(nearest.to_bits() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(c: f32, products: &[(f32, f32)]) -> f32 {
        let row: Vec<Number> = products.iter().map(|(a, _)| Number::new(*a, -126)).collect();
        let lines: Vec<Line> = products.iter().map(|(_, b)| Line::new(&[*b; COLUMNS], -126)).collect();
        let mut sums = [c; COLUMNS];
        add_products(&mut sums, &row, &lines);
        sums[0]
    }

    #[test]
    fn terms_are_cut_below_the_last_bit_of_the_largest() {
        let tiny = 2.0f32.powi(-24);
        // Two of the last bit make one of f32, one alone is cut from the result.
        assert_eq!(sum(1.0, &[(tiny, 1.0), (tiny, 1.0)]), 1.0 + f32::EPSILON);
        assert_eq!(sum(1.0, &[(tiny, 1.0)]), 1.0);
        // Each is cut by itself: in wide arithmetic these would be two of the last bit.
        assert_eq!(sum(1.0, &[(tiny * 0.5, 1.0); 4]), 1.0);
        assert_eq!(sum(-1.0, &[(-tiny * 0.5, 1.0); 4]), -1.0);
        // Towards zero, not down: 1 - 2^-25 is cut term by term.
        assert_eq!(sum(1.0, &[(-tiny * 0.5, 1.0)]), 1.0);
        assert_eq!(sum(1.0, &[(-tiny, 1.0)]), 1.0 - f32::EPSILON / 2.0);
        // What cancels leaves what was kept beside it.
        assert_eq!(sum(1.0, &[(-1.0, 1.0), (tiny * 1.5, 1.0)]), tiny);
        // The exponent of 1.5 * 1.5 is that of its factors, although it is above 2.
        assert_eq!(sum(0.0, &[(1.5, 1.5), (-1.5, 1.5), (tiny, 1.0)]), tiny);
    }

    #[test]
    fn results_are_cut_to_f32() {
        assert_eq!(truncated(1.0 + 1.9 * f64::from(f32::EPSILON)), 1.0 + f32::EPSILON);
        assert_eq!(truncated(-1.0 - 1.9 * f64::from(f32::EPSILON)), -1.0 - f32::EPSILON);
        assert_eq!(truncated(2.0f64.powi(-149) * 2.9), f32::from_bits(2));
        assert_eq!(truncated(2.0f64.powi(128) * (1.0 - 2.0f64.powi(-30))), f32::MAX);
        assert_eq!(truncated(-2.0f64.powi(128)), f32::NEG_INFINITY);
        assert_eq!(truncated(0.0), 0.0);
    }

    #[test]
    fn what_is_no_number_stays_so() {
        assert_eq!(sum(1.0, &[(f32::INFINITY, 2.0), (1.0, 1.0)]), f32::INFINITY);
        assert_eq!(sum(f32::NEG_INFINITY, &[(1.0, 2.0)]), f32::NEG_INFINITY);
        assert!(sum(f32::NEG_INFINITY, &[(f32::INFINITY, 2.0)]).is_nan());
        assert!(sum(0.0, &[(f32::INFINITY, 0.0)]).is_nan());
        assert!(sum(f32::NAN, &[(1.0, 1.0)]).is_nan());
        // Large products whose sum fits.
        let large = 2.0f32.powi(80);
        assert_eq!(sum(1.0, &[(large, large), (-large, large)]), 0.0);
        assert_eq!(sum(1.0, &[(large, large)]), f32::INFINITY);
    }
}
