//! GPUs as devices, and an interpreter in the place of one.
//!
//! The host code of the passes ([`s_pass`], [`finish`], [`t_pass`]) is written over a small [`driver::Driver`] and follows
//! [`vocabfuse_codegen::cuda`]. Arguments are bound by the names of a kernel's manifest entry.

mod buffer;
mod cache;
mod call;
mod carried;
mod clock;
mod compile;
mod cuda;
mod driver;
mod finish;
mod kernels;
mod meter;
#[cfg(test)]
mod newer_tests;
mod operator;
mod passes;
mod ptx;
mod range;
mod record;
mod rows;
mod s_pass;
mod source;
mod step;
mod t_pass;
mod tables;
mod tensor;

pub use meter::Traffic;
pub use ptx::{Ptx, PtxReport};
pub use step::{Step, StepOptions};
pub use tensor::DeviceTensor;
pub use vocabfuse_ptx::Accumulation;

use crate::{Error, Result};
use cache::Cache;
use carried::Carried;
use driver::Driver;
use kernels::Library;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vocabfuse_codegen::{Architecture, Builder, Bundle, CrossEntropyForm, Loss, Precision};

/// A GPU, or an interpreter in its place. Clones are the same device.
///
/// Kernels that the program carries ([`Gpu::with_kernels`]) need no compiler. Others are compiled by NVRTC when they are first
/// called, and kept in the folder that `VOCABFUSE_CACHE` names, by default one in the user's cache folder. Ranks of one group share one device; all work runs in the order of its calls.
/// Tensors are copied to the device in pass S; results are copied back at the end of C1 and of pass T, and nothing that
/// is launched waits for a value that was copied back.
#[derive(Clone, Debug)]
pub struct Gpu {
    library: Arc<Library>,
    losses: Arc<BTreeMap<String, Arc<Loss>>>,
    precision: Option<Precision>,
    name: String,
    id: u64,
}

impl Gpu {
    /// Whether the NVIDIA driver is installed; there may be no GPU.
    pub fn has_driver() -> bool {
        cuda::has_driver()
    }

    /// The CUDA device of an ordinal.
    ///
    /// # Errors
    /// [`Error::Missing`] without a driver; [`Error::Device`] if there is no such device, or it is too old.
    pub fn cuda(ordinal: usize) -> Result<Gpu> {
        Gpu::new(Arc::new(cuda::Cuda::new(ordinal)?))
    }

    /// The interpreter. `ptx` tells what it found.
    ///
    /// # Errors
    /// None but those of building a loss, which do not happen.
    pub fn ptx(ptx: &Ptx) -> Result<Gpu> {
        Gpu::new(Arc::new(ptx.clone()))
    }

    fn new(driver: Arc<dyn Driver>) -> Result<Gpu> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut losses = BTreeMap::new();
        for form in CrossEntropyForm::all() {
            losses.insert(form.name(), Arc::new(form.loss().map_err(|e| Error::Compile(e.to_string()))?));
        }
        Ok(Gpu {
            name: driver.name(),
            library: Arc::new(Library::new(driver, Cache::new())?),
            losses: Arc::new(losses),
            precision: None,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The same device with a loss of one's own, for [`crate::OutputLayer::with_loss`]. One of the same name is replaced.
    ///
    /// # Errors
    /// [`Error::Compile`] if the programs do not fit together.
    pub fn with_loss(mut self, loss: Loss) -> Result<Gpu> {
        loss.verify().map_err(|e| Error::Compile(e.to_string()))?;
        // Kernels are known by their names, which do not tell two losses of one name apart.
        self.library = Arc::new(self.library.emptied());
        Arc::make_mut(&mut self.losses).insert(loss.name.clone(), Arc::new(loss));
        Ok(self)
    }

    /// The programs of a loss.
    fn loss(&self, name: &str) -> Result<&Arc<Loss>> {
        self.losses.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.losses.keys().map(String::as_str).collect();
            let message = format!("expected one of {}, got {name:?}", known.join(", "));
            Error::Option { option: "loss", message }
        })
    }

    /// The same device with a precision for matrix products of f32, which need one.
    pub fn with_precision(mut self, precision: Option<Precision>) -> Gpu {
        self.precision = precision;
        self
    }

    /// Begins to measure time on the device.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails.
    pub fn start_clock(&self) -> Result<()> {
        self.library.driver().start_clock()
    }

    /// Waits for all work. Milliseconds of the device since [`Gpu::start_clock`], by events of its stream, without copies
    /// from and to the host; `None` on the interpreter, whose time means nothing.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails.
    pub fn stop_clock(&self) -> Result<Option<f64>> {
        self.library.driver().stop_clock()
    }

    /// Allocations and copies from and to the host so far.
    pub fn traffic(&self) -> Traffic {
        self.library.driver().meter().traffic()
    }

    /// The most bytes that buffers on the device have held at a time since the last call.
    pub fn take_peak_bytes(&self) -> usize {
        self.library.driver().meter().take_peak()
    }

    /// The same device with another folder for compiled kernels.
    pub fn with_cache(mut self, folder: &Path) -> Gpu {
        self.library = Arc::new(self.library.with_cache(Cache::at(folder)));
        self
    }

    /// The same device with kernels that a build script has made (`Builder::embed_cuda` of `vocabfuse-codegen`). Their text and
    /// code come before those of the library, of the cache and of NVRTC, and of two bundles those of the later one come first. A
    /// kernel of a loss is used only if its programs are those of the loss that runs.
    ///
    /// # Errors
    /// [`Error::Compile`] for a manifest that cannot be read. A compiled kernel that is damaged is as good as none.
    pub fn with_kernels(mut self, bundle: Bundle) -> Result<Gpu> {
        self.library = Arc::new(self.library.with_carried(Carried::new(&bundle)?));
        Ok(self)
    }

    /// Compiles the CUDA kernels of a builder for GPUs that need not be there, such as `sm_90`, into a cache folder, which a
    /// machine without NVRTC can use: a cubin for each architecture, and PTX for all that are newer than the oldest. Returns the
    /// names of the kernels, among which are those that their callers need besides. What is there already is kept.
    ///
    /// # Errors
    /// [`Error::Missing`] without NVRTC; [`Error::Compile`] for a builder without CUDA kernels, a kernel that cannot be launched,
    /// and a folder that cannot be written.
    pub fn compile_ahead(builder: &Builder, architectures: &[Architecture], folder: &Path) -> Result<Vec<String>> {
        compile::ahead(builder, architectures, folder)
    }

    /// For reports: `cuda:0 (name)` or `ptx:sm_80`.
    pub fn name(&self) -> String {
        self.name.clone()
    }
}
