//! Collectives between the ranks of a layer.
//!
//! There is one kind: every rank brings a part and makes one block of the result from all parts. What the parts are and
//! how they combine is a [`Combine`], of which each operator has its own; how they travel is a transport, [`Local`].

mod local;
mod merge;
mod round;

pub use local::Local;

pub(crate) use local::{Pending, Turn};
pub(crate) use merge::{Finish, MergeRows, Merged};

use crate::Result;
use crate::buffer::SharedPointer;
use std::ops::Range;
use std::sync::Arc;

/// What a rank has communicated so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Points at which the rank waited for all others.
    pub barriers: u64,
    /// Collectives launched.
    pub launches: u64,
    /// Bytes that the rank contributed.
    pub bytes: u64,
}

/// How the parts of all ranks become a result.
pub(crate) trait Combine {
    /// What a rank brings.
    type Part: Send + Sync + 'static;
    /// What a rank makes of all parts; the other ranks get it too.
    type Block: Send + Sync + 'static;
    /// Memory that all ranks fill together.
    type Output: Send + Sync + 'static;

    /// Fresh memory to fill, if there is any; the first rank is asked.
    fn output(&self) -> Option<Self::Output>;

    /// Where the memory begins; asked for once, while nobody uses it.
    fn address(output: &mut Self::Output) -> *mut u8;

    /// The block of a rank from the parts in the order of ranks. Of the output it writes what belongs to its block, which
    /// nobody else reads or writes before all ranks are done.
    fn block(&self, seat: Seat, parts: Vec<Arc<Self::Part>>, output: Option<SharedPointer<u8>>) -> Result<Self::Block>;
}

/// The outcome of a collective, the same on all ranks.
pub(crate) struct Outcome<B, O> {
    /// In the order of ranks.
    pub(crate) blocks: Vec<Arc<B>>,
    /// Filled, if there was one.
    pub(crate) output: Option<Arc<O>>,
}

/// A place in a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

impl Seat {
    /// Tokens of this rank's block: whole panels, split as evenly as they go.
    pub(crate) fn share(self, tokens: usize, panel: usize) -> Range<usize> {
        let panels = tokens.div_ceil(panel);
        let bound = |r: usize| (r * (panels / self.size) + r.min(panels % self.size)) * panel;
        bound(self.rank).min(tokens)..bound(self.rank + 1).min(tokens)
    }
}
