//! Specification to text: one file a kind of target.

mod cpu;
mod cpu_operator;
mod cuda;
mod cuda_abi;
mod cuda_operator;
mod statistic;

pub use cpu::{emit_module, emit_prelude};
pub use cuda::{emit_module as emit_cuda_module, entry as cuda_entry};
pub use cuda_operator::{logits_entry as cuda_logits_entry, operator_entry as cuda_operator_entry};

use crate::error::{Error, SpecError};
use crate::logits::LogitsForm;
use crate::loss::Loss;
use crate::operator::Operator;
use crate::spec::KernelSpec;

/// A generated kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// What it was generated from.
    pub spec: KernelSpec,
    /// Its name, also the stem of its file.
    pub name: String,
    /// Its source text.
    pub text: String,
}

/// Generates one kernel. `loss` is the one that the specification names.
///
/// # Errors
/// See [`Error`].
pub fn emit(spec: &KernelSpec, loss: &Loss) -> Result<Kernel, Error> {
    if !loss.has(spec.kernel) {
        let what = format!("kernel {} for loss {}", spec.kernel, loss.name);
        let supported = "those for which Loss::has holds".to_owned();
        return Err(SpecError::Unsupported { what, supported }.into());
    }
    if spec.target.is_cuda() { cuda::emit(spec, loss) } else { cpu::emit(spec, loss) }
}

/// Generates one kernel of an operator; a gradient by its first or second distribution.
///
/// # Errors
/// See [`Error`].
pub fn emit_operator(spec: &KernelSpec, operator: &Operator, distribution: usize) -> Result<Kernel, Error> {
    let emit = if spec.target.is_cuda() { cuda_operator::emit } else { cpu_operator::emit };
    emit(spec, operator, distribution)
}

/// Generates the kernel that applies the options of the logits.
///
/// # Errors
/// See [`Error`].
pub fn emit_logits(spec: &KernelSpec, form: LogitsForm) -> Result<Kernel, Error> {
    if spec.target.is_cuda() { cuda_operator::emit_logits(spec, form) } else { cpu_operator::emit_logits(spec, form) }
}
