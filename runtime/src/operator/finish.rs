//! Merging and finishing of row statistics: kernels over host memory, whatever device the logits were on.

use super::state::RowState;
use crate::buffer::Buffer;
use crate::check::fingerprint;
use crate::{Error, Result};
use std::ptr;
use vocabfuse_codegen::operator::{Operator, TOP_VALUE};
use vocabfuse_codegen::program::ROW_FORMAT;
use vocabfuse_codegen::spec::CHUNKS;
use vocabfuse_codegen::{Dtype, KernelKind, KernelSpec, Target};
use vocabfuse_kernels::abi::{self, Entry};
use vocabfuse_kernels::{Kernel, Registry};

/// The kernels of one operator.
#[derive(Clone, Copy, Debug)]
pub struct HostRows {
    merge: unsafe fn(&abi::Merge),
    finish: unsafe fn(&abi::Finish),
    finish_kernel: &'static Kernel,
    merge_kernel: &'static Kernel,
    pub(crate) panel: usize,
}

impl HostRows {
    /// Those of a CPU target.
    pub(crate) fn new(registry: &Registry, target: Target, operator: &str) -> Result<HostRows> {
        let find = |kind: KernelKind| {
            let spec = KernelSpec::new(kind, target, Dtype::F32, *CHUNKS.start(), operator).ok();
            let found = spec.and_then(|spec| registry.find(|kernel| kernel.name == spec.name()));
            found.ok_or_else(|| missing(kind.as_str(), target, operator))
        };
        let (merge_kernel, finish_kernel) = (find(KernelKind::Merge)?, find(KernelKind::Finish)?);
        let (Entry::Merge(merge), Entry::Finish(finish)) = (merge_kernel.entry, finish_kernel.entry) else {
            return Err(missing("merge", target, operator));
        };
        Ok(HostRows { merge, finish, finish_kernel, merge_kernel, panel: finish_kernel.geometry.panel })
    }

    /// What ranks have to share so that each can merge and finish the rows of the others.
    pub(super) fn form(&self) -> String {
        let finish = self.finish_kernel;
        let programs = fingerprint(&format!("{:?}", finish.bindings));
        format!(
            "in format {ROW_FORMAT} of target {} in panels of {}, programs {programs:016x}",
            finish.target, self.panel
        )
    }

    pub(crate) fn names(&self) -> [&'static str; 2] {
        [self.merge_kernel.name, self.finish_kernel.name]
    }

    /// Merges the same tokens of another shard, which begin at `start` there.
    pub(super) fn merge(&self, rows: &mut RowState, other: &RowState, start: usize) {
        let state: Vec<*mut f32> = rows.rows.iter_mut().map(|b| b.as_mut().as_mut_ptr()).collect();
        let theirs: Vec<*mut f32> = other.rows.iter().map(|b| b.as_ref()[start..].as_ptr().cast_mut()).collect();
        // SAFETY: both sides have the same statistics of `rows.tokens` tokens, as ranks agree on the form of their rows; the
        // other side is only read.
        unsafe {
            (self.merge)(&abi::Merge {
                references: rows.rows.len() - self.finish_kernel.bindings.rules.len(),
                rules: self.finish_kernel.bindings.rules,
                first: 0,
                end: rows.tokens,
                state: state.as_ptr(),
                other_state: theirs.as_ptr(),
                a: ptr::null_mut(),
                other_a: ptr::null(),
                a_stride: 0,
            });
        }
        let (stride, from_stride) = (rows.padded(), other.padded());
        for (mine, theirs) in rows.selected.iter_mut().zip(&other.selected) {
            for slot in 0..mine.len().checked_div(stride).unwrap_or(0) {
                let mine = &mut mine.as_mut()[slot * stride..][..stride];
                let theirs = &theirs.as_ref()[slot * from_stride + start..][..stride];
                mine.iter_mut().zip(theirs).for_each(|(m, t)| *m += t);
            }
        }
    }

