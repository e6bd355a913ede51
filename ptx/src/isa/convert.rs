//! Conversions between types: cvt.

use half::{bf16, f16};

use super::float::flush;
use super::types::{Type, low_bits, sign_extend};
use super::{Operand, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Mask, Registers};
use crate::syntax::Statement;

/// A conversion.
#[derive(Clone, Debug)]
pub(crate) enum Convert {
    /// Integer to integer.
    Resize {
        from: Type,
        to: Type,
        saturate: bool,
        /// Width of the destination register.
        width: u32,
        d: Reg,
        a: Operand,
    },
    /// Anything that involves a float.
    Float {
        from: Type,
        to: Type,
        rounding: Rounding,
        flush: bool,
        saturate: bool,
        relu: bool,
        width: u32,
        d: Reg,
        a: Operand,
    },
    /// Two floats to one packed word; the first source becomes the high half.
    Pack { to: Type, rounding: Rounding, relu: bool, d: Reg, sources: [Operand; 2] },
}

/// How a conversion rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rounding {
    /// The value is representable.
    Exact,
    Nearest,
    /// Nearest, ties away from zero.
    NearestAway,
    Zero,
    /// To an integer: nearest, towards zero, down, up.
    Integer(ToInteger),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ToInteger {
    Nearest,
    Zero,
    Down,
    Up,
}

const ROUNDINGS: [(&str, Rounding); 7] = [
    ("rn", Rounding::Nearest),
    ("rz", Rounding::Zero),
    ("rna", Rounding::NearestAway),
    ("rni", Rounding::Integer(ToInteger::Nearest)),
    ("rzi", Rounding::Integer(ToInteger::Zero)),
    ("rmi", Rounding::Integer(ToInteger::Down)),
    ("rpi", Rounding::Integer(ToInteger::Up)),
];

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Convert, ParseErrorKind> {
    let spelled = s.peek().unwrap_or("").to_owned();
    let rounding = s.choose(&ROUNDINGS).unwrap_or(Rounding::Exact);
    let relu = s.take("relu");
    let flush = s.take("ftz");
    let saturate = s.take("sat");
    let (to, from) = (s.ty()?, s.ty()?);
    if matches!(to, Type::Bf16x2 | Type::F16x2) {
        let ok = from == Type::F32 && matches!(rounding, Rounding::Nearest | Rounding::Zero);
        if !ok || saturate || flush {
            return Err(s.unsupported());
        }
        return Ok(Convert::Pack {
            to,
            rounding,
            relu,
            d: s.destination(Type::B32)?,
            sources: [s.source(Type::F32)?, s.source(Type::F32)?],
        });
    }
    if to.is_integer() && from.is_integer() {
        if rounding != Rounding::Exact || relu || flush {
            return Err(ParseErrorKind::UnsupportedModifier(spelled));
        }
        let (d, width) = s.wide_destination(to)?;
        let a = s.wide_source(from)?;
        return Ok(Convert::Resize { from, to, saturate, width, d, a });
    }
    if !supported(from, to, rounding) || (relu && !matches!(to, Type::Bf16 | Type::F16)) {
        return Err(s.unsupported());
    }
    let (d, width) = s.wide_destination(to)?;
    let a = s.wide_source(from)?;
    Ok(Convert::Float { from, to, rounding, flush, saturate, relu, width, d, a })
}

fn supported(from: Type, to: Type, rounding: Rounding) -> bool {
    let float = |t| matches!(t, Type::F16 | Type::Bf16 | Type::F32 | Type::F64);
    match (from, to) {
        (Type::F32, Type::Tf32) => matches!(rounding, Rounding::NearestAway | Rounding::Nearest),
        (from, to) if float(from) && to.is_integer() => matches!(rounding, Rounding::Integer(_)),
        (from, to) if from.is_integer() && float(to) => rounding == Rounding::Nearest,
        (from, to) if from == to && float(from) => {
            matches!(rounding, Rounding::Integer(_) | Rounding::Exact)
        }
        (Type::F32, Type::F16 | Type::Bf16) => {
            matches!(rounding, Rounding::Nearest | Rounding::Zero)
        }
        (Type::F16 | Type::Bf16, Type::F32 | Type::F64) | (Type::F32, Type::F64) => rounding == Rounding::Exact,
        (Type::F64, Type::F32) => rounding == Rounding::Nearest,
        _ => false,
    }
}

