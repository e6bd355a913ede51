//! `vocabfuse list`: the kernels there are.

use super::{Outcome, print_json, print_line, values};
use comfy_table::{Table, presets};
use serde::Serialize;
use vocabfuse::{Cpu, Registry, Target};

/// List the generated kernels, and which of them this machine can run
///
/// A name spells out what a kernel does: kernel, loss, dtype, chunk of the vocabulary, target, and tile.
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
    name: &'static str,
    kernel: &'static str,
    dtype: &'static str,
    chunk: Option<usize>,
    target: &'static str,
    runnable: bool,
}

#[derive(Serialize)]
struct Report {
    kernels: Vec<Row>,
    /// Targets that this machine can run, the fastest last.
    available: Vec<&'static str>,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let available: Vec<&str> = Cpu::available_targets().into_iter().map(Target::as_str).collect();
    let wanted = args.target.map(Target::as_str);
    let kernels = Registry::default()
        .iter()
        .filter(|k| wanted.is_none_or(|t| t == k.target))
        .map(|k| Row {
            name: k.name,
            kernel: k.kernel,
            dtype: k.dtype,
            chunk: (k.chunk != 0).then_some(k.chunk),
            target: k.target,
            runnable: available.contains(&k.target),
        })
        .collect();
    let report = Report { kernels, available };
    if args.json {
        print_json(&report)?;
        return Ok(Outcome::Success);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["name", "kernel", "dtype", "chunk", "target", "runs here"]);
    for k in &report.kernels {
        let chunk = k.chunk.map_or_else(|| "any".to_owned(), |c| c.to_string());
        let runs = if k.runnable { "yes" } else { "no" };
        table.add_row([k.name, k.kernel, k.dtype, &chunk, k.target, runs]);
    }
    print_line(&format!("{table}\nThis machine runs: {}", report.available.join(", ")))?;
    Ok(Outcome::Success)
}
