//! Bounds of a lookup and its gradient.

use super::{EPSILON, TINY, largest};
use crate::problem::embedding::{Embedded, Embedding};

/// What rows of the result and of the gradient of the table may be off by. Rows of the table are copies: nothing.
pub fn embedding(problem: &Embedding<'_, f64>) -> Embedded<f64> {
    let dw = problem.upstream.map(|upstream| {
        let mut dw = vec![TINY; problem.vocab];
        for (id, gradient) in problem.ids.iter().zip(upstream.chunks(problem.hidden.max(1))) {
            let row = usize::try_from(*id).ok().filter(|_| Some(*id) != problem.padding);
            if let Some(row) = row.and_then(|row| dw.get_mut(row)) {
                *row += 4.0 * EPSILON * largest(gradient);
            }
        }
        dw
    });
    Embedded { y: vec![0.0; problem.ids.len()], dw }
}
