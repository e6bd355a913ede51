//! The kernels of an operator, looked up once.

use super::super::Cpu;
use super::super::lookup::{Lookup, function};
use crate::operator::{Distribution, HostRows, Source};
use crate::{Dtype, Result};
use vocabfuse_codegen::{KernelKind, LogitsForm, Operator};
use vocabfuse_kernels::Kernel;
use vocabfuse_kernels::abi::{self, Geometry};

/// A function and the registry entry that names what it binds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound<F> {
    pub(super) run: F,
    pub(super) kernel: &'static Kernel,
}

/// All kernels that both phases call.
pub struct OperatorKernels {
    pub(super) statistics: Bound<unsafe fn(&abi::RowStatistics)>,
    pub(super) gradients: Vec<Bound<unsafe fn(&abi::RowGradient)>>,
    /// One a distribution.
    pub(super) inputs: Vec<InputKernels>,
    pub(super) host: HostRows,
}

/// The kernels of one distribution.
pub(super) struct InputKernels {
    pub(super) options: Bound<unsafe fn(&abi::RowLogits)>,
    /// None of given logits.
    pub(super) products: Option<Products>,
}

/// Matrix products of one dtype.
pub(super) struct Products {
    pub(super) geometry: Geometry,
    pub(super) pack_tokens: unsafe fn(&abi::PackTokens),
    pub(super) pack_tokens_grad: unsafe fn(&abi::PackTokens),
    pub(super) pack_vocabulary: unsafe fn(&abi::PackVocabulary),
    pub(super) logits: unsafe fn(&abi::RawLogits),
    pub(super) input_grad: unsafe fn(&abi::InputGrad),
    pub(super) vocabulary_grad: unsafe fn(&abi::VocabularyGrad),
    pub(super) unpack_accumulator: Option<unsafe fn(&abi::UnpackAccumulator)>,
    names: Vec<&'static str>,
}

/// What the products of a distribution call.
const CALLED: &[KernelKind] = &[
    KernelKind::PackTokens,
    KernelKind::PackVocabulary,
    KernelKind::Logits,
    KernelKind::PackTokensGrad,
    KernelKind::InputGrad,
    KernelKind::VocabularyGrad,
    KernelKind::UnpackAccumulator,
];

impl OperatorKernels {
    pub(super) fn new(cpu: &Cpu, operator: &Operator, distributions: &[Distribution<'_>]) -> Result<OperatorKernels> {
        // Row programs are f32.
        let exact = cpu.clone().with_precision(None);
        let rows = Lookup::new(&exact, Dtype::F32)?;
        let gradient = |i| {
            let name = operator.gradient_name(i);
            let lookup = rows.with_programs(&name);
            let kernel = lookup.kernel(KernelKind::RowGradient)?;
            Ok(Bound { run: function!(lookup, RowGradient, RowGradient), kernel })
        };
        let options = |form: LogitsForm| {
            let lookup = rows.with_programs(form.name());
            let kernel = lookup.kernel(KernelKind::RowLogits)?;
            Ok(Bound { run: function!(lookup, RowLogits, RowLogits), kernel })
        };
        let statistics = rows.with_programs(&operator.name);
        let input = |d: &Distribution<'_>| {
            let form = LogitsForm { softcap: d.softcap.is_some() };
            let products = match d.source {
                Source::Linear { x, .. } => Some(Products::new(cpu, x.dtype())?),
                Source::Logits(_) => None,
            };
            Ok(InputKernels { options: options(form)?, products })
        };
        Ok(OperatorKernels {
            statistics: Bound {
                run: function!(statistics, RowStatistics, RowStatistics),
                kernel: statistics.kernel(KernelKind::RowStatistics)?,
            },
            gradients: (0..operator.gradients.len()).map(gradient).collect::<Result<_>>()?,
            inputs: distributions.iter().map(input).collect::<Result<_>>()?,
            host: HostRows::new(cpu.registry(), cpu.target().row().values, &operator.name)?,
        })
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        let products = self.inputs.iter().flat_map(|i| i.products.iter().flat_map(|p| p.names.iter().copied()));
        let options = self.inputs.iter().map(|i| i.options.kernel.name);
        let gradients = self.gradients.iter().map(|g| g.kernel.name);
        let mut names: Vec<&str> = products.chain(options).collect();
        names.push(self.statistics.kernel.name);
        names.extend(self.host.names());
        names.extend(gradients);
        let mut once: Vec<&'static str> = vec![];
        names.into_iter().for_each(|name| {
            if !once.contains(&name) {
                once.push(name);
            }
        });
        once
    }
}

impl Products {
    fn new(cpu: &Cpu, dtype: Dtype) -> Result<Products> {
        let lookup = Lookup::new(cpu, dtype)?;
        let unpack_accumulator = match lookup.optional(KernelKind::UnpackAccumulator) {
            Some(_) => Some(function!(lookup, UnpackAccumulator, UnpackAccumulator)),
            None => None,
        };
        Ok(Products {
            names: CALLED.iter().filter_map(|kind| lookup.optional(*kind)).map(|kernel| kernel.name).collect(),
            geometry: lookup.kernel(KernelKind::Logits)?.geometry,
            pack_tokens: function!(lookup, PackTokens, PackTokens),
            pack_tokens_grad: function!(lookup, PackTokensGrad, PackTokens),
            pack_vocabulary: function!(lookup, PackVocabulary, PackVocabulary),
            logits: function!(lookup, Logits, RawLogits),
            input_grad: function!(lookup, InputGrad, InputGrad),
            vocabulary_grad: function!(lookup, VocabularyGrad, VocabularyGrad),
            unpack_accumulator,
        })
    }
}
