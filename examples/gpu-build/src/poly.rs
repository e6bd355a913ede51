//! The poly-1 loss as row programs: -ln p + ε (1 - p), where p is the probability of the target.
//!
//! It is a function of cross-entropy s = -ln p, so that `finish` alone, which sees one value a token, is its own. The derivative
//! by a logit is that of cross-entropy times 1 + ε p, the derivative of the loss by s.

use vocabfuse_codegen::loss::Softmax;
use vocabfuse_codegen::program::{Graph, ProgramError};
use vocabfuse_codegen::{Loss, Program, cross_entropy};

/// Name of the loss, part of the names of its kernels.
pub const NAME: &str = "poly";

/// Vocabulary entries that its kernels work on at a time.
pub const CHUNK: usize = 512;

/// The programs.
pub fn poly() -> Result<Loss, ProgramError> {
    let loss = Loss { name: NAME.to_owned(), finish: finish()?, ..cross_entropy()? };
    loss.verify()?;
    Ok(loss)
}

fn finish() -> Result<Program, ProgramError> {
    let g = Graph::new("poly.finish");
    let softmax = Softmax::of(&g);
    let epsilon = g.uniform("epsilon");
    let loss = softmax.cross_entropy + epsilon * softmax.p_rest;
    let slope = epsilon.mul_add(softmax.p_target, 1.0);

    g.row_output("loss", softmax.dead.select(f32::NAN, g.row("hard") * loss));
    g.row_output("lse", softmax.dead.select(f32::NEG_INFINITY, softmax.lse));
    let factor = g.uniform("logit_scale") * g.row("hard") * g.row("upstream") * slope;
    g.row_output("a_factor", softmax.dead.select(0.0, factor / softmax.total));
    g.row_output("target_factor", softmax.dead.select(0.0, -factor * softmax.p_rest));
    g.row_output("bound", softmax.dead.select(0.0, factor.magnitude()));
    g.finish()
}
