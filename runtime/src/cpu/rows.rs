//! What one shard knows about each token after pass S, and how two shards' knowledge merges.

use super::Cpu;
use super::family::{Family, ProgramInputs, bind, stored};
use crate::Result;
use crate::buffer::{Buffer, SharedPointer};
use crate::passes::FinishJob;
use rayon::prelude::*;
use std::ops::Range;
use std::ptr;
use vocabfuse_codegen::program::NO_REFERENCE;
use vocabfuse_kernels::abi;

/// Per-token state of one shard, or of several merged ones. Buffers are padded to whole panels.
#[derive(Clone)]
pub struct ShardRows {
    /// Tokens that count.
    pub(crate) tokens: usize,
    /// The reference, then the statistics in the order of the kernels.
    pub(crate) state: Vec<Buffer<f32>>,
    /// A, `[padded tokens, padded H]`, if the pass accumulated it.
    pub(crate) a: Option<Buffer<f32>>,
    pub(crate) a_stride: usize,
    /// A₂, if the loss has one and the pass accumulated it.
    pub(crate) operand: Option<Product>,
    /// Rows of W of the targets that this shard owns, packed.
    pub(crate) targets: TargetRows,
}

/// A second product with W, which merges by plain sums.
#[derive(Clone)]
pub struct Product {
    /// `[padded tokens, stride]`, or one row (of a padded panel) that all tokens share.
    pub(crate) values: Buffer<f32>,
    pub(crate) stride: usize,
    pub(crate) shared: bool,
}

impl Product {
    fn block(&self, copy: impl Fn(&Buffer<f32>, usize) -> Buffer<f32>) -> Product {
        let values = if self.shared { self.values.clone() } else { copy(&self.values, self.stride) };
        Product { values, ..*self }
    }

