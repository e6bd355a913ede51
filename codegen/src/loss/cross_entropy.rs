//! Cross-entropy: loss = lse(y) - y_target, y = logit_scale · (x · w) + bias.

use super::Loss;
use crate::program::{Graph, ProgramError};

/// Cross-entropy with logit scale, bias and padded-vocabulary mask.
///
/// The target column is kept out of the sum, of the stored tile and of the reference: with `rest` the mass of all
/// other columns, p_target - 1 = -rest / total and loss = ln(1 + rest / e_target) have full relative precision also
/// where p_target is near 1, which a difference of rounded probabilities has not, and the stored values of the other
/// columns stay within the range of a narrow dtype. e_target may overflow to infinity; then the loss is 0.
///
/// # Errors
/// None for the program as it stands; the verifier's type is kept so that callers treat every loss alike.
pub fn cross_entropy() -> Result<Loss, ProgramError> {
    let loss =
        Loss { name: "cross_entropy".to_owned(), statistics: statistics()?, finish: finish()?, gradient: gradient()? };
    loss.verify()?;
    Ok(loss)
}

fn statistics() -> Result<crate::Program, ProgramError> {
    let g = Graph::new("cross_entropy.statistics");
    let y = g.logit().mul_add(g.uniform("logit_scale"), g.column("bias"));
    let y = g.column_id().less_than(g.classes()).select(y, f32::NEG_INFINITY);
    let is_target = g.column_id().equals(g.target());
    let rest = is_target.select(f32::NEG_INFINITY, y).exp_above(g.reference());
    g.row_output("rest", rest.sum());
    g.row_output("target_logit", is_target.select(y, 0.0).sum());
    g.store(rest);
    g.finish()
}

fn finish() -> Result<crate::Program, ProgramError> {
    let g = Graph::new("cross_entropy.finish");
    let (rest, target_logit, reference) = (g.row("rest"), g.row("target_logit"), g.reference());
    let e_target = target_logit.exp_above(reference);
    let total = rest + e_target;
    // Both forms are exact; each is used where it does not overflow.
    let near = (rest / e_target).ln_1p();
    let far = total.ln() - target_logit.above(reference);
    let loss = e_target.less_than(rest).select(far, near);
    // A row whose logits are all -inf has no distribution: the loss is NaN, the gradients are zero.
    let dead = total.equals(0.0);
    g.row_output("loss", dead.select(f32::NAN, loss));
    let lse = e_target.less_than(rest).select(total.ln() - g.constant(0.0).above(reference), target_logit + near);
    g.row_output("lse", dead.select(f32::NEG_INFINITY, lse));
    let scale = g.uniform("logit_scale");
    g.row_output("a_factor", dead.select(0.0, scale / total));
    g.row_output("target_factor", dead.select(0.0, -(rest * scale) / total));
    g.finish()
}

fn gradient() -> Result<crate::Program, ProgramError> {
    let g = Graph::new("cross_entropy.gradient");
    let at_target = g.column_id().equals(g.target()).select(g.row("target_factor"), 0.0);
    let derivative = g.stored().mul_add(g.row("a_factor"), at_target) * g.row("upstream");
    g.store(derivative);
    // The factors hold the logit scale; the bias is added after it.
    g.column_gradient("bias", derivative / g.uniform("logit_scale"));
    g.finish()
}
