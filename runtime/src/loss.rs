//! Options of cross-entropy and what they mean for each token.

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// How per-token losses become the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reduction {
    /// One loss a token.
    None,
    /// Their sum.
    Sum,
    /// Their sum over the number of tokens that are not ignored, or over [`CrossEntropy::normalizer`].
    #[default]
    Mean,
}

/// Cross-entropy over the vocabulary, `lse(y) - y_target` with `y = logit_scale (x · w) + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Reduction over tokens.
    pub reduction: Reduction,
    /// Divisor of the mean instead of the count of valid tokens, e.g. the count over all accumulated microbatches.
    pub normalizer: Option<f32>,
    /// Target value of tokens that do not count: their loss, lse and gradients are zero. It may lie within `0..V`.
    pub ignore_index: Option<i64>,
    /// Factor on the dot products; the inverse of a temperature.
    pub logit_scale: f32,
}

impl Default for CrossEntropy {
    /// Mean over tokens whose target is not -100.
    fn default() -> CrossEntropy {
        CrossEntropy { reduction: Reduction::Mean, normalizer: None, ignore_index: Some(-100), logit_scale: 1.0 }
    }
}

impl CrossEntropy {
    pub(crate) fn validate(&self) -> Result<()> {
        let bad = |option, message| Err(Error::Option { option, message });
        if !self.logit_scale.is_normal() {
            return bad("logit_scale", format!("expected a normal number other than 0, got {}", self.logit_scale));
        }
        match self.normalizer {
            Some(n) if !(n.is_finite() && n > 0.0) => {
                bad("normalizer", format!("expected a finite number above 0, got {n}"))
            }
            Some(_) if self.reduction != Reduction::Mean => {
                bad("normalizer", format!("expected reduction mean, got {}", self.reduction))
            }
            _ => Ok(()),
        }
    }

    /// Rows of the tokens that count, after checking every target against the vocabulary.
    pub(crate) fn active_rows(&self, targets: &[i64], vocab: usize) -> Result<Vec<u32>> {
        let mut rows = Vec::with_capacity(targets.len());
        for (row, &target) in targets.iter().enumerate() {
            if Some(target) == self.ignore_index {
                continue;
            }
            if target < 0 || target as u64 >= vocab as u64 {
                let ignored = self.ignore_index.map_or_else(String::new, |i| format!(" or the ignore_index {i}"));
                return Err(Error::Target { row, target, vocab, ignored });
            }
            rows.push(row as u32);
        }
        Ok(rows)
    }

    /// What the reduction multiplies every token's gradient by. With no valid token the mean is defined as 0.
    pub(crate) fn token_factor(&self, valid: usize) -> f32 {
        match self.reduction {
            Reduction::None | Reduction::Sum => 1.0,
            Reduction::Mean => 1.0 / self.normalizer.unwrap_or(valid.max(1) as f32),
        }
    }

    /// The result from the losses of the valid tokens, in f64 before the last rounding.
    pub(crate) fn reduce(&self, losses: &[f32], rows: &[u32], tokens: usize) -> Vec<f32> {
        if self.reduction == Reduction::None {
            return scatter(losses, rows, tokens);
        }
        // An empty sum of floats is -0.
        let sum = losses.iter().fold(0.0, |sum, l| sum + f64::from(*l));
        let divisor = match self.reduction {
            Reduction::Mean => self.normalizer.map_or(rows.len().max(1) as f64, f64::from),
            _ => 1.0,
        };
        vec![(sum / divisor) as f32]
    }
}

/// Values of the valid tokens at their rows, zero elsewhere.
pub(crate) fn scatter(values: &[f32], rows: &[u32], tokens: usize) -> Vec<f32> {
    let mut out = vec![0.0; tokens];
    for (value, row) in values.iter().zip(rows) {
        out[*row as usize] = *value;
    }
    out
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduction::None => "none",
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
        })
    }
}

impl FromStr for Reduction {
    type Err = Error;
    fn from_str(text: &str) -> Result<Reduction> {
        match text {
            "none" => Ok(Reduction::None),
            "sum" => Ok(Reduction::Sum),
            "mean" => Ok(Reduction::Mean),
            _ => {
                Err(Error::Option { option: "reduction", message: format!("expected none, sum or mean, got {text:?}") })
            }
        }
    }
}
