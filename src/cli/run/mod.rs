//! `vocabfuse run`: the layer on tensors from a file.

mod check;
pub mod device;
mod passes;
mod report;

use super::values::{self, PolicyArgs};
use super::{Outcome, print_json, print_line};
use anyhow::{Context, bail, ensure};
use device::Opened;
use std::path::{Path, PathBuf};
use vocabfuse::tensors::{self, Elements, Inputs, Output};
use vocabfuse::{CrossEntropy, Device, Dtype, Precision, Ptx, Reduction, ShardLayout};

/// Run cross-entropy and its gradients on tensors from a safetensors file
///
/// Reads x [N, H] and w [V, H] (f32, bf16 or f16), targets [N] (i64 or i32), and optionally bias [V] and upstream [N].
/// Writes loss ([N] or [1]), lse [N], dx [N, H], dw [V, H], and with a bias dbias [V]. The V rows of w are split over
/// ranks, which are threads of this process and exchange what they would over a network.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    vocabfuse run --input t.safetensors --output o.safetensors --ranks 4 --check\n  \
    vocabfuse run --input t.safetensors --output o.safetensors --bounds 0,5,5,100 --dtype bf16 --json")]
pub struct Args {
    /// File to read
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// File to write; it appears whole or not at all
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Number of ranks that share the vocabulary evenly [default: 1]
    #[arg(long, value_name = "P", value_parser = values::threads)]
    ranks: Option<usize>,
    /// Uneven shards: rank r has the rows from the r-th to the next number; 0,5,5,100 gives 5, 0 and 95 rows
    #[arg(long, value_name = "0,..,V", value_parser = values::bounds)]
    bounds: Option<std::vec::Vec<usize>>,
    /// How ranks communicate
    #[arg(long, default_value = "local", value_parser = ["local"])]
    communicator: String,
    /// Round x and w to this type first [default: the type of x, which w must share]
    #[arg(long, value_parser = values::dtype())]
    dtype: Option<Dtype>,
    /// Arithmetic of the matrix products: exact, or for f32 on a GPU tf32 or tf32x3
    #[arg(long, default_value = "exact", value_parser = device::precision)]
    precision: std::option::Option<Precision>,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Bytes over inputs and outputs that a rank may use; needing more is an error [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = values::positive)]
    memory_budget: Option<usize>,
    /// Where to run: cpu, cuda:0, or ptx:sm_80, which interprets the kernels of a GPU and checks them for races
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device::parse)]
    device: device::Choice,
    /// Threads that the ranks share [default: one a processor]
    #[arg(long, value_name = "T", value_parser = values::threads)]
    threads: Option<usize>,
    /// Compare with an f64 reference; fails if an error is over twice that of the plain composition in this dtype
    #[arg(long)]
    check: bool,
    /// What loss holds: one value per token, their sum, or their mean
    #[arg(long, default_value = "mean", value_parser = values::reduction())]
    reduction: Reduction,
    /// Divisor of the mean [default: the number of tokens that are not ignored]
    #[arg(long, value_name = "X", value_parser = values::above_zero)]
    normalizer: Option<f32>,
    /// Target of tokens that do not count
    #[arg(long, value_name = "I", default_value = "-100", allow_negative_numbers = true, value_parser = values::id)]
    ignore_index: i64,
    /// Factor on the logits, before the bias
    #[arg(long, value_name = "X", default_value = "1", allow_negative_numbers = true, value_parser = values::nonzero)]
    logit_scale: f32,
    /// Type of the written loss, lse and gradients
    #[arg(long, default_value = "f32", value_parser = values::dtype())]
    output_dtype: Dtype,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let loss = loss(args)?;
    check_folder(&args.output)?;
    let inputs = converted(tensors::read(&args.input)?, args.dtype)?;
    let layout = layout(args, inputs.vocab)?;
    match args.device.open(args.threads, args.precision)? {
        Opened::Cpu(cpu) => run_on(args, &Task { inputs, layout, loss }, &cpu, cpu.name(), None),
        Opened::Cuda(gpu) => run_on(args, &Task { inputs, layout, loss }, &gpu, gpu.name(), None),
        Opened::Ptx(gpu, ptx) => run_on(args, &Task { inputs, layout, loss }, &gpu, gpu.name(), Some(&ptx)),
    }
}

/// What to run, wherever it is.
struct Task {
    inputs: Inputs,
    layout: ShardLayout,
    loss: CrossEntropy,
}

