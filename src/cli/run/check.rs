//! `--check`: errors against the f64 reference, beside those of the plain composition.

use super::passes::Results;
use serde::Serialize;
use vocabfuse::problem::{Options, Outputs, Problem, ProblemError};
use vocabfuse::reference::largest_error;
use vocabfuse::tensors::Inputs;
use vocabfuse::{CrossEntropy, plain, reference};

/// Largest error of each output, relative to the reference's largest value.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Errors {
    pub loss: f64,
    pub lse: f64,
    pub dx: f64,
    pub dw: f64,
    pub dbias: Option<f64>,
}

impl Errors {
    fn new(got: &Outputs<f32>, want: &Outputs<f64>) -> Errors {
        // JSON has no infinity; the largest number still compares as one.
        let error = |got: &[f32], want: &[f64]| largest_error(got, want).min(f64::MAX);
        Errors {
            loss: error(&got.loss, &want.loss),
            lse: error(&got.lse, &want.lse),
            dx: error(&got.dx, &want.dx),
            dw: error(&got.dw, &want.dw),
            dbias: got.dbias.as_ref().zip(want.dbias.as_ref()).map(|(g, w)| error(g, w)),
        }
    }

    /// Name and error of each output there is.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let mut named = vec![("loss", self.loss), ("lse", self.lse), ("dx", self.dx), ("dw", self.dw)];
        named.extend(self.dbias.map(|e| ("dbias", e)));
        named
    }
}

/// Errors of the layer and of the plain composition in the same dtype.
pub struct Check {
    pub errors: Errors,
    pub plain: Errors,
}

impl Check {
    /// Whether an error is no worse than twice that of the plain composition, to a few roundings of the result. A
    /// value that should be finite and is not fails, also where the plain composition has it.
    pub fn passes(error: f64, plain: f64) -> bool {
        error < f64::MAX && error <= 2.0 * plain + 4.0 * f64::from(f32::EPSILON)
    }

    /// Names of the outputs that do not pass.
    pub fn failed(&self) -> Vec<&'static str> {
        let pairs = self.errors.named().into_iter().zip(self.plain.named());
        pairs.filter(|((_, error), (_, plain))| !Check::passes(*error, *plain)).map(|((name, _), _)| name).collect()
    }
}

pub fn check(inputs: &Inputs, loss: &CrossEntropy, results: &Results) -> Result<Check, ProblemError> {
    let options = Options::from(*loss);
    let (x, w) = (inputs.x.to_f32(), inputs.w.to_f32());
    let narrow = Problem {
        bias: inputs.bias.as_deref(),
        upstream: inputs.upstream.as_deref(),
        ..Problem::new(&x, &w, &inputs.targets, inputs.hidden, options)
    };
    let (wide_x, wide_w) = (widen(&x), widen(&w));
    let (bias, upstream) = (inputs.bias.as_deref().map(widen), inputs.upstream.as_deref().map(widen));
    let wide = Problem {
        bias: bias.as_deref(),
        upstream: upstream.as_deref(),
        ..Problem::new(&wide_x, &wide_w, &inputs.targets, inputs.hidden, options)
    };
    let want = reference::cross_entropy(&wide)?;
    let plain = Errors::new(&plain::cross_entropy(&narrow, inputs.x.dtype())?, &want);
    let got = Outputs {
        loss: results.loss.clone(),
        lse: results.lse.clone(),
        argmax: vec![],
        dx: results.dx.to_vec(),
        dw: results.dw.clone(),
        dbias: results.dbias.clone(),
    };
    Ok(Check { errors: Errors::new(&got, &want), plain })
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_composition_is_the_yardstick() {
        assert!(Check::passes(0.0, 0.0) && Check::passes(2e-3, 1e-3) && Check::passes(4e-7, 0.0));
        assert!(!Check::passes(2.1e-3, 1e-3) && !Check::passes(1e-6, 0.0));
        assert!(!Check::passes(f64::MAX, f64::MAX) && !Check::passes(f64::NAN, 1.0));
    }
}
