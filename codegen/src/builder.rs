//! Generates sets of kernels: for `cargo xtask generate`, and for the build script of any crate.

use crate::bundle::{Text, fingerprint};
use crate::compile::occupancy::Architecture;
use crate::emit::{
    Kernel, Part, assemble, cuda_entry, cuda_logits_entry, cuda_operator_entry, emit, emit_cuda_module, emit_logits,
    emit_module, emit_operator, emit_places, emit_prelude, logits_part, operator_part, part,
};
use crate::error::Error;
use crate::logits::LogitsForm;
use crate::loss::{CrossEntropyForm, Loss, cross_entropy};
use crate::manifest::{Entry, Manifest};
use crate::operator::{self, Operator};
use crate::place::Place;
use crate::spec::{CHUNKS, Dtype, KernelKind, KernelSpec, Precision, Target, check_chunk, default_chunks};
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
/// The crate depends on `vocabfuse-kernels` and `half`, which the text names, has
/// `include!(concat!(env!("OUT_DIR"), "/kernels.rs"));` and registers `scalar::KERNELS` with
/// `vocabfuse_kernels::Registry::extend`.
#[derive(Clone, Debug)]
pub struct Builder {
    targets: Vec<Target>,
    dtypes: Vec<Dtype>,
    precisions: Vec<Precision>,
    /// `None` for those of [`default_chunks`].
    chunks: Option<Vec<usize>>,
    kernels: Vec<KernelKind>,
    losses: Vec<Loss>,
    operators: Vec<Operator>,
    architectures: Vec<Architecture>,
}

/// Path of the manifest of CUDA kernels among the files.
pub const MANIFEST: &str = "cuda/manifest.json";

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            targets: Target::cpus().collect(),
            dtypes: Dtype::ALL.to_vec(),
            precisions: vec![],
            chunks: None,
            kernels: KernelKind::ALL.to_vec(),
            losses: vec![],
            operators: vec![],
            architectures: vec![],
        }
    }
}

