//! The plain composition: materialised logits, softmax, two more matrix products.
//!
//! It is what the fused layer is compared with, in error (same dtype) and in time, and what `train` uses as its
//! reference layer. It computes what an eager framework does: matrix products with f32 sums, softmax in f32. With bf16
//! or f16 the operands, the logits, their gradient, dX and dW are rounded to that type.

mod embedding;

pub use embedding::embedding;

use crate::matmul::{View, product};
use crate::problem::{Outputs, Problem, ProblemError};
use half::{bf16, f16};
use rayon::prelude::*;
use std::borrow::Cow;
use vocabfuse_codegen::Dtype;

/// Rounds each value to a dtype; values stay stored as f32.
pub fn round(values: &mut [f32], dtype: Dtype) {
    match dtype {
        Dtype::F32 => {}
        Dtype::Bf16 => values.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
        Dtype::F16 => values.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32()),
    }
}

fn rounded(values: &[f32], dtype: Dtype) -> Cow<'_, [f32]> {
    if dtype == Dtype::F32 {
        return Cow::Borrowed(values);
    }
    let mut values = values.to_vec();
    round_all(&mut values, dtype);
    Cow::Owned(values)
}

fn round_all(values: &mut [f32], dtype: Dtype) {
    if dtype != Dtype::F32 {
        values.par_chunks_mut(1 << 16).for_each(|part| round(part, dtype));
    }
}

/// Loss, lse and gradients of a problem.
///
/// # Errors
/// [`ProblemError`] if the inputs do not fit together.
pub fn cross_entropy(problem: &Problem<'_, f32>, dtype: Dtype) -> Result<Outputs<f32>, ProblemError> {
    let mut composition = Composition::new(dtype);
    let mut out = Outputs::default();
    composition.input_gradient(problem, &mut out)?;
    composition.weight_gradient(problem, &mut out)?;
    Ok(out)
}

/// The composition with its `[N, V]` buffer, kept between calls.
///
/// Options and the treatment of odd rows are those of [`crate::reference::cross_entropy`].
#[derive(Debug)]
pub struct Composition {
    dtype: Dtype,
    /// Logits, then their gradients.
    logits: Vec<f32>,
}

impl Composition {
    /// A composition for operands of `dtype`.
    pub fn new(dtype: Dtype) -> Composition {
        Composition { dtype, logits: vec![] }
    }

