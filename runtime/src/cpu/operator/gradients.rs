//! The second phase on one shard: Q of a chunk for all tokens, then its products with W and X.

use super::super::Cpu;
use super::super::family::{ProgramInputs, bind};
use super::super::s_pass::lock;
use super::CHUNK;
use super::kernels::OperatorKernels;
use super::tiles::{Chunk, Linear, Operands, chunks, group, operands, stride};
use crate::Result;
use crate::buffer::{Buffer, SharedPointer};
use crate::operator::{DistributionGradients, GradientJob, RowJob};
use rayon::prelude::*;
use std::ptr;
use std::sync::Mutex;
use vocabfuse_kernels::abi::{self, Place};

/// Most columns of a task that adds to dW.
const COLUMNS: usize = 128;

/// What becomes of Q of one distribution.
struct Target {
    /// Position among the distributions.
    distribution: usize,
    inputs: ProgramInputs,
    /// Factor on column sums of Q that makes them a gradient of the bias, which is added after the scale.
    sum_factor: f32,
    /// Q of the chunk at hand, a tile a panel.
    q: SharedPointer<f32>,
    /// Slopes of the softcap at the logits of the chunk at hand, in tiles as Q; empty without one.
    slopes: Buffer<f32>,
    /// A, if dX is wanted.
    a: Option<Buffer<f32>>,
    /// X as operand of dW; empty if that is not wanted.
    x_grad: Buffer<u8>,
    dw: SharedPointer<f32>,
    dbias: SharedPointer<f32>,
    dlogits: SharedPointer<f32>,
    /// Columns of `dlogits`.
    owned: usize,
}

/// Everything that all chunks share.
struct Pass<'a> {
    kernels: &'a OperatorKernels,
    job: &'a RowJob<'a>,
    weights: *const f32,
    panels: usize,
    group: usize,
    /// Logits of the chunk at hand, a tile a panel, one buffer a distribution.
    tiles: Vec<SharedPointer<f32>>,
    /// One a thread.
    scratch: Vec<Mutex<Scratch>>,
}

struct Scratch {
    products: Buffer<u8>,
    selected: Buffer<f32>,
}

// SAFETY: `weights` is the address of an array that is only read.
unsafe impl Sync for Pass<'_> {}

