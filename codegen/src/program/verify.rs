//! The rules of row programs.

use super::movement::{Movement, movements};
use super::offset::{self, Offset};
use super::{Binary, DISTRIBUTIONS, Input, Kind, Op, Output, Reduce, Shape, Type, Unary, ValueId, reduces};
use std::collections::BTreeMap;

/// A broken rule. `value` is printed as in the text form of the program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// An operand that is not defined before its use.
    #[error("%{value} reads %{operand}, which is not defined before it")]
    Undefined {
        /// The reading value.
        value: usize,
        /// The operand.
        operand: usize,
    },
    /// An operand of the wrong kind.
    #[error("%{value} expects operands of kind {expected}, got {found:?}")]
    Kind {
        /// The value.
        value: usize,
        /// Kinds expected, in words.
        expected: &'static str,
        /// Kinds found.
        found: Vec<Kind>,
    },
    /// A reduction of something that does not vary over columns.
    #[error("%{value} reduces over columns, but its operand has shape {found:?}; expected Element or Column")]
    ReductionShape {
        /// The value.
        value: usize,
        /// Shape found.
        found: Shape,
    },
    /// A reduction read inside the program: it is complete only after the last tile.
    #[error("%{value} reads the reduction %{operand}; a reduction can only be an output")]
    ReductionUsed {
        /// The reading value.
        value: usize,
        /// The reduction.
        operand: usize,
    },
    /// A logit or reference of a distribution that there is not.
    #[error("%{value} reads distribution {index}; expected 0 or 1")]
    Distribution {
        /// The reading value.
        value: usize,
        /// The distribution.
        index: usize,
    },
    /// Two different logits compared with the reference.
    #[error("%{value} measures another value against the reference than an earlier exp_above; only one is allowed")]
    TwoReferenced {
        /// The second `ExpAbove`.
        value: usize,
    },
    /// The reference read other than by `exp_above` and `above`, or in a way that cannot be corrected when it moves: its value
    /// is arbitrary, only what is relative to it means something.
    #[error(
        "%{value} depends on the reference other than by exp_above or a product of it and a distance, which cannot move with it"
    )]
    ReferenceUsed {
        /// The reading value.
        value: usize,
    },
    /// A difference of logits themselves, or a sum of many of them: with a large common offset no digit of it is left.
    #[error(
        "%{value} {what} values that carry the common offset of the logits; measure them from the reference (`above`) first"
    )]
    Offset {
        /// The value.
        value: usize,
        /// What it does with them, in words.
        what: &'static str,
    },
    /// An output of the wrong type.
    #[error("output {name:?} expects {expected}, got {found:?}")]
    Output {
        /// Name of the output.
        name: String,
        /// What it needs.
        expected: &'static str,
        /// What it got.
        found: Type,
    },
    /// Two outputs of one name, two stores, or none at all.
    #[error("{0}")]
    Outputs(String),
}

/// Types of all values, or the first broken rule.
pub(super) fn verify(ops: &[Op], outputs: &[Output]) -> Result<Vec<Type>, ProgramError> {
    let mut types: Vec<Type> = Vec::with_capacity(ops.len());
    for (value, op) in ops.iter().enumerate() {
        for operand in op.operands() {
            if operand.index() >= value {
                return Err(ProgramError::Undefined { value, operand: operand.index() });
            }
            if reduces(&ops[operand.index()]) {
                return Err(ProgramError::ReductionUsed { value, operand: operand.index() });
            }
        }
        types.push(infer(value, op, &types)?);
    }
    check_reference(ops, &types)?;
    check_outputs(ops, outputs, &types)?;
    offsets(ops, &BTreeMap::new())?;
    Ok(types)
}

/// See [`super::Program::offsets`].
pub(super) fn offsets(ops: &[Op], rows: &BTreeMap<String, Offset>) -> Result<Vec<Offset>, ProgramError> {
    offset::offsets(ops, rows).map_err(|loss| match loss {
        offset::Loss::Cancels(value) => ProgramError::Offset { value, what: "forms a difference of" },
        offset::Loss::Sums(value) => ProgramError::Offset { value, what: "adds up" },
    })
}

