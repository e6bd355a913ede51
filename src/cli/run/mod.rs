//! `vocabfuse run`: an operator on tensors from a file.
//!
//! An operator is a file here with its options, its inputs and its passes ([`operator::Operator`]); everything else is
//! shared.

mod check;
mod cross_entropy;
pub mod device;
mod distribution;
mod embedding;
mod logits;
mod measure;
mod operator;
mod products;
mod report;

use super::values;
use super::{Outcome, print_error, print_json, print_line};
use anyhow::{Context, ensure};
use check::Check;
use device::Opened;
use operator::{Given, Op, Operator, Place, Tensor};
use report::{Report, Where};
use std::path::{Path, PathBuf};
use vocabfuse::bounds::Arithmetic;
use vocabfuse::tensors::{self, Elements, Output, Written};
use vocabfuse::{Device, Dtype, Ptx, ShardLayout};

/// Run an operator and its gradients on tensors from a safetensors file
///
/// The V rows of w are split over ranks, which are threads of this process and exchange what they would over a network.
/// Tensors are f32, bf16 or f16, ids i64 or i32.
///
/// Infinities in x, w, bias and logits are taken as they are: a class may be masked by -inf. A NaN may be in x and logits
/// only. A number that --dtype or --output-dtype would make infinite is an error.
///
/// cross-entropy reads x [N, H], w [V, H], targets [N], and optionally bias [V], upstream [N],
/// lse_upstream [N], token_weights [N] and class_weights [V]; it writes loss ([N] or
/// [1]), lse [N], dx [N, H], dw [V, H], and with a bias dbias [V].
///
/// embedding reads ids [N], w [V, H], and optionally dy [N, H]; it writes y [N, H], and with dy dw [V, H].
///
/// logprobs, entropy and logprobs-entropy read x and w, or logits [N, V] in their place, and optionally bias; logprobs also
/// ids, [N] or [N, k]; and optionally upstream gradients, upstream, and beside log-probabilities entropy_upstream (one by
/// default). They write logprobs
/// in the shape of ids, and entropy [N], and dx, dw or dlogits, and dbias. kl reads a teacher besides, teacher_x and so on, and writes divergence [N]
/// and the gradients of both. top-k and sample write ids, logits and logprobs: [N, k] of top-k, also where k is 1, and [N]
/// of sample.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
#[command(after_help = "Examples:\n  \
    vocabfuse run --input t.safetensors --output o.safetensors --ranks 4 --check\n  \
    vocabfuse run --input t.safetensors --output o.safetensors --bounds 0,5,5,100 --dtype bf16 --json\n  \
    vocabfuse run --op embedding --input e.safetensors --output o.safetensors --ranks 4 --padding-idx 0 --check")]
pub struct Args {
    // The first, because the others take their values away.
    #[command(flatten)]
    given: Given,
    /// What to run
    #[arg(long, value_enum, default_value_t = Op::CrossEntropy)]
    op: Op,
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
    /// Round x and w, or logits, to this type first [default: the type of w, which x must share]
    #[arg(long, value_parser = values::dtype())]
    dtype: Option<Dtype>,
    /// Where to run: cpu, cuda:0, or ptx:sm_80, which interprets the kernels of a GPU and checks them for races
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device::parse)]
    device: device::Choice,
    /// Threads that the ranks share [default: one a processor]
    #[arg(long, value_name = "T", value_parser = values::threads)]
    threads: Option<usize>,
    /// Compare the outputs as they are written with an f64 reference. Each row may have twice the error of the plain
    /// composition in this dtype, and a bound on the roundings of its terms; ids are judged by their logits
    #[arg(long)]
    check: bool,
    /// Type of the written tensors, but for ids
    #[arg(long, default_value = "f32", value_parser = values::dtype())]
    output_dtype: Dtype,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    products: products::Options,
    #[command(flatten)]
    logits: logits::Options,
    #[command(flatten)]
    cross_entropy: cross_entropy::Options,
    #[command(flatten)]
    embedding: embedding::Options,
    #[command(flatten)]
    distribution: distribution::Options,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.op.check(&args.given)?;
    match args.op {
        Op::CrossEntropy => run_operator(args, |input, dtype| args.cross_entropy.read(&args.logits, input, dtype)),
        Op::Embedding => run_operator(args, |input, dtype| args.embedding.read(input, dtype)),
        op => run_operator(args, |input, dtype| args.distribution.read(op, &args.logits, input, dtype)),
    }
}

