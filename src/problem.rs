//! What the reference and the plain composition compute, on the full vocabulary: one cross-entropy problem, and
//! [`embedding`] for the input layer.

pub mod embedding;

use crate::CrossEntropy;
use crate::operators::{Distribution, Raw};

/// How the losses of the tokens become the output `loss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// One loss per token.
    None,
    /// Their sum.
    Sum,
    /// Their mean over the tokens that are not ignored: the z-loss by the number of tokens, all else by the class weights
    /// of their targets, where each token counts as often as its weight says. [`Options::normalizer`] divides both in place
    /// of that. The mean over no weight is zero.
    #[default]
    Mean,
}

/// Options of the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Factor on x · w, before the bias.
    pub logit_scale: f64,
    /// Target id whose tokens have loss, lse and gradients of zero.
    pub ignore_index: Option<i64>,
    /// What `loss` holds.
    pub reduction: Reduction,
    /// Divisor of [`Reduction::Mean`] in place of those of the tokens that are not ignored.
    pub normalizer: Option<f64>,
    /// c in y = c tanh(z / c), where z is what the logits were without.
    pub softcap: Option<f64>,
    /// Share of the target distribution that is spread over all classes.
    pub label_smoothing: f64,
    /// Factor on the square of lse, which is added to the loss of each token.
    pub z_loss: f64,
}

impl Default for Options {
    /// Scale 1, ignore index -100, mean.
    fn default() -> Options {
        Options {
            logit_scale: 1.0,
            ignore_index: Some(-100),
            reduction: Reduction::Mean,
            normalizer: None,
            softcap: None,
            label_smoothing: 0.0,
            z_loss: 0.0,
        }
    }
}

impl From<CrossEntropy> for Options {
    fn from(loss: CrossEntropy) -> Options {
        Options {
            logit_scale: f64::from(loss.logit_scale),
            ignore_index: loss.ignore_index,
            reduction: match loss.reduction {
                crate::Reduction::None => Reduction::None,
                crate::Reduction::Sum => Reduction::Sum,
                crate::Reduction::Mean => Reduction::Mean,
            },
            normalizer: loss.normalizer.map(f64::from),
            softcap: loss.softcap.map(f64::from),
            label_smoothing: f64::from(loss.label_smoothing),
            z_loss: f64::from(loss.z_loss),
        }
    }
}

/// Inputs of N tokens, hidden size H and V classes; matrices are row-major without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a, T> {
    /// Hidden states, `[N, H]`.
    pub x: &'a [T],
    /// Weight, `[V, H]`.
    pub w: &'a [T],
    /// Class of each token, `[N]`.
    pub targets: &'a [i64],
    /// Bias of each class, `[V]`.
    pub bias: Option<&'a [T]>,
    /// Factor on the gradients of each token, `[N]`; the loss does not depend on it.
    pub upstream: Option<&'a [T]>,
    /// What the derivative of each token's lse is multiplied by and added to its gradients, `[N]`.
    pub lse_upstream: Option<&'a [T]>,
    /// Factor on loss and gradients of each token, `[N]`, that counts in the mean.
    pub token_weights: Option<&'a [T]>,
    /// Factor on the loss of the tokens of each class, `[V]`, that counts in the mean.
    pub class_weights: Option<&'a [T]>,
    /// H.
    pub hidden: usize,
    /// V.
    pub vocab: usize,
    /// Options of the loss.
    pub options: Options,
}

/// Inputs that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// A tensor of the wrong size.
    #[error("{name} holds {got} values; expected {want}")]
    Size {
        /// Name of the tensor.
        name: &'static str,
        /// Its number of values.
        got: usize,
        /// The number that the other inputs ask for.
        want: usize,
    },
    /// A target that is no class and not ignored.
    #[error("targets[{token}] is {target}; expected an id from 0 to below {vocab}, or the ignore index")]
    Target {
        /// Position of the target.
        token: usize,
        /// Its value.
        target: i64,
        /// V.
        vocab: usize,
    },
    /// An id that names no row.
    #[error("ids[{position}] is {id}; expected an id from 0 to below {vocab}")]
    Id {
        /// Position of the id.
        position: usize,
        /// Its value.
        id: i64,
        /// V.
        vocab: usize,
    },
}

