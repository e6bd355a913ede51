//! Bounds of the rows of gradients, from those of the derivatives by the logits.

use super::logits::Logits;
use super::{Arithmetic, EPSILON, TINY, largest};
use crate::operators::Raw;

/// How many times the root of their sum of squares roundings may add up to; nine that all have one sign do.
const DEVIATIONS: f64 = 3.0;

/// A derivative by a logit z = scale raw + bias.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Derivative {
    /// Sum of the absolute values of its terms.
    pub size: f64,
    /// What it is off by.
    pub error: f64,
    /// What the gradient filter may leave out of it.
    pub omitted: f64,
}

/// What a sum of products is off by.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// Errors that may all have one sign.
    errors: f64,
    /// Squares of terms that are rounded to a narrow type, each on its own.
    squares: f64,
}

impl Sum {
    fn add(&mut self, derivative: Derivative, factor: f64, lost: f64) {
        // A class without probability adds nothing, whatever its weights are.
        if derivative.size + derivative.error > 0.0 && factor > 0.0 {
            let Derivative { size, error, omitted } = derivative;
            self.errors += factor * (error + omitted + 4.0 * EPSILON * size + lost);
            self.squares += (factor * size) * (factor * size);
        }
    }

    fn bound(self, scale: f64, narrow: f64, want: f64) -> f64 {
        scale * (self.errors + DEVIATIONS * narrow * self.squares.sqrt()) + (narrow + 2.0 * EPSILON) * want + TINY
    }
}

/// Bounds of the rows of gradients.
pub(super) struct Rows {
    pub dx: Vec<f64>,
    pub dw: Vec<f64>,
    pub dbias: Vec<f64>,
}

/// Sums over tokens and classes.
pub(super) struct Sums {
    arithmetic: Arithmetic,
    scale: f64,
    /// The largest value of each row of X and of W.
    x: Vec<f64>,
    w: Vec<f64>,
    dx: Vec<Sum>,
    dw: Vec<Sum>,
    dbias: Vec<Sum>,
}

impl Sums {
    pub fn new(logits: &Logits<'_>, arithmetic: Arithmetic) -> Sums {
        let rows = |values: &[f64], hidden: usize| -> Vec<f64> { values.chunks(hidden.max(1)).map(largest).collect() };
        let (x, w) = match logits.of.raw {
            Raw::Linear { x, w, hidden } => (rows(x, hidden), rows(w, hidden)),
            Raw::Logits(_) => (vec![], vec![]),
        };
        Sums {
            arithmetic,
            scale: logits.of.logit_scale.abs(),
            dx: vec![Sum::default(); x.len()],
            dw: vec![Sum::default(); w.len()],
            dbias: vec![Sum::default(); if logits.of.bias.is_some() { logits.vocab } else { 0 }],
            x,
            w,
        }
    }

    /// Takes in a token, whose factors are lost below `unit` times the smallest of the type.
    pub fn token(&mut self, token: usize, derivatives: &[Derivative], unit: f64) {
        let lost = self.arithmetic.lost() * unit;
        for (class, derivative) in derivatives.iter().enumerate() {
            if let (Some(x), Some(w)) = (self.x.get(token), self.w.get(class)) {
                self.dx[token].add(*derivative, *w, lost);
                self.dw[class].add(*derivative, *x, lost);
            }
            if let Some(dbias) = self.dbias.get_mut(class) {
                dbias.add(Derivative { omitted: 0.0, ..*derivative }, 1.0, lost);
            }
        }
    }

    /// Bounds of dX, dW and dBias, whose values should be these.
    pub fn rows(&self, dx: &[f64], dw: &[f64], dbias: &[f64]) -> Rows {
        let bounds = |sums: &[Sum], scale: f64, want: &[f64]| -> Vec<f64> {
            let rows = want.chunks((want.len() / sums.len().max(1)).max(1));
            sums.iter().zip(rows).map(|(sum, want)| sum.bound(scale, self.arithmetic.factor(), largest(want))).collect()
        };
        Rows {
            dx: bounds(&self.dx, self.scale, dx),
            dw: bounds(&self.dw, self.scale, dw),
            dbias: bounds(&self.dbias, 1.0, dbias),
        }
    }
}