impl Builder {
    /// All CPU targets, dtypes and kernels, the default chunks, and cross-entropy.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// What the crate `vocabfuse-kernels` holds for CPU targets: [`Builder::new`], every form of cross-entropy and all
    /// operators.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn checked_in() -> Result<Builder, Error> {
        let mut builder = Builder::new().operators(&operator::all()?);
        for form in CrossEntropyForm::all() {
            builder = builder.loss(form.loss()?);
        }
        Ok(builder)
    }

    /// The files of the crate `vocabfuse-kernels` for CPUs: those of [`Builder::checked_in`] and
    /// [`Builder::checked_in_bf16x3`], and `mod.rs`, which lists them.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn checked_in_files() -> Result<BTreeMap<String, String>, Error> {
        let (mut files, mut places) = (BTreeMap::new(), vec![]);
        for builder in [Builder::checked_in()?, Builder::checked_in_bf16x3()?] {
            places.extend(builder.modules(&builder.generate()?).into_iter().map(|(place, _)| place));
            files.extend(builder.files()?);
        }
        files.insert("mod.rs".to_owned(), emit_places(&places)?);
        Ok(files)
    }

    /// What the crate `vocabfuse-kernels` holds for products of f32 in bf16x3: every form of cross-entropy, and the products
    /// of operators.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn checked_in_bf16x3() -> Result<Builder, Error> {
        let builder = Builder::new().dtypes(&[Dtype::F32]).precisions(&[Precision::Bf16x3]);
        let targets: Vec<Target> = Target::cpus().filter(|target| Precision::Bf16x3.is_on(*target)).collect();
        let builder = builder.targets(&targets);
        let mut builder = builder.operators(&operator::all()?);
        for form in CrossEntropyForm::all() {
            builder = builder.loss(form.loss()?);
        }
        Ok(builder)
    }

    /// All CUDA targets and kernels, bf16 and f16, the default chunks, and cross-entropy.
    pub fn cuda() -> Builder {
        Builder::new().targets(&Target::gpus().collect::<Vec<_>>()).dtypes(&[Dtype::Bf16, Dtype::F16])
    }

    /// What the crate `vocabfuse-kernels` holds for CUDA targets: [`Builder::cuda`] and all operators.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn checked_in_cuda() -> Result<Builder, Error> {
        Ok(Builder::cuda().operators(&operator::all()?))
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

    /// Also kernels whose products of f32 have these precisions, for targets that have them; without any, f32 has no
    /// products on CUDA targets and on those that multiply bf16.
    pub fn precisions(mut self, precisions: &[Precision]) -> Builder {
        self.precisions = precisions.to_vec();
        self
    }

    /// These chunk sizes, for all targets and dtypes.
    pub fn chunks(mut self, chunks: &[usize]) -> Builder {
        self.chunks = Some(chunks.to_vec());
        self
    }

    /// GPUs whose code [`Builder::embed_cuda`] compiles, see [`Architecture::list`]; without any, CUDA text is not compiled.
    pub fn architectures(mut self, architectures: &[Architecture]) -> Builder {
        self.architectures = architectures.to_vec();
        self
    }

    /// See [`Builder::architectures`].
    pub(crate) fn listed_architectures(&self) -> &[Architecture] {
        &self.architectures
    }

    /// The same with those of its kernels that are also in the list.
    pub(crate) fn within(mut self, kernels: &[KernelKind]) -> Builder {
        self.kernels.retain(|kernel| kernels.contains(kernel));
        self
    }

    /// Whether there are kernels of operators.
    pub(crate) fn has_operators(&self) -> bool {
        !self.operators.is_empty()
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

    /// Also these operators.
    pub fn operators(mut self, operators: &[Operator]) -> Builder {
        self.operators = operators.to_vec();
        self
    }

    /// The texts, in the order of target, kernel, loss, dtype, chunk. CPU kernels that have the same functions share one.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn generate(&self) -> Result<Vec<Kernel>, Error> {
        let losses = self.verified()?;
        let mut kernels = vec![];
        for &target in &self.targets {
            let wanted = self.wanted(target, &losses);
            if target.is_cuda() {
                for (spec, programs) in wanted {
                    kernels.push(programs.kernel(&spec)?);
                }
            } else {
                kernels.extend(texts(&wanted)?);
            }
        }
        Ok(kernels)
    }

    // The kernels of a target and where their programs come from. Equal ones appear once.
    fn wanted<'a>(&'a self, target: Target, losses: &'a [Loss]) -> Vec<(KernelSpec, Programs<'a>)> {
        let mut wanted: Vec<(KernelSpec, Programs<'a>)> = vec![];
        // Row programs need a loss or operator of their own, and without operators nobody calls their products.
        let of_losses =
            |kind: &&KernelKind| !kind.is_rows() && (!kind.row().of_operators || !self.operators.is_empty());
        for &kind in self.kernels.iter().filter(of_losses) {
            for loss in losses.iter().filter(|loss| loss.has(kind)) {
                for spec in self.specs(kind, target, loss) {
                    if wanted.iter().all(|(known, _)| *known != spec) {
                        wanted.push((spec, Programs::Loss(loss)));
                    }
                }
            }
        }
        self.operator_specs(target, &mut wanted);
        wanted
    }

    fn operator_specs<'a>(&'a self, target: Target, wanted: &mut Vec<(KernelSpec, Programs<'a>)>) {
        let spec = |kind: KernelKind, name: &str| {
            let wanted = self.kernels.contains(&kind) && !self.operators.is_empty();
            wanted.then(|| KernelSpec::new(kind, target, Dtype::F32, *CHUNKS.start(), name).ok()).flatten()
        };
        for form in LogitsForm::ALL {
            wanted.extend(spec(KernelKind::RowLogits, form.name()).map(|spec| (spec, Programs::Logits(*form))));
        }
        for operator in &self.operators {
            // Rows are finished in host memory.
            let on_host = Some(KernelKind::Finish).filter(|_| !target.is_cuda());
            for kind in std::iter::once(KernelKind::RowStatistics).chain(on_host) {
                wanted.extend(spec(kind, &operator.name).map(|spec| (spec, Programs::Operator(operator, 0))));
            }
            for distribution in 0..operator.gradients.len() {
                let spec = spec(KernelKind::RowGradient, &operator.gradient_name(distribution));
                wanted.extend(spec.map(|spec| (spec, Programs::Operator(operator, distribution))));
            }
        }
    }

    // The losses, which are cross-entropy if none was named, after a look at all that was asked for.
    fn verified(&self) -> Result<Vec<Loss>, Error> {
        for chunk in self.chunks.iter().flatten() {
            check_chunk(*chunk)?;
        }
        let losses = if self.losses.is_empty() { vec![cross_entropy()?] } else { self.losses.clone() };
        losses.iter().try_for_each(Loss::verify)?;
        self.operators.iter().try_for_each(Operator::verify)?;
        Ok(losses)
    }

    // The specifications of one kind; combinations that a target does not support are left out.
    fn specs(&self, kind: KernelKind, target: Target, loss: &Loss) -> Vec<KernelSpec> {
        let mut specs = vec![];
        let precisions = || std::iter::once(None).chain(self.precisions.iter().copied().map(Some));
        for (&dtype, precision) in self.dtypes.iter().flat_map(|d| precisions().map(move |p| (d, p))) {
            let chunks = self.chunks.as_deref().unwrap_or_else(|| default_chunks(target, dtype, precision));
            let mut chunks = chunks.to_vec();
            chunks.sort_unstable();
            for chunk in chunks {
                let spec = KernelSpec::with_precision(kind, target, dtype, precision, chunk, &loss.name);
                let specialise = self.chunks.is_some() && !target.is_cuda();
                let spec = spec.and_then(|spec| if specialise { spec.specialised(chunk) } else { Ok(spec) });
                // What a precision changes nothing of is there without it.
                specs.extend(spec.ok().filter(|spec| spec.precision() == precision));
            }
        }
        specs
    }

    /// The CUDA kernels with how they are called, in the order of [`Builder::generate`].
    pub(crate) fn cuda_texts(&self) -> Result<Vec<Text>, Error> {
        let losses = self.verified()?;
        let targets = self.targets.iter().filter(|target| target.is_cuda());
        let wanted = targets.flat_map(|target| self.wanted(*target, &losses));
        wanted.map(|(spec, programs)| programs.text(&spec)).collect()
    }

    /// Manifest entries of the CUDA kernels, in the order of [`Builder::generate`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn entries(&self) -> Result<Vec<Entry>, Error> {
        Ok(self.cuda_texts()?.into_iter().map(|text| text.entry).collect())
    }

    /// All files by path: `<place>/mod.rs`, `<place>/prelude.rs` and one file a kernel for CPU targets, see [`Place`]; for
    /// CUDA targets one file a kernel, `manifest.json` and `mod.rs` under `cuda/`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn files(&self) -> Result<BTreeMap<String, String>, Error> {
        let mut files = BTreeMap::new();
        let kernels = self.generate()?;
        let cuda: Vec<&Kernel> = kernels.iter().filter(|k| k.spec.target.is_cuda()).collect();
        if !cuda.is_empty() {
            files.insert("cuda/mod.rs".to_owned(), emit_cuda_module(&cuda)?);
            files.insert(MANIFEST.to_owned(), Manifest::new(self.entries()?).to_json());
            for kernel in cuda {
                files.insert(format!("cuda/{}.cu", kernel.name), kernel.text.clone());
            }
        }
        for (place, listed) in self.modules(&kernels) {
            files.insert(format!("{place}/mod.rs"), emit_module(place, &listed, false)?);
            files.insert(format!("{place}/prelude.rs"), emit_prelude(place)?);
            for kernel in listed {
                files.insert(format!("{place}/{}.rs", kernel.name), kernel.text.clone());
            }
        }
        Ok(files)
    }

    // The modules of CPU kernels: one a target, and one for each precision that it has; none without kernels.
    fn modules<'a>(&self, kernels: &'a [Kernel]) -> Vec<(Place, Vec<&'a Kernel>)> {
        let targets = self.targets.iter().copied().filter(|target| !target.is_cuda());
        let places = targets.flat_map(|target| {
            let precisions = std::iter::once(None).chain(self.precisions.iter().copied().map(Some));
            precisions.map(move |precision| Place { target, precision })
        });
        let listed =
            places.map(|place| (place, kernels.iter().filter(|k| k.spec.place() == place).collect::<Vec<_>>()));
        listed.filter(|(_, kernels)| !kernels.is_empty()).collect()
    }

    /// All kernels of CPU targets as one source file with a module a [`Place`]: for `include!` from the output folder of a build script.
    ///
    /// # Errors
    /// [`Error::Empty`] without any such kernel, or any error of generation.
    pub fn bundle(&self) -> Result<String, Error> {
        let kernels = self.generate()?;
        let modules = self.modules(&kernels);
        if modules.is_empty() {
            return Err(Error::Empty);
        }
        let mut text = String::new();
        for (place, listed) in modules {
            if let Some(condition) = place.target.cpu().and_then(|cpu| cpu.condition) {
                text += &format!("#[cfg({condition})]\n");
            }
            let module = emit_module(place, &listed, true)?;
            text +=
                &format!("#[allow(non_snake_case, unused_variables, clippy::all)]\npub mod {place} {{\n{module}}}\n");
        }
        Ok(text)
    }

    /// Writes all files under `out`.
    ///
    /// # Errors
    /// [`Error::Io`] with the file that could not be written, or any error of generation.
    pub fn write(&self, out: &Path) -> Result<Vec<String>, Error> {
        let files = self.files()?;
        write_files(&files, out)?;
        Ok(files.into_keys().collect())
    }
}

