//! The kernels of an operator, looked up once.

use super::super::Cpu;
use super::super::family::{is_at, products, target};
use crate::operator::{Distribution, HostRows, Source};
use crate::{Dtype, Error, Result};
use vocabfuse_codegen::{LogitsForm, Operator, Place};
use vocabfuse_kernels::Kernel;
use vocabfuse_kernels::abi::{self, Entry, Geometry};

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

struct Lookup<'a> {
    cpu: &'a Cpu,
    place: Place,
    /// Of the products; row programs are f32.
    dtype: Dtype,
}

impl Lookup<'_> {
    fn optional(&self, kernel: &str, programs: &str) -> Option<&'static Kernel> {
        self.cpu.registry().find(|k| {
            let f32_only = k.dtype == Dtype::F32.as_str() && (k.kernel.starts_with("row_") || is_product(k.kernel));
            k.kernel == kernel
                && is_at(k, self.place)
                && (k.dtype == self.dtype.as_str() || f32_only)
                && k.loss == programs
        })
    }

    // It sees f32 alone, whatever the products are of.
    fn unpack_accumulator(&self) -> Option<&'static Kernel> {
        let wanted = |k: &Kernel| k.kernel == "unpack_accumulator" && k.target == self.place.target.as_str();
        self.cpu.registry().find(wanted)
    }

    fn missing(&self, kernel: &str, message: &str) -> Error {
        let (target, dtype) = (self.place.target, self.dtype);
        Error::Kernel { kernel: kernel.to_owned(), target, dtype, message: message.to_owned() }
    }

    fn find<F>(&self, kernel: &str, programs: &str, pick: impl Fn(Entry) -> Option<F>) -> Result<Bound<F>> {
        let found = self.optional(kernel, programs).ok_or_else(|| self.missing(kernel, "not in the registry"))?;
        let run =
            pick(found.entry).ok_or_else(|| self.missing(kernel, "registered with the entry of another kernel"))?;
        Ok(Bound { run, kernel: found })
    }
}

// Where operands are packed as f32, products are the same for every dtype.
fn is_product(kernel: &str) -> bool {
    ["logits", "input_grad", "vocabulary_grad"].contains(&kernel)
}

// Picks the function of one kind of entry.
macro_rules! entry {
    ($kind:ident) => {
        |entry| if let Entry::$kind(run) = entry { Some(run) } else { None }
    };
}

impl OperatorKernels {
    pub(super) fn new(cpu: &Cpu, operator: &Operator, distributions: &[Distribution<'_>]) -> Result<OperatorKernels> {
        let place = Place { target: target(cpu, Dtype::F32), precision: None };
        let rows = Lookup { cpu, place, dtype: Dtype::F32 };
        let gradient = |i| rows.find("row_gradient", &operator.gradient_name(i), entry!(RowGradient));
        let input = |d: &Distribution<'_>| {
            let form = LogitsForm { softcap: d.softcap.is_some() };
            let products = match d.source {
                Source::Linear { x, .. } => Some(Products::new(cpu, x.dtype())?),
                Source::Logits(_) => None,
            };
            Ok(InputKernels { options: rows.find("row_logits", form.name(), entry!(RowLogits))?, products })
        };
        Ok(OperatorKernels {
            statistics: rows.find("row_statistics", &operator.name, entry!(RowStatistics))?,
            gradients: (0..operator.gradients.len()).map(gradient).collect::<Result<_>>()?,
            inputs: distributions.iter().map(input).collect::<Result<_>>()?,
            host: HostRows::new(cpu.registry(), place.target, &operator.name)?,
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
        let lookup = Lookup { cpu, place: products(cpu, dtype)?, dtype };
        let logits = lookup.find("logits", "", entry!(RawLogits))?;
        let pack_tokens = lookup.find("pack_tokens", "", entry!(PackTokens))?;
        let pack_tokens_grad = lookup.find("pack_tokens_grad", "", entry!(PackTokens))?;
        let pack_vocabulary = lookup.find("pack_vocabulary", "", entry!(PackVocabulary))?;
        let input_grad = lookup.find("input_grad", "", entry!(InputGrad))?;
        let vocabulary_grad = lookup.find("vocabulary_grad", "", entry!(VocabularyGrad))?;
        let unpack = lookup.unpack_accumulator();
        let names = [pack_tokens.kernel, pack_vocabulary.kernel, logits.kernel, pack_tokens_grad.kernel];
        let names = names.into_iter().chain([input_grad.kernel, vocabulary_grad.kernel]).chain(unpack);
        Ok(Products {
            names: names.map(|k| k.name).collect(),
            geometry: logits.kernel.geometry,
            pack_tokens: pack_tokens.run,
            pack_tokens_grad: pack_tokens_grad.run,
            pack_vocabulary: pack_vocabulary.run,
            logits: logits.run,
            input_grad: input_grad.run,
            vocabulary_grad: vocabulary_grad.run,
            unpack_accumulator: unpack.and_then(|k| entry!(UnpackAccumulator)(k.entry)),
        })
    }
}
