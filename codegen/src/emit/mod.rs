//! Specification to text: one file a kind of target.

mod cpu;
mod cuda;
mod cuda_abi;

pub use cpu::{emit_module, emit_prelude};
pub use cuda::{emit_module as emit_cuda_module, entry as cuda_entry};

use crate::error::{Error, SpecError};
use crate::loss::{Loss, Merge};
use crate::lower::Lowering;
use crate::program::{Op, Program, ValueId};
use crate::spec::KernelSpec;
use serde::Serialize;

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

/// A row statistic as templates see it.
#[derive(Serialize)]
struct Statistic {
    rule: Merge,
    /// Position in the kernel's `state`: the reference is 0.
    slot: usize,
    /// Of a row that has seen no logit, as text.
    identity: String,
    /// Position of its value among the results of the lowered statistics program.
    value: usize,
    /// Position of what it selects, for [`Merge::ArgMax`].
    id: Option<usize>,
}

// Statistics in order, and the values that a lowered program has to give for them, behind the store.
fn statistics(
    program: &Program,
    rules: Vec<(String, Merge)>,
    lowering: &dyn Lowering,
) -> (Vec<Statistic>, Vec<ValueId>) {
    let (mut statistics, mut values) = (vec![], vec![]);
    for ((slot, (_, rule)), (_, output)) in (1..).zip(rules).zip(program.row_outputs()) {
        values.push(output);
        let value = values.len();
        let id = match *program.op(output) {
            Op::ArgMax(_, id) => {
                values.push(id);
                Some(values.len())
            }
            _ => None,
        };
        statistics.push(Statistic { rule, slot, identity: lowering.constant(rule.identity()), value, id });
    }
    (statistics, values)
}
