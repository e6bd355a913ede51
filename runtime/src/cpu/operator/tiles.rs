//! Tiles of logits: computed from X and W, or filled from given logits, with all options applied.

use super::super::Cpu;
use super::super::family::{ProgramInputs, bind};
use super::super::pack;
use super::CHUNK;
use super::kernels::{InputKernels, OperatorKernels, Products};
use crate::buffer::{Buffer, SharedPointer};
use crate::memory::Memory;
use crate::operator::{Distribution, RowJob, Source};
use crate::{Dtype, Matrix, Result};
use half::{bf16, f16};
use std::ptr;
use vocabfuse_kernels::abi::{self, Blocking, Place};

/// The operands of one distribution: what its tiles are made from, chunk by chunk.
pub(super) struct Operands<'a> {
    pub(super) memory: Memory,
    kernels: &'a InputKernels,
    distribution: Distribution<'a>,
    rows: &'a [u32],
    panel: usize,
    options: ProgramInputs,
    linear: Option<Linear<'a>>,
}

/// Packed operands of a product.
pub(super) struct Linear<'a> {
    pub(super) products: &'a Products,
    pub(super) hidden: usize,
    /// H padded to whole panels.
    pub(super) width: usize,
    pub(super) blocking: Blocking,
    weight: Matrix<'a>,
    x: Buffer<u8>,
    /// The chunk at hand.
    w: Buffer<u8>,
}

/// Columns of a shard.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub(super) first: usize,
    pub(super) columns: usize,
}

/// The chunks of some classes.
pub(super) fn chunks(classes: usize) -> impl Iterator<Item = Chunk> {
    (0..classes).step_by(CHUNK).map(move |first| Chunk { first, columns: CHUNK.min(classes - first) })
}

/// Elements of a tile.
pub(super) fn stride(panel: usize) -> usize {
    CHUNK * panel
}

/// The operands of all distributions of a job.
pub(super) fn operands<'a>(cpu: &Cpu, kernels: &'a OperatorKernels, job: &RowJob<'a>) -> Result<Vec<Operands<'a>>> {
    let one = |(kernels, distribution): (&'a InputKernels, &Distribution<'a>)| {
        Operands::new(cpu, kernels, *distribution, job.rows, job.classes)
    };
    kernels.inputs.iter().zip(job.distributions).map(one).collect()
}

