//! `--compile`: resources of the kernels, and the arithmetic of the passes by count.

use crate::cli::resources::{self, Row};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use vocabfuse::Builder;
use vocabfuse::codegen::Architecture;
use vocabfuse::codegen::compile::measure::Bench;
use vocabfuse::codegen::compile::roofline::{A100, Gpu, H200, SHAPES, Sizes, Work, pass_s, pass_t};
use vocabfuse::codegen::compile::tools;
use vocabfuse::codegen::emit::Kernel;
use vocabfuse::codegen::manifest::Manifest;

/// Chunk that the passes take unless told otherwise.
pub const ROOFLINE_CHUNK: usize = 8192;

/// Bytes of bf16, which the rooflines are for.
const ELEMENT: usize = 2;

/// What `--compile` adds to the report.
#[derive(Serialize)]
pub struct Compiled {
    resources: Vec<Row>,
    /// Whether instructions of main loops were counted.
    disassembled: bool,
    roofline: Vec<Line>,
}

/// One pass at one size on one GPU, in bf16.
#[derive(Serialize)]
struct Line {
    gpu: &'static str,
    tokens: usize,
    hidden: usize,
    vocab: usize,
    chunk: usize,
    pass: &'static str,
    /// Operations of the matrix products.
    operations: f64,
    /// Bytes to and from memory for each of them.
    bytes_per_operation: f64,
    /// The longer of products, in whole waves of tiles, and memory.
    roofline_ms: f64,
}

/// Compiles the kernels: their manifest with resources, and the report.
pub fn compile(
    builder: &Builder,
    kernels: &[Kernel],
    on: &[Architecture],
    chunk: usize,
) -> anyhow::Result<(Manifest, Compiled)> {
    let bench = Bench::new()?;
    let mut manifest = Manifest::new(builder.entries()?);
    bench.complete(&mut manifest, kernels, on, &Manifest::new(vec![]))?;
    let resources = resources::rows(&manifest.kernels);
    let roofline = [A100, H200].iter().flat_map(|gpu| SHAPES.iter().flat_map(|sizes| lines(*gpu, *sizes, chunk)));
    let compiled = Compiled { resources, disassembled: bench.disassembles(), roofline: roofline.collect() };
    Ok((manifest, compiled))
}

fn lines(gpu: Gpu, sizes: Sizes, chunk: usize) -> Vec<Line> {
    let line = |pass, work: Work| Line {
        gpu: gpu.name,
        tokens: sizes.tokens,
        hidden: sizes.hidden,
        vocab: sizes.vocab,
        chunk,
        pass,
        operations: work.operations,
        bytes_per_operation: work.bytes_per_operation(),
        roofline_ms: 1e3 * work.seconds(gpu),
    };
    let t = |saved| pass_t(sizes, chunk, ELEMENT, saved, gpu);
    vec![line("S", pass_s(sizes, chunk, ELEMENT, gpu)), line("T, saved", t(true)), line("T, recomputed", t(false))]
}

impl Compiled {
    /// The same for people.
    pub fn text(&self) -> String {
        let mut parts = vec![resources::table(&self.resources).to_string()];
        if !self.disassembled {
            parts.push(format!("Instructions were not counted: nvdisasm is missing; {}", tools::INSTALL));
        }
        let chunk = self.roofline.first().map_or(0, |l| l.chunk);
        parts.push(format!(
            "Least times of the passes in bf16, chunk {chunk}, by products in whole waves and by memory"
        ));
        parts.push(self.roofline_table().to_string());
        parts.join("\n\n")
    }

    fn roofline_table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["GPU", "N", "H", "V", "pass", "TFLOP", "bytes / FLOP", "ms"]);
        for l in &self.roofline {
            table.add_row([
                l.gpu.to_owned(),
                l.tokens.to_string(),
                l.hidden.to_string(),
                l.vocab.to_string(),
                l.pass.to_owned(),
                format!("{:.2}", l.operations / 1e12),
                format!("{:.5}", l.bytes_per_operation),
                format!("{:.2}", l.roofline_ms),
            ]);
        }
        for index in [1, 2, 3, 5, 6, 7] {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}
