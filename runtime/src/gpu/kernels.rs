//! Kernels of a GPU: emitted, compiled or taken from the cache, loaded when they are first called.

use super::cache::Cache;
use super::call::Call;
use super::carried::Carried;
use super::compile::Compiler;
use super::driver::{Driver, Handle};
use super::source::Programs;
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use vocabfuse_codegen::loss::Merge;
use vocabfuse_codegen::manifest::Entry;
use vocabfuse_codegen::spec::default_chunks;
use vocabfuse_codegen::{Dtype, KernelKind, KernelSpec, Loss, Precision, Target};

/// A kernel on the device, and how it is called.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) entry: Entry,
    pub(super) handle: Handle,
}

/// All kernels that a device has loaded.
#[derive(Debug)]
pub(super) struct Library {
    driver: Arc<dyn Driver>,
    compiler: Compiler,
    /// The fastest that the device runs.
    target: Target,
    loaded: Arc<Mutex<BTreeMap<String, Arc<Kernel>>>>,
}

/// The fastest target that a device runs.
fn target(driver: &Arc<dyn Driver>) -> Result<Target> {
    let number = driver.capability().number;
    let runs = |target: &Target| target.cuda().is_some_and(|cuda| cuda.capability <= number);
    Target::gpus().filter(runs).max_by_key(|target| target.row().priority).ok_or_else(|| {
        let least = Target::gpus().filter_map(|target| Some(target.cuda()?.capability)).min().unwrap_or(0);
        let [found, least] = [number, least].map(|number| format!("{}.{}", number / 10, number % 10));
        Error::Device(format!("{}: expected compute capability {least} or more, got {found}", driver.name()))
    })
}

impl Library {
    pub(super) fn new(driver: Arc<dyn Driver>, cache: Cache) -> Result<Library> {
        let capability = driver.capability();
        let compiler = Compiler { cache, capability, carried: vec![Carried::built_in()?] };
        Ok(Library { target: target(&driver)?, driver, compiler, loaded: Arc::default() })
    }

    /// The same kernels, launched through another driver of the same device.
    fn through(&self, driver: Arc<dyn Driver>) -> Library {
        Library { driver, compiler: self.compiler.clone(), target: self.target, loaded: Arc::clone(&self.loaded) }
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The same device and cache, with no kernel loaded.
    pub(super) fn emptied(&self) -> Library {
        Library { loaded: Arc::default(), ..self.through(Arc::clone(&self.driver)) }
    }

    /// The same device with another cache, and no kernel loaded.
    pub(super) fn with_cache(&self, cache: Cache) -> Library {
        let mut library = self.emptied();
        library.compiler.cache = cache;
        library
    }

    /// The same device with kernels that come before all others, and none loaded.
    pub(super) fn with_carried(&self, carried: Carried) -> Library {
        let mut library = self.emptied();
        library.compiler.carried.insert(0, Arc::new(carried));
        library
    }

    /// Whose kernels the device runs.
    pub(super) fn target(&self) -> Target {
        self.target
    }

    /// The kernel of a specification, whose programs are these.
    pub(super) fn get(&self, spec: &KernelSpec, programs: Programs<'_>) -> Result<Arc<Kernel>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let name = spec.name();
        if let Some(kernel) = loaded.get(&name) {
            return Ok(Arc::clone(kernel));
        }
        let source = self.compiler.source(spec, programs)?;
        let code = self.compiler.code(&source)?;
        let kernel = Arc::new(Kernel { handle: self.driver.load(&name, &code)?, entry: source.entry });
        loaded.insert(name, Arc::clone(&kernel));
        Ok(kernel)
    }
}

/// The kernels of one dtype and chunk.
#[derive(Clone, Debug)]
pub struct Kernels {
    library: Arc<Library>,
    loss: Arc<Loss>,
    pub(super) dtype: Dtype,
    pub(super) chunk: usize,
    precision: Option<Precision>,
}

impl Kernels {
    pub(super) fn new(
        library: &Arc<Library>,
        loss: &Arc<Loss>,
        dtype: Dtype,
        precision: Option<Precision>,
        chunk: Option<usize>,
    ) -> Result<Kernels> {
        let chunk = chunk.unwrap_or_else(|| default_chunks(library.target, dtype, precision)[0]);
        let kernels = Kernels { chunk, precision, ..Kernels::of_rows(library, loss, dtype) };
        // Refuses what no kernel covers before anything runs.
        kernels.spec(KernelKind::LogitsSoftmax)?;
        Ok(kernels)
    }

