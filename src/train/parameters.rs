//! The weights of the model; also the shape of their gradients and of the optimizer's moments.

use super::CONTEXT;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Width of a token embedding.
pub const EMBEDDING: usize = 32;

/// Inputs of the hidden layer: the embeddings of a context side by side.
pub const INPUTS: usize = CONTEXT * EMBEDDING;

/// One f32 per weight; matrices are row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Token embeddings, `[V, EMBEDDING]`.
    pub embedding: Vec<f32>,
    /// Weight of the hidden layer, `[H, INPUTS]`.
    pub hidden: Vec<f32>,
    /// Bias of the hidden layer, `[H]`.
    pub hidden_bias: Vec<f32>,
    /// Weight of the vocabulary layer, `[V, H]`.
    pub output: Vec<f32>,
}

impl Parameters {
    /// Zeros.
    pub fn zeros(vocab: usize, hidden: usize) -> Parameters {
        Parameters {
            embedding: vec![0.0; vocab * EMBEDDING],
            hidden: vec![0.0; hidden * INPUTS],
            hidden_bias: vec![0.0; hidden],
            output: vec![0.0; vocab * hidden],
        }
    }

    /// Random weights, uniform within the inverse root of each layer's number of inputs.
    pub fn random(vocab: usize, hidden: usize, seed: u64) -> Parameters {
        let mut parameters = Parameters::zeros(vocab, hidden);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut fill = |values: &mut [f32], bound: f32| values.fill_with(|| random.random_range(-bound..bound));
        fill(&mut parameters.embedding, 1.0);
        fill(&mut parameters.hidden, (INPUTS as f32).powf(-0.5));
        fill(&mut parameters.output, (hidden as f32).powf(-0.5));
        parameters
    }

    /// All weights, in a fixed order.
    pub fn parts(&self) -> [&Vec<f32>; 4] {
        [&self.embedding, &self.hidden, &self.hidden_bias, &self.output]
    }

    /// All weights, in the same order.
    pub fn parts_mut(&mut self) -> [&mut Vec<f32>; 4] {
        [&mut self.embedding, &mut self.hidden, &mut self.hidden_bias, &mut self.output]
    }

    /// Sets all weights to zero.
    pub fn clear(&mut self) {
        self.parts_mut().into_iter().for_each(|part| part.fill(0.0));
    }
}
