//! Atomic operations on memory: atom, red.

use rand::RngExt;

use super::fence::{Semantics, scope_of};
use super::load_store::{addresses, cache_hints, spaces};
use super::types::{Type, low_bits, sign_extend};
use super::{Address, Operand, Reg};
use crate::check::{Scope, SyncTable};
use crate::error::{ParseErrorKind, Space};
use crate::machine::{Access, Context, Fault, Mask, Strength, WARP, Warp};
use crate::syntax::Statement;

/// A read-modify-write of one element.
#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    space: Option<Space>,
    operation: Operation,
    ty: Type,
    semantics: Semantics,
    scope: Scope,
    /// Receives the old value; nothing for `red`.
    d: Option<Reg>,
    address: Address,
    b: Operand,
    c: Option<Operand>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareAndSwap,
    /// Up to a limit, then zero.
    Increment,
    /// Down from zero or from beyond a limit to the limit.
    Decrement,
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Atomic, ParseErrorKind> {
    let returns = s.head() == "atom";
    let semantics = s
        .choose(&[
            ("relaxed", Semantics::Relaxed),
            ("acquire", Semantics::Acquire),
            ("release", Semantics::Release),
            ("acq_rel", Semantics::AcquireRelease),
        ])
        .unwrap_or(Semantics::Relaxed);
    let scope = scope_of(s).unwrap_or(Scope::Device);
    let space = s.choose(&[("global", Space::Global), ("shared", Space::Shared), ("shared::cta", Space::Shared)]);
    let operations = [
        ("add", Operation::Add),
        ("min", Operation::Min),
        ("max", Operation::Max),
        ("and", Operation::And),
        ("or", Operation::Or),
        ("xor", Operation::Xor),
        ("exch", Operation::Exchange),
        ("cas", Operation::CompareAndSwap),
        ("inc", Operation::Increment),
        ("dec", Operation::Decrement),
    ];
    let operation = s.select(&operations, "an operation")?;
    if !returns && matches!(operation, Operation::Exchange | Operation::CompareAndSwap) {
        return Err(s.unsupported());
    }
    let policy = cache_hints(s);
    let ty = s.ty()?;
    let known = match operation {
        Operation::Add => {
            matches!(ty, Type::F32 | Type::F64 | Type::U32 | Type::U64 | Type::S32)
        }
        Operation::Min | Operation::Max => ty.is_integer() && !ty.is_bits() && ty.bits() >= 32,
        Operation::Increment | Operation::Decrement => ty == Type::U32,
        _ => matches!(ty, Type::B32 | Type::B64),
    };
    if !known {
        return Err(s.unsupported());
    }
    let d = match returns {
        true => Some(s.destination(ty)?),
        false => None,
    };
    let address = s.address()?;
    let b = s.source(ty)?;
    let c = match operation {
        Operation::CompareAndSwap => Some(s.source(ty)?),
        _ => None,
    };
    if policy {
        s.source(Type::B64)?;
    }
    Ok(Atomic { space, operation, ty, semantics, scope, d, address, b, c })
}

impl Atomic {
    pub(crate) fn execute(&self, warp: &mut Warp, context: &mut Context<'_, '_>, mask: Mask) -> Result<(), Fault> {
        let releases = matches!(self.semantics, Semantics::Release | Semantics::AcquireRelease);
        if releases {
            SyncTable::fence(&mut warp.clock, &mut warp.fences, self.scope);
        }
        let mut addresses = addresses(&warp.registers, self.address);
        let bytes = self.ty.bytes();
        // Lanes come in any order, which shows in sums of floats.
        let first = context.grid.rng.random_range(0..WARP);
        for (space, mask) in spaces(self.space, &mut addresses, mask) {
            let (recorder, at) = (&mut context.grid.recorder, context.instruction);
            match space {
                Space::Global => recorder.global_access(at, &addresses, mask, bytes),
                Space::Shared => recorder.shared_access(at, &addresses, mask, bytes),
                Space::Local | Space::Param => {}
            }
            let order = (0..WARP).map(|i| (i + first) % WARP);
            for lane in order.filter(|lane| mask >> lane & 1 == 1) {
                let access = Access { space, address: addresses[lane], bytes, lane, strength: Strength::Strong };
                self.element(warp, context, &access)?;
            }
        }
        if matches!(self.semantics, Semantics::Acquire | Semantics::AcquireRelease) {
            SyncTable::fence(&mut warp.clock, &mut warp.fences, self.scope);
        }
        Ok(())
    }

    fn element(&self, warp: &mut Warp, context: &mut Context<'_, '_>, access: &Access) -> Result<(), Fault> {
        if matches!(access.space, Space::Local | Space::Param) {
            return Err(Fault::Illegal { rule: "atomics work on global and shared memory only", lane: access.lane });
        }
        let old = context.load(warp, access)? as u64;
        let b = warp.registers.lane(self.b, access.lane);
        let c = self.c.map_or(0, |c| warp.registers.lane(c, access.lane));
        let new = self.combine(old, b, c) & low_bits(self.ty.bits());
        context.store(warp, access, u128::from(new))?;
        let block = (access.space == Space::Shared).then_some(context.block.linear);
        let place = (block, access.address);
        context.grid.sync.observe(place, &mut warp.fences);
        context.grid.sync.publish(place, &warp.fences);
        if let Some(d) = self.d {
            warp.registers.set_lane(d, access.lane, old);
        }
        Ok(())
    }

    fn combine(&self, old: u64, b: u64, c: u64) -> u64 {
        let signed = |x| sign_extend(x, self.ty.bits()) as i64;
        match (self.operation, self.ty) {
            (Operation::Add, Type::F32) => {
                let sum = f32::from_bits(old as u32) + f32::from_bits(b as u32);
                u64::from(sum.to_bits())
            }
            (Operation::Add, Type::F64) => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
            (Operation::Add, _) => old.wrapping_add(b),
            (Operation::Min, ty) if ty.is_signed() => signed(old).min(signed(b)) as u64,
            (Operation::Max, ty) if ty.is_signed() => signed(old).max(signed(b)) as u64,
            (Operation::Min, _) => old.min(b),
            (Operation::Max, _) => old.max(b),
            (Operation::And, _) => old & b,
            (Operation::Or, _) => old | b,
            (Operation::Xor, _) => old ^ b,
            (Operation::Exchange, _) => b,
            (Operation::CompareAndSwap, _) if old == b => c,
            (Operation::CompareAndSwap, _) => old,
            (Operation::Increment, _) if old >= b => 0,
            (Operation::Increment, _) => old + 1,
            (Operation::Decrement, _) if old == 0 || old > b => b,
            (Operation::Decrement, _) => old - 1,
        }
    }
}
