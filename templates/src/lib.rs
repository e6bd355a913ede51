//! Kernel skeletons, embedded so that every crate that generates kernels is self-contained.
//!
//! A template is near-source text; its syntax is described in `vocabfuse_codegen::render`.

macro_rules! templates {
    ($($path:literal),* $(,)?) => {
        /// Paths of all templates, `<target>/<kernel>.<extension>.in`.
        pub const PATHS: &[&str] = &[$($path),*];

        /// Text of a template.
        pub fn get(path: &str) -> Option<&'static str> {
            match path {
                $($path => Some(include_str!(concat!("../", $path))),)*
                _ => None,
            }
        }
    };
}

templates! {
    "cpu/kernel.rs.in",
    "cpu/module.rs.in",
    "cpu/prelude_scalar.rs.in",
    "cpu/prelude_avx2.rs.in",
    "cpu/prelude_avx512.rs.in",
    "cpu/prelude_avx512bf16.rs.in",
    "cpu/prelude_amx.rs.in",
    "cpu/vectors_avx512.rs.in",
    "cpu/pairs.rs.in",
    "cpu/terms.rs.in",
    "cpu/common.rs.in",
    "cpu/elementary.rs.in",
    "cpu/reference.rs.in",
    "cpu/move_statistics.rs.in",
    "cpu/divergence.rs.in",
    "cpu/amx/filter.rs.in",
    "cpu/filter.rs.in",
    "cpu/matmul.rs.in",
    "cpu/pack_tokens.rs.in",
    "cpu/pack_tokens_grad.rs.in",
    "cpu/pack_vocabulary.rs.in",
    "cpu/logits_softmax.rs.in",
    "cpu/weight_grad.rs.in",
    "cpu/merge.rs.in",
    "cpu/finish.rs.in",
    "cpu/logits.rs.in",
    "cpu/round_row.rs.in",
    "cpu/row_logits.rs.in",
    "cpu/row_statistics.rs.in",
    "cpu/row_gradient.rs.in",
    "cpu/selection.rs.in",
    "cpu/input_grad.rs.in",
    "cpu/vocabulary_grad.rs.in",
    "cpu/column_sums.rs.in",
    "cpu/column_totals.rs.in",
    "cpu/gather_rows.rs.in",
    "cpu/scatter_add.rs.in",
    "cpu/avx512bf16/pack_tokens.rs.in",
    "cpu/avx512bf16/pack_tokens_grad.rs.in",
    "cpu/avx512bf16/pack_vocabulary.rs.in",
    "cpu/amx/tiles.rs.in",
    "cpu/amx/pack_tokens.rs.in",
    "cpu/amx/pack_tokens_grad.rs.in",
    "cpu/amx/pack_vocabulary.rs.in",
    "cpu/amx/logits_softmax.rs.in",
    "cpu/amx/unpack_accumulator.rs.in",
    "cpu/amx/weight_grad.rs.in",
    "cpu/amx/gradient.rs.in",
    "cpu/amx/logits.rs.in",
    "cpu/amx/input_grad.rs.in",
    "cpu/amx/vocabulary_grad.rs.in",
    "cuda/kernel.cu.in",
    "cuda/module.rs.in",
    "cuda/prelude.cu.in",
    "cuda/sm80/tensor.cu.in",
    "cuda/sm80/matmul.cu.in",
    "cuda/sm80/epilogue.cu.in",
    "cuda/sm80/store_tile.cu.in",
    "cuda/sm80/store_sum.cu.in",
    "cuda/sm80/logits_softmax.cu.in",
    "cuda/sm80/reduce_statistics.cu.in",
    "cuda/sm80/accumulate.cu.in",
    "cuda/sm80/logits_gradient.cu.in",
    "cuda/sm80/saved_gradient.cu.in",
    "cuda/sm80/gradient_scale.cu.in",
    "cuda/sm80/filter_tiles.cu.in",
    "cuda/sm80/weight_grad.cu.in",
    "cuda/sm80/reduce_columns.cu.in",
    "cuda/sm80/merge.cu.in",
    "cuda/sm80/finish.cu.in",
    "cuda/sm80/logits.cu.in",
    "cuda/sm80/row_logits.cu.in",
    "cuda/sm80/over_block.cu.in",
    "cuda/sm80/random.cu.in",
    "cuda/sm80/divergence.cu.in",
    "cuda/sm80/top_columns.cu.in",
    "cuda/sm80/row_statistics.cu.in",
    "cuda/sm80/row_gradient.cu.in",
    "cuda/sm80/round_rows.cu.in",
    "cuda/sm80/gather_rows.cu.in",
    "cuda/sm80/scatter_add.cu.in",
    "cuda/sm80/select_tokens.cu.in",
    "cuda/sm80/reduce_loss.cu.in",
}
