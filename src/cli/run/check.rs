//! `--check`: errors against the f64 reference, row by row beside those of the plain composition.

use super::operator::{Operator, Tensor};
use vocabfuse::Dtype;
use vocabfuse::bounds::{self, Arithmetic, Picks, Worst};
use vocabfuse::reference::{in_range, largest_error};
use vocabfuse::tensors::Elements;

/// Tensors by name, in the order of the report.
pub type Named<T> = Vec<(&'static str, Vec<T>)>;

/// What an output should be.
pub enum Expected {
    Values {
        name: &'static str,
        /// In f64.
        want: Vec<f64>,
        /// Of the plain composition in the dtype of the inputs.
        plain: Vec<f32>,
        /// What each row may be off by besides.
        bounds: Vec<f64>,
    },
    /// Ids are judged by their logits.
    Ids { name: &'static str, shortfall: f64, worst: Worst },
}

impl Expected {
    /// One of each that is in all three, whose names are in the same order.
    pub fn values(want: Named<f64>, plain: Named<f32>, bounds: Named<f64>) -> Vec<Expected> {
        let of = want.into_iter().zip(plain).zip(bounds);
        of.map(|(((name, want), (_, plain)), (_, bounds))| Expected::Values { name, want, plain, bounds }).collect()
    }

    pub fn ids(name: &'static str, picks: &Picks) -> Expected {
        Expected::Ids { name, shortfall: picks.shortfall, worst: picks.worst }
    }
}

/// Error of one output.
#[derive(Clone, Copy, Debug)]
pub struct Error {
    pub name: &'static str,
    /// Of the operator, relative to the reference's largest value. Of ids, by how much a logit is too small.
    pub own: f64,
    /// Of the plain composition in the same dtype.
    pub plain: f64,
    /// The row that is the furthest off.
    pub worst: Worst,
}

impl Error {
    /// Whether no row is further off than it may be. A value that should be finite and is not fails, also where the plain
    /// composition is not.
    pub fn passes(&self) -> bool {
        self.worst.passes()
    }
}

/// Errors of all outputs that the reference has.
pub struct Check {
    pub errors: Vec<Error>,
}

impl Check {
    /// Compares outputs, rounded to the type in which they are `written`, with what they should be.
    pub fn new(
        operator: &impl Operator,
        outputs: &[Tensor],
        arithmetic: Arithmetic,
        written: Dtype,
    ) -> anyhow::Result<Check> {
        let expected = operator.expected(outputs, arithmetic)?;
        let of = |expected| error(outputs, expected, operator.sizes().tokens, written);
        Ok(Check { errors: expected.into_iter().map(of).collect() })
    }

    /// Outputs that do not pass, and the row of each that is the furthest off.
    pub fn failed(&self) -> Vec<(&'static str, usize)> {
        self.errors.iter().filter(|error| !error.passes()).map(|error| (error.name, error.worst.row)).collect()
    }
}

// JSON has no infinity; the largest number still compares as one. A tensor that is missing is as wrong as can be.
fn error(outputs: &[Tensor], expected: Expected, tokens: usize, written: Dtype) -> Error {
    let (name, want, plain, mut bounds) = match expected {
        Expected::Values { name, want, plain, bounds } => (name, want, plain, bounds),
        Expected::Ids { name, shortfall, worst } => {
            let worst = Worst { excess: worst.excess.min(f64::MAX), ..worst };
            return Error { name, own: shortfall.min(f64::MAX), plain: 0.0, worst };
        }
    };
    let Some(output) = outputs.iter().find(|output| output.name == name) else {
        return Error { name, own: f64::MAX, plain: 0.0, worst: Worst { row: 0, excess: f64::MAX } };
    };
    let got = Elements::from_f32(output.values.clone(), written).to_f32();
    let want: Vec<f64> = want.into_iter().map(in_range).collect();
    let stored = bounds::stored(&want, bounds.len(), written);
    bounds.iter_mut().zip(stored).for_each(|(bound, stored)| *bound += stored);
    let worst = bounds::worst(&got, &plain, &want, &bounds);
    let worst = Worst { excess: worst.excess.min(f64::MAX), ..worst };
    let want = bounded(&want, &bounds);
    let of = |values: &[f32]| relative(name, &bounded(values, &bounds), &want, tokens);
    Error { name, own: of(&got), plain: of(&plain), worst }
}

/// Rows whose bound is finite: the others may hold anything.
fn bounded<T: Copy>(values: &[T], bounds: &[f64]) -> Vec<T> {
    let rows = values.chunks((values.len() / bounds.len().max(1)).max(1)).zip(bounds);
    rows.filter(|(_, bound)| bound.is_finite()).flat_map(|(row, _)| row.iter().copied()).collect()
}

/// For the report.
fn relative(name: &str, got: &[f32], want: &[f64], tokens: usize) -> f64 {
    // One more value, which is right, sets the scale.
    let beside = |scale: f32| {
        let (got, want) = ([got, &[scale]].concat(), [want, &[f64::from(scale)]].concat());
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

/// Exact wide values.
pub fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(got: &[f32], want: &[f64], plain: &[f32], bounds: &[f64], written: Dtype) -> Error {
        let output = Tensor::floats("dx", vec![got.len()], got.to_vec());
        let (want, plain, bounds) = (want.to_vec(), plain.to_vec(), bounds.to_vec());
        error(&[output], Expected::Values { name: "dx", want, plain, bounds }, 1, written)
    }

    #[test]
    fn each_row_has_the_plain_composition_as_its_yardstick() {
        let of =
            |got: &[f32]| judged(got, &[1e3, 1e3, 1e-3, 0.0], &[1e3, 1001.0, 1e-3, 0.0], &[1e-3, 1e-9], Dtype::F32);
        assert!(of(&[1002.0, 1e3, 1e-3, 0.0]).passes());
        assert!(!of(&[1002.1, 1e3, 1e-3, 0.0]).passes());
        // Small as the row is beside the other, it has to be right.
        let small = of(&[1e3, 1e3, 0.0, 0.0]);
        assert!(!small.passes() && small.own < 2e-6 && small.worst.row == 1, "{small:?}");
    }

    #[test]
    fn what_is_written_is_judged() {
        let of = |want: f64, written| judged(&[want as f32], &[want], &[want as f32], &[0.0], written).passes();
        assert!(of(1.2345678806304932, Dtype::F32) && of(1.2345678806304932, Dtype::Bf16) && of(1e-7, Dtype::F16));
        assert!(of(7e4, Dtype::Bf16) && !of(7e4, Dtype::F16));
    }

    #[test]
    fn values_that_are_no_numbers_fail() {
        let of = |got| judged(&[got], &[1.0], &[f32::NAN], &[1e-6], Dtype::F32).passes();
        assert!(of(1.0) && !of(1.1) && !of(f32::NAN) && !of(f32::INFINITY));
    }

    #[test]
    fn a_missing_output_fails() {
        let expected = |name| Expected::Values { name, want: vec![1.0], plain: vec![1.0], bounds: vec![0.0] };
        let output = [Tensor::floats("dx", vec![1], vec![1.0])];
        assert!(!error(&output, expected("dw"), 1, Dtype::F32).passes());
        assert!(error(&output, expected("dx"), 1, Dtype::F32).passes());
    }

    #[test]
    fn what_should_be_zero_or_small_is_reported_against_one() {
        assert_eq!(relative("dx", &[2.0f32.powi(-24), 0.0], &[0.0, 0.0], 2), 2.0f64.powi(-25));
        assert_eq!(relative("entropy", &[0.25], &[0.125], 9), 0.125);
        assert_eq!(relative("loss", &[0.25], &[0.125], 9), 1.0);
        assert_eq!(relative("entropy", &[f32::NAN], &[0.125], 9), f64::MAX);
    }
}