fn infer(value: usize, op: &Op, types: &[Type]) -> Result<Type, ProgramError> {
    let operands: Vec<Type> = op.operands().iter().map(|v| types[v.index()]).collect();
    let kinds: Vec<Kind> = operands.iter().map(|t| t.kind).collect();
    let shape = operands.iter().fold(Shape::Uniform, |shape, t| shape.join(t.shape));
    let kind_error = |expected| ProgramError::Kind { value, expected, found: kinds.clone() };
    let kind = match op {
        Op::Input(input) => return Ok(input.ty()),
        Op::Const(_) => Kind::F32,
        Op::Unary(Unary::Float, _) => {
            if kinds != [Kind::I32] {
                return Err(kind_error("i32"));
            }
            Kind::F32
        }
        Op::Unary(..) | Op::Binary(..) | Op::MulAdd(..) => {
            if kinds.iter().any(|k| *k != Kind::F32) {
                return Err(kind_error("f32"));
            }
            Kind::F32
        }
        Op::Compare(..) => {
            if kinds[0] != kinds[1] || kinds[0] == Kind::Bool {
                return Err(kind_error("f32 and f32, or i32 and i32"));
            }
            Kind::Bool
        }
        Op::Select(..) => {
            if kinds != [Kind::Bool, Kind::F32, Kind::F32] {
                return Err(kind_error("bool, f32 and f32"));
            }
            Kind::F32
        }
        Op::Reduce(..) | Op::ArgMax(..) | Op::Divergence { .. } => {
            if kinds.iter().any(|k| *k != Kind::F32) {
                return Err(kind_error("f32"));
            }
            if !matches!(shape, Shape::Element | Shape::Column) {
                return Err(ProgramError::ReductionShape { value, found: shape });
            }
            return Ok(Type { kind: Kind::F32, shape: Shape::Row });
        }
    };
    Ok(Type { kind, shape })
}

fn has_elements(types: &[Type]) -> bool {
    types.iter().any(|t| t.shape == Shape::Element)
}

fn check_reference(ops: &[Op], types: &[Type]) -> Result<(), ProgramError> {
    for (value, op) in ops.iter().enumerate() {
        if let Op::Input(Input::Logit(index) | Input::Reference(index)) = op
            && *index >= DISTRIBUTIONS
        {
            return Err(ProgramError::Distribution { value, index: *index });
        }
    }
    if !has_elements(types) {
        return Ok(());
    }
    let reference = |v: ValueId| matches!(ops[v.index()], Op::Input(Input::Reference(_)));
    for (value, op) in ops.iter().enumerate() {
        match *op {
            Op::Binary(Binary::ExpAbove, y, r) if reference(r) && !reference(y) => {
                let earlier = ops[..value].iter().find_map(|op| measured(op, r));
                if earlier.is_some_and(|earlier| earlier != y) {
                    return Err(ProgramError::TwoReferenced { value });
                }
            }
            Op::Binary(Binary::Above, y, r) if reference(r) && !reference(y) => {}
            _ if op.operands().iter().any(|v| reference(*v)) => return Err(ProgramError::ReferenceUsed { value }),
            _ => {}
        }
    }
    Ok(())
}

// What an operation measures against a reference.
fn measured(op: &Op, reference: ValueId) -> Option<ValueId> {
    match *op {
        Op::Binary(Binary::ExpAbove, y, r) if r == reference => Some(y),
        _ => None,
    }
}

/// See [`super::Program::referenced`].
pub(super) fn referenced(ops: &[Op], reference: usize) -> Option<ValueId> {
    let input = ops.iter().position(|op| *op == Op::Input(Input::Reference(reference)))?;
    ops.iter().find_map(|op| measured(op, ValueId(input as u32)))
}

// Values that a kernel forms while the reference still moves must be ones that it can correct afterwards.
fn check_movement(ops: &[Op], outputs: &[Output], types: &[Type]) -> Result<(), ProgramError> {
    if !has_elements(types) {
        return Ok(());
    }
    let movements = movements(ops);
    for output in outputs {
        let value = output.value().index();
        let (movement, op) = (movements[value], &ops[value]);
        let moves = || Err(ProgramError::ReferenceUsed { value });
        match (output, movement) {
            (Output::Top { noise, .. }, _) if movements[noise.index()] != Movement::Fixed => return moves(),
            (_, Movement::Fixed) => {}
            (Output::Row(name, _), _) if matches!(op, Op::Divergence { .. }) => {
                check_divergence(name, op, outputs, ops, &movements)?
            }
            (Output::Row(name, _), _) if matches!(op, Op::Reduce(Reduce::Max, _)) => {
                return Err(ProgramError::Outputs(format!(
                    "{name:?} is a maximum of values relative to the reference, which moves"
                )));
            }
            (Output::Row(..) | Output::Store(_), Movement::Scaled(_)) => {}
            (Output::Row(name, _), Movement::Moment { weight, .. }) => {
                let is_sum = |o: &Output| ops[o.value().index()] == Op::Reduce(Reduce::Sum, weight);
                if !outputs.iter().any(|o| matches!(o, Output::Row(..)) && is_sum(o)) {
                    return Err(ProgramError::Outputs(format!(
                        "{name:?} is a sum of {weight} times a distance; expected the sum of {weight} among the outputs"
                    )));
                }
            }
            _ => return moves(),
        }
    }
    Ok(())
}

