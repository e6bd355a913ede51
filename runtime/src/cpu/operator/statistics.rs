//! The first phase on one shard.

use super::super::Cpu;
use super::super::family::{ProgramInputs, bind};
use super::super::s_pass::lock;
use super::kernels::OperatorKernels;
use super::tiles::{Chunk, Operands, chunks, group, operands, stride};
use crate::Result;
use crate::buffer::{Buffer, SharedPointer};
use crate::operator::{RowJob, RowState};
use rayon::prelude::*;
use std::ptr;
use std::sync::Mutex;
use vocabfuse_codegen::program::keys;
use vocabfuse_kernels::abi::{self, Place};

impl Cpu {
    /// Statistics of a shard.
    pub(super) fn row_statistics(&self, kernels: &OperatorKernels, job: &RowJob<'_>) -> Result<RowState> {
        self.install(|| {
            let panel = kernels.host.panel;
            let slots = job.selection.slots.max(job.top);
            let mut state = RowState::identity(job.operator, job.rows.len(), slots, panel);
            let mut lost = state.lost(job.operator);
            let kernel = kernels.statistics.kernel;
            let inputs = ProgramInputs {
                classes: job.classes as i32,
                targets: ptr::null(),
                uniforms: bind(kernel, kernel.bindings.uniforms, |_| None)?,
                rows: bind(kernel, kernel.bindings.rows, |_| None)?,
                columns: bind(kernel, kernel.bindings.columns, |_| None)?,
            };
            let mut operands = operands(self, kernels, job)?;
            let pointers = Pointers::new(job, panel, &mut state, &mut lost);
            let pass = Pass::new(self, kernels, job, &operands, inputs, pointers);
            for chunk in chunks(job.classes) {
                operands.iter_mut().for_each(|o| o.advance(chunk, false));
                pass.run(&operands, chunk);
            }
            state.restore(job.operator, &lost);
            Ok(state)
        })?
    }
}

/// Everything that all chunks share.
struct Pass<'a> {
    kernels: &'a OperatorKernels,
    job: &'a RowJob<'a>,
    inputs: ProgramInputs,
    panels: usize,
    group: usize,
    state: Pointers,
    /// Tiles of a group of panels, one set a thread.
    tiles: Vec<Mutex<Buffer<f32>>>,
}

/// Where kernels keep what they know of tokens.
struct Pointers {
    rows: Vec<*mut f32>,
    selected: Vec<*mut f32>,
    top: abi::Top,
    /// Keys of random numbers.
    random: [Vec<u32>; 2],
}

// SAFETY: addresses of buffers that outlive the pass, of which each task uses the tokens of its panels.
unsafe impl Sync for Pointers {}

impl<'a> Pass<'a> {
    fn new(
        cpu: &Cpu,
        kernels: &'a OperatorKernels,
        job: &'a RowJob<'a>,
        operands: &[Operands<'_>],
        inputs: ProgramInputs,
        state: Pointers,
    ) -> Pass<'a> {
        let panel = kernels.host.panel;
        let panels = job.rows.len().div_ceil(panel);
        let group = group(cpu, operands, panels);
        let elements = job.distributions.len() * group * stride(panel);
        let tiles = (0..cpu.threads()).map(|_| Mutex::new(cpu.memory().buffer(elements))).collect();
        Pass { kernels, job, inputs, panels, group, state, tiles }
    }

    fn run(&self, operands: &[Operands<'_>], chunk: Chunk) {
        let panel = self.kernels.host.panel;
        let stride = stride(panel);
        (0..self.panels.div_ceil(self.group)).into_par_iter().for_each(|task| {
            let mut tiles = lock(&self.tiles);
            let tiles = tiles.pointer();
            let first_panel = task * self.group;
            let panels = self.group.min(self.panels - first_panel);
            let place = Place { first_panel, panels, first_column: chunk.first, columns: chunk.columns, stride };
            let mut filled = [ptr::null(); 2];
            for (i, operands) in operands.iter().enumerate() {
                let tiles = SharedPointer(tiles.get().wrapping_add(i * self.group * stride));
                operands.fill(place, tiles, SharedPointer(ptr::null_mut()));
                filled[i] = tiles.get().cast_const();
            }
            let selection = &self.job.selection;
            let random = |i: usize| self.state.random[i].as_ptr();
            // SAFETY: all arrays hold whole panels of tokens, of which this task alone uses its own; the tiles are those
            // of its thread.
            unsafe {
                (self.kernels.statistics.run)(&abi::RowStatistics {
                    inputs: self.inputs.view(),
                    place,
                    tiles: filled,
                    state: self.state.rows.as_ptr(),
                    selection: abi::Selection {
                        slots: selection.slots,
                        stride: selection.stride,
                        ids: selection.ids.as_ref().as_ptr(),
                        weights: ptr::null(),
                    },
                    selected: self.state.selected.as_ptr(),
                    top: self.state.top,
                    random: [random(0), random(1)],
                    first_id: self.job.first_id as u32,
                });
            }
        });
    }
}

impl Pointers {
    fn new(job: &RowJob<'_>, panel: usize, state: &mut RowState, lost: &mut [Buffer<f32>]) -> Pointers {
        let pointer = |b: &mut Buffer<f32>| b.as_mut().as_mut_ptr();
        let top = match &mut state.top {
            Some(top) => abi::Top {
                slots: top.slots,
                stride: top.stride,
                values: pointer(&mut top.values),
                noise: pointer(&mut top.noise),
                ids: top.ids.as_mut().as_mut_ptr(),
            },
            None => {
                let nothing = ptr::null_mut();
                abi::Top { slots: 0, stride: 0, values: nothing, noise: nothing, ids: ptr::null_mut() }
            }
        };
        let padded = job.rows.len().next_multiple_of(panel);
        let key = |i: usize| {
            let mut all: Vec<u32> = job.rows.iter().map(|row| keys(job.seed, *row)[i]).collect();
            all.resize(padded, 0);
            all
        };
        Pointers {
            rows: state.rows.iter_mut().chain(lost).map(pointer).collect(),
            selected: state.selected.iter_mut().map(pointer).collect(),
            top,
            random: [key(0), key(1)],
        }
    }
}
