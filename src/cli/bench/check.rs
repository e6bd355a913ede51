//! Errors on a sample of rows against f64, so that the check of a large problem takes seconds.
//!
//! Log-sum-exp and dX of a token need all of W, but no other token. A row of dW needs the log-sum-exp of all tokens, and
//! takes it from the layer, whose values the first part has checked on its sample.

use super::data::Data;
use super::measure::Measured;
use rayon::prelude::*;
use serde::Serialize;
use vocabfuse::reference::largest_error;
use vocabfuse::{Dtype, Precision};

/// Most rows of each output that are compared.
const SAMPLE: usize = 16;

/// Rows of W that share one accumulator of dX.
const BLOCK: usize = 512;

/// An error, relative to the largest value of the sample, and what it may be.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Error {
    pub error: f64,
    pub limit: f64,
}

impl Error {
    fn passes(self) -> bool {
        self.error <= self.limit
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Check {
    pub tokens: usize,
    pub rows: usize,
    pub lse: Error,
    pub dx: Error,
    pub dw: Error,
}

impl Check {
    /// Names of the outputs that do not pass.
    pub fn failed(&self) -> Vec<&'static str> {
        let all = [("lse", self.lse), ("dx", self.dx), ("dw", self.dw)];
        all.into_iter().filter(|(_, error)| !error.passes()).map(|(name, _)| name).collect()
    }
}

/// Limits of lse and of the gradients. Operands are exact, sums are f32, and numerators are rounded to the dtype before
/// they are multiplied; each limit is a few times what was seen at sizes from 64 to 100,000 rows.
fn limits(dtype: Dtype, precision: Option<Precision>) -> (f64, f64) {
    match (dtype, precision) {
        (Dtype::F32, Some(Precision::Tf32)) => (1e-3, 1e-2),
        (Dtype::F32, _) => (1e-5, 1e-4),
        (Dtype::F16, _) => (1e-5, 2e-3),
        (Dtype::Bf16, _) => (1e-5, 1e-2),
    }
}

pub fn check(data: &Data, measured: &Measured, precision: Option<Precision>) -> Check {
    let tokens = spread(data.tokens);
    // Targets have the largest gradients; the rest may be anywhere.
    let targets = tokens.iter().map(|token| data.targets[*token] as usize);
    let mut rows: Vec<usize> = targets.step_by(2).chain(spread(data.vocab).into_iter().step_by(2)).collect();
    rows.sort_unstable();
    rows.dedup();

    let (lse, dx) = token_results(data, &tokens);
    let dw = weight_rows(data, &measured.lse, &rows);
    let sampled = |values: &[f32], rows: &[usize], width: usize| -> Vec<f32> {
        rows.iter().flat_map(|row| &values[row * width..][..width]).copied().collect()
    };
    let (lse_limit, gradient_limit) = limits(data.dtype, precision);
    // JSON has no infinity; the largest number still fails.
    let error = |got: &[f32], want: &[f64], limit: f64| Error { error: largest_error(got, want).min(f64::MAX), limit };
    Check {
        tokens: tokens.len(),
        rows: rows.len(),
        lse: error(&sampled(&measured.lse, &tokens, 1), &lse, lse_limit),
        dx: error(&sampled(&measured.dx, &tokens, data.hidden), &dx, gradient_limit),
        dw: error(&sampled(&measured.dw, &rows, data.hidden), &dw, gradient_limit),
    }
}

/// Positions from the first to the last of `count`.
fn spread(count: usize) -> Vec<usize> {
    let sample = count.min(SAMPLE);
    (0..sample).map(|i| i * (count - 1) / (sample - 1).max(1)).collect()
}

/// Log-sum-exp and dX of some tokens, in f64.
fn token_results(data: &Data, tokens: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let (h, n) = (data.hidden, tokens.len());
    let x: Vec<Vec<f64>> = tokens.iter().map(|token| data.x_row(*token)).collect();
    // One line a class, one value a token.
    let mut lines = vec![0.0; data.vocab * n];
    lines.par_chunks_mut(n).enumerate().for_each(|(class, line)| {
        let w = data.w_row(class);
        line.iter_mut().zip(&x).for_each(|(logit, x)| *logit = dot(x, &w));
    });
    let lse: Vec<f64> = (0..n)
        .map(|token| {
            let logits = || lines.iter().skip(token).step_by(n);
            let max = logits().copied().fold(f64::NEG_INFINITY, f64::max);
            max + logits().map(|logit| (logit - max).exp()).sum::<f64>().ln()
        })
        .collect();
    let part = |(block, lines): (usize, &[f64])| {
        let mut dx = vec![0.0; n * h];
        for (row, line) in lines.chunks(n).enumerate() {
            let class = block * BLOCK + row;
            let w = data.w_row(class);
            for (token, dx) in dx.chunks_mut(h).enumerate() {
                let hit = f64::from(u8::from(data.targets[tokens[token]] == class as i64));
                let gradient = ((line[token] - lse[token]).exp() - hit) / data.tokens as f64;
                dx.iter_mut().zip(&w).for_each(|(sum, w)| *sum += gradient * w);
            }
        }
        dx
    };
    let sum = |mut a: Vec<f64>, b: Vec<f64>| {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        a
    };
    let dx = lines.par_chunks(BLOCK * n).enumerate().map(part).reduce(|| vec![0.0; n * h], sum);
    (lse, dx)
}

/// Some rows of dW in f64, given the log-sum-exp of every token.
fn weight_rows(data: &Data, lse: &[f32], rows: &[usize]) -> Vec<f64> {
    let row = |row: &usize| {
        let w = data.w_row(*row);
        let mut sum = vec![0.0; data.hidden];
        for (token, lse) in lse.iter().enumerate() {
            let x = data.x_row(token);
            let hit = f64::from(u8::from(data.targets[token] == *row as i64));
            let gradient = ((dot(&x, &w) - f64::from(*lse)).exp() - hit) / data.tokens as f64;
            sum.iter_mut().zip(&x).for_each(|(sum, x)| *sum += gradient * x);
        }
        sum
    };
    rows.par_iter().flat_map_iter(row).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Independent sums, or the compiler may not use vectors.
    const LANES: usize = 8;
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0.0; LANES];
    for (a, b) in a.zip(b) {
        for k in 0..LANES {
            sums[k] += a[k] * b[k];
        }
    }
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocabfuse::problem::{Options, Problem};

