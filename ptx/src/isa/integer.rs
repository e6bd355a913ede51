//! Integer arithmetic: add, sub, mul, mad, div, rem, min, max, abs, neg.

use super::types::Type;
use super::{Operand, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Mask, Registers};
use crate::syntax::Statement;

/// An integer operation on values of one type.
#[derive(Clone, Debug)]
pub(crate) struct Integer {
    operation: Operation,
    ty: Type,
    d: Reg,
    /// Sources; those that the operation does not have are zero.
    sources: [Operand; 3],
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Add,
    Sub,
    MulLow,
    MulHigh,
    /// Product twice as wide as the factors.
    MulWide,
    MadLow,
    MadHigh,
    MadWide,
    Div,
    Rem,
    Min,
    Max,
    Abs,
    Neg,
}

const INTEGERS: [Type; 6] = [Type::U16, Type::U32, Type::U64, Type::S16, Type::S32, Type::S64];

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Integer, ParseErrorKind> {
    use Operation::*;
    let operation = match s.head() {
        "add" => Add,
        "sub" => Sub,
        "mul" => s.select(&[("lo", MulLow), ("hi", MulHigh), ("wide", MulWide)], "lo, hi or wide")?,
        "mad" => s.select(&[("lo", MadLow), ("hi", MadHigh), ("wide", MadWide)], "lo, hi or wide")?,
        "div" => Div,
        "rem" => Rem,
        "min" => Min,
        "max" => Max,
        "abs" => Abs,
        "neg" => Neg,
        _ => return Err(s.unsupported()),
    };
    let ty = s.ty_of(&INTEGERS)?;
    let wide = match operation {
        MulWide | MadWide => match ty {
            Type::U16 => Type::U32,
            Type::S16 => Type::S32,
            Type::U32 => Type::U64,
            Type::S32 => Type::S64,
            _ => return Err(ParseErrorKind::UnsupportedModifier("wide".to_owned())),
        },
        _ => ty,
    };
    let d = s.destination(wide)?;
    let mut sources = [Operand::Imm(0); 3];
    sources[0] = s.source(ty)?;
    if !matches!(operation, Abs | Neg) {
        sources[1] = s.source(ty)?;
    }
    if matches!(operation, MadLow | MadHigh | MadWide) {
        sources[2] = s.source(wide)?;
    }
    Ok(Integer { operation, ty, d, sources })
}

impl Integer {
    #[inline]
    pub(crate) fn execute(&self, registers: &mut Registers, mask: Mask) {
        match self.ty {
            Type::U16 => self.run::<u16>(registers, mask),
            Type::U32 => self.run::<u32>(registers, mask),
            Type::U64 => self.run::<u64>(registers, mask),
            Type::S16 => self.run::<i16>(registers, mask),
            Type::S32 => self.run::<i32>(registers, mask),
            _ => self.run::<i64>(registers, mask),
        }
    }

    fn run<T: Int>(&self, registers: &mut Registers, mask: Mask) {
        let d = self.d;
        let [a, b, _] = self.sources;
        let two = [a, b];
        let of = T::of;
        match self.operation {
            Operation::Add => registers.map2(d, two, mask, |a, b| of(a).add(of(b)).bits()),
            Operation::Sub => registers.map2(d, two, mask, |a, b| of(a).sub(of(b)).bits()),
            Operation::MulLow => registers.map2(d, two, mask, |a, b| of(a).mul(of(b)).bits()),
            Operation::MulHigh => registers.map2(d, two, mask, |a, b| of(a).high(of(b)).bits()),
            Operation::MulWide => registers.map2(d, two, mask, |a, b| of(a).wide(of(b), 0)),
            Operation::MadLow => registers.map3(d, self.sources, mask, |a, b, c| of(a).mul(of(b)).add(of(c)).bits()),
            Operation::MadHigh => registers.map3(d, self.sources, mask, |a, b, c| of(a).high(of(b)).add(of(c)).bits()),
            Operation::MadWide => {
                registers.map3(d, self.sources, mask, |a, b, c| of(a).wide(of(b), c));
            }
            Operation::Div => registers.map2(d, two, mask, |a, b| of(a).div(of(b)).bits()),
            Operation::Rem => registers.map2(d, two, mask, |a, b| of(a).rem(of(b)).bits()),
            Operation::Min => registers.map2(d, two, mask, |a, b| of(a).min(of(b)).bits()),
            Operation::Max => registers.map2(d, two, mask, |a, b| of(a).max(of(b)).bits()),
            Operation::Abs => registers.map1(d, a, mask, |a| of(a).abs().bits()),
            Operation::Neg => registers.map1(d, a, mask, |a| of(0).sub(of(a)).bits()),
        }
    }
}

/// Arithmetic of a fixed width, wrapping at it.
pub(super) trait Int: Copy + Ord {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Upper half of the full product.
    fn high(self, other: Self) -> Self;
    /// Full product plus `addend`, in a register of twice the width.
    fn wide(self, other: Self, addend: u64) -> u64;
    fn div(self, other: Self) -> Self;
    fn rem(self, other: Self) -> Self;
    fn abs(self) -> Self;
}

macro_rules! int {
    ($int:ty, $unsigned:ty, $wide:ty, $wide_unsigned:ty, $abs:expr) => {
        impl Int for $int {
            #[inline]
            fn of(bits: u64) -> Self {
                bits as Self
            }
            #[inline]
            fn bits(self) -> u64 {
                self as $unsigned as u64
            }
            #[inline]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline]
            fn high(self, other: Self) -> Self {
                ((self as $wide).wrapping_mul(other as $wide) >> Self::BITS) as Self
            }
            #[inline]
            fn wide(self, other: Self, addend: u64) -> u64 {
                let product = (self as $wide).wrapping_mul(other as $wide);
                product.wrapping_add(addend as $wide) as $wide_unsigned as u64
            }
            // The PTX ISA leaves division by zero open; GPUs give all ones.
            #[inline]
            fn div(self, other: Self) -> Self {
                if other == 0 { !0 } else { self.wrapping_div(other) }
            }
            #[inline]
            fn rem(self, other: Self) -> Self {
                if other == 0 { self } else { self.wrapping_rem(other) }
            }
            #[inline]
            fn abs(self) -> Self {
                let abs: fn(Self) -> Self = $abs;
                abs(self)
            }
        }
    };
}

int!(u16, u16, u32, u32, |x| x);
int!(u32, u32, u64, u64, |x| x);
int!(u64, u64, u128, u128, |x| x);
int!(i16, u16, i32, u32, i16::wrapping_abs);
int!(i32, u32, i64, u64, i32::wrapping_abs);
int!(i64, u64, i128, u128, i64::wrapping_abs);