impl Cpu {
    /// Adds the gradients of a shard; gives its parts of dX, `[tokens, H]`.
    pub(super) fn row_gradients(
        &self,
        kernels: &OperatorKernels,
        job: &RowJob<'_>,
        gradient: &GradientJob<'_>,
        wanted: &mut [DistributionGradients<'_>],
    ) -> Result<Vec<Option<Vec<f32>>>> {
        for wanted in wanted.iter_mut() {
            // Rows that take no part and padded columns have no gradient.
            if let Some(dlogits) = &mut wanted.dlogits {
                dlogits.fill(0.0);
            }
        }
        self.install(|| {
            let mut operands = operands(self, kernels, job)?;
            let (panel, panels) = (kernels.host.panel, job.rows.len().div_ceil(kernels.host.panel));
            let room = panels * stride(panel);
            let wants = |i: usize| wanted[i].any();
            let both = wanted.len() > 1 && wants(0) && wants(1);
            // Q takes the place of its own logits, but for the first of two, whose logits the second needs.
            // Zeros, since products take whole strips of the last columns and multiply what is behind them by zero.
            let mut tiles: Vec<Buffer<f32>> =
                (0..wanted.len() + usize::from(both)).map(|_| self.memory().zeroed(room)).collect();
            let pointers: Vec<SharedPointer<f32>> = tiles.iter_mut().map(Buffer::pointer).collect();
            let mut targets = vec![];
            for (i, wanted) in wanted.iter_mut().enumerate().filter(|(_, wanted)| wanted.any()) {
                let q = if both && i == 0 { pointers[2] } else { pointers[i] };
                targets.push(Target::new(kernels, job, gradient, i, &operands[i], wanted, q)?);
            }
            if !targets.is_empty() {
                let pass = Pass::new(self, kernels, job, gradient, pointers, &operands);
                let wanted: Vec<bool> = wanted.iter().map(|w| w.dx).collect();
                for chunk in chunks(job.classes) {
                    operands.iter_mut().zip(&wanted).for_each(|(o, wanted)| o.advance(chunk, *wanted));
                    pass.rows(&operands, &mut targets, chunk);
                    targets.iter().for_each(|target| pass.columns(&operands[target.distribution], target, chunk));
                }
            }
            let mut parts: Vec<Option<Vec<f32>>> = wanted.iter().map(|_| None).collect();
            for mut target in targets {
                if let (Some(a), Some(linear)) = (target.a.take(), operands[target.distribution].linear()) {
                    parts[target.distribution] = Some(unpack(linear, a, job.rows.len(), panel));
                }
            }
            Ok(parts)
        })?
    }
}

impl Target {
    fn new(
        kernels: &OperatorKernels,
        job: &RowJob<'_>,
        gradient: &GradientJob<'_>,
        distribution: usize,
        operands: &Operands<'_>,
        wanted: &mut DistributionGradients<'_>,
        q: SharedPointer<f32>,
    ) -> Result<Target> {
        let kernel = kernels.gradients[distribution].kernel;
        let of = &job.distributions[distribution];
        let uniform = |name: &str| match name {
            "logit_scale" => Some(of.logit_scale),
            _ => None,
        };
        let row = |name: &str| gradient.rows.iter().find(|(known, _)| known == name).map(|(_, v)| v.as_ptr());
        let inputs = ProgramInputs {
            classes: job.classes as i32,
            targets: ptr::null(),
            uniforms: bind(kernel, kernel.bindings.uniforms, uniform)?,
            rows: bind(kernel, kernel.bindings.rows, row)?,
            columns: bind(kernel, kernel.bindings.columns, |_| None)?,
        };
        let padded = job.rows.len().next_multiple_of(kernels.host.panel);
        let a = operands.linear().filter(|_| wanted.dx).map(|l| operands.memory.zeroed(padded * l.width));
        let pointer =
            |out: &mut Option<&mut [f32]>| SharedPointer(out.as_mut().map_or(ptr::null_mut(), |out| out.as_mut_ptr()));
        let owned = wanted.dlogits.as_ref().map_or(0, |d| d.len().checked_div(of.tokens()).unwrap_or(0));
        Ok(Target {
            distribution,
            inputs,
            sum_factor: of.logit_scale.recip(),
            q,
            slopes: operands.memory.buffer(if operands.bends() { padded * CHUNK } else { 0 }),
            a,
            x_grad: if wanted.dw.is_some() { operands.x_grad() } else { Buffer::zeroed(0) },
            dw: pointer(&mut wanted.dw),
            dbias: pointer(&mut wanted.dbias),
            dlogits: pointer(&mut wanted.dlogits),
            owned,
        })
    }
}

impl<'a> Pass<'a> {
    fn new(
        cpu: &Cpu,
        kernels: &'a OperatorKernels,
        job: &'a RowJob<'a>,
        gradient: &GradientJob<'_>,
        tiles: Vec<SharedPointer<f32>>,
        operands: &[Operands<'_>],
    ) -> Pass<'a> {
        let panel = kernels.host.panel;
        let panels = job.rows.len().div_ceil(panel);
        let group = group(cpu, operands, panels);
        let bytes = |linear: &Linear<'_>| {
            let geometry = &linear.products.geometry;
            (geometry.softmax_scratch)(CHUNK, group).max((geometry.grad_scratch)(&linear.blocking))
        };
        // Column sums need no scratch, but kernels may look for it.
        let bytes = operands.iter().filter_map(Operands::linear).map(bytes).max().unwrap_or(64);
        let selected = 2 * job.selection.slots * panel;
        let scratch = || Scratch { products: cpu.memory().buffer(bytes), selected: Buffer::zeroed(selected) };
        Pass {
            kernels,
            job,
            weights: gradient.weights.as_ref().as_ptr(),
            panels,
            group,
            tiles,
            scratch: (0..cpu.threads()).map(|_| Mutex::new(scratch())).collect(),
        }
    }

