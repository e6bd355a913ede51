//! Row programs: a small expression graph in single-assignment form over one tile of logits.
//!
//! A tile has one row per token and one column per vocabulary entry. Every value has a [`Shape`]: the same
//! everywhere, one per row, one per column, or one per element. Elementwise operations broadcast; reductions run
//! over columns only and can only be outputs, since a kernel sees the columns of a row in many tiles.

mod build;
mod display;
mod interpret;
mod movement;
mod offset;
mod random;
mod reference;
mod verify;

pub use build::{Expr, Graph};
pub use interpret::{Interpretation, Pick, Tile};
pub use movement::Merge;
pub use offset::Offset;
pub use random::{keys, uniform};
pub use reference::{LARGEST_POWER, NO_REFERENCE, ROW_FORMAT, place, reference_of};
pub use verify::ProgramError;

use movement::Movement;
use serde::Serialize;
use std::collections::BTreeMap;

/// Distributions over the vocabulary that a program can read: logits and references 0 and 1.
pub const DISTRIBUTIONS: usize = 2;

/// How a value varies over a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Shape {
    /// The same for the whole tile.
    Uniform,
    /// One per token.
    Row,
    /// One per vocabulary entry.
    Column,
    /// One per token and vocabulary entry.
    Element,
}

impl Shape {
    /// The shape of an elementwise operation on both.
    pub fn join(self, other: Shape) -> Shape {
        match (self, other) {
            (a, b) if a == b => a,
            (Shape::Uniform, s) | (s, Shape::Uniform) => s,
            _ => Shape::Element,
        }
    }
}

/// What a value holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Kind {
    /// 32-bit float (64-bit in the interpreter).
    F32,
    /// 32-bit signed integer: ids of vocabulary entries, local to the shard.
    I32,
    /// Truth value.
    Bool,
}

/// Kind and shape of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Type {
    /// What it holds.
    pub kind: Kind,
    /// How it varies.
    pub shape: Shape,
}

/// A value of a program: the index of the operation that defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ValueId(pub u32);

impl ValueId {
    /// Position in [`Program::ops`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a program reads from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Input {
    /// The logit of a distribution, `Element` f32: the raw dot product x·w for a loss, after all options for an operator.
    Logit(usize),
    /// The value stored by the statistics program, relative to the row's final reference, `Element` f32.
    Stored,
    /// Id of the column within the shard, `Column` i32.
    ColumnId,
    /// Number of real vocabulary entries of the shard; columns at or beyond it are padding, `Uniform` i32.
    Classes,
    /// Id of the token's target within the shard, negative when another shard owns it, `Row` i32.
    Target,
    /// The row's current reference for the logits of a distribution, see [`place`], `Row` f32.
    Reference(usize),
    /// Sum of the weights of the token's selected ids that are this column, `Element` f32: zero nearly everywhere.
    Selected,
    /// The random number of token and column, `Element` f32, see [`uniform`].
    Random,
    /// A named value per token, f32.
    Row(String),
    /// A named value per vocabulary entry, f32; zero when the caller has none.
    Column(String),
    /// A named scalar, f32.
    Uniform(String),
}

impl Input {
    /// Kind and shape of the input.
    pub fn ty(&self) -> Type {
        let (kind, shape) = match self {
            Input::Logit(_) | Input::Stored | Input::Selected | Input::Random => (Kind::F32, Shape::Element),
            Input::ColumnId => (Kind::I32, Shape::Column),
            Input::Classes => (Kind::I32, Shape::Uniform),
            Input::Target => (Kind::I32, Shape::Row),
            Input::Reference(_) | Input::Row(_) => (Kind::F32, Shape::Row),
            Input::Column(_) => (Kind::F32, Shape::Column),
            Input::Uniform(_) => (Kind::F32, Shape::Uniform),
        };
        Type { kind, shape }
    }
}

/// Elementwise functions of one value, f32 but for [`Unary::Float`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Unary {
    /// -a
    Neg,
    /// e^a
    Exp,
    /// Natural logarithm.
    Ln,
    /// ln(1 + a)
    Ln1p,
    /// Hyperbolic tangent.
    Tanh,
    /// An i32 as f32.
    Float,
}

