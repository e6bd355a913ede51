//! `vocabfuse train`: the layer at work in a small language model.

use super::values::{self, PolicyArgs};
use super::{Outcome, print_json, print_line};
use crate::train::{self, Config, Corpus, Data, Step, Twins};
use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::{Path, PathBuf};
use vocabfuse::{Cpu, Dtype, Filtered};

/// Train a small language model on text, and the same model with a plain vocabulary layer beside it
///
/// The model predicts a token from the eight before it: embeddings, one tanh layer, and the vocabulary layer, which is
/// split over ranks. Its weight gradient is left to the end of each step. The second model differs only in its
/// vocabulary layer, which is neither split nor fused and runs in f32; the two losses should fall together. Writes
/// loss.csv and loss.svg.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  vocabfuse train\n  vocabfuse train --text book.txt --steps 100 --dtype bf16 --out book-run"
)]
pub struct Args {
    /// File or folder of text; hidden, ignored (.gitignore) and binary files of a folder are left out, and what is
    /// over 8 MiB. By default the current folder: run from a clone, the text of this repository
    #[arg(long, value_name = "PATH", default_value = ".")]
    text: PathBuf,
    /// Ranks that share the vocabulary
    #[arg(long, value_name = "P", default_value = "4", value_parser = values::threads)]
    ranks: usize,
    /// Largest size of the vocabulary, at least 256; a short text supports fewer tokens
    #[arg(long, value_name = "V", default_value = "8192", value_parser = vocab)]
    vocab: usize,
    /// Width of the hidden layer
    #[arg(long, value_name = "H", default_value = "128", value_parser = values::positive)]
    hidden: usize,
    /// Number of steps
    #[arg(long, value_name = "N", default_value = "300", value_parser = values::positive)]
    steps: usize,
    /// Tokens a microbatch
    #[arg(long, value_name = "N", default_value = "256", value_parser = values::positive)]
    tokens: usize,
    /// Microbatches a step
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::positive)]
    microbatches: usize,
    /// Type of the operands of the vocabulary layer; the weights themselves are f32
    #[arg(long, default_value = "f32", value_parser = values::dtype())]
    dtype: Dtype,
    #[command(flatten)]
    policy: PolicyArgs,
    /// First step with the filter. While a model knows nothing all probabilities are small, and a filter leaves out most
    /// of what it should learn from
    #[arg(long, value_name = "STEP", default_value = "0", requires = "filter")]
    filter_from: usize,
    /// Seed of weights and batches
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Folder for loss.csv and loss.svg; it is made if missing
    #[arg(long, value_name = "DIR", default_value = "vocabfuse-train")]
    out: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    steps: usize,
    loss_first: f64,
    loss_last: f64,
    reference_loss_last: f64,
    /// Largest distance of the two losses in a step.
    max_loss_difference: f64,
    /// Barriers of a rank.
    barriers_per_microbatch: f64,
    ms_per_step: f64,
    /// Medians of passes S, C1 and T of the vocabulary layer, of a step, over the last tenth of the steps.
    passes_ms_at_end: [f64; 3],
    /// The same over as many steps before the first with the filter; null if there are fewer.
    passes_ms_unfiltered: Option<[f64; 3]>,
    /// Shares of the tiles of dX and dW that the gradient filter left out, over all steps and over the last tenth of them;
    /// null without one.
    filtered: Option<[f64; 2]>,
    filtered_at_end: Option<[f64; 2]>,
    reference_ms_per_step: f64,
    /// Size of the vocabulary that the text supports.
    vocab: usize,
    /// Tokens of the text.
    tokens: usize,
    device: String,
}

fn vocab(text: &str) -> Result<usize, String> {
    values::at_least(text, train::LEAST_VOCAB)
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    ensure!(!args.out.is_file(), "option --out {}: is a file; expected a folder", args.out.display());
    let cpu = Cpu::new(None)?;
    let corpus = Corpus::read(&args.text, &args.out)?;
    // Before the work, not after it; the folder itself is made with what belongs into it.
    let there = args.out.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(there)
        .with_context(|| format!("option --out {}: expected a folder that can be written to", args.out.display()))?;
    let data = Data::new(&corpus, args.vocab, args.tokens)?;
    if data.vocab < args.vocab {
        tracing::warn!(
            "the text supports a vocabulary of {} tokens, not {}; training with {0}",
            data.vocab,
            args.vocab
        );
    }
    let config = Config {
        ranks: args.ranks,
        hidden: args.hidden,
        tokens: args.tokens,
        microbatches: args.microbatches,
        dtype: args.dtype,
        policy: args.policy.policy(None),
        filter_from: args.filter_from,
        seed: args.seed,
    };
    let mut twins = Twins::new(&data, &cpu, config)?;
    let steps = train(&mut twins, args.steps)?;
    let report = Report::new(&steps, &twins, args, &data, &cpu);
    train::write_charts(&args.out, &steps).context("option --out")?;
    if args.json {
        print_json(&report)?
    } else {
        print_line(&report.text(args))?
    }
    Ok(Outcome::Success)
}

