//! `vocabfuse generate`: kernel texts into a folder.

mod compiled;

use super::values::{self, Kernels, Losses, Operators};
use super::{Outcome, print_json, print_line};
use anyhow::{Context, bail, ensure};
use compiled::Compiled;
use serde::Serialize;
use std::path::PathBuf;
use vocabfuse::codegen::builder::{MANIFEST, write_files};
use vocabfuse::codegen::spec::default_chunks;
use vocabfuse::codegen::{Architecture, operator};
use vocabfuse::{Builder, Dtype, KernelKind, KernelSpec, Precision, Target};

/// Generate the source text of kernels, and compile those of a GPU
///
/// Writes DIR/TARGET/, a Rust module with one file a kernel, or for sm_80 DIR/cuda/ with CUDA texts and their manifest. The
/// same options always give the same bytes. With --loss all and --operator all they are all kernels that `vocabfuse list` shows for
/// the target, and more; bf16x3 comes with --dtype f32. With --compile it prints registers, shared memory and occupancy of each CUDA
/// kernel, the instructions of its main loop for each tensor-core product, and the roofline times of the passes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    vocabfuse generate --target avx512 --kernel logits_softmax --dtype bf16 --chunk 8192 --out kernels\n  \
    vocabfuse generate --target sm_80 --loss all --operator all --out kernels\n  \
    vocabfuse generate --target sm_80 --dtype bf16 --chunk 8192 --out kernels --compile")]
pub struct Args {
    /// Machine that the kernels are for
    #[arg(long, value_parser = values::target())]
    target: Target,
    /// Which kernel
    #[arg(long, value_name = "NAME", default_value = "all", value_parser = values::kernel())]
    kernel: Kernels,
    /// Element type of X and W [default: each that the target has by itself; f32 is tf32 and tf32x3 for sm_80, bf16x3 for
    /// avx512bf16 and amx]
    #[arg(long, value_parser = values::dtype())]
    dtype: Option<Dtype>,
    /// Vocabulary entries a kernel works on at a time, as a constant of its text: a power of two from 256 to 65536
    /// [default: kernels of CPUs take any; 2048, 8192 and 32768 for sm_80]
    #[arg(long, value_name = "C", value_parser = values::chunk)]
    chunk: Option<usize>,
    /// Forms of cross-entropy with commas between them, or all
    #[arg(long, value_name = "NAMES", default_value = "cross_entropy", value_parser = values::losses)]
    loss: Losses,
    /// Operators with commas between them, all or none [default: none, but all for a --kernel that only operators have]
    #[arg(long, value_name = "NAMES", value_parser = values::operators)]
    operator: Option<Operators>,
    /// Folder to write to; it is made if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Compile CUDA kernels and check what the compiler made of them; needs NVRTC
    #[arg(long)]
    compile: bool,
    /// GPUs to compile for, with commas between them
    #[arg(long, value_name = "SM", value_delimiter = ',', default_value = "sm_80,sm_90", requires = "compile",
          value_parser = values::architecture)]
    architecture: Vec<Architecture>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    target: &'static str,
    kernels: Vec<String>,
    files: Vec<String>,
    out: String,
    /// With `--compile`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    compiled: Option<Compiled>,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let cuda = args.target.is_cuda();
    ensure!(
        cuda || !args.compile,
        "option --compile: kernels for {} are Rust text; expected --target sm_80",
        args.target
    );
    let builder = builder(args)?;
    let kernels = builder.generate()?;
    let mut files = builder.files()?;
    let compiled = if args.compile {
        let chunk = args.chunk.unwrap_or(compiled::ROOFLINE_CHUNK);
        let (manifest, compiled) = compiled::compile(&builder, &kernels, &args.architecture, chunk)?;
        files.insert(MANIFEST.to_owned(), manifest.to_json());
        Some(compiled)
    } else {
        None
    };
    write_files(&files, &args.out).with_context(|| format!("option --out {}", args.out.display()))?;
    let report = Report {
        target: args.target.as_str(),
        kernels: kernels.into_iter().map(|k| k.name).collect(),
        files: files.into_keys().collect(),
        out: args.out.display().to_string(),
        compiled,
    };
    if args.json {
        print_json(&report)?;
    } else {
        let count = format!("{} kernels, {} files under {}", report.kernels.len(), report.files.len(), report.out);
        let what = report.compiled.as_ref().map_or_else(|| report.kernels.join("\n"), Compiled::text);
        print_line(&format!("{what}\n{count}"))?;
    }
    Ok(Outcome::Success)
}

/// What the options ask for; at least one kernel.
fn builder(args: &Args) -> anyhow::Result<Builder> {
    let base = if args.target.is_cuda() { Builder::cuda() } else { Builder::new() };
    let kinds = match args.kernel {
        Kernels::All => KernelKind::ALL.to_vec(),
        Kernels::One(kind) => vec![kind],
    };
    let operators = match &args.operator {
        Some(Operators(chosen)) => chosen.clone(),
        None if kinds.iter().all(|kind| kind.row().of_operators) => operator::all()?,
        None => vec![],
    };
    let mut builder = base.targets(&[args.target]).kernels(&kinds).forms(&args.loss.0)?.operators(&operators);
    if let Some(chunk) = args.chunk {
        builder = builder.chunks(&[chunk]);
    }
    if let Some(dtype) = args.dtype {
        builder = builder.dtypes(&[dtype]);
    }
    if args.dtype == Some(Dtype::F32) {
        builder = builder.precisions(Precision::ALL);
    }
    if builder.generate()?.is_empty() {
        // The builder leaves out what a target does not have; asked for nothing else, the user must hear why.
        let dtypes = args.dtype.map_or_else(|| Dtype::ALL.to_vec(), |d| vec![d]);
        for (&kind, &dtype) in kinds.iter().flat_map(|k| dtypes.iter().map(move |d| (k, d))) {
            let chunk = args.chunk.unwrap_or(default_chunks(args.target, dtype, None)[0]);
            KernelSpec::new(kind, args.target, dtype, chunk, "cross_entropy")?;
        }
        bail!("no kernel for these options; `vocabfuse list` shows what there is");
    }
    Ok(builder)
}
