//! `vocabfuse generate`: kernel texts into a folder.

use super::values::{self, Kernels};
use super::{Outcome, print_json, print_line};
use anyhow::{Context, bail};
use serde::Serialize;
use std::path::PathBuf;
use vocabfuse::codegen::builder::DEFAULT_CHUNKS;
use vocabfuse::{Builder, Dtype, KernelKind, KernelSpec, Target};

/// Generate the source text of kernels
///
/// Writes DIR/TARGET/, a Rust module with one file a kernel. The same options always give the same bytes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  vocabfuse generate --target avx512 --kernel logits_softmax --dtype bf16 --chunk 8192 --out kernels"
)]
pub struct Args {
    /// Machine that the kernels are for
    #[arg(long, value_parser = values::target())]
    target: Target,
    /// Which kernel
    #[arg(long, value_name = "NAME", default_value = "all", value_parser = values::kernel())]
    kernel: Kernels,
    /// Element type of X and W [default: each that the target has]
    #[arg(long, value_parser = values::dtype())]
    dtype: Option<Dtype>,
    /// Vocabulary entries a kernel works on at a time: a power of two from 512 to 65536 [default: 512, 2048 and 8192]
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
    target: &'static str,
    kernels: Vec<String>,
    files: Vec<String>,
    out: String,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let dtypes = args.dtype.map_or_else(|| Dtype::ALL.to_vec(), |d| vec![d]);
    let chunks = args.chunk.map_or_else(|| DEFAULT_CHUNKS.to_vec(), |c| vec![c]);
    let kinds = match args.kernel {
        Kernels::All => KernelKind::ALL.to_vec(),
        Kernels::One(kind) => vec![kind],
    };
    let builder = Builder::new().targets(&[args.target]).dtypes(&dtypes).chunks(&chunks).kernels(&kinds);
    let kernels: Vec<String> = builder.generate()?.into_iter().map(|k| k.name).collect();
    if kernels.is_empty() {
        // The builder leaves out what a target does not have; asked for nothing else, the user must hear why.
        for (&kind, &dtype) in kinds.iter().flat_map(|k| dtypes.iter().map(move |d| (k, d))) {
            KernelSpec::new(kind, args.target, dtype, chunks[0], "cross_entropy")?;
        }
        bail!("no kernel for these options; `vocabfuse list` shows what there is");
    }
    let files = builder.write(&args.out).with_context(|| format!("option --out {}", args.out.display()))?;
    let report = Report { target: args.target.as_str(), kernels, files, out: args.out.display().to_string() };
    if args.json {
        print_json(&report)?;
    } else {
        let count = format!("{} kernels, {} files under {}", report.kernels.len(), report.files.len(), report.out);
        print_line(&format!("{}\n{count}", report.kernels.join("\n")))?;
    }
    Ok(Outcome::Success)
}
