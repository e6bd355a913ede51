//! What can be asked of distributions.

use super::Distribution;
use super::distribution::{Names, PLAIN, TEACHER};
use crate::check::{expect, fingerprint, shape};
use crate::{Error, Result, ShardLayout};

/// Ids of each token whose log-probabilities are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Ids<'a> {
    /// Global ids `[N, k]` row-major, the same on every rank; a token may name an id repeatedly.
    pub ids: &'a [i64],
    /// k, at least 1. With 1, ids `[N]` and `[N, 1]` are the same values, and so are their log-probabilities.
    pub per_token: usize,
    /// An id that stands for none: its log-probability is 0, and it has no gradient. It may lie within `0..V`.
    pub ignore_index: Option<i64>,
}

/// Which way a divergence goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KlDirection {
    /// KL(teacher || student).
    #[default]
    Forward,
    /// KL(student || teacher).
    Reverse,
}

/// Upstream gradients of the values of an operator; what is `None` is zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValueGradients<'a> {
    /// Of the log-probabilities, `[N, k]`. Those of ignored ids are not read.
    pub logprobs: Option<&'a [f32]>,
    /// Of the entropies, N.
    pub entropy: Option<&'a [f32]>,
    /// Of the divergences, N.
    pub divergence: Option<&'a [f32]>,
}

/// An operator with its operands, the distributions in the order of its programs.
#[derive(Clone, Debug)]
pub(crate) struct Operation<'a> {
    /// Name of the operator.
    pub(crate) name: &'static str,
    pub(crate) distributions: Vec<Distribution<'a>>,
    pub(crate) ids: Option<Ids<'a>>,
    /// Number of largest columns; 0 if the operator has none.
    pub(crate) top: usize,
    pub(crate) seed: u64,
    /// Whether the caller's order of the distributions is the other one.
    pub(crate) swapped: bool,
}

/// What is kept of an operation, of memory of its own.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) name: &'static str,
    /// N.
    pub(super) tokens: usize,
    /// Slots of a token: selected or largest ids, at least one.
    pub(super) slots: usize,
    pub(super) top: usize,
    pub(super) seed: u64,
    pub(super) swapped: bool,
    ids: Option<(Vec<i64>, usize, Option<i64>)>,
    /// What each distribution is, without its values.
    distributions: Vec<String>,
    /// H of each distribution; none of given logits.
    pub(super) hidden: Vec<Option<usize>>,
}

impl Asked {
    /// The selected ids.
    pub(super) fn ids(&self) -> Option<Ids<'_>> {
        let (ids, per_token, ignore_index) = self.ids.as_ref()?;
        Some(Ids { ids, per_token: *per_token, ignore_index: *ignore_index })
    }

    /// What errors call the tensors of each distribution.
    pub(super) fn names(&self) -> [&'static Names; 2] {
        names(self.swapped)
    }

    /// Checks that distributions, in the order of the programs, are like those that were evaluated.
    ///
    /// # Errors
    /// [`Error::Option`] with what differs, or what [`Distribution`]s are refused for.
    pub(super) fn check(&self, distributions: &[Distribution<'_>], layout: &ShardLayout, rank: usize) -> Result<()> {
        let found: Vec<String> = distributions.iter().map(Distribution::agreement).collect();
        if found != self.distributions {
            let [expected, found] = [&self.distributions, &found].map(|of| of.join(" and "));
            let message = format!("expected those that were evaluated, {expected}; got {found}");
            return Err(Error::Option { option: "distributions", message });
        }
        let mut named = distributions.iter().zip(self.names());
        named.try_for_each(|(distribution, names)| distribution.check(names, layout, rank, self.tokens))
    }
}

fn names(swapped: bool) -> [&'static Names; 2] {
    if swapped { [&TEACHER, &PLAIN] } else { [&PLAIN, &TEACHER] }
}

impl<'a> Operation<'a> {
    /// What is kept of it.
    pub(super) fn asked(&self) -> Asked {
        Asked {
            name: self.name,
            tokens: self.tokens(),
            slots: self.ids.map_or(self.top, |ids| ids.per_token).max(1),
            top: self.top,
            seed: self.seed,
            swapped: self.swapped,
            ids: self.ids.map(|Ids { ids, per_token, ignore_index }| (ids.to_vec(), per_token, ignore_index)),
            distributions: self.distributions.iter().map(Distribution::agreement).collect(),
            hidden: self.distributions.iter().map(Distribution::hidden).collect(),
        }
    }

    pub(crate) fn of(name: &'static str, distributions: Vec<Distribution<'a>>) -> Operation<'a> {
        Operation { name, distributions, ids: None, top: 0, seed: 0, swapped: false }
    }

    /// N.
    pub(crate) fn tokens(&self) -> usize {
        self.distributions[0].tokens()
    }

    pub(crate) fn check(&self, layout: &ShardLayout, rank: usize) -> Result<()> {
        // The student says what N is.
        let student = if self.swapped { self.distributions.last() } else { self.distributions.first() };
        let tokens = student.map_or(0, Distribution::tokens);
        for (distribution, names) in self.distributions.iter().zip(names(self.swapped)) {
            distribution.check(names, layout, rank, tokens)?;
        }
        let vocab = layout.vocab();
        if self.name == "sample" && vocab == 0 {
            return Err(Error::Layout("0 classes; expected at least 1 to draw from".to_owned()));
        }
        if self.top > vocab || (self.name == "top_k" && self.top == 0) {
            return Err(Error::Option { option: "k", message: format!("expected 1 to V = {vocab}, got {}", self.top) });
        }
        let Some(Ids { ids, per_token, ignore_index }) = self.ids else { return Ok(()) };
        if per_token == 0 {
            return Err(shape("ids", "at least one id a token", "0"));
        }
        expect("ids", self.tokens() * per_token, ids.len())?;
        let outside = |id: &i64| Some(*id) != ignore_index && !usize::try_from(*id).is_ok_and(|id| id < vocab);
        match ids.iter().position(outside) {
            Some(position) => Err(Error::Id { tensor: "ids", position, id: ids[position], vocab }),
            None => Ok(()),
        }
    }

    /// Tokens that take part: without an id there is nothing to know of a token whose log-probabilities alone are wanted.
    pub(crate) fn rows(&self) -> Vec<u32> {
        let all = 0..self.tokens() as u32;
        match self.ids {
            Some(Ids { ids, per_token, ignore_index: Some(ignored) }) if self.name == "logprobs" => {
                let wanted = |row: &u32| ids[*row as usize * per_token..][..per_token].iter().any(|id| *id != ignored);
                all.filter(wanted).collect()
            }
            _ => all.collect(),
        }
    }

    /// What all ranks must agree on, in words.
    pub(crate) fn agreement(&self) -> String {
        let sources: Vec<String> = self.distributions.iter().map(Distribution::agreement).collect();
        let ids = self.ids.map(|i| (i.per_token, i.ignore_index, fingerprint(&i.ids)));
        let Operation { name, top, seed, .. } = self;
        format!("operator {name} of {}, N {}, ids {ids:?}, k {top}, seed {seed}", sources.join(" and "), self.tokens())
    }
}
