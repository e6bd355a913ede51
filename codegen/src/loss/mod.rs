//! Losses: each one file that builds three row programs.

mod cross_entropy;

pub use cross_entropy::{CrossEntropyForm, Softmax, cross_entropy};

pub use crate::program::Merge;
use crate::program::{Input, Op, Program, ProgramError};
use crate::spec::KernelKind;
use serde::Serialize;
use std::collections::BTreeMap;

/// A per-token loss over the vocabulary, as row programs.
///
/// `statistics` runs over the logits of a shard, tile by tile: its row outputs merge over tiles and ranks, its store
/// is the operand of A += store · W. `finish` has only row values: merged statistics, and values per token that the caller
/// gives, to results and factors. `gradient` runs over stored values (saved, or recomputed by `statistics`) and stores the
/// derivative of the loss with respect to the raw dot product; one that also reads logits cannot use saved values.
///
/// dX = `a_factor` A + `target_factor` w_target + `operand_factor` A₂, where A₂ = store of `operand` · W.
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
    /// A second operand of a product with W, relative to no reference. If it is the same for all tokens (a column value),
    /// the product is one row, else it costs as much as pass S does without.
    pub operand: Option<Program>,
    /// Row outputs that kernels of a CPU compute or leave out by a constant of their functions, so that this loss shares its texts
    /// with one that differs in them alone.
    pub optional: Option<Optional>,
}

/// Row outputs of which a loss has all or none. They are the last ones of their programs, as are the inputs that only they
/// read. A program of the loss that is neither the whole one nor that one without them has a text of its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Optional {
    /// Whether the loss has them.
    pub computed: bool,
    /// The statistics program of the loss that has them.
    pub statistics: Program,
    /// The finish program of the loss that has them.
    pub finish: Program,
    /// How many row statistics come before them.
    pub required_statistics: usize,
    /// How many row outputs of the finish program come before them.
    pub required_outputs: usize,
}

/// Row outputs that every `finish` program must have: results, factors of A and B, and a bound on the derivative of the
/// loss by a dot product, for targets that have to scale it into the range of f16 and for the gradient filter, which is
/// relative to it. The bound is no less than `a_factor` times the first sum of the statistics would give. Factors and bound
/// hold the upstream gradient that is known before pass S; what is known later is the row input `upstream` of `gradient`.
pub const FINISH_OUTPUTS: [&str; 5] = ["loss", "lse", "a_factor", "target_factor", "bound"];

/// Row output that the `finish` program of a loss with an `operand` must have beside [`FINISH_OUTPUTS`].
pub const OPERAND_FACTOR: &str = "operand_factor";

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
        let rows = [finished.as_slice(), &["upstream"]].concat();
        if let Some(name) = self.gradient.row_inputs().into_iter().find(|name| !rows.contains(name)) {
            return missing(format!("the gradient program reads {name:?}; it can read {rows:?}"));
        }
        if let Some(operand) = &self.operand {
            if operand.store().is_none() || operand.referenced(0).is_some() || operand.outputs().len() > 1 {
                return missing(
                    "the operand program must store a value, relative to no reference, and nothing else".to_owned(),
                );
            }
            if !finished.contains(&OPERAND_FACTOR) {
                return missing(format!("the finish program has no row output {OPERAND_FACTOR:?}"));
            }
        }
        // The rules of offsets hold across programs: what is a logit in one is a logit in the next.
        let statistics = self.statistics.offsets(&BTreeMap::new(), "")?;
        let results = self.finish.offsets(&statistics, "")?;
        self.gradient.offsets(&results, "")?;
        for program in std::iter::once(&self.statistics).chain(&self.operand) {
            if !program.row_inputs().is_empty() {
                return missing(format!("program {} reads row inputs", program.name()));
            }
        }
        Ok(())
    }

    /// Whether there is a kernel of this kind for the loss.
    pub fn has(&self, kernel: KernelKind) -> bool {
        match kernel {
            KernelKind::LogitsOperand => self.operand.is_some(),
            KernelKind::WeightGradSaved | KernelKind::SavedGradient => self.can_save(),
            _ => true,
        }
    }

    /// Whether pass T can run from saved values.
    pub fn can_save(&self) -> bool {
        !self.gradient.ops().contains(&Op::Input(Input::Logit(0)))
    }

    /// Whether the second operand is the same for all tokens; false if there is none.
    pub fn shares_operand(&self) -> bool {
        let shape = |p: &Program| p.store().map(|v| p.ty(v).shape);
        self.operand.as_ref().is_some_and(|p| shape(p) == Some(crate::program::Shape::Column))
    }
}
