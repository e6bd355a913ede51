//! by `cargo xtask generate`.

extern crate self as vocabfuse_kernels;

pub mod abi;

mod registry;

#[rustfmt::skip]
#[allow(non_snake_case, clippy::all)]
pub mod scalar;

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(non_snake_case, clippy::all)]
pub mod avx2;

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(non_snake_case, clippy::all)]
pub mod avx512;

pub use registry::{Bindings, Kernel, Registry};
