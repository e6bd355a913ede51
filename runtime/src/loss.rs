//! Options of cross-entropy and what they mean for each token.

use crate::batch::Batch;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use vocabfuse_codegen::CrossEntropyForm;

/// How per-token losses become the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reduction {
    /// One loss a token.
    None,
    /// Their sum.
    Sum,
    /// Their mean over the tokens that are not ignored, as in torch. Terms that class weights apply to, those of the target
    /// and of smoothed targets, are summed and divided by the sum of the class weights of the targets, so that equal class
    /// weights cancel. The z-loss is divided by the number of tokens, and does not depend on class weights. Token weights
    /// multiply the terms in both sums, and count in both divisors.
    ///
    /// Without a token that counts, or with targets of weight 0 only, the mean and its gradients are 0; those that
    /// [`Batch::lse_upstream`](crate::Batch::lse_upstream) asks for remain. [`CrossEntropy::normalizer`] divides all terms
    /// in place of both divisors.
    #[default]
    Mean,
}

/// Cross-entropy over the vocabulary: per token `lse(y) - y_target` with `y = logit_scale (x · w) + bias`, and options.
///
/// Every option can be combined with every other, and none adds a barrier. Softcap with label smoothing has a second
/// product with W for each token: pass S costs 8 NVH operations instead of 4, and pass T recomputes logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Reduction over tokens.
    pub reduction: Reduction,
    /// Divisor of all terms of the mean in place of the weights of targets and the number of tokens, e.g. the number of
    /// tokens in all accumulated microbatches.
    pub normalizer: Option<f32>,
    /// Target value of tokens that do not count: their loss, lse and gradients are zero. It may lie within `0..V`.
    pub ignore_index: Option<i64>,
    /// Factor on the dot products; the inverse of a temperature.
    pub logit_scale: f32,
    /// Logits become `c tanh(y / c)`, after scale and bias.
    pub softcap: Option<f32>,
    /// Share ε of the target distribution that is spread over all V classes, in proportion to the class weights:
    /// `(1 - ε) w_target (lse - y_target) + ε / V Σ_j w_j (lse - y_j)`. A class whose logit is -inf makes that +inf.
    /// With ε near 1, which leaves no target, derivatives are differences p - 1 / V of probabilities that bf16 and f16 have
    /// rounded before: use f32 there.
    pub label_smoothing: f32,
    /// λ in `λ lse²`, which is added to the loss of every token. Class weights do not apply to it.
    pub z_loss: f32,
    /// Whether the class of the largest logit is wanted, for at most 2^24 classes.
    pub argmax: bool,
}

impl Default for CrossEntropy {
    /// Mean over tokens whose target is not -100, nothing else.
    fn default() -> CrossEntropy {
        CrossEntropy {
            reduction: Reduction::Mean,
            normalizer: None,
            ignore_index: Some(-100),
            logit_scale: 1.0,
            softcap: None,
            label_smoothing: 0.0,
            z_loss: 0.0,
            argmax: false,
        }
    }
}

impl CrossEntropy {
    pub(crate) fn validate(&self, vocab: usize) -> Result<()> {
        let bad = |option, message| Err(Error::Option { option, message });
        if !self.logit_scale.is_normal() {
            return bad("logit_scale", format!("expected a normal number other than 0, got {}", self.logit_scale));
        }
        if let Some(cap) = self.softcap.filter(|c| !(c.is_normal() && *c > 0.0)) {
            return bad("softcap", format!("expected a normal number above 0, got {cap}"));
        }
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            return bad("label_smoothing", format!("expected a number from 0 to 1, got {}", self.label_smoothing));
        }
        if !(self.z_loss.is_finite() && self.z_loss >= 0.0) {
            return bad("z_loss", format!("expected a finite number of at least 0, got {}", self.z_loss));
        }
        if self.argmax && vocab > 1 << 24 {
            return bad("argmax", format!("expected at most 2^24 classes, got {vocab}"));
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

    /// Refuses the options that belong to the programs of cross-entropy.
    pub(crate) fn check_of_own_loss(&self) -> Result<()> {
        let foreign = [
            ("softcap", self.softcap.is_some()),
            ("label_smoothing", self.label_smoothing != 0.0),
            ("z_loss", self.z_loss != 0.0),
        ];
        match foreign.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => {
                let message = "expected none: a loss of one's own takes it as a uniform of its programs, if at all";
                Err(Error::Option { option, message: message.to_owned() })
            }
            None => Ok(()),
        }
    }

