//! Barriers of blocks and warps: bar, barrier.

use super::types::Type;
use super::{Gate, Operand, Predicate, PredicateOperand, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Arrival, Context, Fault, Mask, Registers, Warp, lanes};
use crate::syntax::Statement;

/// A barrier.
#[derive(Clone, Debug)]
pub(crate) enum Barrier {
    /// One of the sixteen barriers of the block.
    Block {
        id: Operand,
        /// Threads that take part; nothing for the whole block.
        threads: Option<Operand>,
        /// False for `arrive`.
        waits: bool,
        /// Whether all threads of a warp must execute it together.
        aligned: bool,
        reduction: Option<Reduction>,
    },
    /// Orders the memory accesses of lanes of one warp.
    Warp { members: Operand },
}

/// A vote of all threads at a barrier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    tally: Tally,
    vote: PredicateOperand,
}

#[derive(Clone, Copy, Debug)]
enum Tally {
    /// How many voted yes.
    Count(Reg),
    /// Whether all did.
    All(Predicate),
    /// Whether any did.
    Any(Predicate),
}

/// Votes given at a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Votes {
    pub(crate) yes: u32,
    pub(crate) no: u32,
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Barrier, ParseErrorKind> {
    let mut aligned = s.head() == "bar";
    if s.take("warp") {
        s.require("sync")?;
        return Ok(Barrier::Warp { members: s.source(Type::B32)? });
    }
    s.take("cta");
    if s.take("red") {
        return decode_reduction(s, aligned);
    }
    let waits = s.select(&[("sync", true), ("arrive", false)], "sync or arrive")?;
    aligned |= s.take("aligned");
    let id = s.source(Type::U32)?;
    let threads = match s.remaining() {
        0 => None,
        _ => Some(s.source(Type::U32)?),
    };
    if !waits && threads.is_none() {
        return Err(ParseErrorKind::OperandCount);
    }
    Ok(Barrier::Block { id, threads, waits, aligned, reduction: None })
}

fn decode_reduction(s: &mut Statement<'_, '_>, mut aligned: bool) -> Result<Barrier, ParseErrorKind> {
    let operation = s.modifier("an operation")?;
    aligned |= s.take("aligned");
    let tally = match (operation, s.ty_of(&[Type::U32, Type::Pred])?) {
        ("popc", Type::U32) => Tally::Count(s.destination(Type::U32)?),
        ("and", Type::Pred) => Tally::All(s.predicate()?),
        ("or", Type::Pred) => Tally::Any(s.predicate()?),
        _ => return Err(s.unsupported()),
    };
    let id = s.source(Type::U32)?;
    let threads = match s.remaining() {
        0 | 1 => None,
        _ => Some(s.source(Type::U32)?),
    };
    let vote = s.predicate_source()?;
    Ok(Barrier::Block { id, threads, waits: true, aligned, reduction: Some(Reduction { tally, vote }) })
}

impl Barrier {
    pub(crate) fn is_aligned(&self) -> bool {
        matches!(self, Barrier::Block { aligned: true, .. })
    }

    pub(crate) fn gate(&self) -> Gate {
        match *self {
            Barrier::Block { aligned: true, .. } => Gate::Alive,
            Barrier::Block { .. } => Gate::None,
            Barrier::Warp { members } => Gate::Members(members),
        }
    }

    /// The operand that names the barrier of the block.
    pub(crate) fn id(&self) -> Option<Operand> {
        match *self {
            Barrier::Block { id, .. } => Some(id),
            Barrier::Warp { .. } => None,
        }
    }

    pub(crate) fn execute(&self, warp: &mut Warp, context: &mut Context<'_, '_>, mask: Mask) -> Result<(), Fault> {
        let Barrier::Block { id, threads, waits, reduction, .. } = *self else {
            // Accesses before and after this step are in order for all lanes.
            warp.clock.tick();
            return Ok(());
        };
        let yes = reduction.map_or(0, |r| warp.registers.predicate(r.vote) & mask);
        let arrival = Arrival {
            lanes: mask,
            votes: Votes { yes: yes.count_ones(), no: (mask & !yes).count_ones() },
            barrier: uniform(warp, id, mask)?,
            threads: match threads {
                Some(threads) => Some(uniform(warp, threads, mask)?),
                None => None,
            },
            waits,
        };
        context.block.barriers.arrive(warp, arrival)
    }
}

impl Barrier {
    /// Writes the result of a vote when the barrier lets lanes go on.
    pub(crate) fn finish(&self, registers: &mut Registers, mask: Mask, votes: Votes) {
        let Barrier::Block { reduction: Some(reduction), .. } = *self else {
            return;
        };
        let all = |truth: bool| if truth { Mask::MAX } else { 0 };
        match reduction.tally {
            Tally::Count(d) => registers.set(d, &[u64::from(votes.yes); 32], mask),
            Tally::All(p) => registers.set_predicate(p, all(votes.no == 0), mask),
            Tally::Any(p) => registers.set_predicate(p, all(votes.yes > 0), mask),
        }
    }
}

/// The value of an operand that must be the same in all lanes.
fn uniform(warp: &Warp, operand: Operand, mask: Mask) -> Result<u64, Fault> {
    let first = warp.registers.lane(operand, mask.trailing_zeros() as usize);
    match lanes(mask).find(|&lane| warp.registers.lane(operand, lane) != first) {
        None => Ok(first),
        Some(lane) => Err(Fault::Illegal { rule: "the operands of a barrier differ between lanes of a warp", lane }),
    }
}
