//! What a trainer gives to the passes of a microbatch, and where they add their gradients.

use crate::check::{self, expect, shape};
use crate::{Error, GradientMut, Matrix, Result, ShardLayout};

/// One microbatch, the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// X `[N, H]`, the last hidden states.
    pub x: Matrix<'a>,
    /// Global target ids, N.
    pub targets: &'a [i64],
    /// Which upstream gradients are known only in a backward pass, on top of those below.
    pub later: Later,
    /// Upstream gradient of each token's loss, N; multiplies gradients only. `None` is one.
    pub upstream: Option<&'a [f32]>,
    /// Upstream gradient of each token's lse, N; `None` is zero. The reduction does not apply to it.
    pub lse_upstream: Option<&'a [f32]>,
    /// Weight of each token, N; multiplies loss and gradients, and counts in the mean. A token of weight 0 has loss 0, whatever
    /// its logits are. `None` is one.
    pub token_weights: Option<&'a [f32]>,
    /// Weight of each class of the whole vocabulary, V: multiplies the loss of the tokens whose target it is, and its
    /// share of smoothed targets, and counts in the mean ([`Reduction::Mean`](crate::Reduction::Mean)). The z-loss does not
    /// depend on it. `None` is one.
    pub class_weights: Option<&'a [f32]>,
}

impl<'a> Batch<'a> {
    /// A microbatch without weights, whose upstream gradients are one.
    pub fn new(x: Matrix<'a>, targets: &'a [i64]) -> Batch<'a> {
        Batch {
            x,
            targets,
            later: Later::Nothing,
            upstream: None,
            lse_upstream: None,
            token_weights: None,
            class_weights: None,
        }
    }

    /// Checks what all ranks see alike.
    pub(crate) fn check(&self, vocab: usize) -> Result<()> {
        let tokens = self.x.rows();
        if self.x.columns() == 0 {
            return Err(shape("x", "at least one column (H)", "0"));
        }
        expect("targets", tokens, self.targets.len())?;
        if self.later != Later::Nothing && self.lse_upstream.is_some() {
            return Err(shape("lse_upstream", "none, as upstream gradients come later", "some"));
        }
        let per_token =
            [("upstream", self.upstream), ("lse_upstream", self.lse_upstream), ("token_weights", self.token_weights)];
        for (name, values) in per_token {
            expect(name, tokens, values.map_or(tokens, <[f32]>::len))?;
        }
        expect("class_weights", vocab, self.class_weights.map_or(vocab, <[f32]>::len))?;
        for (name, weights) in [("token_weights", self.token_weights), ("class_weights", self.class_weights)] {
            let unusable = |w: &f32| !(w.is_finite() && *w >= 0.0);
            if let Some(at) = weights.unwrap_or_default().iter().position(unusable) {
                let found = weights.unwrap_or_default()[at];
                return Err(shape(name, "finite values of at least 0", format!("{found} at position {at}")));
            }
        }
        if u32::try_from(tokens).is_err() {
            return Err(shape("x", "fewer than 2^32 rows", tokens.to_string()));
        }
        Ok(())
    }

    /// Weight of a target.
    pub(crate) fn class_weight(&self, row: usize) -> f32 {
        self.class_weights.map_or(1.0, |w| w[self.targets[row] as usize])
    }

    /// Weight of a token.
    pub(crate) fn token_weight(&self, row: usize) -> f32 {
        self.token_weights.map_or(1.0, |w| w[row])
    }
}

/// Upstream gradients that are known only after C1, as those of an autograd function are.
///
/// C1 then gives dX in parts, one for each result whose upstream gradient comes later ([`Done::input_grad`](crate::Done::input_grad)),
/// each f32 `[N, H]`, and dX is made of them when it is wanted. Gradients must be linear in the row inputs `upstream` and
/// `lse_upstream` of the finish program, as those of cross-entropy are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Later {
    /// All are known in pass S; dX is what it is.
    #[default]
    Nothing,
    /// That of the loss.
    Loss,
    /// Those of the loss and of lse.
    LossAndLse,
}