    #[test]
    fn agrees_with_the_reference() {
        let (tokens, hidden, vocab) = (19, 37, 1101);
        let data = Data::new([tokens, hidden, vocab], Dtype::Bf16, 3).unwrap();
        let x: Vec<f64> = (0..tokens).flat_map(|row| data.x_row(row)).collect();
        let w: Vec<f64> = (0..vocab).flat_map(|row| data.w_row(row)).collect();
        let (targets, options) = (&data.targets, Options::default());
        let problem = Problem::new(&x, &w, targets, hidden, options);
        let want = vocabfuse::reference::cross_entropy(&problem).unwrap();

        let all: Vec<usize> = (0..tokens).collect();
        let (lse, dx) = token_results(&data, &all);
        assert!(largest_error(&lse, &want.lse) < 1e-13 && largest_error(&dx, &want.dx) < 1e-12);
        let lse: Vec<f32> = lse.iter().map(|lse| *lse as f32).collect();
        let all: Vec<usize> = (0..vocab).collect();
        // The lse that it is given has the precision of the layer's.
        assert!(largest_error(&weight_rows(&data, &lse, &all), &want.dw) < 1e-6);
    }

    #[test]
    fn samples_reach_from_the_first_to_the_last() {
        assert_eq!((spread(1), spread(3)), (vec![0], vec![0, 1, 2]));
        assert_eq!((spread(1000).len(), spread(1000)[0], spread(1000)[15]), (16, 0, 999));
        let within = Error { error: f64::NAN, limit: 1.0 };
        assert!(!within.passes() && !Error { error: f64::MAX, limit: 1.0 }.passes());
    }
}
