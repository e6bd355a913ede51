//! Cross-entropy in f64, written to be read: what every other implementation is measured against.
//!
//! It shares no code with the generator, the kernels or the runtime. Tokens are taken in blocks, so that memory is
//! `64 V` values and not `N V`.

mod embedding;

pub use embedding::embedding;

use crate::problem::{Outputs, Problem, ProblemError};
use rayon::prelude::*;

const BLOCK: usize = 64;

/// What the gradient needs to know of a token.
#[derive(Clone, Copy, Default)]
struct Row {
    target: Option<usize>,
    loss: f64,
    lse: f64,
    argmax: i64,
    max: f64,
    /// Sum of e^(y - max) over all classes but the target.
    others: f64,
    /// The same over all classes.
    total: f64,
    /// What the target distribution gives to all classes beside the target.
    shares: f64,
    /// Upstream gradients of loss and lse.
    factor: f64,
    lse_factor: f64,
}

/// Loss, lse and gradients of a problem.
///
/// - An ignored token has loss, lse and gradients of zero; with all tokens ignored the mean is zero.
/// - A token whose logits are all -inf has loss NaN, lse -inf and gradients of exactly zero.
/// - A NaN logit makes loss, lse and dX of that token NaN, and with them dW and dBias, which sum over tokens.
/// - Logits and losses of a token that f32 cannot hold are infinite.
/// - A gradient of zero times an infinite value of x or w is NaN, but for ignored tokens, which add nothing.
///
/// # Errors
/// [`ProblemError`] if the inputs do not fit together.
pub fn cross_entropy(problem: &Problem<'_, f64>) -> Result<Outputs<f64>, ProblemError> {
    problem.check()?;
    let problem = &problem.with_one_divisor();
    let (tokens, hidden, vocab) = (problem.tokens(), problem.hidden, problem.vocab);
    let mut losses = vec![0.0; tokens];
    let mut out = Outputs {
        loss: vec![],
        lse: vec![0.0; tokens],
        argmax: vec![-1; tokens],
        dx: vec![0.0; tokens * hidden],
        dw: vec![0.0; vocab * hidden],
        dbias: problem.bias.map(|_| vec![0.0; vocab]),
    };
    let factors = problem.gradient_factors();
    for first in (0..tokens).step_by(BLOCK) {
        let block = first..tokens.min(first + BLOCK);
        // One line a class, one value a token of the block: first logits, then their gradients.
        let z = products(problem, block.clone());
        let cap = problem.options.softcap;
        let mut lines: Vec<f64> = z.par_iter().map(|z| cap.map_or(*z, |c| c * (z / c).tanh())).collect();
        let rows: Vec<Row> = block
            .clone()
            .into_par_iter()
            .map(|i| Row { factor: factors[i], ..row(problem, &lines, &block, i) })
            .collect();
        for (i, row) in block.clone().zip(&rows) {
            losses[i] = in_range(row.loss);
            out.lse[i] = row.lse;
            out.argmax[i] = row.argmax;
        }
        lines.par_chunks_mut(block.len()).zip(z.par_chunks(block.len())).enumerate().for_each(|(class, (line, z))| {
            for ((value, row), z) in line.iter_mut().zip(&rows).zip(z) {
                let slope = cap.map_or(1.0, |c| cap_slope(z / c));
                // The logits of a token that adds nothing may be NaN.
                let adds = row.target.is_some();
                *value = if adds { logit_gradient(problem, row, class, *value) * slope } else { 0.0 };
            }
        });
        accumulate_dx(problem, &lines, &block, &mut out.dx[block.start * hidden..block.end * hidden]);
        accumulate_dw(problem, &lines, &block, &mut out.dw);
        if let Some(dbias) = &mut out.dbias {
            dbias.iter_mut().zip(lines.chunks(block.len())).for_each(|(d, line)| *d += line.iter().sum::<f64>());
        }
    }
    out.loss = problem.reduce(losses);
    Ok(out)
}

/// scale · (x · w) + bias
fn products(problem: &Problem<'_, f64>, block: std::ops::Range<usize>) -> Vec<f64> {
    let h = problem.hidden;
    let mut lines = vec![0.0; problem.vocab * block.len()];
    lines.par_chunks_mut(block.len()).enumerate().for_each(|(class, line)| {
        let w = &problem.w[class * h..(class + 1) * h];
        for (y, i) in line.iter_mut().zip(block.clone()) {
            let product = dot(&problem.x[i * h..(i + 1) * h], w);
            let bias = problem.bias.map_or(0.0, |b| b[class]);
            *y = in_range(problem.options.logit_scale * in_range(product) + bias);
        }
    });
    lines
}

/// A value as far as f32 can hold it: one that is too large is infinite.
pub fn in_range(value: f64) -> f64 {
    if (value as f32).is_finite() { value } else { f64::from(value as f32) }
}

