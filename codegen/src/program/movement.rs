//! What becomes of values when a row's reference moves, and so how statistics over several tiles and ranks merge.
//!
//! The place of a reference rises by a distance d whenever a logit exceeds it by too much, and ranks have references of
//! their own. Sums that were formed before can be corrected as long as they are of a few known kinds.

use super::{Binary, Compare, DISTRIBUTIONS, Input, Op, Output, Reduce, Unary, ValueId};
use serde::Serialize;

/// How a row statistic merges over tiles and ranks, each of which may have a reference of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Merge {
    /// Plain sum.
    Sum,
    /// Maximum.
    Max,
    /// The value that belongs to the larger of the maxima that are the next statistic.
    ArgMax,
    /// Sum of values relative to a reference: when that rises by d, the sum is multiplied by e^-d.
    ScaledSum {
        /// The reference.
        reference: usize,
    },
    /// Sum of weights times distances from references. When reference k rises by d_k, the distances grow by
    /// Σ shifts_k d_k: the moment becomes e^-d (moment + Σ shifts_k d_k · sum of weights).
    Moment {
        /// What the weights are relative to; none if they are fixed, and then there is no factor e^-d.
        reference: Option<usize>,
        /// The statistic that is the sum of the weights.
        sum: usize,
        /// How often each reference is added to a distance.
        shifts: [i8; DISTRIBUTIONS],
    },
    /// Weights p times the divergence of p from q, see [`Op::Divergence`]. Two parts merge by the chain rule of divergences:
    /// the sum of both, and of p φ(ln(q / p) - ln(Q / P)) of each, where P and Q are the sums of both parts.
    Divergence {
        /// The statistic that is the sum of p, a [`Merge::ScaledSum`].
        p: usize,
        /// The statistic that is the sum of q, a [`Merge::ScaledSum`].
        q: usize,
    },
}

impl Merge {
    /// The statistic of a row that has seen no logit.
    pub fn identity(self) -> f32 {
        match self {
            Merge::Sum | Merge::ScaledSum { .. } | Merge::Moment { .. } | Merge::Divergence { .. } => 0.0,
            Merge::Max => f32::NEG_INFINITY,
            Merge::ArgMax => -1.0,
        }
    }

    /// Whether it is a sum over the vocabulary, of which kernels also keep what roundings have lost.
    pub fn is_sum(self) -> bool {
        !matches!(self, Merge::Max | Merge::ArgMax)
    }
}

/// What becomes of a value when references rise by d_k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Movement {
    /// It stays.
    Fixed,
    /// It is multiplied by e^-d of one reference.
    Scaled(usize),
    /// It grows by Σ shifts_k d_k.
    Shifted([i8; DISTRIBUTIONS]),
    /// A product of a scaled or fixed value, the weight, and a shifted one.
    Moment { reference: Option<usize>, weight: ValueId, shifts: [i8; DISTRIBUTIONS] },
    /// It moves in a way that nobody can undo.
    Unknown,
}

use Movement::{Fixed, Moment, Scaled, Shifted, Unknown};

fn shifted(shifts: [i8; DISTRIBUTIONS]) -> Movement {
    if shifts == [0; DISTRIBUTIONS] { Fixed } else { Shifted(shifts) }
}

fn add(a: Movement, b: Movement, sign: i8) -> Movement {
    let shifts = |m| match m {
        Fixed => Some([0; DISTRIBUTIONS]),
        Shifted(s) => Some(s),
        _ => None,
    };
    match (a, b) {
        (Scaled(i), Scaled(j)) if i == j => Scaled(i),
        _ => match (shifts(a), shifts(b)) {
            (Some(a), Some(b)) => shifted(std::array::from_fn(|k| a[k] + sign * b[k])),
            _ => Unknown,
        },
    }
}

fn multiply(a: (Movement, ValueId), b: (Movement, ValueId)) -> Movement {
    match (a, b) {
        ((Fixed, _), (Fixed, _)) => Fixed,
        ((Scaled(i), _), (Fixed, _)) | ((Fixed, _), (Scaled(i), _)) => Scaled(i),
        ((Scaled(reference), weight), (Shifted(shifts), _)) | ((Shifted(shifts), _), (Scaled(reference), weight)) => {
            Moment { reference: Some(reference), weight, shifts }
        }
        ((Fixed, weight), (Shifted(shifts), _)) | ((Shifted(shifts), _), (Fixed, weight)) => {
            Moment { reference: None, weight, shifts }
        }
        _ => Unknown,
    }
}

