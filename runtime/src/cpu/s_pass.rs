//! Pass S of one shard: packs X once, then walks the vocabulary chunk by chunk.

use super::Cpu;
use super::family::{Family, ProgramInputs, Softmax, bind, column};
use super::rows::{Product, ShardRows, TargetRows};
use crate::buffer::{Buffer, SharedPointer};
use crate::passes::SPass;
use crate::{Matrix, Result};
use rayon::prelude::*;
use std::ptr;
use std::sync::Mutex;
use vocabfuse_kernels::abi::{self, Stages, TileCount};

/// Saved numerators of the softmax, for pass T.
pub struct Saved {
    /// One region a chunk, `padded tokens * chunk` elements each.
    pub(crate) values: Buffer<u8>,
    /// `[chunks][padded tokens]`: what each region is relative to.
    pub(crate) references: Buffer<f32>,
}

impl Saved {
    /// Bytes for some tokens and columns.
    pub(crate) fn bytes(family: &Family, tokens: usize, columns: usize) -> usize {
        let padded = tokens.next_multiple_of(family.geometry.panel);
        columns.div_ceil(family.chunk) * padded * (family.chunk * family.dtype.size() + 4)
    }

    /// Bytes held.
    pub(crate) fn held(&self) -> usize {
        self.values.len() + 4 * self.references.len()
    }

    /// Room for the values of some tokens and columns.
    pub(crate) fn new(family: &Family, tokens: usize, columns: usize) -> Saved {
        let padded = tokens.next_multiple_of(family.geometry.panel);
        let chunks = columns.div_ceil(family.chunk);
        Saved {
            values: Buffer::zeroed(chunks * family.chunk * padded * family.dtype.size()),
            references: Buffer::zeroed(chunks * padded),
        }
    }
}

/// Bytes that pass S needs besides inputs, outputs and saved values.
pub(crate) fn working_set(cpu: &Cpu, family: &Family, tokens: usize, hidden: usize) -> usize {
    let geometry = &family.geometry;
    let (padded, width) = (tokens.next_multiple_of(geometry.panel), family.padded_hidden(hidden));
    let scratch = (geometry.softmax_scratch)(family.chunk, width, geometry.panel_block) * cpu.threads();
    let chunk = family.chunk * width * geometry.packed_vocabulary;
    padded * width * (geometry.packed_token + 4) + tokens * hidden * family.dtype.size() + chunk + scratch
}

impl Cpu {
    /// Packs the tokens with one of the packing kernels.
    pub(super) fn pack_tokens(
        &self,
        family: &Family,
        kernel: unsafe fn(&abi::PackTokens),
        x: Matrix<'_>,
        rows: &[u32],
    ) -> Buffer<u8> {
        let geometry = &family.geometry;
        let panels = rows.len().div_ceil(geometry.panel);
        let width = family.padded_hidden(x.columns());
        let mut packed = Buffer::<u8>::zeroed(panels * geometry.panel * width * geometry.packed_token);
        let out = packed.pointer();
        (0..panels).into_par_iter().for_each(|panel| {
            // SAFETY: rows are rows of X, the buffer holds `panels` panels, and each call writes its own.
            unsafe {
                kernel(&abi::PackTokens {
                    x: x.row_pointer(0),
                    row_stride: x.row_stride(),
                    hidden: x.columns(),
                    rows: rows.as_ptr(),
                    tokens: rows.len(),
                    total_panels: panels,
                    first_panel: panel,
                    panels: 1,
                    out: out.get(),
                });
            }
        });
        packed
    }

    /// Logits, statistics and (unless `stages` leaves it out) A of one shard, into `rows`; saves if `saved` is given.
    ///
    /// With [`Stages::AccumulateSaved`] the state in `rows` is the final one and stays as it is.
    pub(crate) fn walk(
        &self,
        family: &Family,
        pass: &SPass<'_>,
        stages: Stages,
        rows: &mut ShardRows,
        saved: Option<&mut Saved>,
    ) -> Result<()> {
        self.walk_with(family, family.logits_softmax, pass, stages, rows, saved)
    }

