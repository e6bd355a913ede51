//! Which lanes of a warp a branch has sent on different ways that have not met again.
//!
//! The PTX ISA allows an instruction with `.aligned`, and `bar.sync` and its like, in conditional code only where all
//! threads of the warp evaluate the condition alike. Lanes that meet at such an instruction are no proof of that: one may
//! come to it in a later turn of a loop than the other.

use super::lanes::Mask;

/// Lanes that a branch has divided.
#[derive(Clone, Copy, Debug)]
struct Split {
    /// The branch.
    branch: u32,
    /// Where its ways meet.
    join: u32,
    /// Lanes that took it, and those that did not.
    sides: [Mask; 2],
    /// Lanes that have not come to `join`.
    inside: Mask,
}

/// The divided lanes of a warp.
#[derive(Clone, Debug, Default)]
pub(super) struct Divergence {
    splits: Vec<Split>,
    /// All lanes inside of a split.
    inside: Mask,
}

/// Lanes that run something in divergent code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divided {
    /// Those that are still inside.
    pub(super) here: Mask,
    /// Those of the other way that have not ended.
    pub(super) elsewhere: Mask,
    /// The branch that divided them.
    pub(super) branch: u32,
}

impl Divergence {
    /// A branch goes both ways.
    pub(super) fn split(&mut self, branch: u32, join: u32, sides: [Mask; 2]) {
        let inside = sides[0] | sides[1];
        self.splits.push(Split { branch, join, sides, inside });
        self.inside |= inside;
    }

    /// Lanes come to an instruction.
    #[inline]
    pub(super) fn arrive(&mut self, pc: u32, lanes: Mask) {
        if self.inside & lanes != 0 {
            self.leave(lanes, |split| split.join == pc);
        }
    }

    /// Lanes end.
    pub(super) fn exit(&mut self, lanes: Mask) {
        self.leave(lanes, |_| true);
    }

    fn leave(&mut self, lanes: Mask, what: impl Fn(&Split) -> bool) {
        self.splits.iter_mut().filter(|split| what(split)).for_each(|split| split.inside &= !lanes);
        self.splits.retain(|split| split.inside != 0);
        self.inside = self.splits.iter().fold(0, |all, split| all | split.inside);
    }

    /// Whether some of `lanes` are on one way from a branch while `alive` lanes took the other: the latest such branch.
    pub(super) fn among(&self, lanes: Mask, alive: Mask) -> Option<Divided> {
        if self.inside & lanes == 0 {
            return None;
        }
        self.splits.iter().rev().find_map(|split| {
            let here = split.inside & lanes;
            let [taken, other] = split.sides.map(|side| side & alive);
            if here == 0 || taken == 0 || other == 0 {
                return None;
            }
            // The side of the first lane against the other one.
            let first = 1 << here.trailing_zeros();
            let (own, elsewhere) = if split.sides[0] & first != 0 { (taken, other) } else { (other, taken) };
            Some(Divided { here: here & own, elsewhere, branch: split.branch })
        })
    }
}