    /// Logits, softmax and dX: writes `loss`, `lse` and `dx` of `out`, which need not have their size yet.
    ///
    /// # Errors
    /// [`ProblemError`] if the inputs do not fit together.
    pub fn input_gradient(&mut self, problem: &Problem<'_, f32>, out: &mut Outputs<f32>) -> Result<(), ProblemError> {
        problem.check()?;
        let problem = &problem.with_one_divisor();
        let (n, h, v) = (problem.tokens(), problem.hidden, problem.vocab);
        let scale = problem.options.logit_scale as f32;
        let (x, w) = (rounded(problem.x, self.dtype), rounded(problem.w, self.dtype));
        let w = View::new(&w, v, h);
        self.logits.resize(n * v, 0.0);
        product(&mut self.logits, View::new(&x, n, h), w.t(), scale, false);

        let factors = problem.gradient_factors();
        let mut losses = vec![0.0_f64; n];
        out.lse.resize(n, 0.0);
        self.logits.par_chunks_mut(v.max(1)).zip(&mut losses).zip(&mut out.lse).enumerate().for_each(
            |(token, ((row, loss), lse))| {
                if let Some(bias) = problem.bias {
                    row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
                if let Some(cap) = problem.options.softcap {
                    let cap = cap as f32;
                    row.iter_mut().for_each(|y| *y = cap * (*y / cap).tanh());
                }
                round(row, self.dtype);
                let (row_loss, row_lse) = softmax_gradient(row, problem, token, factors[token] as f32);
                round(row, self.dtype);
                (*loss, *lse) = (f64::from(row_loss), row_lse);
            },
        );
        out.loss = problem.reduce(losses).into_iter().map(|l| l as f32).collect();

        out.dx.resize(n * h, 0.0);
        product(&mut out.dx, View::new(&self.logits, n, v), w, scale, false);
        round_all(&mut out.dx, self.dtype);
        Ok(())
    }

    /// dW and dBias, from what [`Composition::input_gradient`] left for the same problem.
    ///
    /// # Errors
    /// [`ProblemError`] if the inputs do not fit together, or if the last problem had another size.
    pub fn weight_gradient(&self, problem: &Problem<'_, f32>, out: &mut Outputs<f32>) -> Result<(), ProblemError> {
        problem.check()?;
        let (n, h, v) = (problem.tokens(), problem.hidden, problem.vocab);
        if self.logits.len() != n * v {
            return Err(ProblemError::Size { name: "logits", got: self.logits.len(), want: n * v });
        }
        let x = rounded(problem.x, self.dtype);
        let gradients = View::new(&self.logits, n, v);
        out.dw.resize(v * h, 0.0);
        product(&mut out.dw, gradients.t(), View::new(&x, n, h), problem.options.logit_scale as f32, false);
        round_all(&mut out.dw, self.dtype);
        out.dbias = problem.bias.map(|_| self.column_sums(v));
        Ok(())
    }

    fn column_sums(&self, columns: usize) -> Vec<f32> {
        const WIDTH: usize = 1024;
        let mut sums = vec![0.0; columns];
        sums.par_chunks_mut(WIDTH).enumerate().for_each(|(part, sums)| {
            for row in self.logits.chunks(columns) {
                sums.iter_mut().zip(&row[part * WIDTH..]).for_each(|(s, g)| *s += g);
            }
        });
        sums
    }
}

/// Replaces a row of logits by their gradients, `factor` times those of its loss; loss and lse of the row.
fn softmax_gradient(row: &mut [f32], problem: &Problem<'_, f32>, token: usize, factor: f32) -> (f32, f32) {
    let Some(target) = problem.target(token) else {
        row.fill(0.0);
        return (0.0, 0.0);
    };
    let max = lanes(row, f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY && row.iter().all(|y| !y.is_nan()) {
        row.fill(0.0);
        return (f32::NAN, f32::NEG_INFINITY);
    }
    let options = &problem.options;
    let logit = row[target];
    let slopes: Option<Vec<f32>> = options.softcap.map(|cap| {
        let slope = |y: &f32| 1.0 - (y / cap as f32) * (y / cap as f32);
        row.iter().map(slope).collect()
    });
    let shares: Option<Vec<f32>> = (options.label_smoothing > 0.0)
        .then(|| (0..row.len()).map(|class| problem.smoothed(target, class).1 as f32).collect());
    let spread = shares.as_ref().map(|shares| {
        // A class without a share may be masked.
        let below = |(y, share): (&f32, &f32)| if *share == 0.0 { 0.0 } else { share * (max - y) };
        let below: Vec<f32> = row.iter().zip(shares).map(below).collect();
        (lanes(shares, 0.0, |a, b| a + b), lanes(&below, 0.0, |a, b| a + b))
    });

    row.iter_mut().for_each(|y| *y = (*y - max).exp());
    let sum = lanes(row, 0.0, |a, b| a + b);
    let (log_sum, lse) = (sum.ln(), max + sum.ln());
    let hard = problem.smoothed(target, target).0 as f32;
    let (all_shares, below) = spread.unwrap_or_default();
    let z_loss = options.z_loss as f32;
    let hard_loss = if hard == 0.0 { 0.0 } else { hard * ((max - logit) + log_sum) };
    let loss = hard_loss + (below + all_shares * log_sum) + z_loss * lse * lse;

    let of_p = factor * (hard + all_shares + 2.0 * z_loss * lse) + problem.lse_factor(token) as f32;
    row.iter_mut().for_each(|e| *e *= of_p / sum);
    row[target] -= factor * hard;
    if let Some(shares) = shares {
        row.iter_mut().zip(shares).for_each(|(gradient, share)| *gradient -= factor * share);
    }
    if let Some(slopes) = slopes {
        row.iter_mut().zip(slopes).for_each(|(gradient, slope)| *gradient *= slope);
    }
    (loss, lse)
}

/// Reduction in independent lanes: fast, and as accurate as a vectorised framework's.
fn lanes(row: &[f32], identity: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let parts = row.chunks_exact(32);
    let rest = parts.remainder().iter().fold(identity, |a, &b| combine(a, b));
    let lanes = parts.fold([identity; 32], |mut lanes, part| {
        lanes.iter_mut().zip(part).for_each(|(lane, &value)| *lane = combine(*lane, value));
        lanes
    });
    lanes.into_iter().fold(rest, combine)
}

#[cfg(test)]
#[path = "plain_tests.rs"]
mod tests;