    /// Q of a chunk for all tokens, and what is made of it token by token: A, and gradients of given logits.
    fn rows(&self, operands: &[Operands<'_>], targets: &mut [Target], chunk: Chunk) {
        let stride = stride(self.kernels.host.panel);
        let a: Vec<SharedPointer<f32>> = targets.iter_mut().map(|t| pointer(t.a.as_mut())).collect();
        // One a distribution.
        let mut slopes = vec![pointer(None); operands.len()];
        for target in targets.iter_mut().filter(|t| operands[t.distribution].bends()) {
            slopes[target.distribution] = target.slopes.pointer();
        }
        let targets = &*targets;
        (0..self.panels.div_ceil(self.group)).into_par_iter().for_each(|task| {
            let mut scratch = lock(&self.scratch);
            let first_panel = task * self.group;
            let panels = self.group.min(self.panels - first_panel);
            let place = Place { first_panel, panels, first_column: chunk.first, columns: chunk.columns, stride };
            let mine = |tiles: SharedPointer<f32>| {
                let first = if tiles.get().is_null() { 0 } else { first_panel * stride };
                SharedPointer(tiles.get().wrapping_add(first))
            };
            for ((operands, tiles), slopes) in operands.iter().zip(&self.tiles).zip(&slopes) {
                operands.fill(place, mine(*tiles), mine(*slopes));
            }
            for (target, a) in targets.iter().zip(&a) {
                self.gradient(target, place, mine(slopes[target.distribution]), &mut scratch);
                if let (false, Some(linear)) = (a.get().is_null(), operands[target.distribution].linear()) {
                    // SAFETY: operands have the extents that the kernel states; this task owns its panels of A, and the
                    // scratch of its thread.
                    unsafe {
                        (linear.products.input_grad)(&abi::InputGrad {
                            hidden: linear.hidden,
                            columns: chunk.columns,
                            allocated_rows: CHUNK,
                            first_panel,
                            panels,
                            q: mine(target.q).get(),
                            stride,
                            w: linear.packed(),
                            a: a.get(),
                            scratch: scratch.products.as_mut().as_mut_ptr(),
                        });
                    }
                }
                if !target.dlogits.get().is_null() {
                    self.scatter(target, place);
                }
            }
        });
    }

    /// Q of a place; `slopes` are those of its tiles, or null.
    fn gradient(&self, target: &Target, place: Place, slopes: SharedPointer<f32>, scratch: &mut Scratch) {
        let selection = &self.job.selection;
        let first = place.first_panel * place.stride;
        let tile = |i: usize| self.tiles[i].get().wrapping_add(first).cast_const();
        let two = self.job.distributions.len() > 1;
        // SAFETY: tiles, rows and selection hold whole panels of tokens; this task alone uses those of its place.
        unsafe {
            (self.kernels.gradients[target.distribution].run)(&abi::RowGradient {
                inputs: target.inputs.view(),
                place,
                tiles: [tile(0), if two { tile(1) } else { ptr::null() }],
                slopes: slopes.get().cast_const(),
                out: target.q.get().wrapping_add(first),
                selection: abi::Selection {
                    slots: selection.slots,
                    stride: selection.stride,
                    ids: selection.ids.as_ref().as_ptr(),
                    weights: self.weights,
                },
                scratch: scratch.selected.as_mut().as_mut_ptr(),
            });
        }
    }

    /// Q of a place, transposed, to the rows of the gradient of given logits.
    fn scatter(&self, target: &Target, place: Place) {
        let panel = self.kernels.host.panel;
        let first = place.first_panel * panel;
        let tokens = self.job.rows.iter().enumerate().skip(first).take(place.panels * panel);
        for (token, row) in tokens {
            let tile = token / panel * place.stride + token % panel;
            for column in 0..place.columns {
                let to = *row as usize * target.owned + place.first_column + column;
                // SAFETY: rows and columns lie within the gradient, and this task alone writes the rows of its tokens.
                unsafe { *target.dlogits.get().add(to) = *target.q.get().add(tile + column * panel) };
            }
        }
    }

    /// What is made of Q column by column: dW and the gradient of the bias.
    fn columns(&self, operands: &Operands<'_>, target: &Target, chunk: Chunk) {
        let (dw, dbias) = (target.dw.get(), target.dbias.get());
        if dw.is_null() && dbias.is_null() {
            return;
        }
        let panel = self.kernels.host.panel;
        let Some(linear) = operands.linear() else {
            self.sum_columns(target, chunk);
            return;
        };
        // Few enough for tasks on all threads.
        let block = linear.blocking.grad_rows.min(COLUMNS);
        (0..chunk.columns.div_ceil(block)).into_par_iter().for_each(|task| {
            let mut scratch = lock(&self.scratch);
            let first_column = task * block;
            let row = chunk.first + first_column;
            let at =
                |p: SharedPointer<f32>, offset| if p.get().is_null() { p.get() } else { p.get().wrapping_add(offset) };
            let x_grad = if dw_wanted(target) { target.x_grad.as_ref().as_ptr() } else { ptr::null() };
            // SAFETY: operands have the extents that the kernel states; each task owns its rows of dW and of the gradient
            // of the bias, and the scratch of its thread.
            unsafe {
                (linear.products.vocabulary_grad)(&abi::VocabularyGrad {
                    blocking: linear.blocking,
                    hidden: linear.hidden,
                    first_column,
                    columns: block.min(chunk.columns - first_column),
                    panels: self.panels,
                    q: target.q.get(),
                    stride: stride(panel),
                    x_grad,
                    dw: at(target.dw, row * linear.hidden),
                    dw_stride: linear.hidden,
                    sums: at(target.dbias, row),
                    sum_factor: target.sum_factor,
                    scratch: scratch.products.as_mut().as_mut_ptr(),
                });
            }
        });
    }

    // Given logits have no product whose kernel would do it. Panels add up in f64, so that the error is that of one panel.
    fn sum_columns(&self, target: &Target, chunk: Chunk) {
        let panel = self.kernels.host.panel;
        let room = self.panels * stride(panel);
        // SAFETY: Q has a tile for each panel, which nobody writes now, and the bias has all columns of the chunk.
        let (q, dbias) = unsafe {
            let q = std::slice::from_raw_parts(target.q.get().cast_const(), room);
            (q, std::slice::from_raw_parts_mut(target.dbias.get().add(chunk.first), chunk.columns))
        };
        dbias.par_iter_mut().enumerate().for_each(|(column, sum)| {
            let parts = q.chunks(stride(panel)).map(|tile| tile[column * panel..][..panel].iter().sum::<f32>());
            *sum += (parts.map(f64::from).sum::<f64>() * f64::from(target.sum_factor)) as f32;
        });
    }
}

/// Where a buffer begins; null if there is none.
fn pointer(buffer: Option<&mut Buffer<f32>>) -> SharedPointer<f32> {
    buffer.map_or(SharedPointer(ptr::null_mut()), Buffer::pointer)
}

fn dw_wanted(target: &Target) -> bool {
    !target.dw.get().is_null()
}

/// A as rows without gaps.
fn unpack(linear: &Linear<'_>, mut a: Buffer<f32>, tokens: usize, panel: usize) -> Vec<f32> {
    if let Some(unpack) = linear.products.unpack_accumulator {
        let pointer = a.pointer();
        (0..tokens.div_ceil(panel)).into_par_iter().for_each(|first_panel| {
            let mut scratch = a.another(panel * linear.width);
            let scratch = scratch.as_mut().as_mut_ptr().cast();
            // SAFETY: the call owns its panel of A and its scratch.
            unsafe {
                unpack(&abi::UnpackAccumulator {
                    hidden: linear.hidden,
                    first_panel,
                    panels: 1,
                    a: pointer.get(),
                    scratch,
                });
            }
        });
    }
    let mut rows = vec![0.0; tokens * linear.hidden];
    for (to, from) in rows.chunks_mut(linear.hidden).zip(a.as_ref().chunks(linear.width)) {
        to.copy_from_slice(&from[..linear.hidden]);
    }
    rows
}
