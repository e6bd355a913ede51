//! Options of operators on logits.

use crate::cli::values;

#[derive(Debug, clap::Args)]
#[group(id = "logits")]
#[command(next_help_heading = "Options of operators on logits")]
pub struct Options {
    /// Id that stands for none: a target that does not count, or an id without a log-probability
    #[arg(long, value_name = "I", default_value = "-100", allow_negative_numbers = true, value_parser = values::id)]
    pub ignore_index: i64,
    /// Factor on the logits, before the bias
    #[arg(long, value_name = "X", default_value = "1", allow_negative_numbers = true, value_parser = values::nonzero)]
    pub logit_scale: f32,
    /// Bound on the logits: z becomes X tanh(z / X)
    #[arg(long, value_name = "X", value_parser = values::above_zero)]
    pub softcap: Option<f32>,
}