/// Elementwise functions of two f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Binary {
    /// a + b
    Add,
    /// a - b
    Sub,
    /// a * b
    Mul,
    /// a / b
    Div,
    /// The larger; NaN if either is.
    Max,
    /// The smaller; NaN if either is.
    Min,
    /// The distance of a logit a from the place of a reference b, see [`place`]; exact where it is small.
    Above,
    /// e to that distance.
    ExpAbove,
}

/// Comparisons of two f32 or two i32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Compare {
    /// a == b
    Eq,
    /// a < b
    Lt,
}

/// Reductions over the columns of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Reduce {
    /// Sum. One whose operand depends on the reference is rescaled when the reference moves.
    Sum,
    /// Maximum.
    Max,
}

/// Whether an operation runs over the columns of a row.
fn reduces(op: &Op) -> bool {
    matches!(op, Op::Reduce(..) | Op::ArgMax(..) | Op::Divergence { .. })
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Op {
    /// A value from outside.
    Input(Input),
    /// A constant.
    Const(f32),
    /// Function of one value.
    Unary(Unary, ValueId),
    /// Function of two values.
    Binary(Binary, ValueId, ValueId),
    /// a * b + c in one rounding where the target can.
    MulAdd(ValueId, ValueId, ValueId),
    /// Comparison.
    Compare(Compare, ValueId, ValueId),
    /// The second where the first is true, else the third.
    Select(ValueId, ValueId, ValueId),
    /// Reduction over columns.
    Reduce(Reduce, ValueId),
    /// The second at the column where the first is largest, at the first such column; -1 if none exceeds -inf. A reduction
    /// over columns.
    ArgMax(ValueId, ValueId),
    /// Σ p φ(log_ratio - ln(Σq / Σp)) with φ(u) = e^u - 1 - u: the sum of the weights p times the divergence of the
    /// distribution p / Σp from q / Σq. No term is negative, so that a small divergence has as many digits as a large one. A
    /// reduction over columns.
    Divergence {
        /// Weights relative to one reference.
        p: ValueId,
        /// Weights relative to another one.
        q: ValueId,
        /// ln(q / p).
        log_ratio: ValueId,
    },
}

impl Op {
    /// The values that the operation reads.
    pub fn operands(&self) -> Vec<ValueId> {
        match *self {
            Op::Input(_) | Op::Const(_) => vec![],
            Op::Unary(_, a) | Op::Reduce(_, a) => vec![a],
            Op::Binary(_, a, b) | Op::Compare(_, a, b) | Op::ArgMax(a, b) => vec![a, b],
            Op::MulAdd(a, b, c) | Op::Select(a, b, c) => vec![a, b, c],
            Op::Divergence { p, q, log_ratio } => vec![p, q, log_ratio],
        }
    }
}

/// What a program hands out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Output {
    /// A named value per token: a reduction, or (in a program without elements) any row value.
    Row(String, ValueId),
    /// The value kept for every element of the tile: the operand of the matrix product that follows.
    Store(ValueId),
    /// The derivative with respect to a named column input; the kernel sums it over tokens.
    ColumnGradient(String, ValueId),
    /// A named element value at each of the token's selected ids: one a slot, zero where another shard has the column.
    Selected(String, ValueId),
    /// The columns of the largest value + noise: id and value of each, the largest first; of equal ones the lowest id first.
    /// Two columns are compared by (value - value') + (noise - noise'), so that a common offset of the values changes nothing.
    Top {
        /// What is handed out.
        value: ValueId,
        /// What is added for the comparison.
        noise: ValueId,
    },
}

impl Output {
    /// The value handed out.
    pub fn value(&self) -> ValueId {
        match self {
            Output::Row(_, v) | Output::Store(v) | Output::ColumnGradient(_, v) | Output::Selected(_, v) => *v,
            Output::Top { value, .. } => *value,
        }
    }
}

/// A verified row program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Program {
    name: String,
    ops: Vec<Op>,
    types: Vec<Type>,
    outputs: Vec<Output>,
}

impl Program {
    /// Checks operations and outputs and infers the types.
    ///
    /// # Errors
    /// The first rule broken, with the value that breaks it.
    pub fn new(name: &str, ops: Vec<Op>, outputs: Vec<Output>) -> Result<Program, ProgramError> {
        let types = verify::verify(&ops, &outputs)?;
        Ok(Program { name: name.to_owned(), ops, types, outputs })
    }