/// A distance that is cut off at this or below belongs to a weight of nothing, so that the cut may be ignored.
const WEIGHTLESS: f32 = -1e30;

/// The reference that an operation of its second operand by the first is relative to.
fn reference(ops: &[Op], value: ValueId) -> Option<usize> {
    if let Op::Input(Input::Reference(reference)) = ops[value.index()] { Some(reference) } else { None }
}

/// The movement of every value.
pub(super) fn movements(ops: &[Op]) -> Vec<Movement> {
    let mut all: Vec<Movement> = Vec::with_capacity(ops.len());
    for op in ops {
        let at = |v: ValueId| all[v.index()];
        let fixed = || op.operands().iter().all(|v| at(*v) == Fixed);
        let zero = |v: ValueId| matches!(ops[v.index()], Op::Const(c) if c == 0.0);
        let weightless = |v: ValueId| matches!(ops[v.index()], Op::Const(c) if c <= WEIGHTLESS);
        let is_nothing =
            |c: ValueId, v: ValueId| matches!(ops[c.index()], Op::Compare(Compare::Eq, a, b) if a == v && zero(b));
        let movement = match *op {
            Op::Input(Input::Reference(_)) => Unknown,
            Op::Binary(Binary::ExpAbove, y, r) if at(y) == Fixed && reference(ops, r).is_some() => {
                reference(ops, r).map_or(Unknown, Scaled)
            }
            Op::Binary(Binary::Above, y, r) if reference(ops, r).is_some() => {
                let falls = std::array::from_fn(|k| -i8::from(reference(ops, r) == Some(k)));
                add(at(y), Shifted(falls), 1)
            }
            Op::Unary(Unary::Neg, a) => match at(a) {
                Shifted(s) => Shifted(s.map(|s| -s)),
                m @ (Fixed | Scaled(_)) => m,
                _ => Unknown,
            },
            Op::Binary(Binary::Add, a, b) => add(at(a), at(b), 1),
            Op::Binary(Binary::Sub, a, b) => add(at(a), at(b), -1),
            Op::Binary(Binary::Max, a, b) if weightless(b) && matches!(at(a), Shifted(_)) => at(a),
            Op::Binary(Binary::Mul, a, b) => multiply((at(a), a), (at(b), b)),
            Op::Binary(Binary::Div, a, b) if at(b) == Fixed && matches!(at(a), Fixed | Scaled(_)) => at(a),
            Op::MulAdd(a, b, c) => match multiply((at(a), a), (at(b), b)) {
                m @ (Fixed | Scaled(_)) => add(m, at(c), 1),
                _ => Unknown,
            },
            Op::Select(condition, a, b) if at(condition) == Fixed => match (at(a), at(b)) {
                (x, y) if x == y && !matches!(x, Moment { .. }) => x,
                (Scaled(i), Fixed) if zero(b) => Scaled(i),
                (Fixed, Scaled(i)) if zero(a) => Scaled(i),
                // What weighs nothing may be left out.
                (Fixed, m @ Moment { weight, .. }) if zero(a) && is_nothing(condition, weight) => m,
                _ => Unknown,
            },
            Op::Reduce(_, a) => at(a),
            _ if fixed() => Fixed,
            _ => Unknown,
        };
        all.push(movement);
    }
    all
}

/// The rules of all row outputs; of a verified program, in which each has one.
pub(super) fn rules(ops: &[Op], outputs: &[Output]) -> Vec<(String, Merge)> {
    let movements = movements(ops);
    let rows: Vec<(&String, ValueId)> =
        outputs.iter().filter_map(|o| if let Output::Row(name, v) = o { Some((name, *v)) } else { None }).collect();
    let sum_of =
        |weight: ValueId| rows.iter().position(|(_, v)| ops[v.index()] == Op::Reduce(Reduce::Sum, weight)).unwrap_or(0);
    let rule = |value: ValueId| match (&ops[value.index()], movements[value.index()]) {
        (Op::Reduce(Reduce::Max, _), _) => Merge::Max,
        (Op::ArgMax(..), _) => Merge::ArgMax,
        (Op::Divergence { p, q, .. }, _) => Merge::Divergence { p: sum_of(*p), q: sum_of(*q) },
        (_, Scaled(reference)) => Merge::ScaledSum { reference },
        (_, Moment { reference, weight, shifts }) => Merge::Moment { reference, sum: sum_of(weight), shifts },
        _ => Merge::Sum,
    };
    rows.iter().map(|(name, value)| ((*name).clone(), rule(*value))).collect()
}
