//! One process of `cargo xtask compare`: the Rust competitors, the shared data, the calibration and the f64 reference.
//!
//! Reads one JSON request a line from stdin and answers each with one JSON object a line on stdout; an answer with the
//! key `error` means that the request failed. `torch_worker.py` speaks the same protocol.

mod data;
mod memory;
mod rivals;
mod truth;

use anyhow::{Context, Result};
use data::Shape;
use rivals::Rival;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use truth::Truth;
use vocabfuse::Dtype;
use vocabfuse::calibrate::{self, Rate, TileLoads};

/// What a worker can be asked for.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Request {
    /// Writes the inputs into the folder, and names the rows of dW that errors are taken from.
    Make { shape: Shape, seed: u64, samples: usize },
    /// Gets a competitor ready: threads, inputs, and a first run that does not count.
    Load { competitor: String, shape: Shape, rows: Vec<usize> },
    /// One forward and backward pass.
    Run,
    /// Loss and sampled rows of dW of the last run; the rows go to a file of f32. Peak memory of the runs.
    Results { path: PathBuf },
    /// Measures what one thread can do at most, and for products of this type.
    Calibrate { dtype: String },
    /// Computes loss and sampled rows in f64 and keeps them.
    Reference { shape: Shape, rows: Vec<usize> },
    /// Errors of a competitor's results against the reference. A loss that is not finite arrives as null.
    Errors { loss: Option<f64>, path: PathBuf },
}

/// What stays between requests.
#[derive(Default)]
struct Worker {
    rival: Option<Rival>,
    truth: Option<Truth>,
}

impl Worker {
    fn answer(&mut self, request: Request) -> Result<Value> {
        match request {
            Request::Make { shape, seed, samples } => {
                let rows = data::make(&shape, seed, samples)?;
                Ok(json!({ "rows": rows }))
            }
            Request::Load { competitor, shape, rows } => {
                let rival = self.rival.insert(Rival::load(&competitor, &shape, rows)?);
                Ok(
                    json!({ "products": rival.products(), "output_bytes": rival.output_bytes(), "device": rival.device() }),
                )
            }
            Request::Run => Ok(json!({ "ms": self.rival()?.run()? })),
            Request::Results { path } => {
                let rival = self.rival()?;
                let results = rival.results().context("no run yet")?;
                data::write(&path, &results.rows)?;
                let loss = results.loss;
                Ok(json!({ "loss": loss.is_finite().then_some(loss), "peak_bytes": rival.peak_bytes() }))
            }
            Request::Calibrate { dtype } => calibration(dtype.parse()?),
            Request::Reference { shape, rows } => {
                self.truth = Some(Truth::compute(&shape, &rows)?);
                Ok(json!({}))
            }
            Request::Errors { loss, path } => {
                let truth = self.truth.as_ref().context("no reference yet")?;
                let (loss, dw) = truth.errors(loss, &data::read::<f32>(&path)?);
                Ok(json!({ "loss": finite(loss), "dw": finite(dw) }))
            }
        }
    }

    fn rival(&mut self) -> Result<&mut Rival> {
        self.rival.as_mut().context("no competitor loaded yet")
    }
}

/// All rates, the highest that products of this type can have, and how tiles are loaded, if there are any.
fn calibration(dtype: Dtype) -> Result<Value> {
    let rates = calibrate::rates(1);
    let of_dtype = rates.iter().filter(|rate| rate.operation.multiplies(dtype));
    let peak =
        of_dtype.max_by(|a, b| a.gflops.total_cmp(&b.gflops)).context("no vectors of this processor are known")?;
    let named = |rate: &Rate| json!({ "operation": rate.operation.as_str(), "isa": rate.isa, "gflops": rate.gflops });
    Ok(json!({
        "peak": named(peak),
        "rates": rates.iter().map(named).collect::<Vec<_>>(),
        "tile_loads": TileLoads::of(&rates).map(TileLoads::as_str),
    }))
}

/// JSON has no infinity: null stands for it.
fn finite(error: f64) -> Option<f64> {
    error.is_finite().then_some(error)
}

fn main() -> Result<()> {
    let mut worker = Worker::default();
    for line in std::io::stdin().lock().lines() {
        let request = serde_json::from_str(&line?).context("a request");
        let answer = request.and_then(|r| worker.answer(r)).unwrap_or_else(|e| json!({ "error": format!("{e:#}") }));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
