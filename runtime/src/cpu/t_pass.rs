//! Pass T of one shard: blocks of vocabulary rows, each a task of its own.

use super::Cpu;
use super::family::{Family, ProgramInputs, bind, column};
use super::pack;
use super::s_pass::{Saved, lock};
use crate::buffer::{Buffer, SharedPointer};
use crate::filter::Filter;
use crate::gradient::GradientMut;
use crate::passes::{LayerInputs, Sums};
use crate::{Dtype, Matrix, Result};
use rayon::prelude::*;
use std::ptr;
use std::sync::Mutex;
use vocabfuse_kernels::abi;

/// Inputs of pass T on one shard. Arrays per token are padded to whole panels.
pub(crate) struct TPass<'a> {
    /// X `[N, H]`.
    pub(crate) x: Matrix<'a>,
    /// W_d `[V_d, H]`, classes only.
    pub(crate) w: Matrix<'a>,
    pub(crate) inputs: LayerInputs<'a>,
    pub(crate) rows: &'a [u32],
    pub(crate) targets: &'a [i32],
    /// Final reference.
    pub(crate) reference: &'a [f32],
    /// Outputs of the finish program by name.
    pub(crate) outputs: &'a [(&'static str, Vec<f32>)],
    pub(crate) upstream: &'a [f32],
    /// Values saved by pass S; `None` recomputes them.
    pub(crate) saved: Option<&'a Saved>,
    pub(crate) filter: Option<&'a Filter>,
}

impl TPass<'_> {
    /// An output of the finish program by name.
    fn output(&self, name: &str) -> Option<&[f32]> {
        self.outputs.iter().find(|(known, _)| *known == name).map(|(_, values)| values.as_slice())
    }
}

struct Task {
    chunk: usize,
    first_column: usize,
    columns: usize,
}

/// Buffers of a thread.
struct Scratch {
    kernel: Buffer<u8>,
    /// Packed rows of W, where logits are recomputed.
    w: Buffer<u8>,
    /// dW of the rows of a task, where dW is narrower than that.
    sums: Buffer<f32>,
}

/// Bytes that pass T needs besides inputs, outputs and saved values.
pub(crate) fn working_set(cpu: &Cpu, family: &Family, tokens: usize, hidden: usize, saved: bool) -> usize {
    let geometry = &family.geometry;
    let (padded, width) = (tokens.next_multiple_of(geometry.panel), family.padded_hidden(hidden));
    let blocking = cpu.blocking(family, hidden);
    let packed = if saved { 0 } else { blocking.grad_rows * width * geometry.packed };
    let direct = family.dtype == Dtype::F32 || padded / geometry.panel <= blocking.grad_panels;
    let sums = if direct { 0 } else { blocking.grad_rows * hidden * 4 };
    let x = padded * width * geometry.packed * if saved { 1 } else { 2 };
    x + ((geometry.grad_scratch)(&blocking) + packed + sums) * cpu.threads()
}

impl Cpu {
    /// dW += Qᵀ X and dbias += column sums of Q, for one shard. dW is rounded once if it is narrower than f32. See
    /// [`abi::WeightGrad`] for the error of sums over many tokens.
    pub(crate) fn add_gradients(&self, family: &Family, pass: &TPass<'_>, sums: Sums<'_>) -> Result<()> {
        let Sums { dw, dbias } = sums;
        // Both kernels run the same programs, so they bind the same names.
        let kernel = family.grad_kernel;
        let names = kernel.bindings;
        let row = |name: &str| {
            if name == "upstream" {
                return Some(pass.upstream.as_ptr());
            }
            pass.output(name).map(<[f32]>::as_ptr)
        };
        let inputs = |uniforms, rows, columns| -> Result<ProgramInputs> {
            Ok(ProgramInputs {
                classes: pass.inputs.classes as i32,
                targets: pass.targets.as_ptr(),
                uniforms: bind(kernel, uniforms, |name| pass.inputs.uniform(name))?,
                rows: bind(kernel, rows, row)?,
                columns: bind(kernel, columns, |name| column(&pass.inputs, name))?,
            })
        };
        let gradient = inputs(names.uniforms, names.rows, names.columns)?;
        let statistics = inputs(names.statistics_uniforms, &[], names.statistics_columns)?;
        let dbias = SharedPointer(dbias.map_or(ptr::null_mut(), <[f32]>::as_mut_ptr));
        self.install(|| self.walk_tasks(family, pass, &gradient, &statistics, &dw, dbias))
    }

