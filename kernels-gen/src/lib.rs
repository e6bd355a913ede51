//! Generated kernels and their registry. Everything below the folders named for a target is written by
//! `cargo xtask generate`, as are the CUDA texts in `cuda/` beside this folder, which the module [`cuda`] embeds. A program need
//! not read all that a template provides, so unused variables are allowed in kernels.

extern crate self as vocabfuse_kernels;

pub mod abi;

mod registry;

/// Kernels of any processor.
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod scalar;

/// Kernels of AVX2 with FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod avx2;

/// Kernels of AVX-512.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod avx512;

/// Kernels of AVX-512 BF16, for bf16.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod avx512bf16;

/// Kernels of AMX, for bf16.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod amx;

/// Kernels of AVX-512 BF16 for f32, as three products of bf16.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod avx512bf16_bf16x3;

/// Kernels of AMX for f32, as three products of bf16.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod amx_bf16x3;

#[path = "../cuda/mod.rs"]
#[rustfmt::skip]
pub mod cuda;

mod cubins;

pub use cubins::CUBINS;
pub use registry::{Bindings, Kernel, Registry};
