//! From what a layer, an operator or an embedding calls to the kernels of the registry: by the specification of each.

use super::Cpu;
use crate::{Dtype, Error, Result};
use vocabfuse_codegen::spec::{CHUNKS, check_chunk};
use vocabfuse_codegen::{KernelKind, KernelSpec, Precision, Target};
use vocabfuse_kernels::Kernel;

/// Finds kernels for tensors of one dtype.
#[derive(Clone, Copy)]
pub(super) struct Lookup<'a> {
    cpu: &'a Cpu,
    dtype: Dtype,
    /// Chunk for which a kernel may be specialised.
    chunk: usize,
    /// Name of the loss, operator or form of the logits.
    programs: &'a str,
}

impl<'a> Lookup<'a> {
    /// Kernels without programs, of any chunk.
    ///
    /// # Errors
    /// [`Error::Option`] for a precision that the target or the dtype has not.
    pub(super) fn new(cpu: &'a Cpu, dtype: Dtype) -> Result<Lookup<'a>> {
        let lookup = Lookup { cpu, dtype, chunk: *CHUNKS.start(), programs: "" };
        match cpu.precision {
            Some(precision) if cpu.target().product(dtype, Some(precision)).is_none() => {
                Err(lookup.no_product(precision))
            }
            _ => Ok(lookup),
        }
    }

    /// The same with the programs of a loss, an operator or a form of the logits.
    pub(super) fn with_programs(self, programs: &'a str) -> Lookup<'a> {
        Lookup { programs, ..self }
    }

    /// The same for a chunk.
    pub(super) fn with_chunk(self, chunk: usize) -> Lookup<'a> {
        Lookup { chunk, ..self }
    }

    fn no_product(&self, precision: Precision) -> Error {
        let known = |precision: &Precision| {
            let targets: Vec<&str> = Target::cpus().filter(|t| precision.is_on(*t)).map(Target::as_str).collect();
            (!targets.is_empty()).then(|| format!("{precision} for dtype f32 on targets {}", targets.join(" and ")))
        };
        let known: Vec<String> = Precision::ALL.iter().filter_map(known).collect();
        let message = format!(
            "expected exact products, or {}; got {precision} for dtype {} on target {}",
            known.join(", "),
            self.dtype,
            self.cpu.target()
        );
        Error::Option { option: "precision", message }
    }

    /// The target that multiplies tensors of the dtype.
    pub(super) fn target(&self) -> Target {
        let target = self.cpu.target();
        if target.product(self.dtype, self.cpu.precision).is_some() { target } else { target.row().values }
    }

    /// What the kernel is: of the target itself, or of the one that multiplies nothing on the same processor.
    fn spec(&self, kind: KernelKind) -> Option<KernelSpec> {
        let (target, Lookup { dtype, chunk, programs, .. }) = (self.cpu.target(), *self);
        KernelSpec::with_precision(kind, target, dtype, self.cpu.precision, chunk, programs)
            .or_else(|_| KernelSpec::new(kind, target.row().values, dtype, chunk, programs))
            .ok()
    }

    /// The kernel that is specialised for the chunk, or else that of any chunk.
    pub(super) fn optional(&self, kind: KernelKind) -> Option<&'static Kernel> {
        let spec = self.spec(kind)?;
        let of = |spec: KernelSpec| {
            let name = spec.name();
            self.cpu.registry().find(|kernel| kernel.name == name)
        };
        spec.clone().specialised(self.chunk).ok().and_then(of).or_else(|| of(spec))
    }

    /// As [`Lookup::optional`], for a kernel that nothing works without.
    pub(super) fn kernel(&self, kind: KernelKind) -> Result<&'static Kernel> {
        self.optional(kind).ok_or_else(|| self.missing(kind))
    }

    /// What to say where a kernel is missing, or registered with the entry of another one.
    pub(super) fn missing(&self, kind: KernelKind) -> Error {
        let spec = self.spec(kind);
        let alike = |kernel: &&Kernel| {
            let chunk = Some(kernel.chunk).filter(|chunk| check_chunk(*chunk).is_ok());
            let of_chunk =
                |spec: &KernelSpec, chunk| spec.clone().specialised(chunk).is_ok_and(|s| s.name() == kernel.name);
            spec.as_ref().zip(chunk).is_some_and(|(spec, chunk)| of_chunk(spec, chunk))
        };
        let chunks: Vec<String> = self.cpu.registry().iter().filter(alike).map(|k| k.chunk.to_string()).collect();
        if !chunks.is_empty() {
            let message = format!(
                "expected one of the generated sizes {}, got {}; others can be generated",
                chunks.join(", "),
                self.chunk
            );
            return Error::Option { option: "chunk", message };
        }
        let target = spec.map_or(self.cpu.target(), |spec| spec.target);
        let message = match self.programs {
            "" => "not in the registry".to_owned(),
            programs => format!("not in the registry for {programs}"),
        };
        Error::Kernel { kernel: kind.to_string(), target, dtype: self.dtype, message }
    }
}

/// The function of a kernel: `function!(lookup, PackTokens, PackTokens)` finds the kernel and expects an entry of that kind.
macro_rules! function {
    ($lookup:expr, $kernel:ident, $entry:ident) => {
        match $lookup.kernel(vocabfuse_codegen::KernelKind::$kernel)?.entry {
            vocabfuse_kernels::abi::Entry::$entry(function) => function,
            _ => return Err($lookup.missing(vocabfuse_codegen::KernelKind::$kernel)),
        }
    };
}

pub(super) use function;
