//! A draw from the distribution of a token: the largest logit after Gumbel noise is added to each.

use super::{Operator, Softmax, top_k};
use crate::program::{Graph, ProgramError};

/// The largest f32 below 1.
const BELOW_ONE: f32 = 0.999_999_94;

pub(super) fn sample() -> Result<Operator, ProgramError> {
    let g = Graph::new("sample.statistics");
    let softmax = Softmax::new(&g, 0);
    g.row_output("total", softmax.e.sum());
    // -ln of a uniform number is exponentially distributed, and -ln of that is Gumbel noise.
    let exponential = -((-g.random().min(BELOW_ONE)).ln_1p());
    g.top(softmax.y, -exponential.ln());
    let statistics = g.finish()?;
    Ok(Operator { name: "sample".to_owned(), statistics, finish: top_k::finish("sample")?, gradients: vec![] })
}
