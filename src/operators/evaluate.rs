//! Values and gradients, one token after the other.

use super::{Answer, Distribution, Gradients, Query, Raw, Real, Upstream};
use crate::reference::in_range;
use vocabfuse_codegen::Dtype;
use vocabfuse_codegen::program::uniform;

/// Values of a query and gradients for given upstream gradients. Operands, logits, their gradients, and gradients of x and w
/// are rounded to `dtype` where `T` is f32.
///
/// - A token whose logits are all -inf has no distribution: its values are NaN, its gradients zero.
/// - A NaN logit makes the values of its own token NaN.
/// - A logit of -inf adds nothing to an entropy, a divergence or a gradient. A divergence is +inf where P has any mass on it
///   in Q; its derivative by P is then zero.
/// - Logits that f32 cannot hold are infinite.
/// - A gradient of zero times an infinite value of x or w is NaN, but for tokens that ask for nothing, which add nothing.
pub fn evaluate<T: Real>(query: &Query<'_, T>, upstream: &Upstream<'_, T>, vocab: usize, dtype: Dtype) -> Answer<T> {
    match *query {
        Query::Logprobs { of, ids, per_token, ignore_index, entropy } => {
            let ids = Some((ids, per_token, ignore_index));
            single(&Materialised::new(of, vocab, dtype), ids, entropy, upstream)
        }
        Query::Entropy(of) => single(&Materialised::new(of, vocab, dtype), None, true, upstream),
        Query::KlDivergence { p, q } => {
            divergence(&Materialised::new(p, vocab, dtype), &Materialised::new(q, vocab, dtype), upstream)
        }
        Query::TopK(of, k) => top_k(&Materialised::new(of, vocab, dtype), k, |_, _| 0.0),
        Query::Sample(of, seed) => top_k(&Materialised::new(of, vocab, dtype), 1, |token, id| gumbel(seed, token, id)),
    }
}

type Ids<'a> = (&'a [i64], usize, Option<i64>);

/// A distribution with its logits.
struct Materialised<'a, T> {
    of: Distribution<'a, T>,
    vocab: usize,
    dtype: Dtype,
    /// `[N, V]`, after all options.
    y: Vec<T>,
    /// `[N, V]`: derivatives of capped logits by uncapped ones; empty without a softcap.
    slopes: Vec<T>,
}

/// The softmax of a row; `None` if it has no distribution.
struct Softmax<T> {
    /// log p
    log_p: Vec<T>,
    /// p
    p: Vec<T>,
}

