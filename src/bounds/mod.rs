//! How far an output may be from the reference, row by row.
//!
//! An output passes if the error of each of its rows is at most twice that of the same row of the plain composition, plus a
//! bound that is computed here. The plain composition alone is no yardstick where there are few terms: its roundings may
//! cancel by luck. The largest value of a whole tensor is none either: a row of small values may then be wrong altogether.
//!
//! The bound of a row follows from its terms. A row of dX is the sum of g_j w_j over the classes. A sum in f32 is off by a
//! few roundings of the sum of |g_j| |w_j|, and each g_j is off by what its logit was rounded by. Where factors of these
//! products are rounded to a narrow type, which is done to each on its own, the sum is off by the root of the sum of squares.

mod cross_entropy;
mod embedding;
mod gradients;
mod logits;
mod operators;
mod picks;

pub use cross_entropy::cross_entropy;
pub use embedding::embedding;
pub use operators::operator;
pub use picks::{Picks, picks};

use crate::reference::{in_range, largest_difference};
use half::{bf16, f16};
use vocabfuse_codegen::{Dtype, Precision};

/// A rounding of f32.
const EPSILON: f64 = f32::EPSILON as f64;

/// The smallest number of f32 that has all its digits.
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// What numbers are rounded to on their way.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic {
    /// Type of X and W, and of what they are multiplied by.
    pub dtype: Dtype,
    /// Of products of f32.
    pub precision: Option<Precision>,
    /// Threshold of the gradient filter.
    pub filter: Option<f64>,
}

impl Arithmetic {
    /// Exact products, and no filter.
    pub fn new(dtype: Dtype) -> Arithmetic {
        Arithmetic { dtype, precision: None, filter: None }
    }

    /// What a product is off by, as a part of it.
    fn product(self) -> f64 {
        self.precision.map_or(0.0, Precision::product_error)
    }

    /// What a factor of the products that give dX and dW is off by, as a part of it.
    fn factor(self) -> f64 {
        self.product() + unit(self.dtype)
    }

    /// What a factor is off by at least, where the largest one of its token is this: what is smaller is lost.
    fn lost(self, largest: f64) -> f64 {
        match self.dtype {
            Dtype::F32 | Dtype::Bf16 => TINY * largest.max(1.0),
            Dtype::F16 => f64::from(f16::MIN_POSITIVE_SUBNORMAL) * largest + TINY,
        }
    }
}

/// Half of the distance from 1 to the next number of a narrow type; nothing for f32, whose roundings are counted apart.
fn unit(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 0.0,
        Dtype::Bf16 => f64::from(bf16::EPSILON) / 2.0,
        Dtype::F16 => f64::from(f16::EPSILON) / 2.0,
    }
}

/// What the values of rows are off by when they are rounded to `dtype` in the end: one bound a row of `want`.
pub fn stored(want: &[f64], rows: usize, dtype: Dtype) -> Vec<f64> {
    let lost = match dtype {
        Dtype::F32 | Dtype::Bf16 => 0.0,
        Dtype::F16 => f64::from(f16::MIN_POSITIVE_SUBNORMAL),
    };
    let rows = want.chunks((want.len() / rows.max(1)).max(1)).map(largest);
    rows.map(|size| unit(dtype) * size + lost).collect()
}

/// The row of an output that is the furthest off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Worst {
    /// Which row.
    pub row: usize,
    /// Its error over what it may be; it passes up to 1.
    pub excess: f64,
}

impl Worst {
    /// Whether the row passes, and with it the output.
    pub fn passes(self) -> bool {
        self.excess <= 1.0
    }
}

/// The row of `got` that is the furthest off from `want`, by what the row of `plain` and its bound allow: twice the error of
/// the one plus the other. Where the plain composition has no number, it allows nothing. What is too large for f32 is
/// infinite there. A row with an infinite bound may hold anything: it is a sum of terms that f32 cannot hold.
///
/// All have as many rows as there are bounds. An output of another size is infinitely far off.
pub fn worst(got: &[f32], plain: &[f32], want: &[f64], bounds: &[f64]) -> Worst {
    let ragged = if bounds.is_empty() { !want.is_empty() } else { !want.len().is_multiple_of(bounds.len()) };
    if got.len() != want.len() || plain.len() != want.len() || ragged {
        return Worst { row: 0, excess: f64::INFINITY };
    }
    let width = want.len() / bounds.len().max(1);
    let want: Vec<f64> = want.iter().map(|want| in_range(*want)).collect();
    let excess = |row: usize, bound: &f64| {
        if *bound == f64::INFINITY {
            return Worst { row, excess: 0.0 };
        }
        let range = row * width..(row + 1) * width;
        let error = largest_difference(&got[range.clone()], &want[range.clone()]);
        let plain = largest_difference(&plain[range.clone()], &want[range]);
        let allowed = if plain.is_finite() { 2.0 * plain + bound } else { *bound };
        let excess = if error == 0.0 { 0.0 } else { error / allowed };
        Worst { row, excess: if excess.is_nan() { f64::INFINITY } else { excess } }
    };
    let rows = if want.is_empty() { &[] } else { bounds };
    let rows = rows.iter().enumerate().map(|(row, bound)| excess(row, bound));
    rows.fold(Worst::default(), |a, b| if b.excess > a.excess { b } else { a })
}

/// The largest finite value.
fn largest(values: &[f64]) -> f64 {
    values.iter().map(|v| v.abs()).filter(|v| v.is_finite()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests;
