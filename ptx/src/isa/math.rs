//! Transcendental and root functions.
//!
//! Approximate instructions give the correctly rounded result, which lies in
//! the error bound that the PTX ISA states for each.

use super::float::flush;
use super::types::Type;
use super::{Operand, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Mask, Registers};
use crate::syntax::Statement;

/// A function of one float.
#[derive(Clone, Debug)]
pub(crate) struct Math {
    function: Function,
    double: bool,
    flush: bool,
    d: Reg,
    a: Operand,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Exp2,
    Log2,
    Reciprocal,
    Sqrt,
    ReciprocalSqrt,
    Sin,
    Cos,
    Tanh,
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Math, ParseErrorKind> {
    let function = match s.head() {
        "ex2" => Function::Exp2,
        "lg2" => Function::Log2,
        "rcp" => Function::Reciprocal,
        "sqrt" => Function::Sqrt,
        "rsqrt" => Function::ReciprocalSqrt,
        "sin" => Function::Sin,
        "cos" => Function::Cos,
        "tanh" => Function::Tanh,
        _ => return Err(s.unsupported()),
    };
    let rounded = matches!(function, Function::Reciprocal | Function::Sqrt) && s.take("rn");
    if !rounded {
        s.require("approx")?;
    }
    let flush = s.take("ftz");
    let ty = s.ty_of(&[Type::F32, Type::F64])?;
    let double = ty == Type::F64;
    if double && (!rounded || flush) {
        return Err(ParseErrorKind::UnsupportedModifier("f64".to_owned()));
    }
    Ok(Math { function, double, flush, d: s.destination(ty)?, a: s.source(ty)? })
}

impl Math {
    pub(crate) fn execute(&self, registers: &mut Registers, mask: Mask) {
        let f = self.function;
        let on_off = self.flush;
        if self.double {
            registers.map1(self.d, self.a, mask, |a| f.apply(f64::from_bits(a)).to_bits());
            return;
        }
        registers.map1(self.d, self.a, mask, |a| {
            let x = f32::from_bits(a as u32);
            let x = if on_off { flush(x) } else { x };
            let y = f.apply(f64::from(x)) as f32;
            let y = if on_off { flush(y) } else { y };
            u64::from(y.to_bits())
        });
    }
}

impl Function {
    fn apply(self, x: f64) -> f64 {
        match self {
            Function::Exp2 => x.exp2(),
            Function::Log2 => x.log2(),
            Function::Reciprocal => 1.0 / x,
            Function::Sqrt => x.sqrt(),
            Function::ReciprocalSqrt => 1.0 / x.sqrt(),
            Function::Sin => x.sin(),
            Function::Cos => x.cos(),
            Function::Tanh => x.tanh(),
        }
    }
}
