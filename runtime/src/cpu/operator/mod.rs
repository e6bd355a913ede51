//! Operators on a CPU: tiles of f32 logits between products.

mod gradients;
mod kernels;
mod statistics;
mod tiles;

use super::Cpu;
use crate::Result;
use crate::operator::{Distribution, DistributionGradients, GradientJob, HostRows, RowJob, RowPasses, RowState};
use kernels::OperatorKernels;
use vocabfuse_codegen::Operator;

/// Columns of a chunk: logits of a block of panels stay in L2.
const CHUNK: usize = 512;

impl RowPasses for Cpu {
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
        self.row_statistics(kernels, job)
    }

    fn gradients(
        &self,
        kernels: &OperatorKernels,
        job: &RowJob<'_>,
        gradient: &GradientJob<'_>,
        wanted: &mut [DistributionGradients<'_>],
    ) -> Result<Vec<Option<Vec<f32>>>> {
        self.row_gradients(kernels, job, gradient, wanted)
    }
}
