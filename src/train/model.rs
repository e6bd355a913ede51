//! Below the vocabulary layer: the embeddings of a context side by side, then tanh of a linear layer.

use super::CONTEXT;
use super::parameters::{EMBEDDING, INPUTS, Parameters};
use vocabfuse::matmul::{View, product};

/// What the backward pass needs of the forward pass of N tokens.
#[derive(Debug)]
pub struct Activations {
    /// Embedded contexts, `[N, INPUTS]`.
    inputs: Vec<f32>,
    /// Hidden states, `[N, H]`: the X of the vocabulary layer.
    pub x: Vec<f32>,
}

/// Hidden states of N contexts, `contexts` being `[N, CONTEXT]` token ids.
pub fn forward(parameters: &Parameters, contexts: &[u32]) -> Activations {
    let (tokens, hidden) = (contexts.len() / CONTEXT, parameters.hidden_bias.len());
    let row = |&id: &u32| &parameters.embedding[id as usize * EMBEDDING..][..EMBEDDING];
    let inputs: Vec<f32> = contexts.iter().flat_map(row).copied().collect();
    let mut x = vec![0.0; tokens * hidden];
    product(&mut x, View::new(&inputs, tokens, INPUTS), View::new(&parameters.hidden, hidden, INPUTS).t(), 1.0, false);
    for row in x.chunks_mut(hidden) {
        row.iter_mut().zip(&parameters.hidden_bias).for_each(|(x, b)| *x = (*x + b).tanh());
    }
    Activations { inputs, x }
}

/// Adds the gradients of all weights but those of the vocabulary layer, from `dx` `[N, H]`, the gradient of X.
pub fn backward(parameters: &Parameters, contexts: &[u32], kept: &Activations, dx: &[f32], gradient: &mut Parameters) {
    let (tokens, hidden) = (contexts.len() / CONTEXT, parameters.hidden_bias.len());
    let sums: Vec<f32> = dx.iter().zip(&kept.x).map(|(d, x)| d * (1.0 - x * x)).collect();
    for row in sums.chunks(hidden) {
        gradient.hidden_bias.iter_mut().zip(row).for_each(|(b, d)| *b += d);
    }
    let sums = View::new(&sums, tokens, hidden);
    product(&mut gradient.hidden, sums.t(), View::new(&kept.inputs, tokens, INPUTS), 1.0, true);
    let mut inputs = vec![0.0; tokens * INPUTS];
    product(&mut inputs, sums, View::new(&parameters.hidden, hidden, INPUTS), 1.0, false);
    for (id, row) in contexts.iter().zip(inputs.chunks(EMBEDDING)) {
        let embedding = &mut gradient.embedding[*id as usize * EMBEDDING..][..EMBEDDING];
        embedding.iter_mut().zip(row).for_each(|(e, d)| *e += d);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCAB: usize = 6;
    const HIDDEN: usize = 3;

    #[test]
    fn gradients_are_derivatives() {
        let contexts: Vec<u32> = (0..2 * CONTEXT as u32).map(|i| i * 5 % VOCAB as u32).collect();
        let mut parameters = Parameters::random(VOCAB, HIDDEN, 3);
        let dx: Vec<f32> = (0..2 * HIDDEN).map(|i| i as f32 / 3.0 - 0.7).collect();
        let mut gradient = Parameters::zeros(VOCAB, HIDDEN);
        let kept = forward(&parameters, &contexts);
        backward(&parameters, &contexts, &kept, &dx, &mut gradient);
        let mut check = |part: usize, index: usize| {
            let mut at = |delta: f32| {
                parameters.parts_mut()[part][index] += delta;
                let x = forward(&parameters, &contexts).x;
                parameters.parts_mut()[part][index] -= delta;
                x.iter().zip(&dx).map(|(x, d)| f64::from(x * d)).sum::<f64>()
            };
            let numerical = (at(1e-2) - at(-1e-2)) / 2e-2;
            let got = f64::from(gradient.parts()[part][index]);
            assert!((numerical - got).abs() < 2e-3, "part {part}, {index}: {got} and {numerical}");
        };
        for index in [0, 7, 40, 100] {
            check(0, index);
            check(1, index);
        }
        check(2, 1);
    }
}
