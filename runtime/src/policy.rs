//! How to run: choices that change time and memory, and, but for the gradient filter, results by no more than the rounding
//! of the dtype.

use crate::passes::Demand;
use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// How many barriers a microbatch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// Three: maximum, sum, dX.
    Naive,
    /// Two: statistics, dX.
    One,
    /// One combined collective.
    #[default]
    Two,
}

/// Whether pass S keeps the numerators of the softmax for pass T.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Save {
    /// Keep them if they take no more than half of the memory budget, and all fits with them.
    #[default]
    Auto,
    /// Keep them: N x V_d values of the input dtype, pass T does 2 NVH operations.
    Yes,
    /// Recompute them: pass T does 4 NVH operations, memory does not grow with V.
    No,
}

/// Bytes over inputs and outputs that [`Save::Auto`] may use when no budget is given: 512 MiB.
pub const DEFAULT_MEMORY_BUDGET: usize = 512 << 20;

/// Choices that change time and memory, and, but for the filter, results by no more than the rounding of the dtype: saved
/// values are kept in it, so in f16 those of a probability under 2^-24 of the row's largest are zero.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Policy {
    /// Barriers.
    pub algorithm: Algorithm,
    /// Saved or recomputed probabilities.
    pub save: Save,
    /// Vocabulary entries a kernel works on at a time; one of the sizes there are kernels for. `None` picks one.
    pub chunk: Option<usize>,
    /// X is frozen: dX is not computed, and algorithms one and naive save their last barrier.
    pub frozen_input: bool,
    /// W is frozen: nothing is kept for pass T, which cannot be called.
    pub frozen_weight: bool,
    /// Bytes over inputs and outputs a rank may use for one microbatch at a time; exceeding it is an error. Ranks that share a
    /// [`crate::Cpu`] get kept memory of each other, which may be an eighth larger than what a rank asks for.
    pub memory_budget: Option<usize>,
    /// Threshold of the gradient filter, above 0 and below 1; `None` leaves nothing out. This choice changes results by
    /// more than rounding: tiles of tokens by vocabulary entries in which every derivative is at most `filter` of the most
    /// that one of its token can be take no part in the products that give dX and dW. How small a tile can be is a matter
    /// of the products, see [`crate::Filtered`]. The error of dW is that of a matrix of derivatives in which each entry is
    /// wrong by at most `filter` times that most; so is that of dX. Loss, log-sum-exp and the gradient of the bias are not
    /// filtered.
    ///
    /// The most that a derivative of a token can be is, in cross-entropy, |`logit_scale`| (|u| (w + 2 `z_loss` |lse|) +
    /// |v|): u is the upstream gradient of its loss, token weight and divisor of the mean included, v that of its lse, and
    /// w the weight of its target, 1 without class weights. With `label_smoothing` s, w is 1 - s times that, and 2 s times
    /// the mean weight of all classes. In other losses it is the row output `bound`.
    ///
    /// In pass T a CPU measures the derivatives; a GPU measures probabilities and keeps what has a target, which leaves out
    /// less, and nothing at all where targets are smoothed. In pass S of algorithm two only the mass that a rank has seen so far is known,
    /// which is no more than the final one: less is left out there, never more. With algorithm one and saved values
    /// dX is filtered by the final probabilities. Threads do not share the vocabulary of few tokens where there is a
    /// filter, as each would know little of the mass; sums are then formed in another order than without one.
    pub filter: Option<f32>,
}

impl Policy {
    /// Whether numerators that take that many bytes are kept if there is room. From sizes alone: scratch depends on the
    /// number of threads, and where the budget leaves room for it results must not.
    pub(crate) fn saves(&self, bytes: usize) -> bool {
        match self.save {
            Save::Auto => bytes <= self.memory_budget.unwrap_or(DEFAULT_MEMORY_BUDGET) / 2,
            Save::Yes => true,
            Save::No => false,
        }
    }

    /// What it asks of the passes of one of some ranks.
    pub(crate) fn demand(&self, ranks: usize, saved: bool) -> Demand {
        let (dx, dw) = (!self.frozen_input, !self.frozen_weight);
        let barriers = match self.algorithm {
            Algorithm::Two => 1,
            Algorithm::One => 1 + usize::from(dx),
            Algorithm::Naive => 2 + usize::from(dx),
        };
        Demand { ranks, barriers, dx, dw, filter: self.filter.is_some(), saved }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        match self.filter {
            Some(filter) if !(filter > 0.0 && filter < 1.0) => Err(Error::Option {
                option: "filter",
                message: format!("expected a number above 0 and below 1, got {filter}"),
            }),
            _ => Ok(()),
        }
    }
}

macro_rules! words {
    ($type:ident, $option:literal, $expected:literal, $($variant:ident = $text:literal),*) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$variant => $text),* })
            }
        }

        impl FromStr for $type {
            type Err = Error;
            fn from_str(text: &str) -> Result<$type> {
                match text {
                    $($text => Ok($type::$variant),)*
                    _ => Err(Error::Option { option: $option, message: format!("expected {}, got {text:?}", $expected) }),
                }
            }
        }
    };
}
words!(Algorithm, "algorithm", "naive, one or two", Naive = "naive", One = "one", Two = "two");
words!(Save, "save", "auto, yes or no", Auto = "auto", Yes = "yes", No = "no");
