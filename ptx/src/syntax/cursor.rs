//! A position in the token sequence.

use super::lexer::{Kind, Located, Token};
use crate::error::ParseErrorKind;

/// Reads tokens one by one and knows the line for errors.
pub(super) struct Cursor<'t> {
    tokens: Vec<Token<'t>>,
    next: usize,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(tokens: Vec<Token<'t>>) -> Self {
        Cursor { tokens, next: 0 }
    }

    /// Line of the next token, or of the last one at the end.
    pub(super) fn line(&self) -> u32 {
        let token = self.tokens.get(self.next).or(self.tokens.last());
        token.map_or(1, |t| t.line)
    }

    pub(super) fn peek(&self) -> Option<Kind<'t>> {
        self.tokens.get(self.next).map(|t| t.kind)
    }

    /// The token after the next one.
    pub(super) fn peek_second(&self) -> Option<Kind<'t>> {
        self.tokens.get(self.next + 1).map(|t| t.kind)
    }

    pub(super) fn advance(&mut self) -> Option<Kind<'t>> {
        let kind = self.peek();
        self.next += usize::from(kind.is_some());
        kind
    }

    /// Consumes the mark if it is next.
    pub(super) fn take(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(Kind::Mark(mark));
        self.next += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, mark: char, what: &'static str) -> Result<(), Located> {
        if self.take(mark) { Ok(()) } else { Err(self.expected(what)) }
    }

    pub(super) fn word(&mut self, what: &'static str) -> Result<&'t str, Located> {
        match self.peek() {
            Some(Kind::Word(text)) => {
                self.next += 1;
                Ok(text)
            }
            _ => Err(self.expected(what)),
        }
    }

    /// Skips the rest of the line of the token before the next one.
    pub(super) fn skip_line(&mut self) {
        let Some(line) = self.next.checked_sub(1).map(|i| self.tokens[i].line) else {
            return;
        };
        while self.tokens.get(self.next).is_some_and(|t| t.line == line) {
            self.next += 1;
        }
    }

    pub(super) fn expected(&self, what: &'static str) -> Located {
        let kind = match self.peek() {
            Some(_) => ParseErrorKind::Expected(what),
            None => ParseErrorKind::UnexpectedEnd,
        };
        (self.line(), kind)
    }
}
