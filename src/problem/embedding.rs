//! One lookup in the full table, and its gradient.

use super::ProblemError;

/// Inputs of N ids, hidden size H and V rows; matrices are row-major without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Embedding<'a, T> {
    /// The table, `[V, H]`.
    pub w: &'a [T],
    /// Row of each token, `[N]`.
    pub ids: &'a [i64],
    /// Gradient of the result, `[N, H]`.
    pub upstream: Option<&'a [T]>,
    /// The id whose row has no gradient.
    pub padding: Option<i64>,
    /// H.
    pub hidden: usize,
    /// V.
    pub vocab: usize,
}

/// Results of a lookup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embedded<T> {
    /// Rows of the table, `[N, H]`.
    pub y: Vec<T>,
    /// Gradient of the table, `[V, H]`, if there is an upstream gradient.
    pub dw: Option<Vec<T>>,
}

impl<T: Copy> Embedding<'_, T> {
    /// Checks sizes and ids.
    ///
    /// # Errors
    /// See [`ProblemError`].
    pub fn check(&self) -> Result<(), ProblemError> {
        let size = |name, got, want| if got == want { Ok(()) } else { Err(ProblemError::Size { name, got, want }) };
        let results = self.ids.len() * self.hidden;
        size("w", self.w.len(), self.vocab * self.hidden)?;
        size("dy", self.upstream.map_or(results, <[T]>::len), results)?;
        let within = |id: i64| usize::try_from(id).is_ok_and(|id| id < self.vocab);
        match self.ids.iter().position(|id| !within(*id)) {
            Some(position) => Err(ProblemError::Id { position, id: self.ids[position], vocab: self.vocab }),
            None => Ok(()),
        }
    }
}
