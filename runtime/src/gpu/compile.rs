//! From a text to code for a device: carried by the program, from the cache, or by the compiler.

use super::cache::{self, Cache};
use super::carried::Carried;
use super::source::{Programs, Source};
use crate::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use vocabfuse_codegen::compile::artifact::{Artifact, Label};
use vocabfuse_codegen::compile::capability::Capability;
use vocabfuse_codegen::compile::occupancy::Architecture;
use vocabfuse_codegen::compile::{CompileError, nvrtc::Nvrtc};
use vocabfuse_codegen::{Builder, KernelSpec, bundle};

/// Finds kernels for one kind of device.
#[derive(Clone, Debug)]
pub(super) struct Compiler {
    pub(super) cache: Cache,
    pub(super) capability: Capability,
    /// What the program carries; of two the first is used.
    pub(super) carried: Vec<Arc<Carried>>,
}

fn failed(error: CompileError) -> Error {
    match error {
        CompileError::Missing { .. } => Error::Missing(error.to_string()),
        _ => Error::Compile(error.to_string()),
    }
}

impl Compiler {
    /// The kernel of a specification, whose programs are these.
    pub(super) fn source(&self, spec: &KernelSpec, programs: Programs<'_>) -> Result<Source> {
        for carried in &self.carried {
            if let Some(source) = carried.source(spec, programs)? {
                return Ok(source);
            }
        }
        programs.generate(spec)
    }

    /// The code of a kernel. What there is is used, whichever compiler made it: the best code for the device first, and of each
    /// that of the program before that of the cache. The compiler is asked for what nobody has.
    pub(super) fn code(&self, source: &Source) -> Result<Vec<u8>> {
        for (form, on) in self.capability.codes() {
            let wanted = Label::of(&source.entry, &source.text, form, on);
            for carried in &self.carried {
                if let Some(code) = carried.code(source, &wanted)? {
                    return Ok(code);
                }
            }
            if let Some(code) = self.cache.get(&wanted) {
                return Ok(code);
            }
        }
        let made = self.compile(source)?;
        self.cache.put(&made);
        Ok(made.code)
    }

    /// The best code for the device that the compiler knows how to make.
    fn compile(&self, source: &Source) -> Result<Artifact> {
        let nvrtc = Nvrtc::load().map_err(failed)?;
        let mut codes = self.capability.codes().into_iter();
        let Some((form, on)) = codes.find(|(_, on)| nvrtc.supports(*on)) else {
            let compiler = nvrtc.version().map_err(failed)?;
            let number = self.capability.number;
            let message =
                format!("{compiler} knows no architecture that a device of {}.{} runs", number / 10, number % 10);
            return Err(Error::Compile(message));
        };
        let (made, faults) = nvrtc.artifact(&source.entry, &source.text, form, on).map_err(failed)?;
        for fault in faults {
            tracing::warn!("kernel {} for {}, slower than it should be: {fault}", source.entry.name, on.name());
        }
        Ok(made)
    }
}

