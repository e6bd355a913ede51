//! What `run` prints.

use super::check::{Check, Errors};
use super::passes::Results;
use comfy_table::{Table, presets};
use serde::Serialize;
use vocabfuse::tensors::Inputs;
use vocabfuse::{Filtered, PtxReport};

/// The JSON object of `run`.
#[derive(Serialize)]
pub struct Report {
    /// Null without `--check`, as are the errors.
    passed: Option<bool>,
    errors: Option<Errors>,
    plain_errors: Option<Errors>,
    /// Times that a rank waited for the others.
    barriers: u64,
    /// Collectives that a rank launched.
    launches: u64,
    /// Bytes that all ranks together contributed.
    bytes: u64,
    /// Most bytes allocated at a time, besides inputs and outputs.
    peak_extra_bytes: usize,
    ms: Milliseconds,
    /// Shares of the tiles of dX and dW that the gradient filter left out; null without one.
    filtered: Option<[f64; 2]>,
    kernels: Vec<&'static str>,
    device: String,
    /// What the PTX interpreter counted and found; only with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    interpreter: Option<Interpreter>,
    tokens: usize,
    hidden: usize,
    vocab: usize,
    dtype: &'static str,
    ranks: usize,
}

#[derive(Serialize)]
struct Interpreter {
    launches: u64,
    instructions: u64,
    races: usize,
    uninitialized_reads: usize,
    bank_conflicts: u64,
    /// Share of the bytes that copies moved which they asked for.
    copy_efficiency: f64,
}

impl Interpreter {
    fn new(found: &PtxReport) -> Interpreter {
        Interpreter {
            launches: found.launches,
            instructions: found.instructions,
            races: found.races.len(),
            uninitialized_reads: found.uninitialized.len(),
            bank_conflicts: found.bank_conflicts,
            copy_efficiency: found.copied_bytes as f64 / (32 * found.copied_sectors.max(1)) as f64,
        }
    }
}

#[derive(Serialize)]
struct Milliseconds {
    s: f64,
    combine: f64,
    t: f64,
}

impl Report {
    pub fn new(
        inputs: &Inputs,
        ranks: usize,
        device: String,
        results: &Results,
        check: Option<&Check>,
        found: Option<&PtxReport>,
    ) -> Report {
        let [s, combine, t] = results.ms;
        Report {
            passed: check.map(|c| c.failed().is_empty()),
            errors: check.map(|c| c.errors),
            plain_errors: check.map(|c| c.plain),
            barriers: results.counters.barriers,
            launches: results.counters.launches,
            bytes: results.counters.bytes,
            peak_extra_bytes: results.peak_extra_bytes,
            ms: Milliseconds { s, combine, t },
            filtered: results.filtered.iter().any(|f| f.tiles > 0).then(|| results.filtered.map(Filtered::share)),
            kernels: results.kernels.clone(),
            device,
            interpreter: found.map(Interpreter::new),
            tokens: inputs.tokens(),
            hidden: inputs.hidden,
            vocab: inputs.vocab,
            dtype: inputs.x.dtype().as_str(),
            ranks,
        }
    }

    /// The same for people.
    pub fn table(&self) -> String {
        let mut cost = Table::new();
        cost.load_style(presets::NOTHING);
        cost.add_row(["pass S", &format!("{:.2} ms", self.ms.s)]);
        cost.add_row(["combine", &format!("{:.2} ms", self.ms.combine)]);
        cost.add_row(["pass T", &format!("{:.2} ms", self.ms.t)]);
        let mebibytes = self.peak_extra_bytes as f64 / f64::from(1 << 20);
        cost.add_row(["memory over inputs and outputs", &format!("{mebibytes:.2} MiB")]);
        cost.add_row(["barriers", &self.barriers.to_string()]);
        cost.add_row(["collective launches", &self.launches.to_string()]);
        cost.add_row(["bytes communicated", &self.bytes.to_string()]);
        if let Some([dx, dw]) = self.filtered.map(|shares| shares.map(|share| format!("{:.1} %", share * 100.0))) {
            cost.add_row(["tiles left out of dX", &dx]);
            cost.add_row(["tiles left out of dW", &dw]);
        }
        if let Some(found) = &self.interpreter {
            cost.add_row(["launches of kernels", &found.launches.to_string()]);
            cost.add_row(["races", &found.races.to_string()]);
        }
        let Report { tokens, hidden, vocab, dtype, ranks, device, .. } = self;
        let plural = if *ranks == 1 { "" } else { "s" };
        let head =
            format!("{tokens} tokens, hidden {hidden}, vocabulary {vocab}, {dtype}, {ranks} rank{plural}, {device}");
        match (&self.errors, &self.plain_errors) {
            (Some(errors), Some(plain)) => format!("{head}\n{cost}\n\n{}", error_table(errors, plain)),
            _ => format!("{head}\n{cost}"),
        }
    }
}

fn error_table(errors: &Errors, plain: &Errors) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["output", "error against f64", "plain composition", "check"]);
    for ((name, error), (_, plain)) in errors.named().into_iter().zip(plain.named()) {
        let verdict = if Check::passes(error, plain) { "passed" } else { "failed" };
        table.add_row([name, &format!("{error:.2e}"), &format!("{plain:.2e}"), verdict]);
    }
    table
}
