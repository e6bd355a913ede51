//! How much memory the passes of one shard take besides inputs, outputs and saved values.

use super::Cpu;
use super::family::Family;
use super::s_pass::{chunks_together, slices, slices_at_once};
use super::t_pass;
use crate::passes::{Demand, Extent};

/// What strings and buffers that are too small to be regions take.
const SMALL: usize = 64 << 10;

/// Sizes in bytes.
struct Sizes<'a> {
    cpu: &'a Cpu,
    family: &'a Family,
    extent: Extent,
    demand: Demand,
    /// Padded H.
    width: usize,
}

/// The most that is in use at a time, in S, C1 or T, and what no region of memory that is kept from pass to pass holds: values
/// of tokens.
pub(super) fn working_set(cpu: &Cpu, family: &Family, extent: Extent, demand: Demand) -> usize {
    let sizes = Sizes { cpu, family, extent, demand, width: family.padded_hidden(extent.hidden) };
    let most = sizes.s_pass().max(sizes.c1()).max(if demand.dw { sizes.t_pass() } else { 0 });
    sizes.values() + most + SMALL
}

impl Sizes<'_> {
    fn panel(&self) -> usize {
        self.family.geometry.panel
    }

    fn padded(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(self.panel())
    }

    /// Values of tokens: row, target and three inputs of the finish program, its outputs twice, the pointer to a target row,
    /// reference and upstream gradient for pass T, loss and lse on their way; and weights of classes where targets are
    /// smoothed.
    fn values(&self) -> usize {
        let values = 5 + 2 * self.family.finish_kernel.bindings.outputs.len() + 2 + 2 + 3;
        let classes = if self.family.logits_operand.is_some() { self.extent.classes } else { 0 };
        (self.padded(self.extent.tokens) * values + classes) * 4
    }

    /// Reference and statistics of some tokens.
    fn state(&self, tokens: usize) -> usize {
        (1 + self.family.identities().len()) * self.padded(tokens) * 4
    }

    /// A of some tokens.
    fn product(&self, tokens: usize) -> usize {
        if self.demand.dx { self.padded(tokens) * self.width * 4 } else { 0 }
    }

    /// Tokens of A₂, if there is one.
    fn operand_tokens(&self) -> usize {
        match self.family.logits_operand {
            Some(operand) if operand.kernel.bindings.shared => self.extent.tokens.min(1),
            Some(_) => self.extent.tokens,
            None => 0,
        }
    }

    /// One walk over the vocabulary, with the rows that it leaves.
    fn walk(&self, tokens: usize, filter: bool) -> usize {
        let (family, threads, geometry) = (self.family, self.cpu.threads(), &self.family.geometry);
        let (panels, width) = (tokens.div_ceil(self.panel()), self.width);
        let x = self.padded(tokens) * width * geometry.packed;
        let chunk = family.chunk * width * (geometry.packed + geometry.packed_transpose);
        let chunks = self.extent.classes.div_ceil(family.chunk);
        let slices =
            if filter { 1 } else { slices(self.extent.classes, family.chunk, panels, geometry.panel * width * 4) };
        let (packed, share) = if slices > 1 {
            (chunk * threads, panels)
        } else {
            (chunk * chunks_together(threads, chunk, chunks), panels.div_ceil(threads))
        };
        let largest = share.min(self.cpu.blocking(family, self.extent.hidden).panels);
        let unpacked = if family.unpack_accumulator.is_some() { geometry.panel * width * 4 } else { 0 };
        let scratch = ((geometry.softmax_scratch)(family.chunk, largest) + unpacked) * threads;
        let lost = self.family.logits_softmax.kernel.bindings.sums.len() * self.padded(tokens) * 4;
        let rows = (self.state(tokens) + self.product(tokens) + lost) * slices_at_once(threads, slices);
        x + packed + scratch + rows + self.state(tokens)
    }

    /// Rows after pass S: state, A, A₂, and the rows of W of targets.
    fn rows(&self) -> usize {
        let Extent { tokens, hidden, .. } = self.extent;
        let targets = if self.demand.dx { tokens * (4 + hidden * self.family.dtype.size()) } else { 0 };
        self.state(tokens) + self.product(tokens) + self.product(self.operand_tokens()) + targets
    }

    fn s_pass(&self) -> usize {
        let (tokens, operand) = (self.extent.tokens, self.operand_tokens());
        let first = self.walk(tokens, self.demand.filter);
        let second = if self.demand.dx && operand > 0 {
            self.state(tokens) + self.product(tokens) + self.walk(operand, false)
        } else {
            0
        };
        first.max(second).max(self.rows())
    }

    /// Later barriers of algorithms one and naive walk again, beside the merged state and that of the first walk. More than
    /// one rank copy the rows of their block before they merge them.
    fn c1(&self) -> usize {
        let tokens = self.extent.tokens;
        let again = if self.demand.barriers > 1 { 3 * self.state(tokens) + self.s_pass() } else { 0 };
        let block = match self.demand.ranks {
            1 => 0,
            ranks => tokens.div_ceil(self.panel()).div_ceil(ranks) * self.panel(),
        };
        let copy = self.state(block) + self.product(block) + self.product(block.min(self.operand_tokens()));
        again.max(self.rows() + copy)
    }

    fn t_pass(&self) -> usize {
        let Extent { tokens, hidden, .. } = self.extent;
        t_pass::working_set(self.cpu, self.family, tokens, hidden, self.demand.saved)
    }
}
