//! Renders templates: minijinja with a syntax that stays out of the way of Rust and CUDA.
//!
//! A line that starts with `//$` is a statement, `<|name|>` is a value, a line that starts with `//-` is dropped.
//! Undefined names are errors. `require(condition, parameter, expected)` at the top of a template states what its
//! parameters must be.

use crate::error::Error;
use crate::spec::KernelSpec;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value};

use std::sync::OnceLock;

fn environment() -> &'static Environment<'static> {
    static ENVIRONMENT: OnceLock<Environment<'static>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder()
            .block_delimiters("<%", "%>")
            .variable_delimiters("<|", "|>")
            .comment_delimiters("<#", "#>")
            .line_statement_prefix("//$")
            .line_comment_prefix("//-")
            .keep_trailing_newline(true)
            .trim_blocks(true)
            .build();
        env.set_syntax(syntax.unwrap_or_default());
        env.set_undefined_behavior(UndefinedBehavior::Strict);
        env.add_function("require", require);
        env.set_loader(|name| Ok(vocabfuse_templates::get(name).map(str::to_owned)));
        env
    })
}

fn require(condition: bool, parameter: &str, expected: &str) -> Result<bool, minijinja::Error> {
    if condition {
        Ok(true)
    } else {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("parameter {parameter}: expected {expected}")))
    }
}

// An error inside an included template arrives wrapped: the innermost one says what is wrong and where.
fn failed(kernel: &str, error: &minijinja::Error) -> Error {
    let mut inner = error;
    while let Some(next) = std::error::Error::source(inner).and_then(|e| e.downcast_ref::<minijinja::Error>()) {
        inner = next;
    }
    let what = inner.detail().map_or_else(|| inner.kind().to_string(), str::to_owned);
    let place = match (inner.name(), inner.line()) {
        (Some(name), Some(line)) => format!(" ({name}:{line})"),
        _ => String::new(),
    };
    Error::Template { kernel: kernel.to_owned(), message: format!("{what}{place}") }
}

/// The template of a kernel: in the first folder of its target that has one.
///
/// # Errors
/// [`Error::Template`] if none has.
pub fn template(spec: &KernelSpec) -> Result<String, Error> {
    let row = spec.target.row();
    let extension = if spec.target.is_cuda() { "cu.in" } else { "rs.in" };
    let stem = spec.kernel.row().template;
    let mut paths = row.templates.iter().map(|folder| format!("{folder}/{stem}.{extension}"));
    paths.find(|path| vocabfuse_templates::get(path).is_some()).ok_or_else(|| Error::Template {
        kernel: spec.name(),
        message: format!("no {stem}.{extension} in {}", row.templates.join(", ")),
    })
}

/// Renders template `name` for kernel `kernel`.
///
/// # Errors
/// [`Error::Template`]: an unknown template, an undefined name, or a broken parameter assertion.
pub fn render(name: &str, kernel: &str, context: Value) -> Result<String, Error> {
    let template = environment().get_template(name).map_err(|e| failed(kernel, &e))?;
    template.render(context).map_err(|e| failed(kernel, &e))
}
