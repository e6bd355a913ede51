//! Chores of the workspace: `cargo xtask generate|test|ci|compare`.

mod check;
mod compare;
mod generate;

use clap::{Parser, Subcommand};

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
    /// Installs what the tests need (the NVRTC library, below target/) and runs them all.
    Test {
        /// Runs the property tests of random mixes alone, with this many cases each.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        cases: Option<u32>,
    },
    /// Format, lints, documentation, drift of generated kernels, and all tests.
    Ci,
    /// Times vocabfuse against other implementations on the same data, with memory and errors.
    Compare(compare::Options),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().chore {
        Chore::Generate => generate::write(),
        Chore::Test { cases: Some(cases) } => check::random(cases),
        Chore::Test { cases: None } => check::test(),
        Chore::Ci => check::ci(),
        Chore::Compare(options) => compare::compare(&options),
    }
}
