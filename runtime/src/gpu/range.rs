//! What is stored in f16 is multiplied by a power of two first, which brings the largest value into the middle of its range.

use super::driver::Argument::{self, I32};
use super::kernels::Kernels;
use crate::Result;
use vocabfuse_codegen::KernelKind;

/// Values on the device that bound what a kernel will store.
pub(super) struct Bound {
    /// f32 `[count]`
    pub(super) values: Argument,
    /// Factors on them, f32 `[count]`; null for 1.
    pub(super) upstream: Argument,
    pub(super) count: usize,
}

/// Writes the power of two, and its inverse, to `scale`, f32 `[2]`.
pub(super) fn bring_into_range(kernels: &Kernels, bound: &Bound, scale: Argument) -> Result<()> {
    let call = kernels
        .call(KernelKind::GradientScale)?
        .set([("count", I32(bound.count as i32)), ("scale", scale)])
        .rows(|name| match name {
            "bound" => Some(bound.values),
            "upstream" => Some(bound.upstream),
            _ => None,
        })?;
    call.launch()
}
