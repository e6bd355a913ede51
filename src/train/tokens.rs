//! Byte-level BPE, trained on the text itself.

use super::TrainError;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, TokenizerImpl};

/// Smallest vocabulary: one token a byte.
pub const LEAST_VOCAB: usize = 256;

/// Text as token ids.
#[derive(Debug)]
pub struct Tokens {
    /// The ids.
    pub ids: Vec<u32>,
    /// Size of the vocabulary; the text may support fewer tokens than were asked for.
    pub vocab: usize,
}

/// Trains a vocabulary of at most `vocab` tokens on the texts and encodes them.
///
/// # Errors
/// [`TrainError::Tokenizer`] if the tokenizer fails.
pub fn tokenize(texts: &[String], vocab: usize) -> Result<Tokens, TrainError> {
    let failed = |e: tokenizers::Error| TrainError::Tokenizer(e.to_string());
    let pieces: Vec<&str> = texts.iter().flat_map(|text| pieces(text)).collect();
    let mut tokenizer =
        TokenizerImpl::<BPE, NormalizerWrapper, ByteLevel, PostProcessorWrapper, DecoderWrapper>::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    let mut trainer = BpeTrainer::builder()
        .show_progress(false)
        .min_frequency(2)
        .vocab_size(vocab)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    tokenizer.train(&mut trainer, pieces.iter()).map_err(failed)?;
    let encoded = tokenizer.encode_batch_fast(pieces, false).map_err(failed)?;
    let ids = encoded.iter().flat_map(|e| e.get_ids()).copied().collect();
    Ok(Tokens { ids, vocab: tokenizer.get_vocab_size(false) })
}

/// Parts of some lines each, for the tokenizer to work on in parallel.
fn pieces(text: &str) -> Vec<&str> {
    const LENGTH: usize = 1 << 14;
    let mut pieces = vec![];
    let mut rest = text;
    while rest.len() > LENGTH {
        let Some(end) = rest.as_bytes()[LENGTH..].iter().position(|&b| b == b'\n') else { break };
        let (piece, after) = rest.split_at(LENGTH + end + 1);
        pieces.push(piece);
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_text() {
        let text = "línea larga\n".repeat(5000);
        assert!(pieces(&text).len() > 2);
        assert_eq!(pieces(&text).concat(), text);
        assert_eq!(pieces("one line"), ["one line"]);
    }

    #[test]
    fn the_vocabulary_is_what_the_text_supports() {
        let texts = vec!["the cat sat on the mat\n".repeat(50)];
        let tokens = tokenize(&texts, 8192).unwrap();
        assert!(tokens.vocab > LEAST_VOCAB && tokens.vocab < 300, "{}", tokens.vocab);
        assert!(tokens.ids.len() < texts[0].len() / 2);
        assert!(tokens.ids.iter().all(|&id| (id as usize) < tokens.vocab));
        assert_eq!(tokens.ids, tokenize(&texts, 8192).unwrap().ids);
    }
}
