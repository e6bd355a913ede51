//! `cargo xtask ci`: everything that must hold before a change lands; and how commands of the workspace are run.

use crate::test::{self, test};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the workspace.
pub fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Runs a command in the workspace and fails if it does.
pub fn run(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
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

/// Format, lints, documentation, and the tests, among which is the one for drift of generated kernels. In the profile of the tests,
/// which so find what all have in common.
pub fn ci(options: &test::Options) -> Result<()> {
    run("cargo", &["fmt", "--all", "--check"], &[])?;
    run("cargo", &["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    run("cargo", &["doc", "--release", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    test(options)
}