impl Convert {
    #[inline]
    pub(crate) fn execute(&self, r: &mut Registers, mask: Mask) {
        match *self {
            Convert::Resize { from, to, saturate: false, width, d, a } => {
                let take = from.bits().min(to.bits());
                let give = low_bits(if to.is_signed() { width } else { to.bits() });
                // Truncation keeps the low bits; what is left extends to the
                // register by the signedness of the type it comes from.
                let signed = match from.bits() >= to.bits() {
                    true => to.is_signed(),
                    false => from.is_signed(),
                };
                if signed {
                    r.map1(d, a, mask, |a| sign_extend(a, take) & give);
                } else {
                    let keep = low_bits(take);
                    r.map1(d, a, mask, |a| a & keep);
                }
            }
            Convert::Resize { from, to, width, d, a, .. } => {
                r.map1(d, a, mask, |a| clamp(integer(a, from), to) as u64 & low_bits(width))
            }
            Convert::Float { from, to, rounding, flush, saturate, relu, width, d, a } => r.map1(d, a, mask, |a| {
                let bits = if from.is_integer() {
                    from_integer(integer(a, from), to)
                } else {
                    from_float(float(a, from, flush), to, rounding, saturate, relu, flush)
                };
                match to.is_signed() {
                    true => sign_extend(bits, to.bits()) & low_bits(width),
                    false => bits,
                }
            }),
            Convert::Pack { to, rounding, relu, d, sources } => {
                let half = if to == Type::Bf16x2 { Type::Bf16 } else { Type::F16 };
                r.map2(d, sources, mask, |high, low| {
                    let one = |x: u64| narrow(f32::from_bits(x as u32), half, rounding, relu);
                    one(high) << 16 | one(low)
                });
            }
        }
    }
}

fn integer(bits: u64, ty: Type) -> i128 {
    match ty.is_signed() {
        true => i128::from(sign_extend(bits, ty.bits()) as i64),
        false => i128::from(bits & low_bits(ty.bits())),
    }
}

fn clamp(value: i128, ty: Type) -> i128 {
    let (low, high) = match ty.is_signed() {
        true => (-(1i128 << (ty.bits() - 1)), (1i128 << (ty.bits() - 1)) - 1),
        false => (0, (1i128 << ty.bits()) - 1),
    };
    value.clamp(low, high)
}

fn float(bits: u64, ty: Type, on_off: bool) -> f64 {
    match ty {
        Type::F16 => f16::from_bits(bits as u16).to_f64(),
        Type::Bf16 => bf16::from_bits(bits as u16).to_f64(),
        Type::F64 => f64::from_bits(bits),
        _ => {
            let x = f32::from_bits(bits as u32);
            f64::from(if on_off { flush(x) } else { x })
        }
    }
}

fn from_integer(value: i128, to: Type) -> u64 {
    match to {
        Type::F64 => (value as f64).to_bits(),
        Type::F32 => u64::from((value as f32).to_bits()),
        // Every integer that f16 or bf16 can hold is exact in f64, and larger
        // ones round once here because f64 has over twice their precision.
        Type::F16 => u64::from(f16::from_f64(value as f64).to_bits()),
        _ => u64::from(bf16::from_f64(value as f64).to_bits()),
    }
}

fn from_float(x: f64, to: Type, rounding: Rounding, saturate: bool, relu: bool, on_off: bool) -> u64 {
    let x = match rounding {
        Rounding::Integer(ToInteger::Nearest) => x.round_ties_even(),
        Rounding::Integer(ToInteger::Zero) => x.trunc(),
        Rounding::Integer(ToInteger::Down) => x.floor(),
        Rounding::Integer(ToInteger::Up) => x.ceil(),
        _ => x,
    };
    if to.is_integer() {
        // `as` clamps and gives zero for a NaN, as the PTX ISA asks.
        return clamp(x as i128, to) as u64 & low_bits(to.bits());
    }
    let x = match saturate {
        true if x.is_nan() => 0.0,
        true => x.clamp(0.0, 1.0),
        false => x,
    };
    match to {
        Type::F64 => x.to_bits(),
        Type::F32 => {
            let y = x as f32;
            u64::from(if on_off { flush(y) } else { y }.to_bits())
        }
        Type::Tf32 => u64::from(to_tf32(x as f32, rounding)),
        // A source of sixteen bits or of f32: exact in f32.
        half => narrow(x as f32, half, rounding, relu),
    }
}

/// A single as `f16` or `bf16`.
#[inline]
fn narrow(x: f32, to: Type, rounding: Rounding, relu: bool) -> u64 {
    // `relu` also keeps a NaN, as the canonical one.
    let x = if relu && x <= 0.0 { 0.0 } else { x };
    let nearest = match to {
        Type::F16 => f16::from_f32(x).to_bits(),
        _ => bf16::from_f32(x).to_bits(),
    };
    if x.is_nan() {
        return 0x7fff;
    }
    if rounding != Rounding::Zero {
        return u64::from(nearest);
    }
    // The nearest value lies at most one step beyond the truncated one, and
    // consecutive encodings are consecutive magnitudes.
    let value = match to {
        Type::F16 => f16::from_bits(nearest).to_f32(),
        _ => bf16::from_bits(nearest).to_f32(),
    };
    u64::from(if value.abs() > x.abs() { nearest - 1 } else { nearest })
}

/// Keeps ten bits of the mantissa.
fn to_tf32(x: f32, rounding: Rounding) -> u32 {
    let bits = x.to_bits();
    if !x.is_finite() {
        return bits;
    }
    let increment = match rounding {
        Rounding::NearestAway => 0x1000,
        _ => 0xfff + (bits >> 13 & 1),
    };
    bits.wrapping_add(increment) & !0x1fff
}
