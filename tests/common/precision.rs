//! What tests know of bf16x3.

/// What a product x w in bf16x3 is off by at most, as a part of |x w|, besides the roundings of sums.
pub const BF16X3: f64 = 1.0 / (1 << 15) as f64;

/// Values rounded to 15 significant bits, so that a product of two is off by at most 2^-14 of it, twice what bf16x3 is.
pub fn narrowed(values: &[f32]) -> Vec<f32> {
    let round = |v: &f32| f32::from_bits((v.to_bits() + 0x100) & !0x1ff);
    values.iter().map(|v| if v.is_finite() { round(v) } else { *v }).collect()
}
