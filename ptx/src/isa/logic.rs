//! Bitwise logic and shifts.

use super::types::{Type, low_bits, sign_extend};
use super::{Operand, Predicate, PredicateOperand, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Mask, Registers};
use crate::syntax::Statement;

/// A bitwise operation on data registers or on predicates.
#[derive(Clone, Debug)]
pub(crate) enum Logic {
    Binary {
        operation: Binary,
        d: Reg,
        sources: [Operand; 2],
    },
    Not {
        bits: u32,
        d: Reg,
        a: Operand,
    },
    /// One where the source is zero.
    LogicalNot {
        d: Reg,
        a: Operand,
    },
    ShiftLeft {
        bits: u32,
        d: Reg,
        sources: [Operand; 2],
    },
    ShiftRight {
        bits: u32,
        signed: bool,
        d: Reg,
        sources: [Operand; 2],
    },
    /// Any function of three bits, by its truth table.
    Lookup {
        table: u8,
        d: Reg,
        sources: [Operand; 3],
    },
    /// A word of the double word `b:a` shifted by `c`.
    Funnel {
        left: bool,
        clamp: bool,
        d: Reg,
        sources: [Operand; 3],
    },
    Predicates {
        operation: Binary,
        d: Predicate,
        sources: [PredicateOperand; 2],
    },
    NotPredicate {
        d: Predicate,
        a: PredicateOperand,
    },
}

/// An operation on two bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Binary {
    And,
    Or,
    Xor,
}

const BITS: [Type; 3] = [Type::B16, Type::B32, Type::B64];

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Logic, ParseErrorKind> {
    match s.head() {
        "and" => binary(s, Binary::And),
        "or" => binary(s, Binary::Or),
        "xor" => binary(s, Binary::Xor),
        "not" if s.take("pred") => Ok(Logic::NotPredicate { d: s.predicate()?, a: s.predicate_source()? }),
        "not" => {
            let ty = s.ty_of(&BITS)?;
            Ok(Logic::Not { bits: ty.bits(), d: s.destination(ty)?, a: s.source(ty)? })
        }
        "cnot" => {
            let ty = s.ty_of(&BITS)?;
            Ok(Logic::LogicalNot { d: s.destination(ty)?, a: s.source(ty)? })
        }
        "shl" => {
            let ty = s.ty_of(&BITS)?;
            Ok(Logic::ShiftLeft {
                bits: ty.bits(),
                d: s.destination(ty)?,
                sources: [s.source(ty)?, s.source(Type::U32)?],
            })
        }
        "shr" => {
            let ty = s.ty()?;
            if !ty.is_integer() || ty.bits() == 8 {
                return Err(s.unsupported());
            }
            Ok(Logic::ShiftRight {
                bits: ty.bits(),
                signed: ty.is_signed(),
                d: s.destination(ty)?,
                sources: [s.source(ty)?, s.source(Type::U32)?],
            })
        }
        "lop3" => {
            s.require("b32")?;
            let d = s.destination(Type::B32)?;
            let sources = [s.source(Type::B32)?, s.source(Type::B32)?, s.source(Type::B32)?];
            let table =
                u8::try_from(s.literal()?).map_err(|_| ParseErrorKind::WrongOperand("an eight-bit truth table"))?;
            Ok(Logic::Lookup { table, d, sources })
        }
        "shf" => {
            let left = s.select(&[("l", true), ("r", false)], "a direction")?;
            let clamp = s.select(&[("clamp", true), ("wrap", false)], "clamp or wrap")?;
            s.require("b32")?;
            Ok(Logic::Funnel {
                left,
                clamp,
                d: s.destination(Type::B32)?,
                sources: [s.source(Type::B32)?, s.source(Type::B32)?, s.source(Type::U32)?],
            })
        }
        _ => Err(s.unsupported()),
    }
}

fn binary(s: &mut Statement<'_, '_>, operation: Binary) -> Result<Logic, ParseErrorKind> {
    if s.take("pred") {
        return Ok(Logic::Predicates {
            operation,
            d: s.predicate()?,
            sources: [s.predicate_source()?, s.predicate_source()?],
        });
    }
    let ty = s.ty_of(&BITS)?;
    Ok(Logic::Binary { operation, d: s.destination(ty)?, sources: [s.source(ty)?, s.source(ty)?] })
}

impl Binary {
    #[inline]
    pub(crate) fn masks(self, a: Mask, b: Mask) -> Mask {
        match self {
            Binary::And => a & b,
            Binary::Or => a | b,
            Binary::Xor => a ^ b,
        }
    }
}

impl Logic {
    #[inline]
    pub(crate) fn execute(&self, r: &mut Registers, mask: Mask) {
        match *self {
            Logic::Binary { operation, d, sources } => match operation {
                Binary::And => r.map2(d, sources, mask, |a, b| a & b),
                Binary::Or => r.map2(d, sources, mask, |a, b| a | b),
                Binary::Xor => r.map2(d, sources, mask, |a, b| a ^ b),
            },
            Logic::Not { bits, d, a } => {
                let keep = low_bits(bits);
                r.map1(d, a, mask, |a| !a & keep);
            }
            Logic::LogicalNot { d, a } => r.map1(d, a, mask, |a| u64::from(a == 0)),
            Logic::ShiftLeft { bits, d, sources } => {
                let keep = low_bits(bits);
                r.map2(d, sources, mask, |a, n| if n >= u64::from(bits) { 0 } else { (a << n) & keep });
            }
            Logic::ShiftRight { bits, signed, d, sources } => {
                let keep = low_bits(bits);
                if signed {
                    r.map2(d, sources, mask, |a, n| {
                        let n = n.min(u64::from(bits) - 1);
                        ((sign_extend(a, bits) as i64) >> n) as u64 & keep
                    });
                } else {
                    r.map2(d, sources, mask, |a, n| if n >= u64::from(bits) { 0 } else { a >> n });
                }
            }
            Logic::Lookup { table, d, sources } => {
                r.map3(d, sources, mask, |a, b, c| {
                    let select = |bit: u8, x: u64, n: u8| if n & bit != 0 { x } else { !x };
                    (0..8u8)
                        .filter(|n| table >> n & 1 == 1)
                        .fold(0, |out, n| out | (select(4, a, n) & select(2, b, n) & select(1, c, n)))
                        & low_bits(32)
                });
            }
            Logic::Funnel { left, clamp, d, sources } => r.map3(d, sources, mask, |a, b, n| {
                let n = if clamp { n.min(32) } else { n & 31 };
                let word = b << 32 | a;
                let out = if left { word << n >> 32 } else { word >> n };
                // A left shift by 32 moves the low word into the high half.
                out & low_bits(32)
            }),
            Logic::Predicates { operation, d, sources: [a, b] } => {
                let bits = operation.masks(r.predicate(a), r.predicate(b));
                r.set_predicate(d, bits, mask);
            }
            Logic::NotPredicate { d, a } => {
                let bits = !r.predicate(a);
                r.set_predicate(d, bits, mask);
            }
        }
    }
}
