//! What a device has to do for operators.

use super::{Distribution, HostRows, RowState, Selection};
use crate::Result;
use crate::buffer::Buffer;
use std::fmt::Debug;
use vocabfuse_codegen::Operator;

/// Inputs of both phases on one shard.
pub struct RowJob<'a> {
    pub(crate) operator: &'a Operator,
    /// Classes only.
    pub(crate) distributions: &'a [Distribution<'a>],
    /// Classes of the shard.
    pub(crate) classes: usize,
    /// Global id of the first of them.
    pub(crate) first_id: usize,
    /// Rows of X, or of the logits, that take part: the tokens.
    pub(crate) rows: &'a [u32],
    pub(crate) selection: &'a Selection,
    /// Slots of the largest columns.
    pub(crate) top: usize,
    pub(crate) seed: u64,
}

/// Values per token by name, padded to whole panels.
pub type NamedRows = Vec<(String, Vec<f32>)>;

/// What the second phase needs besides.
pub struct GradientJob<'a> {
    /// Row inputs of the gradient programs.
    pub(crate) rows: &'a NamedRows,
    /// Weights at the selected ids.
    pub(crate) weights: &'a Buffer<f32>,
}

/// Where the gradients of a distribution go; what is left out is not computed.
#[derive(Debug, Default)]
pub struct DistributionGradients<'a> {
    /// Whether the gradient of X is wanted: the same on all ranks. It comes from the second collective.
    pub dx: bool,
    /// dW_d `[V_d, H]` row-major, added to.
    pub dw: Option<&'a mut [f32]>,
    /// Gradient of the bias, V_d, added to.
    pub dbias: Option<&'a mut [f32]>,
    /// Gradient of given logits `[N, V_d]` row-major, written whole.
    pub dlogits: Option<&'a mut [f32]>,
}

impl DistributionGradients<'_> {
    /// Whether there is anything to compute.
    pub(crate) fn any(&self) -> bool {
        self.dx || self.dw.is_some() || self.dbias.is_some() || self.dlogits.is_some()
    }
}

/// The work of a device for operators. See [`crate::Device`].
///
/// Public, in a private module, because it bounds public types.
pub trait RowPasses: Clone + Debug + Send + Sync + 'static {
    /// The kernels of an operator for some distributions.
    type OperatorKernels: Send + Sync;

    /// The kernels of an operator; how they depend on distributions is their dtypes and options.
    fn operator_kernels(
        &self,
        operator: &Operator,
        distributions: &[Distribution<'_>],
    ) -> Result<Self::OperatorKernels>;

    /// Names of the kernels.
    fn operator_kernel_names(kernels: &Self::OperatorKernels) -> Vec<&'static str>;

    /// Tokens come in multiples of this.
    fn row_panel(kernels: &Self::OperatorKernels) -> usize;

    /// The kernels that merge and finish rows in host memory.
    fn host_rows(kernels: &Self::OperatorKernels) -> &HostRows;

    /// Statistics of the shard, ids shard-local.
    fn statistics(&self, kernels: &Self::OperatorKernels, job: &RowJob<'_>) -> Result<RowState>;

    /// Adds the gradients of the shard; gives its part of dX of each distribution that wants it, `[tokens, H]` row-major.
    fn gradients(
        &self,
        kernels: &Self::OperatorKernels,
        job: &RowJob<'_>,
        gradient: &GradientJob<'_>,
        wanted: &mut [DistributionGradients<'_>],
    ) -> Result<Vec<Option<Vec<f32>>>>;
}
