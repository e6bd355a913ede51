//! Errors on a sample of rows against f64, so that the check of a large problem takes seconds.
//!
//! The softmax of every token comes from a product in f64. With it, a row of dX needs all of W, but no other token, and a row
//! of dW all tokens, but no other class. Each row is judged by the sizes of its own terms.

use super::data::Data;
use super::measure::Measured;
use half::f16;
use rayon::prelude::*;
use serde::Serialize;
use vocabfuse::matmul::{View, product};
use vocabfuse::reference::largest_difference;
use vocabfuse::{Dtype, Precision};

/// Most rows of each output that are compared.
const SAMPLE: usize = 16;

/// Tokens and classes of one product.
const BLOCK: usize = 512;

/// An error, and what it may be. That of a gradient is relative to the terms of the row that is the furthest off.
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

    let softmax = softmax(data);
    let (lse_limit, gradient_limit) = limits(data.dtype, precision);
    let lse = tokens.iter().map(|token| (measured.lse[*token], softmax[*token].lse()));
    // Near zero a log-sum-exp has the errors of the logits, which are about one.
    let (difference, size) = lse.fold((0.0_f64, 1.0_f64), |(difference, size), (got, want)| {
        let one = (f64::from(got) - want).abs();
        (if one.is_nan() { f64::INFINITY } else { difference.max(one) }, size.max(want.abs()))
    });
    let dx = token_rows(data, &softmax, &tokens);
    let dw = weight_rows(data, &softmax, &rows);
    // JSON has no infinity; the largest number still fails.
    let error = |error: f64, limit: f64| Error { error: error.min(f64::MAX), limit };
    let worst = |got: &[f32], at: &[usize], rows: &[Row]| {
        let of_row = |(at, row): (&usize, &Row)| row.error(&got[at * data.hidden..][..data.hidden], gradient_limit);
        error(at.iter().zip(rows).map(of_row).fold(0.0, f64::max), gradient_limit)
    };
    Check {
        tokens: tokens.len(),
        rows: rows.len(),
        lse: error(difference / size, lse_limit),
        dx: worst(&measured.dx, &tokens, &dx),
        dw: worst(&measured.dw, &rows, &dw),
    }
}

/// Positions from the first to the last of `count`.
fn spread(count: usize) -> Vec<usize> {
    let sample = count.min(SAMPLE);
    (0..sample).map(|i| i * (count - 1) / (sample - 1).max(1)).collect()
}

/// What derivatives need to know of a token.
#[derive(Clone, Copy)]
struct Softmax {
    /// The largest logit.
    max: f64,
    /// Sum of e^(y - max) over all classes but the target.
    others: f64,
    /// The largest of these.
    largest: f64,
    target: f64,
}

impl Softmax {
    const EMPTY: Softmax = Softmax { max: f64::NEG_INFINITY, others: 0.0, largest: 0.0, target: 0.0 };

    fn add(&mut self, logit: f64, is_target: bool) {
        if logit > self.max {
            let factor = (self.max - logit).exp();
            let Softmax { others, largest, target, .. } = *self;
            *self = Softmax { max: logit, others: others * factor, largest: largest * factor, target: target * factor };
        }
        let e = (logit - self.max).exp();
        if is_target {
            self.target = e;
        } else {
            self.others += e;
            self.largest = self.largest.max(e);
        }
    }

    fn total(&self) -> f64 {
        self.others + self.target
    }

    fn lse(&self) -> f64 {
        self.max + self.total().ln()
    }

    /// p, or at the target p - 1, as the sum of what is not p.
    fn derivative(&self, logit: f64, is_target: bool) -> f64 {
        let e = if is_target { -self.others } else { (logit - self.max).exp() };
        e / self.total()
    }
}

