//! Generated kernels and their registry. Everything below `cpu/` is written by
//! `cargo xtask generate`, as are the CUDA texts in `cuda/` beside this folder, which the module [`cuda`] embeds. A program need
//! not read all that a template provides, so unused variables are allowed in kernels.

extern crate self as vocabfuse_kernels;

pub mod abi;

mod registry;

pub mod cpu;

#[path = "../cuda/mod.rs"]
#[rustfmt::skip]
pub mod cuda;

mod cubins;

pub use cubins::CUBINS;
pub use registry::{Bindings, Kernel, Registry};
