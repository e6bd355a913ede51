//! Errors of this crate.

use crate::compile::CompileError;
use crate::program::ProgramError;

/// A specification that cannot be generated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A word that is no value of an option.
    #[error("{option} {value:?} is unknown; expected one of: {expected}")]
    Unknown {
        /// The option.
        option: &'static str,
        /// The word.
        value: String,
        /// Valid values.
        expected: String,
    },
    /// A bad chunk size.
    #[error("chunk {chunk} is not usable; expected a power of two from 256 to 65536")]
    Chunk {
        /// The size.
        chunk: usize,
    },
    /// A combination that no template covers.
    #[error("{what} is not supported; supported: {supported}")]
    Unsupported {
        /// The combination.
        what: String,
        /// What there is instead.
        supported: String,
    },
}

/// Any error on the way from a specification to text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// See [`SpecError`].
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// See [`ProgramError`].
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A template that failed to render: an undefined name or a parameter that breaks one of its assertions.
    #[error("kernel {kernel}: {message}")]
    Template {
        /// Name of the kernel.
        kernel: String,
        /// What failed, with the template's name and line.
        message: String,
    },
    /// An operation that a target has no text for.
    #[error("program {program}, {value}: {message}")]
    Lowering {
        /// Name of the program.
        program: String,
        /// The value.
        value: String,
        /// What is missing.
        message: String,
    },
    /// A set of targets, dtypes, chunks and kernels that holds no kernel for a CPU, where one is asked for.
    #[error(
        "no kernel of a CPU target among what was asked for; expected at least one target, dtype, chunk and kernel"
    )]
    Empty,
    /// A set of kernels that holds none for a GPU, where one is asked for.
    #[error("no CUDA kernel among what was asked for; expected at least one dtype, chunk and kernel of target sm_80")]
    NoCuda,
    /// See [`CompileError`].
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A variable that Cargo sets for build scripts.
    #[error("the environment variable {0} is not set: this runs in a build script")]
    NoBuildScript(&'static str),
    /// A file that cannot be written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
}