/// Those of all tokens, in f64.
fn softmax(data: &Data) -> Vec<Softmax> {
    let h = data.hidden;
    let rows = |range: std::ops::Range<usize>, row: &(dyn Fn(usize) -> Vec<f64> + Sync)| -> Vec<f64> {
        range.into_par_iter().flat_map_iter(row).collect()
    };
    let mut all = vec![Softmax::EMPTY; data.tokens];
    for (block, tokens) in all.chunks_mut(BLOCK).enumerate() {
        let first = block * BLOCK;
        let x = rows(first..first + tokens.len(), &|token| data.x_row(token));
        for class in (0..data.vocab).step_by(BLOCK) {
            let w = rows(class..data.vocab.min(class + BLOCK), &|class| data.w_row(class));
            let classes = w.len() / h;
            let mut logits = vec![0.0; tokens.len() * classes];
            product(&mut logits, View::new(&x, tokens.len(), h), View::new(&w, classes, h).t(), 1.0, false);
            tokens.par_iter_mut().zip(logits.par_chunks(classes)).enumerate().for_each(|(token, (softmax, logits))| {
                let target = data.targets[first + token];
                let logits = logits.iter().zip(class as i64..);
                logits.for_each(|(logit, class)| softmax.add(*logit, class == target));
            });
        }
    }
    all
}

/// A row of a gradient, and the sizes of the terms that it is the sum of.
#[derive(Clone)]
struct Row {
    sum: Vec<f64>,
    squares: f64,
    /// What f16 loses of terms that are small beside the others of their token.
    lost: f64,
}

impl Row {
    fn new(hidden: usize) -> Row {
        Row { sum: vec![0.0; hidden], squares: 0.0, lost: 0.0 }
    }

    fn add(&mut self, derivative: f64, values: &[f64], largest: f64) {
        let size = values.iter().fold(0.0_f64, |size, value| size.max(value.abs()));
        self.sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += derivative * value);
        self.squares += (derivative * size) * (derivative * size);
        self.lost += f64::from(f16::MIN_POSITIVE_SUBNORMAL) * largest * size;
    }

    fn merge(mut self, other: Row) -> Row {
        self.sum.iter_mut().zip(&other.sum).for_each(|(sum, other)| *sum += other);
        Row { squares: self.squares + other.squares, lost: self.lost + other.lost, ..self }
    }

    /// Error relative to the sizes of value and terms. Terms are rounded each on its own, which adds up as their squares do.
    fn error(&self, got: &[f32], limit: f64) -> f64 {
        let difference = largest_difference(got, &self.sum);
        let size = self.sum.iter().fold(2.0 * self.squares.sqrt(), |size, value| size.max(value.abs()));
        if difference == 0.0 { 0.0 } else { difference / (size + self.lost / limit) }
    }
}

/// dX of some tokens, in f64.
fn token_rows(data: &Data, softmax: &[Softmax], tokens: &[usize]) -> Vec<Row> {
    let x: Vec<Vec<f64>> = tokens.iter().map(|token| data.x_row(*token)).collect();
    let part = |first: usize| {
        let mut rows = vec![Row::new(data.hidden); tokens.len()];
        for class in first..data.vocab.min(first + BLOCK) {
            let w = data.w_row(class);
            for ((row, x), token) in rows.iter_mut().zip(&x).zip(tokens) {
                let is_target = data.targets[*token] == class as i64;
                let softmax = softmax[*token];
                let derivative = softmax.derivative(dot(x, &w), is_target) / data.tokens as f64;
                row.add(derivative, &w, softmax.largest / softmax.total() / data.tokens as f64);
            }
        }
        rows
    };
    let sum = |a: Vec<Row>, b: Vec<Row>| a.into_iter().zip(b).map(|(a, b)| a.merge(b)).collect();
    let firsts: Vec<usize> = (0..data.vocab).step_by(BLOCK).collect();
    firsts.into_par_iter().map(part).reduce(|| vec![Row::new(data.hidden); tokens.len()], sum)
}

