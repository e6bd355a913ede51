//! What a CPU kernel is called with. Every kernel takes one of these structures by reference.
//!
//! Pointers are raw because a kernel writes disjoint parts of shared buffers from many threads. The caller of a kernel
//! guarantees, for every field: the pointer is valid for the extent given in its documentation, aligned to 64 bytes
//! where it points to a buffer of the runtime, and what is written is not read or written by anybody else meanwhile.
//!
//! Tokens come in panels of [`Geometry::panel`]; buffers that hold a value per token are padded to whole panels.

mod rows;

pub use rows::*;

/// Blocking of a kernel family: fixed when its text is generated, needed by the host to size buffers.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Tokens a panel; also the multiple to which H is padded in packed operands and in A.
    pub panel: usize,
    /// Vocabulary rows come in multiples of this in packed operands.
    pub row_block: usize,
    /// Bytes of one packed element of X, of W as operand of the logits, and of Q.
    pub packed: usize,
    /// Bytes of one element of the transpose of W that `pack_vocabulary` puts behind W for A += E W; 0 where W serves.
    pub packed_transpose: usize,
    /// Vocabulary entries whose E of a panel is at hand at a time, at most a chunk, and bytes of one of its elements.
    pub e_columns: usize,
    /// See `e_columns`.
    pub e_bytes: usize,
    /// Whether the logits product keeps W of [`Blocking::inner`] elements of H at a time near, and not W of all of H.
    pub slices_inner: bool,
    /// Panels whose Q is at hand at a time: the more, the less often dW is read and written. At most [`MOST_GRAD_PANELS`].
    pub grad_panels: usize,
    /// Scratch bytes of one call of `logits_softmax`, for a chunk and the panels of the call.
    pub softmax_scratch: fn(chunk: usize, panels: usize) -> usize,
    /// Scratch bytes of one call of `weight_grad`.
    pub grad_scratch: fn(&Blocking) -> usize,
}

/// Most panels of a block of pass T.
pub const MOST_GRAD_PANELS: usize = 64;

/// How much of what a kernel takes at a time, which the host chooses from the sizes of the caches. Results depend on it by
/// rounding at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// Elements of H that the logits product runs over at a time, a multiple of the panel: a panel of X stays in L1.
    pub inner: usize,
    /// Vocabulary rows whose packed form over `inner` stays in L2 while panels pass, a multiple of the row block.
    pub vocabulary: usize,
    /// Panels that share one read of W in pass S, and in pass T where it recomputes logits: E stays in L2.
    pub panels: usize,
    /// Panels of a block of pass T, at most [`MOST_GRAD_PANELS`].
    pub grad_panels: usize,
    /// Blocks of X, a panel of tokens by a strip of H, that stay in L2 while rows of Q pass: with few tokens that is all
    /// of H, and dW is read and written in its order.
    pub grad_blocks: usize,
    /// Vocabulary rows of one call of `weight_grad`, a multiple of the row block: Q stays in L2.
    pub grad_rows: usize,
}

/// Inputs of row programs, in the order in which the program names them.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// Real vocabulary entries of the shard.
    pub classes: i32,
    /// Shard-local target of each token, negative if another shard owns it.
    pub targets: *const i32,
    /// Scalars.
    pub uniforms: *const f32,
    /// One array per row input, a value per token.
    pub rows: *const *const f32,
    /// One array per column input, a value per vocabulary entry of the shard; null reads as zero.
    pub columns: *const *const f32,
}

impl Inputs {
    /// Scalar `index`.
    ///
    /// # Safety
    /// `uniforms` holds more than `index` values.
    #[inline(always)]
    pub unsafe fn uniform(&self, index: usize) -> f32 {
        // SAFETY: the caller answers for the index.
        unsafe { *self.uniforms.add(index) }
    }

    /// Row input `index` from `token` on.
    ///
    /// # Safety
    /// `rows` holds more than `index` arrays of more than `token` values.
    #[inline(always)]
    pub unsafe fn row(&self, index: usize, token: usize) -> *const f32 {
        // SAFETY: the caller answers for the array, and for a value at `token`.
        unsafe { (*self.rows.add(index)).add(token) }
    }

    /// Column input `index` at shard-local `column`, zero if the caller has none.
    ///
    /// # Safety
    /// `columns` holds more than `index` arrays, each null or of more than `column` values.
    #[inline(always)]
    pub unsafe fn column(&self, index: usize, column: i32) -> f32 {
        // SAFETY: the caller answers for the array, and for a value at `column` where it is not null.
        unsafe {
            let array = *self.columns.add(index);
            if array.is_null() { 0.0 } else { *array.add(column as usize) }
        }
    }
}

