//! The three algorithms as sequences of the same collective: which parts of the rows each barrier merges.

use crate::comm::{Finish, Local, MergeRows, Merged, Pending};
use crate::passes::{Block, SPass};
use crate::{Algorithm, Device, Result};

/// What the barriers of one microbatch work on.
pub(crate) struct Exchange<'a, D: Device> {
    pub(crate) device: &'a D,
    pub(crate) kernels: &'a D::Kernels,
    pub(crate) inputs: &'a D::Inputs,
    pub(crate) pass: SPass<'a>,
    pub(crate) agreement: &'a str,
    pub(crate) saved: Option<&'a mut D::Saved>,
}

impl Algorithm {
    /// Whether pass S accumulates A before the first barrier.
    pub(crate) fn accumulates(self) -> bool {
        self == Algorithm::Two
    }

    /// The rows that travel at the first barrier, and those that later ones need.
    pub(crate) fn first<D: Device>(
        self,
        device: &D,
        kernels: &D::Kernels,
        rows: D::Rows,
    ) -> Result<(D::Rows, Option<D::Rows>)> {
        match self {
            Algorithm::Two | Algorithm::One => Ok((rows, None)),
            // Only the references travel: the maximum comes first, the sums with the next barrier.
            Algorithm::Naive => Ok((device.references(kernels, &rows)?, Some(rows))),
        }
    }

    /// Completes the first barrier and runs the others. The place in each is taken right after the one before it, so that
    /// what fails in between ends it for all ranks.
    pub(crate) fn complete<D: Device>(
        self,
        comm: &Local,
        first: Pending,
        kept: Option<D::Rows>,
        exchange: &mut Exchange<'_, D>,
        finish: &Finish<'_>,
    ) -> Result<Merged<D>> {
        let (device, kernels) = (exchange.device, exchange.kernels);
        let (merging, finishing) =
            (MergeRows { device, kernels, finish: None }, MergeRows { device, kernels, finish: Some(finish) });
        // Without A, which dX alone is made of, statistics are all there is to merge.
        let without_a = finish.dx_rows.is_none();
        if self == Algorithm::Two || self == Algorithm::One && without_a {
            return first.wait(&finishing);
        }
        let all = |merged: Merged<D>| device.concatenate(kernels, &blocks(&merged));
        let next = first.next();
        let merged = first.wait(&merging)?;
        let (mut turn, mut merged) = next.turn().after(|| all(merged))?;
        if let Some(mut rows) = kept {
            let (second, ()) = turn.after(|| device.raise(kernels, &mut rows, &merged))?;
            let second = MergeRows::<D>::start(second, exchange.agreement, rows);
            if without_a {
                return second.wait(&finishing);
            }
            let next = second.next();
            let sums = second.wait(&merging)?;
            (turn, merged) = next.turn().after(|| all(sums))?;
        }
        let saved = exchange.saved.as_deref_mut();
        let leads = comm.rank() == 0;
        let accumulate = || device.accumulate(kernels, exchange.inputs, &exchange.pass, merged, saved, leads);
        let (turn, rows) = turn.after(accumulate)?;
        MergeRows::<D>::start(turn, exchange.agreement, rows).wait(&finishing)
    }
}

/// Blocks of a barrier by reference.
pub(crate) fn blocks<D: Device>(merged: &Merged<D>) -> Vec<&Block<D>> {
    merged.blocks.iter().map(|b| &**b).collect()
}
