//! by `cargo xtask generate`.

extern crate self as vocabfuse_kernels;

pub mod abi;

mod registry;
#[rustfmt::skip]
pub mod scalar;
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub mod avx512;
#[rustfmt::skip]

pub use registry::{Bindings, Kernel, Registry};
