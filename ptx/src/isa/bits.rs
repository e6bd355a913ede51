//! Bit fields, byte permutation and bit counts.

use super::types::{Type, low_bits, sign_extend};
use super::{Operand, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Mask, Registers};
use crate::syntax::Statement;

/// An operation on bit fields or on the bits of one word.
#[derive(Clone, Debug)]
pub(crate) enum Bits {
    /// The field of `sources[0]` at position `[1]` of length `[2]`.
    Extract { bits: u32, signed: bool, d: Reg, sources: [Operand; 3] },
    /// `field` placed into `base`.
    Insert { bits: u32, d: Reg, field: Operand, base: Operand, position: Operand, length: Operand },
    /// Four bytes chosen from eight by the nibbles of the third source.
    Permute { d: Reg, sources: [Operand; 3] },
    /// A function of one word.
    Unary { function: Unary, bits: u32, d: Reg, a: Operand },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Unary {
    PopulationCount,
    LeadingZeros,
    Reverse,
    /// Position of the highest bit that differs from the sign.
    FindSigned,
    FindUnsigned,
    /// The shift that brings the bit found to the top.
    ShiftSigned,
    ShiftUnsigned,
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Bits, ParseErrorKind> {
    match s.head() {
        "bfe" => {
            let ty = s.ty_of(&[Type::U32, Type::U64, Type::S32, Type::S64])?;
            Ok(Bits::Extract {
                bits: ty.bits(),
                signed: ty.is_signed(),
                d: s.destination(ty)?,
                sources: [s.source(ty)?, s.source(Type::U32)?, s.source(Type::U32)?],
            })
        }
        "bfi" => {
            let ty = s.ty_of(&[Type::B32, Type::B64])?;
            Ok(Bits::Insert {
                bits: ty.bits(),
                d: s.destination(ty)?,
                field: s.source(ty)?,
                base: s.source(ty)?,
                position: s.source(Type::U32)?,
                length: s.source(Type::U32)?,
            })
        }
        "prmt" => {
            s.require("b32")?;
            Ok(Bits::Permute {
                d: s.destination(Type::B32)?,
                sources: [s.source(Type::B32)?, s.source(Type::B32)?, s.source(Type::B32)?],
            })
        }
        "popc" => unary(s, Unary::PopulationCount, Type::U32),
        "clz" => unary(s, Unary::LeadingZeros, Type::U32),
        "brev" => {
            let ty = s.ty_of(&[Type::B32, Type::B64])?;
            Ok(Bits::Unary { function: Unary::Reverse, bits: ty.bits(), d: s.destination(ty)?, a: s.source(ty)? })
        }
        "bfind" => {
            let shift = s.take("shiftamt");
            let ty = s.ty_of(&[Type::U32, Type::U64, Type::S32, Type::S64])?;
            Ok(Bits::Unary {
                function: match (shift, ty.is_signed()) {
                    (false, false) => Unary::FindUnsigned,
                    (false, true) => Unary::FindSigned,
                    (true, false) => Unary::ShiftUnsigned,
                    (true, true) => Unary::ShiftSigned,
                },
                bits: ty.bits(),
                d: s.destination(Type::U32)?,
                a: s.source(ty)?,
            })
        }
        _ => Err(s.unsupported()),
    }
}

fn unary(s: &mut Statement<'_, '_>, function: Unary, d: Type) -> Result<Bits, ParseErrorKind> {
    let ty = s.ty_of(&[Type::B32, Type::B64])?;
    Ok(Bits::Unary { function, bits: ty.bits(), d: s.destination(d)?, a: s.source(ty)? })
}

impl Bits {
    pub(crate) fn execute(&self, r: &mut Registers, mask: Mask) {
        match *self {
            Bits::Extract { bits, signed, d, sources } => r.map3(d, sources, mask, |a, position, length| {
                extract(a, (position & 255) as u32, (length & 255) as u32, bits, signed)
            }),
            Bits::Insert { bits, d, field, base, position, length } => {
                let (position, length) = (r.get(position), r.get(length));
                let (field, base) = (r.get(field), r.get(base));
                let out = std::array::from_fn(|l| {
                    let (p, n) = ((position[l] & 255) as u32, (length[l] & 255) as u32);
                    let hole = low_bits(n).checked_shl(p).unwrap_or(0) & low_bits(bits);
                    (base[l] & !hole) | (field[l].checked_shl(p).unwrap_or(0) & hole)
                });
                r.set(d, &out, mask);
            }
            Bits::Permute { d, sources } => r.map3(d, sources, mask, permute),
            Bits::Unary { function, bits, d, a } => r.map1(d, a, mask, |a| function.apply(a, bits)),
        }
    }
}

impl Unary {
    fn apply(self, a: u64, bits: u32) -> u64 {
        let a = a & low_bits(bits);
        match self {
            Unary::PopulationCount => u64::from(a.count_ones()),
            Unary::LeadingZeros => u64::from(a.leading_zeros() - (64 - bits)),
            Unary::Reverse => a.reverse_bits() >> (64 - bits),
            Unary::FindUnsigned => highest(a),
            Unary::FindSigned => highest(magnitude(a, bits)),
            Unary::ShiftUnsigned => shift(highest(a), bits),
            Unary::ShiftSigned => shift(highest(magnitude(a, bits)), bits),
        }
    }
}

/// What the bits of a two's complement number add to its sign.
fn magnitude(a: u64, bits: u32) -> u64 {
    let value = sign_extend(a, bits);
    if (value as i64) < 0 { !value } else { value }
}

fn shift(position: u64, bits: u32) -> u64 {
    match position {
        NOT_FOUND => NOT_FOUND,
        _ => u64::from(bits) - 1 - position,
    }
}

const NOT_FOUND: u64 = 0xffff_ffff;

fn highest(a: u64) -> u64 {
    match a {
        0 => NOT_FOUND,
        _ => u64::from(63 - a.leading_zeros()),
    }
}

/// The PTX ISA fills bits above the word with the sign of the field.
fn extract(a: u64, position: u32, length: u32, bits: u32, signed: bool) -> u64 {
    let value = if signed { sign_extend(a, bits) } else { a };
    let shifted = match (signed, value.checked_shr(position)) {
        (true, _) => ((value as i64) >> position.min(63)) as u64,
        (false, Some(shifted)) => shifted,
        (false, None) => 0,
    };
    let field = shifted & low_bits(length);
    let extended = match signed && length > 0 {
        true => sign_extend(field, length),
        false => field,
    };
    extended & low_bits(bits)
}

fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let word = b << 32 | a;
    (0..4).fold(0, |out, i| {
        let nibble = selector >> (4 * i) & 15;
        let byte = word >> (8 * (nibble & 7)) & 255;
        let byte = match nibble & 8 != 0 {
            true => 255 * (byte >> 7),
            false => byte,
        };
        out | byte << (8 * i)
    })
}
