//! Kernels that the program carries: those of the crate `vocabfuse-kernels`, and bundles of a build script.

use super::source::{Programs, Source};
use crate::{Error, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use vocabfuse_codegen::compile::artifact::{Artifact, Label};
use vocabfuse_codegen::manifest::{Entry, Manifest};
use vocabfuse_codegen::{Bundle, KernelSpec};

/// A bundle, read once.
#[derive(Debug)]
pub(super) struct Carried {
    texts: BTreeMap<&'static str, Text>,
    /// Code by the name of its kernel.
    artifacts: BTreeMap<String, Vec<(Label, &'static [u8])>>,
    /// Of a bundle, whose losses may be somebody's own.
    programs: Option<BTreeMap<&'static str, &'static str>>,
}

#[derive(Debug)]
struct Text {
    entry: Entry,
    text: &'static str,
}

impl Carried {
    /// The kernels of the crate `vocabfuse-kernels`.
    pub(super) fn built_in() -> Result<Arc<Carried>> {
        static CARRIED: OnceLock<Result<Arc<Carried>>> = OnceLock::new();
        let read = || {
            let (manifest, texts) = (vocabfuse_kernels::cuda::MANIFEST, vocabfuse_kernels::cuda::TEXTS);
            let bundle = Bundle { manifest, texts, programs: &[], artifacts: vocabfuse_kernels::CUBINS };
            Ok(Arc::new(Carried { programs: None, ..Carried::new(&bundle)? }))
        };
        CARRIED.get_or_init(read).clone()
    }

    /// Those of a bundle.
    pub(super) fn new(bundle: &Bundle) -> Result<Carried> {
        let manifest = Manifest::parse(bundle.manifest)
            .map_err(|e| Error::Compile(format!("the manifest of a bundle of kernels cannot be read: {e}")))?;
        let texts: BTreeMap<&str, &str> = bundle.texts.iter().copied().collect();
        let of = |entry: Entry| {
            let (name, text) = texts.get_key_value(entry.name.as_str())?;
            Some((*name, Text { entry, text }))
        };
        let mut artifacts = BTreeMap::<_, Vec<_>>::new();
        for bytes in bundle.artifacts {
            match Artifact::label(bytes) {
                Ok(label) => artifacts.entry(label.kernel.clone()).or_default().push((label, *bytes)),
                Err(_) => tracing::warn!("a compiled kernel inside the program is damaged; it is not used"),
            }
        }
        Ok(Carried {
            texts: manifest.kernels.into_iter().filter_map(of).collect(),
            artifacts,
            programs: Some(bundle.programs.iter().copied().collect()),
        })
    }

    /// The kernel of a specification, if it is here with these programs.
    pub(super) fn source(&self, spec: &KernelSpec, programs: Programs<'_>) -> Result<Option<Source>> {
        let name = spec.name();
        let Some(Text { entry, text }) = self.texts.get(name.as_str()) else { return Ok(None) };
        let same = match &self.programs {
            _ if spec.loss.is_none() => true,
            None => programs.are_checked_in(),
            Some(known) => known.get(name.as_str()) == Some(&programs.fingerprint()?.as_str()),
        };
        Ok(same.then(|| Source { entry: entry.clone(), text: Cow::Borrowed(text) }))
    }

    /// The code of a kernel.
    ///
    /// # Errors
    /// [`Error::Compile`] for code of the same text with another interface, which compiling anew would not mend.
    pub(super) fn code(&self, source: &Source, wanted: &Label) -> Result<Option<Vec<u8>>> {
        for (label, bytes) in self.artifacts.get(&wanted.kernel).into_iter().flatten() {
            if (&label.options, &label.text) != (&wanted.options, &wanted.text) {
                continue;
            }
            match Artifact::decode(bytes) {
                Ok(artifact) => {
                    artifact.check(&source.entry).map_err(|e| Error::Compile(e.to_string()))?;
                    return Ok(Some(artifact.code));
                }
                Err(_) => tracing::warn!("compiled kernel {} inside the program is damaged", wanted.kernel),
            }
        }
        Ok(None)
    }
}
