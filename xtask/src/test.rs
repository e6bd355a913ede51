//! `cargo xtask test`: all tests on the machine's default target, then those in which the target matters on each other one,
//! and a table of what was tested.

use crate::check::{root, run};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use vocabfuse_codegen::Target;

/// The compiler that CUDA tests use, and the disassembler that they look at its output with.
const WHEELS: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-nvdisasm==13.5.37"];

/// What property tests begin with, so that a failure here is the same failure elsewhere.
const SEED: &str = "20261129";

/// NVRTC for the tests of CUDA kernels.
const FEATURES: [&str; 2] = ["--features", "vocabfuse-codegen/nvrtc"];

/// Test programs whose results depend on the target: the layer, the operators, the embedding and the command line.
const PROGRAMS: [&str; 15] = [
    "bf16x3",
    "budget",
    "cases",
    "cli",
    "contract",
    "embedding",
    "filter",
    "gradient_dtype",
    "offsets",
    "operators",
    "options",
    "oracle",
    "order",
    "ranks",
    "sums",
];

/// Parts of the names of their tests that do not: those on the interpreter of a GPU's kernels.
const ON_A_GPU: [&str; 3] = ["gpu", "ptx", "interpret"];

/// Which tests to run.
#[derive(Args)]
pub struct Options {
    /// Run the tests of every target in full: without it those of all but the default one are a smoke test
    #[arg(long)]
    all: bool,
    /// Run the random mixes of all options alone, with this many cases each on every target
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cases: Option<u32>,
}

/// Installs what the tests need below `target/`: libraries that are proprietary and so not part of the project.
pub fn install() -> Result<()> {
    let folder = root().join("target").join("nvrtc");
    let (stamp, wanted) = (folder.join("version"), WHEELS.join(" "));
    if std::fs::read_to_string(&stamp).is_ok_and(|version| version == wanted) {
        return Ok(());
    }
    let path = folder.to_string_lossy().into_owned();
    let fixed = ["-m", "pip", "install", "--quiet", "--upgrade", "--target", &path];
    run("python3", &[&fixed[..], &WHEELS].concat(), &[])
        .context("installing the CUDA compiler library for the tests")?;
    std::fs::write(stamp, wanted).context("writing target/nvrtc/version")
}

/// Installs what is needed and runs the tests, the examples included.
pub fn test(options: &Options) -> Result<()> {
    if let Some(cases) = options.cases {
        return random(cases);
    }
    install()?;
    eprintln!("seed of property tests: {SEED}");
    let folder = tempfile::tempdir().context("a folder for the list of skipped tests")?;
    let list = folder.path().join("skipped");
    let began = Instant::now();
    on_the_default_target(&list)?;
    let available = available()?;
    let default = available.last().context("`vocabfuse list` names no target")?;
    let mut rows = vec![(default.clone(), format!("in full, the default, in {} s", began.elapsed().as_secs()))];
    let mut failed = vec![];
    for target in available.iter().rev().filter(|target| *target != default) {
        let (began, how) = (Instant::now(), if options.all { "in full" } else { "smoke test" });
        let outcome = on_target(target, options.all);
        rows.push((target.clone(), format!("{how}, in {} s", began.elapsed().as_secs())));
        if let Err(error) = outcome {
            rows.push((target.clone(), format!("FAILED: {error}")));
            failed.push(target.as_str());
        }
    }
    let skipped = Skipped::read(&list)?;
    rows.extend(skipped.rows(&available));
    rows.push(("sm_80".to_owned(), "in full, on the PTX interpreter; on a GPU see docs/gpu.md".to_owned()));
    println!("\ntarget      tested");
    rows.iter().for_each(|(target, tested)| println!("{target:<12}{tested}"));
    println!("tests that were skipped or left something out: {}", skipped.tests());
    ensure!(failed.is_empty(), "tests failed on {}", failed.join(", "));
    Ok(())
}

/// Everything. A caller's choice of a target would hide the default one.
fn on_the_default_target(list: &Path) -> Result<()> {
    let list = list.to_string_lossy();
    let environment = [("PROPTEST_RNG_SEED", SEED), ("VOCABFUSE_TEST_SKIPPED", &*list), ("VOCABFUSE_ISA", "")];
    run("cargo", &[&["test", "--workspace", "--all-targets"], &FEATURES[..]].concat(), &environment)?;
    run("cargo", &[&["test", "--workspace", "--doc"], &FEATURES[..]].concat(), &environment)?;
    let embedded = ["test", "--package", "vocabfuse-kernels", "--features", "cubins", "--test", "cubins"];
    run("cargo", &embedded, &[("VOCABFUSE_CUBINS", "sm_80")])
}

