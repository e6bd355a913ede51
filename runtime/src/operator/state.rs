//! Row statistics of one shard, or of several merged ones, in host memory.

use super::finish::HostRows;
use crate::buffer::Buffer;
use crate::comm::{Combine, Seat};
use crate::{Error, NO_REFERENCE, Result};
use std::ops::Range;
use std::sync::Arc;
use vocabfuse_codegen::Operator;

/// Statistics of some tokens. Arrays are padded to whole panels.
pub struct RowState {
    /// Tokens that count.
    pub(crate) tokens: usize,
    /// References, then the statistics of the operator in order.
    pub(crate) rows: Vec<Buffer<f32>>,
    /// Values at selected ids `[slot][token]`.
    pub(crate) selected: Vec<Buffer<f32>>,
    /// The largest columns.
    pub(crate) top: Option<TopState>,
}

/// The largest columns of each token, `[slot][token]`, the largest first.
pub struct TopState {
    pub(crate) slots: usize,
    /// Elements from one slot to the next.
    pub(crate) stride: usize,
    /// -inf in free slots.
    pub(crate) keys: Buffer<f32>,
    pub(crate) values: Buffer<f32>,
    /// Ids, shard-local until [`TopState::globalise`]; -1 in free slots.
    pub(crate) ids: Buffer<i32>,
}

impl RowState {
    /// Rows that have seen no logit: the identity of merging.
    pub(crate) fn identity(operator: &Operator, tokens: usize, slots: usize, panel: usize) -> RowState {
        let padded = tokens.next_multiple_of(panel);
        let filled = |value: f32| {
            let mut buffer = Buffer::zeroed(padded);
            buffer.as_mut().fill(value);
            buffer
        };
        let references = (0..operator.distributions()).map(|_| filled(NO_REFERENCE));
        let rules = operator.statistics.rules();
        RowState {
            tokens,
            rows: references.chain(rules.iter().map(|(_, rule)| filled(rule.identity()))).collect(),
            selected: operator.statistics.selected().map(|_| Buffer::zeroed(slots * padded)).collect(),
            top: operator.statistics.top().map(|_| TopState::free(slots, padded)),
        }
    }

    /// Bytes that a transport moves.
    pub(crate) fn bytes(&self) -> usize {
        let top = self.top.as_ref().map_or(0, |top| 3 * top.slots);
        let selected: usize = self.selected.iter().map(|s| s.len() / self.padded().max(1)).sum();
        4 * self.tokens * (self.rows.len() + selected + top)
    }

    pub(crate) fn padded(&self) -> usize {
        self.rows[0].len()
    }

    /// A copy of some tokens, a range that begins at a panel.
    fn block(&self, tokens: Range<usize>, panel: usize) -> RowState {
        let (stride, padded) = (self.padded(), tokens.len().next_multiple_of(panel));
        let copy = |from: &Buffer<f32>| {
            let slots = from.len().checked_div(stride).unwrap_or(0);
            let mut to = Buffer::zeroed(slots * padded);
            for slot in 0..slots {
                to.as_mut()[slot * padded..][..padded]
                    .copy_from_slice(&from.as_ref()[slot * stride + tokens.start..][..padded]);
            }
            to
        };
        RowState {
            tokens: tokens.len(),
            rows: self.rows.iter().map(copy).collect(),
            selected: self.selected.iter().map(copy).collect(),
            top: self.top.as_ref().map(|top| TopState::free(top.slots, padded)),
        }
    }
}

impl TopState {
    fn free(slots: usize, stride: usize) -> TopState {
        let mut top = TopState {
            slots,
            stride,
            keys: Buffer::zeroed(slots * stride),
            values: Buffer::zeroed(slots * stride),
            ids: Buffer::zeroed(slots * stride),
        };
        top.keys.as_mut().fill(f32::NEG_INFINITY);
        top.ids.as_mut().fill(-1);
        top
    }

    /// Key, value and id of a token's list, as far as it is filled.
    fn list(&self, token: usize) -> impl Iterator<Item = (f32, f32, i32)> {
        let at = move |slot: usize| slot * self.stride + token;
        let pick =
            move |slot| (self.keys.as_ref()[at(slot)], self.values.as_ref()[at(slot)], self.ids.as_ref()[at(slot)]);
        (0..self.slots).map(pick).take_while(|(_, _, id)| *id >= 0)
    }

    /// Makes shard-local ids global ones.
    pub(crate) fn globalise(&mut self, first_id: usize) -> Result<()> {
        for id in self.ids.as_mut().iter_mut().filter(|id| **id >= 0) {
            let global = i32::try_from(first_id + *id as usize);
            *id = global.map_err(|_| {
                Error::Layout("more than 2^31 rows; expected fewer for ids of largest logits".to_owned())
            })?;
        }
        Ok(())
    }

    /// The lists of tokens from `start` on of several shards, in the order of their ids.
    fn merge(&mut self, parts: &[&TopState], start: usize, tokens: usize) {
        for token in 0..tokens {
            let mut picks: Vec<_> = parts.iter().flat_map(|part| part.list(start + token)).collect();
            // Stable: of equal keys, those of lower ids come first. Rows with a NaN are replaced afterwards.
            picks.sort_by(|a, b| (b.0 + 0.0).total_cmp(&(a.0 + 0.0)));
            for (slot, (key, value, id)) in picks.into_iter().take(self.slots).enumerate() {
                let at = slot * self.stride + token;
                (self.keys.as_mut()[at], self.values.as_mut()[at], self.ids.as_mut()[at]) = (key, value, id);
            }
        }
    }
}

/// The collective of the first phase: every rank merges its block of the tokens and finishes it.
pub(super) struct MergeStatistics<'a> {
    pub(super) operator: &'a Operator,
    pub(super) host: &'a HostRows,
    pub(super) slots: usize,
}

/// Some tokens after the first collective.
pub(super) struct Block {
    pub(super) tokens: Range<usize>,
    /// Final references, one array a distribution.
    pub(super) references: Vec<Vec<f32>>,
    /// Results in the order of the operator, `[token, slot]` or one a token.
    pub(super) results: Vec<Vec<f32>>,
    /// Ids of the largest columns `[token, slot]`, -1 where there is none.
    pub(super) ids: Vec<i32>,
}

impl Combine for MergeStatistics<'_> {
    type Part = RowState;
    type Block = Block;
    type Output = ();

    fn output(&self) -> Option<()> {
        None
    }

    fn address((): &mut ()) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn block(
        &self,
        seat: Seat,
        parts: Vec<Arc<RowState>>,
        _: Option<crate::buffer::SharedPointer<u8>>,
    ) -> Result<Block> {
        let panel = self.host.panel;
        let tokens = seat.share(parts[0].tokens, panel);
        let mut merged = parts[0].block(tokens.clone(), panel);
        for other in &parts[1..] {
            self.host.merge(&mut merged, other, tokens.start);
        }
        let tops: Vec<&TopState> = parts.iter().filter_map(|part| part.top.as_ref()).collect();
        if let Some(top) = &mut merged.top {
            top.merge(&tops, tokens.start, tokens.len());
        }
        let distributions = self.operator.distributions();
        let results = self.host.finish(self.operator, &merged, self.slots)?;
        let ids = match &merged.top {
            Some(top) => (0..tokens.len())
                .flat_map(|token| (0..top.slots).map(move |slot| top.ids.as_ref()[slot * top.stride + token]))
                .collect(),
            None => vec![],
        };
        let references = merged.rows[..distributions].iter().map(|r| r.as_ref()[..tokens.len()].to_vec()).collect();
        Ok(Block { tokens, references, results, ids })
    }
}
