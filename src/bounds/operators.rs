//! Bounds of operators on distributions.

use super::gradients::{Derivative, Sums};
use super::logits::{BLOCK, Logits, Row, Softmax};
use super::{Arithmetic, EPSILON, TINY};
use crate::operators::{Answer, Distribution, Gradients, Query, Upstream};

/// What the values and gradients of an operator may be off by; `truth` is what they should be.
///
/// Values have a bound each, gradients of x, w and bias one a row, gradients of given logits one an element. Operators that
/// pick ids are left to [`picks`](super::picks).
pub fn operator(
    query: &Query<'_, f64>,
    upstream: &Upstream<'_, f64>,
    vocab: usize,
    truth: &Answer<f64>,
    arithmetic: Arithmetic,
) -> Answer<f64> {
    match *query {
        Query::Logprobs { of, ids, per_token, ignore_index, entropy } => {
            let ids = Some((ids, per_token, ignore_index));
            Bounds::new(&[of], vocab, arithmetic).single(ids, entropy, upstream, truth)
        }
        Query::Entropy(of) => Bounds::new(&[of], vocab, arithmetic).single(None, true, upstream, truth),
        Query::KlDivergence { p, q } => Bounds::new(&[p, q], vocab, arithmetic).divergence(upstream, truth),
        Query::TopK(..) | Query::Sample(..) => Answer::default(),
    }
}

/// A divergence up to this is finite.
const LARGEST_DIVERGENCE: f64 = 1e35;

type Ids<'a> = (&'a [i64], usize, Option<i64>);

/// The distributions of an operator, and sums over tokens and classes for the gradients of each.
struct Bounds<'a> {
    vocab: usize,
    sides: Vec<Side<'a>>,
}

struct Side<'a> {
    logits: Logits<'a>,
    sums: Sums,
    /// Of given logits.
    by_logit: Vec<f64>,
}

impl Side<'_> {
    fn token(&mut self, token: usize, row: &Row, mut derivatives: Vec<Derivative>) {
        for (class, derivative) in derivatives.iter_mut().enumerate() {
            let ((slope, of_slope), Derivative { size, error, omitted }) = (row.slope(class), *derivative);
            *derivative =
                Derivative { size: slope * size, error: (slope + of_slope) * error + size * of_slope, omitted };
        }
        let largest = derivatives.iter().map(|derivative| derivative.size).fold(0.0, f64::max);
        self.sums.token(token, &derivatives, largest);
        let scale = self.logits.of.logit_scale.abs();
        self.by_logit.extend(derivatives.iter().map(|d| scale * (d.error + 4.0 * EPSILON * d.size) + TINY));
    }
}

