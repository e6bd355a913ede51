//! Bounds of the rows of gradients, from those of the derivatives by the logits.

use super::logits::Logits;
use super::{Arithmetic, EPSILON, TINY, largest};
use crate::operators::Raw;

/// How many times the root of their sum of squares roundings may add up to, those that differ from each other.
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

/// Rows that have the same absolute values: what they are multiplied by is the same too, and is rounded alike.
struct Kinds {
    /// The kind of each row.
    of: Vec<usize>,
    /// How many rows each kind has.
    members: Vec<usize>,
}

impl Kinds {
    fn new(values: &[f64], width: usize) -> Kinds {
        let width = width.max(1);
        let row = |row: usize| values[row * width..][..width].iter().map(|value| value.abs());
        let mut order: Vec<usize> = (0..values.len() / width).collect();
        order.sort_by(|a, b| row(*a).map(f64::to_bits).cmp(row(*b).map(f64::to_bits)));
        let mut kinds = Kinds { of: vec![0; order.len()], members: vec![] };
        for (place, current) in order.iter().enumerate() {
            if place == 0 || !row(order[place - 1]).map(f64::to_bits).eq(row(*current).map(f64::to_bits)) {
                kinds.members.push(0);
            }
            kinds.of[*current] = kinds.members.len() - 1;
            kinds.members[kinds.of[*current]] += 1;
        }
        kinds
    }

    /// The kind of a row that others are of too.
    fn shared(&self, row: usize) -> Option<usize> {
        let kind = self.of[row];
        (self.members[kind] > 1).then_some(kind)
    }
}

/// A term of a sum of products.
#[derive(Clone, Copy, Debug)]
struct Term {
    derivative: Derivative,
    /// The largest value that the derivative is multiplied by.
    factor: f64,
    /// Derivatives below this are lost.
    lost: f64,
}

/// What a sum of products is off by.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// No less than any value on the way to the sum.
    size: f64,
    /// Errors that may all have one sign.
    errors: f64,
    /// Squares of terms that are rounded to a narrow type, each on its own; terms that are rounded alike are one.
    squares: f64,
}

impl Sum {
    /// Takes in what a term may be off by besides its rounding to a narrow type, and returns its size.
    fn add(&mut self, Term { derivative, factor, lost }: Term) -> f64 {
        let Derivative { size, error, omitted } = derivative;
        self.size += size * factor.max(1.0);
        if error == f64::INFINITY {
            self.errors = error;
        }
        // A class without probability adds nothing, whatever its weights are.
        if size + error > 0.0 && factor > 0.0 {
            self.errors += factor * (error + omitted + 4.0 * EPSILON * size + lost) + TINY * (1.0 + size);
            factor * size
        } else {
            0.0
        }
    }

    fn bound(self, scale: f64, narrow: f64, want: f64) -> f64 {
        if self.size * scale.max(1.0) > f64::from(f32::MAX) {
            return f64::INFINITY;
        }
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
    /// The largest finite value of each row of X and of W.
    x: Vec<f64>,
    w: Vec<f64>,
    /// Whether all of W is finite.
    w_is_finite: bool,
    kinds_of_x: Kinds,
    kinds_of_w: Kinds,
    dx: Vec<Sum>,
    dw: OverTokens,
    dbias: OverTokens,
}

/// Sums over tokens, one a class.
struct OverTokens {
    sums: Vec<Sum>,
    /// The terms of tokens that are of one kind, by kind: as many as classes. Kinds of one token need none.
    alike: Vec<Vec<f64>>,
}

impl OverTokens {
    fn new(classes: usize, kinds: &Kinds) -> OverTokens {
        let terms = |members: &usize| vec![0.0; if *members > 1 { classes } else { 0 }];
        OverTokens { sums: vec![Sum::default(); classes], alike: kinds.members.iter().map(terms).collect() }
    }

    /// Takes in the term of a token, whose kind is given where others are of that kind too.
    fn add(&mut self, class: usize, kind: Option<usize>, term: Term) {
        let size = self.sums[class].add(term);
        match kind {
            Some(kind) => self.alike[kind][class] += size,
            None => self.sums[class].squares += size * size,
        }
    }

    /// Sums with the squares of all terms.
    fn sums(&self) -> Vec<Sum> {
        let mut sums = self.sums.clone();
        for terms in &self.alike {
            sums.iter_mut().zip(terms).for_each(|(sum, size)| sum.squares += size * size);
        }
        sums
    }
}

impl Sums {
    pub fn new(logits: &Logits<'_>, arithmetic: Arithmetic) -> Sums {
        let rows = |values: &[f64], hidden: usize| -> Vec<f64> { values.chunks(hidden.max(1)).map(largest).collect() };
        let (x, w, hidden) = match logits.of.raw {
            Raw::Linear { x, w, hidden } => (x, w, hidden),
            Raw::Logits(_) => (&[][..], &[][..], 1),
        };
        let kinds_of_x = Kinds::new(x, hidden);
        Sums {
            arithmetic,
            scale: logits.of.logit_scale.abs(),
            dx: vec![Sum::default(); x.len() / hidden.max(1)],
            dw: OverTokens::new(w.len() / hidden.max(1), &kinds_of_x),
            dbias: OverTokens::new(if logits.of.bias.is_some() { logits.vocab } else { 0 }, &kinds_of_x),
            kinds_of_w: Kinds::new(w, hidden),
            kinds_of_x,
            w_is_finite: w.iter().all(|w| w.is_finite()),
            x: rows(x, hidden),
            w: rows(w, hidden),
        }
    }

    /// Leaves open what a token without a softmax adds to dW and dBias, and what dX of the token that is given holds.
    pub fn unknown(&mut self, token: Option<usize>) {
        let dx = token.and_then(|token| self.dx.get_mut(token));
        let sums = self.dw.sums.iter_mut().chain(&mut self.dbias.sums).chain(dx);
        sums.for_each(|sum| sum.errors = f64::INFINITY);
    }

    /// Takes in a token, whose factors may be as small as those that are lost beside the `largest`.
    pub fn token(&mut self, token: usize, derivatives: &[Derivative], largest: f64) {
        // What is multiplied is the derivative times the scale.
        let lost = self.arithmetic.lost(largest).max(TINY / self.scale);
        let kind = if self.x.is_empty() { None } else { self.kinds_of_x.shared(token) };
        let mut alike = vec![0.0; self.kinds_of_w.members.len()];
        for (class, derivative) in derivatives.iter().enumerate() {
            let term = Term { derivative: *derivative, factor: 1.0, lost };
            if let (Some(x), Some(w)) = (self.x.get(token), self.w.get(class)) {
                alike[self.kinds_of_w.of[class]] += self.dx[token].add(Term { factor: *w, ..term });
                self.dw.add(class, kind, Term { factor: *x, ..term });
            }
            if class < self.dbias.sums.len() {
                let derivative = Derivative { omitted: 0.0, ..*derivative };
                self.dbias.add(class, kind, Term { derivative, ..term });
            }
        }
        if let Some(dx) = self.dx.get_mut(token) {
            dx.squares += alike.iter().map(|size| size * size).sum::<f64>();
            if !self.w_is_finite {
                // A product with an infinite weight is infinite or NaN.
                dx.errors = f64::INFINITY;
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
            dw: bounds(&self.dw.sums(), self.scale, dw),
            dbias: bounds(&self.dbias.sums(), 1.0, dbias),
        }
    }
}