fn row(problem: &Problem<'_, f64>, lines: &[f64], block: &std::ops::Range<usize>, token: usize) -> Row {
    let Some(target) = problem.target(token) else {
        return Row { argmax: -1, ..Row::default() };
    };
    let logits = || lines.iter().skip(token - block.start).step_by(block.len()).copied();
    // Not `f64::max`, which would drop a NaN.
    let max = logits().fold(f64::NEG_INFINITY, |m, y| if y > m || y.is_nan() { y } else { m });
    if max == f64::NEG_INFINITY {
        return Row { loss: f64::NAN, lse: max, argmax: -1, ..Row::default() };
    }
    let others: f64 = logits().enumerate().filter(|&(j, _)| j != target).map(|(_, y)| (y - max).exp()).sum();
    let logit = lines[target * block.len() + token - block.start];
    let at_target = (logit - max).exp();
    let total = others + at_target;
    // lse - logit has no correct digit left when the target has nearly all the mass.
    let surprise = if at_target > others { (others / at_target).ln_1p() } else { (max - logit) + total.ln() };
    let lse = max + total.ln();
    // Where a class has no share of the target distribution, its logit may be -inf.
    let hard = problem.smoothed(target, target).0;
    let hard_loss = if hard == 0.0 { 0.0 } else { hard * surprise };
    let spread: f64 = logits()
        .enumerate()
        .map(|(j, y)| (problem.smoothed(target, j).1, y))
        .filter(|(share, _)| *share != 0.0)
        .map(|(share, y)| share * ((max - y) + total.ln()))
        .sum();
    Row {
        target: Some(target),
        loss: hard_loss + spread + problem.options.z_loss * lse * lse,
        lse,
        argmax: if max.is_nan() { -1 } else { logits().position(|y| y == max).map_or(-1, |j| j as i64) },
        max,
        others,
        total,
        shares: logits().enumerate().map(|(j, _)| problem.smoothed(target, j).1).sum(),
        lse_factor: problem.lse_factor(token),
        ..Row::default()
    }
}

/// Derivative of tanh. 1 - tanh² has no digit left where tanh is near 1.
pub(crate) fn cap_slope(t: f64) -> f64 {
    let q = (-2.0 * t.abs()).exp();
    4.0 * q / ((1.0 + q) * (1.0 + q))
}

/// Derivative by the logit, a softcap included.
fn logit_gradient(problem: &Problem<'_, f64>, row: &Row, class: usize, logit: f64) -> f64 {
    let Some(target) = row.target else { return 0.0 };
    let (hard, share) = problem.smoothed(target, class);
    let p = (logit - row.max).exp() / row.total;
    let soft = row.shares + 2.0 * problem.options.z_loss * row.lse;
    // p - 1 at the target, as the sum of what is not p.
    let from_hard = if class == target { -row.others / row.total } else { p };
    row.factor * (hard * from_hard + soft * p - share) + row.lse_factor * p
}

fn accumulate_dx(problem: &Problem<'_, f64>, lines: &[f64], block: &std::ops::Range<usize>, dx: &mut [f64]) {
    const TOGETHER: usize = 8; // tokens that share one reading of w
    let h = problem.hidden;
    dx.par_chunks_mut((TOGETHER * h).max(1)).enumerate().for_each(|(part, rows)| {
        let tokens = block.start + part * TOGETHER..;
        for (line, w) in lines.chunks(block.len()).zip(problem.w.chunks(h)) {
            for ((row, gradient), token) in rows.chunks_mut(h).zip(&line[part * TOGETHER..]).zip(tokens.clone()) {
                if problem.target(token).is_some() {
                    add_scaled(row, gradient * problem.options.logit_scale, w);
                }
            }
        }
    });
}

fn accumulate_dw(problem: &Problem<'_, f64>, lines: &[f64], block: &std::ops::Range<usize>, dw: &mut [f64]) {
    let h = problem.hidden;
    dw.par_chunks_mut(h.max(1)).zip(lines.par_chunks(block.len())).for_each(|(row, line)| {
        for (gradient, i) in line.iter().zip(block.clone()).filter(|(_, i)| problem.target(*i).is_some()) {
            add_scaled(row, gradient * problem.options.logit_scale, &problem.x[i * h..(i + 1) * h]);
        }
    });
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Independent sums, or the compiler may not use vectors.
    let mut sums = [0.0; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for k in 0..8 {
            sums[k] += a[k] * b[k];
        }
    }
    sums.iter().sum::<f64>() + rest
}

fn add_scaled(to: &mut [f64], factor: f64, from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(t, f)| *t += factor * f);
}

/// Error of a tensor relative to its largest value: max |got - want| / max |want|.
///
/// Two NaN, or two infinities of one sign, count as equal; where only one of the two values is so, and for tensors of
/// different length, the error is infinite. Infinities are left out of max |want|. If `want` is zero everywhere, so is
/// the error when `got` is zero as well, else it is infinite.
pub fn largest_error<A: Copy + Into<f64>, B: Copy + Into<f64>>(got: &[A], want: &[B]) -> f64 {
    let difference = largest_difference(got, want);
    let finite = want.iter().map(|&want| want.into().abs()).filter(|want| want.is_finite());
    let scale = finite.fold(0.0, f64::max);
    if difference == 0.0 { 0.0 } else { difference / scale }
}

/// max |got - want|, with the same rules as [`largest_error`].
pub fn largest_difference<A: Copy + Into<f64>, B: Copy + Into<f64>>(got: &[A], want: &[B]) -> f64 {
    if got.len() != want.len() {
        return f64::INFINITY;
    }
    let difference = |(&got, &want): (&A, &B)| {
        let (got, want): (f64, f64) = (got.into(), want.into());
        if got == want || (got.is_nan() && want.is_nan()) {
            // Covers infinities, whose difference is NaN.
            0.0
        } else if got.is_finite() && want.is_finite() {
            (got - want).abs()
        } else {
            f64::INFINITY
        }
    };
    got.iter().zip(want).map(difference).fold(0.0, f64::max)
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
