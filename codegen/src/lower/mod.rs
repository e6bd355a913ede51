//! Row programs to text: which operations a template needs, where each may be hoisted to, and what a target calls them.

mod cuda;
mod rust_simd;

pub use cuda::Cuda;
pub use rust_simd::RustSimd;

use crate::error::Error;
use crate::program::{Input, Op, Program, Shape, Type, ValueId};
use serde::Serialize;

/// An operand as it stands in the text.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Expression, a name or a literal.
    pub text: String,
    /// Its type.
    pub ty: Type,
}

/// Name of the value of a distribution: that of the only one has no number.
fn indexed(name: &str, index: usize) -> String {
    if index == 0 { name.to_owned() } else { format!("{name}_{index}") }
}

/// A target language: an ordered table from operations to expressions.
///
/// The names in scope are part of the contract between lowering and template; each lowering documents its own.
pub trait Lowering {
    /// Expression for an input; `slot` is its position among the inputs of its kind.
    fn input(&self, input: &Input, slot: usize) -> String;

    /// Expression for an operation with result type `ty`, or `None` if the target has none.
    fn operation(&self, op: &Op, ty: Type, operands: &[Operand]) -> Option<String>;

    /// Expression for a constant.
    fn constant(&self, value: f32) -> String;

    /// Statement that defines `name`.
    fn define(&self, name: &str, ty: Type, expression: &str) -> String;

    /// `operand` as a value of shape `shape`, where the language tells scalars from vectors.
    fn broadcast(&self, operand: &Operand, shape: Shape) -> String;
}

/// Statements that compute some values of a program, apart by how far out of the tile loop each may be hoisted.
/// Every list is in order and one statement an entry, so that a template can interleave them with other work.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Fragment {
    /// Once a tile.
    pub uniform: Vec<String>,
    /// Once a row (or vector of rows).
    pub row: Vec<String>,
    /// Once a column.
    pub column: Vec<String>,
    /// Once an element (or vector of elements).
    pub element: Vec<String>,
    /// Expressions of the values asked for, in order, broadcast to the shape asked for.
    pub results: Vec<String>,
}

/// Computes `wanted` values, each broadcast to a shape. A value that is a reduction stands for its (first) operand: the
/// template reduces.
///
/// # Errors
/// [`Error::Lowering`] for an operation that the target has no text for.
pub fn lower(
    program: &Program,
    lowering: &dyn Lowering,
    prefix: &str,
    wanted: &[(ValueId, Shape)],
) -> Result<Fragment, Error> {
    Lowered::new(program, lowering, prefix).add(wanted)
}

/// A program of which some values have names in the text already.
pub struct Lowered<'a> {
    program: &'a Program,
    lowering: &'a dyn Lowering,
    prefix: &'a str,
    /// Name or literal of each value that is there.
    texts: Vec<Option<String>>,
    /// How many have a name.
    count: usize,
}

impl<'a> Lowered<'a> {
    /// Nothing is there yet. Names begin with the prefix.
    pub fn new(program: &'a Program, lowering: &'a dyn Lowering, prefix: &'a str) -> Lowered<'a> {
        Lowered { program, lowering, prefix, texts: vec![None; program.ops().len()], count: 0 }
    }

    /// As [`lower`]; the statements are those of values that are not there yet.
    ///
    /// # Errors
    /// As [`lower`].
    pub fn add(&mut self, wanted: &[(ValueId, Shape)]) -> Result<Fragment, Error> {
        let program = self.program;
        let strip = |v: ValueId| match *program.op(v) {
            Op::Reduce(_, operand) | Op::ArgMax(operand, _) => operand,
            _ => v,
        };
        let mut needed = vec![false; program.ops().len()];
        for (value, _) in wanted {
            needed[strip(*value).index()] = true;
        }
        for index in (0..needed.len()).rev() {
            if needed[index] {
                for operand in program.ops()[index].operands() {
                    needed[operand.index()] = true;
                }
            }
        }
        let mut fragment = Fragment::default();
        for index in (0..needed.len()).filter(|index| needed[*index]) {
            if self.texts[index].is_none() {
                self.define(ValueId(index as u32), &mut fragment)?;
            }
        }
        let result = |(value, shape): &(ValueId, Shape)| self.lowering.broadcast(&self.operand(strip(*value)), *shape);
        fragment.results = wanted.iter().map(result).collect();
        Ok(fragment)
    }

    /// A value that is there.
    fn operand(&self, value: ValueId) -> Operand {
        Operand { text: self.texts[value.index()].clone().unwrap_or_default(), ty: self.program.ty(value) }
    }

    /// The statement of a value whose operands are there.
    fn define(&mut self, value: ValueId, fragment: &mut Fragment) -> Result<(), Error> {
        let (program, ty) = (self.program, self.program.ty(value));
        let expression = match program.op(value) {
            Op::Const(constant) => {
                self.texts[value.index()] = Some(self.lowering.constant(*constant));
                return Ok(());
            }
            Op::Input(input) => self.lowering.input(input, slot(program, input)),
            op => {
                let operands: Vec<Operand> = op.operands().iter().map(|v| self.operand(*v)).collect();
                self.lowering.operation(op, ty, &operands).ok_or_else(|| Error::Lowering {
                    program: program.name().to_owned(),
                    value: value.to_string(),
                    message: format!("the target has no text for {op:?}"),
                })?
            }
        };
        // Numbered as they are needed, so that what a program computes besides does not show.
        let name = format!("{}{}", self.prefix, self.count);
        self.count += 1;
        let statement = self.lowering.define(&name, ty, &expression);
        match ty.shape {
            Shape::Uniform => fragment.uniform.push(statement),
            Shape::Row => fragment.row.push(statement),
            Shape::Column => fragment.column.push(statement),
            Shape::Element => fragment.element.push(statement),
        }
        self.texts[value.index()] = Some(name);
        Ok(())
    }
}

fn slot(program: &Program, input: &Input) -> usize {
    let position = |names: Vec<&str>, name: &String| names.iter().position(|n| n == name).unwrap_or(0);
    match input {
        Input::Row(name) => position(program.row_inputs(), name),
        Input::Column(name) => position(program.column_inputs(), name),
        Input::Uniform(name) => position(program.uniforms(), name),
        _ => 0,
    }
}
