//! A lookup and its gradient in f64.

use super::add_scaled;
use crate::problem::ProblemError;
use crate::problem::embedding::{Embedded, Embedding};

/// The rows of the table that the ids name, and the sum of the upstream gradient over the tokens of each row.
///
/// The row of the padding id is looked up like any other, and its gradient is zero.
///
/// # Errors
/// [`ProblemError`] if the inputs do not fit together.
pub fn embedding(problem: &Embedding<'_, f64>) -> Result<Embedded<f64>, ProblemError> {
    problem.check()?;
    let h = problem.hidden;
    let row = |id: i64| id as usize * h..(id as usize + 1) * h;
    let y = problem.ids.iter().flat_map(|id| &problem.w[row(*id)]).copied().collect();
    let dw = problem.upstream.map(|upstream| {
        let mut dw = vec![0.0; problem.w.len()];
        for (id, gradient) in problem.ids.iter().zip(upstream.chunks(h.max(1))) {
            if Some(*id) != problem.padding {
                add_scaled(&mut dw[row(*id)], 1.0, gradient);
            }
        }
        dw
    });
    Ok(Embedded { y, dw })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let w = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let upstream = [0.5, 0.25, 8.0, 9.0, 1.0, 2.0];
        let problem =
            Embedding { w: &w, ids: &[2, 0, 2], upstream: Some(&upstream), padding: Some(0), hidden: 2, vocab: 3 };
        let out = embedding(&problem).unwrap();
        assert_eq!(out.y, [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
        assert_eq!(out.dw.unwrap(), [0.0, 0.0, 0.0, 0.0, 1.5, 2.25]);
        assert!(embedding(&Embedding { ids: &[3], upstream: None, ..problem }).is_err());
        assert!(embedding(&Embedding { ids: &[-1], upstream: None, ..problem }).is_err());
    }

    #[test]
    fn the_gradient_is_the_derivative() {
        let upstream = [0.5, -2.0, 1.5, 1.0];
        let ids = [1, 3, 1, 0];
        let problem = Embedding {
            w: &[0.1, 0.2, 0.3, 0.4],
            ids: &ids,
            upstream: Some(&upstream),
            padding: None,
            hidden: 1,
            vocab: 4,
        };
        let dw = embedding(&problem).unwrap().dw.unwrap();
        let loss = |w: &[f64]| -> f64 {
            let y = embedding(&Embedding { w, ..problem }).unwrap().y;
            y.iter().zip(&upstream).map(|(y, u)| y * u).sum()
        };
        for row in 0..4 {
            let shifted = |by: f64| {
                let mut w = problem.w.to_vec();
                w[row] += by;
                loss(&w)
            };
            let slope = (shifted(1e-3) - shifted(-1e-3)) / 2e-3;
            assert!((slope - dw[row]).abs() < 1e-9, "row {row}: {slope} and {}", dw[row]);
        }
    }
}
