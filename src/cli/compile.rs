//! `vocabfuse compile`: kernels of a GPU that need not be there.

use super::run::device;
use super::values::{self, Losses, Operators};
use super::{Outcome, print_json, print_line};
use anyhow::Context;
use serde::Serialize;
use std::path::PathBuf;
use vocabfuse::codegen::Architecture;
use vocabfuse::{Builder, Dtype, Gpu, KernelKind, KernelSpec, Precision, Target};

/// Chunks that small and large problems take.
const CHUNKS: [usize; 2] = [512, 8192];

/// Compile the kernels of a GPU, for a machine without NVRTC
///
/// The folder is a cache: on the machine with the GPU, VOCABFUSE_CACHE names it. A kernel that is there already is kept. Each kernel
/// is compiled to machine code of each architecture, and to PTX of the oldest, which the driver of any newer GPU takes. By default
/// these are the kernels of plain cross-entropy, of the embedding and of all operators; `run` with a softcap, label smoothing or
/// argmax needs those of the form with these options, as in --loss cross_entropy,cross_entropy_softcap_argmax, or --loss all.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    vocabfuse compile --architecture sm_90 --dtype bf16 --out target/cubins\n  \
    vocabfuse compile --architecture sm_80,sm_90,sm_100 --loss all --out target/cubins")]
pub struct Args {
    /// Architectures with commas between them, as sm_80 for an A100, sm_90 for an H100 or H200, sm_100 for a B200
    #[arg(long, value_name = "SM", value_delimiter = ',', required = true, value_parser = values::architecture)]
    architecture: Vec<Architecture>,
    /// Type of x and w [default: bf16 and f16]
    #[arg(long, value_parser = values::dtype())]
    dtype: Option<Dtype>,
    /// Arithmetic of products of f32: tf32 or tf32x3
    #[arg(long, default_value = "tf32x3", value_parser = device::precision)]
    precision: std::option::Option<Precision>,
    /// Vocabulary entries a kernel works on at a time: a power of two from 256 to 65536 [default: 512 and 8192]
    #[arg(long, value_name = "C", value_parser = values::chunk)]
    chunk: Option<usize>,
    /// Forms of cross-entropy with commas between them, or all
    #[arg(long, value_name = "NAMES", default_value = "cross_entropy", value_parser = values::losses)]
    loss: Losses,
    /// Operators with commas between them, all or none
    #[arg(long, value_name = "NAMES", default_value = "all", value_parser = values::operators)]
    operator: Operators,
    /// Folder to write to; it is made if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    architectures: Vec<String>,
    kernels: Vec<String>,
    out: String,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    // The cache itself takes a folder that cannot be written for one that is not there.
    std::fs::create_dir_all(&args.out).with_context(|| format!("option --out {}", args.out.display()))?;
    let dtypes = args.dtype.map_or_else(|| vec![Dtype::Bf16, Dtype::F16], |dtype| vec![dtype]);
    let chunks = args.chunk.map_or_else(|| CHUNKS.to_vec(), |chunk| vec![chunk]);
    // The other types are multiplied exactly.
    let precision = args.precision.filter(|_| args.dtype == Some(Dtype::F32));
    // The builder leaves out what there is not; the user must hear of it.
    for dtype in &dtypes {
        for target in Target::gpus() {
            KernelSpec::with_precision(KernelKind::LogitsSoftmax, target, *dtype, precision, chunks[0], "")?;
        }
    }
    let builder = Builder::cuda().dtypes(&dtypes).precisions(precision.as_slice()).chunks(&chunks);
    let builder = builder.forms(&args.loss.0)?.operators(&args.operator.0);
    let kernels = Gpu::compile_ahead(&builder, &args.architecture, &args.out)?;
    let architectures = args.architecture.iter().map(|a| a.name()).collect();
    let report = Report { architectures, kernels, out: args.out.display().to_string() };
    if args.json {
        print_json(&report)?
    } else {
        let (names, count) = (report.architectures.join(", "), report.kernels.len());
        let count = format!("{count} kernels for {names} and newer GPUs in {}", report.out);
        print_line(&format!("{}\n{count}", report.kernels.join("\n")))?
    }
    Ok(Outcome::Success)
}