/// Random mixes of all options on each CPU target of this machine, which say how many ran where.
fn random(cases: u32) -> Result<()> {
    let cases = cases.to_string();
    let environment = [("PROPTEST_RNG_SEED", SEED), ("PROPTEST_CASES", cases.as_str()), ("VOCABFUSE_ISA", "")];
    let arguments = [&["test", "--workspace", "--test", "random"], &FEATURES[..], &["--", "--nocapture"]];
    run("cargo", &arguments.concat(), &environment)
}

/// What depends on the target, with that target forced.
fn on_target(target: &str, all: bool) -> Result<()> {
    let programs = PROGRAMS.iter().flat_map(|program| ["--test", program]);
    let left_out = ON_A_GPU.iter().flat_map(|name| ["--skip", name]);
    let arguments = ["test", "--workspace", "--no-fail-fast"].into_iter().chain(FEATURES).chain(programs);
    let arguments: Vec<&str> = arguments.chain(["--"]).chain(left_out).collect();
    let smoke = if all { "" } else { "1" };
    let environment = [("PROPTEST_RNG_SEED", SEED), ("VOCABFUSE_ISA", target), ("VOCABFUSE_TEST_SMOKE", smoke)];
    eprintln!("VOCABFUSE_ISA={target}");
    run("cargo", &arguments, &environment)
}

/// CPU targets that run here, the fastest last: what the command line says that the tests have built, beside this program.
fn available() -> Result<Vec<String>> {
    let program = std::env::current_exe().context("the path of this program")?;
    let program = program.with_file_name(format!("vocabfuse{}", std::env::consts::EXE_SUFFIX));
    let listed = Command::new(&program)
        .args(["list", "--json"])
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(listed.status.success(), "vocabfuse list failed: {}", String::from_utf8_lossy(&listed.stderr));
    let report: Value = serde_json::from_slice(&listed.stdout).context("reading `vocabfuse list --json`")?;
    let names = report["available"].as_array().context("`vocabfuse list --json` has no list of targets")?;
    let cpu = |name: &&str| Target::CPU.iter().any(|target| target.as_str() == *name);
    Ok(names.iter().filter_map(Value::as_str).filter(cpu).map(str::to_owned).collect())
}

/// Tests that left something out, by target and reason, as they wrote it down.
struct Skipped(BTreeMap<(String, String), Vec<String>>);

impl Skipped {
    fn read(list: &Path) -> Result<Skipped> {
        let mut skipped = BTreeMap::<_, Vec<String>>::new();
        // No test has made the file if none was skipped.
        let text = if list.exists() { std::fs::read_to_string(list)? } else { String::new() };
        for line in text.lines() {
            let mut fields = line.splitn(3, '\t').map(str::to_owned);
            let (Some(target), Some(reason), Some(test)) = (fields.next(), fields.next(), fields.next()) else {
                bail!("the list of skipped tests has the line {line:?}");
            };
            let tests = skipped.entry((target, reason)).or_default();
            if !tests.contains(&test) {
                tests.push(test);
            }
        }
        Ok(Skipped(skipped))
    }

    fn tests(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Rows of the table: targets that do not run here, and what tests have left out.
    fn rows(&self, available: &[String]) -> Vec<(String, String)> {
        let mut rows = vec![];
        for target in Target::CPU.iter().map(|target| target.as_str()) {
            let reasons = self.0.iter().filter(|((skipped, _), _)| skipped == target);
            let reasons: Vec<String> =
                reasons.map(|((_, why), tests)| format!("skipped ({} of the tests): {why}", tests.len())).collect();
            // Tests say so if there is nothing to emulate AMX on.
            if reasons.is_empty() && !available.iter().any(|name| name == target) {
                let emulated = target == Target::Amx.as_str();
                let how = if emulated { "on the emulator" } else { "skipped: it does not run on this machine" };
                rows.push((target.to_owned(), how.to_owned()));
            }
            rows.extend(reasons.into_iter().map(|why| (target.to_owned(), why)));
        }
        rows
    }
}
