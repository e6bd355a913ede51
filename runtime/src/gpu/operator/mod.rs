//! Operators on a GPU: logits of one chunk in f32 between products, a row a block. Rows are merged and finished on the host.

mod gradients;
mod inputs;
mod kernels;
mod statistics;

use super::Gpu;
use crate::Result;
use crate::operator::{Distribution, DistributionGradients, GradientJob, HostRows, RowJob, RowPasses, RowState};
use kernels::OperatorKernels;
use std::ops::Range;
use vocabfuse_codegen::Operator;

pub(super) use vocabfuse_codegen::cuda::OPERATOR_CHUNK as CHUNK;

/// The chunks of some classes.
fn chunks(classes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..classes).step_by(CHUNK).map(move |first| first..classes.min(first + CHUNK))
}

impl RowPasses for Gpu {
    type OperatorKernels = OperatorKernels;

    fn operator_kernels(&self, operator: &Operator, distributions: &[Distribution<'_>]) -> Result<OperatorKernels> {
        OperatorKernels::new(self, operator, distributions)
    }

    fn operator_kernel_names(kernels: &OperatorKernels) -> Vec<&'static str> {
        kernels.names()
    }

    fn row_panel(kernels: &OperatorKernels) -> usize {
        kernels.host.panel
    }

    fn host_rows(kernels: &OperatorKernels) -> &HostRows {
        &kernels.host
    }

    fn statistics(&self, kernels: &OperatorKernels, job: &RowJob<'_>) -> Result<RowState> {
        statistics::run(kernels, job)
    }

    fn gradients(
        &self,
        kernels: &OperatorKernels,
        job: &RowJob<'_>,
        gradient: &GradientJob<'_>,
        wanted: &mut [DistributionGradients<'_>],
    ) -> Result<Vec<Option<Vec<f32>>>> {
        gradients::run(kernels, job, gradient, wanted)
    }
}
