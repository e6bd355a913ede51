//! How to run: choices that change time and memory, and results by no more than the rounding of the dtype.

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
    /// Keep them if they take no more than half of the memory budget.
    #[default]
    Auto,
    /// Keep them: N x V_d values of the input dtype, pass T does 2 NVH operations.
    Yes,
    /// Recompute them: pass T does 4 NVH operations, memory does not grow with V.
    No,
}

/// Bytes over inputs and outputs that [`Save::Auto`] may use when no budget is given: 512 MiB.
pub const DEFAULT_MEMORY_BUDGET: usize = 512 << 20;

/// Choices that change time and memory, and results by no more than the rounding of the dtype: saved values are kept in
/// it, so in f16 those of a probability under 2^-24 of the row's largest are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
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
    /// Bytes over inputs and outputs a rank may use for one microbatch; exceeding it is an error.
    pub memory_budget: Option<usize>,
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