    fn add(&mut self, other: &Product, start: usize) {
        let start = if self.shared { 0 } else { start * self.stride };
        let other = &other.values.as_ref()[start..];
        self.values.as_mut().iter_mut().zip(other).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// B: rows of W, by token.
#[derive(Clone)]
pub struct TargetRows {
    /// Position in `rows` for each token, negative where another shard owns the target.
    pub(crate) index: Vec<i32>,
    /// Packed rows of the layer's dtype.
    pub(crate) rows: Buffer8,
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
}

/// Bytes, shared by clones: the target rows of a shard are never written after they were gathered.
pub(crate) type Buffer8 = std::sync::Arc<Buffer<u8>>;

impl TargetRows {
    /// Those of no token.
    fn none() -> TargetRows {
        TargetRows { index: vec![], rows: Buffer::zeroed(0).into(), row_bytes: 0 }
    }

    fn pointer(&self, token: usize) -> *const u8 {
        match self.index.get(token) {
            Some(&i) if i >= 0 => Buffer::as_ref(&self.rows)[i as usize * self.row_bytes..].as_ptr(),
            _ => ptr::null(),
        }
    }
}

impl ShardRows {
    /// Rows that have seen no logit: the identity of merging.
    pub(crate) fn identity(family: &Family, tokens: usize) -> ShardRows {
        let padded = tokens.next_multiple_of(family.geometry.panel);
        let filled = |value: &f32| {
            let mut values = Buffer::zeroed(padded);
            values.as_mut().fill(*value);
            values
        };
        let state = [NO_REFERENCE].iter().chain(family.identities()).map(filled).collect();
        ShardRows { tokens, state, a: None, a_stride: 0, operand: None, targets: TargetRows::none() }
    }

    /// Bytes that a transport moves for these rows.
    pub(crate) fn bytes(&self) -> usize {
        let state = self.state.len() * self.tokens * 4;
        let a = self.a.as_ref().map_or(0, |_| self.tokens * self.a_stride * 4);
        let operand = match &self.operand {
            Some(product) if product.shared => product.stride * 4,
            Some(product) => self.tokens * product.stride * 4,
            None => 0,
        };
        state + a + operand + self.targets.rows.len()
    }

    /// A copy of some tokens, a range that begins at a panel. Target rows stay with their shard.
    pub(crate) fn block(&self, tokens: Range<usize>, panel: usize) -> ShardRows {
        let padded = tokens.len().next_multiple_of(panel);
        let copy = |from: &Buffer<f32>, stride: usize| {
            let mut to = from.another(padded * stride);
            let start = tokens.start * stride;
            let end = (start + padded * stride).min(from.len());
            let (copied, behind) = to.as_mut().split_at_mut(end - start);
            copied.copy_from_slice(&from.as_ref()[start..end]);
            behind.fill(0.0);
            to
        };
        ShardRows {
            tokens: tokens.len(),
            state: self.state.iter().map(|b| copy(b, 1)).collect(),
            a: self.a.as_ref().map(|a| copy(a, self.a_stride)),
            a_stride: self.a_stride,
            operand: self.operand.as_ref().map(|product| product.block(copy)),
            targets: TargetRows::none(),
        }
    }

    /// Merges the same tokens of another shard, which begin at `start` there, into these.
    pub(crate) fn merge(&mut self, family: &Family, other: &ShardRows, start: usize) {
        if self.state.len() == 1 {
            // References alone, the first barrier of the naive algorithm: their maximum.
            let other = &other.state[0].as_ref()[start..][..self.tokens];
            self.state[0].as_mut().iter_mut().zip(other).for_each(|(mine, theirs)| *mine = mine.max(*theirs));
            return;
        }
        self.merge_values(family, other, start, 1);
        if let (Some(mine), Some(theirs)) = (&mut self.operand, &other.operand) {
            mine.add(theirs, start);
        }
    }

    /// Merges the statistics and A of the same tokens, which the threads of this pool share.
    pub(crate) fn merge_on_threads(&mut self, family: &Family, other: &ShardRows) {
        self.merge_values(family, other, 0, rayon::current_num_threads());
    }

    fn merge_values(&mut self, family: &Family, other: &ShardRows, start: usize, threads: usize) {
        let mut state: Vec<*mut f32> = self.state.iter_mut().map(|b| b.as_mut().as_mut_ptr()).collect();
        let mut other_state: Vec<*mut f32> =
            other.state.iter().map(|b| b.as_ref()[start..].as_ptr().cast_mut()).collect();
        let (a, other_a) = match (&mut self.a, &other.a) {
            (Some(a), Some(b)) => (a.as_mut().as_mut_ptr(), b.as_ref()[start * other.a_stride..].as_ptr()),
            _ => (ptr::null_mut(), ptr::null()),
        };
        let [state, other_state] = [&mut state, &mut other_state].map(|s| SharedPointer(s.as_mut_ptr()));
        let [a, other_a] = [a, other_a.cast_mut()].map(SharedPointer);
        let (tokens, a_stride) = (self.tokens, self.a_stride);
        let share = tokens.div_ceil(threads).max(1);
        let merge = |first: usize| {
            // SAFETY: both sides have `self.tokens` tokens from the pointers on, and the same statistics and stride, as ranks
            // agree on the form of their rows; the other side is only read, and each call has its own tokens.
            unsafe {
                (family.merge)(&abi::Merge {
                    references: 1,
                    rules: family.logits_softmax.kernel.bindings.rules,
                    first,
                    end: tokens.min(first + share),
                    state: state.get(),
                    other_state: other_state.get(),
                    a: a.get(),
                    other_a: other_a.get(),
                    a_stride,
                });
            }
        };
        if threads == 1 {
            merge(0);
        } else {
            (0..tokens).into_par_iter().step_by(share).for_each(merge);
        }
    }
}

/// Panels times H from which on waking other threads takes less time than what they do.
const ALONE: usize = 4096;

/// Results per token in the order of the finish program's outputs, padded to whole panels.
pub struct Outputs {
    pub(crate) outputs: Vec<Buffer<f32>>,
}

impl Cpu {
    /// Results of merged rows, the tokens `range` of the whole; dX of these tokens is written if `dx` is given.
    ///
    /// `owners` are the shards that hold target rows. Every row of `dx` that the range names is written by nobody
    /// else meanwhile.
    pub(crate) fn finish_rows(
        &self,
        family: &Family,
        merged: &ShardRows,
        range: Range<usize>,
        job: &FinishJob<'_>,
        owners: &[TargetRows],
        dx: Option<SharedPointer<f32>>,
    ) -> Result<Outputs> {
        let kernel = family.finish_kernel;
        let padded = range.len().next_multiple_of(family.geometry.panel);
        let mut outputs: Vec<Buffer<f32>> = kernel.bindings.outputs.iter().map(|_| Buffer::zeroed(padded)).collect();
        let mut pointers: Vec<*mut f32> = outputs.iter_mut().map(|b| b.as_mut().as_mut_ptr()).collect();
        let pointers = SharedPointer(pointers.as_mut_ptr());
        let value = |name: &str| {
            let statistics = family.logits_softmax.kernel.bindings.statistics;
            if let Some(position) = statistics.iter().position(|n| *n == name) {
                return Some(merged.state[position + 1].as_ref().as_ptr());
            }
            let (_, values) = job.values.iter().find(|(known, _)| *known == name)?;
            Some(values[range.start..].as_ptr())
        };
        let inputs = ProgramInputs {
            classes: 0,
            targets: ptr::null(),
            uniforms: bind(kernel, kernel.bindings.uniforms, |name| job.inputs.uniform(name))?,
            rows: bind(kernel, kernel.bindings.rows, value)?,
            columns: vec![],
        };
        let mut target_rows: Vec<*const u8> = range
            .clone()
            .map(|token| owners.iter().map(|o| o.pointer(token)).find(|p| !p.is_null()).unwrap_or(ptr::null()))
            .collect();
        let target_rows = SharedPointer(target_rows.as_mut_ptr());
        let finish = |panel: usize| {
            let first = panel * family.geometry.panel;
            let args = abi::Finish {
                inputs: inputs.view(),
                first,
                end: range.len().min(first + family.geometry.panel),
                reference: merged.state[0].as_ref().as_ptr(),
                outputs: pointers.get(),
                hidden: job.hidden,
                a: if dx.is_some() {
                    merged.a.as_ref().map_or(ptr::null(), |a| a.as_ref().as_ptr())
                } else {
                    ptr::null()
                },
                a_stride: merged.a_stride,
                operand: merged.operand.as_ref().map_or(ptr::null(), |p| p.values.as_ref().as_ptr()),
                operand_stride: merged.operand.as_ref().filter(|p| !p.shared).map_or(0, |p| p.stride),
                stored: stored(family.dtype),
                target_rows: target_rows.get(),
                rows: job.rows[range.clone()].as_ptr(),
                dx: dx.map_or(ptr::null_mut(), SharedPointer::get),
                dx_stride: job.hidden,
            };
            // SAFETY: all arrays hold the tokens of the panel (outputs and state to its end), which are this call's alone; rows of
            // dX are distinct, so this call alone writes them.
            unsafe { (family.finish)(&args) }
        };
        let panels = padded / family.geometry.panel;
        if panels * job.hidden < ALONE {
            (0..panels).for_each(finish);
        } else {
            self.install(|| (0..panels).into_par_iter().for_each(finish))?;
        }
        Ok(Outputs { outputs })
    }
}
