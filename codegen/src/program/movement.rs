//! What becomes of values when a row's reference moves, and so how statistics over several tiles and ranks merge.
//!
//! A reference is raised by an integer d, in log2 units, whenever a logit exceeds it by too much, and ranks have
//! references of their own. Sums that were formed before can be corrected as long as they are of a few known kinds.

use super::{Binary, DISTRIBUTIONS, Input, Op, Output, Reduce, Unary, ValueId};
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
    /// Sum of values relative to a reference: when that rises by d, the sum is multiplied by 2^-d.
    ScaledSum {
        /// The reference.
        reference: usize,
    },
    /// Sum of weights relative to a reference times distances from references. When reference k rises by d_k, the
    /// distances grow by ln 2 Σ shifts_k d_k: the moment becomes 2^-d (moment + ln 2 Σ shifts_k d_k · sum of weights).
    Moment {
        /// What the weights are relative to.
        reference: usize,
        /// The statistic that is the sum of the weights.
        sum: usize,
        /// How often each reference is added to a distance.
        shifts: [i8; DISTRIBUTIONS],
    },
}

impl Merge {
    /// The statistic of a row that has seen no logit.
    pub fn identity(self) -> f32 {
        match self {
            Merge::Sum | Merge::ScaledSum { .. } | Merge::Moment { .. } => 0.0,
            Merge::Max => f32::NEG_INFINITY,
            Merge::ArgMax => -1.0,
        }
    }
}

/// What becomes of a value when references rise by d_k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Movement {
    /// It stays.
    Fixed,
    /// It is multiplied by 2^-d of one reference.
    Scaled(usize),
    /// It grows by ln 2 Σ shifts_k d_k.
    Shifted([i8; DISTRIBUTIONS]),
    /// A product of a scaled value, the weight, and a shifted one.
    Moment { reference: usize, weight: ValueId, shifts: [i8; DISTRIBUTIONS] },
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
            Moment { reference, weight, shifts }
        }
        _ => Unknown,
    }
}

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
        (_, Scaled(reference)) => Merge::ScaledSum { reference },
        (_, Moment { reference, weight, shifts }) => Merge::Moment { reference, sum: sum_of(weight), shifts },
        _ => Merge::Sum,
    };
    rows.iter().map(|(name, value)| ((*name).clone(), rule(*value))).collect()
}
