//! The largest logits of a token, with their log-probabilities.

use super::{Operator, Softmax, TOP_VALUE};
use crate::program::{Graph, Program, ProgramError};

pub(super) fn top_k() -> Result<Operator, ProgramError> {
    let g = Graph::new("top_k.statistics");
    let softmax = Softmax::new(&g, 0);
    g.row_output("total", softmax.e.sum());
    g.top(softmax.y, g.constant(0.0));
    let statistics = g.finish()?;
    Ok(Operator { name: "top_k".to_owned(), statistics, finish: finish("top_k")?, gradients: vec![] })
}

pub(super) fn finish(name: &str) -> Result<Program, ProgramError> {
    let g = Graph::new(&format!("{name}.finish"));
    let (total, logit) = (g.row("total"), g.row(TOP_VALUE));
    let dead = total.equals(0.0);
    // A NaN anywhere in the row makes its total one.
    let whole = |value| dead.select(f32::NAN, total.equals(total).select(value, f32::NAN));
    g.row_output("logit", whole(logit));
    g.row_output("logprob", whole((logit.above(g.reference()) - total.ln()).min(0.0)));
    g.finish()
}
