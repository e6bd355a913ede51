//! The passes on a GPU.

use super::Gpu;
use super::buffer::Buffer;
use super::finish::{self, Results};
use super::kernels::Kernels;
use super::rows::{Rows, Targets};
use super::s_pass::{self, Inputs, Saved, Walk};
use super::t_pass::{self, Ticket};
use crate::buffer::SharedPointer;
use crate::check::fingerprint;
use crate::passes::{Block, Demand, Extent, FinishJob, Finished, Passes, SPass, TPass};
use crate::{Dtype, Result};
use std::ops::Range;
use std::sync::Arc;
use vocabfuse_codegen::KernelKind;
use vocabfuse_codegen::program::ROW_FORMAT;

impl Passes for Gpu {
    type Kernels = Kernels;
    type Inputs = Inputs;
    type Kept = Option<Arc<Buffer>>;
    type Rows = Rows;
    type Targets = Targets;
    type Saved = Saved;
    type Results = Results;
    type Ticket = Ticket;

    fn place(&self) -> String {
        let precision = self.precision.map_or(String::new(), |p| format!(", precision {p}"));
        format!("the memory of {} #{}{precision}", self.name, self.id)
    }

    fn form(&self, kernels: &Kernels, hidden: usize) -> String {
        let loss = kernels.loss();
        let operand = loss.has(KernelKind::LogitsOperand).then(|| loss.shares_operand());
        let names = fingerprint(&format!("{:?}", (kernels.statistics(), operand, kernels.outputs())));
        let width = s_pass::padded_hidden(kernels.dtype, hidden);
        format!("in format {ROW_FORMAT} in rows of {width}, programs {names:016x}")
    }

    fn kernels(&self, loss: &str, dtype: Dtype, chunk: Option<usize>) -> Result<Kernels> {
        Kernels::new(&self.library, self.loss(loss)?, dtype, self.precision, chunk)
    }

    fn can_save(kernels: &Kernels) -> bool {
        kernels.loss().can_save()
    }

    fn names(kernels: &Kernels, saved: bool) -> Vec<&'static str> {
        kernels.names(saved)
    }

    // Kernels take any number of tokens.
    fn panel(_: &Kernels) -> usize {
        1
    }

    fn working_set(&self, kernels: &Kernels, extent: Extent, demand: Demand) -> usize {
        s_pass::working_set(kernels, extent, demand)
    }

    fn saved_bytes(kernels: &Kernels, extent: Extent) -> usize {
        s_pass::saved_bytes(kernels, extent)
    }

    fn held(saved: &Saved) -> usize {
        saved.held()
    }

    fn load(&self, kernels: &Kernels, pass: &SPass<'_>) -> Result<Inputs> {
        s_pass::load(kernels, pass)
    }

    /// The largest logits of tiles, which pass S finds.
    fn keep(inputs: Inputs) -> Option<Arc<Buffer>> {
        inputs.peaks
    }

    fn s_pass(
        &self,
        kernels: &Kernels,
        inputs: &Inputs,
        pass: &SPass<'_>,
        accumulate: bool,
        save: bool,
    ) -> Result<(Rows, Option<Saved>)> {
        let saved = save.then(|| s_pass::saved(kernels, inputs)).transpose()?;
        let walk = Walk::new(kernels, inputs, pass.inputs, accumulate && !save)?;
        let mut rows = walk.statistics(accumulate, saved.as_ref())?;
        if accumulate {
            rows.operand = walk.operand()?;
            rows.targets = s_pass::gather_targets(kernels, inputs, pass)?;
        }
        Ok((rows, saved))
    }

    fn references(&self, kernels: &Kernels, rows: &Rows) -> Result<Rows> {
        rows.references(kernels)
    }

    fn raise(&self, kernels: &Kernels, rows: &mut Rows, references: &Rows) -> Result<()> {
        rows.merge(kernels, &references.references(kernels)?, 0)
    }

    fn accumulate(
        &self,
        kernels: &Kernels,
        inputs: &Inputs,
        pass: &SPass<'_>,
        merged: Rows,
        saved: Option<&mut Saved>,
        leads: bool,
    ) -> Result<Rows> {
        let mut rows = if leads { merged } else { merged.without_statistics(kernels)? };
        rows.width = inputs.width;
        let walk = Walk::new(kernels, inputs, pass.inputs, saved.is_none())?;
        walk.relative(&mut rows, saved.as_deref())?;
        rows.operand = walk.operand()?;
        rows.targets = s_pass::gather_targets(kernels, inputs, pass)?;
        Ok(rows)
    }

    fn tokens(rows: &Rows) -> usize {
        rows.tokens
    }

    fn bytes(rows: &Rows) -> usize {
        rows.bytes()
    }

    fn targets(rows: &Rows) -> Targets {
        rows.targets.clone()
    }

    fn block(&self, kernels: &Kernels, rows: &Rows, tokens: Range<usize>) -> Result<Rows> {
        rows.block(kernels, tokens)
    }

    fn merge(&self, kernels: &Kernels, rows: &mut Rows, other: &Rows, start: usize) -> Result<()> {
        rows.merge(kernels, other, start)
    }

    fn concatenate(&self, kernels: &Kernels, blocks: &[&Block<Gpu>]) -> Result<Rows> {
        Rows::concatenate(kernels, blocks)
    }

    fn finish(
        &self,
        kernels: &Kernels,
        rows: &Rows,
        range: Range<usize>,
        job: &FinishJob<'_>,
        owners: &[Targets],
        dx: Option<SharedPointer<f32>>,
    ) -> Result<Results> {
        finish::finish(kernels, rows, range, job, owners, dx)
    }

    fn finished(rows: &mut Rows) {
        (rows.a, rows.operand) = (None, None);
    }

    fn gives(kernels: &Kernels, output: &str) -> bool {
        kernels.output(output).is_ok()
    }

    fn output(&self, kernels: &Kernels, blocks: &[Finished<'_, Gpu>], name: &str) -> Result<Vec<f32>> {
        let position = kernels.output(name)?;
        let mut values = vec![];
        for block in blocks {
            let tokens = block.tokens.len();
            values.extend(block.results.outputs.floats(position * tokens * 4, tokens)?);
        }
        Ok(values)
    }

    fn ticket(&self, kernels: &Kernels, blocks: &[Finished<'_, Gpu>]) -> Result<Ticket> {
        let tokens = blocks.last().map_or(0, |b| b.tokens.end);
        let outputs = kernels.outputs().len();
        let ticket = Ticket {
            references: Buffer::new(kernels.driver(), tokens * 4)?,
            outputs: Buffer::new(kernels.driver(), outputs * tokens * 4)?,
        };
        for block in blocks {
            let (first, part) = (block.tokens.start * 4, block.tokens.len() * 4);
            ticket.references.copy(first, &block.rows.state, 0, part)?;
            for output in 0..outputs {
                let to = output * tokens * 4 + first;
                ticket.outputs.copy(to, &block.results.outputs, output * part, part)?;
            }
        }
        Ok(ticket)
    }

    fn t_pass(&self, kernels: &Kernels, pass: TPass<'_, Gpu>) -> Result<()> {
        t_pass::t_pass(kernels, pass)
    }
}
