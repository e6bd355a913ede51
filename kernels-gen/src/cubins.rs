//! Compiled CUDA kernels inside the program.

/// Cubins with their labels (`vocabfuse_codegen::compile::artifact`); none without the feature `cubins`.
#[cfg(not(feature = "cubins"))]
pub const CUBINS: &[&[u8]] = &[];

#[cfg(feature = "cubins")]
include!(concat!(env!("OUT_DIR"), "/cubins.rs"));
