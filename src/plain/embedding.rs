//! A lookup and its gradient as an eager framework computes them.

use super::round_all;
use crate::problem::ProblemError;
use crate::problem::embedding::{Embedded, Embedding};
use vocabfuse_codegen::Dtype;

/// The rows of the table that the ids name; sums over the tokens of each row in f32, rounded to `dtype` at the end.
///
/// # Errors
/// [`ProblemError`] if the inputs do not fit together.
pub fn embedding(problem: &Embedding<'_, f32>, dtype: Dtype) -> Result<Embedded<f32>, ProblemError> {
    problem.check()?;
    let h = problem.hidden;
    let row = |id: i64| id as usize * h..(id as usize + 1) * h;
    let mut y: Vec<f32> = problem.ids.iter().flat_map(|id| &problem.w[row(*id)]).copied().collect();
    round_all(&mut y, dtype);
    let dw = problem.upstream.map(|upstream| {
        let mut dw = vec![0.0; problem.w.len()];
        for (id, gradient) in problem.ids.iter().zip(upstream.chunks(h.max(1))) {
            if Some(*id) != problem.padding {
                dw[row(*id)].iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            }
        }
        round_all(&mut dw, dtype);
        dw
    });
    Ok(Embedded { y, dw })
}
