//! `cargo xtask compare`: the fused layer against other ways to the same loss and gradients, on the same data.
//!
//! Every competitor is a process of its own, which answers requests on its stdin (`benches/compare`). All are loaded
//! first, then run in turn, round after round, so that a change of the machine's pace hits all of them alike.

mod calibration;
mod child;
mod report;
mod rounds;

use anyhow::{Context, Result, bail};
use calibration::Calibration;
use child::{Child, pinned};
use clap::{Args, ValueEnum};
use report::{Entry, Report};
use serde::Deserialize;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Seed of the data.
const SEED: u64 = 1;
/// Rows of dW that errors are taken from.
const SAMPLES: usize = 64;
/// Time that threads of the last competitor get to stop spinning before the next one starts.
const PAUSE: Duration = Duration::from_millis(20);

/// What to compare.
#[derive(Args)]
pub struct Options {
    /// Tokens, N
    #[arg(long, default_value = "1024")]
    tokens: NonZeroUsize,
    /// Hidden size, H
    #[arg(long, default_value = "1024")]
    hidden: NonZeroUsize,
    /// Vocabulary, V
    #[arg(long, default_value = "32768")]
    vocab: NonZeroUsize,
    /// Type of x and w
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// Threads of every competitor
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
    /// Rounds; each runs every competitor once
    #[arg(long, default_value = "9")]
    rounds: NonZeroUsize,
    /// Also replace the section of this shape in docs/measurements.md
    #[arg(long)]
    write: bool,
    /// Only these competitors
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<Competitor>,
}

/// Type of x and w.
#[derive(Clone, Copy, ValueEnum)]
enum Dtype {
    F32,
    Bf16,
    F16,
}

/// A way to the loss and its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Competitor {
    VocabfuseSaved,
    VocabfuseRecompute,
    /// Of f32, recomputed
    #[value(name = "vocabfuse-bf16x3")]
    VocabfuseBf16x3,
    Plain,
    Candle,
    TorchEager,
    TorchCompile,
    TorchLinearCrossEntropy,
    TorchLinearCrossEntropyChunked,
    CutCrossEntropy,
}

impl Competitor {
    /// For tables.
    fn title(self) -> &'static str {
        match self {
            Competitor::VocabfuseSaved => "vocabfuse saved",
            Competitor::VocabfuseRecompute => "vocabfuse recompute",
            Competitor::VocabfuseBf16x3 => "vocabfuse bf16x3 recompute",
            Competitor::Plain => "plain composition in Rust",
            Competitor::Candle => "candle",
            Competitor::TorchEager => "torch eager",
            Competitor::TorchCompile => "torch.compile",
            Competitor::TorchLinearCrossEntropy => "F.linear_cross_entropy",
            Competitor::TorchLinearCrossEntropyChunked => "F.linear_cross_entropy chunked",
            Competitor::CutCrossEntropy => "cut-cross-entropy",
        }
    }

    fn in_torch(self) -> bool {
        use Competitor::{Candle, Plain, VocabfuseBf16x3, VocabfuseRecompute, VocabfuseSaved};
        !matches!(self, VocabfuseSaved | VocabfuseRecompute | VocabfuseBf16x3 | Plain | Candle)
    }

    /// Whether it has products of a dtype.
    fn takes(self, dtype: Dtype) -> bool {
        self != Competitor::VocabfuseBf16x3 || matches!(dtype, Dtype::F32)
    }
}

/// The name on the command line.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A competitor that is ready to run.
struct Runner {
    competitor: Competitor,
    child: Child,
    loaded: Loaded,
}

#[derive(Deserialize)]
struct Loaded {
    products: u32,
    output_bytes: u64,
    device: String,
}

/// The comparison while it runs.
struct Arena<'a> {
    options: &'a Options,
    worker: PathBuf,
    scratch: tempfile::TempDir,
    /// Makes the data, calibrates, and knows the exact results; it does not compete.
    umpire: Child,
    /// Version of torch, or why there is none; empty until it is asked for.
    torch: Option<Result<String, String>>,
    /// Competitors that failed, and how.
    failed: Vec<(Competitor, String)>,
}

