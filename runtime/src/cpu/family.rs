//! The kernels of one target, dtype, chunk and loss, looked up once, and the names they bind.

use super::Cpu;
use crate::check::fingerprint;
use crate::passes::LayerInputs;
use crate::{Error, Result};
use std::ptr;
use vocabfuse_codegen::program::ROW_FORMAT;
use vocabfuse_codegen::spec::{check_chunk, default_chunks};
use vocabfuse_codegen::{Dtype, KernelKind, Place, Target};
use vocabfuse_kernels::Kernel;
use vocabfuse_kernels::abi::{self, Entry, Geometry};

/// All kernels that a layer calls.
#[derive(Clone, Debug)]
pub struct Family {
    pub(crate) geometry: Geometry,
    pub(crate) chunk: usize,
    pub(crate) dtype: Dtype,
    pub(crate) pack_tokens: unsafe fn(&abi::PackTokens),
    pub(crate) pack_tokens_grad: unsafe fn(&abi::PackTokens),
    pub(crate) pack_vocabulary: unsafe fn(&abi::PackVocabulary),
    pub(crate) logits_softmax: Softmax,
    /// The second product with W, for losses that have one.
    pub(crate) logits_operand: Option<Softmax>,
    pub(crate) unpack_accumulator: Option<unsafe fn(&abi::UnpackAccumulator)>,
    /// Missing for losses whose gradient needs logits.
    pub(crate) weight_grad_saved: Option<unsafe fn(&abi::WeightGrad)>,
    pub(crate) weight_grad_recompute: unsafe fn(&abi::WeightGrad),
    pub(crate) merge: unsafe fn(&abi::Merge),
    pub(crate) finish: unsafe fn(&abi::Finish),
    pub(crate) gather_rows: unsafe fn(&abi::GatherRows),
    /// Kernels by role, for their bindings.
    pub(crate) finish_kernel: &'static Kernel,
    pub(crate) grad_kernel: &'static Kernel,
    names: Vec<&'static str>,
}

/// A kernel of pass S, and its function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softmax {
    pub(crate) kernel: &'static Kernel,
    pub(crate) run: unsafe fn(&abi::LogitsSoftmax),
}

/// The target of kernels that multiply nothing in bf16: targets of bf16 use the f32 vectors of the same processor.
pub(super) fn values(cpu: &Cpu) -> Target {
    if Target::BF16.contains(&cpu.target()) { Target::Avx512 } else { cpu.target() }
}

/// The target whose kernels a dtype uses for products: targets of bf16 use the f32 vectors of the same processor for the others.
pub(super) fn target(cpu: &Cpu, dtype: Dtype) -> Target {
    let only_bf16 = Target::BF16.contains(&cpu.target());
    if only_bf16 && dtype != Dtype::Bf16 { Target::Avx512 } else { cpu.target() }
}

/// Where the kernels of a dtype are that pack operands or multiply them: with a precision, on the target itself.
pub(super) fn products(cpu: &Cpu, dtype: Dtype) -> Result<Place> {
    let Some(precision) = cpu.precision else {
        return Ok(Place { target: target(cpu, dtype), precision: None });
    };
    if dtype == Dtype::F32 && precision.is_on(cpu.target()) {
        return Ok(Place { target: cpu.target(), precision: Some(precision) });
    }
    let message = format!(
        "expected exact products, or bf16x3 for dtype f32 on targets avx512bf16 and amx; got {precision} for dtype {dtype} \
         on target {}",
        cpu.target()
    );
    Err(Error::Option { option: "precision", message })
}

/// Whether a kernel is at a place.
pub(super) fn is_at(kernel: &Kernel, place: Place) -> bool {
    kernel.target == place.target.as_str() && kernel.precision == place.precision.map_or("", |p| p.as_str())
}

struct Lookup<'a> {
    cpu: &'a Cpu,
    loss: &'a str,
    /// Of kernels that see values alone.
    values: Target,
    /// Of kernels that see packed operands, or what products leave.
    products: Place,
    dtype: Dtype,
    chunk: usize,
    names: Vec<&'static str>,
}

