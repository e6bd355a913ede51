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

    /// Starts the first barrier. Returns the rows that later barriers need.
    pub(crate) fn start<D: Device>(
        self,
        comm: &Local,
        agreement: &str,
        device: &D,
        kernels: &D::Kernels,
        rows: D::Rows,
    ) -> Result<(Pending, Option<D::Rows>)> {
        Ok(match self {
            Algorithm::Two | Algorithm::One => (MergeRows::<D>::start(comm, agreement, rows), None),
            Algorithm::Naive => {
                // Only the references travel: the maximum comes first, the sums with the next barrier.
                let references = device.references(kernels, &rows)?;
                (MergeRows::<D>::start(comm, agreement, references), Some(rows))
            }
        })
    }

    /// Completes the first barrier and runs the others.
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
        let mut merged = device.concatenate(kernels, &blocks(&first.wait(&merging)?))?;
        if let Some(mut rows) = kept {
            device.raise(kernels, &mut rows, &merged)?;
            let second = MergeRows::<D>::start(comm, exchange.agreement, rows);
            if without_a {
                return second.wait(&finishing);
            }
            merged = device.concatenate(kernels, &blocks(&second.wait(&merging)?))?;
        }
        let saved = exchange.saved.as_deref_mut();
        let rows = device.accumulate(kernels, exchange.inputs, &exchange.pass, merged, saved, comm.rank() == 0)?;
        MergeRows::<D>::start(comm, exchange.agreement, rows).wait(&finishing)
    }
}

/// Blocks of a barrier by reference.
pub(crate) fn blocks<D: Device>(merged: &Merged<D>) -> Vec<&Block<D>> {
    merged.blocks.iter().map(|b| &**b).collect()
}
