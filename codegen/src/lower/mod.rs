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
#[derive(Clone, Debug, Default, Serialize)]
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
    let mut count = 0;
    let mut texts: Vec<String> = vec![String::new(); needed.len()];
    for (index, op) in program.ops().iter().enumerate().filter(|(index, _)| needed[*index]) {
        let value = ValueId(index as u32);
        let ty = program.ty(value);
        let expression = match op {
            Op::Const(constant) => {
                texts[index] = lowering.constant(*constant);
                continue;
            }
            Op::Input(input) => lowering.input(input, slot(program, input)),
            op => {
                let operands: Vec<Operand> = op
                    .operands()
                    .iter()
                    .map(|v| Operand { text: texts[v.index()].clone(), ty: program.ty(*v) })
                    .collect();
                lowering.operation(op, ty, &operands).ok_or_else(|| Error::Lowering {
                    program: program.name().to_owned(),
                    value: value.to_string(),
                    message: format!("the target has no text for {op:?}"),
                })?
            }
        };
        // Numbered as they are needed, so that what a program computes besides does not show.
        let name = format!("{prefix}{count}");
        count += 1;
        let statement = lowering.define(&name, ty, &expression);
        match ty.shape {
            Shape::Uniform => fragment.uniform.push(statement),
            Shape::Row => fragment.row.push(statement),
            Shape::Column => fragment.column.push(statement),
            Shape::Element => fragment.element.push(statement),
        }
        texts[index] = name;
    }
    fragment.results = wanted
        .iter()
        .map(|(value, shape)| {
            let value = strip(*value);
            lowering.broadcast(&Operand { text: texts[value.index()].clone(), ty: program.ty(value) }, *shape)
        })
        .collect();
    Ok(fragment)
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
