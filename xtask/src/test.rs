//! `cargo xtask test`: all tests on the machine's default target, then those in which the target matters on each other one,
//! and a table of what was tested.

use crate::check::{root, run};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use vocabfuse_codegen::Target;
use vocabfuse_testing::{LIST, Need, REQUIRE, parse};

/// The compiler that CUDA tests use, and the disassembler that they look at its output with.
const WHEELS: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-nvdisasm==13.5.37"];

/// What property tests begin with, so that a failure here is the same failure elsewhere.
const SEED: &str = "20261129";

/// All that is tested is built by one profile, that of the command line, and for the whole workspace at once: what is asked for
/// with other features is built a second time.
const TEST: [&str; 3] = ["test", "--release", "--workspace"];

/// What [`install`] brings, so that no test may do without it.
const INSTALLED: &str = "nvrtc,nvdisasm";

/// Kernels with cubins inside are another build of them, for one test. It looks at bytes and runs none, so it is built as fast as
/// can be.
const EMBEDDED: [&str; 9] = [
    "test",
    "--release",
    "--package=vocabfuse-kernels",
    "--features=cubins",
    "--test=cubins",
    "--config",
    "profile.release.package.vocabfuse-kernels.opt-level=0",
    "--config",
    "profile.release.package.vocabfuse-kernels.codegen-units=4",
];

/// Test programs whose results depend on the target: the layers, the operators, the embedding; and the command line.
const PROGRAMS: [&str; 2] = ["layer", "cli"];

/// Parts of the names of their tests that do not: those on the interpreter of a GPU's kernels, and those that run on every target
/// of the machine by themselves.
const ONCE: [&str; 5] = ["gpu", "ptx", "interpret", "random::", "row_kernels::"];

/// The random mixes of all options.
const RANDOM: [&str; 4] = ["--test", "layer", "--", "random::"];

/// Which tests to run.
#[derive(Args)]
pub struct Options {
    /// Run the tests of every target in full, and exp over all numbers: without it those of all but the default target are a
    /// smoke test, and exp is sampled
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
    let runs = Runs::new(options)?;
    if let Some(cases) = options.cases {
        return runs.random(cases);
    }
    install()?;
    eprintln!("seed of property tests: {SEED}");
    let began = Instant::now();
    runs.on_the_default_target()?;
    let available = available()?;
    let default = available.last().context("`vocabfuse list` names no target")?;
    let mut rows = vec![(default.clone(), format!("in full, the default, in {} s", began.elapsed().as_secs()))];
    let mut failed = vec![];
    for target in available.iter().rev().filter(|target| *target != default) {
        let (began, how) = (Instant::now(), if options.all { "in full" } else { "smoke test" });
        let outcome = runs.on_target(target);
        rows.push((target.clone(), format!("{how}, in {} s", began.elapsed().as_secs())));
        if let Err(error) = outcome {
            rows.push((target.clone(), format!("FAILED: {error}")));
            failed.push(target.as_str());
        }
    }
    let skipped = Skipped::read(&runs.list())?;
    rows.extend(skipped.rows(&available));
    rows.push(("sm_80".to_owned(), "in full, on the PTX interpreter; on a GPU see docs/gpu.md".to_owned()));
    println!("\ntarget or need  tested");
    rows.iter().for_each(|(target, tested)| println!("{target:<16}{tested}"));
    println!("tests that were skipped or left something out: {}", skipped.tests());
    ensure!(failed.is_empty(), "tests failed on {}", failed.join(", "));
    Ok(())
}

/// What `cargo test` is called with to build all of the tests and nothing else.
pub fn building() -> Vec<&'static str> {
    [&TEST[..], &["--no-run"]].concat()
}

/// How tests are run: the list of what they skip, and what all runs have in common.
struct Runs {
    folder: tempfile::TempDir,
    /// What no test may do without.
    required: String,
    all: bool,
}

impl Runs {
    fn new(options: &Options) -> Result<Runs> {
        let folder = tempfile::tempdir().context("a folder for the list of skipped tests")?;
        let asked = std::env::var(REQUIRE).unwrap_or_default();
        parse(&asked)?;
        Ok(Runs { folder, required: [&asked, INSTALLED].join(","), all: options.all })
    }

    fn list(&self) -> PathBuf {
        self.folder.path().join("skipped")
    }

