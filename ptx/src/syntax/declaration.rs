//! Declarations of variables, registers and parameters.

use super::cursor::Cursor;
use super::lexer::{Kind, Located};
use super::number::Number;
use super::scope::Scope;
use crate::error::ParseErrorKind;
use crate::isa::types::Type;
use crate::kernel::Parameter;

/// `.align n .type name[size]`, the part shared by variables and parameters.
pub(super) struct Variable<'t> {
    pub(super) name: &'t str,
    pub(super) align: usize,
    /// Bytes; nothing for an array of unknown length.
    pub(super) size: Option<usize>,
}

/// Reads an integer that fits in `usize`.
pub(super) fn integer(cursor: &mut Cursor<'_>) -> Result<usize, Located> {
    let line = cursor.line();
    let word = cursor.word("a number")?;
    match Number::parse(word) {
        Some(Ok(Number::Integer(value))) if usize::try_from(value).is_ok() => Ok(value as usize),
        Some(_) => Err((line, ParseErrorKind::BadNumber(word.to_owned()))),
        None => Err((line, ParseErrorKind::Expected("a number"))),
    }
}

/// Reads a type with its dot.
pub(super) fn data_type(cursor: &mut Cursor<'_>) -> Result<Type, Located> {
    let line = cursor.line();
    let word = cursor.word("a type")?;
    word.strip_prefix('.').and_then(Type::parse).ok_or((line, ParseErrorKind::Expected("a type")))
}

fn alignment(cursor: &mut Cursor<'_>) -> Result<usize, Located> {
    let line = cursor.line();
    let align = integer(cursor)?;
    if align.is_power_of_two() && align <= 1 << 16 {
        Ok(align)
    } else {
        Err((line, ParseErrorKind::BadNumber(align.to_string())))
    }
}

/// Reads a variable after its state space.
pub(super) fn variable<'t>(cursor: &mut Cursor<'t>) -> Result<Variable<'t>, Located> {
    let mut align = None;
    if cursor.peek() == Some(Kind::Word(".align")) {
        cursor.advance();
        align = Some(alignment(cursor)?);
    }
    let line = cursor.line();
    let ty = data_type(cursor)?;
    if ty == Type::Pred {
        return Err((line, ParseErrorKind::Expected("a data type")));
    }
    // `.ptr .space .align n` says what a pointer parameter points to.
    if cursor.peek() == Some(Kind::Word(".ptr")) {
        cursor.advance();
        while let Some(Kind::Word(word)) = cursor.peek() {
            if !word.starts_with('.') {
                break;
            }
            cursor.advance();
            if word == ".align" {
                alignment(cursor)?;
            }
        }
    }
    let name = cursor.word("a name")?;
    let mut size = Some(ty.bytes());
    while cursor.take('[') {
        if cursor.take(']') {
            size = None;
            continue;
        }
        let length = integer(cursor)?;
        size = size.and_then(|s| s.checked_mul(length));
        cursor.expect(']', "a closing bracket")?;
    }
    Ok(Variable { name, align: align.unwrap_or(ty.bytes()), size })
}

/// Reads the names of a `.reg` directive after that word.
pub(super) fn registers(cursor: &mut Cursor<'_>, scope: &mut Scope) -> Result<(), Located> {
    let line = cursor.line();
    let ty = data_type(cursor)?;
    loop {
        let name = cursor.word("a register name")?;
        if cursor.take('<') {
            let count = integer(cursor)? as u64;
            cursor.expect('>', "a closing angle bracket")?;
            scope.declare_range(name, ty, count)
        } else {
            scope.declare_register(name, ty)
        }
        .map_err(|kind| (line, kind))?;
        if cursor.take(';') {
            return Ok(());
        }
        cursor.expect(',', "a comma or semicolon")?;
    }
}

/// Reads the parameter list of an entry, with its parentheses.
pub(super) fn parameters(cursor: &mut Cursor<'_>) -> Result<Vec<Parameter>, Located> {
    const MAX_SIZE: usize = 4096;
    let mut parameters = Vec::new();
    let mut used: usize = 0;
    if !cursor.take('(') || cursor.take(')') {
        return Ok(parameters);
    }
    loop {
        let line = cursor.line();
        if cursor.word("a parameter")? != ".param" {
            return Err((line, ParseErrorKind::Expected("a parameter")));
        }
        let variable = variable(cursor)?;
        let offset = used.next_multiple_of(variable.align);
        let end = variable.size.and_then(|s| s.checked_add(offset));
        let end = end.filter(|&e| e <= MAX_SIZE);
        used = end.ok_or((line, ParseErrorKind::TooMany("bytes of parameters")))?;
        parameters.push(Parameter { name: variable.name.to_owned(), offset, size: used - offset });
        if cursor.take(')') {
            return Ok(parameters);
        }
        cursor.expect(',', "a comma or closing parenthesis")?;
    }
}
