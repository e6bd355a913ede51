//! Where the logits of an operator come from.

use crate::check::{self, expect, shape};
use crate::{Error, Matrix, Result, ShardLayout};
use std::hash::{Hash, Hasher};

/// The raw logits of a rank's shard.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// X Wᵀ, never stored.
    Linear {
        /// X `[N, H]`, the same on every rank.
        x: Matrix<'a>,
        /// W_d `[V_d, H]`, of the dtype of X.
        weight: Matrix<'a>,
    },
    /// Given `[N, V_d]`.
    Logits(Matrix<'a>),
}

/// A distribution over the vocabulary, the softmax of y = z = `logit_scale` (raw logit) + bias, or y = c tanh(z / c) with
/// softcap c.
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    /// The raw logits.
    pub source: Source<'a>,
    /// Bias, V_d.
    pub bias: Option<&'a [f32]>,
    /// Factor on the raw logits; the inverse of a temperature.
    pub logit_scale: f32,
    /// Bound on the logits.
    pub softcap: Option<f32>,
}

impl<'a> Distribution<'a> {
    /// The softmax of X Wᵀ, without options.
    pub fn linear(x: Matrix<'a>, weight: Matrix<'a>) -> Distribution<'a> {
        Distribution { source: Source::Linear { x, weight }, bias: None, logit_scale: 1.0, softcap: None }
    }

    /// The softmax of given logits, without options.
    pub fn logits(logits: Matrix<'a>) -> Distribution<'a> {
        Distribution { source: Source::Logits(logits), bias: None, logit_scale: 1.0, softcap: None }
    }

    /// N.
    pub(crate) fn tokens(&self) -> usize {
        match self.source {
            Source::Linear { x, .. } => x.rows(),
            Source::Logits(logits) => logits.rows(),
        }
    }

    /// H; none of given logits.
    pub(crate) fn hidden(&self) -> Option<usize> {
        match self.source {
            Source::Linear { x, .. } => Some(x.columns()),
            Source::Logits(_) => None,
        }
    }

    /// The classes of a shard alone: its padded rows take no part.
    pub(crate) fn classes(self, classes: usize) -> Result<Distribution<'a>> {
        let source = match self.source {
            Source::Linear { x, weight } => Source::Linear { x, weight: weight.row_range(0..classes)? },
            given => given,
        };
        Ok(Distribution { source, ..self })
    }

    pub(crate) fn check(&self, names: &Names, layout: &ShardLayout, rank: usize, tokens: usize) -> Result<()> {
        let owned = layout.range(rank).len();
        match self.source {
            Source::Linear { x, weight } => {
                if x.columns() == 0 {
                    return Err(shape(names.x, "at least one column (H)", "0"));
                }
                check::shard(layout, rank, names.w, &weight)?;
                if weight.columns() != x.columns() {
                    let expected = format!("{} columns, as {} has", x.columns(), names.x);
                    return Err(shape(names.w, expected, format!("{} columns", weight.columns())));
                }
                if weight.dtype() != x.dtype() {
                    return Err(Error::Dtype { tensor: names.w, expected: x.dtype(), found: weight.dtype() });
                }
            }
            Source::Logits(logits) => {
                if logits.columns() != owned {
                    let expected = format!("the {owned} columns of rank {rank}");
                    return Err(shape(names.logits, expected, format!("{} columns", logits.columns())));
                }
                if i32::try_from(owned).is_err() {
                    return Err(shape(names.logits, "fewer than 2^31 columns a rank", owned.to_string()));
                }
            }
        }
        let rows = if self.hidden().is_some() { names.x } else { names.logits };
        if self.tokens() != tokens {
            return Err(shape(rows, format!("{tokens} rows, as the student has"), self.tokens().to_string()));
        }
        if u32::try_from(tokens).is_err() {
            return Err(shape(rows, "fewer than 2^32 rows", tokens.to_string()));
        }
        if let Some(bias) = self.bias {
            expect(names.bias, owned, bias.len())?;
        }
        if !self.logit_scale.is_normal() {
            let message = format!("expected a normal number other than 0, got {}", self.logit_scale);
            return Err(Error::Option { option: "logit_scale", message });
        }
        match self.softcap {
            Some(cap) if !(cap.is_normal() && cap > 0.0 && cap.recip().is_normal()) => Err(Error::Option {
                option: "softcap",
                message: format!("expected a normal number above 0, got {cap}"),
            }),
            _ => Ok(()),
        }
    }

    /// What all ranks must agree on, in words.
    pub(crate) fn agreement(&self) -> String {
        let source = match self.source {
            Source::Linear { x, .. } => format!("x W of H {} and dtype {}", x.columns(), x.dtype()),
            Source::Logits(logits) => format!("logits of dtype {}", logits.dtype()),
        };
        let (scale, softcap) = (self.logit_scale, self.softcap);
        format!("{source} with logit_scale {scale}, softcap {softcap:?}, bias {}", self.bias.is_some())
    }
}

/// What errors call the tensors of a distribution and their gradients.
pub(crate) struct Names {
    x: &'static str,
    w: &'static str,
    bias: &'static str,
    logits: &'static str,
    pub(super) dw: &'static str,
    pub(super) dbias: &'static str,
    pub(super) dlogits: &'static str,
}

/// Those of an only distribution, and of a student.
pub(super) const PLAIN: Names =
    Names { x: "x", w: "w", bias: "bias", logits: "logits", dw: "dw", dbias: "dbias", dlogits: "dlogits" };

/// Those of a teacher.
pub(super) const TEACHER: Names = Names {
    x: "teacher_x",
    w: "teacher_w",
    bias: "teacher_bias",
    logits: "teacher_logits",
    dw: "teacher_dw",
    dbias: "teacher_dbias",
    dlogits: "teacher_dlogits",
};

/// Floats by their bits, for fingerprints.
pub(crate) struct Bits<'a>(pub(crate) &'a [f32]);

impl Hash for Bits<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.len().hash(hasher);
        self.0.iter().for_each(|v| v.to_bits().hash(hasher));
    }
}
