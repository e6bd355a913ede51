//! `vocabfuse bench`: how fast the passes are on this machine.

mod check;
mod data;
mod measure;
mod report;

use super::run::device::{self, Opened};
use super::{Outcome, print_error, print_json, print_line, values};
use anyhow::bail;
use data::Data;
use measure::Setting;
use report::{Peak, Report, Where};
use vocabfuse::calibrate::{self, Operation, Rate};
use vocabfuse::{Cpu, Device, Dtype, Gpu, Precision, Target};

/// Measure passes S, C1 and T on random tensors, with one rank
///
/// Prints the median and the least time of each pass, the rate it reaches (S counts 4 NVH operations, T 2 NVH with saved
/// and 4 NVH with recomputed numerators, the whole 6 NVH), on a CPU its share of what the operation of the kernels reaches in
/// the same run (f32 multiply-adds or dot products of bf16 pairs from registers, bf16 tiles from L1; an operation of bf16x3
/// is three of bf16), and peak memory. On a GPU, times are of the device, without copies from and to the host.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    vocabfuse bench --tokens 1024 --hidden 1024 --vocab 32768 --dtype bf16 --threads 1 --check\n  \
    vocabfuse bench --device cuda:0 --tokens 4096 --hidden 4096 --vocab 128256 --dtype bf16 --save no --json")]
pub struct Args {
    /// Tokens (N)
    #[arg(long, value_name = "N", default_value = "1024", value_parser = values::positive)]
    tokens: usize,
    /// Width of the hidden states (H)
    #[arg(long, value_name = "H", default_value = "1024", value_parser = values::positive)]
    hidden: usize,
    /// Size of the vocabulary (V)
    #[arg(long, value_name = "V", default_value = "32768", value_parser = values::positive)]
    vocab: usize,
    /// Type of x and w
    #[arg(long, default_value = "bf16", value_parser = values::dtype())]
    dtype: Dtype,
    /// Where to run: cpu, or cuda:0 for a GPU
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device::parse)]
    device: device::Choice,
    /// Threads of device cpu [default: one a processor]
    #[arg(long, value_name = "T", value_parser = values::threads)]
    threads: Option<usize>,
    #[command(flatten)]
    policy: values::PolicyArgs,
    /// Rounds of S, C1 and T that are timed, after one that is not
    #[arg(long, value_name = "N", default_value = "9", value_parser = values::positive)]
    rounds: usize,
    /// Arithmetic of the matrix products: exact, or for f32 on a GPU tf32 or tf32x3, on a CPU that multiplies bf16 bf16x3
    #[arg(long, default_value = "exact", value_parser = device::precision)]
    precision: std::option::Option<Precision>,
    /// Compare a sample of rows with an f64 reference; an error beyond what the dtype explains exits with 1
    #[arg(long)]
    check: bool,
    /// Seed of the tensors
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    if let device::Choice::Ptx(architecture) = &args.device {
        bail!("option --device ptx:{architecture}: the interpreter is no stopwatch; expected cpu or cuda:N");
    }
    // The device first: without one, nobody waits for tensors.
    match args.device.open(args.threads, args.precision)? {
        Opened::Cpu(cpu) => run_on(args, &cpu, Some(&cpu), None),
        Opened::Cuda(gpu) | Opened::Ptx(gpu, _) => run_on(args, &gpu, None, Some(&gpu)),
    }
}

fn run_on<D: Device>(args: &Args, device: &D, cpu: Option<&Cpu>, gpu: Option<&Gpu>) -> anyhow::Result<Outcome> {
    let data = Data::new([args.tokens, args.hidden, args.vocab], args.dtype, args.seed)?;
    // Before and after: a machine that is busy or throttles shows.
    let rates = || cpu.and_then(|cpu| rates(cpu, args.dtype, args.precision));
    let before = rates();
    let policy = args.policy.policy(None);
    let setting = Setting { data: &data, device, gpu, policy, rounds: args.rounds };
    let measured = measure::measure(&setting)?;
    let after = rates();
    let check = args.check.then(|| check::check(&data, &measured, args.precision));

    let place = Where {
        device: cpu.map(Cpu::name).or_else(|| gpu.map(Gpu::name)).unwrap_or_default(),
        threads: cpu.map(Cpu::threads),
        precision: args.precision.map_or("exact", Precision::as_str),
        peak: before.zip(after).map(|(before, after)| Peak::new(&before, &after)),
    };
    let report = Report::new(&data, &measured, &place, check);
    if args.json {
        print_json(&report)?
    } else {
        print_line(&report.table())?
    }
    match report.failed() {
        failed if failed.is_empty() => Ok(Outcome::Success),
        failed => {
            print_error(&format!("check failed: the error of {} is more than the dtype explains", failed.join(", ")));
            Ok(Outcome::FailedCheck)
        }
    }
}

/// Rates of this machine, that of the operation that the kernels use first.
fn rates(cpu: &Cpu, dtype: Dtype, precision: Option<Precision>) -> Option<Vec<Rate>> {
    let mut rates = calibrate::rates(cpu.threads());
    let in_bf16 = dtype == Dtype::Bf16 || precision.is_some();
    let operation = match cpu.target() {
        Target::Amx if in_bf16 => Operation::Bf16Tiles,
        Target::Avx512Bf16 if in_bf16 => Operation::Bf16Pairs,
        _ => Operation::F32,
    };
    let used = rates.iter().position(|rate| rate.operation == operation)?;
    rates.swap(0, used);
    Some(rates)
}