fn run_on<D: Device>(args: &Args, task: &Task, device: &D, name: String, ptx: Option<&Ptx>) -> anyhow::Result<Outcome> {
    let Task { inputs, layout, loss } = task;
    let policy = args.policy.policy(args.memory_budget);
    let results = passes::run(&passes::Job { inputs, layout, device, loss: *loss, policy })?;
    let check = if args.check { Some(check::check(inputs, loss, &results)?) } else { None };

    let found = ptx.map(Ptx::take_report);
    let report = report::Report::new(inputs, layout.ranks(), name, &results, check.as_ref(), found.as_ref());
    write(&args.output, inputs, results, args.output_dtype)?;
    if args.json {
        print_json(&report)?
    } else {
        print_line(&report.table())?
    }
    if let Some(found) = found.filter(|found| !found.is_clean()) {
        let first = found.races.iter().chain(&found.uninitialized).next().map_or("", String::as_str);
        let (races, reads) = (found.races.len(), found.uninitialized.len());
        eprintln!("check failed: {races} races and {reads} reads of unwritten memory, the first in {first}");
        return Ok(Outcome::FailedCheck);
    }
    match check.map(|c| c.failed()) {
        Some(failed) if !failed.is_empty() => {
            let failed = failed.join(", ");
            eprintln!("check failed: the error of {failed} is more than twice that of the plain composition");
            Ok(Outcome::FailedCheck)
        }
        _ => Ok(Outcome::Success),
    }
}

fn loss(args: &Args) -> anyhow::Result<CrossEntropy> {
    let reduction = args.reduction;
    if args.normalizer.is_some() && reduction != Reduction::Mean {
        bail!("option --normalizer: it divides the mean, but --reduction is {reduction}; expected --reduction mean");
    }
    let ignore_index = Some(args.ignore_index);
    let logit_scale = args.logit_scale;
    Ok(CrossEntropy { reduction, normalizer: args.normalizer, ignore_index, logit_scale, ..CrossEntropy::default() })
}

// Before the work, not after it.
fn check_folder(output: &Path) -> anyhow::Result<()> {
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "option --output {}: expected a file in an existing folder", output.display());
    ensure!(!output.is_dir(), "option --output {}: is a folder; expected a file", output.display());
    if let Ok(there) = std::fs::symlink_metadata(output) {
        // The new file takes the place of the old one, which must not be a device, a pipe, or somebody's link.
        ensure!(there.is_file(), "option --output {}: is no regular file; expected one, or none", output.display());
        ensure!(!there.permissions().readonly(), "option --output {}: is read-only", output.display());
    }
    Ok(())
}

fn converted(inputs: Inputs, dtype: Option<Dtype>) -> anyhow::Result<Inputs> {
    let (x, w) = (inputs.x.dtype(), inputs.w.dtype());
    if dtype.is_none() && x != w {
        bail!("tensor w: dtype {w}; expected {x} as x has, or --dtype to convert both");
    }
    let dtype = dtype.unwrap_or(x);
    Ok(Inputs { x: inputs.x.convert(dtype), w: inputs.w.convert(dtype), ..inputs })
}

fn layout(args: &Args, vocab: usize) -> anyhow::Result<ShardLayout> {
    let Some(bounds) = &args.bounds else {
        return ShardLayout::even(vocab, args.ranks.unwrap_or(1)).context("option --ranks");
    };
    let layout = ShardLayout::from_bounds(bounds).context("option --bounds")?;
    let end = layout.stored();
    ensure!(end == vocab, "option --bounds: the shards end at row {end}; expected {vocab}, the rows of tensor w");
    if let Some(ranks) = args.ranks {
        ensure!(ranks == layout.ranks(), "option --ranks {ranks}: --bounds gives {} ranks", layout.ranks());
    }
    Ok(layout)
}

fn write(path: &Path, inputs: &Inputs, results: passes::Results, dtype: Dtype) -> anyhow::Result<()> {
    let (n, h, v) = (inputs.tokens(), inputs.hidden, inputs.vocab);
    let output = |name, shape, values| Output { name, shape, values: Elements::from_f32(values, dtype) };
    let loss_shape = vec![results.loss.len()];
    let mut outputs = vec![
        output("loss", loss_shape, results.loss),
        output("lse", vec![n], results.lse),
        output("dx", vec![n, h], std::sync::Arc::unwrap_or_clone(results.dx)),
        output("dw", vec![v, h], results.dw),
    ];
    outputs.extend(results.dbias.map(|dbias| output("dbias", vec![v], dbias)));
    Ok(tensors::write(path, &outputs)?)
}
