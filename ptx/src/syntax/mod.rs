//! From PTX text to decoded kernels.

mod cursor;
mod declaration;
mod lexer;
mod number;
mod operand;
mod parser;
mod scope;
mod statement;

pub(crate) use parser::parse_module;
pub(crate) use statement::Statement;
