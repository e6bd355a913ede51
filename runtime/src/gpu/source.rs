//! Texts of kernels: those that a program carries, and any other that the generator writes.

use crate::{Error, Result};
use std::borrow::Cow;
use std::sync::OnceLock;
use vocabfuse_codegen::bundle::fingerprint;
use vocabfuse_codegen::emit::{self, cuda_entry, cuda_logits_entry, cuda_operator_entry, emit};
use vocabfuse_codegen::manifest::Entry;
use vocabfuse_codegen::{KernelSpec, LogitsForm, Loss, Operator};

/// A kernel before it is compiled.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    /// How it is called.
    pub(super) entry: Entry,
    /// CUDA.
    pub(super) text: Cow<'static, str>,
}

/// Where the programs of a kernel come from. A kernel without programs can have any.
#[derive(Clone, Copy, Debug)]
pub(super) enum Programs<'a> {
    Loss(&'a Loss),
    Logits(LogitsForm),
    /// And a distribution, for a gradient.
    Operator(&'a Operator, usize),
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Compile(error.to_string())
}

impl Programs<'_> {
    /// What tells them from others of the same name.
    pub(super) fn fingerprint(self) -> Result<String> {
        match self {
            Programs::Loss(loss) => Ok(fingerprint(loss)),
            Programs::Logits(form) => form.fingerprint().map_err(failed),
            Programs::Operator(operator, _) => Ok(fingerprint(operator)),
        }
    }

    /// Whether a kernel of the crate `vocabfuse-kernels` that has their name holds them: a loss of somebody's own may have the
    /// same name.
    pub(super) fn are_checked_in(self) -> bool {
        static LOSS: OnceLock<Option<Loss>> = OnceLock::new();
        match self {
            Programs::Loss(loss) => LOSS.get_or_init(|| vocabfuse_codegen::cross_entropy().ok()).as_ref() == Some(loss),
            Programs::Logits(_) | Programs::Operator(..) => true,
        }
    }

    /// The kernel of a specification with these programs.
    pub(super) fn generate(self, spec: &KernelSpec) -> Result<Source> {
        let (entry, kernel) = match self {
            Programs::Loss(loss) => (cuda_entry(spec, loss), emit(spec, loss)),
            Programs::Logits(form) => (cuda_logits_entry(spec, form), emit::emit_logits(spec, form)),
            Programs::Operator(operator, distribution) => {
                (cuda_operator_entry(spec, operator, distribution), emit::emit_operator(spec, operator, distribution))
            }
        };
        Ok(Source { entry: entry.map_err(failed)?, text: Cow::Owned(kernel.map_err(failed)?.text) })
    }
}
