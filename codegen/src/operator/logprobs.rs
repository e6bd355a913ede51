//! Log-probabilities of selected ids: logprob = y_id - lse.

use super::{Operator, Softmax};
use crate::program::{Graph, Program, ProgramError};

pub(super) fn logprobs() -> Result<Operator, ProgramError> {
    Ok(Operator {
        name: "logprobs".to_owned(),
        statistics: statistics()?,
        finish: finish()?,
        gradients: vec![gradient()?],
    })
}

fn statistics() -> Result<Program, ProgramError> {
    let g = Graph::new("logprobs.statistics");
    let softmax = Softmax::new(&g, 0);
    g.row_output("total", softmax.e.sum());
    g.selected_output("logit", softmax.y);
    g.finish()
}

fn finish() -> Result<Program, ProgramError> {
    let g = Graph::new("logprobs.finish");
    let total = g.row("total");
    let dead = total.equals(0.0);
    // A rounding may lift it above 0, where no probability is.
    let logprob = (g.row("logit").above(g.reference()) - total.ln()).min(0.0);
    g.row_output("logprob", dead.select(f32::NAN, logprob));
    g.row_output("inverse_total", dead.select(0.0, g.constant(1.0) / total));
    g.finish()
}

// Σ_k u_k (1 at id_k - p)
fn gradient() -> Result<Program, ProgramError> {
    let g = Graph::new("logprobs.gradient");
    let softmax = Softmax::merged(&g, 0);
    let p = softmax.e * g.row("inverse_total");
    // A row without a distribution has no gradient, at its selected ids either.
    let alive = g.constant(0.0).less_than(g.row("inverse_total"));
    let by_y = alive.select(g.selected(), 0.0) - p * g.row("logprob_upstream");
    g.store(softmax.by_product(&g, by_y));
    g.finish()
}
