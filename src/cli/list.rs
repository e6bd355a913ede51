//! `vocabfuse list`: the kernels there are.

use super::resources::{self, Row as Resources};
use super::values::{self, Kernels};
use super::{Outcome, print_json, print_line};
use anyhow::{Context, ensure};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::collections::BTreeSet;
use vocabfuse::codegen::manifest::{Entry, Manifest};
use vocabfuse::{Cpu, Dtype, Gpu, Registry, Target, kernels};

/// List the generated kernels, and which of them this machine can run
///
/// Each line is a family: a kernel of one target, for some losses, dtypes and chunks of the vocabulary. With --all each kernel has a
/// line. Its name spells out what it does: kernel, loss, dtype, chunk, target, and tile. CUDA kernels run where the NVIDIA driver
/// is installed; what the compiler made of them follows in a second table.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    vocabfuse list --target avx2\n  \
    vocabfuse list --kernel logits_softmax --dtype bf16 --loss cross_entropy --all")]
pub struct Args {
    /// Only the kernels of this target
    #[arg(long, value_parser = values::target())]
    target: Option<Target>,
    /// Only this kernel
    #[arg(long, value_name = "NAME", default_value = "all", value_parser = values::kernel())]
    kernel: Kernels,
    /// Only kernels of this element type
    #[arg(long, value_parser = values::dtype())]
    dtype: Option<Dtype>,
    /// Only kernels with the programs of this loss or operator
    #[arg(long, value_name = "NAME")]
    loss: Option<String>,
    /// A line for each kernel
    #[arg(long)]
    all: bool,
    /// Print one JSON object instead of a table: every kernel, with or without --all
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    kernel: String,
    /// Loss, operator or form of the logits whose programs it runs; null if none.
    loss: Option<String>,
    dtype: String,
    /// How it multiplies f32 where its products are not exact.
    precision: Option<String>,
    chunk: Option<usize>,
    target: String,
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

fn of_cuda(entry: &Entry) -> Row {
    let spec = &entry.spec;
    Row {
        name: entry.name.clone(),
        kernel: spec.kernel.to_string(),
        loss: spec.loss.clone(),
        dtype: spec.types.storage.to_string(),
        precision: spec.precision().map(|precision| precision.to_string()),
        chunk: spec.chunk,
        target: spec.target.to_string(),
        runnable: false,
    }
}

fn report(args: &Args) -> anyhow::Result<Report> {
    let mut available: Vec<&str> = Cpu::available_targets().into_iter().map(Target::as_str).collect();
    if Gpu::has_driver() {
        available.extend(Target::gpus().map(Target::as_str));
    }
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let registry = Registry::default();
    let on_cpu = registry.iter().map(|k| Row {
        name: k.name.to_owned(),
        kernel: k.kernel.to_owned(),
        loss: some(k.loss),
        dtype: k.dtype.to_owned(),
        precision: some(k.precision),
        chunk: (k.chunk != 0).then_some(k.chunk),
        target: k.target.to_owned(),
        runnable: false,
    });
    let cuda = Manifest::parse(kernels::cuda::MANIFEST).context("manifest of the CUDA kernels")?;
    // In the order of targets.
    let mut rows: Vec<Row> = on_cpu.chain(cuda.kernels.iter().map(of_cuda)).collect();
    rows.sort_by_key(|row| Target::ALL.iter().position(|target| target.as_str() == row.target));
    if let Some(name) = &args.loss {
        let losses: BTreeSet<&str> = rows.iter().filter_map(|row| row.loss.as_deref()).collect();
        let names = losses.iter().copied().collect::<Vec<_>>().join(", ");
        ensure!(losses.contains(name.as_str()), "option --loss: expected one of {names}, got {name:?}");
    }
    rows.retain(|row| args.wants(row));
    for row in &mut rows {
        row.runnable = available.contains(&row.target.as_str());
    }
    let listed = cuda.kernels.iter().filter(|entry| rows.iter().any(|row| row.name == entry.name));
    Ok(Report { resources: resources::rows(listed), kernels: rows, available })
}

impl Args {
    fn wants(&self, row: &Row) -> bool {
        let kernel = match self.kernel {
            Kernels::All => true,
            Kernels::One(kind) => kind.as_str() == row.kernel,
        };
        kernel
            && self.target.is_none_or(|target| target.as_str() == row.target)
            && self.dtype.is_none_or(|dtype| dtype.as_str() == row.dtype)
            && self.loss.as_ref().is_none_or(|loss| row.loss.as_ref() == Some(loss))
    }
}

impl Row {
    fn arithmetic(&self) -> String {
        self.precision.as_ref().map_or_else(|| self.dtype.clone(), |precision| format!("{} {precision}", self.dtype))
    }

    fn runs(&self) -> &'static str {
        if self.runnable { "yes" } else { "no" }
    }
}

fn spelled(chunk: Option<usize>) -> String {
    chunk.map_or_else(|| "any".to_owned(), |chunk| chunk.to_string())
}

/// A line for each kernel.
fn each(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["name", "kernel", "dtype", "chunk", "target", "runs here"]);
    for row in rows {
        table.add_row([&row.name, &row.kernel, &row.arithmetic(), &spelled(row.chunk), &row.target, row.runs()]);
    }
    table
}

/// A line for the kernels that differ in loss, dtype and chunk alone.
fn families(rows: &[Row]) -> Table {
    let mut families: Vec<Vec<&Row>> = vec![];
    for row in rows {
        let of_row = |family: &&mut Vec<&Row>| (&family[0].target, &family[0].kernel) == (&row.target, &row.kernel);
        match families.iter_mut().find(of_row) {
            Some(family) => family.push(row),
            None => families.push(vec![row]),
        }
    }
    let mut table = Table::new();
    let head = ["target", "kernel", "kernels", "losses", "dtypes", "chunks", "runs here"];
    table.load_style(presets::NOTHING).set_header(head);
    for family in &families {
        let distinct = |value: &dyn Fn(&Row) -> String| {
            let mut values: Vec<String> = vec![];
            for value in family.iter().map(|row| value(row)) {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            values
        };
        let chunks: BTreeSet<Option<usize>> = family.iter().map(|row| row.chunk).collect();
        let losses = distinct(&|row| row.loss.clone().unwrap_or_default());
        let losses = match losses.as_slice() {
            [one] => one.clone(),
            several => several.len().to_string(),
        };
        table.add_row([
            family[0].target.clone(),
            family[0].kernel.clone(),
            family.len().to_string(),
            losses,
            distinct(&Row::arithmetic).join(", "),
            chunks.into_iter().map(spelled).collect::<Vec<_>>().join(", "),
            family[0].runs().to_owned(),
        ]);
    }
    if let Some(column) = table.column_mut(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let report = report(args)?;
    if args.json {
        print_json(&report)?;
        return Ok(Outcome::Success);
    }
    let mut text = if args.all { each(&report.kernels) } else { families(&report.kernels) }.to_string();
    if args.all && !report.resources.is_empty() {
        text += &format!("\n\n{}", resources::table(&report.resources));
    }
    let losses: BTreeSet<&str> = report.kernels.iter().filter_map(|row| row.loss.as_deref()).collect();
    if !losses.is_empty() {
        text += &format!("\n\nLosses and operators: {}", losses.into_iter().collect::<Vec<_>>().join(", "));
    }
    let (count, available) = (report.kernels.len(), report.available.join(", "));
    print_line(&format!("{text}\n{count} kernels. This machine runs: {available}"))?;
    Ok(Outcome::Success)
}
