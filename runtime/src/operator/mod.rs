//! Operators on the distribution over the vocabulary: log-probabilities, entropy, divergence, the largest logits and samples,
//! with the gradients of any upstream gradient.
//!
//! Two phases, each with one collective. [`Operators`] makes row statistics from logits, straight from X and W or from given
//! logits: [`Statistics`]. One collective merges them to [`Values`] and a [`Ticket`]. Any time later, and once the upstream
//! gradients are known, [`Operators::backward`] adds the gradients of the rank's own rows, and a second collective sums those
//! of X over the ranks.

mod distribution;
mod finish;
mod layer;
mod operation;
mod passes;
mod selection;
mod state;
mod sum;

pub use distribution::{Distribution, Source};
pub use layer::{Evaluated, Evaluating, InputGradients, Operators, Statistics, SummingInputs, Ticket, Values};
pub use operation::{Ids, KlDirection, ValueGradients};
pub use passes::DistributionGradients;

pub(crate) use finish::HostRows;
pub(crate) use passes::{GradientJob, RowJob, RowPasses};
pub(crate) use selection::Selection;
pub(crate) use state::RowState;