impl Lookup<'_> {
    /// The kernel that is specialised for the chunk, or else that of any chunk.
    fn optional(&self, kernel: &str) -> Option<&'static Kernel> {
        self.of_chunk(kernel, self.chunk).or_else(|| self.of_chunk(kernel, 0))
    }

    fn of_chunk(&self, kernel: &str, chunk: usize) -> Option<&'static Kernel> {
        let (place, any_dtype) = self.place(kernel);
        self.cpu.registry().find(|k| {
            k.kernel == kernel
                && is_at(k, place)
                && (k.dtype == self.dtype.as_str() || any_dtype)
                && k.chunk == chunk
                && (k.loss.is_empty() || k.loss == self.loss)
        })
    }

    /// Where a kernel is, and whether it sees f32 alone, whatever dtype it is named for.
    fn place(&self, kernel: &str) -> (Place, bool) {
        let at = |target| Place { target, precision: None };
        match kernel.parse::<KernelKind>() {
            Ok(KernelKind::Merge | KernelKind::Finish) => (at(self.values), true),
            Ok(KernelKind::UnpackAccumulator) => (at(self.products.target), true),
            Ok(kind) if kind.has_operands() => (self.products, false),
            _ => (at(self.values), false),
        }
    }

    fn find(&mut self, kernel: &str) -> Result<&'static Kernel> {
        let found = self.optional(kernel).ok_or_else(|| self.missing(kernel))?;
        self.names.push(found.name);
        Ok(found)
    }

    fn missing(&self, kernel: &str) -> Error {
        let (place, _) = self.place(kernel);
        let alike = |k: &&Kernel| {
            k.kernel == kernel
                && is_at(k, place)
                && k.dtype == self.dtype.as_str()
                && k.chunk > 0
                && k.loss == self.loss
        };
        let chunks: Vec<String> = self.cpu.registry().iter().filter(alike).map(|k| k.chunk.to_string()).collect();
        if !chunks.is_empty() && check_chunk(self.chunk).is_ok() {
            let message = format!(
                "expected one of the generated sizes {}, got {}; others can be generated",
                chunks.join(", "),
                self.chunk
            );
            return Error::Option { option: "chunk", message };
        }
        Error::Kernel {
            kernel: kernel.to_owned(),
            target: place.target,
            dtype: self.dtype,
            message: format!("not in the registry for loss {}", self.loss),
        }
    }

    fn softmax(&self, found: &'static Kernel) -> Result<Softmax> {
        match found.entry {
            Entry::LogitsSoftmax(run) => Ok(Softmax { kernel: found, run }),
            _ => Err(self.missing(found.kernel)),
        }
    }
}

// One arm a kind of entry: a kernel registered with another one is as good as missing.
macro_rules! entry {
    ($lookup:expr, $kernel:literal, $kind:ident) => {{
        let found = $lookup.find($kernel)?;
        match found.entry {
            Entry::$kind(f) => f,
            _ => return Err($lookup.missing($kernel)),
        }
    }};
}

impl Family {
    /// The kernels for a loss, a dtype and a chunk; `None` takes the default chunk.
    pub(crate) fn new(cpu: &Cpu, loss: &str, dtype: Dtype, chunk: Option<usize>) -> Result<Family> {
        let (values, products) = (values(cpu), products(cpu, dtype)?);
        let chunk = match chunk {
            None => default_chunks(products.target, dtype, products.precision)[0],
            Some(chunk) => check_chunk(chunk).map_err(|_| Error::Option {
                option: "chunk",
                message: format!("expected a power of two from 256 to 65536, got {chunk}"),
            })?,
        };
        let mut lookup = Lookup { cpu, loss, values, products, dtype, chunk, names: vec![] };
        let found = lookup.find("logits_softmax")?;
        let logits_softmax = lookup.softmax(found)?;
        let logits_operand = match lookup.optional("logits_operand") {
            Some(found) => {
                lookup.names.push(found.name);
                Some(lookup.softmax(found)?)
            }
            None => None,
        };
        let weight_grad_saved = match lookup.optional("weight_grad_saved") {
            Some(_) => Some(entry!(lookup, "weight_grad_saved", WeightGrad)),
            None => None,
        };
        let finish_kernel = lookup.find("finish")?;
        let Entry::Finish(finish) = finish_kernel.entry else {
            return Err(lookup.missing("finish"));
        };
        if finish_kernel.geometry.panel != logits_softmax.kernel.geometry.panel {
            return Err(lookup.missing("finish"));
        }
        let grad_kernel = lookup.find("weight_grad_recompute")?;
        let Entry::WeightGrad(weight_grad_recompute) = grad_kernel.entry else {
            return Err(lookup.missing("weight_grad_recompute"));
        };
        let unpack_accumulator = lookup.optional("unpack_accumulator").and_then(|k| match k.entry {
            Entry::UnpackAccumulator(f) => {
                lookup.names.push(k.name);
                Some(f)
            }
            _ => None,
        });
        Ok(Family {
            geometry: logits_softmax.kernel.geometry,
            chunk,
            dtype,
            pack_tokens: entry!(lookup, "pack_tokens", PackTokens),
            pack_tokens_grad: entry!(lookup, "pack_tokens_grad", PackTokens),
            pack_vocabulary: entry!(lookup, "pack_vocabulary", PackVocabulary),
            logits_softmax,
            logits_operand,
            unpack_accumulator,
            weight_grad_saved,
            weight_grad_recompute,
            merge: entry!(lookup, "merge", Merge),
            finish,
            gather_rows: entry!(lookup, "gather_rows", GatherRows),
            finish_kernel,
            grad_kernel,
            names: lookup.names,
        })
    }

