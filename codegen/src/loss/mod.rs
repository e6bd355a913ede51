//! Losses: each one file that builds three row programs.

mod cross_entropy;

pub use cross_entropy::cross_entropy;

pub use crate::program::Merge;
use crate::program::{Program, ProgramError};
use serde::Serialize;

/// A per-token loss over the vocabulary, as row programs.
///
/// `statistics` runs over the logits of a shard, tile by tile: its row outputs merge over tiles and ranks, its store
/// is the operand of A += store · W. `finish` has only row values: merged statistics to results and factors.
/// `gradient` runs over stored values (saved, or recomputed by `statistics`) and stores the derivative of the loss
/// with respect to the raw dot product.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// Name: part of kernel names.
    pub name: String,
    /// Logits to statistics.
    pub statistics: Program,
    /// Merged statistics to per-token results.
    pub finish: Program,
    /// Stored values to the derivative of the loss.
    pub gradient: Program,
}

/// Row outputs that every `finish` program must have, since the runtime applies them to A and B.
/// dX = upstream (`a_factor` A + `target_factor` w_target).
pub const FINISH_OUTPUTS: [&str; 4] = ["loss", "lse", "a_factor", "target_factor"];

impl Loss {
    /// Row statistics in order, each with its rule of merging.
    pub fn statistics_rules(&self) -> Vec<(String, Merge)> {
        self.statistics.rules()
    }

    /// Checks that the three programs fit together.
    ///
    /// # Errors
    /// [`ProgramError::Outputs`] with what is missing.
    pub fn verify(&self) -> Result<(), ProgramError> {
        let missing = |what: String| Err(ProgramError::Outputs(format!("loss {}: {what}", self.name)));
        if self.statistics.referenced(0).is_none() {
            return missing("the statistics program uses no exp_above by the reference".to_owned());
        }
        for program in [&self.statistics, &self.gradient] {
            if program.store().is_none() {
                return missing(format!("program {} stores nothing", program.name()));
            }
        }
        let finished: Vec<&str> = self.finish.row_outputs().map(|(name, _)| name).collect();
        if let Some(name) = FINISH_OUTPUTS.iter().find(|name| !finished.contains(name)) {
            return missing(format!("the finish program has no row output {name:?}"));
        }
        let known: Vec<String> = self.statistics_rules().into_iter().map(|(name, _)| name).collect();
        if let Some(name) = self.finish.row_inputs().into_iter().find(|name| !known.iter().any(|k| k == name)) {
            return missing(format!("the finish program reads {name:?}, which is no row statistic"));
        }
        let rows = [FINISH_OUTPUTS.as_slice(), &["upstream"]].concat();
        if let Some(name) = self.gradient.row_inputs().into_iter().find(|name| !rows.contains(name)) {
            return missing(format!("the gradient program reads {name:?}; it can read {rows:?}"));
        }
        if !self.statistics.row_inputs().is_empty() {
            return missing("the statistics program reads row inputs".to_owned());
        }
        Ok(())
    }
}