impl<'a, T: Real> Materialised<'a, T> {
    fn new(of: Distribution<'a, T>, vocab: usize, dtype: Dtype) -> Materialised<'a, T> {
        let mut y = match of.raw {
            Raw::Linear { x, w, hidden } => T::product((x, false), (w, true), [x.len() / hidden, vocab, hidden]),
            Raw::Logits(logits) => logits.to_vec(),
        };
        let scale = T::from_f64(of.logit_scale);
        let mut slopes = vec![];
        let ranged = |y: T| T::from_f64(in_range(y.into()));
        for (i, y) in y.iter_mut().enumerate() {
            *y = ranged(*y) * scale;
            if let Some(bias) = of.bias {
                *y = *y + bias[i % vocab];
            }
            *y = ranged(*y);
            if let Some(cap) = of.softcap.map(T::from_f64) {
                slopes.push(slope(*y / cap));
                *y = (*y / cap).tanh() * cap;
            }
        }
        if matches!(of.raw, Raw::Linear { .. }) {
            T::round_all(&mut y, dtype);
        }
        Materialised { of, vocab, dtype, y, slopes }
    }

    fn rows(&self) -> impl Iterator<Item = &[T]> {
        self.y.chunks(self.vocab)
    }

    /// Gradients of the operands from those of y. Tokens that do not take part add nothing.
    fn gradients(&self, mut by_y: Vec<T>, takes_part: impl Fn(usize) -> bool) -> Gradients<T> {
        let scale = T::from_f64(self.of.logit_scale);
        by_y.iter_mut().zip(&self.slopes).for_each(|(d, slope)| *d = *d * *slope);
        by_y.iter_mut().zip(&self.y).filter(|(_, y)| masked(**y)).for_each(|(d, _)| *d = T::from_f64(0.0));
        let bias = self.of.bias.map(|_| {
            (0..self.vocab).map(|j| T::sum(&by_y.iter().skip(j).step_by(self.vocab).copied().collect::<Vec<_>>()))
        });
        let bias = bias.map_or(vec![], Iterator::collect);
        by_y.iter_mut().for_each(|d| *d = *d * scale);
        let Raw::Linear { x, w, hidden } = self.of.raw else {
            return Gradients {
                logits: by_y,
                bias,
                ..Gradients { x: vec![], w: vec![], logits: vec![], bias: vec![] }
            };
        };
        T::round_all(&mut by_y, self.dtype);
        let (n, v) = (x.len() / hidden, self.vocab);
        let without = |rows: &mut [T]| {
            let rows = rows.chunks_mut(hidden).enumerate().filter(|(token, _)| !takes_part(*token));
            rows.for_each(|(_, row)| row.fill(T::from_f64(0.0)));
        };
        let mut dx = T::product((&by_y, false), (w, false), [n, hidden, v]);
        without(&mut dx);
        let mut x = x.to_vec();
        without(&mut x);
        let mut dw = T::product((&by_y, true), (&x, false), [v, hidden, n]);
        T::round_all(&mut dx, self.dtype);
        T::round_all(&mut dw, self.dtype);
        Gradients { logits: by_y, x: dx, w: dw, bias }
    }
}

/// The derivative of tanh, in a form that has full precision where tanh is 1.
fn slope<T: Real>(t: T) -> T {
    let (one, two) = (T::from_f64(1.0), T::from_f64(2.0));
    let q = (-two * if t < T::from_f64(0.0) { -t } else { t }).exp();
    let half = two / (one + q);
    half * half * q
}

fn masked<T: Real>(y: T) -> bool {
    y.into() == f64::NEG_INFINITY
}

fn softmax<T: Real>(row: &[T]) -> Option<Softmax<T>> {
    if row.iter().all(|y| masked(*y)) {
        return None;
    }
    let max = row.iter().copied().fold(row[0], |m, y| if y > m || Into::<f64>::into(y).is_nan() { y } else { m });
    let e: Vec<T> = row.iter().map(|y| (*y - max).exp()).collect();
    let sum = T::sum(&e);
    let log_p = row.iter().map(|y| (*y - max) - sum.ln()).collect();
    Some(Softmax { log_p, p: e.into_iter().map(|e| e / sum).collect() })
}

/// p f, and 0 where the logit is -inf.
fn weighted<T: Real>(softmax: &Softmax<T>, row: &[T], f: impl Fn(usize) -> T) -> Vec<T> {
    let term = |j: usize| if masked(row[j]) { T::from_f64(0.0) } else { softmax.p[j] * f(j) };
    (0..row.len()).map(term).collect()
}

fn single<T: Real>(
    of: &Materialised<'_, T>,
    ids: Option<Ids<'_>>,
    entropy: bool,
    upstream: &Upstream<'_, T>,
) -> Answer<T> {
    let (zero, nan) = (T::from_f64(0.0), T::from_f64(f64::NAN));
    let (mut logprobs, mut entropies, mut by_y) = (vec![], vec![], vec![]);
    for (token, row) in of.rows().enumerate() {
        let softmax = softmax(row);
        let mut d = vec![zero; row.len()];
        if let Some((ids, k, ignored)) = ids {
            let ids = &ids[token * k..][..k];
            let active = || ids.iter().enumerate().filter(|(_, id)| Some(**id) != ignored);
            let mut values = vec![zero; k];
            let u = |slot: usize| upstream.logprobs.map_or(zero, |u| u[token * k + slot]);
            active().for_each(|(slot, id)| values[slot] = softmax.as_ref().map_or(nan, |s| s.log_p[*id as usize]));
            logprobs.extend(values);
            let any = active().next().is_some();
            if let (Some(softmax), true) = (&softmax, any) {
                let total = T::sum(&active().map(|(slot, _)| u(slot)).collect::<Vec<_>>());
                let p = weighted(softmax, row, |_| total);
                d.iter_mut().zip(p).for_each(|(d, p)| *d = *d - p);
                active().for_each(|(slot, id)| d[*id as usize] = d[*id as usize] + u(slot));
            }
        }
        if entropy {
            let value = softmax.as_ref().map_or(nan, |s| -T::sum(&weighted(s, row, |j| s.log_p[j])));
            entropies.push(value);
            if let (Some(softmax), Some(u)) = (&softmax, upstream.entropy) {
                let term = weighted(softmax, row, |j| softmax.log_p[j] + value);
                d.iter_mut().zip(term).for_each(|(d, term)| *d = *d - term * u[token]);
            }
        }
        by_y.extend(d);
    }
    let takes_part = |token: usize| {
        entropy || ids.is_none_or(|(ids, k, ignored)| ids[token * k..][..k].iter().any(|id| Some(*id) != ignored))
    };
    Answer { logprobs, entropy: entropies, gradients: vec![of.gradients(by_y, takes_part)], ..nothing() }
}

fn divergence<T: Real>(p: &Materialised<'_, T>, q: &Materialised<'_, T>, upstream: &Upstream<'_, T>) -> Answer<T> {
    let zero = T::from_f64(0.0);
    let (mut values, mut by_p, mut by_q) = (vec![], vec![], vec![]);
    for (token, (p_row, q_row)) in p.rows().zip(q.rows()).enumerate() {
        let (Some(p), Some(q)) = (softmax(p_row), softmax(q_row)) else {
            values.push(T::from_f64(f64::NAN));
            by_p.extend(vec![zero; p_row.len()]);
            by_q.extend(vec![zero; p_row.len()]);
            continue;
        };
        let u = upstream.divergence.map_or(zero, |u| u[token]);
        let outside = p_row.iter().zip(q_row).any(|(p, q)| !masked(*p) && masked(*q));
        let sum = T::sum(&weighted(&p, p_row, |j| p.log_p[j] - q.log_p[j]));
        let nan = Into::<f64>::into(p.p[0] + q.p[0]).is_nan();
        let value = if outside && !nan { T::from_f64(f64::INFINITY) } else { sum };
        values.push(value);
        if outside && !nan {
            by_p.extend(vec![zero; p_row.len()]);
        } else {
            by_p.extend(weighted(&p, p_row, |j| (p.log_p[j] - q.log_p[j] - value) * u));
        }
        by_q.extend(p.p.iter().zip(&q.p).map(|(p, q)| (*q - *p) * u));
    }
    Answer {
        divergence: values,
        gradients: vec![p.gradients(by_p, |_| true), q.gradients(by_q, |_| true)],
        ..nothing()
    }
}

pub(crate) fn gumbel(seed: u64, token: usize, id: usize) -> f64 {
    let uniform = f64::from(uniform(seed, token as u32, id as u32));
    // The largest number is not 1, or its noise would not be a number.
    -(-(-uniform.min(1.0 - f64::from(f32::EPSILON) / 2.0)).ln_1p()).ln()
}

/// The k columns with the largest logits, on top of what is added to them.
fn top_k<T: Real>(of: &Materialised<'_, T>, k: usize, added: impl Fn(usize, usize) -> f64) -> Answer<T> {
    let nan = T::from_f64(f64::NAN);
    let (mut ids, mut logits, mut logprobs) = (vec![], vec![], vec![]);
    for (token, row) in of.rows().enumerate() {
        let mut order: Vec<usize> = (0..row.len()).collect();
        // From the largest number, so that a common offset of the logits has no part in the order.
        let finite = row.iter().copied().filter(|y| Into::<f64>::into(*y).is_finite());
        let largest = finite.reduce(|a, b| if b > a { b } else { a }).unwrap_or(T::from_f64(0.0));
        let key = |j: usize| Into::<f64>::into(row[j] - largest) + added(token, j) + 0.0;
        // Stable: of equal logits the lowest id first.
        order.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
        let softmax = softmax(row).filter(|s| !Into::<f64>::into(s.p[0]).is_nan());
        for j in &order[..k] {
            ids.push(if softmax.is_some() { *j as i64 } else { -1 });
            logits.push(if softmax.is_some() { row[*j] } else { nan });
            logprobs.push(softmax.as_ref().map_or(nan, |s| s.log_p[*j]));
        }
    }
    Answer { ids, logits, logprobs, ..nothing() }
}

fn nothing<T>() -> Answer<T> {
    Answer { logprobs: vec![], entropy: vec![], divergence: vec![], ids: vec![], logits: vec![], gradients: vec![] }
}
