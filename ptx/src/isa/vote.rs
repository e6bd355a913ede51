//! Agreement between lanes: vote, activemask, match, redux.

use super::types::{Type, low_bits};
use super::{Gate, Operand, Predicate, PredicateOperand, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Mask, Registers, lanes};
use crate::syntax::Statement;

/// A result that depends on values of several lanes.
#[derive(Clone, Debug)]
pub(crate) enum Vote {
    /// Whether a predicate holds in all, any or equally many lanes.
    Test { quorum: Quorum, p: Predicate, a: PredicateOperand, members: Operand },
    /// The lanes in which a predicate holds.
    Ballot { d: Reg, a: PredicateOperand, members: Operand },
    /// The lanes that run together.
    ActiveMask { d: Reg },
    /// The lanes that have the same value.
    MatchAny { d: Reg, a: Operand, members: Operand },
    /// The members if all have the same value, else zero.
    MatchAll { d: Reg, p: Option<Predicate>, a: Operand, members: Operand },
    /// A sum, extremum or bitwise combination over the lanes.
    Reduce { reduction: Reduction, d: Reg, a: Operand, members: Operand },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Quorum {
    All,
    Any,
    Uniform,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reduction {
    Add,
    MinUnsigned,
    MaxUnsigned,
    MinSigned,
    MaxSigned,
    And,
    Or,
    Xor,
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Vote, ParseErrorKind> {
    match s.head() {
        "activemask" => {
            s.require("b32")?;
            Ok(Vote::ActiveMask { d: s.destination(Type::B32)? })
        }
        "vote" => decode_vote(s),
        "match" => decode_match(s),
        "redux" => decode_reduction(s),
        _ => Err(s.unsupported()),
    }
}

fn decode_vote(s: &mut Statement<'_, '_>) -> Result<Vote, ParseErrorKind> {
    s.require("sync")?;
    if s.take("ballot") {
        s.require("b32")?;
        return Ok(Vote::Ballot {
            d: s.destination(Type::B32)?,
            a: s.predicate_source()?,
            members: s.source(Type::B32)?,
        });
    }
    let quorums = [("all", Quorum::All), ("any", Quorum::Any), ("uni", Quorum::Uniform)];
    let quorum = s.select(&quorums, "a quorum")?;
    s.require("pred")?;
    Ok(Vote::Test { quorum, p: s.predicate()?, a: s.predicate_source()?, members: s.source(Type::B32)? })
}

fn decode_match(s: &mut Statement<'_, '_>) -> Result<Vote, ParseErrorKind> {
    let all = s.select(&[("all", true), ("any", false)], "any or all")?;
    s.require("sync")?;
    let ty = s.ty_of(&[Type::B32, Type::B64])?;
    if all {
        let (d, p) = s.destination_with_predicate(Type::B32)?;
        return Ok(Vote::MatchAll { d, p, a: s.source(ty)?, members: s.source(Type::B32)? });
    }
    Ok(Vote::MatchAny { d: s.destination(Type::B32)?, a: s.source(ty)?, members: s.source(Type::B32)? })
}

fn decode_reduction(s: &mut Statement<'_, '_>) -> Result<Vote, ParseErrorKind> {
    s.require("sync")?;
    let name = s.modifier("an operation")?;
    let ty = s.ty_of(&[Type::U32, Type::S32, Type::B32])?;
    let reduction = match (name, ty) {
        ("add", Type::U32 | Type::S32) => Reduction::Add,
        ("min", Type::U32) => Reduction::MinUnsigned,
        ("max", Type::U32) => Reduction::MaxUnsigned,
        ("min", Type::S32) => Reduction::MinSigned,
        ("max", Type::S32) => Reduction::MaxSigned,
        ("and", Type::B32) => Reduction::And,
        ("or", Type::B32) => Reduction::Or,
        ("xor", Type::B32) => Reduction::Xor,
        _ => return Err(s.unsupported()),
    };
    Ok(Vote::Reduce { reduction, d: s.destination(Type::B32)?, a: s.source(Type::B32)?, members: s.source(Type::B32)? })
}

impl Reduction {
    fn combine(self, x: u32, y: u32) -> u32 {
        match self {
            Reduction::Add => x.wrapping_add(y),
            Reduction::MinUnsigned => x.min(y),
            Reduction::MaxUnsigned => x.max(y),
            Reduction::MinSigned => (x as i32).min(y as i32) as u32,
            Reduction::MaxSigned => (x as i32).max(y as i32) as u32,
            Reduction::And => x & y,
            Reduction::Or => x | y,
            Reduction::Xor => x ^ y,
        }
    }
}

impl Vote {
    pub(crate) fn gate(&self) -> Gate {
        match *self {
            Vote::ActiveMask { .. } => Gate::None,
            Vote::Test { members, .. }
            | Vote::Ballot { members, .. }
            | Vote::MatchAny { members, .. }
            | Vote::MatchAll { members, .. }
            | Vote::Reduce { members, .. } => Gate::Members(members),
        }
    }

    pub(crate) fn execute(&self, r: &mut Registers, mask: Mask) {
        match *self {
            Vote::Test { quorum, p, a, .. } => {
                let yes = r.predicate(a) & mask;
                let agreed = match quorum {
                    Quorum::All => yes == mask,
                    Quorum::Any => yes != 0,
                    Quorum::Uniform => yes == mask || yes == 0,
                };
                r.set_predicate(p, if agreed { Mask::MAX } else { 0 }, mask);
            }
            Vote::Ballot { d, a, .. } => {
                let yes = r.predicate(a) & mask;
                r.set(d, &[u64::from(yes); 32], mask);
            }
            Vote::ActiveMask { d } => r.set(d, &[u64::from(mask); 32], mask),
            Vote::MatchAny { d, a, .. } => {
                let a = r.get(a);
                let out = a.map(|value| {
                    let same = lanes(mask).filter(|&l| a[l] == value);
                    same.fold(0, |bits, l| bits | 1 << l)
                });
                r.set(d, &out, mask);
            }
            Vote::MatchAll { d, p, a, .. } => {
                let a = r.get(a);
                let first = a[mask.trailing_zeros() as usize];
                let same = lanes(mask).all(|l| a[l] == first);
                let out = if same { mask } else { 0 };
                r.set(d, &[u64::from(out); 32], mask);
                if let Some(p) = p {
                    r.set_predicate(p, if same { Mask::MAX } else { 0 }, mask);
                }
            }
            Vote::Reduce { reduction, d, a, .. } => {
                let a = r.get(a);
                let values = lanes(mask).map(|l| (a[l] & low_bits(32)) as u32);
                let out = values.reduce(|x, y| reduction.combine(x, y)).unwrap_or(0);
                r.set(d, &[u64::from(out); 32], mask);
            }
        }
    }
}