fn train(twins: &mut Twins<'_>, count: usize) -> anyhow::Result<Vec<Step>> {
    let bar = ProgressBar::new(count as u64);
    bar.set_style(ProgressStyle::with_template("{wide_bar} step {pos}/{len}, {msg}, {eta} left")?);
    let mut steps = vec![];
    for _ in 0..count {
        let step = twins.step()?;
        let difference = step.loss - step.reference_loss;
        bar.set_message(format!("loss {:.4}, plain {:.4}, {difference:+.1e}", step.loss, step.reference_loss));
        bar.inc(1);
        steps.push(step);
    }
    bar.finish_and_clear();
    Ok(steps)
}

impl Report {
    fn new(steps: &[Step], twins: &Twins<'_>, args: &Args, data: &Data, cpu: &Cpu) -> Report {
        let mean = |of: fn(&Step) -> std::time::Duration| {
            steps.iter().map(|s| of(s).as_secs_f64()).sum::<f64>() * 1e3 / steps.len() as f64
        };
        let last = steps.last();
        let end = &steps[steps.len() - steps.len().div_ceil(10)..];
        let before = args.filter_from.min(steps.len());
        let unfiltered =
            before.checked_sub(end.len()).filter(|_| args.filter_from > 0).map(|from| &steps[from..before]);
        Report {
            steps: steps.len(),
            loss_first: steps.first().map_or(f64::NAN, |s| s.loss),
            loss_last: last.map_or(f64::NAN, |s| s.loss),
            reference_loss_last: last.map_or(f64::NAN, |s| s.reference_loss),
            max_loss_difference: largest(steps.iter().map(|s| (s.loss - s.reference_loss).abs())),
            barriers_per_microbatch: twins.barriers_per_microbatch(),
            ms_per_step: mean(|s| s.time),
            passes_ms_at_end: passes_ms(end),
            passes_ms_unfiltered: unfiltered.map(passes_ms),
            filtered: filtered(steps),
            filtered_at_end: filtered(end),
            reference_ms_per_step: mean(|s| s.reference_time),
            vocab: data.vocab,
            tokens: data.tokens(),
            device: cpu.name(),
        }
    }

    fn text(&self, args: &Args) -> String {
        let Report { steps, loss_first, loss_last, reference_loss_last, vocab, tokens, device, .. } = self;
        let mut lines = vec![
            format!("{tokens} tokens of text, vocabulary {vocab} over {} ranks, {}, {device}", args.ranks, args.dtype),
            format!("{steps} steps: loss {loss_first:.4} to {loss_last:.4}, plain f32 to {reference_loss_last:.4}"),
            format!("largest difference of the losses {:.2e}", self.max_loss_difference),
            format!("barriers a microbatch: {}", self.barriers_per_microbatch),
            format!("{:.1} ms a step, plain {:.1} ms", self.ms_per_step, self.reference_ms_per_step),
        ];
        for (when, passes) in [
            ("the steps before the filter", self.passes_ms_unfiltered),
            ("the last tenth", Some(self.passes_ms_at_end)),
        ] {
            if let Some([s, c1, t]) = passes {
                lines.push(format!("passes S, C1 and T in {when}: {s:.2}, {c1:.2} and {t:.2} ms a step"));
            }
        }
        for (when, shares) in [("all steps", self.filtered), ("the last tenth", self.filtered_at_end)] {
            if let Some([dx, dw]) = shares.map(|shares| shares.map(|share| share * 100.0)) {
                lines.push(format!("tiles left out by the filter in {when}: {dx:.1} % of dX, {dw:.1} % of dW"));
            }
        }
        lines.push(format!("loss.csv and loss.svg are in {}", args.out.display()));
        lines.join("\n")
    }
}

/// Medians of passes S, C1 and T of some steps, in ms.
fn passes_ms(steps: &[Step]) -> [f64; 3] {
    [0, 1, 2].map(|pass| {
        let mut times: Vec<_> = steps.iter().map(|s| s.layer.times[pass]).collect();
        times.sort();
        times.get(times.len() / 2).map_or(f64::NAN, |median| median.as_secs_f64() * 1e3)
    })
}

/// Shares of the tiles of dX and dW that were left out in some steps, if there was a filter.
fn filtered(steps: &[Step]) -> Option<[f64; 2]> {
    let mut all = [Filtered::default(); 2];
    for step in steps {
        all.iter_mut().zip(step.layer.filtered).for_each(|(all, of_step)| *all += of_step);
    }
    all.iter().any(|f| f.tiles > 0).then(|| all.map(Filtered::share))
}

/// Unlike `f64::max`, keeps a NaN.
fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |all, v| if v > all || v.is_nan() { v } else { all })
}
