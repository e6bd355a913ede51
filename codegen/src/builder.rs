//! Generates sets of kernels: for `cargo xtask generate`, and for the build script of any crate.

use crate::emit::{Kernel, emit, emit_module, emit_prelude};
use crate::error::Error;
use crate::loss::{Loss, cross_entropy};
use crate::spec::{Dtype, KernelKind, KernelSpec, Target, check_chunk};
use std::collections::BTreeMap;
use std::path::Path;

/// What to generate. The defaults are those of the crate `vocabfuse-kernels`.
///
/// ```no_run
/// // build.rs
/// use vocabfuse_codegen::{Builder, Dtype, Target};
/// let out = std::path::Path::new(&std::env::var("OUT_DIR").unwrap()).join("kernels.rs");
/// let builder = Builder::new().targets(&[Target::Scalar]).dtypes(&[Dtype::F32]).chunks(&[1024]);
/// std::fs::write(out, builder.bundle().unwrap()).unwrap();
/// ```
/// The crate then has `include!(concat!(env!("OUT_DIR"), "/kernels.rs"));` and registers `scalar::KERNELS` with
/// `vocabfuse_kernels::Registry::extend`.
#[derive(Clone, Debug)]
pub struct Builder {
    targets: Vec<Target>,
    dtypes: Vec<Dtype>,
    chunks: Vec<usize>,
    kernels: Vec<KernelKind>,
    losses: Vec<Loss>,
}

/// Chunk sizes of the checked-in kernels.
pub const DEFAULT_CHUNKS: &[usize] = &[512, 2048, 8192];

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            targets: Target::CPU.to_vec(),
            dtypes: Dtype::ALL.to_vec(),
            chunks: DEFAULT_CHUNKS.to_vec(),
            kernels: KernelKind::ALL.to_vec(),
            losses: vec![],
        }
    }
}

impl Builder {
    /// All targets, dtypes and kernels, the default chunks, and cross-entropy.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Only these targets.
    pub fn targets(mut self, targets: &[Target]) -> Builder {
        self.targets = targets.to_vec();
        self
    }

    /// Only these dtypes; pairs that a target does not support are left out.
    pub fn dtypes(mut self, dtypes: &[Dtype]) -> Builder {
        self.dtypes = dtypes.to_vec();
        self
    }

    /// These chunk sizes.
    pub fn chunks(mut self, chunks: &[usize]) -> Builder {
        self.chunks = chunks.to_vec();
        self
    }

    /// Only these kernels.
    pub fn kernels(mut self, kernels: &[KernelKind]) -> Builder {
        self.kernels = kernels.to_vec();
        self
    }

    /// Another loss; without any, cross-entropy.
    pub fn loss(mut self, loss: Loss) -> Builder {
        self.losses.push(loss);
        self
    }

    /// The kernels, in the order of target, kernel, loss, dtype, chunk. Equal ones appear once.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn generate(&self) -> Result<Vec<Kernel>, Error> {
        let losses = if self.losses.is_empty() { vec![cross_entropy()?] } else { self.losses.clone() };
        let mut kernels: Vec<Kernel> = vec![];
        for chunk in &self.chunks {
            check_chunk(*chunk)?;
        }
        for &target in &self.targets {
            for &kind in &self.kernels {
                for loss in &losses {
                    loss.verify()?;
                    for (&dtype, &chunk) in self.dtypes.iter().flat_map(|d| self.chunks.iter().map(move |c| (d, c))) {
                        let Ok(spec) = KernelSpec::new(kind, target, dtype, chunk, &loss.name) else { continue };
                        if kernels.iter().all(|k| k.spec != spec) {
                            kernels.push(emit(&spec, loss)?);
                        }
                    }
                }
            }
        }
        Ok(kernels)
    }

    /// All files by path: `<target>/mod.rs`, `<target>/prelude.rs` and one file a kernel.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn files(&self) -> Result<BTreeMap<String, String>, Error> {
        let mut files = BTreeMap::new();
        let kernels = self.generate()?;
        for &target in &self.targets {
            let of_target = || kernels.iter().filter(|k| k.spec.target == target);
            let listed: Vec<&Kernel> = of_target().collect();
            files.insert(format!("{target}/mod.rs"), emit_module(target, &listed, false)?);
            files.insert(format!("{target}/prelude.rs"), emit_prelude(target)?);
            for kernel in of_target() {
                files.insert(format!("{target}/{}.rs", kernel.name), kernel.text.clone());
            }
        }
        Ok(files)
    }

    /// All kernels as one source file with a module a target: for `include!` from the output folder of a build script.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn bundle(&self) -> Result<String, Error> {
        let kernels = self.generate()?;
        let mut text = String::new();
        for &target in &self.targets {
            let listed: Vec<&Kernel> = kernels.iter().filter(|k| k.spec.target == target).collect();
            if target != Target::Scalar {
                text += "#[cfg(target_arch = \"x86_64\")]\n";
            }
            let module = emit_module(target, &listed, true)?;
            text +=
                &format!("#[allow(non_snake_case, unused_variables, clippy::all)]\npub mod {target} {{\n{module}}}\n");
        }
        Ok(text)
    }

    /// Writes all files under `out`.
    ///
    /// # Errors
    /// [`Error::Io`] with the file that could not be written, or any error of generation.
    pub fn write(&self, out: &Path) -> Result<Vec<String>, Error> {
        let files = self.files()?;
        for (name, text) in &files {
            let path = out.join(name);
            let failed = |source| Error::Io { path: path.display().to_string(), source };
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).map_err(failed)?;
            }
            std::fs::write(&path, text).map_err(failed)?;
        }
        Ok(files.into_keys().collect())
    }
}
