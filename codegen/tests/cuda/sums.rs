//! Sums over a long inner dimension, with tensor cores that cut them and with ones that round.
//!
//! What a logit may be off by is what `run --check` allows beside the error of a plain composition: the error of its products
//! ([`Precision::product_error`]) and four roundings of f32, of the product of the two norms, and one of itself.

use super::device::Device;
use super::problem::Numbers;
use vocabfuse_codegen::{Dtype, KernelKind, Precision, cross_entropy};
use vocabfuse_ptx::{Accumulation, Arg};

const HIDDEN: usize = 4096;
const TOKENS: usize = 4;
const CLASSES: usize = 12;

const BOTH: [Accumulation; 2] = [Accumulation::Truncated, Accumulation::Rounded];

/// X and W.
struct Operands {
    x: Vec<f64>,
    w: Vec<f64>,
}

impl Operands {
    /// Factors of size one at most, of both signs or of one: what is cut of sums of one sign all points the same way.
    fn new(dtype: Dtype, one_sign: bool) -> Operands {
        let mut numbers = Numbers(0x5eed_0123_4567_89ab);
        let mut values = |count: usize| -> Vec<f64> {
            let value = |_| super::device::rounded(numbers.next(), dtype);
            let values = (0..count).map(value);
            if one_sign { values.map(f64::abs).collect() } else { values.collect() }
        };
        Operands { x: values(TOKENS * HIDDEN), w: values(CLASSES * HIDDEN) }
    }

    /// The largest error of a logit over the product of the norms of its factors, and over what it may be.
    fn errors(&self, dtype: Dtype, precision: Option<Precision>, accumulation: Accumulation) -> [f64; 2] {
        let mut device = Device::new(dtype, precision, 512, cross_entropy().unwrap(), 1);
        device.accumulation = accumulation;
        let (x, w) = (device.elements(&self.x, 0), device.elements(&self.w, 0));
        let out = device.room(TOKENS * CLASSES * 4);
        let pointer = Arg::Pointer;
        let arguments = [
            ("x", pointer(x)),
            ("x_stride", Arg::I64(HIDDEN as i64)),
            ("w", pointer(w)),
            ("w_stride", Arg::I64(HIDDEN as i64)),
            ("tokens", Arg::I32(TOKENS as i32)),
            ("hidden", Arg::I32(HIDDEN as i32)),
            ("columns", Arg::I32(CLASSES as i32)),
            ("logits", pointer(out)),
            ("stride", Arg::I64(CLASSES as i64)),
        ];
        device.run(KernelKind::Logits, &arguments);
        let found = device.read_floats(out, TOKENS * CLASSES);
        let product_error = precision.map_or(0.0, Precision::product_error);
        let epsilon = f64::from(f32::EPSILON);
        let mut worst = [0.0f64; 2];
        for (at, found) in found.iter().enumerate() {
            let x = &self.x[at / CLASSES * HIDDEN..][..HIDDEN];
            let w = &self.w[at % CLASSES * HIDDEN..][..HIDDEN];
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let (exact, norms) = (dot(x, w), (dot(x, x) * dot(w, w)).sqrt());
            let error = (f64::from(*found) - exact).abs();
            let allowed = (4.0 * epsilon + product_error) * norms + epsilon * exact.abs();
            worst = [worst[0].max(error / norms), worst[1].max(error / allowed)];
        }
        worst
    }
}

#[test]
fn three_products_keep_their_error_whatever_the_signs() {
    if crate::nvrtc().is_none() {
        return;
    }
    for one_sign in [false, true] {
        let operands = Operands::new(Dtype::F32, one_sign);
        for accumulation in BOTH {
            let [error, excess] = operands.errors(Dtype::F32, Some(Precision::Tf32x3), accumulation);
            println!(
                "tf32x3 {accumulation:?}, one sign {one_sign}: {error:.2e} of the norms, {excess:.3} of the bound"
            );
            assert!(excess <= 1.0, "{accumulation:?}, one sign {one_sign}: {excess} of the bound");
        }
    }
}

#[test]
fn sums_of_16_bits_lose_what_tensor_cores_cut() {
    if crate::nvrtc().is_none() {
        return;
    }
    for one_sign in [false, true] {
        let operands = Operands::new(Dtype::Bf16, one_sign);
        let [[cut, of_cut], [rounded, of_rounded]] = BOTH.map(|how| operands.errors(Dtype::Bf16, None, how));
        println!(
            "bf16, one sign {one_sign}: {cut:.2e} of the norms, {of_cut:.3} of the bound, and {rounded:.2e}, {of_rounded:.3}"
        );
        assert!(of_rounded <= 1.0, "{of_rounded}");
        if one_sign {
            // Eight products at a time, each time up to one of the last place of the sum, always towards zero.
            assert!(cut <= (HIDDEN / 8) as f64 * f64::from(f32::EPSILON), "{cut}");
        } else {
            assert!(of_cut <= 1.0, "{of_cut}");
        }
        // Otherwise the mode would change nothing, and the test above would tell nothing.
        assert!(cut > 5.0 * rounded, "{cut} {rounded}");
    }
}
