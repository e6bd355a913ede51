//! Register tiles and blocks of CPU kernels.

use crate::spec::{Precision, Target};
use serde::Serialize;

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

/// The tile of a CPU target for products of a precision, `None` for those that the target has by itself.
pub fn tile(target: Target, precision: Option<Precision>) -> Tile {
    match precision {
        Some(Precision::Bf16x3) => split(exact(target)),
        _ => exact(target),
    }
}

// Operands of three times the bytes: a third of the elements has the same place, rounded to a power of two.
fn split(tile: Tile) -> Tile {
    Tile { terms: 3, vocabulary_block: tile.vocabulary_block / 4, grad_panels: tile.grad_panels / 2, ..tile }
}

// 28 of 32 zmm registers (12 of 16 ymm) hold the accumulators, the rest one row of the streamed operand and a broadcast.
fn exact(target: Target) -> Tile {
    match target {
        // Vectors are arrays of eight: one AVX register, two of SSE or NEON.
        Target::Scalar | Target::Sm80 => Tile {
            lanes: 8,
            panel: 8,
            rows: 4,
            row_block: 1,
            inner: 1,
            terms: 1,
            k_block: 512,
            vocabulary_block: 512,
            grad_panels: 16,
        },
        Target::Avx2 => Tile {
            lanes: 8,
            panel: 16,
            rows: 6,
            row_block: 1,
            inner: 1,
            terms: 1,
            k_block: 512,
            vocabulary_block: 512,
            grad_panels: 16,
        },
        Target::Avx512 => Tile {
            lanes: 16,
            panel: 32,
            rows: 14,
            row_block: 1,
            inner: 1,
            terms: 1,
            k_block: 512,
            vocabulary_block: 512,
            grad_panels: 16,
        },
        // Packed operands have half the bytes of f32, so that twice the blocks have the same place. With 32 panels dW is
        // read and written once in 1024 tokens.
        Target::Avx512Bf16 => Tile {
            lanes: 16,
            panel: 32,
            rows: 14,
            row_block: 32,
            inner: 2,
            terms: 1,
            k_block: 512,
            vocabulary_block: 512,
            grad_panels: 32,
        },
        // 2 x 2 tiles of 16 x 16; K slices of 512 keep a 32 KB operand slice in L1.
        Target::Amx => Tile {
            lanes: 16,
            panel: 32,
            rows: 32,
            row_block: 32,
            inner: 2,
            terms: 1,
            k_block: 512,
            vocabulary_block: 512,
            grad_panels: 32,
        },
    }
}
