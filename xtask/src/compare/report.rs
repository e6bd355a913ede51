//! What came out, as a section of a markdown document.

use super::calibration::{self, Calibration};
use super::rounds::{Round, counted};
use super::{Competitor, Options, name};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const MIB: f64 = (1 << 20) as f64;

/// What was measured, where.
pub struct Setting {
    tokens: usize,
    hidden: usize,
    vocab: usize,
    threads: usize,
    rounds: usize,
    dtype: String,
    only: Vec<String>,
    cpu: String,
    date: String,
    /// Instruction set that the kernels were told to use.
    forced: Option<String>,
}

/// A competitor that ran to the end.
pub struct Entry {
    pub competitor: Competitor,
    /// Its position in [`Round::ms`].
    pub index: usize,
    pub device: String,
    /// Matrix products of N H V multiplications.
    pub products: u32,
    /// Bytes of dW and dX.
    pub output_bytes: u64,
    /// Peak memory over the inputs.
    pub peak_bytes: Option<u64>,
    pub loss_error: f64,
    pub dw_error: f64,
}

/// The whole comparison.
pub struct Report {
    pub setting: Setting,
    /// Before and after every round, repeated ones included.
    pub calibrations: Vec<Calibration>,
    pub entries: Vec<Entry>,
    pub rounds: Vec<Round>,
    /// Version of torch, or why there is none; `None` if it was not asked for.
    pub torch: Option<Result<String, String>>,
    pub failed: Vec<(Competitor, String)>,
}

impl Setting {
    /// The setting of this machine, now.
    pub fn new(options: &Options) -> Setting {
        Setting {
            tokens: options.tokens.get(),
            hidden: options.hidden.get(),
            vocab: options.vocab.get(),
            threads: options.threads.get(),
            rounds: options.rounds.get(),
            dtype: name(&options.dtype),
            only: options.only.iter().map(name).collect(),
            cpu: cpu_model().unwrap_or_else(|| "unknown CPU".to_owned()),
            date: today().unwrap_or_else(|| "unknown".to_owned()),
            forced: std::env::var("VOCABFUSE_ISA").ok(),
        }
    }

    fn heading(&self) -> String {
        let Setting { tokens, hidden, vocab, dtype, threads, cpu, .. } = self;
        let s = if *threads == 1 { "" } else { "s" };
        let forced = self.forced.as_ref().map_or_else(String::new, |isa| format!(", {isa} kernels"));
        format!("## N = {tokens}, H = {hidden}, V = {vocab}, {dtype}, {threads} thread{s}, {cpu}{forced}")
    }

    fn command(&self) -> String {
        let Setting { tokens, hidden, vocab, dtype, threads, rounds, .. } = self;
        let forced = self.forced.as_ref().map_or_else(String::new, |isa| format!("VOCABFUSE_ISA={isa} "));
        let only = if self.only.is_empty() { String::new() } else { format!(" --only {}", self.only.join(",")) };
        format!(
            "{forced}cargo xtask compare --tokens {tokens} --hidden {hidden} --vocab {vocab} --dtype {dtype} \
             --threads {threads} --rounds {rounds}{only}"
        )
    }
}

impl Report {
    /// The section, heading included.
    pub fn section(&self) -> String {
        let setting = &self.setting;
        let counted = counted(&self.rounds);
        let unsettled = counted.iter().filter(|round| !round.settled()).count();
        let peak =
            median(counted.iter().flat_map(|round| [round.calibration.0, round.calibration.1])).unwrap_or(f64::NAN);
        let mut text = format!("{}\n\n", setting.heading());
        let torch = match &self.torch {
            Some(Ok(version)) => format!(" Torch {version}."),
            Some(Err(why)) => format!(" Torch could not be imported ({why}), so its competitors are missing."),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "{}, forward and backward, outputs allocated within the time.{torch} \
             {}\n",
            setting.date,
            calibration::sentences(&self.calibrations)
        );
        let _ = writeln!(text, "```sh\n{}\n```\n", setting.command());
        self.table(&mut text, &counted, peak);
        let peak_of = self.calibrations.first().map_or("unknown operations", |first| first.peak.operation.as_str());
        let _ = writeln!(
            text,
            "\n\"Time / saved\" and \"time / recompute\" are medians of the ratios to vocabfuse in the same round. Memory is \
             the peak over the inputs, and beside it without dW and dX. Errors are relative to the largest exact value, \
             against f64; that of dW over a sample of its rows. The share counts 6NVH operations, 8NVH for recompute, and \
             is of {} x {peak:.1} GFLOP/s of {peak_of}, the fastest here for operands of this type.",
            setting.threads
        );
        if unsettled > 0 {
            let _ = writeln!(
                text,
                "\n**The machine was not quiet: the calibrations of {unsettled} of the {} rounds that count differ by more \
                 than 8 %.**",
                counted.len()
            );
        }
        if !self.failed.is_empty() {
            let _ = writeln!(text, "\nNot measured{}", sentences(&self.failed));
        }
        self.rounds(&mut text);
        text
    }

