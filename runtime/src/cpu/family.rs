//! The kernels of one target, dtype, chunk and loss, looked up once, and the names they bind.

use super::Cpu;
use super::lookup::{Lookup, function};
use crate::check::fingerprint;
use crate::passes::LayerInputs;
use crate::{Error, Result};
use std::ptr;
use vocabfuse_codegen::program::ROW_FORMAT;
use vocabfuse_codegen::spec::{check_chunk, default_chunks};
use vocabfuse_codegen::{Dtype, KernelKind};
use vocabfuse_kernels::Kernel;
use vocabfuse_kernels::abi::{self, Entry, Geometry};

/// All kernels that a layer calls.
#[derive(Clone, Debug)]
pub struct Family {
    pub(crate) geometry: Geometry,
    pub(crate) chunk: usize,
    pub(crate) dtype: Dtype,
    pub(crate) pack_tokens: unsafe fn(&abi::PackTokens),
    pub(crate) pack_tokens_grad: unsafe fn(&abi::PackTokens),
    pub(crate) pack_vocabulary: unsafe fn(&abi::PackVocabulary),
    pub(crate) logits_softmax: Softmax,
    /// The second product with W, for losses that have one.
    pub(crate) logits_operand: Option<Softmax>,
    pub(crate) unpack_accumulator: Option<unsafe fn(&abi::UnpackAccumulator)>,
    /// Missing for losses whose gradient needs logits.
    pub(crate) weight_grad_saved: Option<unsafe fn(&abi::WeightGrad)>,
    pub(crate) weight_grad_recompute: unsafe fn(&abi::WeightGrad),
    pub(crate) merge: unsafe fn(&abi::Merge),
    pub(crate) finish: unsafe fn(&abi::Finish),
    pub(crate) gather_rows: unsafe fn(&abi::GatherRows),
    /// Kernels by role, for their bindings.
    pub(crate) finish_kernel: &'static Kernel,
    pub(crate) grad_kernel: &'static Kernel,
    names: Vec<&'static str>,
}

/// A kernel of pass S, and its function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softmax {
    pub(crate) kernel: &'static Kernel,
    pub(crate) run: unsafe fn(&abi::LogitsSoftmax),
}

/// What a layer calls.
const CALLED: &[KernelKind] = &[
    KernelKind::LogitsSoftmax,
    KernelKind::LogitsOperand,
    KernelKind::WeightGradSaved,
    KernelKind::Finish,
    KernelKind::WeightGradRecompute,
    KernelKind::UnpackAccumulator,
    KernelKind::PackTokens,
    KernelKind::PackTokensGrad,
    KernelKind::PackVocabulary,
    KernelKind::Merge,
    KernelKind::GatherRows,
];

