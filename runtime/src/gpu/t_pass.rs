//! Pass T of one shard on a device.

use super::buffer::Buffer;
use super::driver::Argument::{self, I32, I64, Pointer};
use super::kernels::Kernels;
use super::rows::pointer;
use super::s_pass::{Inputs, Saved, chunks};
use crate::Result;
use crate::passes::{SPass, Sums};
use std::ops::Range;
use vocabfuse_codegen::cuda::{logits_blocks, reduce_columns_blocks, tile_blocks, token_tiles, weight_grad_blocks};
use vocabfuse_codegen::{Dtype, KernelKind};

/// What pass T needs of the merged rows of all tokens.
#[derive(Debug)]
pub struct Ticket {
    /// References.
    pub(super) references: Buffer,
    /// Outputs of the finish program: `[outputs][tokens]`.
    pub(super) outputs: Buffer,
}

/// One microbatch on its way through pass T. No launch waits for a value of another: dW and dbias are read at the end.
struct Walk<'a> {
    kernels: &'a Kernels,
    inputs: &'a Inputs,
    pass: &'a SPass<'a>,
    ticket: &'a Ticket,
    upstream: Buffer,
    /// What Q is multiplied by, and its inverse; f16 only.
    scale: Option<Buffer>,
    /// Q of one chunk, where it does not replace saved E.
    q: Option<Buffer>,
    saved: Option<Saved>,
    dw: Buffer,
    dbias: Option<Buffer>,
    /// Column sums of Q.
    sums: Option<Buffer>,
}

/// Adds the gradients of one shard.
pub(super) fn t_pass(
    kernels: &Kernels,
    inputs: &Inputs,
    pass: &SPass<'_>,
    ticket: &Ticket,
    saved: Option<Saved>,
    upstream: &[f32],
    sums: Sums<'_>,
) -> Result<()> {
    let (tokens, classes) = (pass.rows.len(), pass.w.rows());
    if tokens == 0 || classes == 0 {
        return Ok(());
    }
    let driver = kernels.driver();
    let room = |bytes: usize, wanted: bool| wanted.then(|| Buffer::new(driver, bytes)).transpose();
    let with_bias = sums.dbias.is_some();
    let walk = Walk {
        kernels,
        inputs,
        pass,
        ticket,
        upstream: Buffer::with(driver, &upstream[..tokens])?,
        scale: room(8, kernels.dtype == Dtype::F16)?,
        q: room(tokens * kernels.chunk * kernels.dtype.size(), saved.is_none())?,
        saved,
        dw: Buffer::new(driver, classes * inputs.width * 4)?,
        dbias: room(classes * 4, with_bias)?,
        sums: room(token_tiles(tokens) * kernels.chunk * 4, with_bias)?,
    };
    walk.run()?;
    let hidden = pass.x.columns();
    walk.dw.each_row(classes, inputs.width, |row, values| {
        sums.dw[row * hidden..][..hidden].iter_mut().zip(values).for_each(|(sum, v)| *sum += v);
    })?;
    if let (Some(to), Some(from)) = (sums.dbias, &walk.dbias) {
        to.iter_mut().zip(from.floats(0, classes)?).for_each(|(sum, v)| *sum += v);
    }
    Ok(())
}

impl Walk<'_> {
    fn tokens(&self) -> usize {
        self.pass.rows.len()
    }

    fn run(&self) -> Result<()> {
        if let Some(scale) = &self.scale {
            let call = self
                .kernels
                .call(KernelKind::GradientScale)?
                .set([("tokens", I32(self.tokens() as i32)), ("scale", scale.from(0))])
                .rows(|name| self.row(name))?;
            call.launch(1)?;
        }
        for (index, columns) in chunks(self.kernels, self.pass.w.rows()) {
            let q = self.gradient(index, &columns)?;
            self.reduce(&columns)?;
            self.multiply(&columns, q)?;
        }
        Ok(())
    }

    fn row(&self, name: &str) -> Option<Argument> {
        if name == "upstream" {
            return Some(self.upstream.from(0));
        }
        let position = self.kernels.outputs().iter().position(|known| *known == name)?;
        Some(self.ticket.outputs.from(position * self.tokens() * 4))
    }

    /// Q of a chunk.
    fn gradient(&self, index: usize, columns: &Range<usize>) -> Result<Argument> {
        let (kernels, inputs, tokens, width) = (self.kernels, self.inputs, self.tokens(), self.inputs.width);
        let kind = if self.saved.is_some() { KernelKind::SavedGradient } else { KernelKind::LogitsGradient };
        let call = kernels
            .call(kind)?
            .set([
                ("references", self.ticket.references.from(0)),
                ("tokens", I32(tokens as i32)),
                ("first_column", I32(columns.start as i32)),
                ("columns", I32(columns.len() as i32)),
                ("classes", I32(self.pass.w.rows() as i32)),
                ("targets", inputs.targets.from(0)),
                ("scale", pointer(self.scale.as_ref())),
                ("column_partials", pointer(self.sums.as_ref())),
            ])
            .uniforms(|name| self.pass.inputs.uniform(name))?
            .rows(|name| self.row(name))?
            .columns(|name| inputs.column(name))?;
        if let Some(saved) = &self.saved {
            let (values, references) = saved.chunk(kernels, tokens, index);
            let call = call.set([("values", values), ("saved_references", references)]);
            call.launch(tile_blocks(tokens, columns.len()))?;
            return Ok(values);
        }
        let q = pointer(self.q.as_ref());
        let call = call.set([
            ("x", inputs.x.from(0)),
            ("x_stride", I64(width as i64)),
            ("w", inputs.w.from(columns.start * width * kernels.dtype.size())),
            ("w_stride", I64(width as i64)),
            ("hidden", I32(width as i32)),
            ("q", q),
        ]);
        call.launch(logits_blocks(tokens, columns.len()))?;
        Ok(q)
    }

    /// The gradient of the bias from the column sums of a chunk.
    fn reduce(&self, columns: &Range<usize>) -> Result<()> {
        let (Some(sums), Some(dbias)) = (&self.sums, &self.dbias) else { return Ok(()) };
        let call = self.kernels.call(KernelKind::ReduceColumns)?.set([
            ("column_partials", sums.from(0)),
            ("partial_stride", I64(self.kernels.chunk as i64)),
            ("row_tiles", I32(token_tiles(self.tokens()) as i32)),
            ("columns", I32(columns.len() as i32)),
            ("gradient", dbias.from(columns.start * 4)),
            ("beta", I32(0)),
        ]);
        call.launch(reduce_columns_blocks(columns.len()))
    }

    /// dW of a chunk.
    fn multiply(&self, columns: &Range<usize>, q: Argument) -> Result<()> {
        let (inputs, width) = (self.inputs, self.inputs.width);
        let call = self.kernels.call(KernelKind::WeightGrad)?.set([
            ("q", q),
            ("x", inputs.x.from(0)),
            ("x_stride", I64(width as i64)),
            ("tokens", I32(self.tokens() as i32)),
            ("hidden", I32(width as i32)),
            ("columns", I32(columns.len() as i32)),
            ("dw", self.dw.from(columns.start * width * 4)),
            ("dw_stride", I64(width as i64)),
            ("beta", I32(0)),
            ("scale", pointer(self.scale.as_ref())),
            ("skip", Pointer(0)),
            ("skip_stride", I64(0)),
        ]);
        call.launch(weight_grad_blocks(columns.len(), width))
    }
}
