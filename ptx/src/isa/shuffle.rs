//! Exchange of registers between lanes: shfl.sync.

use super::types::Type;
use super::{Operand, Predicate, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Fault, Mask, Registers, lanes};
use crate::syntax::Statement;

/// A shuffle.
#[derive(Clone, Debug)]
pub(crate) struct Shuffle {
    mode: Mode,
    d: Reg,
    /// Whether the source lane was in range.
    p: Option<Predicate>,
    a: Operand,
    b: Operand,
    /// Clamp value in the low bits, segment mask from bit 8.
    c: Operand,
    pub(crate) members: Operand,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Up,
    Down,
    Butterfly,
    Index,
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Shuffle, ParseErrorKind> {
    s.require("sync")?;
    let modes = [("up", Mode::Up), ("down", Mode::Down), ("bfly", Mode::Butterfly), ("idx", Mode::Index)];
    let mode = s.select(&modes, "a mode")?;
    s.require("b32")?;
    let (d, p) = s.destination_with_predicate(Type::B32)?;
    Ok(Shuffle {
        mode,
        d,
        p,
        a: s.source(Type::B32)?,
        b: s.source(Type::B32)?,
        c: s.source(Type::B32)?,
        members: s.source(Type::B32)?,
    })
}

impl Mode {
    /// The source lane and whether it is in range, as the PTX ISA defines it.
    fn source(self, lane: u32, b: u32, c: u32) -> (u32, bool) {
        let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
        let low = lane & segment;
        let high = low | (clamp & !segment);
        let (source, valid) = match self {
            // Lanes below the shift have a negative source.
            Mode::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= high as i32),
            Mode::Down => (lane + b, lane + b <= high),
            Mode::Butterfly => (lane ^ b, lane ^ b <= high),
            Mode::Index => {
                let source = low | (b & !segment);
                (source, source <= high)
            }
        };
        if valid { (source, true) } else { (lane, false) }
    }
}

impl Shuffle {
    pub(crate) fn execute(&self, r: &mut Registers, mask: Mask) -> Result<(), Fault> {
        let (a, b, c) = (r.get(self.a), r.get(self.b), r.get(self.c));
        let mut out = a;
        let mut in_range = 0;
        for lane in lanes(mask) {
            let (source, valid) = self.mode.source(lane as u32, b[lane] as u32, c[lane] as u32);
            if mask >> source & 1 == 0 {
                return Err(Fault::Illegal { rule: "a shuffle reads a lane outside its member mask", lane });
            }
            out[lane] = a[source as usize];
            in_range |= Mask::from(valid) << lane;
        }
        r.set(self.d, &out, mask);
        if let Some(p) = self.p {
            r.set_predicate(p, in_range, mask);
        }
        Ok(())
    }
}
