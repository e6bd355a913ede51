//! The command line of vocabfuse.

mod cli;
mod train;

use peak_alloc::PeakAlloc;

/// Counts bytes for `run`, which reports the memory of the passes.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
