//! The compiler that tests of a GPU's kernels need.

use vocabfuse::codegen::compile::nvrtc::Nvrtc;
use vocabfuse_testing::{Need, skipped};

/// Whether kernels of a GPU can be compiled; says that the test is skipped if not.
pub fn nvrtc() -> bool {
    Nvrtc::load().inspect_err(|missing| skipped(Need::Nvrtc, &missing.to_string())).is_ok()
}
