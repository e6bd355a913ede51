//! What `run` prints.

use super::check::{Check, Error};
use super::measure::{Costs, Pass};
use super::operator::Sizes;
use comfy_table::{Table, presets};
use serde::{Serialize, Serializer};
use vocabfuse::PtxReport;

/// The JSON object of `run`.
#[derive(Serialize)]
pub struct Report<'a> {
    /// Null without `--check`, as are the errors.
    passed: Option<bool>,
    errors: Option<Errors<'a>>,
    plain_errors: Option<Errors<'a>>,
    /// Error of the worst row of each output over what it may be: 1 at most where it passes.
    excess: Option<Errors<'a>>,
    /// Times that a rank waited for the others.
    barriers: u64,
    /// Collectives that a rank launched.
    launches: u64,
    /// Bytes that all ranks together contributed.
    bytes: u64,
    /// Most bytes allocated at a time, besides inputs and outputs.
    peak_extra_bytes: usize,
    #[serde(serialize_with = "milliseconds")]
    ms: &'a [Pass],
    /// Shares of the tiles of dX and dW that the gradient filter left out; null without one.
    filtered: Option<[f64; 2]>,
    kernels: &'a [&'static str],
    device: String,
    /// What the PTX interpreter counted and found; only with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    interpreter: Option<Interpreter>,
    #[serde(flatten)]
    sizes: Sizes,
    ranks: usize,
    #[serde(skip)]
    check: Option<&'a Check>,
}

/// One of the two errors of each output, by its name.
struct Errors<'a>(&'a [Error], fn(&Error) -> f64);

impl Serialize for Errors<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|error| (error.name, (self.1)(error))))
    }
}

fn milliseconds<S: Serializer>(passes: &[Pass], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(passes.iter().map(|pass| (pass.key, pass.ms)))
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

/// Where the operator ran.
pub struct Where<'a> {
    pub device: String,
    pub ranks: usize,
    /// What the PTX interpreter found, if it was that.
    pub found: Option<&'a PtxReport>,
}

impl<'a> Report<'a> {
    pub fn new(sizes: Sizes, place: Where<'_>, costs: &'a Costs, check: Option<&'a Check>) -> Report<'a> {
        Report {
            passed: check.map(|c| c.failed().is_empty()),
            errors: check.map(|c| Errors(&c.errors, |error| error.own)),
            plain_errors: check.map(|c| Errors(&c.errors, |error| error.plain)),
            excess: check.map(|c| Errors(&c.errors, |error| error.worst.excess)),
            barriers: costs.counters.barriers,
            launches: costs.counters.launches,
            bytes: costs.counters.bytes,
            peak_extra_bytes: costs.peak_extra_bytes,
            ms: &costs.passes,
            filtered: costs.filtered,
            kernels: &costs.kernels,
            device: place.device,
            interpreter: place.found.map(Interpreter::new),
            sizes,
            ranks: place.ranks,
            check,
        }
    }

    /// The same for people.
    pub fn table(&self) -> String {
        let mut cost = Table::new();
        cost.load_style(presets::NOTHING);
        for pass in self.ms {
            cost.add_row([pass.label, &format!("{:.2} ms", pass.ms)]);
        }
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
        let (Report { ranks, device, .. }, Sizes { tokens, hidden, vocab, dtype }) = (self, self.sizes);
        let plural = if *ranks == 1 { "" } else { "s" };
        let head =
            format!("{tokens} tokens, hidden {hidden}, vocabulary {vocab}, {dtype}, {ranks} rank{plural}, {device}");
        match self.check {
            Some(check) => format!("{head}\n{cost}\n\n{}", error_table(&check.errors)),
            None => format!("{head}\n{cost}"),
        }
    }
}

fn error_table(errors: &[Error]) -> Table {
    let mut table = Table::new();
    let header = ["output", "error against f64", "plain composition", "worst row", "of what it may be", "check"];
    table.load_style(presets::NOTHING).set_header(header);
    for error in errors {
        let verdict = if error.passes() { "passed" } else { "failed" };
        let [own, plain] = [error.own, error.plain].map(|error| format!("{error:.2e}"));
        let share = format!("{:.2}", error.worst.excess);
        table.add_row([error.name, &own, &plain, &error.worst.row.to_string(), &share, verdict]);
    }
    table
}
