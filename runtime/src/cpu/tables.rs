//! Rows of tables on a CPU.

use super::Cpu;
use super::lookup::{Lookup, function};
use crate::buffer::{Buffer, SharedPointer};
use crate::embedding::{Additions, Tables};
use crate::{Dtype, Matrix, Result};
use rayon::prelude::*;
use std::ops::Range;
use vocabfuse_codegen::KernelKind;
use vocabfuse_kernels::abi;

/// Ids that a task gathers.
const IDS: usize = 64;
/// Columns that a task adds: few enough for tasks on all threads. A task has all additions to its columns, so that an id that
/// repeats without end delays nobody.
const COLUMNS: usize = abi::SCATTER_COLUMNS;

/// The kernels for rows of one dtype.
pub struct RowKernels {
    dtype: Dtype,
    gather: unsafe fn(&abi::GatherRows),
    scatter_add: unsafe fn(&abi::ScatterAdd),
    names: [&'static str; 2],
}

/// Packed rows.
pub struct Gathered {
    rows: Buffer<u8>,
    row_bytes: usize,
}

impl Tables for Cpu {
    type RowKernels = RowKernels;
    type Gathered = Gathered;

    fn row_kernels(&self, dtype: Dtype) -> Result<RowKernels> {
        // Rows are copied and added as they are, whatever products are made of.
        let exact = self.clone().with_precision(None);
        let lookup = Lookup::new(&exact, dtype)?;
        let names = [KernelKind::GatherRows, KernelKind::ScatterAdd].map(|kind| lookup.kernel(kind).map(|k| k.name));
        let [gather, scatter_add] = names;
        Ok(RowKernels {
            dtype,
            gather: function!(lookup, GatherRows, GatherRows),
            scatter_add: function!(lookup, ScatterAdd, ScatterAdd),
            names: [gather?, scatter_add?],
        })
    }

    fn row_kernel_names(kernels: &RowKernels) -> [&'static str; 2] {
        kernels.names
    }

    fn gather(&self, kernels: &RowKernels, table: Matrix<'_>, ids: &[u32]) -> Result<Gathered> {
        let row_bytes = table.columns() * kernels.dtype.size();
        let mut rows = Buffer::zeroed(ids.len() * row_bytes);
        let out: SharedPointer<u8> = rows.pointer();
        self.install(|| {
            ids.par_chunks(IDS).enumerate().for_each(|(task, ids)| {
                // SAFETY: ids are rows of the table, and each task writes the rows of its own ids, for which there is
                // room.
                unsafe {
                    (kernels.gather)(&abi::GatherRows {
                        table: table.row_pointer(0),
                        row_stride: table.row_stride(),
                        ids: ids.as_ptr(),
                        count: ids.len(),
                        columns: table.columns(),
                        out: out.get().add(task * IDS * row_bytes),
                    });
                }
            });
        })?;
        Ok(Gathered { rows, row_bytes })
    }

    fn gathered_bytes(gathered: &Gathered) -> usize {
        gathered.rows.len()
    }

    fn each_row(gathered: &Gathered, range: Range<usize>, take: impl FnMut(&[u8])) -> Result<()> {
        let Gathered { rows, row_bytes } = gathered;
        rows.as_ref()[range.start * row_bytes..range.end * row_bytes].chunks(*row_bytes).for_each(take);
        Ok(())
    }

    fn scatter_add(
        &self,
        kernels: &RowKernels,
        rows: Matrix<'_>,
        additions: &Additions,
        table: &mut [f32],
    ) -> Result<()> {
        let hidden = rows.columns();
        if additions.ids.is_empty() {
            return Ok(());
        }
        let table = SharedPointer(table.as_mut_ptr());
        self.install(|| {
            (0..hidden.div_ceil(COLUMNS)).into_par_iter().for_each(|task| {
                let first = task * COLUMNS;
                // SAFETY: ids are rows of the table and the order names rows of `rows`, of which there is one each; each task
                // has its own columns.
                unsafe {
                    (kernels.scatter_add)(&abi::ScatterAdd {
                        rows: rows.row_pointer(0).add(first * kernels.dtype.size()),
                        row_stride: rows.row_stride(),
                        ids: additions.ids.as_ptr(),
                        order: additions.order.as_ptr(),
                        count: additions.ids.len(),
                        columns: COLUMNS.min(hidden - first),
                        table: table.get().add(first),
                        table_stride: hidden,
                    });
                }
            });
        })?;
        Ok(())
    }
}
