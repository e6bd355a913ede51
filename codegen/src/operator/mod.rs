//! Operators on the distribution over the vocabulary: each one file that builds its row programs.
//!
//! Unlike a [`Loss`](crate::loss::Loss), an operator is differentiated by any upstream gradient, and only once it is known.
//! So it has two phases, each with one collective: logits to row statistics, which merge to values; and, any time later,
//! logits again to the derivative by each of them, the operand of the two matrix products that give dX and dW.

mod entropy;
mod kl_divergence;
mod logprobs;
mod sample;
mod top_k;

use crate::program::{DISTRIBUTIONS, Expr, Graph, Input, Program, ProgramError};
use serde::Serialize;
use std::collections::BTreeMap;

/// An operator as row programs. All read logits to which every option has been applied, see
/// [`LogitsForm`](crate::LogitsForm).
///
/// `statistics` runs over the logits of a shard, tile by tile. Its row outputs merge over tiles and ranks, each by its
/// [`Merge`](crate::program::Merge); values at selected ids add up; the largest columns merge by key. `finish` has one row a
/// slot, that is, a token and one of its selected or largest ids: from merged statistics, slot values and references it
/// makes the results, and the row values of the gradients. `gradients`, one for each distribution or none, store the
/// derivative of the results times their upstream gradients with respect to the logit, times the logit scale. Where logits
/// are capped, the kernel multiplies that by the slope of the cap. They read logits, results of `finish`, `reference` and `reference_1`, and `<result>_upstream`, which for a result of slots is the sum over those of
/// the token, while [`Input::Selected`] is the upstream gradient at the column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operator {
    /// Name: part of kernel names.
    pub name: String,
    /// Logits to statistics.
    pub statistics: Program,
    /// Merged statistics to results.
    pub finish: Program,
    /// Logits and results to derivatives.
    pub gradients: Vec<Program>,
}

/// Row input of a `finish` program: the value of the slot's largest column.
pub const TOP_VALUE: &str = "top_value";

/// All operators.
///
/// # Errors
/// None for the programs as they stand; the verifier's type is kept so that callers treat every program alike.
pub fn all() -> Result<Vec<Operator>, ProgramError> {
    let operators = vec![
        logprobs::logprobs()?,
        entropy::entropy()?,
        entropy::logprobs_entropy()?,
        kl_divergence::kl_divergence()?,
        top_k::top_k()?,
        sample::sample()?,
    ];
    for operator in &operators {
        operator.verify()?;
    }
    Ok(operators)
}

impl Operator {
    /// Number of distributions that it reads.
    pub fn distributions(&self) -> usize {
        self.statistics.references()
    }

    /// Names of the values that each slot has, in order.
    pub fn slot_values(&self) -> Vec<&str> {
        let top = self.statistics.top().map(|_| TOP_VALUE);
        self.statistics.selected().map(|(name, _)| name).chain(top).collect()
    }

    /// Results in order, each with whether it has a value a slot or only one a token.
    pub fn results(&self) -> Vec<(&str, bool)> {
        let slots = self.slot_values();
        let input = |name: &str| Input::Row(name.to_owned());
        let of_slot = |value| slots.iter().any(|name| self.finish.depends_on(value, &input(name)));
        self.finish.row_outputs().map(|(name, value)| (name, of_slot(value))).collect()
    }

    /// Name of the kernel of a gradient, which an operator of one distribution shares.
    pub fn gradient_name(&self, distribution: usize) -> String {
        if self.gradients.len() > 1 { format!("{}_{distribution}", self.name) } else { self.name.clone() }
    }

    /// Checks that the programs fit together.
    ///
    /// # Errors
    /// [`ProgramError::Outputs`] with what is missing.
    pub fn verify(&self) -> Result<(), ProgramError> {
        let wrong = |what: String| Err(ProgramError::Outputs(format!("operator {}: {what}", self.name)));
        let distributions = self.distributions();
        if distributions == 0 {
            return wrong("the statistics program uses no exp_above by a reference".to_owned());
        }
        if !self.gradients.is_empty() && self.gradients.len() != distributions {
            return wrong(format!("{} gradients of {distributions} distributions", self.gradients.len()));
        }
        if self.statistics.store().is_some() || !self.statistics.row_inputs().is_empty() {
            return wrong("the statistics program stores elements or reads row inputs".to_owned());
        }
        let rules = self.statistics.rules();
        let known: Vec<&str> = rules.iter().map(|(name, _)| name.as_str()).chain(self.slot_values()).collect();
        if let Some(name) = self.finish.row_inputs().into_iter().find(|name| !known.contains(name)) {
            return wrong(format!("the finish program reads {name:?}, which is no statistic"));
        }
        if self.finish.reads(&Input::Reference(1)) {
            return wrong("the finish program reads the second reference".to_owned());
        }
        let statistics = self.statistics.offsets(&BTreeMap::new(), TOP_VALUE)?;
        let offsets = self.finish.offsets(&statistics, "")?;
        for gradient in &self.gradients {
            gradient.offsets(&offsets, "")?;
            if gradient.store().is_none() {
                return wrong(format!("program {} stores nothing", gradient.name()));
            }
            let results: Vec<&str> = self.finish.row_outputs().map(|(name, _)| name).collect();
            let readable = |name: &str| {
                let result = name.strip_suffix("_upstream").unwrap_or(name);
                results.contains(&result) || ["reference", "reference_1"].contains(&name)
            };
            if let Some(name) = gradient.row_inputs().into_iter().find(|name| !readable(name)) {
                return wrong(format!("the gradient program reads {name:?}; it can read results and their upstream"));
            }
        }
        Ok(())
    }
}

/// A distance that stands for -inf where a product with zero must be zero: below any with a weight, and yet a number.
const FARTHEST: f32 = f32::MIN;

/// The softmax of a distribution while its reference may still move.
struct Softmax<'g> {
    /// The logit.
    y: Expr<'g>,
    /// e^y relative to the reference.
    e: Expr<'g>,
    /// y relative to the reference, a number also where y is -inf.
    above: Expr<'g>,
}

impl<'g> Softmax<'g> {
    fn new(g: &'g Graph, distribution: usize) -> Softmax<'g> {
        Softmax::relative_to(g, distribution, g.reference_of(distribution))
    }

    /// Of a gradient program: the reference is final, a row value like any other.
    fn merged(g: &'g Graph, distribution: usize) -> Softmax<'g> {
        Softmax::relative_to(g, distribution, g.row(["reference", "reference_1"][distribution % DISTRIBUTIONS]))
    }

    fn relative_to(g: &'g Graph, distribution: usize, reference: Expr<'g>) -> Softmax<'g> {
        let y = g.logit_of(distribution);
        Softmax { y, e: y.exp_above(reference), above: y.above(reference).max(FARTHEST) }
    }

    /// The derivative by the raw dot product of a logit without a cap from that by y; nothing where y is -inf.
    fn by_product(&self, g: &'g Graph, by_y: Expr<'g>) -> Expr<'g> {
        self.y.equals(f32::NEG_INFINITY).select(0.0, by_y * g.uniform("logit_scale"))
    }
}
