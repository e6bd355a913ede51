//! What a device has to do for tables of rows.

use super::Additions;
use crate::{Dtype, Matrix, Result};
use std::fmt::Debug;
use std::ops::Range;

/// The work of a device for the input layer. See [`crate::Device`].
///
/// Public, in a private module, because it bounds public types.
pub trait Tables: Clone + Debug + Send + Sync + 'static {
    /// The kernels for rows of one dtype.
    type RowKernels: Send + Sync;
    /// Packed rows of a table.
    type Gathered: Send + Sync + 'static;

    /// The kernels for rows of a dtype.
    fn row_kernels(&self, dtype: Dtype) -> Result<Self::RowKernels>;

    /// Names of the kernels that gather and add rows.
    fn row_kernel_names(kernels: &Self::RowKernels) -> [&'static str; 2];

    /// Copies of the rows `ids` of a table, in the order of the ids, each of which is a row of the table.
    fn gather(&self, kernels: &Self::RowKernels, table: Matrix<'_>, ids: &[u32]) -> Result<Self::Gathered>;

    /// Bytes that a transport moves for these rows.
    fn gathered_bytes(gathered: &Self::Gathered) -> usize;

    /// Hands out some of the rows in order, as bytes on the host.
    fn each_row(gathered: &Self::Gathered, range: Range<usize>, take: impl FnMut(&[u8])) -> Result<()>;

    /// Adds rows into a table of f32, `[rows, H]` without gaps, where H is the width of `rows`. What is added to an
    /// element is summed in f64, from what is there, in the order of the additions, and rounded once.
    fn scatter_add(
        &self,
        kernels: &Self::RowKernels,
        rows: Matrix<'_>,
        additions: &Additions,
        table: &mut [f32],
    ) -> Result<()>;
}
