//! Tokens of PTX text.

use crate::error::ParseErrorKind;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'t> {
    /// A name, number, directive or dotted opcode.
    Word(&'t str),
    /// A quoted text.
    Text,
    /// A single punctuation character.
    Mark(char),
}

/// A token and the line it starts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'t> {
    pub(super) kind: Kind<'t>,
    pub(super) line: u32,
}

/// A kind of error and the line it was found on.
pub(super) type Located = (u32, ParseErrorKind);

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// Splits `text` into tokens; comments and white space are dropped.
pub(super) fn tokenize(text: &str) -> Result<Vec<Token<'_>>, Located> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(&byte) = bytes.get(at) {
        if byte == b'\n' {
            line += 1;
            at += 1;
        } else if byte.is_ascii_whitespace() {
            at += 1;
        } else if bytes[at..].starts_with(b"//") {
            at = find(bytes, at, b"\n").unwrap_or(bytes.len());
        } else if bytes[at..].starts_with(b"/*") {
            let end = find(bytes, at + 2, b"*/").ok_or((line, ParseErrorKind::UnexpectedEnd))? + 2;
            line += newlines(&bytes[at..end]);
            at = end;
        } else if byte == b'"' {
            let end = find(bytes, at + 1, b"\"").ok_or((line, ParseErrorKind::UnexpectedEnd))? + 1;
            tokens.push(Token { kind: Kind::Text, line });
            line += newlines(&bytes[at..end]);
            at = end;
        } else if is_word(byte) {
            let end = word_end(bytes, at);
            tokens.push(Token { kind: Kind::Word(&text[at..end]), line });
            at = end;
        } else if b"{}[]()<>,;:+-!@|=".contains(&byte) {
            tokens.push(Token { kind: Kind::Mark(byte as char), line });
            at += 1;
        } else {
            let character = text[at..].chars().next().unwrap_or('\u{fffd}');
            return Err((line, ParseErrorKind::UnexpectedCharacter(character)));
        }
    }
    Ok(tokens)
}

/// End of the word that starts at `at`; a `::` joins its two sides, so that a
/// qualifier such as `.L2::128B` stays in its opcode while a label's single
/// colon does not.
fn word_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        while bytes.get(at).is_some_and(|&b| is_word(b)) {
            at += 1;
        }
        let joins = bytes[at..].starts_with(b"::") && bytes.get(at + 2).is_some_and(|&b| is_word(b));
        if !joins {
            return at;
        }
        at += 2;
    }
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    let tail = bytes.get(from..)?;
    let at = tail.windows(what.len()).position(|w| w == what)?;
    Some(from + at)
}

fn newlines(bytes: &[u8]) -> u32 {
    bytes.iter().filter(|&&b| b == b'\n').count() as u32
}
