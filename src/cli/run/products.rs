//! Options of operators that multiply by W: how their passes run.

use super::device;
use crate::cli::values::{self, PolicyArgs};
use vocabfuse::{Policy, Precision};

#[derive(Debug, clap::Args)]
#[group(id = "products")]
#[command(next_help_heading = "Options of operators that multiply by w")]
pub struct Options {
    /// Arithmetic of the matrix products: exact, or for f32 on a GPU tf32 or tf32x3, on a CPU that multiplies bf16 bf16x3
    #[arg(long, default_value = "exact", value_parser = device::precision)]
    pub precision: std::option::Option<Precision>,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Bytes over inputs and outputs that a rank may use; needing more is an error [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = values::positive)]
    memory_budget: Option<usize>,
}

impl Options {
    pub fn policy(&self) -> Policy {
        self.policy.policy(self.memory_budget)
    }
}