/// Some rows of dW, in f64.
fn weight_rows(data: &Data, softmax: &[Softmax], rows: &[usize]) -> Vec<Row> {
    let row = |class: &usize| {
        let w = data.w_row(*class);
        let mut row = Row::new(data.hidden);
        for (token, softmax) in softmax.iter().enumerate() {
            let x = data.x_row(token);
            let is_target = data.targets[token] == *class as i64;
            let derivative = softmax.derivative(dot(&x, &w), is_target) / data.tokens as f64;
            row.add(derivative, &x, softmax.largest / softmax.total() / data.tokens as f64);
        }
        row
    };
    rows.par_iter().map(row).collect()
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
    use super::super::measure::{Setting, measure};
    use super::*;
    use vocabfuse::problem::{Options, Problem};
    use vocabfuse::reference::largest_error;
    use vocabfuse::{Cpu, Policy};

    #[test]
    fn agrees_with_the_reference() {
        let (tokens, hidden, vocab) = (19, 37, 1101);
        let data = Data::new([tokens, hidden, vocab], Dtype::Bf16, 3).unwrap();
        let x: Vec<f64> = (0..tokens).flat_map(|row| data.x_row(row)).collect();
        let w: Vec<f64> = (0..vocab).flat_map(|row| data.w_row(row)).collect();
        let (targets, options) = (&data.targets, Options::default());
        let problem = Problem::new(&x, &w, targets, hidden, options);
        let want = vocabfuse::reference::cross_entropy(&problem).unwrap();

        let softmax = softmax(&data);
        let lse: Vec<f64> = softmax.iter().map(Softmax::lse).collect();
        let values = |rows: Vec<Row>| rows.into_iter().flat_map(|row| row.sum).collect::<Vec<f64>>();
        let dx = values(token_rows(&data, &softmax, &(0..tokens).collect::<Vec<_>>()));
        let dw = values(weight_rows(&data, &softmax, &(0..vocab).collect::<Vec<_>>()));
        assert!(largest_error(&lse, &want.lse) < 1e-13);
        assert!(largest_error(&dx, &want.dx) < 1e-12 && largest_error(&dw, &want.dw) < 1e-12);
    }

    fn measured(sizes: [usize; 3], dtype: Dtype) -> (Data, Measured) {
        let data = Data::new(sizes, dtype, 1).unwrap();
        let device = &Cpu::new(Some(1)).unwrap();
        let setting = Setting { data: &data, device, gpu: None, policy: Policy::default(), rounds: 1 };
        let measured = measure(&setting).unwrap();
        (data, measured)
    }

    #[test]
    fn right_results_pass_at_every_size() {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let small = (0..27).map(|size| [size % 3 + 1, size / 3 % 3 + 1, size / 9 + 1]);
            for sizes in small.chain([[1, 8, 20_000], [300, 3, 2], [70, 64, 900]]) {
                let (data, measured) = measured(sizes, dtype);
                let check = check(&data, &measured, None);
                assert_eq!(check.failed(), [""; 0], "N, H, V = {sizes:?} in {dtype}: {check:?}");
            }
        }
    }

    #[test]
    fn wrong_results_fail() {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let (data, right) = measured([16, 8, 40], dtype);
            let failed = |change: &dyn Fn(&mut Measured)| {
                let mut wrong = measured([16, 8, 40], dtype).1;
                change(&mut wrong);
                check(&data, &wrong, None).failed()
            };
            // The smallest row of those that are compared.
            let size = |row: &usize| right.dw[row * 8..][..8].iter().map(|v| v.abs()).fold(0.0, f32::max);
            let compared = spread(40).into_iter().step_by(2);
            let row = compared.min_by(|a, b| size(a).total_cmp(&size(b))).unwrap();
            assert_eq!(failed(&|wrong| wrong.dw[row * 8..][..8].fill(0.0)), ["dw"], "{dtype}");
            assert_eq!(failed(&|wrong| wrong.dw[row * 8] = f32::NAN), ["dw"], "{dtype}");
            let scaled = |wrong: &mut Measured| {
                std::sync::Arc::make_mut(&mut wrong.dx)[..8].iter_mut().for_each(|v| *v *= 1.1);
            };
            assert_eq!(failed(&scaled), ["dx"], "{dtype}");
            assert_eq!(failed(&|wrong| wrong.lse[0] += 1e-3), ["lse"], "{dtype}");
            // An lse that is wrong in itself does not make a right dW look wrong, or a wrong one right.
            assert_eq!(failed(&|wrong| wrong.lse.iter_mut().for_each(|lse| *lse += 1.0)), ["lse"], "{dtype}");
        }
    }

    #[test]
    fn samples_reach_from_the_first_to_the_last() {
        assert_eq!((spread(1), spread(3)), (vec![0], vec![0, 1, 2]));
        assert_eq!((spread(1000).len(), spread(1000)[0], spread(1000)[15]), (16, 0, 999));
        let within = Error { error: f64::NAN, limit: 1.0 };
        assert!(!within.passes() && !Error { error: f64::MAX, limit: 1.0 }.passes());
    }
}