    /// The row programs that compute it.
    pub(crate) fn programs(&self, vocab: usize) -> RowPrograms {
        let smoothing = self.label_smoothing > 0.0;
        let form = CrossEntropyForm { softcap: self.softcap.is_some(), smoothing, argmax: self.argmax };
        let mut programs = RowPrograms::new(&form.name());
        let values = [
            ("logit_scale", self.logit_scale),
            ("z_loss", self.z_loss),
            ("softcap", self.softcap.unwrap_or(f32::INFINITY)),
            ("smoothing_share", (f64::from(self.label_smoothing) / vocab.max(1) as f64) as f32),
        ];
        programs.uniforms.extend(values.map(|(name, value)| (name.to_owned(), value)));
        programs
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

    /// How the tokens `rows`, which are not ignored, enter the result.
    pub(crate) fn averaging(&self, batch: &Batch<'_>, rows: &[u32]) -> Averaging {
        let by = |divisor| Averaging { divisor: Some(divisor), class_factor: 1.0 };
        match (self.reduction, self.normalizer) {
            (Reduction::None | Reduction::Sum, _) => by(1.0),
            (Reduction::Mean, Some(normalizer)) => by(f64::from(normalizer)),
            (Reduction::Mean, None) => {
                let token = |row: &u32| f64::from(batch.token_weight(*row as usize));
                let target = |row: &u32| token(row) * f64::from(batch.class_weight(*row as usize));
                let tokens: f64 = rows.iter().map(token).sum();
                let targets: f64 = rows.iter().map(target).sum();
                if targets > 0.0 {
                    Averaging { divisor: Some(tokens), class_factor: tokens / targets }
                } else {
                    Averaging { divisor: None, class_factor: 1.0 }
                }
            }
        }
    }
}

/// How tokens enter the result of a reduction.
///
/// A mean divides what class weights apply to by the weights of the targets, and the z-loss by the number of tokens. Here
/// both are divided by the number of tokens, and class weights are first scaled so that their mean over the targets is 1.
/// Scaled weights also keep the products of narrow types in range, however large or small the given ones are.
pub(crate) struct Averaging {
    /// What the sum over the tokens is divided by. `None` if no target has weight: then result and gradients are 0.
    pub(crate) divisor: Option<f64>,
    /// Factor on all class weights.
    pub(crate) class_factor: f64,
}

/// A loss of one's own: row programs by the name that their kernels were generated under, on top of what every loss has.
///
/// On a CPU the kernels come from the registry ([`crate::Cpu::with_registry`]), on a GPU they are generated from the
/// programs ([`crate::Gpu::with_loss`]).
#[derive(Clone, Debug, PartialEq)]
pub struct RowLoss {
    /// Name of the [`vocabfuse_codegen::Loss`].
    pub name: String,
    /// Scalars that the programs read, by name; `logit_scale` is there already.
    pub uniforms: BTreeMap<String, f32>,
    /// Reduction, normalizer, ignored targets, logit scale, and the argmax if the programs give it as cross-entropy's do.
    /// The other options belong to cross-entropy's own programs and are refused.
    pub options: CrossEntropy,
}

/// Which programs a layer runs, with their scalars.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowPrograms {
    /// Name of the loss.
    pub(crate) name: String,
    pub(crate) uniforms: BTreeMap<String, f32>,
}

impl RowPrograms {
    pub(crate) fn new(name: &str) -> RowPrograms {
        RowPrograms { name: name.to_owned(), uniforms: BTreeMap::new() }
    }
}

impl fmt::Display for RowPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {:?}", self.name, self.uniforms)
    }
}

impl fmt::Display for CrossEntropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CrossEntropy { reduction, normalizer, ignore_index, label_smoothing, .. } = self;
        write!(
            f,
            "reduction {reduction}, normalizer {normalizer:?}, ignore_index {ignore_index:?}, label_smoothing \
             {label_smoothing}"
        )
    }
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
