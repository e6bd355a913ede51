//! Rust over the vector functions of a CPU prelude.
//!
//! Row and element values are vectors (one lane a token), uniform and column values are scalars. In scope: `inputs`
//! (the kernel's `Inputs`), `token` (first token of the vector), `column` (shard-local id, i32), `logit`, `stored` and
//! `reference` (vectors; of a second distribution `logit_1` and `reference_1`), `selected` and `random` where a template
//! provides them, and the functions of the prelude.

use super::{Lowering, Operand, indexed};
use crate::program::{Binary, Compare, Input, Kind, Op, Shape, Type, Unary};

/// The lowering for all CPU targets: the prelude gives the functions their instructions.
pub struct RustSimd;

fn is_vector(shape: Shape) -> bool {
    matches!(shape, Shape::Row | Shape::Element)
}

impl Lowering for RustSimd {
    fn input(&self, input: &Input, slot: usize) -> String {
        match input {
            Input::Logit(index) => indexed("logit", *index),
            Input::Stored => "stored".to_owned(),
            Input::ColumnId => "column".to_owned(),
            Input::Classes => "inputs.classes".to_owned(),
            Input::Target => "load_i32(inputs.targets.add(token))".to_owned(),
            Input::Reference(index) => indexed("reference", *index),
            Input::Selected => "selected".to_owned(),
            Input::Random => "random".to_owned(),
            Input::Row(_) => format!("load(inputs.row({slot}, token))"),
            Input::Column(_) => format!("inputs.column({slot}, column)"),
            Input::Uniform(_) => format!("inputs.uniform({slot})"),
        }
    }

    fn constant(&self, value: f32) -> String {
        if value.is_nan() {
            "f32::NAN".to_owned()
        } else if value.is_infinite() {
            if value > 0.0 { "f32::INFINITY" } else { "f32::NEG_INFINITY" }.to_owned()
        } else {
            format!("{value:?}f32")
        }
    }

    fn operation(&self, op: &Op, ty: Type, operands: &[Operand]) -> Option<String> {
        let shape = if is_vector(ty.shape) { Shape::Element } else { Shape::Uniform };
        let text: Vec<String> = operands.iter().map(|o| self.broadcast(o, shape)).collect();
        let kinds = operands.first().map(|o| o.ty.kind);
        let name = match (op, kinds) {
            (Op::Unary(Unary::Neg, _), _) => "neg",
            (Op::Unary(Unary::Exp, _), _) => "exp",
            (Op::Unary(Unary::Ln, _), _) => "ln",
            (Op::Unary(Unary::Ln1p, _), _) => "ln_1p",
            (Op::Unary(Unary::Tanh, _), _) => "tanh",
            (Op::Unary(Unary::Float, _), _) => "float",
            (Op::Binary(Binary::Add, ..), _) => "add",
            (Op::Binary(Binary::Sub, ..), _) => "sub",
            (Op::Binary(Binary::Mul, ..), _) => "mul",
            (Op::Binary(Binary::Div, ..), _) => "div",
            (Op::Binary(Binary::Max, ..), _) => "maximum",
            (Op::Binary(Binary::Min, ..), _) => "minimum",
            (Op::Binary(Binary::Above, ..), _) => "above",
            (Op::Binary(Binary::ExpAbove, ..), _) => "exp_above",
            (Op::MulAdd(..), _) => "mul_add",
            (Op::Compare(Compare::Eq, ..), Some(Kind::I32)) => "eq_i32",
            (Op::Compare(Compare::Lt, ..), Some(Kind::I32)) => "lt_i32",
            (Op::Compare(Compare::Eq, ..), _) => "eq",
            (Op::Compare(Compare::Lt, ..), _) => "lt",
            // A condition that is the same for the whole vector needs no mask.
            (Op::Select(..), _) if !is_vector(operands[0].ty.shape) => {
                return Some(format!("if {} {{ {} }} else {{ {} }}", operands[0].text, text[1], text[2]));
            }
            (Op::Select(..), _) => "select",
            (Op::Input(_) | Op::Const(_) | Op::Reduce(..) | Op::ArgMax(..) | Op::Divergence { .. }, _) => return None,
        };
        // Scalar forms live beside the vector forms under the module `scalar_ops` of each prelude.
        let module = if is_vector(ty.shape) { "" } else { "scalar_ops::" };
        Some(format!("{module}{name}({})", text.join(", ")))
    }

    fn define(&self, name: &str, _: Type, expression: &str) -> String {
        format!("let {name} = {expression};")
    }

    fn broadcast(&self, operand: &Operand, shape: Shape) -> String {
        if !is_vector(shape) || is_vector(operand.ty.shape) {
            return operand.text.clone();
        }
        match operand.ty.kind {
            Kind::F32 => format!("splat({})", operand.text),
            Kind::I32 => format!("splat_i32({})", operand.text),
            Kind::Bool => operand.text.clone(),
        }
    }
}
