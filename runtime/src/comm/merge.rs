//! C1: rows merge by their own rule, and the rank that merged a block of the tokens finishes it.

use super::{Combine, Outcome, Pending, Seat, Turn};
use crate::buffer::SharedPointer;
use crate::passes::{Block, FinishJob};
use crate::{Device, Result};
use std::sync::Arc;

/// What a rank does with its block once it is merged.
pub(crate) struct Finish<'a> {
    /// What makes each part of dX; the results are those of the first.
    pub(crate) parts: Vec<FinishJob<'a>>,
    /// N, the rows of each part, if dX is wanted.
    pub(crate) dx_rows: Option<usize>,
}

impl Finish<'_> {
    /// Elements of a part of dX.
    fn part(&self) -> Option<usize> {
        Some(self.dx_rows? * self.parts.first()?.hidden)
    }
}

/// Merged blocks in the order of tokens, and the parts of dX `[parts][N, H]` if the rows were finished.
pub(crate) type Merged<D> = Outcome<Block<D>, Vec<f32>>;

/// The reduction of one barrier.
pub(crate) struct MergeRows<'a, D: Device> {
    pub(crate) device: &'a D,
    pub(crate) kernels: &'a D::Kernels,
    /// At the last barrier of a microbatch.
    pub(crate) finish: Option<&'a Finish<'a>>,
}

impl<D: Device> MergeRows<'_, D> {
    /// Hands over the rows of a rank; does not wait.
    pub(crate) fn start(turn: Turn, agreement: &str, rows: D::Rows) -> Pending {
        let bytes = D::bytes(&rows);
        turn.start(agreement, rows, bytes)
    }
}

impl<D: Device> Combine for MergeRows<'_, D> {
    type Part = D::Rows;
    type Block = Block<D>;
    type Output = Vec<f32>;

    fn output(&self) -> Option<Vec<f32>> {
        self.finish.and_then(|f| Some(vec![0.0; f.part()? * f.parts.len()]))
    }

    fn address(dx: &mut Vec<f32>) -> *mut u8 {
        dx.as_mut_ptr().cast()
    }

    fn block(&self, seat: Seat, mut parts: Vec<Arc<D::Rows>>, dx: Option<SharedPointer<u8>>) -> Result<Block<D>> {
        let MergeRows { device, kernels, finish } = *self;
        let tokens = seat.share(D::tokens(&parts[0]), D::panel(kernels));
        let owners: Vec<D::Targets> = parts.iter().map(|rows| D::targets(rows)).collect();
        let first = parts.remove(0);
        let mut rows = if parts.is_empty() {
            // The only part, without a copy.
            Arc::try_unwrap(first).or_else(|first| device.block(kernels, &first, tokens.clone()))?
        } else {
            device.block(kernels, &first, tokens.clone())?
        };
        for other in &parts {
            device.merge(kernels, &mut rows, other, tokens.start)?;
        }
        let dx = dx.map(|dx| SharedPointer(dx.get().cast::<f32>()));
        let mut results = None;
        for (part, job) in finish.iter().flat_map(|finish| finish.parts.iter().enumerate()) {
            let size = finish.and_then(Finish::part).unwrap_or(0);
            let dx = dx.map(|dx| SharedPointer(dx.get().wrapping_add(part * size)));
            let of_part = device.finish(kernels, &rows, tokens.clone(), job, &owners, dx)?;
            results.get_or_insert(of_part);
        }
        if finish.is_some() {
            D::finished(&mut rows);
        }
        Ok(Block { tokens, rows, results })
    }
}