    fn cargo(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
        let list = self.list();
        let all = [
            ("PROPTEST_RNG_SEED", SEED),
            (LIST, &*list.to_string_lossy()),
            (REQUIRE, &*self.required),
            ("VOCABFUSE_TEST_POISON", "1"),
            ("VOCABFUSE_TEST_ALL", if self.all { "1" } else { "" }),
        ];
        run("cargo", arguments, &[&all, environment].concat())
    }

    /// Everything, with the examples of the documentation. A caller's choice of a target would hide the default one.
    fn on_the_default_target(&self) -> Result<()> {
        let default = [("VOCABFUSE_ISA", "")];
        self.cargo(&TEST, &default)?;
        self.cargo(&EMBEDDED, &[("VOCABFUSE_CUBINS", "sm_80")])
    }

    /// Random mixes of all options on each CPU target of this machine, which say how many ran where.
    fn random(&self, cases: u32) -> Result<()> {
        let environment = [("PROPTEST_CASES", &*cases.to_string()), ("VOCABFUSE_ISA", "")];
        self.cargo(&[&TEST[..], &RANDOM, &["--nocapture"]].concat(), &environment)
    }

    /// What depends on the target, with that target forced.
    fn on_target(&self, target: &str) -> Result<()> {
        let programs = PROGRAMS.iter().flat_map(|program| ["--test", program]);
        let left_out = ONCE.iter().flat_map(|name| ["--skip", name]);
        let arguments = TEST.into_iter().chain(["--no-fail-fast"]).chain(programs).chain(["--"]);
        let arguments: Vec<&str> = arguments.chain(left_out).collect();
        let smoke = if self.all { "" } else { "1" };
        eprintln!("VOCABFUSE_ISA={target}");
        self.cargo(&arguments, &[("VOCABFUSE_ISA", target), ("VOCABFUSE_TEST_SMOKE", smoke)])
    }
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
    let cpu = |name: &&str| Target::cpus().any(|target| target.as_str() == *name);
    Ok(names.iter().filter_map(Value::as_str).filter(cpu).map(str::to_owned).collect())
}

/// Tests that left something out, by need and reason, as they wrote it down.
struct Skipped(BTreeMap<(Need, String), Vec<String>>);

impl Skipped {
    fn read(list: &Path) -> Result<Skipped> {
        // No test has made the file if none was skipped.
        Skipped::parse(&if list.exists() { std::fs::read_to_string(list)? } else { String::new() })
    }

    fn parse(list: &str) -> Result<Skipped> {
        let mut skipped = BTreeMap::<_, Vec<String>>::new();
        for line in list.lines() {
            let mut fields = line.splitn(3, '\t').map(str::to_owned);
            let (Some(need), Some(reason), Some(test)) = (fields.next(), fields.next(), fields.next()) else {
                bail!("the list of skipped tests has the line {line:?}");
            };
            let tests = skipped.entry((need.parse()?, reason)).or_default();
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
        for target in Target::cpus().map(Target::as_str) {
            // Tests say so if there is nothing to emulate AMX on.
            let said = self.0.keys().any(|(need, _)| need.as_str() == target);
            if !said && !available.iter().any(|name| name == target) {
                let emulated = target == Target::Amx.as_str();
                let how = if emulated { "on the emulator" } else { "skipped: it does not run on this machine" };
                rows.push((target.to_owned(), how.to_owned()));
            }
        }
        let said = |((need, why), tests): (&(Need, String), &Vec<String>)| {
            (need.as_str().to_owned(), format!("skipped ({} of the tests): {why}", tests.len()))
        };
        rows.extend(self.0.iter().map(said));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tests_leave_out_is_counted_once_a_test_and_said_by_need() {
        let list = "nvrtc\tnone here\ta\nnvrtc\tnone here\tb\namx\tno tiles\ta\nnvrtc\tnone here\ta\n";
        let skipped = Skipped::parse(list).unwrap();
        assert_eq!(skipped.tests(), 3);
        let available = ["scalar", "avx2"].map(str::to_owned);
        let row = |name: &str, how: &str| (name.to_owned(), how.to_owned());
        let absent = "skipped: it does not run on this machine";
        let expected = [
            row("avx512", absent),
            row("avx512bf16", absent),
            row("amx", "skipped (1 of the tests): no tiles"),
            row("nvrtc", "skipped (2 of the tests): none here"),
        ];
        assert_eq!(skipped.rows(&available), expected);
        assert_eq!(Skipped::parse("").unwrap().rows(&available)[2], row("amx", "on the emulator"));
        assert!(Skipped::parse("nvrtc\tnone here").is_err() && Skipped::parse("spoon\tnone\ta").is_err());
    }
}
