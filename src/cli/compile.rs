//! `vocabfuse compile`: kernels of a GPU that need not be there.

use super::run::device;
use super::{Outcome, print_json, print_line, values};
use anyhow::Context;
use serde::Serialize;
use std::path::PathBuf;
use vocabfuse::{Dtype, Gpu, Precision};

/// Chunks that small and large problems take.
const CHUNKS: [usize; 2] = [512, 8192];

/// Compile the kernels of a GPU, for a machine without NVRTC
///
/// The folder is a cache: on the machine with the GPU, VOCABFUSE_CACHE names it. A kernel that is there already is kept.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  vocabfuse compile --architecture sm_90 --dtype bf16 --out target/cubins")]
pub struct Args {
    /// Architecture of the GPU, as sm_80 for an A100 or sm_90 for an H100 or H200
    #[arg(long, value_name = "SM")]
    architecture: String,
    /// Type of x and w [default: bf16 and f16]
    #[arg(long, value_parser = values::dtype())]
    dtype: Option<Dtype>,
    /// Arithmetic of products of f32: tf32 or tf32x3
    #[arg(long, default_value = "tf32x3", value_parser = device::precision)]
    precision: std::option::Option<Precision>,
    /// Vocabulary entries a kernel works on at a time: a power of two from 256 to 65536 [default: 512 and 8192]
    #[arg(long, value_name = "C", value_parser = values::chunk)]
    chunk: Option<usize>,
    /// Folder to write to; it is made if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    architecture: String,
    kernels: Vec<String>,
    out: String,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    // The cache itself takes a folder that cannot be written for one that is not there.
    std::fs::create_dir_all(&args.out).with_context(|| format!("option --out {}", args.out.display()))?;
    let dtypes = args.dtype.map_or_else(|| vec![Dtype::Bf16, Dtype::F16], |dtype| vec![dtype]);
    let chunks = args.chunk.map_or_else(|| CHUNKS.to_vec(), |chunk| vec![chunk]);
    let mut kernels = vec![];
    for (dtype, chunk) in dtypes.iter().flat_map(|dtype| chunks.iter().map(move |chunk| (*dtype, *chunk))) {
        // The other types are multiplied exactly.
        let precision = args.precision.filter(|_| dtype == Dtype::F32);
        kernels.extend(Gpu::compile_ahead(&args.architecture, dtype, precision, chunk, &args.out)?);
    }
    // Some do not depend on the chunk.
    kernels.sort_unstable();
    kernels.dedup();
    let report = Report { architecture: args.architecture.clone(), kernels, out: args.out.display().to_string() };
    if args.json {
        print_json(&report)?
    } else {
        let count = format!("{} kernels for {} in {}", report.kernels.len(), report.architecture, report.out);
        print_line(&format!("{}\n{count}", report.kernels.join("\n")))?
    }
    Ok(Outcome::Success)
}
