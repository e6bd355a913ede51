//! What decides a kernel's text: everything, and nothing else does. Targets and kernels are tables, a row each.

mod cpu;
mod cuda;
mod kernel;
mod spelled;
mod support;
mod target;
mod types;

pub use cpu::{Cpu, Tile};
pub(crate) use cuda::SM80_TILE;
pub use cuda::{Along, Cuda, Extent, Layout, Plan, WEIGHT_GRADIENT, Work};
pub use kernel::{KernelKind, OnCpu, OnCuda, Output, Programs, Row as KernelRow, Sees};
pub use target::{Machine, Product, Row as TargetRow, Target, default_chunks};
pub use types::{Dtype, Operand, Precision, Types};

use crate::error::SpecError;
use crate::place::Place;
use serde::{Deserialize, Serialize};

/// Chunk sizes that a kernel can be specialised for: powers of two.
pub const CHUNKS: std::ops::RangeInclusive<usize> = 256..=65536;

/// Number of vocabulary entries that a kernel works on at a time.
///
/// # Errors
/// [`SpecError::Chunk`] if it is no power of two in [`CHUNKS`].
pub fn check_chunk(chunk: usize) -> Result<usize, SpecError> {
    if chunk.is_power_of_two() && CHUNKS.contains(&chunk) { Ok(chunk) } else { Err(SpecError::Chunk { chunk }) }
}

/// Description of one kernel. Equal specifications give equal text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelSpec {
    /// Which kernel.
    pub kernel: KernelKind,
    /// Machine.
    pub target: Target,
    /// Types of tensors, operands and results.
    #[serde(flatten)]
    pub types: Types,
    /// Chunk of the vocabulary; only for kernels that depend on it. CPU kernels take it as an argument unless they are
    /// [specialised](KernelSpec::specialised).
    pub chunk: Option<usize>,
    /// Name of the loss, operator or form of the logits; only for kernels that hold its programs.
    pub loss: Option<String>,
}

impl KernelSpec {
    /// A specification without the parts that the kernel does not depend on.
    ///
    /// # Errors
    /// [`SpecError::Chunk`], or [`SpecError::Unsupported`] for a pair that no template covers.
    pub fn new(kernel: KernelKind, target: Target, dtype: Dtype, chunk: usize, loss: &str) -> Result<Self, SpecError> {
        KernelSpec::with_precision(kernel, target, dtype, None, chunk, loss)
    }

    /// As [`KernelSpec::new`], with a precision for products of f32 on targets that have none of their own.
    ///
    /// # Errors
    /// As [`KernelSpec::new`].
    pub fn with_precision(
        kernel: KernelKind,
        target: Target,
        dtype: Dtype,
        precision: Option<Precision>,
        chunk: usize,
        loss: &str,
    ) -> Result<Self, SpecError> {
        check_chunk(chunk)?;
        let operand = support::operand(kernel, target, dtype, precision)?;
        let storage = if kernel.is_typed(target) { dtype } else { Dtype::F32 };
        let output = match kernel.row().output {
            Output::Nothing => None,
            Output::F32 => Some(Dtype::F32),
            Output::Storage => Some(storage),
        };
        Ok(KernelSpec {
            kernel,
            target,
            types: Types { storage, operand, output },
            chunk: (kernel.row().chunk && target.is_cuda()).then_some(chunk),
            loss: kernel.has_programs(target).then(|| loss.to_owned()),
        })
    }

    /// The same with the chunk as a constant of its text.
    ///
    /// # Errors
    /// [`SpecError::Chunk`] if it is no power of two in [`CHUNKS`].
    pub fn specialised(self, chunk: usize) -> Result<KernelSpec, SpecError> {
        let chunk = check_chunk(chunk)?;
        Ok(KernelSpec { chunk: self.kernel.row().chunk.then_some(chunk), ..self })
    }

    /// How products of f32 are computed, if they are not exact.
    pub fn precision(&self) -> Option<Precision> {
        self.types.operand.and_then(Operand::precision)
    }

    /// Where it shares a prelude with others.
    pub fn place(&self) -> Place {
        Place { target: self.target, precision: self.precision() }
    }

    /// The name: kernel, loss, dtype, precision, chunk, target and tile, all that an expert needs to tell two kernels apart.
    pub fn name(&self) -> String {
        self.spelled(Some(self.types.storage))
    }

    /// The name of a CPU text: that of the first kernel in it, without a dtype, as others of the text may have other ones.
    pub(crate) fn text_name(&self) -> String {
        self.spelled(None)
    }

    /// Its blocking, if it is a kernel of a GPU.
    pub fn plan(&self) -> Option<Plan> {
        let (cuda, on) = (self.target.cuda()?, self.kernel.row().cuda?);
        Some((cuda.plan)(on.work, self.types.storage))
    }

    /// What its blocks take along each extent, if it is a kernel of a GPU.
    pub fn grid(&self) -> Option<Vec<Along>> {
        let (cuda, on) = (self.target.cuda()?, self.kernel.row().cuda?);
        Some((cuda.grid)(on.work))
    }

    fn spelled(&self, dtype: Option<Dtype>) -> String {
        let precision = self.precision().map(|precision| precision.to_string());
        let chunk = self.chunk.map(|chunk| format!("c{chunk}"));
        let parts = [self.loss.clone(), dtype.map(|dtype| dtype.to_string()), precision, chunk];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let name =
            if parts.is_empty() { self.kernel.to_string() } else { format!("{}__{}", self.kernel, parts.join("_")) };
        match (self.plan(), self.target.tile(self.precision())) {
            // Names of CUDA kernels are C identifiers.
            (Some(plan), _) => format!("{name}__{}_{plan}", self.target.as_str().replace('_', "")),
            (None, Some(tile)) => format!("{name}__{}_m{}n{}", self.target, tile.rows, tile.panel),
            (None, None) => name,
        }
    }
}
