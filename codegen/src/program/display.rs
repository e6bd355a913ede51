//! The text form of a program, for snapshots and messages.

use super::{Input, Op, Output, Program, ValueId};
use std::fmt;

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Logit(0) => f.write_str("logit"),
            Input::Logit(i) => write!(f, "logit {i}"),
            Input::Stored => f.write_str("stored"),
            Input::ColumnId => f.write_str("column_id"),
            Input::Classes => f.write_str("classes"),
            Input::Target => f.write_str("target"),
            Input::Reference(0) => f.write_str("reference"),
            Input::Reference(i) => write!(f, "reference {i}"),
            Input::Selected => f.write_str("selected"),
            Input::Random => f.write_str("random"),
            Input::Row(name) => write!(f, "row {name}"),
            Input::Column(name) => write!(f, "column {name}"),
            Input::Uniform(name) => write!(f, "uniform {name}"),
        }
    }
}

fn word(name: impl fmt::Debug) -> String {
    format!("{name:?}").to_lowercase()
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {}", self.name)?;
        for (index, (op, ty)) in self.ops.iter().zip(&self.types).enumerate() {
            let text = match op {
                Op::Input(input) => input.to_string(),
                Op::Const(value) => format!("{value:?}"),
                Op::Unary(op, _) => word(op),
                Op::Binary(op, ..) => word(op),
                Op::MulAdd(..) => "muladd".to_owned(),
                Op::Compare(op, ..) => word(op),
                Op::Select(..) => "select".to_owned(),
                Op::Reduce(op, _) => format!("row_{}", word(op)),
                Op::ArgMax(..) => "row_argmax".to_owned(),
                Op::Divergence { .. } => "row_divergence".to_owned(),
            };
            let operands: String = op.operands().iter().map(|v| format!(" {v}")).collect();
            writeln!(f, "  %{index}: {} {} = {text}{operands}", word(ty.shape), word(ty.kind))?;
        }
        for output in &self.outputs {
            match output {
                Output::Row(name, v) => writeln!(f, "  row {name} <- {v}")?,
                Output::Store(v) => writeln!(f, "  store <- {v}")?,
                Output::ColumnGradient(name, v) => writeln!(f, "  column gradient {name} <- {v}")?,
                Output::Selected(name, v) => writeln!(f, "  selected {name} <- {v}")?,
                Output::Top { value, noise } => writeln!(f, "  top <- {value} with noise {noise}")?,
            }
        }
        Ok(())
    }
}
