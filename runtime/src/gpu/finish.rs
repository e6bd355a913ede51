//! Results and dX from merged rows, on a device.

use super::buffer::Buffer;
use super::driver::Argument::{self, I32, I64, Pointer};
use super::kernels::Kernels;
use super::rows::{Rows, Targets, pointer};
use crate::Result;
use crate::buffer::SharedPointer;
use crate::passes::{FinishJob, LayerInputs};
use std::ops::Range;
use std::sync::Arc;
use vocabfuse_codegen::KernelKind;

/// What the finish program gives: `[outputs][tokens]`.
#[derive(Debug)]
pub struct Results {
    pub(super) outputs: Buffer,
}

/// Target rows of a block of tokens, from all shards.
struct Owned {
    rows: Option<Arc<Buffer>>,
    /// Position in `rows` for each token of the block.
    index: Vec<i32>,
}

// The rows that a shard owns lie in the order of tokens, so those of a block lie together.
fn owned(kernels: &Kernels, range: &Range<usize>, owners: &[Targets], row_bytes: usize) -> Result<Owned> {
    let of = |owner: &Targets| owner.index.get(range.clone()).unwrap_or_default().to_vec();
    let parts: Vec<(&Targets, Vec<i32>)> =
        owners.iter().map(|o| (o, of(o))).filter(|(_, index)| index.iter().any(|i| *i >= 0)).collect();
    if let [(owner, index)] = parts.as_slice() {
        return Ok(Owned { rows: owner.rows.clone(), index: index.clone() });
    }
    let mut index = vec![-1; range.len()];
    let total = parts.iter().flat_map(|(_, index)| index).filter(|i| **i >= 0).count();
    let rows = Buffer::new(kernels.driver(), total * row_bytes)?;
    let mut begin = 0;
    for (owner, positions) in &parts {
        let count = positions.iter().filter(|i| **i >= 0).count();
        let first = positions.iter().copied().find(|i| *i >= 0).unwrap_or(0);
        for (to, position) in index.iter_mut().zip(positions).filter(|(_, position)| **position >= 0) {
            *to = begin + position - first;
        }
        if let Some(from) = &owner.rows {
            rows.copy(begin as usize * row_bytes, from, first as usize * row_bytes, count * row_bytes)?;
        }
        begin += count as i32;
    }
    Ok(Owned { rows: Some(Arc::new(rows)), index })
}

/// What the kernel reads of some tokens besides their rows, and where it puts dX.
pub(super) struct Finish<'a> {
    /// What row programs read.
    pub(super) layer: LayerInputs<'a>,
    /// Values per token that the program reads besides statistics, by name: f32 `[tokens]`.
    pub(super) tokens: &'a [(&'static str, Argument)],
    /// Rows of W, as far apart as those of A.
    pub(super) target_rows: Argument,
    /// Row of `target_rows` of each token, negative for none.
    pub(super) target_index: Argument,
    /// dX `[tokens]`, rows as far apart as those of A; null computes results only.
    pub(super) dx: Argument,
}

/// Launches the finish program.
pub(super) fn launch(kernels: &Kernels, rows: &Rows, with: &Finish<'_>) -> Result<Results> {
    let (tokens, width) = (rows.tokens, rows.width);
    let outputs = Buffer::new(kernels.driver(), kernels.outputs().len() * tokens * 4)?;
    let statistics = kernels.statistics();
    let value = |name: &str| match statistics.iter().position(|(known, _)| known == name) {
        Some(position) => Some(rows.state_part(1 + position)),
        None => with.tokens.iter().find(|(known, _)| *known == name).map(|(_, values)| *values),
    };
    let operand = rows.operand.as_ref();
    let a = if with.dx == Pointer(0) { Pointer(0) } else { pointer(rows.a.as_ref()) };
    let call = kernels
        .call(KernelKind::Finish)?
        .set([
            ("references", rows.state_part(0)),
            ("hidden", I32(width as i32)),
            ("a", a),
            ("a_stride", I64(width as i64)),
            ("target_rows", with.target_rows),
            ("target_stride", I64(width as i64)),
            ("target_index", with.target_index),
            ("rows", Pointer(0)),
            ("dx", with.dx),
            ("dx_stride", I64(width as i64)),
            ("outputs", outputs.from(0)),
            ("output_stride", I64(tokens as i64)),
            ("operand", pointer(operand.map(|o| &o.values))),
            ("operand_stride", I64(if operand.is_some_and(|o| o.shared) { 0 } else { width as i64 })),
        ])
        .uniforms(|name| with.layer.uniform(name))?
        .rows(value)?;
    call.launch_rows(tokens)?;
    Ok(Results { outputs })
}

/// Results of merged rows, the tokens `range` of the whole; dX of these tokens is written if `dx` is given.
pub(super) fn finish(
    kernels: &Kernels,
    rows: &Rows,
    range: Range<usize>,
    job: &FinishJob<'_>,
    owners: &[Targets],
    dx: Option<SharedPointer<f32>>,
) -> Result<Results> {
    let (driver, tokens, width) = (kernels.driver(), range.len(), rows.width);
    let target = owned(kernels, &range, owners, width * kernels.dtype.size())?;
    let upload = |(name, values): &(&'static str, Vec<f32>)| Ok((*name, Buffer::with(driver, &values[range.clone()])?));
    let uploaded: Vec<(&'static str, Buffer)> = job.values.iter().map(upload).collect::<Result<_>>()?;
    let per_token: Vec<_> = uploaded.iter().map(|(name, values)| (*name, values.from(0))).collect();
    let index = Buffer::with(driver, &target.index)?;
    let wanted = dx.is_some() && rows.a.is_some();
    let gradient = wanted.then(|| Buffer::new(driver, tokens * width * 4)).transpose()?;
    let with = Finish {
        layer: job.inputs,
        tokens: &per_token,
        target_rows: pointer(target.rows.as_deref()),
        target_index: index.from(0),
        dx: pointer(gradient.as_ref()),
    };
    let results = launch(kernels, rows, &with)?;
    if let (Some(dx), Some(gradient)) = (dx, &gradient) {
        gradient.each_row(tokens, width, |token, values| {
            let row = job.rows[range.start + token] as usize;
            // SAFETY: dX has a row of H for every row of X, and nobody else writes those of this block meanwhile.
            let to = unsafe { std::slice::from_raw_parts_mut(dx.get().add(row * job.hidden), job.hidden) };
            to.copy_from_slice(&values[..job.hidden]);
        })?;
    }
    Ok(results)
}
