//! Specification to text: one file a kind of target.

mod cpu;
mod cpu_operator;
mod cuda;
mod cuda_abi;
mod cuda_operator;
mod statistic;

pub use cpu::{Part, assemble, emit_module, emit_places, emit_prelude};
pub use cuda::{emit_module as emit_cuda_module, entry as cuda_entry};
pub use cuda_operator::{logits_entry as cuda_logits_entry, operator_entry as cuda_operator_entry};

use crate::error::{Error, SpecError};
use crate::logits::LogitsForm;
use crate::loss::Loss;
use crate::operator::Operator;
use crate::spec::KernelSpec;

/// A generated text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// What it was generated from; if it holds several kernels, the first of them.
    pub spec: KernelSpec,
    /// Its name, also the stem of its file: for a CUDA text that of its kernel.
    pub name: String,
    /// Its source text.
    pub text: String,
    /// The kernels that it holds: a CUDA text one, a CPU text all that have the same functions.
    pub kernels: Vec<KernelSpec>,
}

/// One kernel as a CPU text may share it with others. `loss` is the one that the specification names.
///
/// # Errors
/// See [`Error`].
pub fn part(spec: &KernelSpec, loss: &Loss) -> Result<Part, Error> {
    check(spec, loss)?;
    cpu::part(spec, loss)
}

/// One kernel of an operator as a CPU text may share it with others; a gradient by its first or second distribution.
///
/// # Errors
/// See [`Error`].
pub fn operator_part(spec: &KernelSpec, operator: &Operator, distribution: usize) -> Result<Part, Error> {
    cpu_operator::part(spec, operator, distribution)
}

/// The kernel that applies the options of the logits as a CPU text may share it with others.
///
/// # Errors
/// See [`Error`].
pub fn logits_part(spec: &KernelSpec, form: LogitsForm) -> Result<Part, Error> {
    cpu_operator::logits_part(spec, form)
}

fn check(spec: &KernelSpec, loss: &Loss) -> Result<(), Error> {
    if loss.has(spec.kernel) {
        return Ok(());
    }
    let what = format!("kernel {} for loss {}", spec.kernel, loss.name);
    let supported = "those for which Loss::has holds".to_owned();
    Err(SpecError::Unsupported { what, supported }.into())
}

/// Generates one kernel. `loss` is the one that the specification names.
///
/// # Errors
/// See [`Error`].
pub fn emit(spec: &KernelSpec, loss: &Loss) -> Result<Kernel, Error> {
    check(spec, loss)?;
    if spec.target.is_cuda() { cuda::emit(spec, loss) } else { assemble(&[cpu::part(spec, loss)?]) }
}

/// Generates one kernel of an operator; a gradient by its first or second distribution.
///
/// # Errors
/// See [`Error`].
pub fn emit_operator(spec: &KernelSpec, operator: &Operator, distribution: usize) -> Result<Kernel, Error> {
    if spec.target.is_cuda() {
        return cuda_operator::emit(spec, operator, distribution);
    }
    assemble(&[operator_part(spec, operator, distribution)?])
}

/// Generates the kernel that applies the options of the logits.
///
/// # Errors
/// See [`Error`].
pub fn emit_logits(spec: &KernelSpec, form: LogitsForm) -> Result<Kernel, Error> {
    if spec.target.is_cuda() {
        return cuda_operator::emit_logits(spec, form);
    }
    assemble(&[logits_part(spec, form)?])
}
