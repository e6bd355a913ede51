//! Loss and sampled rows of dW in f64.
//!
//! The reference of the crate computes every gradient and holds dW as f64; at the sizes of a comparison that would take
//! longer than the comparison. Here the logits are computed once, in f64, and dW only at the sampled rows.

use crate::data::{self, Shape};
use anyhow::{Context, Result};
use rayon::prelude::*;
use vocabfuse::reference::largest_error;

/// Tokens that share one reading of W.
const TOGETHER: usize = 8;

/// The exact results.
pub struct Truth {
    loss: f64,
    rows: Vec<f64>,
}

impl Truth {
    /// Runs on all processors.
    pub fn compute(shape: &Shape, rows: &[usize]) -> Result<Truth> {
        let (n, h) = (shape.tokens, shape.hidden);
        let x = data::read_as(&shape.x(), n * h, f64::from)?;
        let w = data::read_as(&shape.w(), shape.vocab * h, f64::from)?;
        let targets: Vec<i64> = data::read(&shape.targets())?;
        let logit = |token: usize, class: usize| dot(&x[token * h..][..h], &w[class * h..][..h]);

        let lse: Vec<f64> = x.par_chunks(TOGETHER * h).flat_map_iter(|x| log_sum_exp(x, &w, h)).collect();
        let mut loss = 0.0;
        let mut out = vec![0.0; rows.len() * h];
        for (token, (&target, &lse)) in targets.iter().zip(&lse).enumerate() {
            let target = usize::try_from(target).context("a target")?;
            loss += (lse - logit(token, target)) / n as f64;
            for (row, out) in rows.iter().zip(out.chunks_mut(h)) {
                let hit = if *row == target { 1.0 } else { 0.0 };
                let gradient = ((logit(token, *row) - lse).exp() - hit) / n as f64;
                out.iter_mut().zip(&x[token * h..][..h]).for_each(|(d, x)| *d += gradient * x);
            }
        }
        Ok(Truth { loss, rows: out })
    }

    /// Errors of a loss and of the sampled rows, relative to the largest exact value. What is not finite has an
    /// infinite error.
    pub fn errors(&self, loss: Option<f64>, rows: &[f32]) -> (f64, f64) {
        let loss = loss.map_or(f64::INFINITY, |loss| largest_error(&[loss], &[self.loss]));
        (loss, largest_error(rows, &self.rows))
    }
}

/// Log-sum-exp of the logits of a few tokens.
fn log_sum_exp(x: &[f64], w: &[f64], hidden: usize) -> Vec<f64> {
    // Maximum so far, and the sum of e^(logit - maximum).
    let mut sums = vec![(f64::NEG_INFINITY, 0.0_f64); x.len() / hidden];
    for class in w.chunks(hidden) {
        for (x, (max, sum)) in x.chunks(hidden).zip(&mut sums) {
            let logit = dot(x, class);
            if logit > *max {
                *sum = *sum * (*max - logit).exp() + 1.0;
                *max = logit;
            } else {
                *sum += (logit - *max).exp();
            }
        }
    }
    sums.into_iter().map(|(max, sum)| max + sum.ln()).collect()
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
        let folder = tempfile::tempdir().unwrap();
        let (tokens, hidden, vocab) = (19, 37, 101);
        let dtype = "bf16".to_owned();
        let shape = Shape { folder: folder.path().to_owned(), tokens, hidden, vocab, dtype, threads: 1 };
        let rows = data::make(&shape, 3, 16).unwrap();
        assert!(rows.len() > 4 && rows.is_sorted());
        let truth = Truth::compute(&shape, &rows).unwrap();

        let x = data::read_as(&shape.x(), tokens * hidden, f64::from).unwrap();
        let w = data::read_as(&shape.w(), vocab * hidden, f64::from).unwrap();
        let targets: Vec<i64> = data::read(&shape.targets()).unwrap();
        let options = Options::default();
        let problem = Problem::new(&x, &w, &targets, hidden, options);
        let out = vocabfuse::reference::cross_entropy(&problem).unwrap();
        let sampled: Vec<f64> = rows.iter().flat_map(|row| &out.dw[row * hidden..][..hidden]).copied().collect();
        assert!(largest_error(&[truth.loss], &out.loss) < 1e-13);
        assert!(largest_error(&truth.rows, &sampled) < 1e-13);
        assert_eq!(truth.errors(None, &[f32::NAN; 3]), (f64::INFINITY, f64::INFINITY));
    }
}
