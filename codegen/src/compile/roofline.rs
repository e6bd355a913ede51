//! How long the passes take at least, by counts of operations and bytes.

use crate::spec::SM80_TILE;

/// A GPU, by its published figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Name.
    pub name: &'static str,
    /// Dense bf16 operations a second that `mma.sync` reaches.
    pub operations: f64,
    /// Bytes a second to and from memory.
    pub bandwidth: f64,
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Cycles that a scheduler's tensor core takes for a product of 16 x 8 x 16.
    pub cycles_a_product: f64,
}

/// A100 with 80 GB.
pub const A100: Gpu =
    Gpu { name: "A100", operations: 312e12, bandwidth: 2.04e12, multiprocessors: 108, cycles_a_product: 8.0 };

/// H200. `mma.sync` reaches about 63 % of what the warp-group instructions of sm_90a do (989e12).
pub const H200: Gpu =
    Gpu { name: "H200", operations: 0.63 * 989e12, bandwidth: 4.8e12, multiprocessors: 132, cycles_a_product: 6.3 };

/// Tokens, hidden size and vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// N
    pub tokens: usize,
    /// H
    pub hidden: usize,
    /// V of the shard.
    pub vocab: usize,
}

/// The shapes that kernels are compared at.
pub const SHAPES: [Sizes; 3] = [
    Sizes { tokens: 4096, hidden: 4096, vocab: 128_256 },
    Sizes { tokens: 8192, hidden: 2304, vocab: 256_000 },
    Sizes { tokens: 2048, hidden: 4096, vocab: 32_000 },
];

/// Work of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Operations of the matrix products.
    pub operations: f64,
    /// Bytes moved to and from memory, each operand of a kernel once.
    pub bytes: f64,
    /// Operations of the tiles that the multiprocessors compute, whole waves of them, over `operations`.
    pub waves: f64,
}

impl Work {
    /// Bytes for each operation.
    pub fn bytes_per_operation(&self) -> f64 {
        self.bytes / self.operations
    }

    /// Seconds at least: the longer of products, in whole waves, and memory.
    pub fn seconds(&self, gpu: Gpu) -> f64 {
        (self.waves / gpu.operations).max(self.bytes / gpu.bandwidth)
    }
}

// Operations of a product whose last wave is as long as the others, one block of 128 x 256 a multiprocessor.
fn waves(gpu: Gpu, rows: usize, columns: usize, inner: usize) -> f64 {
    let (m, n) = SM80_TILE;
    let tiles = rows.div_ceil(m) * columns.div_ceil(n);
    let whole = tiles.div_ceil(gpu.multiprocessors) * gpu.multiprocessors;
    2.0 * (whole * m * n) as f64 * inner as f64
}

/// Pass S: logits, statistics and A, chunk by chunk, with values of `element` bytes.
pub fn pass_s(sizes: Sizes, chunk: usize, element: usize, gpu: Gpu) -> Work {
    let (n, h) = (sizes.tokens as f64, sizes.hidden as f64);
    let mut work = Work::default();
    for start in (0..sizes.vocab).step_by(chunk) {
        let columns = chunk.min(sizes.vocab - start);
        let c = columns as f64;
        work.operations += 4.0 * n * c * h;
        work.waves += waves(gpu, sizes.tokens, columns, sizes.hidden) + waves(gpu, sizes.tokens, sizes.hidden, columns);
        // X, W twice, E written and read, A read and written (not read in the first chunk).
        let a = if start == 0 { 1.0 } else { 2.0 };
        work.bytes += element as f64 * (n * h + 2.0 * c * h + 2.0 * n * c) + 4.0 * a * n * h;
    }
    work
}

/// Pass T, from saved E or from recomputed logits; dW is read and written.
pub fn pass_t(sizes: Sizes, chunk: usize, element: usize, saved: bool, gpu: Gpu) -> Work {
    let (n, h) = (sizes.tokens as f64, sizes.hidden as f64);
    let mut work = Work::default();
    for start in (0..sizes.vocab).step_by(chunk) {
        let columns = chunk.min(sizes.vocab - start);
        let c = columns as f64;
        work.operations += if saved { 2.0 } else { 4.0 } * n * c * h;
        work.waves += waves(gpu, columns, sizes.hidden, sizes.tokens);
        // Q written and read, X, dW; then E read, or X and W.
        work.bytes += element as f64 * (2.0 * n * c + n * h) + 8.0 * c * h;
        if saved {
            work.bytes += element as f64 * n * c;
        } else {
            work.waves += waves(gpu, sizes.tokens, columns, sizes.hidden);
            work.bytes += element as f64 * (n * h + c * h);
        }
    }
    work
}
