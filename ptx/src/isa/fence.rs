//! Fences, and hints that change nothing.

use super::types::Type;
use crate::check::{Scope, SyncTable};
use crate::error::ParseErrorKind;
use crate::machine::Warp;
use crate::syntax::Statement;

/// A fence, or a hint to the hardware.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fence {
    Fence(Scope),
    Hint,
}

/// Memory ordering of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Semantics {
    /// A plain access, which may race.
    Weak,
    /// Races with plain accesses only.
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}

/// Consumes a scope.
pub(super) fn scope_of(s: &mut Statement<'_, '_>) -> Option<Scope> {
    s.choose(&[("cta", Scope::Block), ("gpu", Scope::Device), ("gl", Scope::Device), ("sys", Scope::Device)])
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Fence, ParseErrorKind> {
    match s.head() {
        "membar" => {}
        "fence" => {
            s.choose(&[("sc", ()), ("acq_rel", ())]);
        }
        "prefetch" => {
            s.take("global");
            s.select(&[("L1", ()), ("L2", ())], "a cache level")?;
            s.address()?;
            return Ok(Fence::Hint);
        }
        "nanosleep" => {
            s.require("u32")?;
            s.source(Type::U32)?;
            return Ok(Fence::Hint);
        }
        _ => return Err(s.unsupported()),
    }
    match scope_of(s) {
        Some(scope) => Ok(Fence::Fence(scope)),
        None => Err(s.unsupported()),
    }
}

impl Fence {
    pub(crate) fn execute(self, warp: &mut Warp) {
        if let Fence::Fence(scope) = self {
            SyncTable::fence(&mut warp.clock, &mut warp.fences, scope);
        }
    }
}
