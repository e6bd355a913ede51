//! From a specification to code for a device, through the cache.

use super::cache::{Cache, Key};
use super::driver::Form;
use super::kernels::kinds;
use crate::{Dtype, Error, Precision, Result};
use std::path::Path;
use vocabfuse_codegen::compile::occupancy::Architecture;
use vocabfuse_codegen::compile::{CompileError, log, nvrtc::Nvrtc};
use vocabfuse_codegen::emit::{cuda_entry, emit};
use vocabfuse_codegen::manifest::Entry;
use vocabfuse_codegen::{KernelKind, KernelSpec, Loss, Target};

/// Compiles for one kind of device.
#[derive(Clone, Debug)]
pub(super) struct Compiler {
    pub(super) cache: Cache,
    pub(super) architecture: Architecture,
    pub(super) form: Form,
}

impl Compiler {
    /// The code of a kernel whose entry is `entry`.
    pub(super) fn code(&self, spec: &KernelSpec, loss: &Loss, entry: &Entry) -> Result<Vec<u8>> {
        let text = emit(spec, loss).map_err(|e| Error::Compile(e.to_string()))?.text;
        let flags = format!("{} {:?} NVRTC 12", self.architecture.name(), self.form);
        let key = Key { name: &entry.name, flags: &flags, text: &text, abi: &entry.abi };
        if let Some(code) = self.cache.get(&key) {
            return Ok(code);
        }
        let code = self.compile(entry, &text).map_err(|error| match error {
            CompileError::Missing { .. } => Error::Missing(error.to_string()),
            _ => Error::Compile(error.to_string()),
        })?;
        self.cache.put(&key, &code);
        Ok(code)
    }

    fn compile(&self, entry: &Entry, text: &str) -> Result<Vec<u8>, CompileError> {
        let nvrtc = Nvrtc::load()?;
        if self.form == Form::Ptx {
            return Ok(nvrtc.ptx(&entry.name, text, self.architecture)?.code);
        }
        let compiled = nvrtc.cubin(&entry.name, text, self.architecture)?;
        // Code that spills, or has other faults that the assembler tells, never runs.
        log::check(entry, self.architecture, &compiled.log)?;
        Ok(compiled.code)
    }
}

/// Compiles every kernel of a dtype and chunk for a GPU that need not be there.
pub(super) fn ahead(
    architecture: &str,
    dtype: Dtype,
    precision: Option<Precision>,
    chunk: usize,
    folder: &Path,
) -> Result<Vec<String>> {
    let Some(architecture) = Architecture::parse(architecture) else {
        let names: Vec<String> = Architecture::ALL.iter().map(|a| a.name()).collect();
        let message = format!("expected one of {}, got {architecture}", names.join(", "));
        return Err(Error::Option { option: "architecture", message });
    };
    let loss = vocabfuse_codegen::cross_entropy().map_err(|e| Error::Compile(e.to_string()))?;
    let compiler = Compiler { cache: Cache::at(folder), architecture, form: Form::Cubin };
    let one = |(kind, dtype)| {
        let spec = KernelSpec::with_precision(kind, Target::Sm80, dtype, precision, chunk, &loss.name)
            .map_err(|e| Error::Compile(e.to_string()))?;
        let entry = cuda_entry(&spec, &loss).map_err(|e| Error::Compile(e.to_string()))?;
        compiler.code(&spec, &loss, &entry).map(|_| entry.name)
    };
    // The gradient of an embedding comes in the dtype of the table, or as the f32 that pass S gives.
    let mut rows = vec![(KernelKind::ScatterAdd, dtype), (KernelKind::ScatterAdd, Dtype::F32)];
    rows.dedup();
    kinds(dtype).into_iter().filter(|kind| loss.has(*kind)).map(|kind| (kind, dtype)).chain(rows).map(one).collect()
}