/// Panels that a task works on together: at most as many as are to share one read of W.
pub(super) fn group(cpu: &Cpu, operands: &[Operands<'_>], panels: usize) -> usize {
    let shared = operands.iter().filter_map(Operands::linear).map(|linear| linear.blocking.panels).min();
    panels.div_ceil(cpu.threads()).clamp(1, shared.unwrap_or(1))
}

impl<'a> Operands<'a> {
    fn new(
        cpu: &Cpu,
        kernels: &'a InputKernels,
        distribution: Distribution<'a>,
        rows: &'a [u32],
        classes: usize,
    ) -> Result<Self> {
        let kernel = kernels.options.kernel;
        let uniform = |name: &str| match name {
            "logit_scale" => Some(distribution.logit_scale),
            "softcap" => distribution.softcap,
            _ => None,
        };
        let column = |name: &str| (name == "bias").then(|| distribution.bias.map_or(ptr::null(), <[f32]>::as_ptr));
        let options = ProgramInputs {
            classes: classes as i32,
            targets: ptr::null(),
            uniforms: bind(kernel, kernel.bindings.uniforms, uniform)?,
            rows: vec![],
            columns: bind(kernel, kernel.bindings.columns, column)?,
        };
        let linear = match (&kernels.products, distribution.source) {
            (Some(products), Source::Linear { x, weight }) => {
                let width = pack::width(&products.geometry, x.columns());
                Some(Linear {
                    products,
                    hidden: x.columns(),
                    width,
                    blocking: cpu.blocking_of(&products.geometry, CHUNK, width),
                    weight,
                    x: pack::tokens(cpu.memory(), &products.geometry, products.pack_tokens, x, rows),
                    w: cpu.memory().buffer(pack::vocabulary_bytes(&products.geometry, CHUNK, width)),
                })
            }
            _ => None,
        };
        let panel = kernel.geometry.panel;
        Ok(Operands { memory: cpu.memory().clone(), kernels, distribution, rows, panel, options, linear })
    }

    /// What products need besides.
    pub(super) fn linear(&self) -> Option<&Linear<'a>> {
        self.linear.as_ref()
    }

    /// X as operand of the weight gradient.
    pub(super) fn x_grad(&self) -> Buffer<u8> {
        match (&self.linear, self.distribution.source) {
            (Some(linear), Source::Linear { x, .. }) => pack::tokens_grad(
                &self.memory,
                &linear.products.geometry,
                linear.products.pack_tokens_grad,
                x,
                self.rows,
            ),
            _ => Buffer::zeroed(0),
        }
    }

    /// Packs the rows of W of a chunk; with the transpose for A += Q W.
    pub(super) fn advance(&mut self, chunk: Chunk, transpose: bool) {
        if let Some(linear) = &mut self.linear {
            let (products, w) = (linear.products, linear.w.pointer());
            let (geometry, kernel) = (&products.geometry, products.pack_vocabulary);
            let rows = pack::Rows { first: chunk.first, count: chunk.columns, allocated: CHUNK, transpose };
            pack::vocabulary(geometry, kernel, linear.weight, rows, w);
        }
    }

    /// Whether the derivative by z is not that by the logit, so that gradients need the slopes of `fill`.
    pub(super) fn bends(&self) -> bool {
        self.distribution.softcap.is_some()
    }

    /// Logits of the chunk at hand and the panels of a place, into tiles that nobody else uses, and if `slopes` is not null
    /// the slopes of the softcap likewise.
    pub(super) fn fill(&self, place: Place, tiles: SharedPointer<f32>, slopes: SharedPointer<f32>) {
        match (&self.linear, self.distribution.source) {
            (Some(linear), _) => {
                // SAFETY: operands and tiles have the extents that the kernel states.
                unsafe {
                    (linear.products.logits)(&abi::RawLogits {
                        blocking: linear.blocking,
                        hidden: linear.hidden,
                        columns: place.columns,
                        allocated_rows: CHUNK,
                        first_panel: place.first_panel,
                        panels: place.panels,
                        x: linear.x.as_ref().as_ptr(),
                        w: linear.w.as_ref().as_ptr(),
                        out: tiles.get(),
                        stride: place.stride,
                    });
                }
            }
            (None, Source::Logits(logits)) => {
                // SAFETY: the tiles of the place are this call's own.
                let tiles = unsafe { std::slice::from_raw_parts_mut(tiles.get(), place.panels * place.stride) };
                self.gather(logits, place, tiles);
            }
            (None, Source::Linear { .. }) => {}
        }
        // SAFETY: as above; the program reads no row inputs.
        unsafe {
            (self.kernels.options.run)(&abi::RowLogits {
                inputs: self.options.view(),
                place,
                tiles: tiles.get(),
                slopes: slopes.get(),
            });
        }
    }

    // Given logits, transposed; zeros behind the last token.
    fn gather(&self, logits: Matrix<'_>, place: Place, tiles: &mut [f32]) {
        for (panel, tile) in tiles.chunks_mut(place.stride).enumerate() {
            for lane in 0..self.panel {
                let to = tile[lane..].iter_mut().step_by(self.panel).take(place.columns);
                let Some(row) = self.rows.get((place.first_panel + panel) * self.panel + lane) else {
                    to.for_each(|to| *to = 0.0);
                    continue;
                };
                let size = logits.dtype().size();
                let bytes = &logits.row_bytes(*row as usize)[place.first_column * size..][..place.columns * size];
                match logits.dtype() {
                    Dtype::F32 => copy(to, bytemuck::cast_slice::<u8, f32>(bytes), |v| v),
                    Dtype::Bf16 => copy(to, bytemuck::cast_slice::<u8, bf16>(bytes), bf16::to_f32),
                    Dtype::F16 => copy(to, bytemuck::cast_slice::<u8, f16>(bytes), f16::to_f32),
                }
            }
        }
    }
}

impl Linear<'_> {
    /// The packed chunk at hand.
    pub(super) fn packed(&self) -> *const u8 {
        self.w.as_ref().as_ptr()
    }
}

fn copy<'a, T: Copy>(to: impl Iterator<Item = &'a mut f32>, from: &[T], convert: impl Fn(T) -> f32) {
    to.zip(from).for_each(|(to, from)| *to = convert(*from));
}
