//! The kernels of an operator.

use super::super::Gpu;
use super::super::call::Call;
use super::super::driver::Driver;
use super::super::kernels::{Kernels, Library, interned};
use super::super::source::Programs;
use super::CHUNK;
use crate::operator::{Distribution, HostRows, Source as Origin};
use crate::{Dtype, Error, Result};
use std::sync::Arc;
use vocabfuse_codegen::{KernelKind, KernelSpec, LogitsForm, Operator, Target};
use vocabfuse_kernels::Registry;

/// All kernels that both phases call.
pub struct OperatorKernels {
    library: Arc<Library>,
    operator: Operator,
    /// One a distribution.
    pub(super) inputs: Vec<InputKernels>,
    /// Of f32 without products.
    pub(super) rows: Kernels,
    pub(super) host: HostRows,
}

/// The kernels of one distribution.
pub(super) struct InputKernels {
    form: LogitsForm,
    /// None of given logits.
    pub(super) products: Option<Kernels>,
}

impl OperatorKernels {
    pub(super) fn new(gpu: &Gpu, operator: &Operator, distributions: &[Distribution<'_>]) -> Result<OperatorKernels> {
        // Products hold no program of a loss, so that any stands for it.
        let loss = gpu.loss("cross_entropy")?;
        let input = |d: &Distribution<'_>| {
            let products = match d.source {
                Origin::Linear { x, .. } => {
                    Some(Kernels::new(&gpu.library, loss, x.dtype(), gpu.precision, Some(CHUNK))?)
                }
                Origin::Logits(_) => None,
            };
            Ok(InputKernels { form: LogitsForm { softcap: d.softcap.is_some() }, products })
        };
        Ok(OperatorKernels {
            library: Arc::clone(&gpu.library),
            operator: operator.clone(),
            inputs: distributions.iter().map(input).collect::<Result<_>>()?,
            rows: Kernels::of_rows(&gpu.library, loss, Dtype::F32),
            // A few values a token, which every processor has kernels for.
            host: HostRows::new(&Registry::default(), Target::Scalar, &operator.name)?,
        })
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        self.library.driver()
    }

    /// A call of the kernel that applies the options of a distribution.
    pub(super) fn row_logits(&self, distribution: usize) -> Result<Call<'_>> {
        let form = self.inputs[distribution].form;
        let spec = self.spec(KernelKind::RowLogits, form.name())?;
        let kernel = self.library.get(&spec, Programs::Logits(form))?;
        Ok(Call::new(self.driver(), kernel))
    }

    pub(super) fn row_statistics(&self) -> Result<Call<'_>> {
        self.of_operator(&self.spec(KernelKind::RowStatistics, &self.operator.name)?, 0)
    }

    pub(super) fn row_gradient(&self, distribution: usize) -> Result<Call<'_>> {
        let spec = self.spec(KernelKind::RowGradient, &self.operator.gradient_name(distribution))?;
        self.of_operator(&spec, distribution)
    }

    // Row programs are f32.
    fn spec(&self, kind: KernelKind, programs: &str) -> Result<KernelSpec> {
        let target = self.library.target();
        KernelSpec::new(kind, target, Dtype::F32, CHUNK, programs).map_err(|e| Error::Compile(e.to_string()))
    }

    fn of_operator(&self, spec: &KernelSpec, distribution: usize) -> Result<Call<'_>> {
        let kernel = self.library.get(spec, Programs::Operator(&self.operator, distribution))?;
        Ok(Call::new(self.driver(), kernel))
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = vec![];
        let mut add = |name: Result<&'static str>| names.extend(name.ok().filter(|name| !names.contains(name)));
        let row = |kind, programs: &str| self.spec(kind, programs).map(|spec| interned(spec.name()));
        let differentiable = !self.operator.gradients.is_empty();
        for input in &self.inputs {
            if let Some(products) = &input.products {
                add(products.name(KernelKind::Logits));
                for kind in gradient_kinds(products.dtype).iter().filter(|_| differentiable) {
                    add(products.name(*kind));
                }
            }
            add(row(KernelKind::RowLogits, input.form.name()));
        }
        add(row(KernelKind::RowStatistics, &self.operator.name));
        self.host.names().into_iter().for_each(|name| add(Ok(name)));
        for distribution in 0..self.operator.gradients.len() {
            add(row(KernelKind::RowGradient, &self.operator.gradient_name(distribution)));
        }
        if differentiable {
            add(self.rows.name(KernelKind::ReduceColumns));
        }
        names
    }
}

/// The kernels that make gradients from Q.
fn gradient_kinds(dtype: Dtype) -> &'static [KernelKind] {
    use KernelKind::{Accumulate, GradientScale, RoundRows, WeightGrad};
    if dtype == Dtype::F16 {
        &[GradientScale, RoundRows, Accumulate, WeightGrad]
    } else {
        &[RoundRows, Accumulate, WeightGrad]
    }
}
