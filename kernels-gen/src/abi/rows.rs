//! Arguments of the kernels of operators: products that write or read tiles of f32, and row programs between them.
//!
//! A tile is `[column][token of a panel]` f32; tiles of consecutive panels lie `stride` elements apart.

use super::{Blocking, Inputs};

/// Raw dot products of some panels and the rows of one packed chunk of W.
#[derive(Clone, Copy, Debug)]
pub struct RawLogits {
    /// Sizes of blocks.
    pub blocking: Blocking,
    /// H.
    pub hidden: usize,
    /// Rows of the chunk that exist.
    pub columns: usize,
    /// `allocated_rows` of `w`.
    pub allocated_rows: usize,
    /// First panel of tokens.
    pub first_panel: usize,
    /// Number of panels, at most [`Blocking::panels`].
    pub panels: usize,
    /// X from `pack_tokens`, all panels.
    pub x: *const u8,
    /// The chunk of W from `pack_vocabulary`.
    pub w: *const u8,
    /// Tile of the first panel.
    pub out: *mut f32,
    /// Elements from one tile to the next.
    pub stride: usize,
}

/// Where the rows and columns of tiles belong.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// First panel of tokens.
    pub first_panel: usize,
    /// Number of panels.
    pub panels: usize,
    /// Shard-local id of the first column.
    pub first_column: usize,
    /// Columns.
    pub columns: usize,
    /// Elements from one tile to the next.
    pub stride: usize,
}

/// Raw dot products to logits, in place.
#[derive(Clone, Copy, Debug)]
pub struct RowLogits {
    /// Inputs of the program.
    pub inputs: Inputs,
    /// Of the tiles.
    pub place: Place,
    /// Tile of the first panel.
    pub tiles: *mut f32,
    /// Derivatives of capped logits by uncapped ones, in tiles as those of the logits; null if nobody wants them or logits
    /// have no cap.
    pub slopes: *mut f32,
}

/// Selected ids of each token: arrays `[slot][token]`.
#[derive(Clone, Copy, Debug)]
pub struct Selection {
    /// Number of slots.
    pub slots: usize,
    /// Elements from one slot to the next.
    pub stride: usize,
    /// Shard-local id, negative if another shard owns it or nothing is selected.
    pub ids: *const i32,
    /// Sum of the weights of all slots of the token with this id; null if nobody reads weights.
    pub weights: *const f32,
}

/// The largest columns of each token so far: arrays `[slot][token]`, the largest first.
#[derive(Clone, Copy, Debug)]
pub struct Top {
    /// Number of slots.
    pub slots: usize,
    /// Elements from one slot to the next.
    pub stride: usize,
    /// Values.
    pub values: *mut f32,
    /// What is added to the values where they are compared.
    pub noise: *mut f32,
    /// Shard-local ids, -1 in free slots.
    pub ids: *mut i32,
}

/// Statistics of some panels over the columns of one chunk.
#[derive(Clone, Copy, Debug)]
pub struct RowStatistics {
    /// Inputs of the program.
    pub inputs: Inputs,
    /// Of the tiles.
    pub place: Place,
    /// Logits of each distribution: tile of the first panel.
    pub tiles: [*const f32; 2],
    /// Per-token arrays: the references, then the statistics in order, then what the sums among these have lost.
    pub state: *const *mut f32,
    /// Selected ids.
    pub selection: Selection,
    /// One array `[slot][token]` for each value at selected ids, in the order of the program.
    pub selected: *const *mut f32,
    /// The largest columns.
    pub top: Top,
    /// Keys of the random numbers of each token.
    pub random: [*const u32; 2],
    /// Global id of the shard's first column.
    pub first_id: u32,
}

/// Derivatives of some panels by the raw dot products of one chunk.
#[derive(Clone, Copy, Debug)]
pub struct RowGradient {
    /// Inputs of the program.
    pub inputs: Inputs,
    /// Of the tiles.
    pub place: Place,
    /// Logits of each distribution: tile of the first panel.
    pub tiles: [*const f32; 2],
    /// Derivatives of capped logits by uncapped ones, of the distribution of the gradient; null where logits have no cap.
    pub slopes: *const f32,
    /// Q: tile of the first panel, with the stride of the logits; it may be one of those.
    pub out: *mut f32,
    /// Selected ids and their weights.
    pub selection: Selection,
    /// `slots * panel * 2` values.
    pub scratch: *mut f32,
}

/// A += Q W for some panels and one packed chunk of W.
#[derive(Clone, Copy, Debug)]
pub struct InputGrad {
    /// H.
    pub hidden: usize,
    /// Rows of the chunk that exist.
    pub columns: usize,
    /// `allocated_rows` of `w`.
    pub allocated_rows: usize,
    /// First panel of tokens.
    pub first_panel: usize,
    /// Number of panels, at most [`Blocking::panels`].
    pub panels: usize,
    /// Q: tile of the first panel.
    pub q: *const f32,
    /// Elements from one tile to the next.
    pub stride: usize,
    /// The chunk of W from `pack_vocabulary`.
    pub w: *const u8,
    /// A, as pass S leaves it.
    pub a: *mut f32,
    /// Scratch of this call: that of `logits_softmax` for as many columns as are allocated.
    pub scratch: *mut u8,
}

/// dW += Qᵀ X for some columns of the tiles, and the sums of these columns.
#[derive(Clone, Copy, Debug)]
pub struct VocabularyGrad {
    /// Sizes of blocks; `columns` is at most its `grad_rows`.
    pub blocking: Blocking,
    /// H.
    pub hidden: usize,
    /// First column within the tiles.
    pub first_column: usize,
    /// Number of columns.
    pub columns: usize,
    /// Panels of tokens: all.
    pub panels: usize,
    /// Q: tile of the first panel.
    pub q: *const f32,
    /// Elements from one tile to the next.
    pub stride: usize,
    /// X from `pack_tokens_grad`; null leaves out dW.
    pub x_grad: *const u8,
    /// Row of dW of the first of these columns, row-major f32, added to.
    pub dw: *mut f32,
    /// Elements from one row of dW to the next.
    pub dw_stride: usize,
    /// Sums of the columns over all tokens, from the first of these columns on, times `sum_factor`, added to; null skips.
    pub sums: *mut f32,
    /// Factor on the sums.
    pub sum_factor: f32,
    /// Scratch of this call: that of `weight_grad`.
    pub scratch: *mut u8,
}
