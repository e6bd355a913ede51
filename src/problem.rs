//! What the reference and the plain composition compute, on the full vocabulary: one cross-entropy problem, and
//! [`embedding`] for the input layer.

pub mod embedding;

/// How the losses of the tokens become the output `loss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// One loss per token.
    None,
    /// Their sum.
    Sum,
    /// Their sum over the number of tokens that are not ignored, or over [`Options::normalizer`].
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
    /// Divisor of [`Reduction::Mean`] in place of the number of tokens that are not ignored.
    pub normalizer: Option<f64>,
}

impl Default for Options {
    /// Scale 1, ignore index -100, mean.
    fn default() -> Options {
        Options { logit_scale: 1.0, ignore_index: Some(-100), reduction: Reduction::Mean, normalizer: None }
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

impl<T: Copy + Into<f64>> Problem<'_, T> {
    /// N.
    pub fn tokens(&self) -> usize {
        self.targets.len()
    }

    /// Class of a token; `None` if the token is ignored.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn target(&self, token: usize) -> Option<usize> {
        let id = self.targets[token];
        if self.options.ignore_index == Some(id) { None } else { usize::try_from(id).ok() }
    }

    /// What the derivative of a token's loss is multiplied by: its upstream gradient, over the divisor of the mean.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn gradient_factor(&self, token: usize) -> f64 {
        if self.target(token).is_none() {
            return 0.0;
        }
        self.upstream.map_or(1.0, |u| u[token].into()) / self.divisor()
    }

    /// The output `loss` from the losses of the tokens: `[N]`, or `[1]` if the reduction is not none.
    pub fn reduce(&self, losses: Vec<f64>) -> Vec<f64> {
        match self.options.reduction {
            Reduction::None => losses,
            Reduction::Sum | Reduction::Mean => vec![losses.iter().sum::<f64>() / self.divisor()],
        }
    }

    fn divisor(&self) -> f64 {
        if self.options.reduction != Reduction::Mean {
            return 1.0;
        }
        // With nothing to average the sum is zero, and so must the mean be.
        let valid = || (0..self.tokens()).filter(|&i| self.target(i).is_some()).count().max(1) as f64;
        self.options.normalizer.unwrap_or_else(valid)
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
    /// Gradient of x, `[N, H]`.
    pub dx: Vec<T>,
    /// Gradient of w, `[V, H]`.
    pub dw: Vec<T>,
    /// Gradient of the bias, `[V]`, if there is one.
    pub dbias: Option<Vec<T>>,
}
