//! Rows of tables on a GPU.
//!
//! Tables lie in the memory of the host, so only the rows that are named travel, each once.

use super::Gpu;
use super::buffer::Buffer;
use super::driver::Argument::{I32, I64};
use super::kernels::Kernels;
use super::s_pass::padded_hidden;
use crate::embedding::{Additions, Tables};
use crate::{Dtype, Matrix, Result};
use std::ops::Range;
use vocabfuse_codegen::KernelKind;

/// The kernels for rows of one dtype.
pub struct RowKernels {
    kernels: Kernels,
    names: [&'static str; 2],
}

/// Packed rows on the device.
pub struct Gathered {
    rows: Buffer,
    count: usize,
    /// Bytes of a row.
    row_bytes: usize,
    /// Bytes from one row to the next.
    stride: usize,
}

impl Tables for Gpu {
    type RowKernels = RowKernels;
    type Gathered = Gathered;

    fn row_kernels(&self, dtype: Dtype) -> Result<RowKernels> {
        let kernels = Kernels::of_rows(&self.library, self.loss("cross_entropy")?, dtype);
        let names = [kernels.name(KernelKind::GatherRows)?, kernels.name(KernelKind::ScatterAdd)?];
        Ok(RowKernels { kernels, names })
    }

    fn row_kernel_names(kernels: &RowKernels) -> [&'static str; 2] {
        kernels.names
    }

    fn gather(&self, kernels: &RowKernels, table: Matrix<'_>, ids: &[u32]) -> Result<Gathered> {
        let kernels = &kernels.kernels;
        let (driver, size) = (kernels.driver(), kernels.dtype.size());
        let width = padded_hidden(kernels.dtype, table.columns());
        let mut named = ids.to_vec();
        named.sort_unstable();
        named.dedup();
        let position = |id: &u32| named.partition_point(|known| known < id) as i32;
        let positions = Buffer::with(driver, &ids.iter().map(position).collect::<Vec<i32>>())?;
        let from = Buffer::rows(driver, named.len(), width * size, |i| table.row_bytes(named[i] as usize))?;
        let rows = Buffer::new(driver, ids.len() * width * size)?;
        let call = kernels.call(KernelKind::GatherRows)?.set([
            ("table", from.from(0)),
            ("table_stride", I64(width as i64)),
            ("ids", positions.from(0)),
            ("columns", I32(width as i32)),
            ("out", rows.from(0)),
            ("out_stride", I64(width as i64)),
        ]);
        call.launch_rows(ids.len())?;
        Ok(Gathered { rows, count: ids.len(), row_bytes: table.columns() * size, stride: width * size })
    }

    fn gathered_bytes(gathered: &Gathered) -> usize {
        gathered.count * gathered.row_bytes
    }

    fn each_row(gathered: &Gathered, range: Range<usize>, mut take: impl FnMut(&[u8])) -> Result<()> {
        gathered.rows.each_row_of(range, gathered.stride, |_, row: &[u8]| take(&row[..gathered.row_bytes]))
    }

    fn scatter_add(
        &self,
        kernels: &RowKernels,
        rows: Matrix<'_>,
        additions: &Additions,
        table: &mut [f32],
    ) -> Result<()> {
        let kernels = &kernels.kernels;
        let (driver, hidden, order) = (kernels.driver(), rows.columns(), &additions.order);
        let width = padded_hidden(kernels.dtype, hidden);
        let from =
            Buffer::rows(driver, order.len(), width * kernels.dtype.size(), |i| rows.row_bytes(order[i] as usize))?;
        let runs = additions.runs();
        let row = |run: usize| runs[run].0 as usize * hidden..(runs[run].0 as usize + 1) * hidden;
        let sums = Buffer::rows(driver, runs.len(), hidden * 4, |run| bytemuck::cast_slice(&table[row(run)]))?;
        let starts: Vec<i32> = runs.iter().map(|(_, run)| run.start).chain([order.len()]).map(|i| i as i32).collect();
        let ids = Buffer::with(driver, &(0..runs.len() as i32).collect::<Vec<_>>())?;
        // The rows were copied in the order in which they are added.
        let order = Buffer::with(driver, &(0..order.len() as i32).collect::<Vec<_>>())?;
        let starts = Buffer::with(driver, &starts)?;
        let call = kernels.call(KernelKind::ScatterAdd)?.set([
            ("rows", from.from(0)),
            ("row_stride", I64(width as i64)),
            ("ids", ids.from(0)),
            ("starts", starts.from(0)),
            ("order", order.from(0)),
            ("columns", I32(hidden as i32)),
            ("table", sums.from(0)),
            ("table_stride", I64(hidden as i64)),
        ]);
        call.launch_rows(runs.len())?;
        sums.each_row(runs.len(), hidden, |run, sums| table[row(run)].copy_from_slice(sums))
    }
}
