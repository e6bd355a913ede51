//! Packing of operands, in parallel.

use crate::Matrix;
use crate::buffer::{Buffer, SharedPointer};
use crate::memory::Memory;
use rayon::prelude::*;
use vocabfuse_kernels::abi::{self, Geometry};

/// H padded to whole panels.
pub(super) fn width(geometry: &Geometry, hidden: usize) -> usize {
    hidden.next_multiple_of(geometry.panel)
}

/// The tokens `rows` as operand of the logits. What lies behind the last token in its panel is that token again: its logits are
/// numbers wherever those of a token are, whatever W holds, while zeros times an infinite weight would be NaN. It weighs
/// nothing in pass T.
pub(super) fn tokens(
    memory: &Memory,
    geometry: &Geometry,
    kernel: unsafe fn(&abi::PackTokens),
    x: Matrix<'_>,
    rows: &[u32],
) -> Buffer<u8> {
    let mut whole = rows.to_vec();
    if let Some(last) = rows.last() {
        whole.resize(rows.len().next_multiple_of(geometry.panel), *last);
    }
    pack(memory, geometry, kernel, x, &whole)
}

/// The tokens `rows` as operand of dW, with zeros behind the last of them.
pub(super) fn tokens_grad(
    memory: &Memory,
    geometry: &Geometry,
    kernel: unsafe fn(&abi::PackTokens),
    x: Matrix<'_>,
    rows: &[u32],
) -> Buffer<u8> {
    pack(memory, geometry, kernel, x, rows)
}

fn pack(
    memory: &Memory,
    geometry: &Geometry,
    kernel: unsafe fn(&abi::PackTokens),
    x: Matrix<'_>,
    rows: &[u32],
) -> Buffer<u8> {
    let panels = rows.len().div_ceil(geometry.panel);
    let bytes = panels * geometry.panel * width(geometry, x.columns()) * geometry.packed;
    let mut packed: Buffer<u8> = memory.buffer(bytes);
    let out = packed.pointer();
    (0..panels).into_par_iter().for_each(|panel| {
        // SAFETY: rows are rows of X, the buffer holds `panels` panels, and each call writes its own.
        unsafe {
            kernel(&abi::PackTokens {
                x: x.row_pointer(0),
                row_stride: x.row_stride(),
                hidden: x.columns(),
                rows: rows.as_ptr(),
                tokens: rows.len(),
                total_panels: panels,
                first_panel: panel,
                panels: 1,
                out: out.get(),
            });
        }
    });
    packed
}

/// Bytes of some packed rows of W with their transpose.
pub(super) fn vocabulary_bytes(geometry: &Geometry, rows: usize, width: usize) -> usize {
    rows * width * (geometry.packed + geometry.packed_transpose)
}

/// Rows of W in a packed buffer.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// The first of them in W.
    pub(super) first: usize,
    pub(super) count: usize,
    /// Rows that the buffer has room for.
    pub(super) allocated: usize,
    /// Whether the transpose is wanted.
    pub(super) transpose: bool,
}

/// Packs some rows of W, in blocks.
pub(super) fn vocabulary(
    geometry: &Geometry,
    kernel: unsafe fn(&abi::PackVocabulary),
    w: Matrix<'_>,
    rows: Rows,
    out: SharedPointer<u8>,
) {
    let block = 64usize.next_multiple_of(geometry.row_block);
    (0..rows.allocated.div_ceil(block)).into_par_iter().for_each(|i| {
        // SAFETY: the rows are rows of W, the buffer holds `allocated` rows, and each call packs its own block of them.
        unsafe {
            kernel(&abi::PackVocabulary {
                w: w.row_pointer(rows.first),
                row_stride: w.row_stride(),
                hidden: w.columns(),
                rows: rows.count,
                allocated_rows: rows.allocated,
                first_row: i * block,
                end_row: ((i + 1) * block).min(rows.allocated),
                transpose: rows.transpose,
                out: out.get(),
            });
        }
    });
}