    /// The same kernels, launched through another driver of the same device.
    pub(super) fn through(&self, driver: Arc<dyn Driver>) -> Kernels {
        Kernels { library: Arc::new(self.library.through(driver)), ..self.clone() }
    }

    /// The kernels of a dtype that move rows, for which neither chunk nor precision matters.
    pub(super) fn of_rows(library: &Arc<Library>, loss: &Arc<Loss>, dtype: Dtype) -> Kernels {
        let (library, loss) = (Arc::clone(library), Arc::clone(loss));
        let chunk = default_chunks(library.target, dtype, None)[0];
        Kernels { library, loss, dtype, chunk, precision: None }
    }

    /// Name of a kernel.
    pub(super) fn name(&self, kind: KernelKind) -> Result<&'static str> {
        self.spec(kind).map(|spec| interned(spec.name()))
    }

    fn spec(&self, kind: KernelKind) -> Result<KernelSpec> {
        let Kernels { dtype, chunk, precision, .. } = *self;
        KernelSpec::with_precision(kind, self.library.target, dtype, precision, chunk, &self.loss.name).map_err(|e| {
            let option = if vocabfuse_codegen::spec::check_chunk(chunk).is_err() { "chunk" } else { "precision" };
            Error::Option { option, message: e.to_string() }
        })
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        &self.library.driver
    }

    /// Tiles of E and Q over some tokens.
    pub(super) fn token_tiles(&self, tokens: usize) -> usize {
        self.library.target.cuda().map_or(0, |cuda| tokens.div_ceil(cuda.tile_tokens))
    }

    /// Tiles of E and Q over some columns.
    pub(super) fn column_tiles(&self, columns: usize) -> usize {
        self.library.target.cuda().map_or(0, |cuda| columns.div_ceil(cuda.tile_columns))
    }

    /// The programs.
    pub(super) fn loss(&self) -> &Loss {
        &self.loss
    }

    /// Rules by which row statistics merge, in order.
    pub(super) fn statistics(&self) -> Vec<(String, Merge)> {
        self.loss.statistics_rules()
    }

    /// Row outputs of the finish program, in order.
    pub(super) fn outputs(&self) -> Vec<&str> {
        self.loss.finish.row_outputs().map(|(name, _)| name).collect()
    }

    /// Position of one of them.
    pub(super) fn output(&self, name: &str) -> Result<usize> {
        self.outputs().iter().position(|known| *known == name).ok_or_else(|| {
            let message = format!("loss {} does not give the output {name:?}, which the layer needs", self.loss.name);
            Error::Option { option: "loss", message }
        })
    }

    /// Names of the kernels that a microbatch without a filter calls.
    pub(super) fn names(&self, saved: bool) -> Vec<&'static str> {
        let unused = if saved { KernelKind::LogitsGradient } else { KernelKind::SavedGradient };
        let called = |kind: &KernelKind| *kind != unused && *kind != KernelKind::FilterTiles && self.loss.has(*kind);
        let used = kinds(self.dtype).into_iter().filter(called);
        used.filter_map(|kind| self.name(kind).ok()).collect()
    }

    /// A call of a kernel, to be given its arguments.
    pub(super) fn call(&self, kind: KernelKind) -> Result<Call<'_>> {
        let spec = self.spec(kind)?;
        let kernel = self.library.get(&spec, Programs::Loss(&self.loss))?;
        Ok(Call::new(self.driver(), kernel))
    }
}

/// The kernels that a layer calls.
pub(super) fn kinds(dtype: Dtype) -> Vec<KernelKind> {
    let mut kinds = vec![
        KernelKind::LogitsSoftmax,
        KernelKind::LogitsOperand,
        KernelKind::ReduceStatistics,
        KernelKind::Accumulate,
        KernelKind::GatherRows,
        KernelKind::Merge,
        KernelKind::Finish,
        KernelKind::SavedGradient,
        KernelKind::LogitsGradient,
        KernelKind::WeightGrad,
        KernelKind::ReduceColumns,
        KernelKind::FilterTiles,
    ];
    if dtype == Dtype::F16 {
        kinds.push(KernelKind::GradientScale);
    }
    kinds
}

// Reports have names of kernels that live as long as the program does. There are only so many kernels.
pub(super) fn interned(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.insert(name);
    name
}
