//! The collective: exactly one rank has each row, so that the sum over ranks is a selection, exact in any dtype.

use super::Tables;
use crate::buffer::SharedPointer;
use crate::comm::{Combine, Seat};
use crate::matrix::OwnedMatrix;
use crate::{Dtype, Result, ShardLayout};
use std::ops::Range;
use std::sync::Arc;

/// How the rows that ranks have gathered become X.
pub(super) struct Select<'a, D> {
    pub(super) device: std::marker::PhantomData<D>,
    /// Valid ids.
    pub(super) ids: &'a [i64],
    pub(super) layout: &'a ShardLayout,
    pub(super) dtype: Dtype,
    /// H.
    pub(super) hidden: usize,
}

/// Where the rows of one rank go: `tokens[i]` is the place of its row `first + i`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Places {
    first: usize,
    tokens: Vec<usize>,
}

/// The places of every rank's rows within a block of tokens. Ranks hold their rows in the order of tokens.
fn places(ids: &[i64], layout: &ShardLayout, block: Range<usize>) -> Vec<Places> {
    let mut places = vec![Places::default(); layout.ranks()];
    for (token, id) in ids[..block.end].iter().enumerate() {
        let rank = &mut places[layout.owner(*id as usize)];
        if token < block.start { rank.first += 1 } else { rank.tokens.push(token) }
    }
    places
}

impl<D: Tables> Combine for Select<'_, D> {
    type Part = D::Gathered;
    type Block = ();
    type Output = OwnedMatrix;

    fn output(&self) -> Option<OwnedMatrix> {
        Some(OwnedMatrix::zeros(self.dtype, self.ids.len(), self.hidden))
    }

    fn address(x: &mut OwnedMatrix) -> *mut u8 {
        x.pointer().get()
    }

    fn block(&self, seat: Seat, parts: Vec<Arc<D::Gathered>>, x: Option<SharedPointer<u8>>) -> Result<()> {
        let Some(x) = x else { return Ok(()) };
        let width = self.hidden * self.dtype.size();
        let block = seat.share(self.ids.len(), 1);
        for (rows, places) in parts.iter().zip(places(self.ids, self.layout, block)) {
            let mut tokens = places.tokens.iter();
            D::each_row(rows, places.first..places.first + places.tokens.len(), |row| {
                let Some(token) = tokens.next() else { return };
                // SAFETY: X has a row of `width` bytes for each id, and this rank alone writes those of its block, each
                // once.
                let to = unsafe { std::slice::from_raw_parts_mut(x.get().add(token * width), width) };
                to.copy_from_slice(row);
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_block_are_found_with_every_rank() {
        let layout = ShardLayout::from_bounds(&[0, 3, 3, 5, 9]).unwrap();
        let ids = [8, 0, 3, 3, 2, 5, 4, 0];
        let found = places(&ids, &layout, 3..7);
        let expected = |first, tokens: &[usize]| Places { first, tokens: tokens.to_vec() };
        assert_eq!(found, [expected(1, &[4]), expected(0, &[]), expected(1, &[3, 6]), expected(1, &[5])]);
    }
}
