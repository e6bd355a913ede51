//! Operands as written, before names and types are resolved.

use super::cursor::Cursor;
use super::lexer::{Kind, Located};
use super::number::Number;
use crate::error::ParseErrorKind;

/// One operand of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Raw<'t> {
    /// A name.
    Name(&'t str),
    /// A negated predicate, `!p`.
    Not(&'t str),
    /// A literal.
    Number(Number),
    /// `{a, b, ...}`.
    Vector(Vec<Raw<'t>>),
    /// `[base + offset]`.
    Address { base: Option<&'t str>, offset: i64 },
    /// `d|p`.
    Pair(&'t str, &'t str),
}

/// Reads operands up to and including the semicolon.
pub(super) fn parse_operands<'t>(cursor: &mut Cursor<'t>) -> Result<Vec<Raw<'t>>, Located> {
    let mut operands = Vec::new();
    if cursor.take(';') {
        return Ok(operands);
    }
    loop {
        operands.push(parse_operand(cursor)?);
        if cursor.take(';') {
            return Ok(operands);
        }
        cursor.expect(',', "a comma or semicolon")?;
    }
}

fn parse_operand<'t>(cursor: &mut Cursor<'t>) -> Result<Raw<'t>, Located> {
    match cursor.peek() {
        Some(Kind::Mark('{')) => parse_vector(cursor),
        Some(Kind::Mark('[')) => parse_address(cursor),
        _ => parse_scalar(cursor),
    }
}

fn parse_vector<'t>(cursor: &mut Cursor<'t>) -> Result<Raw<'t>, Located> {
    cursor.expect('{', "a vector")?;
    let mut elements = Vec::new();
    loop {
        elements.push(parse_scalar(cursor)?);
        if cursor.take('}') {
            return Ok(Raw::Vector(elements));
        }
        cursor.expect(',', "a comma or closing brace")?;
    }
}

fn parse_address<'t>(cursor: &mut Cursor<'t>) -> Result<Raw<'t>, Located> {
    cursor.expect('[', "an address")?;
    let (base, mut offset) = match parse_scalar(cursor)? {
        Raw::Name(name) => (Some(name), 0),
        Raw::Number(Number::Integer(value)) => (None, value as i64),
        _ => return Err(cursor.expected("an address")),
    };
    // `+` may be followed by a negative number, and a bare minus sign is one.
    if cursor.take('+') || cursor.peek() == Some(Kind::Mark('-')) {
        offset = parse_offset(cursor)?;
    }
    cursor.expect(']', "a closing bracket")?;
    Ok(Raw::Address { base, offset })
}

fn parse_offset(cursor: &mut Cursor<'_>) -> Result<i64, Located> {
    match parse_scalar(cursor)? {
        Raw::Number(Number::Integer(value)) => Ok(value as i64),
        _ => Err(cursor.expected("an offset")),
    }
}

fn parse_scalar<'t>(cursor: &mut Cursor<'t>) -> Result<Raw<'t>, Located> {
    let line = cursor.line();
    if cursor.take('!') {
        return cursor.word("a predicate").map(Raw::Not);
    }
    let negative = cursor.take('-');
    let word = cursor.word("an operand")?;
    if let Some(number) = Number::parse(word) {
        let number = number.map_err(|kind| (line, kind))?;
        return Ok(Raw::Number(if negative { number.negate() } else { number }));
    }
    if negative {
        return Err((line, ParseErrorKind::Expected("a number")));
    }
    if cursor.take('|') {
        return Ok(Raw::Pair(word, cursor.word("a second destination")?));
    }
    Ok(Raw::Name(word))
}
