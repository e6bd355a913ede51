//! Ids that an operator picks: the largest logits, draws, the argmax.

use super::logits::{BLOCK, Logits, Row, Softmax};
use super::operators::of_logprob;
use super::{Arithmetic, EPSILON, TINY, Worst};
use crate::operators::{Query, gumbel};

/// How ids are judged, and what should be said of the ids that were picked; `[N, k]` as they are.
#[derive(Clone, Debug, Default)]
pub struct Picks {
    /// The token that is the furthest off.
    pub worst: Worst,
    /// By how much an id's logit, or what is drawn by, is below the one that should be in its place, at most.
    pub shortfall: f64,
    /// Logits of the ids; NaN where there is none.
    pub logits: Vec<f64>,
    /// What each may be off by.
    pub of_logits: Vec<f64>,
    /// Log-probabilities of the ids.
    pub logprobs: Vec<f64>,
    /// What each may be off by.
    pub of_logprobs: Vec<f64>,
}

/// Judges the ids that a [`Query::TopK`] or [`Query::Sample`] gave, k a token.
///
/// Ids whose logits f32 cannot tell apart may change places. Where all are exact, the lowest of equal ones comes first. A
/// token that does not `take_part` or has no distribution has the id -1.
pub fn picks(
    query: &Query<'_, f64>,
    vocab: usize,
    ids: &[i64],
    arithmetic: Arithmetic,
    takes_part: impl Fn(usize) -> bool,
) -> Picks {
    let (of, k, seed) = match *query {
        Query::TopK(of, k) => (of, k, None),
        Query::Sample(of, seed) => (of, 1, Some(seed)),
        _ => return Picks::default(),
    };
    let logits = Logits::new(of, vocab, arithmetic);
    let tokens = logits.tokens();
    let mut picks = Picks::default();
    if ids.len() != tokens * k {
        picks.miss(0, f64::INFINITY, 0.0);
        return picks;
    }
    for first in (0..tokens).step_by(BLOCK) {
        let block = first..tokens.min(first + BLOCK);
        for (token, row) in block.clone().zip(logits.rows(block)) {
            let ids = &ids[token * k..][..k];
            match &row.softmax {
                Some(softmax) if takes_part(token) => picks.token(token, (&row, softmax), ids, seed),
                _ => picks.none(token, ids, if takes_part(token) { &row.y } else { &[] }),
            }
        }
    }
    picks
}

impl Picks {
    fn miss(&mut self, row: usize, shortfall: f64, allowed: f64) {
        let excess = if shortfall == 0.0 { 0.0 } else { shortfall / allowed };
        self.shortfall = self.shortfall.max(shortfall);
        if excess > self.worst.excess {
            self.worst = Worst { row, excess };
        }
    }

    // The largest logit may be known where there is no distribution: it is infinite.
    fn none(&mut self, token: usize, ids: &[i64], logits: &[f64]) {
        let infinite = |id: i64| usize::try_from(id).is_ok_and(|class| logits.get(class) == Some(&f64::INFINITY));
        if ids.iter().any(|id| *id != -1 && !infinite(*id)) {
            self.miss(token, f64::INFINITY, 0.0);
        }
        self.push(&vec![f64::NAN; ids.len()], &vec![0.0; ids.len()], &vec![f64::NAN; ids.len()], &vec![0.0; ids.len()]);
    }

    fn push(&mut self, logits: &[f64], of_logits: &[f64], logprobs: &[f64], of_logprobs: &[f64]) {
        self.logits.extend(logits);
        self.of_logits.extend(of_logits);
        self.logprobs.extend(logprobs);
        self.of_logprobs.extend(of_logprobs);
    }

    fn token(&mut self, token: usize, (row, softmax): (&Row, &Softmax), ids: &[i64], seed: Option<u64>) {
        let noise = |class: usize| seed.map_or(0.0, |seed| gumbel(seed, token, class));
        let keys: Vec<f64> =
            row.y.iter().enumerate().map(|(class, y)| (y - softmax.max) + noise(class) + 0.0).collect();
        let of_key = |class: usize| {
            let of_noise = match seed {
                Some(_) => EPSILON * (16.0 * (1.0 + noise(class).abs()) + (softmax.max - row.y[class])),
                None => 0.0,
            };
            let bound = row.rounding[class] + of_noise;
            if bound.is_finite() { bound } else { 0.0 }
        };
        let mut order: Vec<usize> = (0..keys.len()).collect();
        // Stable: of equal ones the lowest id first.
        order.sort_by(|a, b| keys[*b].total_cmp(&keys[*a]));
        let mut best = 0.0_f64;
        for (slot, (id, wanted)) in ids.iter().zip(&order).enumerate() {
            best = best.max(of_key(*wanted));
            let class = usize::try_from(*id).ok().filter(|class| *class < keys.len() && !ids[..slot].contains(id));
            let Some(class) = class else {
                self.miss(token, f64::INFINITY, 0.0);
                self.push(&[f64::NAN], &[0.0], &[f64::NAN], &[0.0]);
                continue;
            };
            let allowed = best + of_key(class);
            if class != *wanted {
                // Of two that are -inf none is below the other.
                let below = if keys[class] == keys[*wanted] { 0.0 } else { (keys[*wanted] - keys[class]).max(0.0) };
                let equal = below == 0.0 && allowed == 0.0 && keys[class].is_finite();
                self.miss(token, if equal { f64::INFINITY } else { below }, allowed);
            }
            let y = row.y[class];
            let of_y = row.rounding[class] + TINY + if y.is_finite() { 2.0 * EPSILON * y.abs() } else { 0.0 };
            self.push(&[y], &[of_y], &[softmax.log_p[class]], &[of_logprob(row, softmax, class)]);
        }
    }
}
