//! Pass S of one shard: packs X once, then walks the vocabulary chunk by chunk. Threads share the tokens of a chunk; where
//! there are few tokens they share slices of the vocabulary instead, each of which has rows of its own until they are merged.

use super::Cpu;
use super::family::{Family, ProgramInputs, Softmax, bind, column};
use super::pack;
use super::rows::{Product, ShardRows, TargetRows};
use crate::Result;
use crate::buffer::{Buffer, SharedPointer};
use crate::memory::Memory;
use crate::passes::SPass;
use crate::sums::restore;
use rayon::prelude::*;
use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use vocabfuse_kernels::abi::{self, Blocking, Stages, TileCount};

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
    pub(crate) fn new(memory: &Memory, family: &Family, tokens: usize, columns: usize) -> Saved {
        let padded = tokens.next_multiple_of(family.geometry.panel);
        let chunks = columns.div_ceil(family.chunk);
        Saved {
            values: memory.buffer(chunks * family.chunk * padded * family.dtype.size()),
            references: memory.buffer(chunks * padded),
        }
    }
}

/// Most panels of tokens whose vocabulary is shared by threads, most slices of it, and most bytes that their A may take.
const FEW_PANELS: usize = 8;
const MOST_SLICES: usize = 32;
const SLICES_BYTES: usize = 8 << 20;

/// Columns whose products take about twice the time of clearing, unpacking and merging A of a slice.
const SLICE_COLUMNS: usize = 512;

/// Into how many slices with rows of their own the columns are cut: a matter of sizes alone, since results depend on it.
///
/// The more panels, the less is there to be gained by slices.
pub(super) fn slices(columns: usize, chunk: usize, panels: usize, panel_bytes: usize) -> usize {
    let room = SLICES_BYTES / (panels * panel_bytes).max(1);
    let enough = columns.div_ceil(chunk.max(SLICE_COLUMNS)) / (1 + panels);
    if panels == 0 || panels > FEW_PANELS { 1 } else { enough.min(MOST_SLICES).min(room).max(1) }
}

/// Most packed chunks, and most bytes of them, that threads which share tokens run through from one meeting to the next.
const MEETING_CHUNKS: usize = 8;
const MEETING_BYTES: usize = 4 << 20;

/// Chunks that are packed together. Threads wait for each other after packing and after use, and the fewer these meetings
/// are, the less is lost when one is late.
pub(super) fn chunks_together(threads: usize, packed_chunk: usize, chunks: usize) -> usize {
    let most = if threads == 1 { 1 } else { MEETING_BYTES / packed_chunk.max(1) };
    most.min(MEETING_CHUNKS).min(chunks).max(1)
}

/// Of how many slices rows exist at a time: one for each thread, and one that the finished ones are merged into. So memory
/// does not grow with the number of slices, and with it the vocabulary.
pub(super) fn slices_at_once(threads: usize, slices: usize) -> usize {
    slices.min(threads + 1)
}

/// Near-equal parts of a range.
fn part(of: usize, parts: usize, index: usize) -> Range<usize> {
    let bound = |i: usize| i * (of / parts) + i.min(of % parts);
    bound(index)..bound(index + 1)
}

/// What is the same in all calls of the kernel.
struct Walk<'a> {
    family: &'a Family,
    memory: &'a Memory,
    softmax: Softmax,
    pass: &'a SPass<'a>,
    inputs: &'a ProgramInputs,
    stages: Stages,
    blocking: Blocking,
    /// Tokens in whole panels, and H.
    padded: usize,
    width: usize,
    x: Buffer<u8>,
    /// Saved values and references of all chunks; null when not saved.
    values: SharedPointer<u8>,
    references: SharedPointer<f32>,
}

/// Where the rows of some tokens are.
#[derive(Clone, Copy)]
struct Place {
    state: SharedPointer<*mut f32>,
    a: SharedPointer<f32>,
}

/// Buffers of a thread.
struct Scratch {
    kernel: Buffer<u8>,
    /// A packed chunk of W, where threads share the vocabulary.
    w: Buffer<u8>,
}

