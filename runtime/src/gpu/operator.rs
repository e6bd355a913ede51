//! Operators on a GPU: none yet, and an error that says so.

use super::Gpu;
use crate::operator::{Distribution, DistributionGradients, GradientJob, HostRows, RowJob, RowPasses, RowState};
use crate::{Error, Result};
use vocabfuse_codegen::Operator;

/// There are no kernels.
pub enum OperatorKernels {}

impl RowPasses for Gpu {
    type OperatorKernels = OperatorKernels;

    fn operator_kernels(&self, operator: &Operator, _: &[Distribution<'_>]) -> Result<OperatorKernels> {
        Err(Error::Device(format!(
            "operator {} runs on a CPU only; there are no CUDA kernels for it yet",
            operator.name
        )))
    }

    fn operator_kernel_names(kernels: &OperatorKernels) -> Vec<&'static str> {
        match *kernels {}
    }

    fn row_panel(kernels: &OperatorKernels) -> usize {
        match *kernels {}
    }

    fn host_rows(kernels: &OperatorKernels) -> &HostRows {
        match *kernels {}
    }

    fn statistics(&self, kernels: &OperatorKernels, _: &RowJob<'_>) -> Result<RowState> {
        match *kernels {}
    }

    fn gradients(
        &self,
        kernels: &OperatorKernels,
        _: &RowJob<'_>,
        _: &GradientJob<'_>,
        _: &mut [DistributionGradients<'_>],
    ) -> Result<Vec<Option<Vec<f32>>>> {
        match *kernels {}
    }
}
