//! Operators by materialised logits, written to be read: in f64 what every other implementation is measured against, in f32
//! the plain composition of an eager framework.
//!
//! It shares no code with the generator, the kernels or the runtime.

mod evaluate;
mod real;

pub use evaluate::evaluate;
pub(crate) use evaluate::gumbel;
pub use real::Real;

/// Where raw logits come from; matrices are row-major without gaps.
#[derive(Clone, Copy, Debug)]
pub enum Raw<'a, T> {
    /// x · w.
    Linear {
        /// X `[N, H]`.
        x: &'a [T],
        /// W `[V, H]`.
        w: &'a [T],
        /// H.
        hidden: usize,
    },
    /// Given `[N, V]`.
    Logits(&'a [T]),
}

/// The softmax of y = z = `logit_scale` raw + bias, or y = c tanh(z / c).
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a, T> {
    /// Raw logits.
    pub raw: Raw<'a, T>,
    /// Bias, V.
    pub bias: Option<&'a [T]>,
    /// Factor on the raw logits.
    pub logit_scale: f64,
    /// c.
    pub softcap: Option<f64>,
}

/// An operator and its operands.
#[derive(Clone, Copy, Debug)]
pub enum Query<'a, T> {
    /// Log-probabilities of ids `[N, k]`.
    Logprobs {
        /// The distribution.
        of: Distribution<'a, T>,
        /// The ids.
        ids: &'a [i64],
        /// k.
        per_token: usize,
        /// The id that stands for none.
        ignore_index: Option<i64>,
        /// Whether entropies are wanted as well.
        entropy: bool,
    },
    /// Entropies.
    Entropy(Distribution<'a, T>),
    /// KL(P || Q).
    KlDivergence {
        /// P.
        p: Distribution<'a, T>,
        /// Q.
        q: Distribution<'a, T>,
    },
    /// The k largest logits.
    TopK(Distribution<'a, T>, usize),
    /// The largest logit after Gumbel noise is added to each, for a seed; the noise is that of
    /// [`uniform`](vocabfuse_codegen::program::uniform).
    Sample(Distribution<'a, T>, u64),
}

/// Upstream gradients; what is `None` is zero.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a, T> {
    /// Of log-probabilities, `[N, k]`.
    pub logprobs: Option<&'a [T]>,
    /// Of entropies, N.
    pub entropy: Option<&'a [T]>,
    /// Of divergences, N.
    pub divergence: Option<&'a [T]>,
}

/// Values of a query, and the gradients of each distribution; what a query does not compute is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer<T> {
    /// `[N, k]`
    pub logprobs: Vec<T>,
    /// N
    pub entropy: Vec<T>,
    /// N
    pub divergence: Vec<T>,
    /// `[N, k]`, -1 for tokens without a distribution.
    pub ids: Vec<i64>,
    /// `[N, k]`
    pub logits: Vec<T>,
    /// One a distribution, in the order of the query.
    pub gradients: Vec<Gradients<T>>,
}

/// Gradients of one distribution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradients<T> {
    /// `[N, V]`, by the raw logits.
    pub logits: Vec<T>,
    /// `[N, H]`
    pub x: Vec<T>,
    /// `[V, H]`
    pub w: Vec<T>,
    /// V
    pub bias: Vec<T>,
}

#[cfg(test)]
mod tests;