/// Packs rows of X for a matrix product: `pack_tokens` (operand of the logits) and `pack_tokens_grad` (operand of dW).
#[derive(Clone, Copy, Debug)]
pub struct PackTokens {
    /// X, row-major, of the kernel's dtype.
    pub x: *const u8,
    /// Elements from one row of X to the next.
    pub row_stride: usize,
    /// H.
    pub hidden: usize,
    /// Row of X of each token.
    pub rows: *const u32,
    /// Tokens; the rest of the last panel is packed as zeros.
    pub tokens: usize,
    /// Panels in the whole packed buffer.
    pub total_panels: usize,
    /// First panel to pack.
    pub first_panel: usize,
    /// Number of panels to pack.
    pub panels: usize,
    /// The packed buffer: `total_panels * panel * padded H` elements.
    pub out: *mut u8,
}

/// Packs rows of W for the matrix products.
#[derive(Clone, Copy, Debug)]
pub struct PackVocabulary {
    /// First of the rows of W that belong to the packed buffer, of the kernel's dtype.
    pub w: *const u8,
    /// Elements from one row of W to the next.
    pub row_stride: usize,
    /// H.
    pub hidden: usize,
    /// Rows in `w`; packed rows from here to `allocated_rows` are zeros.
    pub rows: usize,
    /// Rows in the packed buffer, a multiple of the row block.
    pub allocated_rows: usize,
    /// First row to pack, a multiple of the row block.
    pub first_row: usize,
    /// One past the last row to pack, a multiple of the row block or `allocated_rows`.
    pub end_row: usize,
    /// Whether the transpose is wanted, by families that have one.
    pub transpose: bool,
    /// The packed buffer: `allocated_rows * padded H` elements, and as many of the transpose if it is wanted.
    pub out: *mut u8,
}

/// Tiles of tokens by vocabulary entries that the gradient filter has looked at: each the least that a product can leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileCount {
    /// All of them.
    pub tiles: u64,
    /// Those that were left out of the product.
    pub skipped: u64,
}

impl TileCount {
    /// Counts tiles of which some were kept.
    pub fn add(&mut self, tiles: u64, kept: u64) {
        self.tiles += tiles;
        self.skipped += tiles - kept;
    }
}

/// What a call of `logits_softmax` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    /// Logits and statistics.
    Statistics,
    /// Logits, statistics and A += E W.
    All,
    /// A += E W from saved E, relative to the final reference in `state`.
    AccumulateSaved,
}

/// Fused pass S of some panels of tokens over one chunk of the vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct LogitsSoftmax {
    /// Inputs of the statistics program.
    pub inputs: Inputs,
    /// What to do.
    pub stages: Stages,
    /// Sizes of blocks.
    pub blocking: Blocking,
    /// H.
    pub hidden: usize,
    /// Shard-local id of the chunk's first column.
    pub first_column: usize,
    /// Columns of the chunk that exist.
    pub columns: usize,
    /// Columns of a whole chunk, a multiple of 64 and of the row block.
    pub chunk: usize,
    /// First panel of tokens.
    pub first_panel: usize,
    /// Number of panels.
    pub panels: usize,
    /// X from `pack_tokens`, all panels.
    pub x: *const u8,
    /// The chunk of W from `pack_vocabulary`, `allocated_rows` = the chunk size.
    pub w: *const u8,
    /// Per-token arrays: the reference, then the statistics in order, then what the sums among these have lost.
    pub state: *const *mut f32,
    /// A, `[tokens, padded H]` row-major f32 (see [`UnpackAccumulator`] for families that lay it out otherwise).
    pub a: *mut f32,
    /// Saved E of this chunk, `padded tokens * chunk` elements of the store dtype; null when not saved.
    pub saved: *mut u8,
    /// Per-token references that the saved E of this chunk is relative to; null when not saved.
    pub saved_reference: *mut f32,
    /// Tiles of E whose values are all at most this share of their row's sum so far are left out of A.
    pub filter: f32,
    /// Counts tiles if there is a filter; null keeps all.
    pub filtered: *mut TileCount,
    /// Scratch of this call.
    pub scratch: *mut u8,
}

/// Turns A of some panels into `[tokens, padded H]` row-major f32, in place, after the last chunk.
#[derive(Clone, Copy, Debug)]
pub struct UnpackAccumulator {
    /// H.
    pub hidden: usize,
    /// First panel of tokens.
    pub first_panel: usize,
    /// Number of panels.
    pub panels: usize,
    /// A.
    pub a: *mut f32,
    /// Scratch: one panel of A.
    pub scratch: *mut u8,
}