    fn walk_tasks(
        &self,
        family: &Family,
        pass: &TPass<'_>,
        gradient: &ProgramInputs,
        statistics: &ProgramInputs,
        dw: &GradientMut<'_>,
        dbias: SharedPointer<f32>,
    ) {
        let geometry = &family.geometry;
        let (tokens, hidden) = (pass.rows.len(), pass.x.columns());
        let panels = tokens.div_ceil(geometry.panel);
        let (padded, width) = (panels * geometry.panel, family.padded_hidden(hidden));
        let blocking = self.blocking(family, hidden);
        let rows = blocking.grad_rows;
        let recompute = pass.saved.is_none();

        let x_grad = pack::tokens_grad(self.memory(), geometry, family.pack_tokens_grad, pass.x, pass.rows);
        let x = if recompute {
            pack::tokens(self.memory(), geometry, family.pack_tokens, pass.x, pass.rows)
        } else {
            Buffer::zeroed(0)
        };
        let packed = if recompute { rows * width * geometry.packed } else { 0 };
        // Kernels round sums that are whole at once; those of more panels are gathered in f32 first.
        let direct = dw.dtype() == Dtype::F32 || panels <= blocking.grad_panels;
        let sums = if direct { 0 } else { rows * hidden };
        let scratch = || Scratch {
            kernel: self.memory().buffer((geometry.grad_scratch)(&blocking)),
            w: self.memory().buffer(packed),
            sums: self.memory().buffer(sums),
        };
        let scratch: Vec<Mutex<Scratch>> = (0..self.threads()).map(|_| Mutex::new(scratch())).collect();
        let region = padded * family.chunk * family.dtype.size();
        let limits: Vec<f32> = pass.filter.map_or_else(Vec::new, |filter| {
            let bound = pass.output("bound").unwrap_or_default();
            let limit = |(b, upstream): (&f32, &f32)| filter.threshold * (b * upstream).abs();
            // What is behind the last token is not counted as left out.
            let mut limits: Vec<f32> = bound.iter().zip(pass.upstream).map(limit).take(tokens).collect();
            limits.resize(padded, -1.0);
            limits
        });
        let run = family.weight_grad_saved.filter(|_| !recompute).unwrap_or(family.weight_grad_recompute);

        let classes = pass.inputs.classes;
        (0..classes.div_ceil(rows)).into_par_iter().for_each(|index| {
            let first_column = index * rows;
            // No task crosses a chunk, since saved values are laid out by chunk: both are powers of two.
            let task =
                Task { chunk: first_column / family.chunk, first_column, columns: rows.min(classes - first_column) };
            let mut scratch = lock(&scratch);
            let Scratch { kernel: scratch, w, sums } = &mut *scratch;
            let elements = task.columns * hidden;
            let rows_of_dw = dw.pointer(task.first_column * hidden);
            let (sums, rounded) = match (direct, dw.dtype()) {
                (false, _) => (sums.as_mut().as_mut_ptr(), ptr::null_mut()),
                (true, Dtype::F32) => (rows_of_dw.cast(), ptr::null_mut()),
                (true, _) => (ptr::null_mut(), rows_of_dw),
            };
            let fresh = !direct || dw.overwrites();
            // What a filter leaves out is not written.
            let accumulate = !fresh || pass.filter.is_some();
            if fresh && accumulate {
                let (rows, size) =
                    if direct { (rows_of_dw, dw.dtype().size()) } else { (sums.cast(), size_of::<f32>()) };
                // SAFETY: each task has its own rows of dW, each thread its own sums, with room for as many elements. Zero
                // bytes are zeros of all types.
                unsafe { rows.write_bytes(0, elements * size) }
            }
            let allocated = task.columns.next_multiple_of(geometry.row_block);
            if recompute {
                // SAFETY: the rows are rows of W, and the buffer of this thread holds them.
                unsafe {
                    (family.pack_vocabulary)(&abi::PackVocabulary {
                        w: pass.w.row_pointer(task.first_column),
                        row_stride: pass.w.row_stride(),
                        hidden,
                        rows: task.columns,
                        allocated_rows: allocated,
                        first_row: 0,
                        end_row: allocated,
                        transpose: false,
                        out: w.as_mut().as_mut_ptr(),
                    });
                }
            }
            let mut count = abi::TileCount::default();
            let (saved, saved_reference) = match pass.saved {
                Some(saved) => (
                    saved.values.as_ref()[task.chunk * region..].as_ptr(),
                    saved.references.as_ref()[task.chunk * padded..].as_ptr(),
                ),
                None => (ptr::null(), ptr::null()),
            };
            let column_gradient = dbias.get();
            let column_gradient = if column_gradient.is_null() {
                column_gradient
            } else {
                column_gradient.wrapping_add(task.first_column)
            };
            // SAFETY: all buffers have the extents that the kernel states; each task owns its rows of dW and dbias and
            // the scratch of its thread.
            unsafe {
                run(&abi::WeightGrad {
                    inputs: gradient.view(),
                    statistics_inputs: statistics.view(),
                    blocking,
                    hidden,
                    first_column: task.first_column,
                    columns: task.columns,
                    panels,
                    x_grad: x_grad.as_ref().as_ptr(),
                    x: x.as_ref().as_ptr(),
                    w: w.as_ref().as_ptr(),
                    allocated_rows: allocated,
                    reference: pass.reference.as_ptr(),
                    chunk: family.chunk,
                    saved,
                    saved_row: task.first_column - task.chunk * family.chunk,
                    saved_reference,
                    dw: sums,
                    rounded,
                    dw_stride: hidden,
                    accumulate,
                    column_gradients: &column_gradient,
                    limits: limits.as_ptr(),
                    filtered: if pass.filter.is_some() { &raw mut count } else { ptr::null_mut() },
                    scratch: scratch.as_mut().as_mut_ptr(),
                });
            }
            if !direct {
                // SAFETY: each task has its own rows of dW, and the sums of its thread hold them.
                unsafe {
                    let sums = std::slice::from_raw_parts(sums, elements);
                    dw.part(task.first_column * hidden, elements).put(sums, dw.overwrites());
                }
            }
            if let Some(filter) = pass.filter {
                filter.add(count.tiles, count.skipped);
            }
        });
    }
}
