//! Asynchronous copies from global to shared memory: cp.async.

use super::load_store::{addresses, cache_hints};
use super::types::Type;
use super::{Address, Operand, PredicateOperand};
use crate::check::Accessor;
use crate::error::{ParseErrorKind, Space};
use crate::machine::{Access, Batch, Context, Fault, Mask, Strength, WARP, Warp, lanes};
use crate::memory::Refusal;
use crate::report::Class;
use crate::syntax::Statement;

/// A copy, or the grouping of and waiting for copies.
#[derive(Clone, Debug)]
pub(crate) enum AsyncCopy {
    Copy {
        bytes: usize,
        to: Address,
        from: Address,
        /// Bytes to read; the rest is filled with zeros.
        take: Option<Operand>,
        /// Where it holds, nothing is read and all is filled with zeros.
        ignore: Option<PredicateOperand>,
    },
    Commit,
    /// Waits until at most `keep` groups are in flight.
    Wait {
        keep: u64,
    },
    /// Commits and waits for everything.
    WaitAll,
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<AsyncCopy, ParseErrorKind> {
    s.require("async")?;
    match s.peek() {
        Some("commit_group") => {
            s.require("commit_group")?;
            Ok(AsyncCopy::Commit)
        }
        Some("wait_group") => {
            s.require("wait_group")?;
            Ok(AsyncCopy::Wait { keep: s.literal()? })
        }
        Some("wait_all") => {
            s.require("wait_all")?;
            Ok(AsyncCopy::WaitAll)
        }
        _ => copy(s),
    }
}

fn copy(s: &mut Statement<'_, '_>) -> Result<AsyncCopy, ParseErrorKind> {
    let through_l1 = s.select(&[("ca", true), ("cg", false)], "ca or cg")?;
    s.select(&[("shared", ()), ("shared::cta", ())], "shared")?;
    s.require("global")?;
    let policy = cache_hints(s);
    let (to, from) = (s.address()?, s.address()?);
    let bytes = match (s.literal()?, through_l1) {
        (16, _) => 16,
        (8, true) => 8,
        (4, true) => 4,
        _ => return Err(ParseErrorKind::WrongOperand("a copy size of that kind")),
    };
    let (mut take, mut ignore) = (None, None);
    if s.remaining() > usize::from(policy) {
        if s.next_is_predicate() {
            ignore = Some(s.predicate_source()?);
        } else {
            take = Some(s.source(Type::U32)?);
        }
    }
    if policy {
        s.source(Type::B64)?;
    }
    Ok(AsyncCopy::Copy { bytes, to, from, take, ignore })
}

impl AsyncCopy {
    pub(crate) fn class(&self) -> Class {
        match self {
            AsyncCopy::Copy { .. } => Class::AsyncCopy,
            _ => Class::AsyncWait,
        }
    }

    pub(crate) fn execute(&self, warp: &mut Warp, context: &mut Context<'_, '_>, mask: Mask) -> Result<(), Fault> {
        match self {
            AsyncCopy::Copy { .. } => self.issue(warp, context, mask)?,
            AsyncCopy::Commit => warp.copies.commit(mask),
            AsyncCopy::Wait { keep } => warp.copies.wait(context, &warp.clock, mask, *keep),
            AsyncCopy::WaitAll => {
                warp.copies.commit(mask);
                warp.copies.wait(context, &warp.clock, mask, 0);
            }
        }
        Ok(())
    }

    fn issue(&self, warp: &mut Warp, context: &mut Context<'_, '_>, mask: Mask) -> Result<(), Fault> {
        let AsyncCopy::Copy { bytes, to, from, take, ignore } = self else {
            return Ok(());
        };
        let bytes = *bytes;
        let to = addresses(&warp.registers, *to);
        let from = addresses(&warp.registers, *from);
        let ignored = ignore.map_or(0, |p| warp.registers.predicate(p));
        let mut batch = Batch {
            instruction: context.instruction,
            bytes,
            open: mask,
            in_flight: mask,
            to: [0; WARP],
            from: [(0, 0); WARP],
            take: [0; WARP],
            group: warp.copies.groups(),
        };
        let mut reading = 0;
        for lane in lanes(mask) {
            let take = match take {
                _ if ignored >> lane & 1 == 1 => 0,
                Some(take) => warp.registers.lane(*take, lane) as u32 as usize,
                None => bytes,
            };
            if take > bytes {
                return Err(Fault::Illegal { rule: "an asynchronous copy reads more than it writes", lane });
            }
            let access = Access { space: Space::Shared, address: to[lane], bytes, lane, strength: Strength::Weak };
            batch.to[lane] = begin_write(warp, context, &access)?;
            batch.from[lane] = check_source(warp, context, lane, from[lane], bytes, take)?;
            batch.take[lane] = take;
            reading |= Mask::from(take > 0) << lane;
        }
        let (recorder, at) = (&mut context.grid.recorder, context.instruction);
        recorder.shared_access(at, &to, mask, bytes);
        recorder.global_access(at, &from, reading, bytes);
        warp.copies.push(batch);
        Ok(())
    }
}

/// Marks the destination as being written until the wait.
fn begin_write(warp: &Warp, context: &mut Context<'_, '_>, access: &Access) -> Result<usize, Fault> {
    let located = context.block.shared.locate(access.address, access.bytes);
    let offset = located.map_err(|refusal| access.refused(refusal))?;
    if context.grid.checks.races {
        let lane = Some(access.lane);
        let accessor = Accessor::new(&warp.clock, lane, context.instruction).pending();
        let conflict = context.block.shadow.write(offset, access.bytes, accessor);
        context.report_conflict(access, accessor, conflict, true);
    }
    Ok(offset)
}

/// Checks the source, of which only the first `take` bytes are read.
fn check_source(
    warp: &Warp,
    context: &mut Context<'_, '_>,
    lane: usize,
    address: u64,
    bytes: usize,
    take: usize,
) -> Result<(usize, usize), Fault> {
    let mut access = Access { space: Space::Global, address, bytes, lane, strength: Strength::Weak };
    if !address.is_multiple_of(bytes as u64) {
        return Err(access.refused(Refusal::Misaligned));
    }
    // Any number of bytes is a few aligned accesses of falling size.
    let mut source = None;
    for size in [16, 8, 4, 2, 1].into_iter().filter(|size| take & size != 0) {
        access.bytes = size;
        let place = context.check_global_read(warp, &access)?;
        source.get_or_insert(place);
        access.address += size as u64;
    }
    Ok(source.unwrap_or((0, 0)))
}
