//! Kernels of a GPU: emitted, compiled or taken from the cache, loaded when they are first called.

use super::cache::{Cache, Key};
use super::driver::{Argument, Driver, Form, Handle, Shape};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use vocabfuse_codegen::compile::{CompileError, log, nvrtc::Nvrtc};
use vocabfuse_codegen::emit::{cuda_entry, emit};
use vocabfuse_codegen::loss::Merge;
use vocabfuse_codegen::manifest::Entry;
use vocabfuse_codegen::{Dtype, KernelKind, KernelSpec, Loss, Precision, Target};

/// Chunk used when the policy names none: large enough to keep a GPU busy, small enough that E of thousands of tokens
/// takes little memory.
const DEFAULT_CHUNK: usize = 8192;

/// A kernel on the device, and how it is called.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) entry: Entry,
    handle: Handle,
}

/// All kernels that a device has loaded.
#[derive(Debug)]
pub(super) struct Library {
    driver: Arc<dyn Driver>,
    cache: Cache,
    loaded: Mutex<BTreeMap<String, Arc<Kernel>>>,
}

impl Library {
    pub(super) fn new(driver: Arc<dyn Driver>, cache: Cache) -> Library {
        Library { driver, cache, loaded: Mutex::default() }
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    fn get(&self, spec: &KernelSpec, loss: &Loss) -> Result<Arc<Kernel>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let name = spec.name();
        if let Some(kernel) = loaded.get(&name) {
            return Ok(Arc::clone(kernel));
        }
        let entry = cuda_entry(spec, loss).map_err(|e| Error::Compile(e.to_string()))?;
        let code = self.code(spec, loss, &entry)?;
        let kernel = Arc::new(Kernel { handle: self.driver.load(&name, &code)?, entry });
        loaded.insert(name, Arc::clone(&kernel));
        Ok(kernel)
    }

    fn code(&self, spec: &KernelSpec, loss: &Loss, entry: &Entry) -> Result<Vec<u8>> {
        let failed = |e: &dyn std::fmt::Display| Error::Compile(e.to_string());
        let text = emit(spec, loss).map_err(|e| failed(&e))?.text;
        let (architecture, form) = (self.driver.architecture(), self.driver.form());
        let flags = format!("{} {form:?} NVRTC 12", architecture.name());
        let key = Key { name: &entry.name, flags: &flags, text: &text, abi: &entry.abi };
        if let Some(code) = self.cache.get(&key) {
            return Ok(code);
        }
        let nvrtc = Nvrtc::load().map_err(|e| missing(&e))?;
        let compiled = match form {
            Form::Ptx => nvrtc.ptx(&entry.name, &text, architecture),
            Form::Cubin => nvrtc.cubin(&entry.name, &text, architecture),
        };
        let compiled = compiled.map_err(|e| failed(&e))?;
        if form == Form::Cubin {
            log::check(entry, architecture, &compiled.log).map_err(|e| failed(&e))?;
        }
        self.cache.put(&key, &compiled.code);
        Ok(compiled.code)
    }
}

fn missing(error: &CompileError) -> Error {
    match error {
        CompileError::Missing { .. } => Error::Missing(error.to_string()),
        _ => Error::Compile(error.to_string()),
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
        let chunk = chunk.unwrap_or(DEFAULT_CHUNK);
        let kernels = Kernels { library: Arc::clone(library), loss: Arc::clone(loss), dtype, chunk, precision };
        // Refuses what no kernel covers before anything runs.
        kernels.spec(KernelKind::LogitsSoftmax)?;
        Ok(kernels)
    }

    fn spec(&self, kind: KernelKind) -> Result<KernelSpec> {
        let Kernels { dtype, chunk, precision, .. } = *self;
        KernelSpec::with_precision(kind, Target::Sm80, dtype, precision, chunk, &self.loss.name).map_err(|e| {
            let option = if vocabfuse_codegen::spec::check_chunk(chunk).is_err() { "chunk" } else { "precision" };
            Error::Option { option, message: e.to_string() }
        })
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        &self.library.driver
    }

    /// Rules by which row statistics merge, in order.
    pub(super) fn statistics(&self) -> Vec<(String, Merge)> {
        self.loss.statistics_rules()
    }

    /// Row outputs of the finish program, in order.
    pub(super) fn outputs(&self) -> Vec<&str> {
        self.loss.finish.row_outputs().map(|(name, _)| name).collect()
    }

    /// Names of the kernels that a microbatch calls.
    pub(super) fn names(&self, saved: bool) -> Vec<&'static str> {
        let gradient = if saved { KernelKind::SavedGradient } else { KernelKind::LogitsGradient };
        let mut kinds = vec![
            KernelKind::LogitsSoftmax,
            KernelKind::ReduceStatistics,
            KernelKind::Accumulate,
            KernelKind::GatherRows,
            KernelKind::Merge,
            KernelKind::Finish,
            gradient,
            KernelKind::WeightGrad,
        ];
        if self.dtype == Dtype::F16 {
            kinds.push(KernelKind::GradientScale);
        }
        kinds.into_iter().filter_map(|kind| self.spec(kind).ok()).map(|spec| interned(spec.name())).collect()
    }

    /// A call of a kernel, to be given its arguments.
    pub(super) fn call(&self, kind: KernelKind) -> Result<Call<'_>> {
        let kernel = self.library.get(&self.spec(kind)?, &self.loss)?;
        Ok(Call { driver: self.driver(), kernel, values: vec![] })
    }
}