/// Compiles the kernels of a builder for GPUs that need not be there, into a folder. What is there is kept.
pub(super) fn ahead(builder: &Builder, architectures: &[Architecture], folder: &Path) -> Result<Vec<String>> {
    let error = |error: vocabfuse_codegen::Error| match error {
        vocabfuse_codegen::Error::Compile(error) => failed(error),
        other => Error::Compile(other.to_string()),
    };
    let (cache, texts) = (Cache::at(folder), bundle::texts(builder).map_err(error)?);
    for code in bundle::codes(architectures) {
        let is_new = |text: &&bundle::Text| cache.get(&Label::of(&text.entry, &text.text, code.0, code.1)).is_none();
        let new: Vec<bundle::Text> = texts.iter().filter(is_new).cloned().collect();
        let compiled = bundle::compile(&new, &[code]).map_err(error)?;
        compiled.faults.iter().for_each(|fault| tracing::warn!("{fault}"));
        for artifact in &compiled.artifacts {
            cache::write(folder, artifact).map_err(|e| Error::Compile(format!("{}: {e}", folder.display())))?;
        }
    }
    Ok(texts.into_iter().map(|text| text.entry.name).collect())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};
    use vocabfuse_codegen::compile::Form;
    use vocabfuse_codegen::{Bundle, CrossEntropyForm, Dtype, KernelKind, Target};
    use vocabfuse_testing::{Need, skipped};

    /// Whether there is a compiler; says that the test is skipped if not.
    pub(in crate::gpu) fn nvrtc() -> bool {
        Nvrtc::load().inspect_err(|missing| skipped(Need::Nvrtc, &missing.to_string())).is_ok()
    }

    /// The warnings of a log.
    #[derive(Clone, Default)]
    struct Warnings(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            struct Message(String);
            impl Visit for Message {
                fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
                    self.0 += &format!("{value:?}");
                }
            }
            let mut message = Message(String::new());
            event.record(&mut message);
            self.0.lock().unwrap().push(message.0);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    fn source() -> Source {
        let loss = vocabfuse_codegen::cross_entropy().unwrap();
        let spec = KernelSpec::new(KernelKind::Merge, Target::Sm80, Dtype::Bf16, 8192, &loss.name).unwrap();
        Programs::Loss(&loss).generate(&spec).unwrap()
    }

    /// A program with artifacts inside, on an A100.
    fn compiler(folder: &Path, inside: Vec<Vec<u8>>) -> Compiler {
        let artifacts: Vec<&'static [u8]> = inside.into_iter().map(|bytes| &*bytes.leak()).collect();
        let (manifest, texts) = (vocabfuse_kernels::cuda::MANIFEST, vocabfuse_kernels::cuda::TEXTS);
        let bundle = Bundle { manifest, texts, programs: &[], artifacts: artifacts.leak() };
        let carried = vec![Arc::new(Carried::new(&bundle).unwrap()), Carried::built_in().unwrap()];
        Compiler { cache: Cache::at(folder), capability: Capability::of(8, 0), carried }
    }

    fn artifact(source: &Source, form: Form, architecture: &str, code: &str) -> Artifact {
        let on = Architecture::parse(architecture).unwrap();
        let label = Label { compiler: "NVRTC 1.2.3".to_owned(), ..Label::of(&source.entry, &source.text, form, on) };
        Artifact { label, code: code.as_bytes().to_vec() }
    }

    #[test]
    fn kernels_inside_the_program_come_first() {
        let (folder, source) = (tempfile::tempdir().unwrap(), source());
        let inside = artifact(&source, Form::Cubin, "sm_80", "inside");
        Cache::at(folder.path()).put(&artifact(&source, Form::Cubin, "sm_80", "cached"));
        assert_eq!(compiler(folder.path(), vec![inside.encode()]).code(&source), Ok(inside.code));
    }

    #[test]
    fn what_another_compiler_made_is_used() {
        let (folder, source) = (tempfile::tempdir().unwrap(), source());
        let cached = artifact(&source, Form::Cubin, "sm_80", "cached");
        Cache::at(folder.path()).put(&cached);
        // Whether there is a compiler here or not: none has the version 1.2.3.
        assert_eq!(compiler(folder.path(), vec![]).code(&source), Ok(cached.code));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was compiled");
    }

    #[test]
    fn the_best_code_for_the_device_is_taken() {
        let (folder, source) = (tempfile::tempdir().unwrap(), source());
        let all = [(Form::Ptx, "sm_80"), (Form::Cubin, "sm_80"), (Form::Cubin, "sm_90"), (Form::Ptx, "sm_90")];
        let inside = all.map(|(form, on)| artifact(&source, form, on, &format!("{form:?} {on}")).encode());
        let on = |major, minor| {
            let compiler = compiler(folder.path(), inside.to_vec());
            let code = Compiler { capability: Capability::of(major, minor), ..compiler }.code(&source).unwrap();
            String::from_utf8(code).unwrap()
        };
        assert_eq!([on(8, 0), on(8, 6), on(9, 0)], ["Cubin sm_80", "Cubin sm_80", "Cubin sm_90"]);
        // An integrated GPU does not run machine code of others, and nothing here is of the major versions 12 and 15.
        assert_eq!([on(8, 7), on(12, 0), on(15, 0)], ["Ptx sm_80", "Ptx sm_90", "Ptx sm_90"]);
    }

    #[test]
    fn another_interface_is_refused() {
        let (folder, source) = (tempfile::tempdir().unwrap(), source());
        let mut inside = artifact(&source, Form::Cubin, "sm_80", "inside");
        inside.label.abi = "0123456789abcdef".to_owned();
        let error = compiler(folder.path(), vec![inside.encode()]).code(&source).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Compile(_)), "{text}");
        assert!(text.contains("0123456789abcdef") && text.contains(&source.entry.abi), "{text}");
    }

    /// One that spills is slower than it should be, and right: `codegen/tests/cuda/gates.rs` lists those that do.
    #[test]
    fn a_spill_is_a_warning_where_a_kernel_is_compiled_at_first_use() {
        if !nvrtc() {
            return;
        }
        let form = CrossEntropyForm { softcap: true, argmax: true, ..CrossEntropyForm::default() };
        let loss = form.loss().unwrap();
        let spec = KernelSpec::new(KernelKind::LogitsSoftmax, Target::Sm80, Dtype::Bf16, 512, &loss.name).unwrap();
        let source = Programs::Loss(&loss).generate(&spec).unwrap();
        let (folder, warnings) = (tempfile::tempdir().unwrap(), Warnings::default());
        let code =
            tracing::subscriber::with_default(warnings.clone(), || compiler(folder.path(), vec![]).code(&source));
        assert!(code.unwrap().starts_with(b"\x7fELF"));
        let warnings = warnings.0.lock().unwrap();
        assert!(
            matches!(warnings.as_slice(), [one] if one.contains(&spec.name()) && one.contains("spill")),
            "{warnings:?}"
        );
    }

    #[test]
    fn what_is_damaged_or_of_another_text_is_compiled_anew() {
        if !nvrtc() {
            return;
        }
        let (folder, source) = (tempfile::tempdir().unwrap(), source());
        let mut damaged = artifact(&source, Form::Cubin, "sm_80", "inside").encode();
        *damaged.last_mut().unwrap() ^= 1;
        let mut stale = artifact(&source, Form::Cubin, "sm_80", "inside");
        stale.label.text = "0".to_owned();
        let of_newer = artifact(&source, Form::Cubin, "sm_90", "inside").encode();
        let inside = vec![damaged, stale.encode(), of_newer, b"no artifact".to_vec()];
        let code = compiler(folder.path(), inside).code(&source).unwrap();
        assert!(code.starts_with(b"\x7fELF"));
        // Which is kept, and says which compiler it is of.
        let paths: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
        let [path] = paths.as_slice() else { panic!("{paths:?}") };
        let mut kept = Artifact::decode(&std::fs::read(path).unwrap()).unwrap();
        assert!(kept.label.compiler.starts_with("NVRTC 12.9."), "{}", kept.label.compiler);
        // An entry of another interface is none.
        (kept.label.abi, kept.code) = ("0".to_owned(), b"other".to_vec());
        std::fs::write(path, kept.encode()).unwrap();
        assert_eq!(compiler(folder.path(), vec![]).code(&source), Ok(code));
    }
}
