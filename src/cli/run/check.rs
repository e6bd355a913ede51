//! `--check`: errors against the f64 reference, beside those of the plain composition.

use super::operator::{Operator, Tensor};
use vocabfuse::Precision;
use vocabfuse::reference::largest_error;

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
}

impl Error {
    /// Whether the error is no worse than twice that of the plain composition, whose products are exact, to a few
    /// roundings of the result. A value that should be finite and is not fails, also where the plain composition has it.
    pub fn passes(&self) -> bool {
        self.own < f64::MAX && self.own <= 2.0 * self.plain + 4.0 * self.rounding
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
        let errors = operator.truth()?.into_iter().map(|(name, want)| Error {
            name,
            own: error(&outputs, name, &want),
            plain: error(&plain, name, &want),
            rounding,
        });
        Ok(Check { errors: errors.collect() })
    }

    /// Names of the outputs that do not pass.
    pub fn failed(&self) -> Vec<&'static str> {
        self.errors.iter().filter(|error| !error.passes()).map(|error| error.name).collect()
    }
}

// JSON has no infinity; the largest number still compares as one. A tensor that is missing is as wrong as can be.
fn error(tensors: &[(&str, &[f32])], name: &str, want: &[f64]) -> f64 {
    let found = tensors.iter().find(|(known, _)| *known == name);
    found.map_or(f64::MAX, |(_, got)| largest_error(got, want).min(f64::MAX))
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
        let passes = |own, plain| Error { name: "dx", own, plain, rounding: f64::from(f32::EPSILON) }.passes();
        assert!(passes(0.0, 0.0) && passes(2e-3, 1e-3) && passes(4e-7, 0.0));
        assert!(!passes(2.1e-3, 1e-3) && !passes(1e-6, 0.0));
        assert!(Error { name: "dx", own: 1e-4, plain: 0.0, rounding: Precision::Bf16x3.product_error() }.passes());
        assert!(!passes(f64::MAX, f64::MAX) && !passes(f64::NAN, 1.0));
    }

    #[test]
    fn a_missing_output_fails() {
        assert_eq!(error(&[("dx", &[1.0])], "dw", &[1.0]), f64::MAX);
        assert_eq!(error(&[("dx", &[1.0])], "dx", &[1.0]), 0.0);
    }
}
