//! The checks: `test`, and `ci`, which is everything that must hold before a change lands.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler that CUDA tests use, and the disassembler that they look at its output with.
const WHEELS: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-nvdisasm==13.5.37"];

/// What property tests begin with, so that a failure here is the same failure elsewhere.
const SEED: &str = "20261129";

fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Runs a command in the workspace and fails if it does.
fn run(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    eprintln!("$ {program} {}", arguments.join(" "));
    let status = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .envs(environment.iter().copied())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("{program} {} failed with {status}", arguments.join(" "));
    }
    Ok(())
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

/// Installs what is needed and runs all tests, the examples included.
pub fn test() -> Result<()> {
    install()?;
    let features = "vocabfuse-codegen/nvrtc";
    eprintln!("seed of property tests: {SEED}");
    run("cargo", &["test", "--workspace", "--all-targets", "--features", features], &[("PROPTEST_RNG_SEED", SEED)])?;
    run("cargo", &["test", "--workspace", "--doc", "--features", features], &[])?;
    let embedded = ["test", "--package", "vocabfuse-kernels", "--features", "cubins", "--test", "cubins"];
    run("cargo", &embedded, &[("VOCABFUSE_CUBINS", "sm_80")])
}

/// Runs random mixes of all options on each CPU target of this machine, which say how many ran where.
pub fn random(cases: u32) -> Result<()> {
    let cases = cases.to_string();
    let environment = [("PROPTEST_RNG_SEED", SEED), ("PROPTEST_CASES", cases.as_str())];
    run("cargo", &["test", "--package", "vocabfuse", "--test", "random", "--", "--nocapture"], &environment)
}

/// Format, lints, documentation, and the tests, among which is the one for drift of generated kernels.
pub fn ci() -> Result<()> {
    run("cargo", &["fmt", "--all", "--check"], &[])?;
    run(
        "cargo",
        &["clippy", "--workspace", "--all-targets", "--features", "vocabfuse-codegen/nvrtc", "--", "-D", "warnings"],
        &[],
    )?;
    run("cargo", &["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    test()
}
