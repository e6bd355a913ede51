//! CPU targets: features, register tiles and blocks.

use super::target::{Machine, Product, Row, Target};
use super::types::{Dtype, Operand};
use serde::Serialize;

/// What there is to know of a CPU target.
#[derive(Debug)]
pub struct Cpu {
    /// Where its kernels can be compiled, as a condition of `cfg`; none for everywhere.
    pub condition: Option<&'static str>,
    /// Features of the processor that its kernels use, in the spelling of `target_feature`.
    pub features: &'static [&'static str],
    /// Register tile and blocks of exact products.
    pub tile: Tile,
    /// Whether pass S lays A out in blocks of tiles, which a kernel of its own unpacks, and not in panels of tokens.
    pub blocks_accumulator: bool,
    /// Whether its products are dot products of pairs from vectors, which some processors do slowly.
    pub pairs: bool,
}

/// Tile and blocks of a CPU target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tile {
    /// f32 lanes of a vector.
    pub lanes: usize,
    /// Tokens a panel, and columns of a register tile.
    pub panel: usize,
    /// Rows of a register tile.
    pub rows: usize,
    /// Multiple to which packed vocabulary rows are padded.
    pub row_block: usize,
    /// Inner elements that one instruction multiplies in a lane, side by side in packed operands: pairs of bf16, else 1.
    pub inner: usize,
    /// Products that stand for one, and packed elements that an inner element becomes: three for bf16x3.
    pub terms: usize,
    /// Inner elements of one product of a block of tiles, whose operands stay in L1; AMX, others are told.
    pub k_block: usize,
    /// Vocabulary entries that one A += E W runs over: a panel of E stays near.
    pub vocabulary_block: usize,
    /// Panels whose Q one block of pass T holds: the more, the less often dW is read and written.
    pub grad_panels: usize,
}

impl Tile {
    /// The tile of products of an operand that stands for f32 in parts, `None` for exact products.
    pub(super) fn of(self, operand: Option<Operand>) -> Tile {
        match operand {
            // Operands of three times the bytes: a third of the elements has the same place, rounded to a power of two.
            Some(Operand::Bf16x3) => Tile {
                terms: 3,
                vocabulary_block: self.vocabulary_block / 4,
                grad_panels: self.grad_panels / 2,
                ..self
            },
            _ => self,
        }
    }
}

const VECTORS: Tile = Tile {
    lanes: 8,
    panel: 8,
    rows: 4,
    row_block: 1,
    inner: 1,
    terms: 1,
    k_block: 512,
    vocabulary_block: 512,
    grad_panels: 16,
};

// Packed operands have half the bytes of f32, so that twice the blocks have the same place. With 32 panels dW is read and
// written once in 1024 tokens.
const PAIRS: Tile = Tile { lanes: 16, panel: 32, rows: 14, row_block: 32, inner: 2, grad_panels: 32, ..VECTORS };

/// On CPUs a packed chunk of W waits in L2 or L3 for both products of pass S, and logits of a block of tokens in L2; the
/// smaller a chunk is, the oftener A is read and written. W is packed twice for vectors of bf16, and takes three times the
/// bytes in bf16x3: these have the smallest chunk.
const IN_F32: &[Product] = &[
    Product { storage: Dtype::F32, operand: Operand::F32, chunks: &[512] },
    Product { storage: Dtype::Bf16, operand: Operand::F32, chunks: &[512] },
    Product { storage: Dtype::F16, operand: Operand::F32, chunks: &[512] },
];

const BF16X3: Product = Product { storage: Dtype::F32, operand: Operand::Bf16x3, chunks: &[256] };

const X86: Option<&str> = Some("target_arch = \"x86_64\"");
const VECTORS_512: &[&str] = &["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"];
const PAIRS_512: &[&str] = &["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16", "avx2", "fma", "f16c"];

pub(super) static SCALAR: Row = Row {
    target: Target::Scalar,
    priority: 0,
    products: IN_F32,
    values: Target::Scalar,
    templates: &["cpu"],
    // Vectors are arrays of eight: one AVX register, two of SSE or NEON.
    machine: Machine::Cpu(Cpu {
        condition: None,
        features: &[],
        tile: VECTORS,
        blocks_accumulator: false,
        pairs: false,
    }),
};

// 28 of 32 zmm registers (12 of 16 ymm) hold the accumulators, the rest one row of the streamed operand and a broadcast.
pub(super) static AVX2: Row = Row {
    target: Target::Avx2,
    priority: 10,
    products: IN_F32,
    values: Target::Avx2,
    templates: &["cpu"],
    machine: Machine::Cpu(Cpu {
        condition: X86,
        features: &["avx2", "fma", "f16c"],
        tile: Tile { panel: 16, rows: 6, ..VECTORS },
        blocks_accumulator: false,
        pairs: false,
    }),
};

pub(super) static AVX512: Row = Row {
    target: Target::Avx512,
    priority: 20,
    products: IN_F32,
    values: Target::Avx512,
    templates: &["cpu"],
    machine: Machine::Cpu(Cpu {
        condition: X86,
        features: VECTORS_512,
        tile: Tile { lanes: 16, panel: 32, rows: 14, ..VECTORS },
        blocks_accumulator: false,
        pairs: false,
    }),
};

pub(super) static AVX512_BF16: Row = Row {
    target: Target::Avx512Bf16,
    priority: 30,
    products: &[Product { storage: Dtype::Bf16, operand: Operand::Bf16, chunks: &[256] }, BF16X3],
    values: Target::Avx512,
    templates: &["cpu/avx512bf16", "cpu/bf16", "cpu"],
    machine: Machine::Cpu(Cpu {
        condition: X86,
        features: PAIRS_512,
        tile: PAIRS,
        blocks_accumulator: true,
        pairs: true,
    }),
};

pub(super) static AMX: Row = Row {
    target: Target::Amx,
    priority: 40,
    products: &[Product { storage: Dtype::Bf16, operand: Operand::Bf16, chunks: &[512] }, BF16X3],
    values: Target::Avx512,
    templates: &["cpu/amx", "cpu/bf16", "cpu"],
    // Tiles are written as assembler text, so that the compiler need not know them; the kernel of Linux hands them out.
    machine: Machine::Cpu(Cpu {
        condition: Some("all(target_arch = \"x86_64\", target_os = \"linux\")"),
        features: PAIRS_512,
        // 2 x 2 tiles of 16 x 16; K slices of 512 keep a 32 KB operand slice in L1.
        tile: Tile { rows: 32, ..PAIRS },
        blocks_accumulator: true,
        pairs: false,
    }),
};
