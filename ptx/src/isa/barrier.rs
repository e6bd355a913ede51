//! Barriers of blocks and warps: bar, barrier.

use super::types::Type;
use super::{Gate, Operand};
use crate::error::ParseErrorKind;
use crate::machine::{Arrival, Context, Fault, Mask, Warp, lanes};
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
    },
    /// Orders the memory accesses of lanes of one warp.
    Warp { members: Operand },
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Barrier, ParseErrorKind> {
    let mut aligned = s.head() == "bar";
    if s.take("warp") {
        s.require("sync")?;
        return Ok(Barrier::Warp {
            members: s.source(Type::B32)?,
        });
    }
    s.take("cta");
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
    Ok(Barrier::Block {
        id,
        threads,
        waits,
        aligned,
    })
}

impl Barrier {
    pub(crate) fn gate(&self) -> Gate {
        match *self {
            Barrier::Block { aligned: true, .. } => Gate::Launched,
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

    pub(crate) fn execute(
        &self,
        warp: &mut Warp,
        context: &mut Context<'_, '_>,
        mask: Mask,
    ) -> Result<(), Fault> {
        let Barrier::Block {
            id, threads, waits, ..
        } = *self
        else {
            // Accesses before and after this step are in order for all lanes.
            warp.clock.tick();
            return Ok(());
        };
        let arrival = Arrival {
            lanes: mask,
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

/// The value of an operand that must be the same in all lanes.
fn uniform(warp: &Warp, operand: Operand, mask: Mask) -> Result<u64, Fault> {
    let first = warp.registers.lane(operand, mask.trailing_zeros() as usize);
    match lanes(mask).find(|&lane| warp.registers.lane(operand, lane) != first) {
        None => Ok(first),
        Some(lane) => Err(Fault::Illegal {
            rule: "the operands of a barrier differ between lanes of a warp",
            lane,
        }),
    }
}
