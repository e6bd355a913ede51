//! `--check`: errors against the f64 reference, beside those of the plain composition.

use super::operator::{Operator, Sizes, Tensor};
use half::{bf16, f16};
use vocabfuse::reference::largest_error;
use vocabfuse::{Dtype, Precision};

/// Tensors by name, in the order of the report.
pub type Named<T> = Vec<(&'static str, Vec<T>)>;

/// Largest error of one output, relative to the reference's largest value.
#[derive(Clone, Copy, Debug)]
pub struct Error {
    pub name: &'static str,
    /// Of the operator.
    pub own: f64,
    /// Of the plain composition in the same dtype.
    pub plain: f64,
    /// Of one value or product.
    pub rounding: f64,
    /// Of one factor, for gradients of narrow types: which of few values is off by most is a matter of luck.
    pub narrow: f64,
}

impl Error {
    /// Whether the error is no worse than twice that of the plain composition, whose products are exact, to a few
    /// roundings of the result and half a rounding of the dtype. A value that should be finite and is not fails, also where the plain composition has it.
    pub fn passes(&self) -> bool {
        self.own < f64::MAX && self.own <= 2.0 * self.plain + 4.0 * self.rounding + 0.5 * self.narrow
    }
}

/// Errors of all outputs that the reference has.
pub struct Check {
    pub errors: Vec<Error>,
}

impl Check {
    /// Compares outputs of products in a precision with what they should be.
    pub fn new(operator: &impl Operator, outputs: &[Tensor], precision: Option<Precision>) -> anyhow::Result<Check> {
        let rounding = precision.map_or(0.0, Precision::product_error).max(f64::from(f32::EPSILON));
        let plain = operator.plain()?;
        let outputs: Vec<(&str, &[f32])> = outputs.iter().map(|o| (o.name, &o.values[..])).collect();
        let plain: Vec<(&str, &[f32])> = plain.iter().map(|(name, values)| (*name, &values[..])).collect();
        let Sizes { tokens, dtype, .. } = operator.sizes();
        let narrow = match dtype.parse()? {
            Dtype::F32 => 0.0,
            Dtype::Bf16 => f64::from(bf16::EPSILON) / 2.0,
            Dtype::F16 => f64::from(f16::EPSILON) / 2.0,
        };
        let errors = operator.truth()?.into_iter().map(|(name, want)| Error {
            name,
            own: error(&outputs, name, &want, tokens),
            plain: error(&plain, name, &want, tokens),
            rounding,
            narrow: if is_gradient(name) { narrow } else { 0.0 },
        });
        Ok(Check { errors: errors.collect() })
    }

    /// Names of the outputs that do not pass.
    pub fn failed(&self) -> Vec<&'static str> {
        self.errors.iter().filter(|error| !error.passes()).map(|error| error.name).collect()
    }
}

// JSON has no infinity; the largest number still compares as one. A tensor that is missing is as wrong as can be.
fn error(tensors: &[(&str, &[f32])], name: &str, want: &[f64], tokens: usize) -> f64 {
    let Some((_, got)) = tensors.iter().find(|(known, _)| *known == name) else {
        return f64::MAX;
    };
    // One more value, which is right, sets the scale.
    let beside = |scale: f32| {
        let (got, want) = ([*got, &[scale]].concat(), [want, &[f64::from(scale)]].concat());
        largest_error(&got, &want)
    };
    let error = if want.iter().all(|want| *want == 0.0) {
        // Gradients are sums over tokens.
        beside(tokens.max(1) as f32)
    } else if IN_NATS.contains(&name) {
        beside(1.0)
    } else {
        largest_error(got, want)
    };
    error.min(f64::MAX)
}

/// Differences of numbers near each other: an error is relative to one nat at least.
const IN_NATS: [&str; 3] = ["logprobs", "entropy", "divergence"];

fn is_gradient(name: &str) -> bool {
    ["dx", "dw", "dbias", "dlogits"].iter().any(|gradient| name.ends_with(gradient))
}

/// Exact wide values.
pub fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_composition_is_the_yardstick() {
        let of = |own, plain, rounding, narrow| Error { name: "dx", own, plain, rounding, narrow }.passes();
        let passes = |own, plain| of(own, plain, f64::from(f32::EPSILON), 0.0);
        assert!(passes(0.0, 0.0) && passes(2e-3, 1e-3) && passes(4e-7, 0.0));
        assert!(!passes(2.1e-3, 1e-3) && !passes(1e-6, 0.0));
        assert!(of(1e-4, 0.0, Precision::Bf16x3.product_error(), 0.0));
        assert!(of(1.9e-4, 9e-5, 0.0, 2.0f64.powi(-11)) && !of(5e-4, 9e-5, 0.0, 2.0f64.powi(-11)));
        assert!(!passes(f64::MAX, f64::MAX) && !passes(f64::NAN, 1.0));
    }

    #[test]
    fn a_missing_output_fails() {
        assert_eq!(error(&[("dx", &[1.0])], "dw", &[1.0], 1), f64::MAX);
        assert_eq!(error(&[("dx", &[1.0])], "dx", &[1.0], 1), 0.0);
    }

    #[test]
    fn what_should_be_zero_or_small_is_measured_against_one() {
        assert_eq!(error(&[("dx", &[2.0f32.powi(-24), 0.0])], "dx", &[0.0, 0.0], 2), 2.0f64.powi(-25));
        assert_eq!(error(&[("entropy", &[0.25])], "entropy", &[0.125], 9), 0.125);
        assert_eq!(error(&[("loss", &[0.25])], "loss", &[0.125], 9), 1.0);
        assert_eq!(error(&[("entropy", &[f32::NAN])], "entropy", &[0.125], 9), f64::MAX);
    }
}