    fn table(&self, text: &mut String, rounds: &[&Round], peak: f64) {
        let base = |competitor| self.entries.iter().find(|e| e.competitor == competitor).map(|e| e.index);
        let (saved, recompute) = (base(Competitor::VocabfuseSaved), base(Competitor::VocabfuseRecompute));
        text.push_str(
            "| competitor | median ms | min ms | time / saved | time / recompute | MiB | without dW, dX | loss error \
             | dW error | share of peak | runs on |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
        );
        for entry in &self.entries {
            let times = || rounds.iter().filter_map(|round| round.ms[entry.index]);
            let ratio = |base: Option<usize>| {
                let ratios = rounds.iter().filter_map(|round| Some(round.ms[entry.index]? / round.ms[base?]?));
                median(ratios).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
            };
            let ms = median(times()).unwrap_or(f64::NAN);
            let min = times().fold(f64::INFINITY, f64::min);
            let products = self.setting.tokens as f64 * self.setting.hidden as f64 * self.setting.vocab as f64;
            let gflops = 2.0 * f64::from(entry.products) * products / (ms * 1e6);
            let _ = writeln!(
                text,
                "| {} | {ms:.1} | {min:.1} | {} | {} | {} | {} | {:.1e} | {:.1e} | {:.0} % | {} |",
                entry.competitor.title(),
                ratio(saved),
                ratio(recompute),
                mib(entry.peak_bytes.map(|bytes| bytes as f64)),
                mib(entry.peak_bytes.map(|bytes| (bytes as f64 - entry.output_bytes as f64).max(0.0))),
                entry.loss_error,
                entry.dw_error,
                100.0 * gflops / (peak * self.setting.threads as f64),
                entry.device,
            );
        }
    }

    /// Every round, as evidence.
    fn rounds(&self, text: &mut String) {
        let titles: String = self.entries.iter().map(|entry| format!(" {} |", entry.competitor.title())).collect();
        let columns = "--:|".repeat(self.entries.len());
        let _ = writeln!(
            text,
            "\nAll rounds, in ms:\n\n| round | GFLOP/s before, after |{titles} |\n|--:|--:|{columns}---|"
        );
        for (index, round) in self.rounds.iter().enumerate() {
            let (before, after) = round.calibration;
            let time =
                |entry: &Entry| round.ms[entry.index].map_or_else(|| " - |".to_owned(), |ms| format!(" {ms:.1} |"));
            let times: String = self.entries.iter().map(time).collect();
            let mut marks = vec![];
            if round.repeated > 0 {
                marks.push(format!("repeated {}x", round.repeated));
            }
            if !round.settled() {
                marks.push("unsettled".to_owned());
            }
            let _ = writeln!(text, "| {} | {before:.1}, {after:.1} |{times} {} |", index + 1, marks.join(", "));
        }
    }
}

/// Competitors and reasons, as the end of a sentence.
pub fn sentences(failed: &[(Competitor, String)]) -> String {
    let all: Vec<String> = failed.iter().map(|(competitor, why)| format!("{} ({why})", competitor.title())).collect();
    if all.is_empty() { String::new() } else { format!(": {}.", all.join("; ")) }
}

/// Puts the report's section into a document: in place of the one with the same heading, else at the end.
pub fn write(path: &Path, report: &Report) -> Result<()> {
    let old = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            "# Measurements\n\nWritten by `cargo xtask compare --write`. Set `VOCABFUSE_PYTHON` to a Python that can \
             import torch if `python3` cannot.\n"
                .to_owned()
        }
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = replace_section(&old, &report.setting.heading(), &report.section());
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn replace_section(document: &str, heading: &str, section: &str) -> String {
    let mut out: Vec<&str> = vec![];
    let mut skipping = false;
    let mut placed = false;
    for line in document.lines() {
        if line.starts_with("## ") {
            skipping = line == heading;
            if skipping && !placed {
                out.extend(section.trim_end().lines());
                out.push("");
                placed = true;
            }
        }
        if !skipping {
            out.push(line);
        }
    }
    if !placed {
        out.push("");
        out.extend(section.trim_end().lines());
    }
    format!("{}\n", out.join("\n").trim_end())
}

pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

fn mib(bytes: Option<f64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.0}", bytes / MIB))
}

fn cpu_model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The date in UTC.
fn today() -> Option<String> {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
