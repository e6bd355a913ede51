//! From a text to code for a device: embedded, from the cache, or by the compiler.

use super::cache::Cache;
use super::kernels::kinds;
use super::operator;
use super::source::Source;
use crate::{Dtype, Error, Precision, Result};
use std::borrow::Cow;
use std::path::Path;
use vocabfuse_codegen::compile::artifact::{Artifact, Label};
use vocabfuse_codegen::compile::occupancy::Architecture;
use vocabfuse_codegen::compile::{CompileError, Form, nvrtc::Nvrtc, options};
use vocabfuse_codegen::manifest::hash;
use vocabfuse_codegen::{Builder, KernelKind, KernelSpec, Target};

/// Compiles for one kind of device.
#[derive(Clone, Debug)]
pub(super) struct Compiler {
    pub(super) cache: Cache,
    pub(super) architecture: Architecture,
    pub(super) form: Form,
    /// Artifacts inside the program.
    pub(super) embedded: &'static [&'static [u8]],
}

fn failed(error: CompileError) -> Error {
    match error {
        CompileError::Missing { .. } => Error::Missing(error.to_string()),
        _ => Error::Compile(error.to_string()),
    }
}

impl Compiler {
    /// The code of a kernel.
    pub(super) fn code(&self, source: &Source) -> Result<Vec<u8>> {
        let Source { entry, text } = source;
        let mut label = Label {
            kernel: entry.name.clone(),
            abi: entry.abi.clone(),
            text: hash(text.as_bytes()),
            options: options(self.form, self.architecture),
            compiler: String::new(),
        };
        if let Some(code) = self.embedded(source, &label)? {
            return Ok(code);
        }
        let nvrtc = Nvrtc::load();
        if let Ok(nvrtc) = &nvrtc {
            label.compiler = nvrtc.version().map_err(failed)?.to_owned();
        }
        if let Some(code) = self.cache.get(&label) {
            return Ok(code);
        }
        let made = nvrtc.and_then(|n| n.artifact(entry, text, self.form, self.architecture)).map_err(failed)?;
        self.cache.put(&made);
        Ok(made.code)
    }