    /// Name, for messages and snapshots.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All operations, each after its operands.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The operation that defines a value.
    pub fn op(&self, value: ValueId) -> &Op {
        &self.ops[value.index()]
    }

    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> Type {
        self.types[value.index()]
    }

    /// Outputs in the order of declaration.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Names of the row inputs, in order of first use: the order in which a kernel takes them.
    pub fn row_inputs(&self) -> Vec<&str> {
        self.names(|input| if let Input::Row(name) = input { Some(name) } else { None })
    }

    /// Names of the column inputs, in order of first use.
    pub fn column_inputs(&self) -> Vec<&str> {
        self.names(|input| if let Input::Column(name) = input { Some(name) } else { None })
    }

    /// Names of the uniform f32 inputs, in order of first use.
    pub fn uniforms(&self) -> Vec<&str> {
        self.names(|input| if let Input::Uniform(name) = input { Some(name) } else { None })
    }

    /// Row outputs with their values.
    pub fn row_outputs(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.outputs.iter().filter_map(|o| if let Output::Row(name, v) = o { Some((name.as_str(), *v)) } else { None })
    }

    /// The stored value, if the program has one.
    pub fn store(&self) -> Option<ValueId> {
        self.outputs.iter().find_map(|o| if let Output::Store(v) = o { Some(*v) } else { None })
    }

    /// Column gradients with their values.
    pub fn column_gradients(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.outputs
            .iter()
            .filter_map(|o| if let Output::ColumnGradient(name, v) = o { Some((name.as_str(), *v)) } else { None })
    }

    /// Names of the values at selected ids, with the values.
    pub fn selected(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.outputs
            .iter()
            .filter_map(|o| if let Output::Selected(name, v) = o { Some((name.as_str(), *v)) } else { None })
    }

    /// Value and noise of the largest columns, if the program asks for them.
    pub fn top(&self) -> Option<(ValueId, ValueId)> {
        self.outputs
            .iter()
            .find_map(|o| if let Output::Top { value, noise } = o { Some((*value, *noise)) } else { None })
    }

    /// Whether the program reads an input.
    pub fn reads(&self, input: &Input) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Input(i) if i == input))
    }

    /// Whether a value is computed from an input.
    pub fn depends_on(&self, value: ValueId, input: &Input) -> bool {
        self.op(value).operands().iter().any(|v| self.depends_on(*v, input))
            || matches!(self.op(value), Op::Input(i) if i == input)
    }

    /// The logit that a reference is measured against: the first operand of every `ExpAbove` by the reference.
    pub fn referenced(&self, reference: usize) -> Option<ValueId> {
        verify::referenced(&self.ops, reference)
    }

    /// Number of references that the program measures against.
    pub fn references(&self) -> usize {
        (0..DISTRIBUTIONS).filter(|r| self.referenced(*r).is_some()).count()
    }

    /// Row outputs in order, each with its rule of merging over tiles and ranks.
    pub fn rules(&self) -> Vec<(String, Merge)> {
        movement::rules(&self.ops, &self.outputs)
    }

    /// How much of the common offset of the logits each named row output and value at selected ids carries, and
    /// the largest columns under `top`. `rows` says what the row inputs carry.
    ///
    /// # Errors
    /// [`ProgramError::Offset`] if the program forms differences of values that carry the offset.
    pub fn offsets(
        &self,
        rows: &BTreeMap<String, Offset>,
        top: &str,
    ) -> Result<BTreeMap<String, Offset>, ProgramError> {
        let offsets = verify::offsets(&self.ops, rows)?;
        let named = |output: &Output| match output {
            Output::Row(name, v) | Output::Selected(name, v) => Some((name.clone(), offsets[v.index()])),
            Output::Top { value, .. } => Some((top.to_owned(), offsets[value.index()])),
            Output::Store(_) | Output::ColumnGradient(..) => None,
        };
        Ok(self.outputs.iter().filter_map(named).collect())
    }

    /// Whether a value is multiplied by a power of two when a reference moves.
    pub fn is_scaled(&self, value: ValueId) -> bool {
        matches!(movement::movements(&self.ops)[value.index()], Movement::Scaled(_))
    }

    fn names<'a>(&'a self, pick: impl Fn(&'a Input) -> Option<&'a String>) -> Vec<&'a str> {
        let mut names: Vec<&str> = vec![];
        for op in &self.ops {
            if let Op::Input(input) = op
                && let Some(name) = pick(input)
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        names
    }
}
