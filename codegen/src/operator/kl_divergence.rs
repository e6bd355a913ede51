//! KL(P || Q) = Σ p (log p - log q) of two distributions with logits of their own: distribution 0 is P, 1 is Q.
//!
//! Where P and Q are close, log p - log q is a difference of large numbers for every class. So the statistic is a sum of
//! p φ(log q - log p) with φ(u) = e^u - 1 - u, of which no term is negative, and which adds up to the same.

use super::{Operator, Softmax};
use crate::program::{Graph, Program, ProgramError};

pub(super) fn kl_divergence() -> Result<Operator, ProgramError> {
    Ok(Operator {
        name: "kl_divergence".to_owned(),
        statistics: statistics()?,
        finish: finish()?,
        gradients: vec![gradient_of_p()?, gradient_of_q()?],
    })
}

fn statistics() -> Result<Program, ProgramError> {
    let g = Graph::new("kl_divergence.statistics");
    let (p, q) = (Softmax::new(&g, 0), Softmax::new(&g, 1));
    g.row_output("p_total", p.e.sum());
    g.row_output("q_total", q.e.sum());
    g.row_output("divergence", p.e.divergence(q.e, q.above - p.above));
    // Whether P has mass where Q has none, were it so little that it is zero in f32.
    let q_masked = q.y.equals(f32::NEG_INFINITY).select(1.0, 0.0);
    g.row_output("outside", p.y.equals(f32::NEG_INFINITY).select(0.0, q_masked).largest());
    g.finish()
}

fn finish() -> Result<Program, ProgramError> {
    let g = Graph::new("kl_divergence.finish");
    let (p_total, q_total) = (g.row("p_total"), g.row("q_total"));
    let outside = g.constant(0.0).less_than(g.row("outside"));
    let divergence = g.row("divergence") / p_total;
    // A NaN among the logits stays one.
    let whole = outside.select((p_total + q_total) * f32::INFINITY, divergence);
    let alive = |yes, no: f32| {
        let p_dead = p_total.equals(0.0).select(no, yes);
        q_total.equals(0.0).select(no, p_dead)
    };
    g.row_output("divergence", alive(whole, f32::NAN));
    g.row_output("p_inverse", alive(g.constant(1.0) / p_total, 0.0));
    g.row_output("q_inverse", alive(g.constant(1.0) / q_total, 0.0));
    // An infinite divergence has a derivative by Q, but none by P.
    let finite = |yes| outside.select(0.0, alive(yes, 0.0));
    g.row_output("p_factor", finite(g.constant(1.0) / p_total));
    // log p - log q - divergence is y'_P - y'_Q - center, with y' relative to the references.
    g.row_output("center", finite(divergence + (p_total.ln() - q_total.ln())));
    g.finish()
}

// p (log p - log q - divergence)
fn gradient_of_p() -> Result<Program, ProgramError> {
    let g = Graph::new("kl_divergence.gradient_of_p");
    let (p, q) = (Softmax::merged(&g, 0), Softmax::merged(&g, 1));
    let by_y = p.e * g.row("p_factor") * (p.above - q.above - g.row("center")) * g.row("divergence_upstream");
    // What weighs nothing has no gradient, however far it is.
    g.store(p.by_product(&g, p.e.equals(0.0).select(0.0, by_y)));
    g.finish()
}

// q - p
fn gradient_of_q() -> Result<Program, ProgramError> {
    let g = Graph::new("kl_divergence.gradient_of_q");
    let (p, q) = (Softmax::merged(&g, 0), Softmax::merged(&g, 1));
    let by_y = (q.e * g.row("q_inverse") - p.e * g.row("p_inverse")) * g.row("divergence_upstream");
    g.store(q.by_product(&g, by_y));
    g.finish()
}
