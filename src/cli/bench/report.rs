//! What `bench` prints.

use super::check::Check;
use super::data::Data;
use super::measure::{Measured, Times};
use comfy_table::{Table, presets};
use serde::Serialize;
use vocabfuse::Filtered;
use vocabfuse::calibrate::{Operation, Rate, TileLoads};

/// Where it ran.
pub struct Where {
    pub device: String,
    pub threads: Option<usize>,
    pub precision: &'static str,
    /// Of all threads; none on a GPU.
    pub peak: Option<Peak>,
}

/// The JSON object of `bench`.
#[derive(Serialize)]
pub struct Report {
    device: String,
    /// What times were taken by: events of the device, or the host's clock.
    clock: &'static str,
    tokens: usize,
    hidden: usize,
    vocab: usize,
    dtype: &'static str,
    precision: &'static str,
    threads: Option<usize>,
    saved: bool,
    rounds: usize,
    passes: Passes,
    /// Shares of the tiles of dX and dW that the gradient filter left out; null without one.
    filtered: Option<[f64; 2]>,
    /// Null where the device has no such peak, as are the shares of it.
    peak: Option<Peak>,
    /// Most bytes in use at a time besides x and w, on the device that ran; dX and dW are among them.
    peak_bytes: usize,
    /// Bytes of dX and dW.
    output_bytes: usize,
    /// Null without `--check`.
    check: Option<Check>,
    passed: Option<bool>,
    kernels: Vec<&'static str>,
}

#[derive(Serialize)]
struct Passes {
    s: Pass,
    combine: Pass,
    t: Pass,
    whole: Pass,
}

#[derive(Serialize)]
struct Pass {
    median_ms: f64,
    min_ms: f64,
    /// The host's time, with copies from and to the device.
    host_median_ms: f64,
    /// Of the median; C1 is no matrix product and has none.
    gflops: Option<f64>,
    /// Of the machine's peak.
    share: Option<f64>,
}

/// What the operation of the kernels reaches on this machine.
#[derive(Clone, Copy, Serialize)]
pub struct Peak {
    pub gflops: f64,
    pub isa: &'static str,
    pub operation: &'static str,
    /// Whether tiles were loaded at full rate before and after the rounds; null where no tile is.
    pub tile_loads: Option<[&'static str; 2]>,
}

impl Peak {
    /// From rates before and after the rounds, that of the operation first: a machine that is busy or throttles shows the
    /// better one of the two.
    pub fn new(before: &[Rate], after: &[Rate]) -> Peak {
        let best = if before[0].gflops > after[0].gflops { before[0] } else { after[0] };
        let loads = |rates| TileLoads::of(rates).map(TileLoads::as_str);
        let tile_loads = loads(before).zip(loads(after)).filter(|_| best.operation == Operation::Bf16Tiles);
        Peak {
            gflops: best.gflops,
            isa: best.isa,
            operation: best.operation.as_str(),
            tile_loads: tile_loads.map(|(before, after)| [before, after]),
        }
    }
}

/// The middle of a sample, which is not empty.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

impl Pass {
    /// `part` picks a pass, or sums them.
    fn new(measured: &Measured, part: impl Fn(&Times) -> f64, gigaflop: Option<f64>, peak: Option<Peak>) -> Pass {
        let times = || measured.times.iter().map(&part);
        let median_ms = median(times());
        let gflops = gigaflop.map(|work| work / (median_ms / 1e3));
        Pass {
            median_ms,
            min_ms: times().fold(f64::INFINITY, f64::min),
            host_median_ms: median(measured.host_times.iter().map(&part)),
            gflops,
            share: gflops.zip(peak).map(|(gflops, peak)| gflops / peak.gflops),
        }
    }
}

impl Report {
    pub fn new(data: &Data, measured: &Measured, place: &Where, check: Option<Check>) -> Report {
        let peak = place.peak;
        let t = if measured.saved { 2.0 } else { 4.0 };
        let pass = |part: fn(&Times) -> f64, products: f64| {
            let work = (products > 0.0).then(|| data.gigaflop(products));
            Pass::new(measured, part, work, peak)
        };
        Report {
            device: place.device.clone(),
            clock: if measured.events { "events" } else { "host" },
            tokens: data.tokens,
            hidden: data.hidden,
            vocab: data.vocab,
            dtype: data.dtype.as_str(),
            precision: place.precision,
            threads: place.threads,
            saved: measured.saved,
            rounds: measured.times.len(),
            passes: Passes {
                s: pass(|t| t[0], 4.0),
                combine: pass(|t| t[1], 0.0),
                t: pass(|t| t[2], t),
                whole: pass(|t| t.iter().sum(), 6.0),
            },
            filtered: measured.filtered.iter().any(|f| f.tiles > 0).then(|| measured.filtered.map(Filtered::share)),
            peak,
            peak_bytes: measured.peak_bytes,
            output_bytes: measured.output_bytes,
            passed: check.map(|c| c.failed().is_empty()),
            check,
            kernels: measured.kernels.clone(),
        }
    }

