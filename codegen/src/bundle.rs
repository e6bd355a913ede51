//! CUDA kernels that a program carries with it: texts, how they are called, and their compiled code.
//!
//! A build script makes a [`Bundle`] with [`Builder::embed_cuda`], its crate includes it, and a device takes it. Nothing is then
//! compiled on the machine with the GPU.
//!
//! ```no_run
//! // build.rs, with the feature `nvrtc` of this crate
//! use vocabfuse_codegen::{Architecture, Builder, CrossEntropyForm, Dtype, operator};
//! # fn main() -> Result<(), vocabfuse_codegen::Error> {
//! Builder::cuda() // with `loss(..)` for one's own
//!     .forms(&CrossEntropyForm::all())?
//!     .operators(&operator::all()?)
//!     .dtypes(&[Dtype::Bf16])
//!     .chunks(&[8192])
//!     .architectures(&Architecture::list("sm_80,sm_90")?)
//!     .embed_cuda()?;
//! # Ok(())
//! # }
//! ```
//! The crate has `include!(concat!(env!("OUT_DIR"), "/cuda_kernels.rs"));`, which defines `CUDA_KERNELS`, and calls
//! `Gpu::with_kernels(CUDA_KERNELS)`. The text names `vocabfuse_runtime::Bundle`, which is [`Bundle`].

use crate::compile::Form;
use crate::compile::artifact::Artifact;
use crate::compile::occupancy::Architecture;
use crate::cuda::OPERATOR_CHUNK;
use crate::manifest::{Entry, Manifest, hash};
use crate::{Builder, CrossEntropyForm, Dtype, Error, KernelKind, Target};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// CUDA kernels inside a program.
#[derive(Clone, Copy, Debug)]
pub struct Bundle {
    /// How each kernel is called: a [`Manifest`] as JSON.
    pub manifest: &'static str,
    /// Name and text of each kernel.
    pub texts: &'static [(&'static str, &'static str)],
    /// Name and [`fingerprint`] of the programs of each kernel that holds some.
    pub programs: &'static [(&'static str, &'static str)],
    /// Code of kernels: encoded [`Artifact`]s.
    pub artifacts: &'static [&'static [u8]],
}

/// Hash of the programs of a loss or operator, which tells two of one name apart.
pub fn fingerprint(programs: &impl Serialize) -> String {
    hash(serde_json::to_string(programs).unwrap_or_default().as_bytes())
}

/// A CUDA kernel before it is compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// How it is called.
    pub entry: Entry,
    /// CUDA.
    pub text: String,
    /// [`fingerprint`] of the programs in it, if any.
    pub programs: Option<String>,
}

/// The CUDA kernels of a builder with all that their callers call besides: an embedding takes gradients in f32 whatever the dtype
/// is, and operators have a chunk of their own. Each once, in the order of [`Builder::generate`].
///
/// # Errors
/// [`Error::NoCuda`] if there are none, or any error of generation.
pub fn texts(builder: &Builder) -> Result<Vec<Text>, Error> {
    let asked = builder.clone().targets(&Target::gpus().collect::<Vec<_>>());
    let mut parts = vec![asked.clone(), asked.clone().dtypes(&[Dtype::F32]).within(&[KernelKind::ScatterAdd])];
    if asked.has_operators() {
        parts.push(asked.chunks(&[OPERATOR_CHUNK]).within(&[KernelKind::Accumulate, KernelKind::WeightGrad]));
    }
    let mut texts: Vec<Text> = vec![];
    for part in parts {
        for text in part.cuda_texts()? {
            if texts.iter().all(|known| known.entry.name != text.entry.name) {
                texts.push(text);
            }
        }
    }
    if texts.is_empty() { Err(Error::NoCuda) } else { Ok(texts) }
}

/// What is compiled so that GPUs of some architectures, and all newer ones, have code: a cubin for each of them, and PTX of the
/// oldest, of which the driver of any newer GPU makes code for it.
pub fn codes(architectures: &[Architecture]) -> Vec<(Form, Architecture)> {
    let oldest = architectures.iter().filter(|a| !a.specific).min_by_key(|a| a.number);
    let cubins = architectures.iter().map(|a| (Form::Cubin, *a));
    cubins.chain(oldest.map(|a| (Form::Ptx, *a))).collect()
}

