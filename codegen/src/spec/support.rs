//! Which combinations of kernel, target, dtype and precision there are.

use super::kernel::{KernelKind, Sees};
use super::target::{Product, Target};
use super::types::{Dtype, Operand, Precision};
use crate::error::SpecError;

/// What a kernel multiplies or packs; none if it does neither.
///
/// # Errors
/// [`SpecError::Unsupported`] for a combination that no template covers, with what there is instead.
pub(super) fn operand(
    kernel: KernelKind,
    target: Target,
    dtype: Dtype,
    precision: Option<Precision>,
) -> Result<Option<Operand>, SpecError> {
    let row = kernel.row();
    if !kernel.is_on(target) {
        let names = KernelKind::ALL.iter().filter(|kind| kind.is_on(target)).map(|kind| kind.as_str());
        return unsupported(format!("kernel {kernel} on target {target}"), &names.collect::<Vec<_>>().join(", "));
    }
    if !row.storages.contains(&dtype) {
        let known: Vec<&str> = row.storages.iter().map(|dtype| dtype.as_str()).collect();
        return unsupported(format!("kernel {kernel} for dtype {dtype}"), &format!("dtype {}", known.join(", ")));
    }
    let product = target.product(dtype, precision);
    let no_product = || {
        let what = match precision {
            Some(precision) => format!("precision {precision} for dtype {dtype} on target {target}"),
            None => format!("dtype {dtype} without a precision on target {target}"),
        };
        unsupported(what, &products(target, precision))
    };
    if let (Some(cpu), Some(on)) = (target.cpu(), row.cpu) {
        // What the target does not multiply at all is packed and multiplied by another target of the same machine.
        if !target.multiplies_f32() && product.is_none() {
            return no_product();
        }
        if on.sees.no_products() && target.row().values != target {
            let supported =
                format!("target {}, which the same processors can run: it multiplies nothing", target.row().values);
            return unsupported(format!("kernel {kernel} on target {target}"), &supported);
        }
        if on.sees == Sees::Accumulator && !cpu.blocks_accumulator {
            let others: Vec<&str> = Target::cpus()
                .filter(|t| t.cpu().is_some_and(|cpu| cpu.blocks_accumulator))
                .map(Target::as_str)
                .collect();
            let supported = format!("targets {}; the others need no unpacking", others.join(", "));
            return unsupported(format!("kernel {kernel} on target {target}"), &supported);
        }
    }
    match product {
        Some(product) => Ok(kernel.has_operands(target).then_some(product.operand)),
        None if precision.is_none() && !kernel.has_operands(target) => Ok(None),
        None => no_product(),
    }
}

/// The products of a target by dtype, and where a precision is.
fn products(target: Target, precision: Option<Precision>) -> String {
    let of = |dtype: &Dtype| {
        let products: Vec<&Product> = target.row().products.iter().filter(|p| p.storage == *dtype).collect();
        let precisions: Vec<&str> =
            products.iter().filter_map(|p| p.operand.precision()).map(Precision::as_str).collect();
        match (products.is_empty(), precisions.is_empty()) {
            (true, _) => None,
            (_, true) => Some(format!("dtype {dtype}")),
            _ => Some(format!("dtype {dtype} with precision {}", precisions.join(" or "))),
        }
    };
    let here = Dtype::ALL.iter().filter_map(of).collect::<Vec<_>>().join(", ");
    let Some(precision) = precision else { return here };
    let others = Target::ALL.iter().filter(|target| precision.is_on(**target)).map(|target| target.as_str());
    format!("{here}; {precision} is on {}", others.collect::<Vec<_>>().join(" and "))
}

fn unsupported<T>(what: String, supported: &str) -> Result<T, SpecError> {
    Err(SpecError::Unsupported { what, supported: supported.to_owned() })
}
