//! Number literals.

use crate::error::ParseErrorKind;
use crate::isa::types::{Type, low_bits};

/// A literal before the instruction's type is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Integer(u64),
    Single(u32),
    Double(f64),
}

impl Number {
    /// The literal written as `text`, or nothing if it is no number at all.
    pub(super) fn parse(text: &str) -> Option<Result<Number, ParseErrorKind>> {
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        Some(Self::value(text).ok_or_else(|| ParseErrorKind::BadNumber(text.to_owned())))
    }

    fn value(text: &str) -> Option<Number> {
        let prefix = text.get(..2).unwrap_or("");
        let tail = text.get(2..).unwrap_or("");
        match prefix {
            "0f" | "0F" if tail.len() == 8 => {
                return u32::from_str_radix(tail, 16).ok().map(Number::Single);
            }
            "0d" | "0D" if tail.len() == 16 => {
                let bits = u64::from_str_radix(tail, 16).ok()?;
                return Some(Number::Double(f64::from_bits(bits)));
            }
            _ => {}
        }
        let text = text.strip_suffix('U').unwrap_or(text);
        let tail = tail.strip_suffix('U').unwrap_or(tail);
        let integer = match prefix {
            "0x" | "0X" => u64::from_str_radix(tail, 16).ok(),
            "0b" | "0B" => u64::from_str_radix(tail, 2).ok(),
            _ if text.len() > 1 && text.starts_with('0') && !text.contains('.') => u64::from_str_radix(text, 8).ok(),
            _ => text.parse().ok(),
        };
        match integer {
            Some(value) => Some(Number::Integer(value)),
            None if text.contains('.') => text.parse().ok().map(Number::Double),
            None => None,
        }
    }

    /// The literal with a minus sign before it.
    pub(super) fn negate(self) -> Number {
        match self {
            Number::Integer(value) => Number::Integer(value.wrapping_neg()),
            Number::Single(bits) => Number::Single(bits ^ 0x8000_0000),
            Number::Double(value) => Number::Double(-value),
        }
    }

    /// The bits of the literal as an operand of type `ty`.
    pub(super) fn bits(self, ty: Type) -> Result<u64, ParseErrorKind> {
        match (self, ty) {
            (Number::Single(bits), Type::F32 | Type::B32 | Type::U32 | Type::S32) => Ok(u64::from(bits)),
            (Number::Single(bits), Type::F64) => Ok(f64::from(f32::from_bits(bits)).to_bits()),
            (Number::Double(value), Type::F32) => Ok(u64::from((value as f32).to_bits())),
            (Number::Double(value), Type::F64 | Type::B64 | Type::U64 | Type::S64) => Ok(value.to_bits()),
            (Number::Integer(value), _) if ty != Type::F32 && ty != Type::F64 => Ok(value & low_bits(ty.bits())),
            _ => Err(ParseErrorKind::WrongOperand("a number of that type")),
        }
    }
}