impl Walk<'_> {
    fn panels(&self) -> usize {
        self.padded / self.family.geometry.panel
    }

    fn chunks(&self) -> usize {
        self.pass.w.rows().div_ceil(self.family.chunk)
    }

    fn accumulates(&self) -> bool {
        self.stages != Stages::Statistics
    }

    fn packed_chunk(&self) -> usize {
        let geometry = &self.family.geometry;
        self.family.chunk * self.width * (geometry.packed + geometry.packed_transpose)
    }

    fn columns(&self, chunk: usize) -> Range<usize> {
        let first = chunk * self.family.chunk;
        first..self.pass.w.rows().min(first + self.family.chunk)
    }

    /// Packs rows of a chunk of W; all buffers have room for a whole chunk.
    ///
    /// # Safety
    /// `out` holds the packed chunk, and nobody else touches the part of these rows.
    unsafe fn pack(&self, chunk: usize, rows: Range<usize>, out: *mut u8) {
        let (w, columns) = (self.pass.w, self.columns(chunk));
        // SAFETY: the columns are rows of W; the caller answers for the buffer.
        unsafe {
            (self.family.pack_vocabulary)(&abi::PackVocabulary {
                w: w.row_pointer(columns.start),
                row_stride: w.row_stride(),
                hidden: w.columns(),
                rows: columns.len(),
                allocated_rows: self.family.chunk,
                first_row: rows.start,
                end_row: rows.end,
                transpose: self.accumulates(),
                out,
            });
        }
    }

    /// Runs the kernel on some panels and a packed chunk.
    ///
    /// # Safety
    /// `w` is that chunk, and nobody else touches the rows, the saved values and the scratch of this call.
    unsafe fn run(&self, chunk: usize, panels: Range<usize>, w: *const u8, place: Place, scratch: *mut u8) {
        let (family, pass, columns) = (self.family, self.pass, self.columns(chunk));
        let region = self.padded * family.chunk * family.dtype.size();
        let offset = |p: *mut u8, bytes: usize| if p.is_null() { p } else { p.wrapping_add(bytes) };
        let mut count = TileCount::default();
        // SAFETY: all buffers have the extents that the kernel states; the caller answers for the rest.
        unsafe {
            (self.softmax.run)(&abi::LogitsSoftmax {
                inputs: self.inputs.view(),
                stages: self.stages,
                blocking: self.blocking,
                hidden: pass.x.columns(),
                first_column: columns.start,
                columns: columns.len(),
                chunk: family.chunk,
                first_panel: panels.start,
                panels: panels.len(),
                x: self.x.as_ref().as_ptr(),
                w,
                state: place.state.get(),
                a: place.a.get(),
                saved: offset(self.values.get(), chunk * region),
                saved_reference: offset(self.references.get().cast(), chunk * self.padded * 4).cast(),
                filter: pass.filter.map_or(0.0, |f| f.threshold),
                filtered: if pass.filter.is_some() { &raw mut count } else { ptr::null_mut() },
                scratch,
            });
        }
        if let Some(filter) = pass.filter {
            filter.add(count.tiles, count.skipped);
        }
    }

    /// Some chunks after the others, their panels shared by the threads.
    fn by_tokens(&self, rows: &mut ShardRows) {
        let (family, panels) = (self.family, self.panels());
        let threads = rayon::current_num_threads();
        // Each thread has a share of its own: with smaller tasks one that is ahead takes the last task of another, which
        // then waits for it.
        let share = |thread: usize| part(panels, threads, thread);
        let largest = share(0).len().min(self.blocking.panels);
        let scratch = self.scratch(threads, largest, 0);
        let together = chunks_together(threads, self.packed_chunk(), self.chunks());
        let mut w: Buffer<u8> = self.memory.buffer(together * self.packed_chunk());
        let mut lost = self.lost();
        let (mut state, a) = self.room(rows, &mut lost);
        let place = Place { state: SharedPointer(state.as_mut_ptr()), a };
        let w = w.pointer();
        let packed = |index: usize| w.get().wrapping_add(index * self.packed_chunk());
        let piece = 64usize.next_multiple_of(family.geometry.row_block);
        let pieces = family.chunk.div_ceil(piece);
        for first in (0..self.chunks()).step_by(together) {
            let chunks = together.min(self.chunks() - first);
            (0..chunks * pieces).into_par_iter().for_each(|i| {
                let (index, start) = (i / pieces, i % pieces * piece);
                // SAFETY: each call packs its own rows.
                unsafe { self.pack(first + index, start..(start + piece).min(family.chunk), packed(index)) }
            });
            (0..threads.min(panels)).into_par_iter().with_max_len(1).for_each(|thread| {
                let mut scratch = lock(&scratch);
                let scratch = scratch.kernel.as_mut().as_mut_ptr();
                for index in 0..chunks {
                    // SAFETY: each call has its own panels, and the scratch of its thread.
                    unsafe { self.run(first + index, share(thread), packed(index), place, scratch) }
                }
            });
        }
        self.restore(rows, &lost);
        self.unpack(rows);
    }

    /// Slices of the vocabulary, each with rows of its own. They are merged in their order, as many at a time as there are
    /// threads: so the result does not depend on the number of threads, and memory not on the number of slices.
    fn by_vocabulary(&self, slices: usize, rows: &mut ShardRows) {
        let threads = rayon::current_num_threads();
        let scratch = self.scratch(threads, self.panels().min(self.blocking.panels), self.packed_chunk());
        let mut merged: Option<ShardRows> = None;
        for first in (0..slices).step_by(threads) {
            let now = first..slices.min(first + threads);
            let slice = |slice| self.slice(part(self.chunks(), slices, slice), rows.clone(), &scratch);
            let mut parts: Vec<ShardRows> = now.into_par_iter().with_max_len(1).map(slice).collect();
            parts.par_iter_mut().for_each(|rows| self.unpack(rows));
            for part in parts {
                match &mut merged {
                    Some(merged) => merged.merge_on_threads(self.family, &part),
                    None => merged = Some(part),
                }
            }
        }
        if let Some(merged) = merged {
            *rows = merged;
        }
    }

    /// Runs some chunks for all panels into rows of their own.
    fn slice(&self, chunks: Range<usize>, mut own: ShardRows, scratch: &[Mutex<Scratch>]) -> ShardRows {
        let mut lost = self.lost();
        let (mut state, a) = self.room(&mut own, &mut lost);
        let place = Place { state: SharedPointer(state.as_mut_ptr()), a };
        let mut scratch = lock(scratch);
        let Scratch { kernel, w } = &mut *scratch;
        for chunk in chunks {
            // SAFETY: rows, packed W and scratch belong to this task, the saved values of a chunk to its slice.
            unsafe {
                self.pack(chunk, 0..self.family.chunk, w.as_mut().as_mut_ptr());
                let (w, scratch) = (w.as_ref().as_ptr(), kernel.as_mut().as_mut_ptr());
                self.run(chunk, 0..self.panels(), w, place, scratch);
            }
        }
        self.restore(&mut own, &lost);
        own
    }

    /// Room for what each sum of the statistics loses.
    fn lost(&self) -> Vec<Buffer<f32>> {
        let sums = self.softmax.kernel.bindings.sums;
        sums.iter().map(|_| self.memory.zeroed(self.padded)).collect()
    }

    /// Gives the sums back what they have lost.
    fn restore(&self, rows: &mut ShardRows, lost: &[Buffer<f32>]) {
        for (statistic, lost) in self.softmax.kernel.bindings.sums.iter().zip(lost) {
            restore(rows.state[1 + statistic].as_mut(), lost.as_ref());
        }
    }

    /// Pointers to the state and to what its sums lose, and A if it is wanted.
    fn room(&self, rows: &mut ShardRows, lost: &mut [Buffer<f32>]) -> (Vec<*mut f32>, SharedPointer<f32>) {
        if self.accumulates() {
            rows.a = Some(self.memory.zeroed(self.padded * self.width));
            rows.a_stride = self.width;
        }
        let a = rows.a.as_mut().map_or(SharedPointer(ptr::null_mut()), Buffer::pointer);
        (rows.state.iter_mut().chain(lost).map(|b| b.as_mut().as_mut_ptr()).collect(), a)
    }

    fn scratch(&self, threads: usize, panels: usize, w: usize) -> Vec<Mutex<Scratch>> {
        let kernel = (self.family.geometry.softmax_scratch)(self.family.chunk, panels);
        let scratch = || Scratch { kernel: self.memory.buffer(kernel), w: self.memory.buffer(w) };
        (0..threads).map(|_| Mutex::new(scratch())).collect()
    }

    /// A as plain rows, where kernels lay it out otherwise.
    fn unpack(&self, rows: &mut ShardRows) {
        let (Some(unpack), Some(a)) = (self.family.unpack_accumulator, &mut rows.a) else { return };
        let a = a.pointer();
        (0..self.panels()).into_par_iter().for_each(|panel| {
            let mut scratch: Buffer<u8> = self.memory.buffer(self.family.geometry.panel * self.width * 4);
            // SAFETY: the call owns its panel of A and its scratch.
            unsafe {
                unpack(&abi::UnpackAccumulator {
                    hidden: self.pass.x.columns(),
                    first_panel: panel,
                    panels: 1,
                    a: a.get(),
                    scratch: scratch.as_mut().as_mut_ptr(),
                });
            }
        });
    }
}

