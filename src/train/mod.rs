//! A small language model on real text, trained twice: its vocabulary layer once by vocabfuse, split over ranks, and
//! once by the plain composition in f32.

mod adam;
mod chart;
mod corpus;
mod data;
mod layer;
mod model;
mod parameters;
mod tokens;
mod twin;

pub use chart::write as write_charts;
pub use corpus::Corpus;
pub use data::Data;
#[cfg(test)]
pub use layer::Cost;
pub use tokens::LEAST_VOCAB;
pub use twin::{Step, Twins};

use vocabfuse::{Dtype, Policy};

/// Tokens before a token that the model sees.
pub const CONTEXT: usize = 8;

/// What to train and how.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Ranks of the vocabulary layer.
    pub ranks: usize,
    /// Width of the hidden layer.
    pub hidden: usize,
    /// Tokens a microbatch.
    pub tokens: usize,
    /// Microbatches a step.
    pub microbatches: usize,
    /// Type of the operands of the vocabulary layer; the weights themselves are f32.
    pub dtype: Dtype,
    /// How the vocabulary layer runs.
    pub policy: Policy,
    /// First step with the policy's gradient filter.
    pub filter_from: usize,
    /// Seed of weights and batches.
    pub seed: u64,
}

/// Why there is nothing to train, or training stopped; every message is one line.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A file or folder that cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// Text that is missing or not text.
    #[error("option --text: {0}")]
    Text(String),
    /// The tokenizer failed.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chart could not be drawn.
    #[error("chart: {0}")]
    Chart(String),
    /// The vocabulary layer refused its input.
    #[error(transparent)]
    Layer(#[from] vocabfuse::Error),
    /// The plain layer refused its input.
    #[error(transparent)]
    Plain(#[from] vocabfuse::problem::ProblemError),
}

impl TrainError {
    fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> TrainError {
        let path = path.display().to_string();
        move |source| TrainError::Io { path, source }
    }
}
