//! Texts of kernels: those that are checked in, and any other that the generator writes.

use crate::{Error, Result};
use std::borrow::Cow;
use std::sync::OnceLock;
use vocabfuse_codegen::emit::{self, cuda_entry, cuda_logits_entry, cuda_operator_entry, emit};
use vocabfuse_codegen::manifest::{Entry, Manifest};
use vocabfuse_codegen::{KernelSpec, LogitsForm, Loss, Operator};

/// A kernel before it is compiled.
#[derive(Debug)]
pub(super) struct Source {
    /// How it is called.
    pub(super) entry: Entry,
    /// CUDA.
    pub(super) text: Cow<'static, str>,
}

impl Source {
    /// The kernel of a specification, whose loss is `loss`.
    pub(super) fn new(spec: &KernelSpec, loss: &Loss) -> Result<Source> {
        // A loss of somebody's own may have the same name.
        if (spec.loss.is_none() || is_checked_in(loss))
            && let Some(known) = checked_in(&spec.name())
        {
            return Ok(known);
        }
        Source::generated(cuda_entry(spec, loss), emit(spec, loss))
    }

    /// The kernel that applies the options of the logits.
    pub(super) fn of_logits(spec: &KernelSpec, form: LogitsForm) -> Result<Source> {
        let generated = || Source::generated(cuda_logits_entry(spec, form), emit::emit_logits(spec, form));
        checked_in(&spec.name()).map_or_else(generated, Ok)
    }

    /// A kernel of an operator; a gradient by one of its distributions.
    pub(super) fn of_operator(spec: &KernelSpec, operator: &Operator, distribution: usize) -> Result<Source> {
        let generated = || {
            let entry = cuda_operator_entry(spec, operator, distribution);
            Source::generated(entry, emit::emit_operator(spec, operator, distribution))
        };
        checked_in(&spec.name()).map_or_else(generated, Ok)
    }

    fn generated(
        entry: std::result::Result<Entry, vocabfuse_codegen::Error>,
        kernel: std::result::Result<emit::Kernel, vocabfuse_codegen::Error>,
    ) -> Result<Source> {
        let failed = |e: vocabfuse_codegen::Error| Error::Compile(e.to_string());
        Ok(Source { entry: entry.map_err(failed)?, text: Cow::Owned(kernel.map_err(failed)?.text) })
    }
}

fn is_checked_in(loss: &Loss) -> bool {
    static LOSS: OnceLock<Option<Loss>> = OnceLock::new();
    LOSS.get_or_init(|| vocabfuse_codegen::cross_entropy().ok()).as_ref() == Some(loss)
}

fn checked_in(name: &str) -> Option<Source> {
    static MANIFEST: OnceLock<Option<Manifest>> = OnceLock::new();
    let manifest = MANIFEST.get_or_init(|| Manifest::parse(vocabfuse_kernels::cuda::MANIFEST).ok()).as_ref()?;
    let text = Cow::Borrowed(vocabfuse_kernels::cuda::text(name)?);
    Some(Source { entry: manifest.find(name)?.clone(), text })
}