impl Later {
    /// Parts of dX that C1 makes: the upstream gradients of loss and lse that each is for, given those that are known.
    pub(crate) fn parts(self) -> &'static [Part] {
        match self {
            Later::Nothing | Later::Loss => &[Part::Known],
            Later::LossAndLse => &[Part::Known, Part::Lse],
        }
    }
}

/// A part of dX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// For the upstream gradients that are known.
    Known,
    /// For an upstream gradient of one of lse, and none of the loss.
    Lse,
}

/// The rows of the vocabulary that a rank holds.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a> {
    /// W_d `[V_d, H]`, of the dtype of X.
    pub weight: Matrix<'a>,
    /// Bias, V_d; added to the scaled logits.
    pub bias: Option<&'a [f32]>,
}

impl Shard<'_> {
    /// Checks the rows of a rank against the layout and X.
    pub(crate) fn check(&self, layout: &ShardLayout, rank: usize, x: &Matrix<'_>) -> Result<()> {
        let weight = &self.weight;
        check::shard(layout, rank, "w", weight)?;
        if weight.columns() != x.columns() {
            let expected = format!("{} columns, as x has", x.columns());
            return Err(shape("w", expected, format!("{} columns", weight.columns())));
        }
        if weight.dtype() != x.dtype() {
            return Err(Error::Dtype { tensor: "w", expected: x.dtype(), found: weight.dtype() });
        }
        expect("bias", weight.rows(), self.bias.map_or(weight.rows(), <[f32]>::len))
    }
}

/// What pass T reads again of what pass S was given: the same values, in memory that may be another one.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// X `[N, H]`.
    pub x: Matrix<'a>,
    /// The rows of the vocabulary; only read where pass S has not saved ([`WeightGrad::needs_weight`](crate::WeightGrad::needs_weight)).
    pub shard: Option<Shard<'a>>,
}

impl<'a> Operands<'a> {
    /// X and the shard.
    pub fn new(x: Matrix<'a>, shard: Shard<'a>) -> Operands<'a> {
        Operands { x, shard: Some(shard) }
    }
}

/// Where pass T puts its gradients. What is added to dbias is added; dW says itself whether it is added to.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// dW_d `[V_d, H]` row-major: f32, or the type of W.
    pub dw: GradientMut<'a>,
    /// Gradient of the bias, V_d.
    pub dbias: Option<&'a mut [f32]>,
}

/// Upstream gradient known only when pass T runs, on top of the reduction and of [`Batch::upstream`].
#[derive(Clone, Copy, Debug)]
pub enum Upstream<'a> {
    /// One.
    One,
    /// The same for all tokens, e.g. a loss scale.
    Scale(f32),
    /// One for each of the N tokens.
    Rows(&'a [f32]),
}

/// Upstream gradients known only when pass T runs or dX is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Upstreams<'a> {
    /// Of each token's loss.
    pub loss: Upstream<'a>,
    /// Of each token's lse, if it was to come [later](Batch::later); `None` is zero.
    pub lse: Option<Upstream<'a>>,
}

impl<'a> From<Upstream<'a>> for Upstreams<'a> {
    fn from(loss: Upstream<'a>) -> Upstreams<'a> {
        Upstreams { loss, lse: None }
    }
}

impl Upstream<'_> {
    /// The value of a token, once the number of values has been checked.
    pub(crate) fn of(self, row: usize) -> f32 {
        match self {
            Upstream::One => 1.0,
            Upstream::Scale(scale) => scale,
            Upstream::Rows(values) => values[row],
        }
    }

    /// Checks the number of values.
    pub(crate) fn check(self, tensor: &'static str, tokens: usize) -> Result<()> {
        match self {
            Upstream::Rows(values) => expect(tensor, tokens, values.len()),
            Upstream::One | Upstream::Scale(_) => Ok(()),
        }
    }

    /// A value for each of the tokens `rows`, padded with zeros, once the number of values has been checked.
    pub(crate) fn values(self, rows: &[u32], padded: usize) -> Vec<f32> {
        let mut values: Vec<f32> = rows.iter().map(|row| self.of(*row as usize)).collect();
        values.resize(padded, 0.0);
        values
    }
}
