//! CUDA targets: compute capability, tiles, and how a kernel is launched.

use super::spelled::spelled;
use super::target::{Machine, Product, Row, Target};
use super::types::{Dtype, Operand};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What there is to know of a CUDA target.
#[derive(Debug)]
pub struct Cuda {
    /// Least compute capability of the GPUs that run its kernels, times ten.
    pub capability: u32,
    /// Rows (tokens) of a tile of E and Q.
    pub tile_tokens: usize,
    /// Columns (vocabulary entries) of a tile of E and Q.
    pub tile_columns: usize,
    /// The blocking of a kernel, by what its blocks share out and the type of the tensors.
    pub plan: fn(Work, Dtype) -> Plan,
    /// What a block takes along each extent.
    pub grid: fn(Work) -> Vec<Along>,
}

spelled! {
    /// Something that the blocks of a grid share out.
    Extent, "extent" {
        /// Parameter `tokens`.
        Tokens = "tokens",
        /// Parameter `columns`: vocabulary entries of a chunk.
        Columns = "columns",
        /// Parameter `hidden`.
        Hidden = "hidden",
        /// Rows of the tensors at hand. The kernel has no parameter for it, the host says it.
        Rows = "rows",
    }
}

/// What the blocks of a kernel share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Tiles of a matrix product.
    Product(Layout),
    /// Tiles of E or Q.
    Tiles,
    /// Tiles of E or Q, with a thread for each token.
    TileTokens,
    /// Groups of tokens.
    TokenGroups,
    /// Groups of columns.
    ColumnGroups,
    /// Rows, one a block.
    Rows,
    /// Nothing: one block does all.
    Whole,
}

/// A matrix product: what its result is wide, and whether each operand holds the inner dimension contiguously.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Rows of the result.
    pub rows: Extent,
    /// Columns of the result.
    pub columns: Extent,
    /// Of the left operand.
    pub a_inner: bool,
    /// Of the right operand.
    pub b_inner: bool,
}

/// Logits: X and W hold the hidden dimension contiguously.
pub const LOGITS: Layout = Layout { rows: Extent::Tokens, columns: Extent::Columns, a_inner: true, b_inner: true };
/// A += E W.
pub const INPUT_GRADIENT: Layout =
    Layout { rows: Extent::Tokens, columns: Extent::Hidden, a_inner: true, b_inner: false };
/// dW += transposed Q X.
pub const WEIGHT_GRADIENT: Layout =
    Layout { rows: Extent::Columns, columns: Extent::Hidden, a_inner: false, b_inner: false };

/// What a block takes along an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Along {
    /// What is shared out.
    pub extent: Extent,
    /// How many of it a block takes; the last one may take fewer.
    pub per_block: usize,
}

/// Blocking of a CUDA kernel. Of kernels that are no matrix product, only `threads` is in the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Rows of a block's tile.
    pub m: usize,
    /// Columns of a block's tile.
    pub n: usize,
    /// Elements of the inner dimension in a stage.
    pub k: usize,
    /// Stages in shared memory.
    pub stages: usize,
    /// Tile rows that walk the tile columns together.
    pub group: usize,
    /// Threads of a block.
    pub threads: usize,
    /// Dynamic shared memory in bytes.
    pub shared: usize,
    /// Blocks of a cluster; the blocks of a grid come in whole clusters.
    pub cluster: usize,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.k == 0 {
            write!(f, "t{}", self.threads)
        } else {
            write!(f, "m{}n{}k{}s{}", self.m, self.n, self.k, self.stages)
        }
    }
}

/// Chunks that keep all processors busy, while E of thousands of tokens takes little memory.
const CHUNKS: &[usize] = &[8192, 2048, 32768];

pub(super) static SM80: Row = Row {
    target: Target::Sm80,
    priority: 80,
    products: &[
        Product { storage: Dtype::Bf16, operand: Operand::Bf16, chunks: CHUNKS },
        Product { storage: Dtype::F16, operand: Operand::F16, chunks: CHUNKS },
        Product { storage: Dtype::F32, operand: Operand::Tf32, chunks: CHUNKS },
        Product { storage: Dtype::F32, operand: Operand::Tf32x3, chunks: CHUNKS },
    ],
    values: Target::Sm80,
    templates: &["cuda/sm80"],
    machine: Machine::Cuda(Cuda {
        capability: 80,
        tile_tokens: SM80_TILE.0,
        tile_columns: SM80_TILE.1,
        plan: sm80_plan,
        grid: sm80_grid,
    }),
};

/// Rows and columns of a block's tile, for compute capability 8.0 and up.
///
/// A warp computes 64 x 64 results: 32 products of 16 x 8 x 16 for eight matrix loads, so that shared memory keeps up with
/// the tensor cores. Eight warps make a block of 128 x 256; its results take 128 registers a thread, so one block runs on
/// a multiprocessor. Four stages of 64 bytes of the inner dimension are 96 KB, which every GPU from 8.0 on has.
pub(crate) const SM80_TILE: (usize, usize) = (128, 256);

fn sm80_plan(work: Work, storage: Dtype) -> Plan {
    let (m, n) = SM80_TILE;
    let plan = Plan { m, n, k: 0, stages: 0, group: 0, threads: 256, shared: 0, cluster: 1 };
    match work {
        Work::Product(_) => {
            let stages = 4;
            // Eight tiles of 128 rows beside the columns that run with them: about a square for 108 to 132 blocks.
            let shared = stages * (m + n) * 64;
            Plan { k: 64 / storage.size(), stages, group: 8, threads: 32 * (m / 64) * (n / 64), shared, ..plan }
        }
        Work::TileTokens => Plan { threads: m, ..plan },
        _ => plan,
    }
}

fn sm80_grid(work: Work) -> Vec<Along> {
    let (m, n) = SM80_TILE;
    let each = |extent, per_block| Along { extent, per_block };
    match work {
        Work::Product(Layout { rows, columns, .. }) => vec![each(rows, m), each(columns, n)],
        Work::Tiles | Work::TileTokens => vec![each(Extent::Tokens, m), each(Extent::Columns, n)],
        Work::TokenGroups => vec![each(Extent::Tokens, 8)],
        Work::ColumnGroups => vec![each(Extent::Columns, 256)],
        Work::Rows => vec![each(Extent::Rows, 1)],
        Work::Whole => vec![],
    }
}
