//! Tiles, stages and block order of CUDA kernels for compute capability 8.0 and up.
//!
//! A warp computes 64 x 64 results: 32 products of 16 x 8 x 16 for eight matrix loads, so that shared memory keeps up with
//! the tensor cores. Eight warps make a block of 128 x 256; its results take 128 registers a thread, so one block runs on
//! a multiprocessor. Four stages of 64 bytes of the inner dimension are 96 KB, which every GPU from 8.0 on has.

use crate::spec::{Dtype, KernelKind};
use serde::{Deserialize, Serialize};
use std::fmt;

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
}

/// Rows (tokens) of a tile of E and Q.
pub const TILE_TOKENS: usize = 128;
/// Columns (vocabulary entries) of a tile of E and Q.
pub const TILE_COLUMNS: usize = 256;
/// Rows of one block of `reduce_statistics`.
pub const REDUCE_ROWS: usize = 8;

/// The blocking of a kernel.
pub fn plan(kernel: KernelKind, dtype: Dtype) -> Plan {
    if kernel.is_product() {
        let (m, n, stages) = (128, 256, 4);
        let k = 64 / dtype.size();
        // Eight tiles of 128 rows beside the columns that run with them: about a square for 108 to 132 blocks.
        Plan { m, n, k, stages, group: 8, threads: 32 * (m / 64) * (n / 64), shared: stages * (m + n) * 64 }
    } else {
        let threads = if kernel == KernelKind::FilterTiles { TILE_TOKENS } else { 256 };
        Plan { m: TILE_TOKENS, n: TILE_COLUMNS, k: 0, stages: 0, group: 0, threads, shared: 0 }
    }
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
