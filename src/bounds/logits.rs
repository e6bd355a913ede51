//! The logits of a token, and what f32 may round them by.

use super::{Arithmetic, EPSILON, TINY};
use crate::operators::{Distribution, Raw};
use crate::reference::{cap_slope, dot, in_range};
use rayon::prelude::*;
use std::ops::Range;

/// Tokens that share one reading of W.
pub(super) const BLOCK: usize = 64;

/// A distribution, and the sizes of the vectors that its logits are products of.
pub(super) struct Logits<'a> {
    pub of: Distribution<'a, f64>,
    pub vocab: usize,
    arithmetic: Arithmetic,
    x_norms: Vec<f64>,
    w_norms: Vec<f64>,
    /// The last digit of each row of X and of W.
    x_digits: Vec<f64>,
    w_digits: Vec<f64>,
}

/// The logits of one token.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// After all options.
    pub y: Vec<f64>,
    /// What y is off by.
    pub rounding: Vec<f64>,
    /// dy/dz without the logit scale, and what it is off by.
    pub slope: Option<Vec<(f64, f64)>>,
    pub softmax: Option<Softmax>,
}

/// The softmax of a row of numbers.
#[derive(Clone, Debug)]
pub(super) struct Softmax {
    pub max: f64,
    /// Logarithm of the sum of e^(y - max).
    pub log_total: f64,
    pub p: Vec<f64>,
    /// log p
    pub log_p: Vec<f64>,
    /// What log_total is off by.
    pub of_log_total: f64,
    /// What the logarithm of e^(y - max), as it is computed, is off by.
    of_power: Vec<f64>,
}

