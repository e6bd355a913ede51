//! The competitor candle of `cargo xtask compare`. Speaks the protocol of `benches/compare/worker.rs`: one JSON object a line
//! on stdin, one on stdout for each; an answer with the key `error` means that the request failed.

#[path = "../../compare/memory.rs"]
mod memory;

use anyhow::{Context, Result, bail};
use candle_core::{DType, Device, Tensor, Var};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One problem, and the folder with its inputs.
#[derive(Deserialize)]
struct Shape {
    folder: PathBuf,
    tokens: usize,
    hidden: usize,
    vocab: usize,
    dtype: String,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Request {
    Load { shape: Shape, rows: Vec<u32> },
    Run,
    Results { path: PathBuf },
}

/// Inputs, and what the last run gave.
struct Rival {
    x: Var,
    w: Var,
    targets: Tensor,
    rows: Tensor,
    loss: f32,
    sample: Vec<f32>,
    /// Bytes in memory when the inputs were there and nothing had run on them.
    loaded: Option<u64>,
}

impl Rival {
    fn load(shape: &Shape, rows: Vec<u32>) -> Result<Rival> {
        let dtype = match shape.dtype.as_str() {
            "f32" => DType::F32,
            "bf16" => DType::BF16,
            "f16" => DType::F16,
            other => bail!("no dtype {other:?} here"),
        };
        // A tiny problem first: it starts threads and loads code, which is no memory of the method.
        let ones = |rows| Var::ones((rows, 64), dtype, &Device::Cpu);
        let targets = Tensor::zeros(64, DType::I64, &Device::Cpu)?;
        Rival::new(ones(64)?, ones(256)?, targets, vec![0])?.run()?;

        let matrix = |name: &str, rows: usize| -> Result<Var> {
            let values = read(&shape.folder.join(name), f32::from_le_bytes)?;
            let values = Tensor::from_vec(values, (rows, shape.hidden), &Device::Cpu)?;
            Ok(Var::from_tensor(&values.to_dtype(dtype)?)?)
        };
        let targets = read(&shape.folder.join("targets.bin"), i64::from_le_bytes)?;
        let targets = Tensor::from_vec(targets, shape.tokens, &Device::Cpu)?;
        let mut rival = Rival::new(matrix("x.bin", shape.tokens)?, matrix("w.bin", shape.vocab)?, targets, rows)?;
        rival.loaded = memory::resident();
        rival.run()?;
        memory::forget_peak();
        Ok(rival)
    }

    fn new(x: Var, w: Var, targets: Tensor, rows: Vec<u32>) -> Result<Rival> {
        let count = rows.len();
        let rows = Tensor::from_vec(rows, count, &Device::Cpu)?;
        Ok(Rival { x, w, targets, rows, loss: f32::NAN, sample: vec![], loaded: None })
    }

    /// Forward and backward; milliseconds. Gradients are allocated within that time.
    fn run(&mut self) -> Result<f64> {
        let start = Instant::now();
        let logits = self.x.matmul(&self.w.t()?)?;
        let loss = candle_nn::loss::cross_entropy(&logits, &self.targets)?;
        let gradients = loss.backward()?;
        let dw = gradients.get(&self.w).context("no gradient of w")?;
        gradients.get(&self.x).context("no gradient of x")?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        self.loss = loss.to_dtype(DType::F32)?.to_scalar()?;
        self.sample = dw.index_select(&self.rows, 0)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        Ok(ms)
    }
}

/// A file of little-endian values.
fn read<T, const SIZE: usize>(path: &Path, from: fn([u8; SIZE]) -> T) -> Result<Vec<T>> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let (values, rest) = bytes.as_chunks::<SIZE>();
    if !rest.is_empty() {
        bail!("{} has {} bytes, no multiple of {SIZE}", path.display(), bytes.len());
    }
    Ok(values.iter().map(|bytes| from(*bytes)).collect())
}

fn answer(rival: &mut Option<Rival>, request: Request) -> Result<Value> {
    match request {
        Request::Load { shape, rows } => {
            let loaded = rival.insert(Rival::load(&shape, rows)?);
            let output_bytes = (loaded.x.elem_count() + loaded.w.elem_count()) * loaded.w.dtype().size_in_bytes();
            Ok(json!({ "products": 3, "output_bytes": output_bytes, "device": "candle 0.11, gemm crate" }))
        }
        Request::Run => Ok(json!({ "ms": rival.as_mut().context("nothing loaded yet")?.run()? })),
        Request::Results { path } => {
            let rival = rival.as_ref().context("nothing loaded yet")?;
            let bytes: Vec<u8> = rival.sample.iter().flat_map(|v| v.to_le_bytes()).collect();
            std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
            let peak = memory::peak().zip(rival.loaded).map(|(peak, loaded)| peak.saturating_sub(loaded));
            Ok(json!({ "loss": rival.loss.is_finite().then_some(rival.loss), "peak_bytes": peak }))
        }
    }
}

fn main() -> Result<()> {
    let mut rival = None;
    for line in std::io::stdin().lock().lines() {
        let request = serde_json::from_str(&line?).context("a request");
        let answer =
            request.and_then(|r| answer(&mut rival, r)).unwrap_or_else(|e| json!({ "error": format!("{e:#}") }));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
