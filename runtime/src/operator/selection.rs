//! Selected ids as kernels take them.

use super::operation::Ids;
use crate::buffer::Buffer;
use std::ops::Range;

/// Ids of each token that a shard owns, `[slot][padded tokens]`.
pub struct Selection {
    pub(crate) slots: usize,
    /// Elements from one slot to the next.
    pub(crate) stride: usize,
    /// Shard-local ids, -1 where nothing is selected or another shard owns the id.
    pub(crate) ids: Buffer<i32>,
}

impl Selection {
    /// Of the tokens `rows`; `owned` are the classes of the shard.
    pub(crate) fn new(ids: Option<Ids<'_>>, rows: &[u32], owned: Range<usize>, stride: usize) -> Selection {
        let slots = ids.map_or(0, |ids| ids.per_token);
        let mut local = Buffer::zeroed(slots * stride);
        local.as_mut().fill(-1);
        for (token, slot, id) in entries(ids, rows) {
            // Negative ids are huge ones.
            if owned.contains(&(id as usize)) {
                local.as_mut()[slot * stride + token] = (id as usize - owned.start) as i32;
            }
        }
        Selection { slots, stride, ids: local }
    }

    /// The upstream gradient `[N, k]` at the ids: for each slot the sum over all slots of the token with the same id, and for
    /// each token the sum over all its ids, whoever owns them. Sums are f64 and rounded once: k may be the whole vocabulary.
    pub(crate) fn weights(&self, ids: Option<Ids<'_>>, rows: &[u32], upstream: &[f32]) -> (Buffer<f32>, Vec<f32>) {
        let mut weights = Buffer::zeroed(self.slots * self.stride);
        let mut sums = vec![0.0f64; self.stride];
        for (token, slot, _) in entries(ids, rows) {
            let weight = upstream[rows[token] as usize * self.slots + slot];
            weights.as_mut()[slot * self.stride + token] = weight;
            sums[token] += f64::from(weight);
        }
        for token in 0..rows.len() {
            let id = |slot: usize| self.ids.as_ref()[slot * self.stride + token];
            let mut owned: Vec<usize> = (0..self.slots).filter(|slot| id(*slot) >= 0).collect();
            owned.sort_by_key(|slot| id(*slot));
            for alike in owned.chunk_by(|a, b| id(*a) == id(*b)).filter(|alike| alike.len() > 1) {
                let weights = weights.as_mut();
                let sum: f64 = alike.iter().map(|slot| f64::from(weights[slot * self.stride + token])).sum();
                alike.iter().for_each(|slot| weights[slot * self.stride + token] = sum as f32);
            }
        }
        (weights, sums.into_iter().map(|sum| sum as f32).collect())
    }
}

/// Position among `rows`, slot and id of all ids that are not ignored.
fn entries<'a>(ids: Option<Ids<'a>>, rows: &'a [u32]) -> impl Iterator<Item = (usize, usize, i64)> + 'a {
    ids.into_iter().flat_map(move |Ids { ids, per_token, ignore_index }| {
        rows.iter().enumerate().flat_map(move |(token, row)| {
            let slots = ids[*row as usize * per_token..][..per_token].iter().enumerate();
            slots.filter(move |(_, id)| Some(**id) != ignore_index).map(move |(slot, id)| (token, slot, *id))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_repeated_ids_add_up() {
        let ids = Ids { ids: &[7, 9, 7, -1, 8, 5], per_token: 3, ignore_index: Some(-1) };
        let selection = Selection::new(Some(ids), &[0, 1], 5..9, 4);
        assert_eq!(selection.ids.as_ref(), [2, -1, -1, -1, -1, 3, -1, -1, 2, 0, -1, -1]);
        let (weights, sums) = selection.weights(Some(ids), &[0, 1], &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
        assert_eq!(weights.as_ref(), [5.0, 0.0, 0.0, 0.0, 2.0, 16.0, 0.0, 0.0, 5.0, 32.0, 0.0, 0.0]);
        assert_eq!(sums, [7.0, 48.0, 0.0, 0.0]);
    }

    #[test]
    fn weights_of_many_ids_are_rounded_once() {
        const IDS: usize = 1 << 16;
        let ids = Ids { ids: &[3; IDS], per_token: IDS, ignore_index: None };
        let selection = Selection::new(Some(ids), &[0], 0..4, 1);
        let (weights, sums) = selection.weights(Some(ids), &[0], &[0.1; IDS]);
        let sum = (f64::from(0.1f32) * IDS as f64) as f32;
        assert!(sums == [sum] && weights.as_ref().iter().all(|weight| *weight == sum), "{sums:?}");
    }
}