// A divergence merges by the sums of its weights, which must be outputs of their own.
fn check_divergence(
    name: &str,
    op: &Op,
    outputs: &[Output],
    ops: &[Op],
    movements: &[Movement],
) -> Result<(), ProgramError> {
    let Op::Divergence { p, q, log_ratio } = *op else { return Ok(()) };
    let summed = |weight: ValueId| {
        outputs
            .iter()
            .any(|o| matches!(o, Output::Row(..)) && ops[o.value().index()] == Op::Reduce(Reduce::Sum, weight))
    };
    let at = |v: ValueId| movements[v.index()];
    let relative = match (at(p), at(q)) {
        (Movement::Scaled(i), Movement::Scaled(j)) if i != j => {
            let mut shifts = [0; DISTRIBUTIONS];
            (shifts[i], shifts[j]) = (1, -1);
            at(log_ratio) == Movement::Shifted(shifts)
        }
        _ => false,
    };
    if relative && summed(p) && summed(q) {
        return Ok(());
    }
    Err(ProgramError::Outputs(format!(
        "{name:?} is a divergence; expected weights relative to two references, their logarithms' difference, and the sums of \
         both weights among the outputs"
    )))
}

fn check_outputs(ops: &[Op], outputs: &[Output], types: &[Type]) -> Result<(), ProgramError> {
    let mut names: Vec<&str> = vec![];
    for output in outputs {
        let index = output.value().index();
        let Some(&found) = types.get(index) else {
            return Err(ProgramError::Outputs(format!("an output names %{index}, which is not defined")));
        };
        let (name, expected, right) = match output {
            Output::Row(name, _) => {
                let reduction = reduces(&ops[index]);
                let plain = matches!(found.shape, Shape::Row | Shape::Uniform) && !has_elements(types);
                let expected = "a reduction over columns, or a row value in a program without elements";
                (name.as_str(), expected, reduction || plain)
            }
            Output::Store(_) => {
                ("store", "an f32 element or column value", matches!(found.shape, Shape::Element | Shape::Column))
            }
            Output::ColumnGradient(name, _) | Output::Selected(name, _) => {
                (name.as_str(), "an f32 element", found.shape == Shape::Element)
            }
            Output::Top { noise, .. } => {
                let noise = types.get(noise.index()).copied();
                let right = found.shape == Shape::Element && noise.is_some_and(|t| t.kind == Kind::F32);
                ("top", "a value that is an f32 element, and noise that is f32", right)
            }
        };
        if !right || found.kind != Kind::F32 {
            return Err(ProgramError::Output { name: name.to_owned(), expected, found });
        }
        if names.contains(&name) {
            return Err(ProgramError::Outputs(format!("two outputs are named {name:?}")));
        }
        names.push(name);
    }
    if outputs.is_empty() {
        return Err(ProgramError::Outputs("the program has no output".to_owned()));
    }
    check_positions(ops, outputs)?;
    check_movement(ops, outputs, types)
}

// Positions merge by the values that they are positions of.
fn check_positions(ops: &[Op], outputs: &[Output]) -> Result<(), ProgramError> {
    let rows: Vec<(&str, &Op)> = outputs
        .iter()
        .filter_map(|o| if let Output::Row(name, v) = o { Some((name.as_str(), &ops[v.index()])) } else { None })
        .collect();
    for (index, (name, op)) in rows.iter().enumerate() {
        if let Op::ArgMax(key, _) = op
            && rows.get(index + 1).is_none_or(|(_, next)| **next != Op::Reduce(Reduce::Max, *key))
        {
            return Err(ProgramError::Outputs(format!(
                "{name:?} is a position of a maximum; expected that maximum as the next output"
            )));
        }
    }
    Ok(())
}