/// The scratch of this thread.
pub(super) fn lock<T>(scratch: &[Mutex<T>]) -> std::sync::MutexGuard<'_, T> {
    let thread = rayon::current_thread_index().unwrap_or(0);
    scratch[thread].lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Cpu {
    /// Logits, statistics and (unless `stages` leaves it out) A of one shard, into `rows`; saves if `saved` is given.
    ///
    /// With [`Stages::AccumulateSaved`] the references in `rows` are the final ones and stay as they are.
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
        let (values, references) = match saved {
            Some(saved) => (saved.values.pointer(), saved.references.pointer()),
            None => (SharedPointer(ptr::null_mut()), SharedPointer(ptr::null_mut())),
        };
        self.install(|| {
            let x = match stages {
                Stages::AccumulateSaved => Buffer::zeroed(0),
                _ => pack::tokens(self.memory(), &family.geometry, family.pack_tokens, pass.x, pass.rows),
            };
            let walk = Walk {
                family,
                memory: self.memory(),
                softmax,
                pass,
                inputs: &inputs,
                stages,
                blocking: self.blocking(family, pass.x.columns()),
                padded: pass.rows.len().next_multiple_of(family.geometry.panel),
                width: family.padded_hidden(pass.x.columns()),
                x,
                values,
                references,
            };
            // A filter measures values against the mass so far, of which slices of the vocabulary see a little each.
            let slices = match pass.filter {
                Some(_) => 1,
                None => slices(pass.w.rows(), family.chunk, walk.panels(), family.geometry.panel * walk.width * 4),
            };
            match slices {
                1 => walk.by_tokens(rows),
                slices => walk.by_vocabulary(slices, rows),
            }
        })
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
        let mut rows = self.memory().buffer::<u8>(ids.len() * row_bytes);
        // SAFETY: ids are rows of W, and `rows` holds one row for each.
        unsafe {
            (family.gather_rows)(&abi::GatherRows {
                table: pass.w.row_pointer(0),
                row_stride: pass.w.row_stride(),
                ids: ids.as_ptr(),
                count: ids.len(),
                columns: pass.w.columns(),
                out: rows.as_mut().as_mut_ptr(),
            });
        }
        TargetRows { index, rows: rows.into(), row_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_depend_on_sizes_and_stay_small() {
        let kib = 1 << 10;
        let of_chunks = |chunks: usize, panels, bytes| slices(512 * chunks, 256, panels, bytes);
        assert_eq!(
            (of_chunks(64, 1, 128 * kib), of_chunks(64, 2, 128 * kib), of_chunks(64, 8, 128 * kib)),
            (32, 21, 7)
        );
        assert_eq!(
            (of_chunks(400, 1, 128 * kib), of_chunks(64, 2, 512 * kib), of_chunks(640, 4, 2048 * kib)),
            (32, 8, 1)
        );
        let one = |columns, panels| slices(columns, 512, panels, kib);
        assert_eq!((one(1, 1), one(0, 1), one(32768, 9), one(32768, 0)), (1, 1, 1, 1));
        assert_eq!((slices(32768, 512, 1, kib), slices(32768, 2048, 1, kib)), (32, 8));
        assert_eq!(
            (chunks_together(1, kib, 9), chunks_together(2, 2048 * kib, 9), chunks_together(8, kib, 9)),
            (1, 2, 8)
        );
        assert_eq!((chunks_together(2, 8192 * kib, 9), chunks_together(2, kib, 0)), (1, 1));
        let parts: Vec<_> = (0..4).map(|i| part(10, 4, i)).collect();
        assert_eq!(parts, [0..3, 3..6, 6..8, 8..10]);
    }
}
