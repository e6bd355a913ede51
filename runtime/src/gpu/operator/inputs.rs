//! Logits of one chunk: computed from X and W, or copied from given ones, with all options applied.

use super::super::buffer::Buffer;
use super::super::driver::Argument::{self, I32, I64};
use super::super::kernels::Kernels;
use super::super::rows::pointer;
use super::super::s_pass::{check_extent, padded_hidden};
use super::CHUNK;
use super::kernels::OperatorKernels;
use crate::operator::{Distribution, RowJob, Source};
use crate::{Dtype, Matrix, Result};
use half::{bf16, f16};
use std::ops::Range;
use vocabfuse_codegen::KernelKind;

/// One distribution on the device.
pub(super) struct Input<'a> {
    kernels: &'a OperatorKernels,
    /// Position among the distributions.
    index: usize,
    distribution: Distribution<'a>,
    rows: &'a [u32],
    linear: Option<Linear<'a>>,
    /// Of all classes, zeros where there is none.
    bias: Buffer,
    /// f32 `[tokens][CHUNK]`.
    pub(super) logits: Buffer,
    /// Slopes of the softcap at the logits, f32 `[tokens][CHUNK]`; only for gradients of capped logits.
    pub(super) slopes: Option<Buffer>,
}

/// Operands of products.
pub(super) struct Linear<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) hidden: usize,
    /// H padded to whole sectors, see [`padded_hidden`].
    pub(super) width: usize,
    /// Tokens that take part.
    pub(super) x: Buffer,
    pub(super) w: Buffer,
}

/// All distributions of a job.
pub(super) fn load<'a>(kernels: &'a OperatorKernels, job: &RowJob<'a>) -> Result<Vec<Input<'a>>> {
    (0..job.distributions.len()).map(|index| Input::new(kernels, index, job)).collect()
}

impl<'a> Input<'a> {
    fn new(kernels: &'a OperatorKernels, index: usize, job: &RowJob<'a>) -> Result<Input<'a>> {
        let (driver, rows, distribution) = (kernels.driver(), job.rows, job.distributions[index]);
        check_extent("x", rows.len())?;
        let linear = match (distribution.source, &kernels.inputs[index].products) {
            (Source::Linear { x, weight }, Some(products)) => {
                check_extent("w", weight.rows())?;
                check_extent("x", x.columns())?;
                let width = padded_hidden(products.dtype, x.columns());
                let row = |token: usize| x.row_bytes(rows[token] as usize);
                Some(Linear {
                    kernels: products,
                    hidden: x.columns(),
                    width,
                    x: Buffer::rows(driver, rows.len(), width * products.dtype.size(), row)?,
                    w: Buffer::matrix(driver, weight, width)?,
                })
            }
            _ => None,
        };
        let bias = distribution.bias.map_or(vec![0.0; job.classes], |bias| bias[..job.classes].to_vec());
        Ok(Input {
            kernels,
            index,
            distribution,
            rows,
            linear,
            bias: Buffer::with(driver, &bias)?,
            logits: Buffer::new(driver, rows.len() * CHUNK * 4)?,
            slopes: None,
        })
    }

    /// From now on the slopes of the softcap are made with the logits, if there is one.
    pub(super) fn with_slopes(mut self) -> Result<Self> {
        let room = || Buffer::new(self.kernels.driver(), self.rows.len() * CHUNK * 4);
        self.slopes = self.distribution.softcap.map(|_| room()).transpose()?;
        Ok(self)
    }

    /// Operands of products; none of given logits.
    pub(super) fn linear(&self) -> Option<&Linear<'a>> {
        self.linear.as_ref()
    }

    /// Makes the logits of a chunk.
    pub(super) fn fill(&self, chunk: &Range<usize>) -> Result<()> {
        match (&self.linear, self.distribution.source) {
            (Some(linear), _) => self.multiply(linear, chunk)?,
            (None, Source::Logits(logits)) => self.copy(logits, chunk)?,
            (None, Source::Linear { .. }) => {}
        }
        let call = self
            .kernels
            .row_logits(self.index)?
            .set([
                ("logits", self.logits.from(0)),
                ("stride", I64(CHUNK as i64)),
                ("first_column", I32(chunk.start as i32)),
                ("columns", I32(chunk.len() as i32)),
                ("slopes", pointer(self.slopes.as_ref())),
            ])
            .uniforms(|name| match name {
                "logit_scale" => Some(self.distribution.logit_scale),
                "softcap" => self.distribution.softcap,
                _ => None,
            })?
            .columns(|name| (name == "bias").then(|| self.bias.from(0)))?;
        call.launch_rows(self.rows.len())
    }

    fn multiply(&self, linear: &Linear<'_>, chunk: &Range<usize>) -> Result<()> {
        let (tokens, width) = (self.rows.len(), linear.width);
        let call = linear.kernels.call(KernelKind::Logits)?.set([
            ("x", linear.x.from(0)),
            ("x_stride", I64(width as i64)),
            ("w", linear.w_from(chunk.start)),
            ("w_stride", I64(width as i64)),
            ("tokens", I32(tokens as i32)),
            ("hidden", I32(width as i32)),
            ("columns", I32(chunk.len() as i32)),
            ("logits", self.logits.from(0)),
            ("stride", I64(CHUNK as i64)),
        ]);
        call.launch()
    }

    fn copy(&self, logits: Matrix<'_>, chunk: &Range<usize>) -> Result<()> {
        let size = logits.dtype().size();
        let mut values = vec![0.0f32; self.rows.len() * CHUNK];
        for (to, row) in values.chunks_mut(CHUNK).zip(self.rows) {
            let bytes = &logits.row_bytes(*row as usize)[chunk.start * size..chunk.end * size];
            let to = &mut to[..chunk.len()];
            match logits.dtype() {
                Dtype::F32 => to.copy_from_slice(bytemuck::cast_slice(bytes)),
                Dtype::Bf16 => convert(to, bytemuck::cast_slice(bytes), bf16::to_f32),
                Dtype::F16 => convert(to, bytemuck::cast_slice(bytes), f16::to_f32),
            }
        }
        self.logits.write(bytemuck::cast_slice(&values))
    }
}

impl Linear<'_> {
    /// Address of W from a row on.
    pub(super) fn w_from(&self, row: usize) -> Argument {
        self.w.from(row * self.width * self.kernels.dtype.size())
    }
}

fn convert<T: Copy>(to: &mut [f32], from: &[T], value: fn(T) -> f32) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = value(*from));
}
