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

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[rustfmt::skip]
#[allow(non_snake_case, clippy::all)]
pub mod amx;

pub use registry::{Bindings, Kernel, Registry};
