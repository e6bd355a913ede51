//! The focal loss as row programs: (1 - p)^γ · -ln p, where p is the probability of the target and γ is above 0.
//!
//! It is a function of cross-entropy, -ln p, so what runs over logits is that of cross-entropy: only `finish`, which sees
//! one value a token, is its own. With f' = d loss / d (-ln p), the derivative by a logit is f' times that of
//! cross-entropy: f' (softmax - one-hot).

use vocabfuse_codegen::loss::Softmax;
use vocabfuse_codegen::program::{Graph, ProgramError};
use vocabfuse_codegen::{Loss, Program, cross_entropy};

/// Name of the loss, part of the names of its kernels.
pub const NAME: &str = "focal";

/// The programs.
pub fn focal() -> Result<Loss, ProgramError> {
    let loss = Loss { name: NAME.to_owned(), finish: finish()?, ..cross_entropy()? };
    loss.verify()?;
    Ok(loss)
}

fn finish() -> Result<Program, ProgramError> {
    let g = Graph::new("focal.finish");
    let softmax = Softmax::of(&g);
    let gamma = g.uniform("gamma");
    let surprise = softmax.cross_entropy;
    // 1 - p, with all of its digits also where p is nearly 1.
    let power = (softmax.p_rest.ln() * gamma).exp();
    // d/ds of (1 - e^-s)^γ s: the second term is γ (1 - p)^(γ - 1) p s, 0 where p is 1.
    let steep = gamma * (power / softmax.p_rest) * softmax.p_target * surprise;
    let slope = power + softmax.p_rest.equals(0.0).select(0.0, steep);

    g.row_output("loss", softmax.dead.select(f32::NAN, g.row("hard") * power * surprise));
    g.row_output("lse", softmax.dead.select(f32::NEG_INFINITY, softmax.lse));
    let factor = g.uniform("logit_scale") * g.row("hard") * g.row("upstream") * slope;
    g.row_output("a_factor", softmax.dead.select(0.0, factor / softmax.total));
    g.row_output("target_factor", softmax.dead.select(0.0, -factor * softmax.p_rest));
    g.row_output("bound", softmax.dead.select(0.0, factor.magnitude()));
    g.finish()
}