/// Pass T for some rows of the vocabulary: dW += Qᵀ X or dW = Qᵀ X, where Q is what the gradient program stores.
///
/// Sums over tokens have two levels: blocks of [`Blocking::grad_panels`] panels, B tokens, are added to dW. Among terms of one
/// sign the relative error over N tokens is at most about (B + N / B) 2^-24. The gradients of column inputs add their blocks up
/// in f64, so that their error does not grow with N.
#[derive(Clone, Copy, Debug)]
pub struct WeightGrad {
    /// Inputs of the gradient program.
    pub inputs: Inputs,
    /// Inputs of the statistics program, which the recomputing kernel runs first.
    pub statistics_inputs: Inputs,
    /// Sizes of blocks; `columns` is at most its `grad_rows`.
    pub blocking: Blocking,
    /// H.
    pub hidden: usize,
    /// Shard-local id of the first row.
    pub first_column: usize,
    /// Rows of this call.
    pub columns: usize,
    /// Panels of tokens.
    pub panels: usize,
    /// X from `pack_tokens_grad`.
    pub x_grad: *const u8,
    /// X from `pack_tokens`, for recomputing.
    pub x: *const u8,
    /// The rows of W from `pack_vocabulary`, for recomputing.
    pub w: *const u8,
    /// `allocated_rows` of `w`.
    pub allocated_rows: usize,
    /// Final reference of each token.
    pub reference: *const f32,
    /// Columns of a whole chunk, as in pass S.
    pub chunk: usize,
    /// Saved E of the chunk that holds the rows.
    pub saved: *const u8,
    /// First of the rows within that chunk, a multiple of the row block.
    pub saved_row: usize,
    /// References that the saved E is relative to.
    pub saved_reference: *const f32,
    /// Row `first_column` of dW, row-major f32.
    pub dw: *mut f32,
    /// The same of a dW in the kernel's dtype, to which sums are then rounded once; null for one in f32, and with more panels
    /// than [`Blocking::grad_panels`], since sums are whole only at the end.
    pub rounded: *mut u8,
    /// Elements from one row of dW to the next.
    pub dw_stride: usize,
    /// Whether dW is added to, and not overwritten. Always so with a filter: what it leaves out is not written.
    pub accumulate: bool,
    /// Gradients of the column inputs in the order of the program, each from `first_column` on, added to; null skips.
    pub column_gradients: *const *mut f32,
    /// Tiles of Q whose values are all at most this, for each token, are left out of dW; negative behind the last token.
    pub limits: *const f32,
    /// Counts tiles if there is a filter; null keeps all.
    pub filtered: *mut TileCount,
    /// Scratch of this call.
    pub scratch: *mut u8,
}

/// How numbers are stored, for functions that are compiled for each: f32.
pub const F32: u8 = 0;
/// How numbers are stored: bfloat16.
pub const BF16: u8 = 1;
/// How numbers are stored: IEEE half.
pub const F16: u8 = 2;

/// Most distributions of an operator, and so references of a row.
pub const DISTRIBUTIONS: usize = 2;

/// How a row statistic of one shard and that of another become one. Positions are those in the state of a row: the references,
/// then the statistics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// They are added.
    Sum,
    /// They are made relative to a common reference, and added.
    ScaledSum {
        /// Which reference.
        reference: usize,
    },
    /// The larger one.
    Max,
    /// The id of the larger one of the statistic behind this one; of equal ones the lower id.
    ArgMax,
    /// Weights times distances from references: they grow by the sum of the weights times what references rise by.
    Moment {
        /// Reference that the weights are relative to.
        reference: Option<usize>,
        /// Position of the sum of the weights.
        sum: usize,
        /// How often each reference is added to the distances.
        shifts: [f32; DISTRIBUTIONS],
    },
    /// A divergence, by the chain rule.
    Divergence {
        /// Position of the sum of the weights of P, relative to the first reference.
        p: usize,
        /// Position of the sum of the weights of Q, relative to the second one.
        q: usize,
    },
}

/// Merges the statistics and A of another shard into those of this one.
#[derive(Clone, Copy, Debug)]
pub struct Merge {
    /// References of a row.
    pub references: usize,
    /// The rule of each statistic.
    pub rules: &'static [Rule],
    /// First token.
    pub first: usize,
    /// One past the last token.
    pub end: usize,
    /// Per-token arrays of this shard: the reference, then the statistics.
    pub state: *const *mut f32,
    /// Those of the other shard.
    pub other_state: *const *mut f32,
    /// A of this shard; null merges statistics only.
    pub a: *mut f32,
    /// A of the other shard.
    pub other_a: *const f32,
    /// Elements from one row of A to the next.
    pub a_stride: usize,
}

impl Merge {
    /// The value of this shard at a position of the state.
    ///
    /// # Safety
    /// The state has that position and token, and nobody else uses it meanwhile.
    #[inline(always)]
    pub unsafe fn mine<'a>(&self, position: usize, token: usize) -> &'a mut f32 {
        // SAFETY: the caller answers for the value.
        unsafe { &mut *(*self.state.add(position)).add(token) }
    }

