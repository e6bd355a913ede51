//! Moves between registers, packing and address conversion.

use super::types::{Type, low_bits};
use super::{Operand, Predicate, PredicateOperand, Reg};
use crate::error::{ParseErrorKind, Space};
use crate::machine::{Mask, Registers};
use crate::memory::window;
use crate::syntax::Statement;

/// A move.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    Copy {
        d: Reg,
        a: Operand,
    },
    Predicate {
        d: Predicate,
        a: PredicateOperand,
    },
    /// Several values to one register, the first lowest.
    Pack {
        bits: u32,
        d: Reg,
        parts: Vec<Operand>,
    },
    /// One register to several.
    Unpack {
        bits: u32,
        parts: Vec<Reg>,
        a: Operand,
    },
    /// An address of a space to a generic one, or back if `subtract`.
    Generic {
        window: u64,
        subtract: bool,
        bits: u32,
        d: Reg,
        a: Operand,
    },
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Move, ParseErrorKind> {
    match s.head() {
        "mov" if s.take("pred") => Ok(Move::Predicate { d: s.predicate()?, a: s.predicate_source()? }),
        "mov" => decode_move(s),
        "cvta" => {
            let subtract = s.take("to");
            let window = s.select(
                &[
                    ("global", 0),
                    ("shared", window(Space::Shared)),
                    ("shared::cta", window(Space::Shared)),
                    ("local", window(Space::Local)),
                    ("param", window(Space::Param)),
                ],
                "a state space",
            )?;
            let ty = s.ty_of(&[Type::U32, Type::U64])?;
            Ok(Move::Generic { window, subtract, bits: ty.bits(), d: s.destination(ty)?, a: s.source(ty)? })
        }
        // Policies steer caches, which this machine does not have.
        "createpolicy" => {
            s.require("fractional")?;
            let policies = [
                ("L2::evict_last", ()),
                ("L2::evict_first", ()),
                ("L2::evict_normal", ()),
                ("L2::evict_unchanged", ()),
            ];
            s.select(&policies, "a policy")?;
            s.require("b64")?;
            let d = s.destination(Type::B64)?;
            if s.remaining() > 0 {
                s.source(Type::F32)?;
            }
            Ok(Move::Copy { d, a: Operand::Imm(0) })
        }
        _ => Err(s.unsupported()),
    }
}

fn decode_move(s: &mut Statement<'_, '_>) -> Result<Move, ParseErrorKind> {
    let ty = s.ty()?;
    if ty.bits() < 16 {
        return Err(s.unsupported());
    }
    if s.next_is_vector() {
        let part = half(ty)?;
        let parts: Vec<Reg> = s.destinations(part)?.into_iter().map(|(r, _)| r).collect();
        let bits = ty.bits() / parts.len().max(1) as u32;
        check_parts(parts.len(), bits)?;
        return Ok(Move::Unpack { bits, parts, a: s.source(ty)? });
    }
    let d = s.destination(ty)?;
    if s.next_is_vector() {
        let parts = s.sources(half(ty)?)?;
        let bits = ty.bits() / parts.len().max(1) as u32;
        check_parts(parts.len(), bits)?;
        return Ok(Move::Pack { bits, d, parts });
    }
    Ok(Move::Copy { d, a: s.source(ty)? })
}

/// The narrowest part that a vector of `ty` may have.
fn half(ty: Type) -> Result<Type, ParseErrorKind> {
    match ty.bits() {
        64 | 32 => Ok(Type::B16),
        _ => Err(ParseErrorKind::WrongOperand("a scalar")),
    }
}

fn check_parts(count: usize, bits: u32) -> Result<(), ParseErrorKind> {
    match (count, bits) {
        (2, 32) | (2, 16) | (4, 16) => Ok(()),
        _ => Err(ParseErrorKind::WrongOperand("a vector of that length")),
    }
}

impl Move {
    #[inline]
    pub(crate) fn execute(&self, r: &mut Registers, mask: Mask) {
        match self {
            Move::Copy { d, a } => {
                let values = r.get(*a);
                r.set(*d, &values, mask);
            }
            Move::Predicate { d, a } => {
                let bits = r.predicate(*a);
                r.set_predicate(*d, bits, mask);
            }
            Move::Pack { bits, d, parts } => {
                let mut out = [0; 32];
                for (i, part) in parts.iter().enumerate() {
                    let values = r.get(*part);
                    let shift = bits * i as u32;
                    for (o, v) in out.iter_mut().zip(&values) {
                        *o |= (v & low_bits(*bits)) << shift;
                    }
                }
                r.set(*d, &out, mask);
            }
            Move::Unpack { bits, parts, a } => {
                let values = r.get(*a);
                for (i, part) in parts.iter().enumerate() {
                    let shift = bits * i as u32;
                    let out = values.map(|v| v >> shift & low_bits(*bits));
                    r.set(*part, &out, mask);
                }
            }
            Move::Generic { window, subtract, bits, d, a } => {
                let (window, keep) = (*window, low_bits(*bits));
                if *subtract {
                    r.map1(*d, *a, mask, |a| a.wrapping_sub(window) & keep);
                } else {
                    r.map1(*d, *a, mask, |a| a.wrapping_add(window) & keep);
                }
            }
        }
    }
}
