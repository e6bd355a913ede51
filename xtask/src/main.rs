//! Chores of the workspace: `cargo xtask generate|test|ci|compare|time`.

mod check;
mod compare;
mod generate;
mod test;
mod time;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the vocabfuse workspace")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Writes the generated kernels under kernels-gen/src anew.
    Generate,
    /// Installs what the tests need (the NVRTC library, below target/) and runs them: all on the machine's default target,
    /// and a smoke test on each other target that runs here.
    Test(test::Options),
    /// Format, lints, documentation, drift of generated kernels, and the tests.
    Ci(test::Options),
    /// Times vocabfuse against other implementations on the same data, with memory and errors.
    Compare(compare::Options),
    /// Builds the command line and the tests in a fresh folder, and says where the time goes.
    Time(time::Options),
}

fn main() -> anyhow::Result<ExitCode> {
    if let Some(code) = time::wrapper() {
        return Ok(code);
    }
    match Cli::parse().chore {
        Chore::Generate => generate::write(),
        Chore::Test(options) => test::test(&options),
        Chore::Ci(options) => check::ci(&options),
        Chore::Compare(options) => compare::compare(&options),
        Chore::Time(options) => time::time(&options),
    }?;
    Ok(ExitCode::SUCCESS)
}