// Reports have names of kernels that live as long as the program does. There are only so many kernels.
fn interned(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.insert(name);
    name
}

/// A kernel with values for its parameters by name.
pub(super) struct Call<'a> {
    driver: &'a Arc<dyn Driver>,
    kernel: Arc<Kernel>,
    values: Vec<(String, Argument)>,
}

impl Call<'_> {
    fn missing(&self, what: &str) -> Error {
        let message = format!("kernel {} needs {what}, which the layer does not provide", self.kernel.entry.name);
        Error::Option { option: "loss", message }
    }

    /// Values of parameters. A kernel need not have all of them.
    pub(super) fn set<const N: usize>(mut self, values: [(&str, Argument); N]) -> Self {
        self.values.extend(values.into_iter().map(|(name, value)| (name.to_owned(), value)));
        self
    }

    /// Scalars of row programs, by their names.
    pub(super) fn uniforms(mut self, value: impl Fn(&str) -> Option<f32>) -> Result<Self> {
        for name in &self.kernel.entry.bindings.uniforms {
            let value = value(name).ok_or_else(|| self.missing(&format!("the scalar {name:?}")))?;
            self.values.push((format!("uniform_{name}"), Argument::F32(value)));
        }
        Ok(self)
    }

    /// Values per token, by their names.
    pub(super) fn rows(mut self, value: impl Fn(&str) -> Option<Argument>) -> Result<Self> {
        for name in &self.kernel.entry.bindings.rows {
            let value = value(name).ok_or_else(|| self.missing(&format!("the row values {name:?}")))?;
            self.values.push((format!("row_{name}"), value));
        }
        Ok(self)
    }

    /// Values per vocabulary entry, by their names; null is zero.
    pub(super) fn columns(mut self, value: impl Fn(&str) -> Option<Argument>) -> Result<Self> {
        for name in &self.kernel.entry.bindings.columns {
            let value = value(name).ok_or_else(|| self.missing(&format!("the column values {name:?}")))?;
            self.values.push((format!("column_{name}"), value));
        }
        Ok(self)
    }

    /// Launches the kernel on that many blocks; not at all on none.
    pub(super) fn launch(self, blocks: usize) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let entry = &self.kernel.entry;
        let one = |parameter: &vocabfuse_codegen::manifest::Parameter| {
            let named = self.values.iter().find(|(name, _)| *name == parameter.name);
            let value = named.ok_or_else(|| self.missing(&format!("parameter {:?}", parameter.name)))?.1;
            if value.fits(&parameter.ty) {
                Ok(value)
            } else {
                Err(self.missing(&format!("parameter {:?} of type {}", parameter.name, parameter.ty)))
            }
        };
        let arguments = entry.parameters.iter().map(one).collect::<Result<Vec<_>>>()?;
        let blocks = u32::try_from(blocks).ok().filter(|b| *b <= i32::MAX as u32);
        let blocks = blocks.ok_or_else(|| Error::Device(format!("kernel {}: too many blocks", entry.name)))?;
        let shape = Shape { blocks, threads: entry.block as u32, shared: entry.dynamic_shared };
        self.driver.launch(self.kernel.handle, shape, &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Ptx;

    fn call(driver: &Arc<dyn Driver>) -> Call<'_> {
        let loss = vocabfuse_codegen::cross_entropy().unwrap();
        let spec = KernelSpec::new(KernelKind::GradientScale, Target::Sm80, Dtype::F16, 512, &loss.name).unwrap();
        let kernel = Kernel { entry: cuda_entry(&spec, &loss).unwrap(), handle: Handle(0) };
        Call { driver, kernel: Arc::new(kernel), values: vec![] }
    }

    #[test]
    fn parameters_that_do_not_fit_are_refused_by_name() {
        let driver: Arc<dyn Driver> = Arc::new(Ptx::new("sm_80").unwrap());
        let scale = ("scale", Argument::Pointer(256));
        let (tokens, bound) = (("tokens", Argument::I32(1)), ("bound", Argument::F32(1.0)));
        let refused = |call: Call<'_>| call.launch(1).unwrap_err().to_string();
        let with_rows = || call(&driver).rows(|_| Some(Argument::Pointer(256))).unwrap();
        let missing = refused(with_rows().set([scale, tokens]));
        assert!(missing.contains("\"bound\"") && missing.contains("gradient_scale__f16"), "{missing}");
        let mistyped = refused(with_rows().set([scale, bound, ("tokens", Argument::I64(1))]));
        assert!(mistyped.contains("\"tokens\" of type i32"), "{mistyped}");
        let unknown = call(&driver).rows(|_| None).err().unwrap().to_string();
        assert!(unknown.contains("\"upstream\""), "{unknown}");
        // Nothing to do is no launch, and needs no arguments.
        assert_eq!(call(&driver).launch(0), Ok(()));
    }
}