    /// Names of the outputs that fail the check.
    pub fn failed(&self) -> Vec<&'static str> {
        self.check.map_or(vec![], |check| check.failed())
    }

    /// The same for people.
    pub fn table(&self) -> String {
        let Report { tokens, hidden, vocab, dtype, device, rounds, .. } = self;
        let mode = if self.saved { "numerators saved" } else { "numerators recomputed" };
        let clock = if self.clock == "events" { "events of the device" } else { "the host's clock" };
        let mut text = format!(
            "{tokens} tokens, hidden {hidden}, vocabulary {vocab}, {dtype}, {mode}, {device}\n\
             {rounds} rounds by {clock}\n"
        );
        let Passes { s, combine, t, whole } = &self.passes;
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["pass", "median ms", "least ms", "GFLOP/s", "share of peak"]);
        for (name, pass) in [("S", s), ("C1", combine), ("T", t), ("whole", whole)] {
            let or_nothing = |value: Option<String>| value.unwrap_or_default();
            table.add_row([
                name,
                &format!("{:.3}", pass.median_ms),
                &format!("{:.3}", pass.min_ms),
                &or_nothing(pass.gflops.map(|rate| format!("{rate:.1}"))),
                &or_nothing(pass.share.map(|share| format!("{:.0} %", share * 100.0))),
            ]);
        }
        text += &format!("{table}\n");
        if let Some(Peak { gflops, isa, operation, tile_loads }) = self.peak {
            let threads = self.threads.unwrap_or(1);
            text += &format!("peak: {gflops:.1} GFLOP/s of {operation} ({isa}), {threads} threads\n");
            if let Some([before, after]) = tile_loads {
                text += &format!("tile loads: {before} before the rounds, {after} after them\n");
            }
        }
        if let Some([dx, dw]) = self.filtered.map(|shares| shares.map(|share| share * 100.0)) {
            text += &format!("tiles left out by the filter: {dx:.1} % of dX, {dw:.1} % of dW\n");
        }
        let mebibytes = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        let (peak, outputs) = (mebibytes(self.peak_bytes), mebibytes(self.output_bytes));
        text += &format!("memory over x and w: {peak:.1} MiB, of which dX and dW {outputs:.1} MiB");
        if let Some(check) = &self.check {
            text += &format!("\n{}", check_table(check));
        }
        text
    }
}

fn check_table(check: &Check) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["output", "rows", "error against f64", "limit"]);
    for (name, rows, error) in
        [("lse", check.tokens, check.lse), ("dx", check.tokens, check.dx), ("dw", check.rows, check.dw)]
    {
        table.add_row([name, &rows.to_string(), &format!("{:.2e}", error.error), &format!("{:.0e}", error.limit)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_better_of_two_and_tiles_have_a_mode() {
        let rate = |operation, gflops| Rate { operation, isa: "AMX", gflops };
        let run = |l1| [rate(Operation::Bf16Tiles, l1), rate(Operation::Bf16TilesInRegisters, 2500.0)];
        let peak = Peak::new(&run(490.0), &run(2600.0));
        assert_eq!((peak.gflops, peak.tile_loads), (2600.0, Some(["throttled", "full rate"])));
        // Kernels without tiles have nothing to do with their loads.
        let f32_first = |l1| [rate(Operation::F32, 150.0), run(l1)[0], run(l1)[1]];
        assert_eq!(Peak::new(&f32_first(490.0), &f32_first(490.0)).tile_loads, None);
    }

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }
}