    /// The value of the other shard.
    ///
    /// # Safety
    /// Its state has that position and token.
    #[inline(always)]
    pub unsafe fn theirs(&self, position: usize, token: usize) -> f32 {
        // SAFETY: the caller answers for the value.
        unsafe { *(*self.other_state.add(position)).add(token) }
    }
}

/// Merged statistics to results, dX = a_factor A + target_factor w_target + operand_factor A₂.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    /// Inputs of the finish program.
    pub inputs: Inputs,
    /// First token, a multiple of the panel.
    pub first: usize,
    /// One past the last token.
    pub end: usize,
    /// Final reference of each token.
    pub reference: *const f32,
    /// Per-token arrays of the row outputs, in the order of the program.
    pub outputs: *const *mut f32,
    /// H.
    pub hidden: usize,
    /// A; null computes results only.
    pub a: *const f32,
    /// Elements from one row of A to the next.
    pub a_stride: usize,
    /// A₂, the product of the loss's `operand` with W; read only by kernels of losses that have one.
    pub operand: *const f32,
    /// Elements from one row of A₂ to the next; 0 if all tokens share one row.
    pub operand_stride: usize,
    /// How W is stored: [`F32`], [`BF16`] or [`F16`].
    pub stored: u8,
    /// Row of W of each token's target; null where there is none.
    pub target_rows: *const *const u8,
    /// Row of dX of each token.
    pub rows: *const u32,
    /// dX, row-major f32.
    pub dx: *mut f32,
    /// Elements from one row of dX to the next.
    pub dx_stride: usize,
}

/// Copies rows of a table: `out[i] = table[ids[i]]`.
#[derive(Clone, Copy, Debug)]
pub struct GatherRows {
    /// The table, row-major, of the kernel's dtype.
    pub table: *const u8,
    /// Elements from one row of the table to the next.
    pub row_stride: usize,
    /// Row ids, all within the table.
    pub ids: *const u32,
    /// Number of rows to copy.
    pub count: usize,
    /// Columns.
    pub columns: usize,
    /// Packed rows of the kernel's dtype.
    pub out: *mut u8,
}

/// Most columns of a call of `scatter_add`, which keeps a sum for each: enough to read rows in whole lines.
pub const SCATTER_COLUMNS: usize = 256;

/// Adds rows into a table: `table[ids[i]] += rows[order[i]]`. What equal ids add to a row of the table is summed in f64, in the
/// order of `i`, and rounded once.
#[derive(Clone, Copy, Debug)]
pub struct ScatterAdd {
    /// Rows to add, row-major, of the kernel's dtype.
    pub rows: *const u8,
    /// Elements from one of them to the next.
    pub row_stride: usize,
    /// Row of the table for each addition; equal ones lie together.
    pub ids: *const u32,
    /// Row to add for each addition.
    pub order: *const u32,
    /// Number of additions.
    pub count: usize,
    /// Columns, at most [`SCATTER_COLUMNS`].
    pub columns: usize,
    /// The table, row-major f32.
    pub table: *mut f32,
    /// Elements from one row of the table to the next.
    pub table_stride: usize,
}

/// The function of a kernel, by what it takes.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// See [`PackTokens`].
    PackTokens(unsafe fn(&PackTokens)),
    /// See [`PackVocabulary`].
    PackVocabulary(unsafe fn(&PackVocabulary)),
    /// See [`LogitsSoftmax`].
    LogitsSoftmax(unsafe fn(&LogitsSoftmax)),
    /// See [`UnpackAccumulator`].
    UnpackAccumulator(unsafe fn(&UnpackAccumulator)),
    /// See [`WeightGrad`].
    WeightGrad(unsafe fn(&WeightGrad)),
    /// See [`Merge`].
    Merge(unsafe fn(&Merge)),
    /// See [`Finish`].
    Finish(unsafe fn(&Finish)),
    /// See [`GatherRows`].
    GatherRows(unsafe fn(&GatherRows)),
    /// See [`ScatterAdd`].
    ScatterAdd(unsafe fn(&ScatterAdd)),
    /// See [`RawLogits`].
    RawLogits(unsafe fn(&RawLogits)),
    /// See [`RowLogits`].
    RowLogits(unsafe fn(&RowLogits)),
    /// See [`RowStatistics`].
    RowStatistics(unsafe fn(&RowStatistics)),
    /// See [`RowGradient`].
    RowGradient(unsafe fn(&RowGradient)),
    /// See [`InputGrad`].
    InputGrad(unsafe fn(&InputGrad)),
    /// See [`VocabularyGrad`].
    VocabularyGrad(unsafe fn(&VocabularyGrad)),
}