    /// A₂, the second product with W, if the loss has one: a row for all tokens if its operand is the same for all.
    pub(crate) fn operand(&self, family: &Family, pass: &SPass<'_>) -> Result<Option<Product>> {
        let Some(kernel) = family.logits_operand else { return Ok(None) };
        // Without tokens there is no row of X to give to the kernel, and no row of dX.
        let tokens = if kernel.kernel.bindings.shared { pass.rows.len().min(1) } else { pass.rows.len() };
        let padded = tokens.next_multiple_of(family.geometry.panel);
        let pass = SPass { rows: &pass.rows[..tokens], targets: &pass.targets[..padded], filter: None, ..*pass };
        let mut rows = ShardRows::identity(family, tokens);
        self.walk_with(family, kernel, &pass, Stages::All, &mut rows, None)?;
        Ok(rows.a.map(|values| Product { values, stride: rows.a_stride, shared: kernel.kernel.bindings.shared }))
    }

    fn walk_with(
        &self,
        family: &Family,
        softmax: Softmax,
        pass: &SPass<'_>,
        stages: Stages,
        rows: &mut ShardRows,
        saved: Option<&mut Saved>,
    ) -> Result<()> {
        let kernel = softmax.kernel;
        let inputs = ProgramInputs {
            classes: pass.inputs.classes as i32,
            targets: pass.targets.as_ptr(),
            uniforms: bind(kernel, kernel.bindings.uniforms, |name| pass.inputs.uniform(name))?,
            rows: bind(kernel, kernel.bindings.rows, |_| None)?,
            columns: bind(kernel, kernel.bindings.columns, |name| column(&pass.inputs, name))?,
        };
        self.pool().install(|| self.walk_chunks(family, softmax, pass, &inputs, stages, rows, saved));
        Ok(())
    }

    fn walk_chunks(
        &self,
        family: &Family,
        softmax: Softmax,
        pass: &SPass<'_>,
        inputs: &ProgramInputs,
        stages: Stages,
        rows: &mut ShardRows,
        saved: Option<&mut Saved>,
    ) {
        let (geometry, chunk) = (&family.geometry, family.chunk);
        let (tokens, hidden) = (pass.rows.len(), pass.x.columns());
        let panels = tokens.div_ceil(geometry.panel);
        let padded = panels * geometry.panel;
        let width = family.padded_hidden(hidden);
        let threads = self.pool().current_num_threads();
        let group = panels.div_ceil(threads).clamp(1, geometry.panel_block);

        let accumulates = stages != Stages::Statistics;
        let needs_logits = stages != Stages::AccumulateSaved;
        let x = if needs_logits {
            self.pack_tokens(family, family.pack_tokens, pass.x, pass.rows)
        } else {
            Buffer::zeroed(0)
        };
        let mut w = Buffer::<u8>::zeroed(chunk * width * geometry.packed_vocabulary);
        let scratch: Vec<Mutex<Buffer<u8>>> =
            (0..threads).map(|_| Mutex::new(Buffer::zeroed((geometry.softmax_scratch)(chunk, width, group)))).collect();
        if accumulates {
            rows.a = Some(Buffer::zeroed(padded * width));
            rows.a_stride = width;
        }
        let a = rows.a.as_mut().map_or(SharedPointer(ptr::null_mut()), Buffer::pointer);
        let state: Vec<*mut f32> = rows.state.iter_mut().map(|b| b.as_mut().as_mut_ptr()).collect();
        let state = SharedPointer(state.as_ptr().cast_mut());
        let region = padded * chunk * family.dtype.size();
        let (values, references) = match saved {
            Some(saved) => (saved.values.pointer(), saved.references.pointer()),
            None => (SharedPointer(ptr::null_mut()), SharedPointer(ptr::null_mut())),
        };

        for (index, first_column) in (0..pass.w.rows()).step_by(chunk).enumerate() {
            let columns = chunk.min(pass.w.rows() - first_column);
            pack_chunk(family, pass.w, first_column, columns, chunk, w.pointer());
            let packed = w.pointer();
            (0..panels.div_ceil(group)).into_par_iter().for_each(|block| {
                let thread = rayon::current_thread_index().unwrap_or(0);
                let mut scratch = scratch[thread].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let first_panel = block * group;
                let mut count = TileCount::default();
                let offset = |p: *mut u8, bytes: usize| if p.is_null() { p } else { p.wrapping_add(bytes) };
                // SAFETY: all buffers have the extents that the kernel states; each call owns the state, the rows of A
                // and the saved values of its panels, and the scratch of its thread.
                unsafe {
                    (softmax.run)(&abi::LogitsSoftmax {
                        inputs: inputs.view(),
                        stages,
                        hidden,
                        first_column,
                        columns,
                        first_panel,
                        panels: group.min(panels - first_panel),
                        x: x.as_ref().as_ptr(),
                        w: packed.get(),
                        state: state.get(),
                        a: a.get(),
                        saved: offset(values.get(), index * region),
                        saved_reference: offset(references.get().cast(), index * padded * 4).cast(),
                        filter: pass.filter.map_or(0.0, |f| f.threshold),
                        filtered: if pass.filter.is_some() { &raw mut count } else { ptr::null_mut() },
                        scratch: scratch.as_mut().as_mut_ptr(),
                    });
                }
                if let Some(filter) = pass.filter {
                    filter.add(count.tiles, count.skipped);
                }
            });
        }
        if let (Some(unpack), true) = (family.unpack_accumulator, accumulates) {
            let bytes = geometry.panel * width * 4;
            (0..panels).into_par_iter().for_each(|panel| {
                let mut scratch = Buffer::<u8>::zeroed(bytes);
                // SAFETY: the call owns its panel of A and its scratch.
                unsafe {
                    unpack(&abi::UnpackAccumulator {
                        hidden,
                        first_panel: panel,
                        panels: 1,
                        a: a.get(),
                        scratch: scratch.as_mut().as_mut_ptr(),
                    });
                }
            });
        }
    }