/// What became of some texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// Code of the kernels.
    pub artifacts: Vec<Artifact>,
    /// What is wrong with it short of being refused, such as a spill: a line each, with the kernel and the architecture.
    pub faults: Vec<String>,
}

/// Compiles texts, on as many threads as there are processors.
///
/// # Errors
/// [`Error::Compile`] without NVRTC, for a text that does not compile, a kernel that could not be launched, or an architecture
/// that the installed NVRTC does not know.
#[cfg(feature = "nvrtc")]
pub fn compile(texts: &[Text], codes: &[(Form, Architecture)]) -> Result<Compiled, Error> {
    use crate::compile::{CompileError, measure::in_parallel, nvrtc::Nvrtc};
    let nvrtc = Nvrtc::load()?;
    if let Some((_, unknown)) = codes.iter().find(|(_, on)| !nvrtc.supports(*on)) {
        let (architecture, compiler) = (unknown.name(), nvrtc.version()?.to_owned());
        return Err(CompileError::Architecture { architecture, compiler }.into());
    }
    let jobs: Vec<_> = texts.iter().flat_map(|text| codes.iter().map(move |code| (text, *code))).collect();
    let made = in_parallel(jobs.len(), |job| {
        let (Text { entry, text, .. }, (form, on)) = jobs[job];
        nvrtc.artifact(entry, text, form, on)
    });
    let mut compiled = Compiled::default();
    for ((text, (_, on)), made) in jobs.into_iter().zip(made) {
        let (artifact, faults) = made?;
        let named = |fault| format!("kernel {} for {}: {fault}", text.entry.name, on.name());
        compiled.artifacts.push(artifact);
        compiled.faults.extend(faults.into_iter().map(named));
    }
    Ok(compiled)
}

/// A bundle on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The file to include. What it embeds lies in a folder beside it.
    pub file: PathBuf,
    /// Number of kernels.
    pub kernels: usize,
    /// Number of compiled ones, counted for each architecture.
    pub artifacts: usize,
    /// What the user should know, a line each: that there is no compiler, or a kernel that spills.
    pub notes: Vec<String>,
}

impl Builder {
    /// Also these forms of cross-entropy.
    ///
    /// # Errors
    /// As [`CrossEntropyForm::loss`].
    pub fn forms(mut self, forms: &[CrossEntropyForm]) -> Result<Builder, Error> {
        for form in forms {
            self = self.loss(form.loss()?);
        }
        Ok(self)
    }

    /// In a build script: writes the [`Bundle`] of the CUDA kernels to `OUT_DIR/cuda_kernels.rs`, compiled for the
    /// [`Builder::architectures`]. The set is what [`texts`] says; [`Builder::cuda`] with nothing else is plain cross-entropy in bf16
    /// and f16, with the [default chunks](crate::spec::default_chunks). Where NVRTC is not found the bundle has texts alone, which are compiled when they are first
    /// called, and Cargo shows a warning that says so. It also shows kernels that spill.
    ///
    /// The script runs again when `VOCABFUSE_NVRTC` changes. For other files the caller says so.
    ///
    /// # Errors
    /// [`Error::NoBuildScript`] elsewhere, or as [`Builder::write_cuda`].
    pub fn embed_cuda(&self) -> Result<Written, Error> {
        let out = std::env::var_os("OUT_DIR").ok_or(Error::NoBuildScript("OUT_DIR"))?;
        println!("cargo::rerun-if-env-changed={}", crate::compile::VARIABLE);
        let written = self.write_cuda(Path::new(&out))?;
        for note in &written.notes {
            println!("cargo::warning={note}");
        }
        Ok(written)
    }