impl<'a> Logits<'a> {
    pub fn new(of: Distribution<'a, f64>, vocab: usize, arithmetic: Arithmetic) -> Logits<'a> {
        let norms = |values: &[f64], hidden: usize| -> Vec<f64> {
            values.chunks(hidden.max(1)).map(|row| dot(row, row).sqrt()).collect()
        };
        let digits = |values: &[f64], hidden: usize| -> Vec<f64> {
            let of_row = |row: &[f64]| row.iter().copied().map(last_digit).fold(f64::INFINITY, f64::min);
            values.chunks(hidden.max(1)).map(of_row).collect()
        };
        let (x, w, hidden) = match of.raw {
            Raw::Linear { x, w, hidden } => (x, w, hidden),
            Raw::Logits(_) => (&[][..], &[][..], 1),
        };
        Logits {
            of,
            vocab,
            arithmetic,
            x_norms: norms(x, hidden),
            w_norms: norms(w, hidden),
            x_digits: digits(x, hidden),
            w_digits: digits(w, hidden),
        }
    }

    pub fn tokens(&self) -> usize {
        match self.of.raw {
            Raw::Linear { x, hidden, .. } => x.len() / hidden.max(1),
            Raw::Logits(logits) => logits.len() / self.vocab.max(1),
        }
    }

    /// Some tokens, one after the other.
    pub fn rows(&self, tokens: Range<usize>) -> Vec<Row> {
        // One line a class, one value a token.
        let mut lines = vec![0.0; self.vocab * tokens.len()];
        if let Raw::Linear { x, w, hidden } = self.of.raw {
            lines.par_chunks_mut(tokens.len().max(1)).zip(w.par_chunks(hidden.max(1))).for_each(|(line, w)| {
                line.iter_mut().zip(tokens.clone()).for_each(|(y, token)| *y = dot(&x[token * hidden..][..hidden], w));
            });
        }
        let row = |token: usize| {
            let raw: Vec<f64> = match self.of.raw {
                Raw::Linear { .. } => lines.iter().skip(token - tokens.start).step_by(tokens.len()).copied().collect(),
                Raw::Logits(logits) => logits[token * self.vocab..][..self.vocab].to_vec(),
            };
            self.row(token, &raw)
        };
        tokens.clone().into_par_iter().map(row).collect()
    }

    fn row(&self, token: usize, raw: &[f64]) -> Row {
        let scale = self.of.logit_scale;
        let bias = |j: usize| self.of.bias.map_or(0.0, |bias| bias[j]);
        let z: Vec<f64> = raw.iter().enumerate().map(|(j, raw)| in_range(scale * in_range(*raw) + bias(j))).collect();
        let capped = |z: f64| self.of.softcap.map_or(z, |cap| cap * (z / cap).tanh());
        let y: Vec<f64> = z.iter().map(|z| capped(*z)).collect();
        let max = y.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let products = |j: usize| match self.of.raw {
            Raw::Linear { .. } => scale.abs() * self.x_norms[token] * self.w_norms[j],
            Raw::Logits(_) => 0.0,
        };
        // What is smaller than the smallest normal number may be taken for zero, factors of a product too.
        let flushed = |j: usize| match self.of.raw {
            Raw::Linear { hidden, .. } => {
                let norms = self.x_norms[token] + self.w_norms[j] + (hidden as f64).sqrt();
                TINY * (1.0 + (hidden as f64).sqrt() * scale.abs() * norms)
            }
            Raw::Logits(_) => 0.0,
        };
        // Where f32 holds the digits of all terms of a logit at once, sums round nothing.
        let counts = |y: f64| (y - max).exp() > 0.0;
        let size = |j: usize| products(j) + bias(j).abs();
        let digit = |j: usize| match self.of.raw {
            Raw::Linear { .. } => {
                (self.x_digits[token] * self.w_digits[j] * last_digit(scale)).min(last_digit(bias(j)))
            }
            Raw::Logits(_) => last_digit(z[j]),
        };
        let fits = |j: usize| f64::from(z[j] as f32) == z[j] && size(j) * EPSILON < 2.0 * digit(j);
        let exact = (0..z.len()).all(|j| !counts(y[j]) || fits(j));
        let rounding_of_z = |j: usize| {
            let sums = if exact && fits(j) { 0.0 } else { EPSILON * (4.0 * products(j) + z[j].abs()) };
            let rounding = sums + self.arithmetic.product() * products(j) + flushed(j);
            if rounding.is_finite() { rounding } else { 0.0 }
        };
        let slope = self.of.softcap.map(|cap| {
            let slope = |(j, z): (usize, &f64)| {
                let relative = (2.0 * rounding_of_z(j) + 4.0 * EPSILON * z.abs()) / cap + 8.0 * EPSILON;
                let slope = cap_slope(z / cap);
                // It is at most 4 e^(-2 |z| / cap), and at most 1.
                let most = if relative < 1.0 {
                    slope * relative.exp()
                } else {
                    4.0 * (relative - 2.0 * (z / cap).abs()).exp()
                };
                (slope, (most.min(1.0) - slope).max(slope * -(-relative).exp_m1()))
            };
            z.iter().enumerate().map(slope).collect::<Vec<_>>()
        });
        let rounding: Vec<f64> = (0..z.len())
            .map(|j| match &slope {
                Some(slope) => (slope[j].0 + slope[j].1) * rounding_of_z(j) + 4.0 * EPSILON * y[j].abs(),
                None => rounding_of_z(j),
            })
            .collect();
        let softmax = (max.is_finite() && y.iter().all(|y| !y.is_nan())).then(|| Softmax::new(&y, max, &rounding));
        Row { y, rounding, slope, softmax }
    }
}

/// The value of the last binary digit that is not zero; that of zero is infinite.
fn last_digit(value: f64) -> f64 {
    let (fraction, exponent) = (value.to_bits() & ((1 << 52) - 1), (value.to_bits() >> 52) & 0x7ff);
    let digits = (1 << 52 | fraction).trailing_zeros();
    if value == 0.0 { f64::INFINITY } else { 2.0f64.powi(exponent as i32 - 1075 + digits as i32) }
}

impl Softmax {
    fn new(y: &[f64], max: f64, rounding: &[f64]) -> Softmax {
        let mut p: Vec<f64> = y.iter().map(|y| (y - max).exp()).collect();
        let total: f64 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= total);
        let log_p: Vec<f64> = y.iter().map(|y| (y - max) - total.ln()).collect();
        let of_power =
            |(y, rounding): (&f64, &f64)| if y.is_finite() { rounding + EPSILON * ((max - y) + 4.0) } else { 0.0 };
        let of_power: Vec<f64> = y.iter().zip(rounding).map(of_power).collect();
        // The logarithm of the sum of p e^error, which is the largest where all errors have one sign.
        let terms = || log_p.iter().zip(&of_power).map(|(log_p, of)| log_p + of);
        let largest = terms().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = largest + terms().map(|term| (term - largest).exp()).sum::<f64>().ln();
        let of_log_total = 4.0 * EPSILON + log_sum.max(0.0);
        Softmax { max, log_total: total.ln(), p, log_p, of_log_total, of_power }
    }

    pub fn lse(&self) -> f64 {
        self.max + self.log_total
    }

    /// What e^(y - max) is off by, as a part of it.
    pub fn of_exponential(&self, class: usize) -> f64 {
        self.of_power[class].exp_m1()
    }

    /// What log p may be off by where p is computed as a quotient.
    fn of_quotient(&self, class: usize) -> f64 {
        self.of_power[class] + self.of_log_total + 4.0 * EPSILON
    }

    /// What p is off by, as a part of it.
    pub fn relative(&self, class: usize) -> f64 {
        self.of_quotient(class).exp_m1()
    }

    /// The most that p may be.
    pub fn most(&self, class: usize) -> f64 {
        (self.log_p[class] + self.of_quotient(class)).exp().min(1.0)
    }

    /// What p is off by. Below the smallest normal number it may count as zero.
    pub fn error(&self, class: usize) -> f64 {
        let (relative, most) = (self.relative(class), self.most(class));
        if relative < 1.0 { (self.p[class] * relative).max(most.min(TINY)) } else { most }
    }
}

impl Row {
    /// Whether there is a logit that no softmax can be made of.
    pub fn is_odd(&self) -> bool {
        self.y.iter().any(|y| y.is_nan() || *y == f64::INFINITY)
    }

    /// What dy/dz is, and is off by.
    pub fn slope(&self, class: usize) -> (f64, f64) {
        self.slope.as_ref().map_or((1.0, 0.0), |slope| slope[class])
    }
}
