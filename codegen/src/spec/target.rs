//! Targets, a row each. A new one is a row here, a folder of templates and, for a new language, a lowering.

use super::cpu::{self, Cpu, Tile};
use super::cuda::{self, Cuda};
use super::spelled::spelled;
use super::types::{Dtype, Operand, Precision};

spelled! {
    /// Machine that the text is for.
    Target, "target" {
        /// Plain Rust, any CPU.
        Scalar = "scalar",
        /// x86-64 with AVX2, FMA and F16C.
        Avx2 = "avx2",
        /// x86-64 with AVX-512 F, BW, DQ and VL.
        Avx512 = "avx512",
        /// x86-64 with AVX-512 and its products of bf16 pairs, for processors on which those outrun f32.
        Avx512Bf16 = "avx512bf16",
        /// x86-64 with AMX bf16 tiles beside AVX-512 and its bf16 conversions; Linux.
        Amx = "amx",
        /// NVIDIA GPUs of compute capability 8.0 and up: mma.sync, ldmatrix, cp.async.
        Sm80 = "sm_80",
    }
}

/// The rows, in the order of [`Target::ALL`].
static ROWS: [&Row; Target::ALL.len()] =
    [&cpu::SCALAR, &cpu::AVX2, &cpu::AVX512, &cpu::AVX512_BF16, &cpu::AMX, &cuda::SM80];

/// What there is to know of a target.
#[derive(Debug)]
pub struct Row {
    /// Of which this is the row.
    pub target: Target,
    /// The larger, the faster; of the targets that a machine has, the largest is used.
    pub priority: u32,
    /// What its matrix products can multiply.
    pub products: &'static [Product],
    /// Whose kernels the same machine runs where nothing is multiplied.
    pub values: Target,
    /// Folders of templates. A kernel's template is in the first of them that has it.
    pub templates: &'static [&'static str],
    /// What kind of machine it is.
    pub machine: Machine,
}

/// A product that a target has.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Type of X and W.
    pub storage: Dtype,
    /// What they are multiplied as.
    pub operand: Operand,
    /// Chunk sizes; the first is what runs unless a policy names another one, the others are those of the checked-in
    /// kernels of GPUs.
    pub chunks: &'static [usize],
}

/// What kind of machine a target is, and with it the language of its kernels.
#[derive(Debug)]
pub enum Machine {
    /// Kernels are Rust text.
    Cpu(Cpu),
    /// Kernels are CUDA text.
    Cuda(Cuda),
}

impl Target {
    /// What there is to know of the target.
    pub fn row(self) -> &'static Row {
        ROWS[self as usize]
    }

    /// Targets whose kernels are Rust text.
    pub fn cpus() -> impl Iterator<Item = Target> {
        Target::ALL.iter().copied().filter(|target| target.cpu().is_some())
    }

    /// Targets whose kernels are CUDA text.
    pub fn gpus() -> impl Iterator<Item = Target> {
        Target::ALL.iter().copied().filter(|target| target.cuda().is_some())
    }

    /// Its row as a CPU.
    pub fn cpu(self) -> Option<&'static Cpu> {
        match &self.row().machine {
            Machine::Cpu(cpu) => Some(cpu),
            Machine::Cuda(_) => None,
        }
    }

    /// Its row as a GPU.
    pub fn cuda(self) -> Option<&'static Cuda> {
        match &self.row().machine {
            Machine::Cuda(cuda) => Some(cuda),
            Machine::Cpu(_) => None,
        }
    }

    /// Whether the kernels are CUDA text.
    pub fn is_cuda(self) -> bool {
        self.cuda().is_some()
    }

    /// The product of tensors of a dtype: the exact one, or the one of a precision.
    pub fn product(self, dtype: Dtype, precision: Option<Precision>) -> Option<Product> {
        let wanted = |p: &&Product| p.storage == dtype && p.operand.precision() == precision;
        self.row().products.iter().find(wanted).copied()
    }

    /// Whether exact products of f32 are all that it multiplies, whatever tensors are made of.
    pub fn multiplies_f32(self) -> bool {
        self.product(Dtype::F32, None).is_some()
    }

    /// Register tile and blocks of a CPU target for products of a precision; none for a GPU.
    pub fn tile(self, precision: Option<Precision>) -> Option<Tile> {
        let operand = self.row().products.iter().map(|p| p.operand).find(|o| o.precision() == precision);
        Some(self.cpu()?.tile.of(operand.filter(|o| o.precision().is_some())))
    }
}

impl Precision {
    /// Whether a target has products of f32 in this precision.
    pub fn is_on(self, target: Target) -> bool {
        target.product(Dtype::F32, Some(self)).is_some()
    }
}

/// Chunk sizes of a target, a dtype and a precision, see [`Product::chunks`]; of a combination without products, those of
/// the target's first one.
pub fn default_chunks(target: Target, dtype: Dtype, precision: Option<Precision>) -> &'static [usize] {
    target.product(dtype, precision).map_or(target.row().products[0].chunks, |product| product.chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_its_row() {
        for target in Target::ALL {
            let row = target.row();
            assert_eq!(row.target, *target);
            assert!(!row.products.is_empty() && !row.templates.is_empty(), "{target}");
            assert_eq!(row.values.row().values, row.values, "{target}: what multiplies nothing runs where it is");
        }
    }
}