    /// The code of a kernel inside the program. One of another interface is no accident that compiling anew would mend.
    fn embedded(&self, source: &Source, wanted: &Label) -> Result<Option<Vec<u8>>> {
        for bytes in self.embedded {
            let Ok(found) = Artifact::decode(bytes) else {
                tracing::warn!("a compiled kernel inside the program is damaged; it is not used");
                continue;
            };
            let Label { kernel, options, text, .. } = &found.label;
            if *kernel == wanted.kernel && *options == wanted.options {
                found.check(&source.entry).map_err(|e| Error::Compile(e.to_string()))?;
                if *text == wanted.text {
                    return Ok(Some(found.code));
                }
            }
        }
        Ok(None)
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
    let compiler = Compiler { cache: Cache::at(folder), architecture, form: Form::Cubin, embedded: &[] };
    let one = |(kind, dtype)| {
        let spec = KernelSpec::with_precision(kind, Target::Sm80, dtype, precision, chunk, &loss.name)
            .map_err(|e| Error::Compile(e.to_string()))?;
        let source = Source::new(&spec, &loss)?;
        compiler.code(&source).map(|_| source.entry.name)
    };
    // The gradient of an embedding comes in the dtype of the table, or as the f32 that pass S gives.
    let mut rows = vec![(KernelKind::ScatterAdd, dtype), (KernelKind::ScatterAdd, Dtype::F32)];
    rows.dedup();
    // Steps on the device also select their tokens and add up their losses there.
    let kinds = kinds(dtype).into_iter().chain([KernelKind::SelectTokens, KernelKind::ReduceLoss]);
    let mut names: Vec<String> =
        kinds.filter(|kind| loss.has(*kind)).map(|kind| (kind, dtype)).chain(rows).map(one).collect::<Result<_>>()?;
    for source in of_operators(dtype, precision).map_err(|e| Error::Compile(e.to_string()))? {
        if !names.contains(&source.entry.name) {
            compiler.code(&source)?;
            names.push(source.entry.name);
        }
    }
    Ok(names)
}

/// The kernels that operators call and losses do not, whose chunk is always the same.
fn of_operators(
    dtype: Dtype,
    precision: Option<Precision>,
) -> std::result::Result<Vec<Source>, vocabfuse_codegen::Error> {
    use KernelKind::{Accumulate, Logits, RoundRows, RowGradient, RowLogits, RowStatistics, WeightGrad};
    let builder = Builder::checked_in_cuda()?
        .dtypes(&[dtype])
        .precisions(precision.as_slice())
        .chunks(&[operator::CHUNK])
        .kernels(&[Logits, RoundRows, Accumulate, WeightGrad, RowLogits, RowStatistics, RowGradient]);
    let kernels = builder.generate()?.into_iter().zip(builder.entries()?);
    Ok(kernels.map(|(kernel, entry)| Source { entry, text: Cow::Owned(kernel.text) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Source {
        let loss = vocabfuse_codegen::cross_entropy().unwrap();
        let spec = KernelSpec::new(KernelKind::Merge, Target::Sm80, Dtype::Bf16, 8192, &loss.name).unwrap();
        Source::new(&spec, &loss).unwrap()
    }

    fn compiler(folder: &Path, embedded: Vec<Vec<u8>>) -> Compiler {
        let embedded: Vec<&'static [u8]> = embedded.into_iter().map(|bytes| &*bytes.leak()).collect();
        let architecture = Architecture::parse("sm_80").unwrap();
        Compiler { cache: Cache::at(folder), architecture, form: Form::Cubin, embedded: embedded.leak() }
    }

    fn artifact(source: &Source, form: Form) -> Artifact {
        let label = Label {
            kernel: source.entry.name.clone(),
            abi: source.entry.abi.clone(),
            text: hash(source.text.as_bytes()),
            options: options(form, Architecture::parse("sm_80").unwrap()),
            compiler: "NVRTC 1.2.3".to_owned(),
        };
        Artifact { label, code: b"embedded".to_vec() }
    }

    #[test]
    fn kernels_inside_the_program_come_first() {
        let (folder, source) = (tempfile::tempdir().unwrap(), source());
        let inside = artifact(&source, Form::Cubin);
        assert_eq!(compiler(folder.path(), vec![inside.encode()]).code(&source), Ok(inside.code));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was compiled");
    }

    #[test]
    fn another_interface_is_refused() {
        let (folder, source) = (tempfile::tempdir().unwrap(), source());
        let mut inside = artifact(&source, Form::Cubin);
        inside.label.abi = "0123456789abcdef".to_owned();
        let error = compiler(folder.path(), vec![inside.encode()]).code(&source).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Compile(_)), "{text}");
        assert!(text.contains("0123456789abcdef") && text.contains(&source.entry.abi), "{text}");
    }

    #[test]
    fn what_is_damaged_or_of_another_text_is_compiled_anew() {
        let (folder, source) = (tempfile::tempdir().unwrap(), source());
        let mut damaged = artifact(&source, Form::Cubin).encode();
        *damaged.last_mut().unwrap() ^= 1;
        let mut stale = artifact(&source, Form::Cubin);
        stale.label.text = "0".to_owned();
        let other_form = artifact(&source, Form::Ptx).encode();
        let code = compiler(folder.path(), vec![damaged, stale.encode(), other_form]).code(&source).unwrap();
        assert!(code.starts_with(b"\x7fELF"));
        // Which is kept, with the compiler's exact version.
        let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(matches!(names.as_slice(), [name] if name.to_string_lossy().contains("NVRTC_12.9.")), "{names:?}");
        // An entry of another interface is none.
        let path = folder.path().join(&names[0]);
        let mut kept = Artifact::decode(&std::fs::read(&path).unwrap()).unwrap();
        (kept.label.abi, kept.code) = ("0".to_owned(), b"other".to_vec());
        std::fs::write(&path, kept.encode()).unwrap();
        assert_eq!(compiler(folder.path(), vec![]).code(&source), Ok(code));
    }
}
