//! The collective of the second phase: gradients of X add up over ranks.

use crate::Result;
use crate::buffer::SharedPointer;
use crate::comm::{Combine, Seat};
use std::ops::Range;
use std::sync::Arc;

/// Sums the parts of all ranks, `[tokens, H]` of each distribution, into dX `[N, H]` of each, one behind the other.
pub(super) struct SumInputs<'a> {
    /// Row of X of each token.
    pub(super) rows: &'a [u32],
    /// N.
    pub(super) tokens: usize,
    /// H of each distribution.
    pub(super) hidden: &'a [usize],
    /// Distributions whose dX is wanted.
    pub(super) wanted: &'a [bool],
}

impl SumInputs<'_> {
    /// Where each dX lies in the output.
    pub(super) fn ranges(&self) -> Vec<Option<Range<usize>>> {
        let mut end = 0;
        let mut range = |(wanted, hidden): (&bool, &usize)| {
            wanted.then(|| {
                let start = end;
                end += self.tokens * hidden;
                start..end
            })
        };
        self.wanted.iter().zip(self.hidden).map(&mut range).collect()
    }
}

impl Combine for SumInputs<'_> {
    type Part = Vec<Option<Vec<f32>>>;
    type Block = ();
    type Output = Vec<f32>;

    fn output(&self) -> Option<Vec<f32>> {
        Some(vec![0.0; self.ranges().into_iter().flatten().map(|r| r.len()).sum()])
    }

    fn address(dx: &mut Vec<f32>) -> *mut u8 {
        dx.as_mut_ptr().cast()
    }

    fn block(&self, seat: Seat, parts: Vec<Arc<Self::Part>>, dx: Option<SharedPointer<u8>>) -> Result<()> {
        let Some(dx) = dx else { return Ok(()) };
        let block = seat.share(self.rows.len(), 1);
        for (i, range) in self.ranges().into_iter().enumerate() {
            let (Some(range), hidden) = (range, self.hidden[i]) else { continue };
            for token in block.clone() {
                let first = range.start + self.rows[token] as usize * hidden;
                // SAFETY: the output has a row of dX for every row of X, and the rows of this rank's tokens, which are
                // distinct, are read and written by nobody else meanwhile.
                let to = unsafe { std::slice::from_raw_parts_mut(dx.get().cast::<f32>().add(first), hidden) };
                for part in parts.iter().filter_map(|part| part[i].as_ref()) {
                    to.iter_mut().zip(&part[token * hidden..]).for_each(|(to, from)| *to += from);
                }
            }
        }
        Ok(())
    }
}