impl<'a, T: Copy + Into<f64>> Problem<'a, T> {
    /// A problem without bias, weights and upstream gradients; V is the number of rows of `w`.
    pub fn new(x: &'a [T], w: &'a [T], targets: &'a [i64], hidden: usize, options: Options) -> Problem<'a, T> {
        let vocab = w.len() / hidden.max(1);
        let (bias, upstream, lse_upstream, token_weights, class_weights) = (None, None, None, None, None);
        Problem { x, w, targets, bias, upstream, lse_upstream, token_weights, class_weights, hidden, vocab, options }
    }

    /// N.
    pub fn tokens(&self) -> usize {
        self.targets.len()
    }

    /// The distributions of the tokens, of which the loss is one of many functions.
    pub fn distribution(&self) -> Distribution<'a, T> {
        Distribution {
            raw: Raw::Linear { x: self.x, w: self.w, hidden: self.hidden },
            bias: self.bias,
            logit_scale: self.options.logit_scale,
            softcap: self.options.softcap,
        }
    }

    /// Class of a token; `None` if the token is ignored.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn target(&self, token: usize) -> Option<usize> {
        let id = self.targets[token];
        if self.options.ignore_index == Some(id) { None } else { usize::try_from(id).ok() }
    }

    /// What the derivative of the loss of each token is multiplied by, `[N]`: its upstream gradient, over the divisor of the
    /// mean; zero for ignored tokens, and for all tokens if no target has weight.
    pub fn gradient_factors(&self) -> Vec<f64> {
        let divisor = self.divisor();
        let factor = |token: usize| match self.target(token) {
            Some(_) if divisor > 0.0 => {
                self.upstream.map_or(1.0, |u| u[token].into()) * self.token_weight(token) / divisor
            }
            _ => 0.0,
        };
        (0..self.tokens()).map(factor).collect()
    }

    /// What the derivative of a token's lse is multiplied by.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn lse_factor(&self, token: usize) -> f64 {
        let factor = self.lse_upstream.map_or(0.0, |u| u[token].into());
        if self.target(token).is_some() { factor } else { 0.0 }
    }

    /// Weight of a class.
    ///
    /// # Panics
    /// If there is no such class.
    pub fn class_weight(&self, class: usize) -> f64 {
        self.class_weights.map_or(1.0, |w| w[class].into())
    }

    /// What the target distribution of a token gives to its target alone, and to each class beside that.
    pub fn smoothed(&self, target: usize, class: usize) -> (f64, f64) {
        let smoothing = self.options.label_smoothing;
        let spread = smoothing / self.vocab as f64 * self.class_weight(class);
        ((1.0 - smoothing) * self.class_weight(target), spread)
    }

    fn token_weight(&self, token: usize) -> f64 {
        self.token_weights.map_or(1.0, |w| w[token].into())
    }

    /// The output `loss` from the losses of the tokens: `[N]`, or `[1]` if the reduction is not none.
    pub fn reduce(&self, mut losses: Vec<f64>) -> Vec<f64> {
        for (token, loss) in losses.iter_mut().enumerate() {
            let weight = self.token_weight(token);
            // A token without weight adds nothing, whatever its loss is.
            *loss = if weight == 0.0 { 0.0 } else { *loss * weight };
        }
        let divisor = self.divisor();
        match self.options.reduction {
            Reduction::None => losses,
            Reduction::Mean if divisor == 0.0 => vec![0.0],
            Reduction::Sum | Reduction::Mean => vec![losses.iter().sum::<f64>() / divisor],
        }
    }

    /// What the output `loss` is off by where the losses of the tokens are off by these.
    pub fn reduce_sizes(&self, mut sizes: Vec<f64>) -> Vec<f64> {
        sizes.iter_mut().enumerate().for_each(|(token, size)| *size *= self.token_weight(token).abs());
        let divisor = self.divisor().abs();
        match self.options.reduction {
            Reduction::None => sizes,
            Reduction::Mean if divisor == 0.0 => vec![0.0],
            Reduction::Sum | Reduction::Mean => vec![sizes.iter().sum::<f64>() / divisor],
        }
    }

    /// The same problem with another factor of the z-loss, such that the divisor of all else is right for it too. Sizes have
    /// been checked.
    pub(crate) fn with_one_divisor(&self) -> Problem<'a, T> {
        let (divisor, mut options) = (self.divisor(), self.options);
        if options.reduction == Reduction::Mean && options.normalizer.is_none() && divisor > 0.0 {
            options.z_loss *= divisor / self.sum_over_tokens(|_| 1.0);
        }
        Problem { options, ..*self }
    }

    /// What a sum over tokens is divided by, except for the z-loss of a mean.
    fn divisor(&self) -> f64 {
        match self.options.reduction {
            Reduction::Mean => {
                let weights = || self.sum_over_tokens(|target| self.class_weight(target));
                self.options.normalizer.unwrap_or_else(weights)
            }
            Reduction::None | Reduction::Sum => 1.0,
        }
    }

    /// Sum of what `of` makes of the targets, times the weights of their tokens; ignored tokens are left out.
    fn sum_over_tokens(&self, of: impl Fn(usize) -> f64) -> f64 {
        (0..self.tokens()).filter_map(|token| Some(self.token_weight(token) * of(self.target(token)?))).sum()
    }

    /// Checks sizes and targets.
    ///
    /// # Errors
    /// See [`ProblemError`].
    pub fn check(&self) -> Result<(), ProblemError> {
        let size = |name, got, want| if got == want { Ok(()) } else { Err(ProblemError::Size { name, got, want }) };
        size("x", self.x.len(), self.tokens() * self.hidden)?;
        size("w", self.w.len(), self.vocab * self.hidden)?;
        size("bias", self.bias.map_or(self.vocab, <[T]>::len), self.vocab)?;
        size("upstream", self.upstream.map_or(self.tokens(), <[T]>::len), self.tokens())?;
        size("lse_upstream", self.lse_upstream.map_or(self.tokens(), <[T]>::len), self.tokens())?;
        size("token_weights", self.token_weights.map_or(self.tokens(), <[T]>::len), self.tokens())?;
        size("class_weights", self.class_weights.map_or(self.vocab, <[T]>::len), self.vocab)?;
        for (token, &target) in self.targets.iter().enumerate() {
            let class = usize::try_from(target).is_ok_and(|t| t < self.vocab);
            if !class && self.options.ignore_index != Some(target) {
                return Err(ProblemError::Target { token, target, vocab: self.vocab });
            }
        }
        Ok(())
    }
}

/// Results for N tokens, hidden size H and V classes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs<T> {
    /// `[N]`, or `[1]` if the reduction is not none. An ignored token has 0, one whose logits are all -inf has NaN.
    pub loss: Vec<T>,
    /// Logarithm of the sum of the exponentials of the logits, `[N]`; 0 for ignored tokens.
    pub lse: Vec<T>,
    /// Class of the largest logit, `[N]`, the lowest of equals; -1 for ignored tokens and where there is no largest.
    pub argmax: Vec<i64>,
    /// Gradient of x, `[N, H]`.
    pub dx: Vec<T>,
    /// Gradient of w, `[V, H]`.
    pub dw: Vec<T>,
    /// Gradient of the bias, `[V]`, if there is one.
    pub dbias: Option<Vec<T>>,
}
