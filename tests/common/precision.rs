//! What tests know of bf16x3.

/// What a product x w in bf16x3 is off by at most, as a part of |x w|, besides the roundings of sums.
pub const BF16X3: f64 = 3.0 / (1 << 18) as f64;

/// Values rounded to 16 significant bits: a product of two such factors is off by 4 * 2^-18 in the mean and 8 * 2^-18 at
/// most, which is what bf16x3 is measured by.
pub fn narrowed(values: &[f32]) -> Vec<f32> {
    let round = |v: &f32| f32::from_bits((v.to_bits() + 0x80) & !0xff);
    values.iter().map(|v| if v.is_finite() { round(v) } else { *v }).collect()
}