    /// As [`Builder::embed_cuda`], in any folder, and silent.
    ///
    /// # Errors
    /// [`Error::Io`] with the file that could not be written, [`Error::NoCuda`], and [`Error::Compile`] for all but a missing NVRTC:
    /// a text that does not compile, or an architecture that the installed NVRTC does not know.
    pub fn write_cuda(&self, folder: &Path) -> Result<Written, Error> {
        let texts = texts(self)?;
        let (compiled, notes) = if_compiler(&texts, self.listed_architectures())?;
        let mut files = Files::new(folder, "cuda_kernels")?;
        let manifest = Manifest::new(texts.iter().map(|text| text.entry.clone()).collect());
        let manifest = files.embed("include_str", "manifest.json", manifest.to_json().as_bytes())?;
        let (mut listed, mut programs) = (String::new(), String::new());
        for Text { entry, text, programs: hash } in &texts {
            let name = &entry.name;
            let text = files.embed("include_str", &format!("{name}.cu"), text.as_bytes())?;
            listed += &format!("        ({name:?}, {text}),\n");
            programs.extend(hash.iter().map(|hash| format!("        ({name:?}, {hash:?}),\n")));
        }
        let artifacts = files.artifacts(&compiled.artifacts)?;
        let text = format!(
            "/// CUDA kernels, for `Gpu::with_kernels`.\n\
             pub const CUDA_KERNELS: vocabfuse_runtime::Bundle = vocabfuse_runtime::Bundle {{\n    \
             manifest: {manifest},\n    \
             texts: &[\n{listed}    ],\n    \
             programs: &[\n{programs}    ],\n    \
             artifacts: &[\n{artifacts}    ],\n}};\n"
        );
        let file = files.write("cuda_kernels.rs", text.as_bytes())?;
        Ok(Written { file, kernels: texts.len(), artifacts: compiled.artifacts.len(), notes })
    }
}

/// Writes `file` in a folder: the definition of `CUBINS`, a list of encoded artifacts.
///
/// # Errors
/// [`Error::Io`] with the file that could not be written.
pub fn write_artifacts(folder: &Path, artifacts: &[Artifact]) -> Result<PathBuf, Error> {
    let mut files = Files::new(folder, "cubins")?;
    let list = files.artifacts(artifacts)?;
    let text = format!("/// Compiled kernels with their labels.\npub const CUBINS: &[&[u8]] = &[\n{list}];\n");
    files.write("cubins.rs", text.as_bytes())
}

/// Compiles texts if there is a compiler; what the user should know.
fn if_compiler(texts: &[Text], architectures: &[Architecture]) -> Result<(Compiled, Vec<String>), Error> {
    let nothing = |note: Option<String>| Ok((Compiled::default(), note.into_iter().collect()));
    if architectures.is_empty() {
        return nothing(None);
    }
    let so = "CUDA kernels are embedded as text, and compiled by NVRTC when they are first called";
    #[cfg(feature = "nvrtc")]
    match compile(texts, &codes(architectures)) {
        Ok(compiled) => {
            let notes = compiled.faults.clone();
            Ok((compiled, notes))
        }
        Err(Error::Compile(missing @ crate::compile::CompileError::Missing { .. })) => {
            nothing(Some(format!("{so}: {missing}")))
        }
        Err(error) => Err(error),
    }
    #[cfg(not(feature = "nvrtc"))]
    {
        let _ = texts;
        nothing(Some(format!("{so}: the feature nvrtc of vocabfuse-codegen is off")))
    }
}

/// Files beside one that embeds them.
struct Files {
    folder: PathBuf,
    within: &'static str,
}

impl Files {
    /// With an empty folder `within`.
    fn new(folder: &Path, within: &'static str) -> Result<Files, Error> {
        let path = folder.join(within);
        let failed = |source| Error::Io { path: path.display().to_string(), source };
        if path.exists() {
            std::fs::remove_dir_all(&path).map_err(failed)?;
        }
        std::fs::create_dir_all(&path).map_err(failed)?;
        Ok(Files { folder: folder.to_owned(), within })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, Error> {
        let path = self.folder.join(name);
        std::fs::write(&path, bytes).map_err(|source| Error::Io { path: path.display().to_string(), source })?;
        Ok(path)
    }

    /// Writes a file; the expression that embeds it.
    fn embed(&mut self, how: &str, name: &str, bytes: &[u8]) -> Result<String, Error> {
        let name = format!("{}/{name}", self.within);
        self.write(&name, bytes)?;
        Ok(format!("{how}!({name:?})"))
    }

    /// Writes artifacts; the lines of a list of them.
    fn artifacts(&mut self, artifacts: &[Artifact]) -> Result<String, Error> {
        // Of two that are the same for whoever looks for them one is enough.
        let named: BTreeMap<String, &Artifact> = artifacts.iter().map(|a| (a.label.file_name(), a)).collect();
        let line = |(name, artifact): (String, &Artifact)| {
            Ok(format!("        {},\n", self.embed("include_bytes", &name, &artifact.encode())?))
        };
        named.into_iter().map(line).collect()
    }
}