impl<'a> Bounds<'a> {
    fn new(of: &[Distribution<'a, f64>], vocab: usize, arithmetic: Arithmetic) -> Bounds<'a> {
        let side = |of: &Distribution<'a, f64>| {
            let logits = Logits::new(*of, vocab, arithmetic);
            Side { sums: Sums::new(&logits, arithmetic), logits, by_logit: vec![] }
        };
        Bounds { vocab, sides: of.iter().map(side).collect() }
    }

    /// Calls `token` for each token with the row of each distribution, and takes in the derivatives that it gives for each.
    fn each(&mut self, mut token: impl FnMut(usize, &[&Row]) -> Vec<Vec<Derivative>>) {
        let tokens = self.sides.iter().map(|side| side.logits.tokens()).min().unwrap_or(0);
        for first in (0..tokens).step_by(BLOCK) {
            let block = first..tokens.min(first + BLOCK);
            let rows: Vec<Vec<Row>> = self.sides.iter().map(|side| side.logits.rows(block.clone())).collect();
            for i in block.clone() {
                let of_token: Vec<&Row> = rows.iter().map(|rows| &rows[i - block.start]).collect();
                let mut derivatives = token(i, &of_token);
                derivatives.resize(of_token.len(), vec![]);
                if of_token.iter().any(|row| row.is_odd()) {
                    self.sides.iter_mut().for_each(|side| side.sums.unknown(Some(i)));
                }
                for ((side, row), mut derivatives) in self.sides.iter_mut().zip(&of_token).zip(derivatives) {
                    derivatives.resize(self.vocab, Derivative::default());
                    side.token(i, row, derivatives);
                }
            }
        }
    }

    fn gradients(self, truth: &Answer<f64>) -> Vec<Gradients<f64>> {
        let of_side = |(side, want): (Side<'_>, &Gradients<f64>)| {
            let rows = side.sums.rows(&want.x, &want.w, &want.bias);
            Gradients { logits: side.by_logit, x: rows.dx, w: rows.dw, bias: rows.dbias }
        };
        self.sides.into_iter().zip(&truth.gradients).map(of_side).collect()
    }

    fn single(
        mut self,
        ids: Option<Ids<'_>>,
        entropy: bool,
        upstream: &Upstream<'_, f64>,
        truth: &Answer<f64>,
    ) -> Answer<f64> {
        let (mut logprobs, mut entropies) = (vec![], vec![]);
        self.each(|token, rows| {
            let slots = ids.map(|(ids, k, ignored)| (&ids[token * k..][..k], ignored));
            let Some(softmax) = &rows[0].softmax else {
                logprobs.extend(vec![0.0; slots.map_or(0, |(ids, _)| ids.len())]);
                entropies.extend(entropy.then_some(0.0));
                return vec![];
            };
            let mut derivatives = vec![Derivative::default(); softmax.p.len()];
            if let Some((ids, ignored)) = slots {
                let u = |slot: usize| upstream.logprobs.map_or(0.0, |u| u[token * ids.len() + slot].abs());
                let mut bounds = vec![0.0; ids.len()];
                let mut total = 0.0;
                for (slot, id) in ids.iter().enumerate().filter(|(_, id)| Some(**id) != ignored) {
                    bounds[slot] = of_logprob(rows[0], softmax, *id as usize);
                    derivatives[*id as usize].size += u(slot);
                    total += u(slot);
                }
                logprobs.extend(bounds);
                for (class, derivative) in derivatives.iter_mut().enumerate() {
                    derivative.size += total * softmax.p[class];
                    derivative.error += total * softmax.error(class);
                }
            }
            if entropy {
                let (value, bound) = of_entropy(rows[0], softmax);
                entropies.push(bound);
                let u = upstream.entropy.map_or(0.0, |u| u[token].abs());
                for (class, derivative) in
                    derivatives.iter_mut().enumerate().filter(|(class, _)| softmax.most(*class) > 0.0)
                {
                    let log_p = softmax.log_p[class];
                    let of_distance = of_logprob(rows[0], softmax, class) + bound;
                    derivative.size += u * softmax.p[class] * (log_p.abs() + value);
                    let distance = (log_p + value).abs();
                    derivative.error += u * (distance * softmax.error(class) + of_distance * softmax.most(class));
                }
            }
            vec![derivatives]
        });
        Answer { logprobs, entropy: entropies, gradients: self.gradients(truth), ..Answer::default() }
    }

    fn divergence(mut self, upstream: &Upstream<'_, f64>, truth: &Answer<f64>) -> Answer<f64> {
        let mut divergence = vec![];
        self.each(|token, rows| {
            let (Some(p), Some(q)) = (&rows[0].softmax, &rows[1].softmax) else {
                divergence.push(0.0);
                return vec![];
            };
            let pair = Pair { rows: [rows[0], rows[1]], p, q };
            let (value, bound) = pair.value();
            divergence.push(bound);
            let u = upstream.divergence.map_or(0.0, |u| u[token].abs());
            let by_q = |class: usize| {
                let error = u * (p.error(class) + q.error(class));
                Derivative { size: u * (p.p[class] + q.p[class]), error, omitted: 0.0 }
            };
            let by_p = |class: usize| {
                if p.most(class) == 0.0 || !value.is_finite() {
                    return Derivative::default();
                }
                let ratio = pair.ratio(class);
                let of_distance = p.most(class) * (pair.of_ratio(class) + bound);
                let error = (ratio - value).abs() * p.error(class) + of_distance;
                Derivative { size: u * p.p[class] * (ratio.abs() + value), error: u * error, omitted: 0.0 }
            };
            let classes = || 0..p.p.len();
            vec![classes().map(by_p).collect(), classes().map(by_q).collect()]
        });
        Answer { divergence, gradients: self.gradients(truth), ..Answer::default() }
    }
}

/// What the log-probability of a class is off by.
pub(super) fn of_logprob(row: &Row, softmax: &Softmax, class: usize) -> f64 {
    let below = softmax.max - row.y[class];
    let bound = row.rounding[class] + softmax.of_log_total + 4.0 * EPSILON * (below + softmax.log_total.abs()) + TINY;
    if bound.is_finite() { bound } else { 0.0 }
}

/// Entropy, and what it is off by.
fn of_entropy(row: &Row, softmax: &Softmax) -> (f64, f64) {
    let classes = || (0..softmax.p.len()).filter(|class| softmax.p[*class] > 0.0);
    let value: f64 = -classes().map(|class| softmax.p[class] * softmax.log_p[class]).sum::<f64>();
    let below: f64 = classes().map(|class| softmax.p[class] * (softmax.max - row.y[class])).sum();
    let of_class = |class: usize| {
        let (p, most, relative) = (softmax.p[class], softmax.most(class), softmax.relative(class));
        if relative < 1.0 {
            // The second term is the divergence of the two distributions, a square.
            let distance = (softmax.log_p[class] + value).abs();
            p * (distance * softmax.of_exponential(class) + (1.0 + distance) * relative * relative)
        } else {
            // What -p log p may be with this p or less, there as here.
            let tip = (-1.0_f64).exp();
            if most < tip { -most * most.ln() } else { tip }
        }
    };
    let rounding = 4.0 * EPSILON * (softmax.log_total.abs() + below) + softmax.of_log_total;
    let possible = (0..softmax.p.len()).filter(|class| softmax.most(*class) > 0.0);
    (value, rounding + possible.map(of_class).sum::<f64>() + TINY)
}

/// Two distributions over the same classes.
struct Pair<'a> {
    rows: [&'a Row; 2],
    p: &'a Softmax,
    q: &'a Softmax,
}

impl Pair<'_> {
    /// log p - log q of a class.
    fn ratio(&self, class: usize) -> f64 {
        self.p.log_p[class] - self.q.log_p[class]
    }

