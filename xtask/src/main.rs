//! Chores of the workspace: `cargo xtask generate|test|ci|compare`.

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
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().chore {
        Chore::Generate => generate::write(),
    }
}
