//! Entropy, -Σ p log p = ln total - moment / total with moment = Σ e^y' y', y' relative to the reference; alone and with
//! the log-probabilities of selected ids.

use super::{Operator, Softmax};
use crate::program::{Expr, Graph, Program, ProgramError};

pub(super) fn entropy() -> Result<Operator, ProgramError> {
    operator("entropy", false)
}

pub(super) fn logprobs_entropy() -> Result<Operator, ProgramError> {
    operator("logprobs_entropy", true)
}

fn operator(name: &str, logprobs: bool) -> Result<Operator, ProgramError> {
    Ok(Operator {
        name: name.to_owned(),
        statistics: statistics(name, logprobs)?,
        finish: finish(name, logprobs)?,
        gradients: vec![gradient(name, logprobs)?],
    })
}

fn statistics(name: &str, logprobs: bool) -> Result<Program, ProgramError> {
    let g = Graph::new(&format!("{name}.statistics"));
    let softmax = Softmax::new(&g, 0);
    g.row_output("total", softmax.e.sum());
    g.row_output("moment", (softmax.e * softmax.above).sum());
    if logprobs {
        g.selected_output("logit", softmax.y);
    }
    g.finish()
}

fn finish(name: &str, logprobs: bool) -> Result<Program, ProgramError> {
    let g = Graph::new(&format!("{name}.finish"));
    let total = g.row("total");
    let dead = total.equals(0.0);
    let entropy = total.ln() - g.row("moment") / total;
    // A rounding may take it below 0, where no entropy is, and a log-probability above.
    g.row_output("entropy", dead.select(f32::NAN, entropy.max(0.0)));
    g.row_output("inverse_total", dead.select(0.0, g.constant(1.0) / total));
    // log p + entropy is y' + center.
    g.row_output("center", dead.select(0.0, entropy - total.ln()));
    if logprobs {
        let logprob = (g.row("logit").above(g.reference()) - total.ln()).min(0.0);
        g.row_output("logprob", dead.select(f32::NAN, logprob));
    }
    g.finish()
}

// -p (log p + entropy)
fn gradient(name: &str, logprobs: bool) -> Result<Program, ProgramError> {
    let g = Graph::new(&format!("{name}.gradient"));
    let softmax = Softmax::merged(&g, 0);
    let p = softmax.e * g.row("inverse_total");
    let mut by_y: Expr<'_> = -(p * (softmax.above + g.row("center")) * g.row("entropy_upstream"));
    if logprobs {
        let alive = g.constant(0.0).less_than(g.row("inverse_total"));
        by_y = alive.select(g.selected(), 0.0) - p * g.row("logprob_upstream") + by_y;
    }
    g.store(softmax.by_product(&g, by_y));
    g.finish()
}