    /// Results of merged rows in the order of the operator: `[token, slot]`, or one a token.
    pub(super) fn finish(&self, operator: &Operator, rows: &RowState, slots: usize) -> Result<Vec<Vec<f32>>> {
        let (tokens, stride) = (rows.tokens, rows.padded());
        // One row of the program a slot.
        let padded = (tokens * slots).next_multiple_of(self.panel);
        let expanded = |value: &dyn Fn(usize, usize) -> f32| {
            let mut buffer = Buffer::zeroed(padded);
            for (i, to) in buffer.as_mut()[..tokens * slots].iter_mut().enumerate() {
                *to = value(i / slots, i % slots);
            }
            buffer
        };
        let statistics: Vec<String> = operator.statistics.rules().into_iter().map(|(name, _)| name).collect();
        let distributions = operator.distributions();
        let input = |name: &str| -> Option<Buffer<f32>> {
            if let Some(i) = statistics.iter().position(|n| n == name) {
                return Some(expanded(&|token, _| rows.rows[distributions + i].as_ref()[token]));
            }
            let at = |buffer: &Buffer<f32>| expanded(&|token, slot| buffer.as_ref()[slot * stride + token]);
            match operator.statistics.selected().position(|(n, _)| n == name) {
                Some(i) => Some(at(&rows.selected[i])),
                None => rows.top.as_ref().filter(|_| name == TOP_VALUE).map(|top| at(&top.values)),
            }
        };
        let kernel = self.finish_kernel;
        let inputs: Vec<Buffer<f32>> = kernel
            .bindings
            .rows
            .iter()
            .map(|name| input(name).ok_or_else(|| unknown(kernel, name)))
            .collect::<Result<_>>()?;
        if let Some(name) = kernel.bindings.uniforms.first() {
            return Err(unknown(kernel, name));
        }
        let pointers: Vec<*const f32> = inputs.iter().map(|b| b.as_ref().as_ptr()).collect();
        let reference = expanded(&|token, _| rows.rows[0].as_ref()[token]);
        let mut outputs: Vec<Buffer<f32>> = kernel.bindings.outputs.iter().map(|_| Buffer::zeroed(padded)).collect();
        let results: Vec<*mut f32> = outputs.iter_mut().map(|b| b.as_mut().as_mut_ptr()).collect();
        // SAFETY: inputs and outputs are arrays of whole panels of slots, and the kernel is one without A.
        unsafe {
            (self.finish)(&abi::Finish {
                inputs: abi::Inputs {
                    classes: 0,
                    targets: ptr::null(),
                    uniforms: ptr::null(),
                    rows: pointers.as_ptr(),
                    columns: ptr::null(),
                },
                first: 0,
                end: tokens * slots,
                reference: reference.as_ref().as_ptr(),
                outputs: results.as_ptr(),
                hidden: 0,
                a: ptr::null(),
                a_stride: 0,
                operand: ptr::null(),
                operand_stride: 0,
                stored: abi::F32,
                target_rows: ptr::null(),
                rows: ptr::null(),
                dx: ptr::null_mut(),
                dx_stride: 0,
            });
        }
        let of_slot = operator.results().into_iter().map(|(_, of_slot)| of_slot);
        let values = outputs.iter().zip(of_slot).map(|(values, of_slot)| {
            let values = values.as_ref()[..tokens * slots].iter().copied();
            if of_slot { values.collect() } else { values.step_by(slots).collect() }
        });
        Ok(values.collect())
    }
}

fn missing(kernel: &str, target: Target, operator: &str) -> Error {
    Error::Kernel {
        kernel: kernel.to_owned(),
        target,
        dtype: vocabfuse_codegen::Dtype::F32,
        message: format!("none for operator {operator} in the registry"),
    }
}

fn unknown(kernel: &Kernel, name: &str) -> Error {
    Error::Option {
        option: "operator",
        message: format!("kernel {} needs the input {name:?}, which the layer does not provide", kernel.name),
    }
}
