//! CUDA C++ over the functions of the CUDA prelude: f32 in registers, one element at a time.
//!
//! In scope: `logit`, `stored` and `reference` (floats; of a second distribution `logit_1` and `reference_1`), `selected`
//! and `random` where a template provides them, `column` (shard-local id), `local` (the same within the
//! tile), `token` (a row that exists), the kernel parameters `uniform_<name>` and `row_<name>`, those of a loss also
//! `classes` and `targets`, and `staged_<name>`, the tile's part of a column input, zero where the caller has none.

use super::{Lowering, Operand, indexed};
use crate::program::{Binary, Compare, Input, Kind, Op, Shape, Type, Unary};

/// The lowering for all CUDA targets.
pub struct Cuda;

impl Lowering for Cuda {
    fn input(&self, input: &Input, _: usize) -> String {
        match input {
            Input::Logit(index) => indexed("logit", *index),
            Input::Stored => "stored".to_owned(),
            Input::ColumnId => "column".to_owned(),
            Input::Classes => "classes".to_owned(),
            Input::Target => "targets[token]".to_owned(),
            Input::Reference(index) => indexed("reference", *index),
            Input::Selected => "selected".to_owned(),
            Input::Random => "random".to_owned(),
            Input::Row(name) => format!("row_{name}[token]"),
            Input::Column(name) => format!("staged_{name}[local]"),
            Input::Uniform(name) => format!("uniform_{name}"),
        }
    }

    fn constant(&self, value: f32) -> String {
        if value.is_nan() {
            "not_a_number()".to_owned()
        } else if value.is_infinite() {
            if value > 0.0 { "infinity()" } else { "-infinity()" }.to_owned()
        } else {
            format!("{value:?}f")
        }
    }

    fn operation(&self, op: &Op, ty: Type, operands: &[Operand]) -> Option<String> {
        let text = |i: usize| operands[i].text.as_str();
        let infix = |sign: &str| format!("{} {sign} {}", text(0), text(1));
        let call = |name: &str| {
            let list: Vec<&str> = operands.iter().map(|o| o.text.as_str()).collect();
            format!("{name}({})", list.join(", "))
        };
        Some(match op {
            Op::Unary(Unary::Neg, _) => format!("-({})", text(0)),
            Op::Unary(Unary::Exp, _) => call("expf"),
            Op::Unary(Unary::Ln, _) => call("logf"),
            Op::Unary(Unary::Ln1p, _) => call("log1pf"),
            Op::Unary(Unary::Tanh, _) => call("tanhf"),
            Op::Unary(Unary::Float, _) => call("(float)"),
            Op::Binary(Binary::Add, ..) => infix("+"),
            Op::Binary(Binary::Sub, ..) => infix("-"),
            Op::Binary(Binary::Mul, ..) => infix("*"),
            // A correctly rounded division costs as much as the rest of an element; two ulp are enough there.
            Op::Binary(Binary::Div, ..) if ty.shape == Shape::Element => {
                format!("{} * reciprocal({})", text(0), text(1))
            }
            Op::Binary(Binary::Div, ..) => infix("/"),
            Op::Binary(Binary::Max, ..) => call("maximum"),
            Op::Binary(Binary::Min, ..) => call("minimum"),
            Op::Binary(Binary::Above, ..) => call("above"),
            Op::Binary(Binary::ExpAbove, ..) => call("exp_above"),
            Op::MulAdd(..) => call("fmaf"),
            Op::Compare(Compare::Eq, ..) => infix("=="),
            Op::Compare(Compare::Lt, ..) => infix("<"),
            Op::Select(..) => format!("{} ? {} : {}", text(0), text(1), text(2)),
            Op::Input(_) | Op::Const(_) | Op::Reduce(..) | Op::ArgMax(..) | Op::Divergence { .. } => return None,
        })
    }

    fn define(&self, name: &str, ty: Type, expression: &str) -> String {
        let kind = match ty.kind {
            Kind::F32 => "float",
            Kind::I32 => "int",
            Kind::Bool => "bool",
        };
        format!("const {kind} {name} = {expression};")
    }

    // Scalars are all there is.
    fn broadcast(&self, operand: &Operand, _: Shape) -> String {
        operand.text.clone()
    }
}
