//! Row statistics of one shard, or of several merged ones, in host memory.

use super::finish::HostRows;
use crate::buffer::Buffer;
use crate::comm::{Combine, Seat};
use crate::sums::restore;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use vocabfuse_codegen::Operator;
use vocabfuse_codegen::program::NO_REFERENCE;

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
    pub(crate) values: Buffer<f32>,
    /// What is added to the values where they are compared.
    pub(crate) noise: Buffer<f32>,
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

    /// Arrays of what sums over the vocabulary lose while they are formed: one for each statistic that is a sum.
    pub(crate) fn lost(&self, operator: &Operator) -> Vec<Buffer<f32>> {
        let sums = operator.statistics.rules().into_iter().filter(|(_, rule)| rule.is_sum());
        sums.map(|_| Buffer::zeroed(self.padded())).collect()
    }

    /// Gives the sums back what they have lost.
    pub(crate) fn restore(&mut self, operator: &Operator, lost: &[Buffer<f32>]) {
        let rules = operator.statistics.rules();
        let sums = self.rows[operator.distributions()..].iter_mut().zip(&rules).filter(|(_, (_, rule))| rule.is_sum());
        sums.zip(lost).for_each(|((sum, _), lost)| restore(sum.as_mut(), lost.as_ref()));
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
            values: Buffer::zeroed(slots * stride),
            noise: Buffer::zeroed(slots * stride),
            ids: Buffer::zeroed(slots * stride),
        };
        top.ids.as_mut().fill(-1);
        top
    }

    /// A token's list, as far as it is filled.
    fn list(&self, token: usize) -> Vec<Pick> {
        let at = |slot: usize| slot * self.stride + token;
        let pick = |slot| Pick {
            value: self.values.as_ref()[at(slot)],
            noise: self.noise.as_ref()[at(slot)],
            id: self.ids.as_ref()[at(slot)],
        };
        (0..self.slots).map(pick).take_while(|pick| pick.id >= 0).collect()
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
            let lists = parts.iter().map(|part| part.list(start + token));
            let merged = lists.reduce(|a, b| joined(&a, &b, self.slots)).unwrap_or_default();
            for (slot, pick) in merged.into_iter().enumerate() {
                let at = slot * self.stride + token;
                self.values.as_mut()[at] = pick.value;
                self.noise.as_mut()[at] = pick.noise;
                self.ids.as_mut()[at] = pick.id;
            }
        }
    }
}

/// A column of a list of largest ones.
#[derive(Clone, Copy)]
struct Pick {
    value: f32,
    noise: f32,
    id: i32,
}

impl Pick {
    /// Whether it comes before one of lower id. Two near values are compared by their difference, which no common offset
    /// takes digits from. Rows with a NaN are replaced afterwards.
    fn precedes(&self, other: &Pick) -> bool {
        (self.value - other.value) + (self.noise - other.noise) > 0.0
    }
}

/// Two sorted lists as one; all ids of the first are lower.
fn joined(a: &[Pick], b: &[Pick], most: usize) -> Vec<Pick> {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let next = || match (a.peek(), b.peek()) {
        (Some(first), Some(second)) if second.precedes(first) => b.next(),
        (Some(_), _) => a.next(),
        (None, _) => b.next(),
    };
    std::iter::from_fn(next).take(most).copied().collect()
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
