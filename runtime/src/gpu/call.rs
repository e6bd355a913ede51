//! Calls of kernels: arguments are bound to parameters by the names in the manifest entry.

use super::driver::{Argument, Driver, Shape};
use super::kernels::Kernel;
use crate::{Error, Result};
use std::sync::Arc;
use vocabfuse_codegen::manifest::Parameter;
use vocabfuse_codegen::spec::Extent;

/// A kernel with values for its parameters by name.
pub(super) struct Call<'a> {
    driver: &'a Arc<dyn Driver>,
    kernel: Arc<Kernel>,
    values: Vec<(String, Argument)>,
}

impl<'a> Call<'a> {
    /// A call that has no arguments yet.
    pub(super) fn new(driver: &'a Arc<dyn Driver>, kernel: Arc<Kernel>) -> Call<'a> {
        Call { driver, kernel, values: vec![] }
    }

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

    /// Launches the kernel over the extents that its parameters state; not at all over none.
    pub(super) fn launch(self) -> Result<()> {
        self.launch_over(None)
    }

    /// Launches a kernel whose blocks share out rows; not at all over none.
    pub(super) fn launch_rows(self, rows: usize) -> Result<()> {
        self.launch_over(Some(rows))
    }

    fn launch_over(self, rows: Option<usize>) -> Result<()> {
        let entry = &self.kernel.entry;
        let extent = |extent: Extent| match extent {
            Extent::Rows => rows,
            named => self.values.iter().find(|(name, _)| name == named.as_str()).and_then(|(_, value)| match value {
                Argument::I32(count) => usize::try_from(*count).ok(),
                _ => None,
            }),
        };
        let blocks = entry.blocks(extent).map_err(|extent| self.missing(&format!("the extent {extent}")))?;
        if blocks == 0 {
            return Ok(());
        }
        let one = |parameter: &Parameter| {
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
    use crate::gpu::driver::Handle;
    use vocabfuse_codegen::emit::cuda_entry;
    use vocabfuse_codegen::{Dtype, KernelKind, KernelSpec, Target};

    fn call(driver: &Arc<dyn Driver>) -> Call<'_> {
        let loss = vocabfuse_codegen::cross_entropy().unwrap();
        let spec = KernelSpec::new(KernelKind::GradientScale, Target::Sm80, Dtype::F16, 512, &loss.name).unwrap();
        let kernel = Kernel { entry: cuda_entry(&spec, &loss).unwrap(), handle: Handle(0) };
        Call::new(driver, Arc::new(kernel))
    }

    #[test]
    fn parameters_that_do_not_fit_are_refused_by_name() {
        let driver: Arc<dyn Driver> = Arc::new(Ptx::new("sm_80").unwrap());
        let scale = ("scale", Argument::Pointer(256));
        let refused = |call: Call<'_>| call.launch().unwrap_err().to_string();
        let with_rows = || call(&driver).rows(|_| Some(Argument::Pointer(256))).unwrap();
        let missing = refused(with_rows().set([scale]));
        assert!(missing.contains("\"count\"") && missing.contains("gradient_scale__f16"), "{missing}");
        let mistyped = refused(with_rows().set([scale, ("count", Argument::I64(1))]));
        assert!(mistyped.contains("\"count\" of type i32"), "{mistyped}");
        let unknown = call(&driver).rows(|_| None).err().unwrap().to_string();
        assert!(unknown.contains("\"upstream\""), "{unknown}");
        let rows = |count| {
            let loss = vocabfuse_codegen::cross_entropy().unwrap();
            let spec = KernelSpec::new(KernelKind::Merge, Target::Sm80, Dtype::F32, 512, &loss.name).unwrap();
            let kernel = Kernel { entry: cuda_entry(&spec, &loss).unwrap(), handle: Handle(0) };
            Call::new(&driver, Arc::new(kernel)).launch_over(count)
        };
        let without_extent = rows(None).unwrap_err().to_string();
        assert!(without_extent.contains("the extent rows"), "{without_extent}");
        // Nothing to do is no launch, and needs no arguments.
        assert_eq!(rows(Some(0)), Ok(()));
    }
}
