//! Token ids, and the microbatches drawn from them.

use super::corpus::Corpus;
use super::tokens::{LEAST_VOCAB, tokenize};
use super::{CONTEXT, TrainError};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A tokenized text.
#[derive(Debug)]
pub struct Data {
    ids: Vec<u32>,
    /// Size of the vocabulary.
    pub vocab: usize,
}

/// Contexts and the tokens that follow them.
#[derive(Debug, PartialEq, Eq)]
pub struct Microbatch {
    /// The [`CONTEXT`] tokens before each target, one line a target.
    pub contexts: Vec<u32>,
    /// The targets.
    pub targets: Vec<i64>,
}

impl Data {
    /// Tokenizes a text with a vocabulary of at most `vocab` tokens.
    ///
    /// # Errors
    /// [`TrainError::Text`] if it has fewer than `tokens` tokens to predict.
    pub fn new(corpus: &Corpus, vocab: usize, tokens: usize) -> Result<Data, TrainError> {
        // No text has more tokens than bytes, and the tokenizer makes room for as many as it is told.
        let encoded = tokenize(&corpus.texts, vocab.min(LEAST_VOCAB + corpus.bytes()))?;
        let (got, need) = (encoded.ids.len(), tokens + CONTEXT);
        if got < need {
            let found = format!("too short, {got} tokens in {} bytes of text", corpus.bytes());
            let expected = format!("expected at least {need}, the {tokens} of a microbatch after {CONTEXT} of context");
            return Err(TrainError::Text(format!("{found}; {expected}")));
        }
        Ok(Data { ids: encoded.ids, vocab: encoded.vocab })
    }

    /// Number of tokens of the text.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Draws microbatches of `tokens` targets at random positions. Equal seed and step, equal microbatches.
    pub fn draw(&self, seed: u64, step: usize, microbatches: usize, tokens: usize) -> Vec<Microbatch> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(step as u64 + 1);
        let mut microbatch = || {
            let mut batch = Microbatch { contexts: Vec::with_capacity(tokens * CONTEXT), targets: vec![] };
            for _ in 0..tokens {
                let position = random.random_range(CONTEXT..self.ids.len());
                batch.contexts.extend(&self.ids[position - CONTEXT..position]);
                batch.targets.push(i64::from(self.ids[position]));
            }
            batch
        };
        (0..microbatches).map(|_| microbatch()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_follow_from_seed_and_step() {
        let corpus = Corpus { texts: vec!["a text to learn, ".repeat(40)] };
        let data = Data::new(&corpus, 260, 4).unwrap();
        let batches = data.draw(1, 0, 2, 4);
        assert_eq!(batches, data.draw(1, 0, 2, 4));
        assert_ne!(batches, data.draw(1, 1, 2, 4));
        assert_ne!(batches[0], batches[1]);
        assert_eq!((batches[0].contexts.len(), batches[0].targets.len()), (4 * CONTEXT, 4));
    }

    #[test]
    fn short_texts_are_refused() {
        let message = Data::new(&Corpus { texts: vec!["short".to_owned()] }, 300, 64).unwrap_err().to_string();
        assert!(message.starts_with("option --text: too short, 5 tokens in 5 bytes"), "{message}");
    }
}