    /// B: the rows of W of the targets that this shard owns.
    pub(crate) fn gather_targets(&self, family: &Family, pass: &SPass<'_>) -> TargetRows {
        let mut index = vec![-1; pass.rows.len()];
        let mut ids: Vec<u32> = vec![];
        for (token, target) in pass.targets.iter().take(pass.rows.len()).enumerate() {
            if *target >= 0 {
                index[token] = ids.len() as i32;
                ids.push(*target as u32);
            }
        }
        let row_bytes = pass.w.columns() * family.dtype.size();
        let mut rows = vec![0u8; ids.len() * row_bytes];
        // SAFETY: ids are rows of W, and `rows` holds one row for each.
        unsafe {
            (family.gather_rows)(&abi::GatherRows {
                table: pass.w.row_pointer(0),
                row_stride: pass.w.row_stride(),
                ids: ids.as_ptr(),
                count: ids.len(),
                columns: pass.w.columns(),
                out: rows.as_mut_ptr(),
            });
        }
        TargetRows { index, rows: rows.into(), row_bytes }
    }
}

/// Packs some rows of W, in parallel over blocks of them.
pub(super) fn pack_chunk(
    family: &Family,
    w: Matrix<'_>,
    first: usize,
    rows: usize,
    allocated: usize,
    out: SharedPointer<u8>,
) {
    let block = 64usize.next_multiple_of(family.geometry.row_block);
    (0..allocated.div_ceil(block)).into_par_iter().for_each(|i| {
        // SAFETY: rows `first..first + rows` are rows of W, the buffer holds `allocated` rows, and each call packs its
        // own block of them.
        unsafe {
            (family.pack_vocabulary)(&abi::PackVocabulary {
                w: w.row_pointer(first),
                row_stride: w.row_stride(),
                hidden: w.columns(),
                rows,
                allocated_rows: allocated,
                first_row: i * block,
                end_row: ((i + 1) * block).min(allocated),
                out: out.get(),
            });
        }
    });
}
