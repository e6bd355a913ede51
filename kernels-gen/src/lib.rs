//! Generated kernels and their registry. Everything below the folders named for a target is written by
//! `cargo xtask generate`, as are the CUDA texts in `cuda/` beside this folder, which the module [`cuda`] embeds. A program need
//! not read all that a template provides, so unused variables are allowed in kernels.

extern crate self as vocabfuse_kernels;

pub mod abi;

mod registry;

#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod scalar;

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod avx2;

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod avx512;

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod avx512bf16;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod amx;

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(non_snake_case, unused_variables, clippy::all)]
pub mod avx512bf16_bf16x3;

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