    /// What it is off by besides the roundings of logits, which all classes share a part of.
    fn distances(&self, class: usize) -> f64 {
        2.0 * EPSILON * ((self.p.max - self.rows[0].y[class]) + (self.q.max - self.rows[1].y[class]))
    }

    fn of_ratio(&self, class: usize) -> f64 {
        let rounding = self.rows.iter().map(|row| row.rounding[class]).sum::<f64>();
        rounding + self.distances(class) + self.p.of_log_total + self.q.of_log_total
    }

    /// The divergence, and what it is off by.
    fn value(&self) -> (f64, f64) {
        let classes = || (0..self.p.p.len()).filter(|class| self.p.most(*class) > 0.0);
        let term = |class: usize| if self.p.p[class] > 0.0 { self.p.p[class] * self.ratio(class) } else { 0.0 };
        let value: f64 = classes().map(term).sum();
        if !value.is_finite() {
            return (f64::INFINITY, 0.0);
        }
        let bound = classes().map(|class| self.of_class(class, value)).sum::<f64>() + 4.0 * EPSILON * value + TINY;
        (value, if value + bound > LARGEST_DIVERGENCE { f64::INFINITY } else { bound })
    }

    /// What the term of a class adds to what the divergence is off by.
    fn of_class(&self, class: usize, value: f64) -> f64 {
        let (p, q, ratio) = (self.p.p[class], self.q.p[class], self.ratio(class));
        let (of_p, of_q) = (self.p.relative(class), self.q.relative(class));
        let distance = (ratio - value).abs();
        if of_p >= 1.0 || of_q >= 1.0 {
            return self.p.error(class) * distance + self.p.most(class) * self.of_ratio(class);
        }
        let by_p = p * (distance * self.p.of_exponential(class) + self.distances(class));
        // A divergence is a sum of p (e^-ratio - 1 + ratio), which is a square where ratios are small.
        let of_both = self.of_ratio(class) + of_p;
        let square = p * (of_both * of_both + distance * of_p * of_p) + q * of_q * of_q;
        by_p + (q - p).abs() * self.q.of_exponential(class) + p * 16.0 * EPSILON * ratio.abs() + square
    }
}
