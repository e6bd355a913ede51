//! How a host runs the CUDA kernels.
//!
//! Every kernel is launched with the block and dynamic shared memory of its manifest entry ([`crate::manifest::Entry`]), and
//! a grid along x of as many blocks as [`Entry::blocks`](crate::manifest::Entry::blocks) says. Parameters are those of the
//! entry, in order. Counts are `i32`, strides `i64` in elements. A kernel with nothing to do is not launched: all
//! counts are at least 1. No kernel needs a value that the host would have to read back, so the whole sequence can be
//! captured in a graph.
//!
//! # Buffers of a rank
//!
//! N tokens, H, V_d classes of the shard, chunk C, T = C / 256 tiles of columns, S statistics. `stride` is any number
//! of at least N; buffers begin at multiples of 16 bytes and need not be cleared.
//!
//! | buffer | extent | holds |
//! |---|---|---|
//! | `state` | f32 `[1 + S][stride]` | the reference of each row (log2 units), then its statistics in the order of the bindings |
//! | `partials` | f32 `[1 + S][T][stride]` | the same for each tile of one chunk |
//! | `previous` | f32 `[N]` | references before the chunk |
//! | `e` | elements `[N][C]` | E = 2^(y - reference) of one chunk, target column 0; Q of one chunk in pass T |
//! | `a` | f32 `[N][a_stride]` | A |
//! | `saved` | elements `[chunks][N][C]` | E of all chunks, only when saving; instead of `e` |
//! | `saved_references` | f32 `[chunks][stride]` | what each chunk of `saved` is relative to |
//! | `peaks` | f32 `[T of all chunks][stride]` | largest logit of each row and tile, log2 units; only for filtering |
//! | `column_partials` | f32 `[tiles of 128 tokens][C]` | column sums of Q; only if somebody wants a column gradient |
//! | `outputs` | f32 `[outputs of finish][stride]` | loss, lse, a_factor, target_factor, ... in the order of the bindings |
//! | `scale` | f32 `[2]` | what Q or the second operand is multiplied by, and its inverse; f16 only |
//! | `skip` | bytes `[T of all chunks][tiles of 128 tokens]` | tiles that pass T leaves out; only for filtering |
//!
//! Tokens are rows of X in order. If some are ignored, X is first gathered with `gather_rows` (`ids` = rows that count),
//! and `finish` scatters dX with `rows`. Targets are ids within the shard, -1 where another shard owns them.
//!
//! X and W begin at multiples of 16 bytes, and so does each of their rows: where H is no multiple of that, rows are padded
//! with zeros.
//!
//! # Pass S
//!
//! For each chunk, `first_column..first_column + columns` of the shard:
//!
//! 1. `logits_softmax`: `w` = row `first_column` of W, `classes` = V_d, `references` = `state`, or null for the first
//!    chunk; `e` = the chunk's E, or null when only statistics are wanted; `peaks` from the chunk's first tile on, or null;
//!    column inputs are those of the whole shard, or null.
//! 2. `reduce_statistics`: brings the tiles together, repairs E where a tile has a reference of its own, and writes
//!    `previous` and `saved_references` (each may be null). `first` = 1 for the first chunk: nothing is read from `state`.
//! 3. `accumulate`, for algorithm two only: `first` as above, `previous`, `references` = `state`, `e_references` and `scale`
//!    null.
//!
//! A₂ is the same without a reference: `logits_operand` and `accumulate` with all references null. f16 cannot hold class
//! weights of any size, so there `gradient_scale` makes a `scale` of them first (`bound` = the weights of the shard's
//! classes, `upstream` null), which both kernels get.
//!
//! A shard without classes has reference -2^127 and statistics 0 (the identity), which the host copies to `state`.
//!
//! # C1
//!
//! `merge` adds another rank's `state` and (unless `a` is null) A to this rank's. With merged rows, `finish` computes
//! results and dX: `references` = `state`, row inputs `state + stride` times position, target rows packed or W itself
//! with `target_index` = targets (-1: none), `rows` = row of dX of each token, or null for the same; `a` null computes
//! results only.
//!
//! Algorithms one and naive run pass S without step 3, merge `state` only, give every rank the merged `state` and then
//! compute A relative to it, chunk by chunk. With saved E: `accumulate` with `previous` = null, `e_references` = the
//! chunk's saved references. Without: `logits_softmax` with `references` = `state` (no tile takes another reference then,
//! so `reduce_statistics` is left out; `partials` is scratch), and `accumulate` with `previous` and `e_references` null.
//! The A of the ranks are then plain sums.
//!
//! # Pass T
//!
//! `references` = merged references, row inputs from `outputs`, `upstream` times whatever is known by now.
//!
//! 1. f16: `gradient_scale` once, with `bound` = the largest |Q| for an upstream gradient of 1 (cross-entropy: |logit
//!    scale|). Otherwise `scale` is null everywhere.
//! 2. Filtering: `filter_tiles` for each chunk; `log2_threshold` = log2 of the probability under which a tile is left out.
//! 3. For each chunk `saved_gradient`, which turns saved E into Q in place, or `logits_gradient`, which writes Q to `e`.
//!    `column_partials` may be null.
//! 4. If a column gradient is wanted, `reduce_columns` with `gradient` from the chunk's first column on.
//! 5. `weight_grad`: `dw` = row `first_column` of dW; `beta` = 0 overwrites it, 1 adds; `skip` from the chunk's first tile
//!    on with `skip_stride` bytes from a tile of columns to the next, or null.
//!
//! # Tokens that are known on the device only
//!
//! Where targets live on the device, tokens are not gathered by the host. `select_tokens`, one block, reads global ids and
//! writes for each token: `rows`, the token itself, or -1 if it is ignored, or -2 if its target is none of the vocabulary;
//! `local`, its target within the shard or -1; `factors`, its upstream gradient over the divisor, 0 where it does not
//! count; and `counts`, how many count and how many are none of the vocabulary. `divisor` 0 stands for the number that
//! count, `upstream` null for ones, `ignored` for the id of tokens that do not count. `gather_rows` with `rows` then gives
//! zeros to what does not count, and `reduce_loss`, one block, sets its loss and lse to 0 (NaN for -2) and writes the sum of
//! all losses over the divisor to `total`.
//!
//! # Operators
//!
//! Logits of one chunk in f32, `[N][stride]` with `stride` = C, the chunk of the products; Q
//! likewise. For each chunk and distribution, `logits` (`w` = row `first_column` of W), unless logits are given, and `row_logits`
//! in place, whose column inputs are those of the whole shard and not null.
//!
//! Statistics: `row_statistics` brings `state`, f32 `[1 or 2 + S][token_stride]`, from before the chunk to after it; the host
//! fills it with what a row is that has seen no logit. `ids` are the selected ids within the shard, `[slots][token_stride]`, -1
//! for none; `selected` gets values at those that lie in the chunk, `[values][slots][token_stride]`. `top_keys` (-inf at first),
//! `top_values` and `top_ids` (-1 at first) are `[top_slots][token_stride]`. `first_id` is the global id of the shard's first.
//! Rows are merged and finished on the host.
//!
//! Gradients: `row_gradient` writes Q, with the upstream gradient at selected ids from `weights`, `[slots][token_stride]`, and
//! for f16 the largest |Q| of each row to `peaks`, of which `gradient_scale` makes `scale` (`bound` = `peaks`, `upstream` null).
//! Where logits are capped, `row_logits` has also written `slopes`, which `row_gradient` multiplies by; else they are null.
//! `reduce_columns` adds up the columns of Q, each row being a tile. `round_rows` makes Q times `scale[0]` an operand of
//! `accumulate` and of `weight_grad`, which undo the scale; it is null for the other dtypes.
//!
//! # Input layer
//!
//! `gather_rows` copies `table[ids[i]]`, or zeros where `ids[i]` is negative. `scatter_add` adds rows into a table of f32:
//! block b adds `rows[order[i]]` for i in `starts[b]..starts[b + 1]` to `table[ids[b]]` in that order. The ids of a call
//! differ, so that the sum does not depend on the order of blocks.

/// Columns of a chunk of operators: 8 KB of logits a token, and with some hundred tokens a block for every multiprocessor.
pub const OPERATOR_CHUNK: usize = 2048;
