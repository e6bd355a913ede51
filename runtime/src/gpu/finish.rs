//! Results and dX from merged rows, on a device.

use super::buffer::Buffer;
use super::driver::Argument::{I32, I64, Pointer};
use super::kernels::Kernels;
use super::rows::{Rows, Targets, pointer};
use crate::Result;
use crate::buffer::SharedPointer;
use crate::passes::FinishJob;
use std::ops::Range;
use std::sync::Arc;
use vocabfuse_codegen::KernelKind;
use vocabfuse_codegen::cuda::row_blocks;

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

/// Results of merged rows, the tokens `range` of the whole; dX of these tokens is written if `dx` is given. Drops A.
pub(super) fn finish(
    kernels: &Kernels,
    rows: &mut Rows,
    range: Range<usize>,
    job: &FinishJob<'_>,
    owners: &[Targets],
    dx: Option<SharedPointer<f32>>,
) -> Result<Results> {
    let (driver, tokens, width) = (kernels.driver(), range.len(), rows.width);
    let outputs = Buffer::new(driver, kernels.outputs().len() * tokens * 4)?;
    let a = rows.a.take().filter(|_| dx.is_some());
    let target = owned(kernels, &range, owners, width * kernels.dtype.size())?;
    let operand = rows.operand.take();
    let per_token =
        |(name, values): &(&'static str, Vec<f32>)| Ok((*name, Buffer::with(driver, &values[range.clone()])?));
    let per_token: Vec<(&str, Buffer)> = job.tokens.iter().map(per_token).collect::<Result<_>>()?;
    let index = Buffer::with(driver, &target.index)?;
    let gradient = Buffer::new(driver, if a.is_some() { tokens * width * 4 } else { 0 })?;
    let statistics = kernels.statistics();
    let value = |name: &str| match statistics.iter().position(|(known, _)| known == name) {
        Some(position) => Some(rows.state_part(1 + position)),
        None => per_token.iter().find(|(known, _)| *known == name).map(|(_, values)| values.from(0)),
    };
    let call = kernels
        .call(KernelKind::Finish)?
        .set([
            ("references", rows.state_part(0)),
            ("hidden", I32(width as i32)),
            ("a", pointer(a.as_ref())),
            ("a_stride", I64(width as i64)),
            ("target_rows", pointer(target.rows.as_deref())),
            ("target_stride", I64(width as i64)),
            ("target_index", index.from(0)),
            ("rows", Pointer(0)),
            ("dx", gradient.from(0)),
            ("dx_stride", I64(width as i64)),
            ("outputs", outputs.from(0)),
            ("output_stride", I64(tokens as i64)),
            ("operand", pointer(operand.as_ref().map(|o| &o.values))),
            ("operand_stride", I64(if operand.as_ref().is_some_and(|o| o.shared) { 0 } else { width as i64 })),
        ])
        .uniforms(|name| job.inputs.uniform(name))?
        .rows(value)?;
    call.launch(row_blocks(tokens))?;
    if let (Some(dx), Some(_)) = (dx, &a) {
        gradient.each_row(tokens, width, |token, values| {
            let row = job.rows[range.start + token] as usize;
            // SAFETY: dX has a row of H for every row of X, and nobody else writes those of this block meanwhile.
            let to = unsafe { std::slice::from_raw_parts_mut(dx.get().add(row * job.hidden), job.hidden) };
            to.copy_from_slice(&values[..job.hidden]);
        })?;
    }
    Ok(Results { outputs })
}
