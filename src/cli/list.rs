//! `vocabfuse list`: the kernels there are.

use super::resources::{self, Row as Resources};
use super::{Outcome, print_json, print_line, values};
use anyhow::Context;
use comfy_table::{Table, presets};
use serde::Serialize;
use vocabfuse::codegen::manifest::Manifest;
use vocabfuse::{Cpu, Gpu, Registry, Target, kernels};

/// List the generated kernels, and which of them this machine can run
///
/// A name spells out what a kernel does: kernel, loss, dtype, chunk of the vocabulary, target, and tile. CUDA kernels run
/// where the NVIDIA driver is installed; what the compiler made of them follows in a second table.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  vocabfuse list --target avx2")]
pub struct Args {
    /// Only the kernels of this target
    #[arg(long, value_parser = values::target())]
    target: Option<Target>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    kernel: &'static str,
    dtype: &'static str,
    chunk: Option<usize>,
    target: &'static str,
    runnable: bool,
}

#[derive(Serialize)]
struct Report {
    kernels: Vec<Row>,
    /// Registers, shared memory and occupancy of the CUDA kernels among them, by architecture.
    resources: Vec<Resources>,
    /// Targets that this machine can run, the fastest last.
    available: Vec<&'static str>,
}

fn report(wanted: impl Fn(Target) -> bool) -> anyhow::Result<Report> {
    let mut available: Vec<&str> = Cpu::available_targets().into_iter().map(Target::as_str).collect();
    if Gpu::has_driver() {
        available.extend(Target::CUDA.iter().map(|t| t.as_str()));
    }
    let names: Vec<&str> = Target::ALL.iter().filter(|t| wanted(**t)).map(|t| t.as_str()).collect();
    let registry = Registry::default();
    let mut rows: Vec<Row> = registry
        .iter()
        .filter(|k| names.contains(&k.target))
        .map(|k| Row {
            name: k.name.to_owned(),
            kernel: k.kernel,
            dtype: k.dtype,
            chunk: (k.chunk != 0).then_some(k.chunk),
            target: k.target,
            runnable: available.contains(&k.target),
        })
        .collect();
    let mut cuda = Manifest::parse(kernels::cuda::MANIFEST).context("manifest of the CUDA kernels")?;
    cuda.kernels.retain(|entry| wanted(entry.spec.target));
    rows.extend(cuda.kernels.iter().map(|entry| Row {
        name: entry.name.clone(),
        kernel: entry.spec.kernel.as_str(),
        dtype: entry.spec.dtype.as_str(),
        chunk: entry.spec.chunk,
        target: entry.spec.target.as_str(),
        runnable: available.contains(&entry.spec.target.as_str()),
    }));
    Ok(Report { kernels: rows, resources: resources::rows(&cuda.kernels), available })
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let report = report(|target| args.target.is_none_or(|t| t == target))?;
    if args.json {
        print_json(&report)?;
        return Ok(Outcome::Success);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["name", "kernel", "dtype", "chunk", "target", "runs here"]);
    for k in &report.kernels {
        let chunk = k.chunk.map_or_else(|| "any".to_owned(), |c| c.to_string());
        let runs = if k.runnable { "yes" } else { "no" };
        table.add_row([&k.name, k.kernel, k.dtype, &chunk, k.target, runs]);
    }
    let mut text = table.to_string();
    if !report.resources.is_empty() {
        text += &format!("\n\n{}\n", resources::table(&report.resources));
    }
    print_line(&format!("{text}\nThis machine runs: {}", report.available.join(", ")))?;
    Ok(Outcome::Success)
}
