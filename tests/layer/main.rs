//! The layers on every device against the f64 reference, and what they promise.
//!
//! One program: each links all of the workspace, so that many would cost more to build than to run.

#[path = "../common/mod.rs"]
mod common;

mod alone;
mod bf16x3;
mod cases;
mod contract;
mod embedding;
mod filter;
mod gpu;
mod gradient_dtype;
mod late;
mod offsets;
mod operators;
mod options;
mod oracle;
mod order;
mod random;
mod ranks;
mod row_kernels;
mod sums;

use peak_alloc::PeakAlloc;

/// Counts bytes for the test of the memory budget, as in the command line.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;