/// Where the programs of a kernel come from.
#[derive(Clone, Copy, Debug)]
enum Programs<'a> {
    Loss(&'a Loss),
    /// And a distribution, for a gradient.
    Operator(&'a Operator, usize),
    Logits(LogitsForm),
}

impl Programs<'_> {
    fn kernel(self, spec: &KernelSpec) -> Result<Kernel, Error> {
        match self {
            Programs::Loss(loss) => emit(spec, loss),
            Programs::Operator(operator, distribution) => emit_operator(spec, operator, distribution),
            Programs::Logits(form) => emit_logits(spec, form),
        }
    }

    fn text(self, spec: &KernelSpec) -> Result<Text, Error> {
        let entry = match self {
            Programs::Loss(loss) => cuda_entry(spec, loss),
            Programs::Operator(operator, distribution) => cuda_operator_entry(spec, operator, distribution),
            Programs::Logits(form) => cuda_logits_entry(spec, form),
        };
        // A kernel without a name of programs holds none.
        let programs = match self {
            _ if spec.loss.is_none() => None,
            Programs::Loss(loss) => Some(fingerprint(loss)),
            Programs::Operator(operator, _) => Some(fingerprint(operator)),
            Programs::Logits(form) => Some(form.fingerprint()?),
        };
        Ok(Text { entry: entry?, text: self.kernel(spec)?.text, programs })
    }

    fn part(self, spec: &KernelSpec) -> Result<Part, Error> {
        match self {
            Programs::Loss(loss) => part(spec, loss),
            Programs::Operator(operator, distribution) => operator_part(spec, operator, distribution),
            Programs::Logits(form) => logits_part(spec, form),
        }
    }
}

/// CPU kernels in as few texts as they have functions, in the order of the first kernel of each.
fn texts(wanted: &[(KernelSpec, Programs<'_>)]) -> Result<Vec<Kernel>, Error> {
    let mut texts: Vec<Vec<Part>> = vec![];
    for (spec, programs) in wanted {
        let part = programs.part(spec)?;
        match texts.iter_mut().find(|text| text[0].is_like(&part)) {
            Some(text) => text.push(part),
            None => texts.push(vec![part]),
        }
    }
    texts.iter().map(|parts| assemble(parts)).collect()
}

/// Writes texts by path under `out`.
///
/// # Errors
/// [`Error::Io`] with the file that could not be written.
pub fn write_files(files: &BTreeMap<String, String>, out: &Path) -> Result<(), Error> {
    for (name, text) in files {
        let path = out.join(name);
        let failed = |source| Error::Io { path: path.display().to_string(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        std::fs::write(&path, text).map_err(failed)?;
    }
    Ok(())
}