fn run_operator<O: Operator>(
    args: &Args,
    read: impl Fn(&Path, Option<Dtype>) -> anyhow::Result<O>,
) -> anyhow::Result<Outcome> {
    check_folder(&args.output)?;
    check_apart(&args.input, &args.output)?;
    let operator = read(&args.input, args.dtype)?;
    let layout = layout(args, operator.sizes().vocab)?;
    match args.device.open(args.threads, args.products.precision)? {
        Opened::Cpu(cpu) => run_on(args, &operator, &layout, &cpu, cpu.name(), None),
        Opened::Cuda(gpu) => run_on(args, &operator, &layout, &gpu, gpu.name(), None),
        Opened::Ptx(gpu, ptx) => run_on(args, &operator, &layout, &gpu, gpu.name(), Some(&ptx)),
    }
}

fn run_on<D: Device>(
    args: &Args,
    operator: &impl Operator,
    layout: &ShardLayout,
    device: &D,
    name: String,
    ptx: Option<&Ptx>,
) -> anyhow::Result<Outcome> {
    let results = operator.run(&Place { device, layout, policy: args.products.policy() })?;
    let check = args.check.then(|| check(args, operator, &results.outputs)).transpose()?;

    let found = ptx.map(Ptx::take_report);
    let place = Where { device: name, ranks: layout.ranks(), found: found.as_ref() };
    let report = Report::new(operator.sizes(), place, &results.costs, check.as_ref());
    write(&args.output, results.outputs, args.output_dtype)?;
    if args.json {
        print_json(&report)?
    } else {
        print_line(&report.table())?
    }
    if let Some(found) = found.filter(|found| !found.is_clean()) {
        let first = found.races.iter().chain(&found.uninitialized).next().map_or("", String::as_str);
        let (races, reads) = (found.races.len(), found.uninitialized.len());
        print_error(&format!(
            "check failed: {races} races and {reads} reads of unwritten memory, the first in {first}"
        ));
        return Ok(Outcome::FailedCheck);
    }
    match check.map(|c| c.failed()) {
        Some(failed) if !failed.is_empty() => {
            let failed: Vec<String> = failed.iter().map(|(name, row)| format!("{name} (row {row})")).collect();
            print_error(&format!(
                "check failed: the error of {} is more than twice that of the plain composition and a bound on roundings",
                failed.join(", ")
            ));
            Ok(Outcome::FailedCheck)
        }
        _ => Ok(Outcome::Success),
    }
}

fn check(args: &Args, operator: &impl Operator, outputs: &[Tensor]) -> anyhow::Result<Check> {
    let arithmetic = Arithmetic {
        dtype: operator.sizes().dtype.parse()?,
        precision: args.products.precision,
        filter: args.products.policy().filter.map(f64::from),
    };
    Check::new(operator, outputs, arithmetic, args.output_dtype)
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

// Whoever overwrites the inputs has nothing to run again with.
fn check_apart(input: &Path, output: &Path) -> anyhow::Result<()> {
    let same = output.canonicalize().is_ok_and(|output| input.canonicalize().is_ok_and(|input| input == output));
    ensure!(!same, "option --output {}: is the input; expected another file", output.display());
    Ok(())
}

fn layout(args: &Args, vocab: usize) -> anyhow::Result<ShardLayout> {
    let Some(bounds) = &args.bounds else {
        return ShardLayout::even(vocab, args.ranks.unwrap_or(1)).context("option --ranks");
    };
    let layout = ShardLayout::from_bounds(bounds).context("option --bounds")?;
    let end = layout.stored();
    ensure!(end == vocab, "option --bounds: the shards end at row {end}; expected {vocab}, the rows of tensor w");
    if let Some(ranks) = args.ranks {
        ensure!(
            ranks == layout.ranks(),
            "option --ranks {ranks}: expected {}, the number of shards that --bounds gives",
            layout.ranks()
        );
    }
    Ok(layout)
}

/// A tensor of the input in the type that `--dtype` asks for, if it does.
fn convert(name: &'static str, tensor: Elements, dtype: Option<Dtype>) -> anyhow::Result<Elements> {
    let Some(dtype) = dtype else { return Ok(tensor) };
    tensor.convert(name, dtype).with_context(|| format!("option --dtype {dtype}"))
}

fn write(path: &Path, outputs: Vec<Tensor>, dtype: Dtype) -> anyhow::Result<()> {
    let output = |Tensor { name, shape, values, ids }| {
        let values = match ids {
            Some(ids) => Written::Ids(ids),
            None => {
                let values = Elements::F32(values).convert(name, dtype);
                Written::Floats(values.with_context(|| format!("option --output-dtype {dtype}"))?)
            }
        };
        Ok(Output { name, shape, values })
    };
    Ok(tensors::write(path, &outputs.into_iter().map(output).collect::<anyhow::Result<Vec<_>>>()?)?)
}

#[cfg(test)]
mod check_tests;