/// Runs the comparison and prints its report.
pub fn compare(options: &Options) -> Result<()> {
    let report = Arena::open(options)?.play()?;
    println!("{}", report.section());
    if options.write {
        let path = root().join("docs").join("measurements.md");
        report::write(&path, &report)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

impl<'a> Arena<'a> {
    fn open(options: &'a Options) -> Result<Arena<'a>> {
        let worker = build(&WORKER)?;
        let scratch = tempfile::tempdir()?;
        let umpire = Child::start(Command::new(&worker), &scratch.path().join("umpire.log"))?;
        Ok(Arena { options, worker, scratch, umpire, torch: None, failed: vec![] })
    }

    fn play(mut self) -> Result<Report> {
        let shape = self.shape();
        eprintln!("making the data");
        let made: Value =
            self.umpire.ask(&json!({ "op": "make", "shape": shape, "seed": SEED, "samples": SAMPLES }))?;
        let rows = &made["rows"];
        let mut runners = self.load(&shape, rows);
        if runners.is_empty() {
            bail!("no competitor could be loaded{}", report::sentences(&self.failed));
        }
        let (rounds, calibrations) = self.rounds(&mut runners)?;

        let mut entries = vec![];
        eprintln!("computing the exact results in f64");
        self.umpire.ask::<Value>(&json!({ "op": "reference", "shape": shape, "rows": rows }))?;
        for (index, mut runner) in runners.into_iter().enumerate() {
            if self.failed.iter().any(|(failed, _)| *failed == runner.competitor) {
                continue;
            }
            match self.entry(&mut runner, index) {
                Ok(entry) => entries.push(entry),
                Err(error) => self.failed.push((runner.competitor, format!("{error:#}"))),
            }
        }
        Ok(Report {
            setting: report::Setting::new(self.options),
            calibrations,
            entries,
            rounds,
            torch: self.torch,
            failed: self.failed,
        })
    }

    fn shape(&self) -> Value {
        let Options { tokens, hidden, vocab, dtype, threads, .. } = self.options;
        json!({
            "folder": self.scratch.path(), "tokens": tokens, "hidden": hidden, "vocab": vocab, "dtype": name(dtype),
            "threads": threads,
        })
    }

    /// Starts every competitor that can be had.
    fn load(&mut self, shape: &Value, rows: &Value) -> Vec<Runner> {
        let mut runners = vec![];
        for competitor in Competitor::value_variants().iter().copied() {
            let wanted = self.options.only.is_empty() || self.options.only.contains(&competitor);
            if !wanted || !competitor.takes(self.options.dtype) || (competitor.in_torch() && !self.has_torch()) {
                continue;
            }
            eprintln!("loading {}", competitor.title());
            let request = json!({ "op": "load", "competitor": name(&competitor), "shape": shape, "rows": rows });
            let started = self.start(competitor).and_then(|mut child| {
                let loaded = child.ask(&request)?;
                Ok(Runner { competitor, child, loaded })
            });
            match started {
                Ok(runner) => runners.push(runner),
                Err(error) => {
                    eprintln!("{} does not run: {error:#}", competitor.title());
                    self.failed.push((competitor, format!("{error:#}")));
                }
            }
        }
        runners
    }

    fn start(&self, competitor: Competitor) -> Result<Child> {
        let log = self.scratch.path().join(format!("{}.log", name(&competitor)));
        if competitor.in_torch() {
            return self.start_python(&log);
        }
        let worker = if competitor == Competitor::Candle { &build(&CANDLE)? } else { &self.worker };
        Child::start(pinned(worker, self.options, self.scratch.path()), &log)
    }

    fn start_python(&self, log: &Path) -> Result<Child> {
        let python = std::env::var_os("VOCABFUSE_PYTHON").unwrap_or_else(|| "python3".into());
        let mut command = pinned(Path::new(&python), self.options, self.scratch.path());
        command.arg(root().join("benches").join("compare").join("torch_worker.py"));
        Child::start(command, log)
    }

    /// Whether torch can be imported; says so once if not.
    fn has_torch(&mut self) -> bool {
        if self.torch.is_none() {
            let log = self.scratch.path().join("probe.log");
            let version = self.start_python(&log).and_then(|mut child| child.ask::<Value>(&json!({ "op": "probe" })));
            let version = version.map(|v| v["torch"].as_str().unwrap_or("of unknown version").to_owned());
            if let Err(error) = &version {
                eprintln!("torch cannot be imported ({error:#}): going on without it");
            }
            self.torch = Some(version.map_err(|error| format!("{error:#}")));
        }
        matches!(self.torch, Some(Ok(_)))
    }

    /// Runs all rounds; also gives all calibrations.
    fn rounds(&mut self, runners: &mut [Runner]) -> Result<(Vec<rounds::Round>, Vec<Calibration>)> {
        let Arena { options, umpire, failed, .. } = self;
        let mut calibrations = vec![];
        let request = json!({ "op": "calibrate", "dtype": name(&options.dtype) });
        let calibrate = || {
            std::thread::sleep(PAUSE);
            let calibration: Calibration = umpire.ask(&request).context("the calibration")?;
            eprintln!("calibration: {calibration}");
            let gflops = calibration.peak.gflops;
            calibrations.push(calibration);
            Ok(gflops)
        };
        let count = runners.len();
        let run = |index: usize| {
            let Runner { competitor, child, .. } = &mut runners[index];
            std::thread::sleep(PAUSE);
            let ms =
                child.ask(&json!({ "op": "run" })).and_then(|reply: Value| reply["ms"].as_f64().context("no time"));
            match ms {
                Ok(ms) => {
                    eprintln!("{}: {ms:.1} ms", competitor.title());
                    Some(ms)
                }
                Err(error) => {
                    eprintln!("{} failed: {error:#}", competitor.title());
                    failed.push((*competitor, format!("{error:#}")));
                    None
                }
            }
        };
        let rounds = rounds::play(options.rounds.get(), count, calibrate, run)?;
        Ok((rounds, calibrations))
    }

    /// Collects memory and errors of a competitor.
    fn entry(&mut self, runner: &mut Runner, index: usize) -> Result<Entry> {
        #[derive(Deserialize)]
        struct Results {
            loss: Option<f64>,
            peak_bytes: Option<u64>,
        }
        #[derive(Deserialize)]
        struct Errors {
            loss: Option<f64>,
            dw: Option<f64>,
        }
        let path = self.scratch.path().join(format!("results-{index}.bin"));
        let results: Results = runner.child.ask(&json!({ "op": "results", "path": path }))?;
        let request = json!({ "op": "errors", "loss": results.loss, "path": path });
        let errors: Errors = self.umpire.ask(&request).context("comparing with the exact results")?;
        let Loaded { products, output_bytes, ref device } = runner.loaded;
        Ok(Entry {
            competitor: runner.competitor,
            index,
            device: device.clone(),
            products,
            output_bytes,
            peak_bytes: results.peak_bytes,
            // The worker writes null for what JSON cannot say.
            loss_error: errors.loss.unwrap_or(f64::INFINITY),
            dw_error: errors.dw.unwrap_or(f64::INFINITY),
        })
    }
}

fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// A worker in Rust: its name, and what cargo is asked for.
struct Package {
    name: &'static str,
    arguments: &'static [&'static str],
}

const WORKER: Package = Package { name: "compare-worker", arguments: &["--example", "compare-worker"] };
/// In a workspace of its own: nothing else needs candle.
const CANDLE: Package = Package {
    name: "compare-candle",
    arguments: &["--manifest-path", "benches/candle/Cargo.toml", "--target-dir", "target/candle"],
};

/// Builds a worker and returns its path, which depends on the target directory in use.
fn build(package: &Package) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = [&["build", "--release", "--message-format=json-render-diagnostics"], package.arguments].concat();
    let output = Command::new(cargo)
        .args(&arguments)
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed with {}", arguments.join(" "), output.status);
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == package.name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo named no executable of {}", package.name))
}
