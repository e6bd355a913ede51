//! Which values carry the common offset of the logits.
//!
//! Softmax does not change when all logits grow by the same amount, but f32 loses the digits of small differences when that
//! amount is large. So a difference of logits must be formed of distances to the reference (`above`), which are small
//! and exact, and not of logits themselves. The verifier refuses programs that subtract one logit from another, or add up
//! many of them.

use super::{Binary, Compare, Input, Op, Reduce, Unary, ValueId};
use std::collections::BTreeMap;

/// How much of the common offset of all logits a value carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    /// None: it is a distance, a probability or something else that does not know the offset.
    None,
    /// Once.
    Once,
    /// Once, with the other sign.
    Minus,
    /// Some multiple or function of it.
    Some,
}

use Offset::{Minus, None, Once, Some};

/// What a program does with offsets that loses digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// A value in which the offsets of two others cancel.
    Cancels(usize),
    /// A sum over columns of values that carry the offset.
    Sums(usize),
}

fn negative(a: Offset) -> Offset {
    match a {
        Once => Minus,
        Minus => Once,
        _ => a,
    }
}

// `Err` where the offsets cancel, or may do so.
fn add(a: Offset, b: Offset) -> Result<Offset, ()> {
    match (a, b) {
        (None, x) | (x, None) => Ok(x),
        (Once, Minus) | (Minus, Once) => Err(()),
        _ => Ok(Some),
    }
}

fn subtract(a: Offset, b: Offset) -> Result<Offset, ()> {
    match (a, b) {
        (None, x) => Ok(negative(x)),
        (x, None) => Ok(x),
        (Once, Minus) | (Minus, Once) => Ok(Some),
        _ => Err(()),
    }
}

fn multiply(a: Offset, b: Offset) -> Offset {
    if (a, b) == (None, None) { None } else { Some }
}

// One of several: of a constant and a logit, the logit.
fn join(a: Offset, b: Offset) -> Offset {
    match (a, b) {
        (None, x) | (x, None) => x,
        (a, b) if a == b => a,
        _ => Some,
    }
}

/// The offset of every value; those of row inputs by name, none if there is no such name.
pub(super) fn offsets(ops: &[Op], rows: &BTreeMap<String, Offset>) -> Result<Vec<Offset>, Loss> {
    let mut all: Vec<Offset> = Vec::with_capacity(ops.len());
    for (value, op) in ops.iter().enumerate() {
        let at = |v: ValueId| all[v.index()];
        let cancels = |()| Loss::Cancels(value);
        let is = |v: ValueId, wanted: fn(&Input) -> bool| matches!(&ops[v.index()], Op::Input(i) if wanted(i));
        let references = |v: ValueId| {
            is(v, |i| matches!(i, Input::Reference(_)))
                || is(v, |i| matches!(i, Input::Row(n) if n.starts_with("reference")))
        };
        let offset = match op {
            Op::Input(Input::Logit(_)) => Once,
            Op::Input(Input::Row(name)) => rows.get(name).copied().unwrap_or(None),
            Op::Input(_) | Op::Const(_) | Op::Compare(..) | Op::ArgMax(..) | Op::Divergence { .. } => None,
            Op::Unary(Unary::Neg, a) => negative(at(*a)),
            Op::Unary(Unary::Tanh, a) => multiply(at(*a), None),
            Op::Unary(..) => None,
            Op::Binary(Binary::Above, a, r) if references(*r) => {
                if at(*a) == None {
                    Minus
                } else {
                    None
                }
            }
            Op::Binary(Binary::Above | Binary::Sub, a, b) => subtract(at(*a), at(*b)).map_err(cancels)?,
            Op::Binary(Binary::Add, a, b) => add(at(*a), at(*b)).map_err(cancels)?,
            Op::Binary(Binary::Mul | Binary::Div, a, b) => multiply(at(*a), at(*b)),
            Op::Binary(Binary::Max | Binary::Min, a, b) => {
                // A magnitude is the larger of a value and its negative.
                let (a, b) = (at(*a), at(*b));
                if matches!((a, b), (Once, Minus) | (Minus, Once)) { Some } else { join(a, b) }
            }
            Op::Binary(Binary::ExpAbove, ..) => None,
            Op::MulAdd(a, b, c) => add(multiply(at(*a), at(*b)), at(*c)).map_err(cancels)?,
            Op::Select(_, a, b) => join(at(*a), at(*b)),
            Op::Reduce(Reduce::Max, a) => at(*a),
            Op::Reduce(Reduce::Sum, a) => {
                if at(*a) != None && !picks_one(ops, *a) {
                    return Err(Loss::Sums(value));
                }
                if at(*a) == None { None } else { Once }
            }
        };
        all.push(offset);
    }
    Ok(all)
}

// Whether a value is zero in all columns but the target's.
fn picks_one(ops: &[Op], value: ValueId) -> bool {
    let input = |v: ValueId, input: &Input| matches!(&ops[v.index()], Op::Input(i) if i == input);
    let zero = |v: ValueId| ops[v.index()] == Op::Const(0.0);
    match ops[value.index()] {
        Op::Select(condition, _, rest) if zero(rest) => match ops[condition.index()] {
            Op::Compare(Compare::Eq, a, b) => {
                let (id, target) = (Input::ColumnId, Input::Target);
                input(a, &id) && input(b, &target) || input(a, &target) && input(b, &id)
            }
            _ => false,
        },
        _ => false,
    }
}
