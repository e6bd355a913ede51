//! What one shard knows about each token after pass S, on a device, and how two shards' knowledge merges.

use super::Gpu;
use super::buffer::Buffer;
use super::driver::Argument;
use super::kernels::Kernels;
use crate::Result;
use crate::passes::Block;
use std::ops::Range;
use std::sync::Arc;
use vocabfuse_codegen::KernelKind;
use vocabfuse_codegen::program::NO_REFERENCE;

/// Per-token state of one shard, or of several merged ones.
#[derive(Debug)]
pub struct Rows {
    /// Tokens that count.
    pub(super) tokens: usize,
    /// The reference, then the statistics in the order of the kernels: `[1 + statistics][tokens]`.
    pub(super) state: Buffer,
    /// A, `[tokens, width]`, if the pass accumulated it.
    pub(super) a: Option<Buffer>,
    /// Elements from one row of A, and of A₂, to the next.
    pub(super) width: usize,
    /// A₂, if the loss has one and the pass accumulated it: a row for each token, or one for all.
    pub(super) operand: Option<Operand>,
    /// Rows of W of the targets that the shard owns.
    pub(super) targets: Targets,
    /// Whether only the references say anything.
    references_only: bool,
}

/// B: rows of W, by token.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// Position in `rows` for each token, in rising order; negative where another shard owns the target.
    pub(super) index: Arc<Vec<i32>>,
    /// The rows, `width` elements apart.
    pub(super) rows: Option<Arc<Buffer>>,
}

/// A second product with W, which merges by plain sums.
#[derive(Debug)]
pub(super) struct Operand {
    pub(super) values: Buffer,
    /// Whether one row serves all tokens.
    pub(super) shared: bool,
}

/// A pointer to a buffer that may be missing.
pub(super) fn pointer(buffer: Option<&Buffer>) -> Argument {
    buffer.map_or(Argument::Pointer(0), |b| b.from(0))
}

impl Rows {
    /// Rows with room for their state, which nothing has written yet.
    pub(super) fn new(kernels: &Kernels, tokens: usize, width: usize) -> Result<Rows> {
        let parts = 1 + kernels.statistics().len();
        let state = Buffer::new(kernels.driver(), parts * tokens * 4)?;
        Ok(Rows { tokens, state, a: None, width, operand: None, targets: Targets::default(), references_only: false })
    }

    /// Rows that have seen no logit: the identity of merging.
    pub(super) fn identity(kernels: &Kernels, tokens: usize, width: usize) -> Result<Rows> {
        let mut values = vec![NO_REFERENCE; tokens];
        for (_, rule) in kernels.statistics() {
            values.extend(std::iter::repeat_n(rule.identity(), tokens));
        }
        let state = Buffer::with(kernels.driver(), &values)?;
        Ok(Rows { tokens, state, a: None, width, operand: None, targets: Targets::default(), references_only: false })
    }

    /// Bytes of one part of the state.
    pub(super) fn part(&self) -> usize {
        self.tokens * 4
    }

    /// Address of a part of the state: 0 for the reference, then the statistics.
    pub(super) fn state_part(&self, part: usize) -> Argument {
        self.state.from(part * self.part())
    }

    /// Bytes that a transport moves for these rows.
    pub(super) fn bytes(&self) -> usize {
        let state = if self.references_only { self.part() } else { self.state.bytes() };
        let operand = self.operand.as_ref().map_or(0, |o| o.values.bytes());
        state + operand + self.a.as_ref().map_or(0, Buffer::bytes) + self.targets.rows.as_ref().map_or(0, |b| b.bytes())
    }

    /// A copy of some tokens. Target rows stay with their shard.
    pub(super) fn block(&self, kernels: &Kernels, tokens: Range<usize>) -> Result<Rows> {
        let mut block = Rows::new(kernels, tokens.len(), self.width)?;
        for part in 0..=kernels.statistics().len() {
            let from = part * self.part() + tokens.start * 4;
            block.state.copy(part * block.part(), &self.state, from, block.part())?;
        }
        if let Some(a) = &self.a {
            let row = self.width * 4;
            let copy = Buffer::new(kernels.driver(), tokens.len() * row)?;
            copy.copy(0, a, tokens.start * row, tokens.len() * row)?;
            block.a = Some(copy);
        }
        if let Some(operand) = &self.operand {
            let row = self.width * 4;
            // Without tokens there is no shared row.
            let (first, rows) = if operand.shared {
                (0, usize::from(operand.values.bytes() > 0))
            } else {
                (tokens.start, tokens.len())
            };
            let values = Buffer::new(kernels.driver(), rows * row)?;
            values.copy(0, &operand.values, first * row, rows * row)?;
            block.operand = Some(Operand { values, shared: operand.shared });
        }
        Ok(block)
    }

    /// Merges the same tokens of another shard, which begin at `start` there, into these.
    pub(super) fn merge(&mut self, kernels: &Kernels, other: &Rows, start: usize) -> Result<()> {
        let (a, other_a) = match (&self.a, &other.a) {
            (Some(a), Some(other_a)) => (a.from(0), other_a.from(start * other.width * 4)),
            _ => (Argument::Pointer(0), Argument::Pointer(0)),
        };
        let (mut operand, mut other_operand, mut operand_rows) = (Argument::Pointer(0), Argument::Pointer(0), 0);
        if let (Some(mine), Some(theirs)) = (&self.operand, &other.operand) {
            let first = if theirs.shared { 0 } else { start * other.width * 4 };
            (operand, other_operand) = (mine.values.from(0), theirs.values.from(first));
            operand_rows = if mine.shared { 1 } else { self.tokens };
        }
        let call = kernels.call(KernelKind::Merge)?.set([
            ("state", self.state.from(0)),
            ("state_stride", Argument::I64(self.tokens as i64)),
            ("other_state", other.state.from(start * 4)),
            ("other_stride", Argument::I64(other.tokens as i64)),
            ("hidden", Argument::I32(self.width as i32)),
            ("a", a),
            ("a_stride", Argument::I64(self.width as i64)),
            ("other_a", other_a),
            ("other_a_stride", Argument::I64(other.width as i64)),
            ("operand", operand),
            ("other_operand", other_operand),
            ("operand_rows", Argument::I32(operand_rows as i32)),
        ]);
        call.launch_rows(self.tokens)
    }

    /// The same references beside statistics of rows that have seen no logit.
    pub(super) fn without_statistics(&self, kernels: &Kernels) -> Result<Rows> {
        let rows = Rows::identity(kernels, self.tokens, self.width)?;
        rows.state.copy(0, &self.state, 0, self.part())?;
        Ok(rows)
    }

    /// The references alone, as a transport moves them.
    pub(super) fn references(&self, kernels: &Kernels) -> Result<Rows> {
        Ok(Rows { references_only: true, ..self.without_statistics(kernels)? })
    }

    /// The state of all tokens from blocks in their order.
    pub(super) fn concatenate(kernels: &Kernels, blocks: &[&Block<Gpu>]) -> Result<Rows> {
        let tokens = blocks.last().map_or(0, |b| b.tokens.end);
        let width = blocks.first().map_or(0, |b| b.rows.width);
        let all = Rows::new(kernels, tokens, width)?;
        for block in blocks {
            for part in 0..=kernels.statistics().len() {
                let (to, rows) = (part * all.part() + block.tokens.start * 4, &block.rows);
                all.state.copy(to, &rows.state, part * rows.part(), rows.part())?;
            }
        }
        Ok(all)
    }
}