impl Family {
    /// The kernels for a loss, a dtype and a chunk; `None` takes the default chunk.
    pub(crate) fn new(cpu: &Cpu, loss: &str, dtype: Dtype, chunk: Option<usize>) -> Result<Family> {
        let lookup = Lookup::new(cpu, dtype)?.with_programs(loss);
        let chunk = match chunk {
            None => default_chunks(lookup.target(), dtype, cpu.precision)[0],
            Some(chunk) => check_chunk(chunk).map_err(|_| Error::Option {
                option: "chunk",
                message: format!("expected a power of two from 256 to 65536, got {chunk}"),
            })?,
        };
        let lookup = lookup.with_chunk(chunk);
        let softmax = |kind: KernelKind, kernel: &'static Kernel| match kernel.entry {
            Entry::LogitsSoftmax(run) => Ok(Softmax { kernel, run }),
            _ => Err(lookup.missing(kind)),
        };
        let logits_softmax = softmax(KernelKind::LogitsSoftmax, lookup.kernel(KernelKind::LogitsSoftmax)?)?;
        let operand = lookup.optional(KernelKind::LogitsOperand);
        let finish_kernel = lookup.kernel(KernelKind::Finish)?;
        if finish_kernel.geometry.panel != logits_softmax.kernel.geometry.panel {
            return Err(lookup.missing(KernelKind::Finish));
        }
        let weight_grad_saved = match lookup.optional(KernelKind::WeightGradSaved) {
            Some(_) => Some(function!(lookup, WeightGradSaved, WeightGrad)),
            None => None,
        };
        let unpack_accumulator = match lookup.optional(KernelKind::UnpackAccumulator) {
            Some(_) => Some(function!(lookup, UnpackAccumulator, UnpackAccumulator)),
            None => None,
        };
        let names = CALLED.iter().filter_map(|kind| lookup.optional(*kind)).map(|kernel| kernel.name);
        Ok(Family {
            geometry: logits_softmax.kernel.geometry,
            chunk,
            dtype,
            pack_tokens: function!(lookup, PackTokens, PackTokens),
            pack_tokens_grad: function!(lookup, PackTokensGrad, PackTokens),
            pack_vocabulary: function!(lookup, PackVocabulary, PackVocabulary),
            logits_softmax,
            logits_operand: operand.map(|kernel| softmax(KernelKind::LogitsOperand, kernel)).transpose()?,
            unpack_accumulator,
            weight_grad_saved,
            weight_grad_recompute: function!(lookup, WeightGradRecompute, WeightGrad),
            merge: function!(lookup, Merge, Merge),
            finish: function!(lookup, Finish, Finish),
            gather_rows: function!(lookup, GatherRows, GatherRows),
            finish_kernel,
            grad_kernel: lookup.kernel(KernelKind::WeightGradRecompute)?,
            names: names.collect(),
        })
    }

    /// Names of the kernels that a policy calls.
    pub(crate) fn names(&self, saved: bool) -> Vec<&'static str> {
        let unused = if saved { "weight_grad_recompute" } else { "weight_grad_saved" };
        self.names.iter().copied().filter(|n| !n.starts_with(unused)).collect()
    }

    /// H padded to whole panels.
    pub(crate) fn padded_hidden(&self, hidden: usize) -> usize {
        hidden.next_multiple_of(self.geometry.panel)
    }

    /// What ranks have to share so that each can merge and finish the rows of the others.
    pub(crate) fn form(&self, hidden: usize) -> String {
        let operand = self.logits_operand.map(|operand| operand.kernel.bindings);
        let names = (self.logits_softmax.kernel.bindings, operand, self.finish_kernel.bindings);
        format!(
            "in format {ROW_FORMAT} of target {} in panels of {} by {}, programs {:016x}",
            self.logits_softmax.kernel.target,
            self.geometry.panel,
            self.padded_hidden(hidden),
            fingerprint(&format!("{names:?}"))
        )
    }

    /// Position of an output of the finish program.
    pub(crate) fn output(&self, name: &str) -> Result<usize> {
        let kernel = self.finish_kernel;
        kernel.bindings.outputs.iter().position(|known| *known == name).ok_or_else(|| {
            let message = format!("kernel {} does not give the output {name:?}, which the layer needs", kernel.name);
            Error::Option { option: "loss", message }
        })
    }

    /// Row statistics besides the reference, each of a row that has seen no logit.
    pub(crate) fn identities(&self) -> &'static [f32] {
        self.logits_softmax.kernel.bindings.identities
    }
}

/// How kernels spell a dtype.
pub(crate) fn stored(dtype: Dtype) -> u8 {
    match dtype {
        Dtype::F32 => abi::F32,
        Dtype::Bf16 => abi::BF16,
        Dtype::F16 => abi::F16,
    }
}

/// Values in the order in which a kernel names them.
pub(crate) fn bind<T>(kernel: &Kernel, names: &[&str], value: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    let one = |name: &&str| {
        value(name).ok_or_else(|| Error::Option {
            option: "loss",
            message: format!("kernel {} needs the input {name:?}, which the layer does not provide", kernel.name),
        })
    };
    names.iter().map(one).collect()
}

/// Inputs of a row program, owning the arrays of pointers.
pub(crate) struct ProgramInputs {
    pub(crate) classes: i32,
    pub(crate) targets: *const i32,
    pub(crate) uniforms: Vec<f32>,
    pub(crate) rows: Vec<*const f32>,
    pub(crate) columns: Vec<*const f32>,
}

// SAFETY: addresses of buffers that outlive the pass and that kernels only read.
unsafe impl Send for ProgramInputs {}
// SAFETY: as above.
unsafe impl Sync for ProgramInputs {}

impl ProgramInputs {
    /// As the kernels take them; valid while `self` is.
    pub(crate) fn view(&self) -> abi::Inputs {
        abi::Inputs {
            classes: self.classes,
            targets: self.targets,
            uniforms: self.uniforms.as_ptr(),
            rows: self.rows.as_ptr(),
            columns: self.columns.as_ptr(),
        }
    }
}

/// Values per vocabulary entry by name; null is zero.
pub(crate) fn column(inputs: &LayerInputs<'_>, name: &str) -> Option<*const f32> {
    inputs.column(name).map(|values| values.map_or(ptr::null(), <[f32]>::as_ptr))
}