    /// Names of the kernels that a policy calls.
    pub(crate) fn names(&self, saved: bool) -> Vec<&'static str> {
        let unused = if saved { "weight_grad_recompute" } else { "weight_grad_saved" };
        self.names.iter().copied().filter(|n| !n.starts_with(unused)).collect()
    }

    /// H padded to whole panels.
    pub(crate) fn padded_hidden(&self, hidden: usize) -> usize {
        hidden.next_multiple_of(self.geometry.panel)
    }

    /// What ranks have to share so that each can merge and finish the rows of the others.
    pub(crate) fn form(&self, hidden: usize) -> String {
        let operand = self.logits_operand.map(|operand| operand.kernel.bindings);
        let names = (self.logits_softmax.kernel.bindings, operand, self.finish_kernel.bindings);
        format!(
            "in format {ROW_FORMAT} of target {} in panels of {} by {}, programs {:016x}",
            self.logits_softmax.kernel.target,
            self.geometry.panel,
            self.padded_hidden(hidden),
            fingerprint(&format!("{names:?}"))
        )
    }

    /// Position of an output of the finish program.
    pub(crate) fn output(&self, name: &str) -> Result<usize> {
        let kernel = self.finish_kernel;
        kernel.bindings.outputs.iter().position(|known| *known == name).ok_or_else(|| {
            let message = format!("kernel {} does not give the output {name:?}, which the layer needs", kernel.name);
            Error::Option { option: "loss", message }
        })
    }

    /// Row statistics besides the reference, each of a row that has seen no logit.
    pub(crate) fn identities(&self) -> &'static [f32] {
        self.logits_softmax.kernel.bindings.identities
    }
}

/// How kernels spell a dtype.
pub(crate) fn stored(dtype: Dtype) -> u8 {
    match dtype {
        Dtype::F32 => abi::F32,
        Dtype::Bf16 => abi::BF16,
        Dtype::F16 => abi::F16,
    }
}

/// Values in the order in which a kernel names them.
pub(crate) fn bind<T>(kernel: &Kernel, names: &[&str], value: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    let one = |name: &&str| {
        value(name).ok_or_else(|| Error::Option {
            option: "loss",
            message: format!("kernel {} needs the input {name:?}, which the layer does not provide", kernel.name),
        })
    };
    names.iter().map(one).collect()
}

/// Inputs of a row program, owning the arrays of pointers.
pub(crate) struct ProgramInputs {
    pub(crate) classes: i32,
    pub(crate) targets: *const i32,
    pub(crate) uniforms: Vec<f32>,
    pub(crate) rows: Vec<*const f32>,
    pub(crate) columns: Vec<*const f32>,
}

// SAFETY: addresses of buffers that outlive the pass and that kernels only read.
unsafe impl Send for ProgramInputs {}
// SAFETY: as above.
unsafe impl Sync for ProgramInputs {}

impl ProgramInputs {
    /// As the kernels take them; valid while `self` is.
    pub(crate) fn view(&self) -> abi::Inputs {
        abi::Inputs {
            classes: self.classes,
            targets: self.targets,
            uniforms: self.uniforms.as_ptr(),
            rows: self.rows.as_ptr(),
            columns: self.columns.as_ptr(),
        }
    }
}

/// Values per vocabulary entry by name; null is zero.
pub(crate) fn column(inputs: &LayerInputs<'_>, name: &str) -> Option<*const f32> {
    inputs.column(name).map(|values| values.map_or(ptr::null(), <[f32]>::as_ptr))
}
