//! The passes on a CPU.

use super::Cpu;
use super::family::Family;
use super::rows::{Outputs, ShardRows, TargetRows};
use super::s_pass::Saved;
use super::t_pass;
use super::working_set::working_set;
use crate::buffer::SharedPointer;
use crate::passes::{Block, Demand, Extent, FinishJob, Finished, Numerators, Passes, SPass, TPass};
use crate::{Dtype, Result};
use std::ops::Range;
use vocabfuse_codegen::program::NO_REFERENCE;
use vocabfuse_kernels::abi::Stages;

/// Values per token that pass T reads, padded to whole panels.
pub struct Factors {
    reference: Vec<f32>,
    /// Outputs of the finish program that the gradient program reads, by name.
    outputs: Vec<(&'static str, Vec<f32>)>,
}

fn padded(kernels: &Family, blocks: &[Finished<'_, Cpu>]) -> usize {
    blocks.last().map_or(0, |b| b.tokens.end).next_multiple_of(kernels.geometry.panel)
}

fn gather(kernels: &Family, blocks: &[Finished<'_, Cpu>], name: &str) -> Result<Vec<f32>> {
    let position = kernels.output(name)?;
    let mut all = vec![0.0; padded(kernels, blocks)];
    for block in blocks {
        let tokens = block.tokens.clone();
        all[tokens.clone()].copy_from_slice(&block.results.outputs[position].as_ref()[..tokens.len()]);
    }
    Ok(all)
}

impl Passes for Cpu {
    type Kernels = Family;
    type Inputs = ();
    type Kept = ();
    type Rows = ShardRows;
    type Targets = TargetRows;
    type Saved = Saved;
    type Results = Outputs;
    type Ticket = Factors;

    fn place(&self) -> String {
        format!("host{}", self.precision_note())
    }

    fn form(&self, kernels: &Family, hidden: usize) -> String {
        kernels.form(hidden)
    }

    fn kernels(&self, loss: &str, dtype: Dtype, chunk: Option<usize>) -> Result<Family> {
        Family::new(self, loss, dtype, chunk)
    }

    fn can_save(kernels: &Family) -> bool {
        kernels.weight_grad_saved.is_some()
    }

    fn names(kernels: &Family, saved: bool) -> Vec<&'static str> {
        kernels.names(saved)
    }

    fn panel(kernels: &Family) -> usize {
        kernels.geometry.panel
    }

    fn working_set(&self, kernels: &Family, extent: Extent, demand: Demand) -> usize {
        working_set(self, kernels, extent, demand)
    }

    fn saved_bytes(kernels: &Family, extent: Extent) -> usize {
        Saved::bytes(kernels, extent.tokens, extent.classes)
    }

    fn held(saved: &Saved) -> usize {
        saved.held()
    }

    // Kernels read the caller's memory.
    fn load(&self, _: &Family, _: &SPass<'_>) -> Result<()> {
        Ok(())
    }

    fn keep((): ()) {}

    fn s_pass(
        &self,
        kernels: &Family,
        (): &(),
        pass: &SPass<'_>,
        accumulate: bool,
        save: bool,
    ) -> Result<(ShardRows, Option<Saved>)> {
        let mut rows = ShardRows::identity(kernels, pass.rows.len());
        let mut saved = save.then(|| Saved::new(self.memory(), kernels, pass.rows.len(), pass.w.rows()));
        let stages = if accumulate { Stages::All } else { Stages::Statistics };
        self.walk(kernels, pass, stages, &mut rows, saved.as_mut())?;
        if accumulate {
            rows.operand = self.operand(kernels, pass)?;
            rows.targets = self.gather_targets(kernels, pass);
        }
        Ok((rows, saved))
    }

    fn references(&self, kernels: &Family, rows: &ShardRows) -> Result<ShardRows> {
        let mut references = ShardRows::identity(kernels, rows.tokens);
        references.state.truncate(1);
        references.state[0].as_mut().copy_from_slice(rows.state[0].as_ref());
        Ok(references)
    }

    fn raise(&self, kernels: &Family, rows: &mut ShardRows, references: &ShardRows) -> Result<()> {
        let mut global = ShardRows::identity(kernels, rows.tokens);
        global.state[0].as_mut().copy_from_slice(references.state[0].as_ref());
        rows.merge(kernels, &global, 0);
        Ok(())
    }

    fn accumulate(
        &self,
        kernels: &Family,
        (): &(),
        pass: &SPass<'_>,
        merged: ShardRows,
        saved: Option<&mut Saved>,
        leads: bool,
    ) -> Result<ShardRows> {
        let mut rows = ShardRows::identity(kernels, merged.tokens);
        let stages = if saved.is_some() { Stages::AccumulateSaved } else { Stages::All };
        // Saved values are not summed again: the filter measures them against the sums over all ranks.
        let known = if stages == Stages::AccumulateSaved { rows.state.len() } else { 1 };
        for (to, from) in rows.state.iter_mut().zip(&merged.state).take(known) {
            to.as_mut().copy_from_slice(from.as_ref());
        }
        self.walk(kernels, pass, stages, &mut rows, saved)?;
        if leads {
            rows.state = merged.state;
        } else {
            let identity = ShardRows::identity(kernels, merged.tokens);
            rows.state.truncate(1);
            rows.state.extend(identity.state.into_iter().skip(1));
        }
        rows.operand = self.operand(kernels, pass)?;
        rows.targets = self.gather_targets(kernels, pass);
        Ok(rows)
    }

    fn tokens(rows: &ShardRows) -> usize {
        rows.tokens
    }

    fn bytes(rows: &ShardRows) -> usize {
        rows.bytes()
    }

    fn targets(rows: &ShardRows) -> TargetRows {
        rows.targets.clone()
    }

    fn block(&self, kernels: &Family, rows: &ShardRows, tokens: Range<usize>) -> Result<ShardRows> {
        Ok(rows.block(tokens, kernels.geometry.panel))
    }

    fn merge(&self, kernels: &Family, rows: &mut ShardRows, other: &ShardRows, start: usize) -> Result<()> {
        rows.merge(kernels, other, start);
        Ok(())
    }

    fn concatenate(&self, kernels: &Family, blocks: &[&Block<Cpu>]) -> Result<ShardRows> {
        let tokens = blocks.last().map_or(0, |b| b.tokens.end);
        let mut rows = ShardRows::identity(kernels, tokens);
        for block in blocks {
            for (to, from) in rows.state.iter_mut().zip(&block.rows.state) {
                to.as_mut()[block.tokens.clone()].copy_from_slice(&from.as_ref()[..block.tokens.len()]);
            }
        }
        Ok(rows)
    }

    fn finish(
        &self,
        kernels: &Family,
        rows: &ShardRows,
        range: Range<usize>,
        job: &FinishJob<'_>,
        owners: &[TargetRows],
        dx: Option<SharedPointer<f32>>,
    ) -> Result<Outputs> {
        self.finish_rows(kernels, rows, range, job, owners, dx)
    }

    fn finished(rows: &mut ShardRows) {
        (rows.a, rows.operand) = (None, None);
    }

    fn gives(kernels: &Family, output: &str) -> bool {
        kernels.output(output).is_ok()
    }

    fn output(&self, kernels: &Family, blocks: &[Finished<'_, Cpu>], name: &str) -> Result<Vec<f32>> {
        gather(kernels, blocks, name)
    }

    fn ticket(&self, kernels: &Family, blocks: &[Finished<'_, Cpu>]) -> Result<Factors> {
        // What lies between the last token and the end of its panel must weigh nothing: it has the logits of the last token,
        // and this reference is above them all.
        let mut reference = vec![-NO_REFERENCE; padded(kernels, blocks)];
        for block in blocks {
            let tokens = block.tokens.clone();
            reference[tokens.clone()].copy_from_slice(&block.rows.state[0].as_ref()[..tokens.len()]);
        }
        let read = kernels.grad_kernel.bindings.rows.iter().filter(|name| **name != "upstream").chain(&["bound"]);
        let outputs = read.map(|name| Ok((*name, gather(kernels, blocks, name)?))).collect::<Result<_>>()?;
        Ok(Factors { reference, outputs })
    }

    fn t_pass(&self, kernels: &Family, work: TPass<'_, Cpu>) -> Result<()> {
        let TPass { pass, ticket, saved, upstream, sums, .. } = work;
        let pass = t_pass::TPass {
            x: pass.x,
            w: pass.w,
            inputs: pass.inputs,
            rows: pass.rows,
            targets: pass.targets,
            reference: &ticket.reference,
            outputs: &ticket.outputs,
            upstream,
            saved: saved.as_ref().map(Numerators::get),
            filter: pass.filter,
        };
        self.add_gradients(kernels, &pass, sums)
    }
}
