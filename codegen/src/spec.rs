//! What decides a kernel's text: everything, and nothing else does.

use crate::error::SpecError;
use crate::place::Place;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! spelled {
    ($(#[$doc:meta])* $name:ident, $option:literal { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// All values.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The spelling in names and on the command line.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = SpecError;
            fn from_str(text: &str) -> Result<$name, SpecError> {
                $name::ALL.iter().copied().find(|v| v.as_str() == text).ok_or_else(|| SpecError::Unknown {
                    option: $option,
                    value: text.to_owned(),
                    expected: $name::ALL.iter().map(|v| v.as_str()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

spelled! {
    /// Element type of X and W.
    Dtype, "dtype" {
        /// 32-bit float.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
        /// IEEE half.
        F16 = "f16",
    }
}

impl Dtype {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 | Dtype::F16 => 2,
        }
    }
}

spelled! {
    /// Machine that the text is for.
    Target, "target" {
        /// Plain Rust, any CPU.
        Scalar = "scalar",
        /// x86-64 with AVX2, FMA and F16C.
        Avx2 = "avx2",
        /// x86-64 with AVX-512 F, BW, DQ and VL.
        Avx512 = "avx512",
        /// x86-64 with AVX-512 and its products of bf16 pairs, for processors on which those outrun f32.
        Avx512Bf16 = "avx512bf16",
        /// x86-64 with AMX bf16 tiles beside AVX-512 and its bf16 conversions; Linux.
        Amx = "amx",
        /// NVIDIA GPUs of compute capability 8.0 and up: mma.sync, ldmatrix, cp.async.
        Sm80 = "sm_80",
    }
}

impl Target {
    /// Targets whose kernels are Rust text.
    pub const CPU: &[Target] = &[Target::Scalar, Target::Avx2, Target::Avx512, Target::Avx512Bf16, Target::Amx];

    /// CPU targets that multiply bf16 only.
    pub const BF16: &[Target] = &[Target::Avx512Bf16, Target::Amx];

    /// Targets whose kernels are CUDA text.
    pub const CUDA: &[Target] = &[Target::Sm80];

    /// Whether the kernels are CUDA text.
    pub fn is_cuda(self) -> bool {
        Target::CUDA.contains(&self)
    }
}

spelled! {
    /// How products of f32 are computed where they are not exact: on targets that multiply narrower numbers only.
    Precision, "precision" {
        /// Factors rounded to tf32, eleven significant bits; CUDA.
        Tf32 = "tf32",
        /// Factors as sums of two tf32 numbers, three products: almost that of f32; CUDA.
        Tf32x3 = "tf32x3",
        /// Factors as sums of two bf16 numbers, three products with f32 sums; CPU targets that multiply bf16. A product
        /// x w is off by at most 2^-15 |x w|, besides the roundings of f32 sums: by 2^-16 of it from the product of the two
        /// low parts, which is left out and of which each is at most 2^-8 of its factor, and by 2^-17 from what each
        /// factor is short of its parts. A low part that is no normal number, less than 2^-126, is zero, as in all
        /// products of bf16.
        Bf16x3 = "bf16x3",
    }
}

impl Precision {
    /// Whether a target has products of f32 in this precision.
    pub fn is_on(self, target: Target) -> bool {
        match self {
            Precision::Tf32 | Precision::Tf32x3 => target.is_cuda(),
            Precision::Bf16x3 => Target::BF16.contains(&target),
        }
    }

    /// What a product is off by at most, as a part of it: 2 u, or 2 u² of two parts, where each is rounded by at most u.
    pub fn product_error(self) -> f64 {
        match self {
            Precision::Tf32 => 2.0f64.powi(-10),
            Precision::Tf32x3 => 2.0f64.powi(-21),
            Precision::Bf16x3 => 2.0f64.powi(-15),
        }
    }
}

spelled! {
    /// Which kernel.
    KernelKind, "kernel" {
        /// X as operand of the logits product.
        PackTokens = "pack_tokens",
        /// X as operand of the weight gradient.
        PackTokensGrad = "pack_tokens_grad",
        /// W as operand of both products of pass S.
        PackVocabulary = "pack_vocabulary",
        /// Pass S: logits, online softmax, A += E W.
        LogitsSoftmax = "logits_softmax",
        /// Another product of pass S: A₂ += E W with E relative to no reference.
        LogitsOperand = "logits_operand",
        /// Statistics of one chunk over its tiles, and E relative to one reference a row; CUDA.
        ReduceStatistics = "reduce_statistics",
        /// A += E W for one chunk; CUDA.
        Accumulate = "accumulate",
        /// A as plain rows, for targets whose pass S lays it out otherwise.
        UnpackAccumulator = "unpack_accumulator",
        /// Pass T from saved values.
        WeightGradSaved = "weight_grad_saved",
        /// Pass T that recomputes the logits.
        WeightGradRecompute = "weight_grad_recompute",
        /// Q of one chunk from recomputed logits; CUDA.
        LogitsGradient = "logits_gradient",
        /// Q of one chunk in place of saved E; CUDA.
        SavedGradient = "saved_gradient",
        /// Power of two that brings Q into the range of f16; CUDA.
        GradientScale = "gradient_scale",
        /// Flags of tiles that pass T may leave out; CUDA.
        FilterTiles = "filter_tiles",
        /// dW += transposed Q X for one chunk; CUDA.
        WeightGrad = "weight_grad",
        /// Gradient of a column input from the column sums of its tiles; CUDA.
        ReduceColumns = "reduce_columns",
        /// Merge of two shards' statistics and A.
        Merge = "merge",
        /// Results and dX from merged statistics.
        Finish = "finish",
        /// Raw dot products of one chunk in f32, for row programs of operators.
        Logits = "logits",
        /// Options of the logits, in place.
        RowLogits = "row_logits",
        /// Row statistics of an operator from the logits of one chunk.
        RowStatistics = "row_statistics",
        /// Q of an operator from the logits of one chunk.
        RowGradient = "row_gradient",
        /// Q of an operator in the dtype of X and W, for the products of one chunk; CUDA.
        RoundRows = "round_rows",
        /// A += Q W for one chunk, Q in f32; CPU.
        InputGrad = "input_grad",
        /// dW += transposed Q X for some rows of one chunk, Q in f32; CPU.
        VocabularyGrad = "vocabulary_grad",
        /// Copy of rows of a table.
        GatherRows = "gather_rows",
        /// Sum of rows into a table.
        ScatterAdd = "scatter_add",
        /// Which tokens count, their targets within the shard and their share of the loss, from ids on the device; CUDA.
        SelectTokens = "select_tokens",
        /// The loss over all tokens, on the device; CUDA.
        ReduceLoss = "reduce_loss",
    }
}

impl KernelKind {
    /// Whether the text depends on the chunk; on a CPU if it is specialised for one.
    pub fn has_chunk(self) -> bool {
        use KernelKind::{
            Accumulate, LogitsGradient, LogitsOperand, LogitsSoftmax, ReduceStatistics, SavedGradient, WeightGrad,
            WeightGradSaved,
        };
        matches!(
            self,
            LogitsSoftmax
                | LogitsOperand
                | ReduceStatistics
                | Accumulate
                | WeightGradSaved
                | LogitsGradient
                | SavedGradient
                | WeightGrad
        )
    }

    /// Whether the text holds row programs of a loss. On a CPU merging takes the rules of the statistics as data.
    pub fn has_loss(self, target: Target) -> bool {
        use KernelKind::{
            Finish, LogitsGradient, LogitsOperand, LogitsSoftmax, Merge, ReduceStatistics, SavedGradient,
        };
        use KernelKind::{WeightGradRecompute, WeightGradSaved};
        let pass_s = matches!(self, LogitsSoftmax | LogitsOperand | ReduceStatistics | Finish);
        pass_s
            || self == Merge && target.is_cuda()
            || self.is_rows()
            || matches!(self, WeightGradSaved | WeightGradRecompute | LogitsGradient | SavedGradient)
    }

    /// Whether the kernel runs a program of an operator on a tile of logits.
    pub fn is_rows(self) -> bool {
        matches!(self, KernelKind::RowLogits | KernelKind::RowStatistics | KernelKind::RowGradient)
    }

    /// Whether only operators have the kernel: all of f32 tiles between their products.
    pub fn is_operators(self) -> bool {
        use KernelKind::{InputGrad, Logits, RoundRows, VocabularyGrad};
        self.is_rows() || matches!(self, Logits | RoundRows | InputGrad | VocabularyGrad)
    }

    /// Whether a CUDA target has the kernel.
    pub fn on_cuda(self) -> bool {
        use KernelKind::{
            InputGrad, PackTokens, PackTokensGrad, PackVocabulary, UnpackAccumulator, VocabularyGrad,
            WeightGradRecompute, WeightGradSaved,
        };
        let packs = matches!(self, PackTokens | PackTokensGrad | PackVocabulary | UnpackAccumulator);
        !packs && !matches!(self, InputGrad | VocabularyGrad | WeightGradSaved | WeightGradRecompute)
    }

    /// Whether only CUDA targets have the kernel.
    pub fn only_cuda(self) -> bool {
        use KernelKind::{
            Accumulate, FilterTiles, GradientScale, LogitsGradient, ReduceColumns, ReduceLoss, ReduceStatistics,
            RoundRows, SavedGradient, SelectTokens,
        };
        self == KernelKind::WeightGrad
            || matches!(
                self,
                ReduceStatistics
                    | SelectTokens
                    | ReduceLoss
                    | Accumulate
                    | LogitsGradient
                    | SavedGradient
                    | GradientScale
                    | FilterTiles
                    | ReduceColumns
                    | RoundRows
            )
    }

    /// Whether the kernel is a matrix product on a CUDA target.
    pub fn is_product(self) -> bool {
        matches!(
            self,
            KernelKind::LogitsSoftmax
                | KernelKind::LogitsOperand
                | KernelKind::Accumulate
                | KernelKind::LogitsGradient
                | KernelKind::WeightGrad
                | KernelKind::Logits
        )
    }

    /// Whether a CPU kernel writes or reads packed operands of matrix products, whose form the precision decides.
    pub fn has_operands(self) -> bool {
        use KernelKind::{
            InputGrad, Logits, LogitsOperand, LogitsSoftmax, PackTokens, PackTokensGrad, PackVocabulary,
            VocabularyGrad, WeightGradRecompute, WeightGradSaved,
        };
        let packs = matches!(self, PackTokens | PackTokensGrad | PackVocabulary);
        packs
            || matches!(self, LogitsSoftmax | LogitsOperand | WeightGradSaved | WeightGradRecompute)
            || matches!(self, Logits | InputGrad | VocabularyGrad)
    }

    // What the tensors are made of does not matter to kernels that see only f32 values.
    fn has_dtype(self, target: Target) -> bool {
        use KernelKind::{FilterTiles, Finish, Logits, Merge, ReduceColumns, ReduceLoss, RoundRows, SelectTokens};
        match self {
            Merge => false,
            Finish => target.is_cuda(),
            Logits | RoundRows if target.is_cuda() => true,
            _ if self.is_operators() => Target::BF16.contains(&target),
            FilterTiles | ReduceColumns | SelectTokens | ReduceLoss => false,
            _ => true,
        }
    }
}

/// Chunk sizes that a kernel can be specialised for: powers of two.
pub const CHUNKS: std::ops::RangeInclusive<usize> = 256..=65536;

/// Chunk sizes of a target, a dtype and a precision; the first is what runs unless a policy names another one, the others
/// are those of the checked-in kernels of GPUs. Kernels of CPUs take the chunk as an argument.
///
/// On CPUs a packed chunk of W waits in L2 or L3 for both products of pass S, and logits of a block of tokens in L2; the smaller a
/// chunk is, the oftener A is read and written. W is packed twice for vectors of bf16, and takes three times the bytes in
/// bf16x3: these have the smallest chunk. On GPUs a chunk keeps all processors busy, while E of thousands of tokens takes little memory.
pub fn default_chunks(target: Target, dtype: Dtype, precision: Option<Precision>) -> &'static [usize] {
    match (target, dtype, precision) {
        (target, ..) if target.is_cuda() => &[8192, 2048, 32768],
        (_, _, Some(Precision::Bf16x3)) => &[256],
        (Target::Avx512Bf16, Dtype::Bf16, _) => &[256],
        _ => &[512],
    }
}

/// Number of vocabulary entries that a kernel works on at a time.
///
/// # Errors
/// [`SpecError::Chunk`] if it is no power of two in [`CHUNKS`].
pub fn check_chunk(chunk: usize) -> Result<usize, SpecError> {
    if chunk.is_power_of_two() && CHUNKS.contains(&chunk) { Ok(chunk) } else { Err(SpecError::Chunk { chunk }) }
}

/// Description of one kernel. Equal specifications give equal text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelSpec {
    /// Which kernel.
    pub kernel: KernelKind,
    /// Machine.
    pub target: Target,
    /// Element type of X, W and saved values.
    pub dtype: Dtype,
    /// How products of f32 are computed where they are not exact; only for matrix products, on CPU targets also for the
    /// kernels that pack their operands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Chunk of the vocabulary; only for kernels that depend on it. CPU kernels take it as an argument unless they are
    /// [specialised](KernelSpec::specialised).
    pub chunk: Option<usize>,
    /// Name of the loss, operator or form of the logits; only for kernels that hold its programs.
    pub loss: Option<String>,
}

impl KernelSpec {
    /// A specification without the parts that the kernel does not depend on.
    ///
    /// # Errors
    /// [`SpecError::Chunk`], or [`SpecError::Unsupported`] for a pair that no template covers.
    pub fn new(kernel: KernelKind, target: Target, dtype: Dtype, chunk: usize, loss: &str) -> Result<Self, SpecError> {
        KernelSpec::with_precision(kernel, target, dtype, None, chunk, loss)
    }

    /// As [`KernelSpec::new`], with a precision for products of f32 on targets that have none of their own.
    ///
    /// # Errors
    /// As [`KernelSpec::new`].
    pub fn with_precision(
        kernel: KernelKind,
        target: Target,
        dtype: Dtype,
        precision: Option<Precision>,
        chunk: usize,
        loss: &str,
    ) -> Result<Self, SpecError> {
        check_chunk(chunk)?;
        check_supported(kernel, target, dtype, precision)?;
        Ok(KernelSpec {
            kernel,
            target,
            dtype: if kernel.has_dtype(target) { dtype } else { Dtype::F32 },
            precision: check_precision(kernel, target, dtype, precision)?,
            chunk: (kernel.has_chunk() && target.is_cuda()).then_some(chunk),
            loss: kernel.has_loss(target).then(|| loss.to_owned()),
        })
    }

    /// The same with the chunk as a constant of its text.
    ///
    /// # Errors
    /// [`SpecError::Chunk`] if it is no power of two in [`CHUNKS`].
    pub fn specialised(self, chunk: usize) -> Result<KernelSpec, SpecError> {
        let chunk = check_chunk(chunk)?;
        Ok(KernelSpec { chunk: self.kernel.has_chunk().then_some(chunk), ..self })
    }

    /// Where it shares a prelude with others.
    pub fn place(&self) -> Place {
        Place { target: self.target, precision: self.precision }
    }

    /// The name: kernel, loss, dtype, precision, chunk, target and tile, all that an expert needs to tell two kernels apart.
    pub fn name(&self) -> String {
        self.spelled(Some(self.dtype))
    }

    /// The name of a CPU text: that of the first kernel in it, without a dtype, as others of the text may have other ones.
    pub(crate) fn text_name(&self) -> String {
        self.spelled(None)
    }

    fn spelled(&self, dtype: Option<Dtype>) -> String {
        let precision = self.precision.map(|precision| precision.to_string());
        let chunk = self.chunk.map(|chunk| format!("c{chunk}"));
        let parts = [self.loss.clone(), dtype.map(|dtype| dtype.to_string()), precision, chunk];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let name =
            if parts.is_empty() { self.kernel.to_string() } else { format!("{}__{}", self.kernel, parts.join("_")) };
        if self.target.is_cuda() {
            // Names of CUDA kernels are C identifiers.
            let target = self.target.as_str().replace('_', "");
            return name + &format!("__{target}_{}", crate::plan::sm80::plan(self.kernel, self.dtype));
        }
        let tile = crate::plan::cpu::tile(self.target, self.precision);
        name + &format!("__{}_m{}n{}", self.target, tile.rows, tile.panel)
    }
}

fn unsupported<T>(what: String, supported: &str) -> Result<T, SpecError> {
    Err(SpecError::Unsupported { what, supported: supported.to_owned() })
}

fn check_supported(
    kernel: KernelKind,
    target: Target,
    dtype: Dtype,
    precision: Option<Precision>,
) -> Result<(), SpecError> {
    let split = dtype == Dtype::F32 && precision == Some(Precision::Bf16x3);
    if Target::BF16.contains(&target) && dtype != Dtype::Bf16 && !split {
        let supported = "dtype bf16, or f32 with precision bf16x3; f32 and f16 run on avx512";
        return unsupported(format!("dtype {dtype} on target {target}"), supported);
    }
    if kernel == KernelKind::UnpackAccumulator && !Target::BF16.contains(&target) {
        let supported = "targets avx512bf16 and amx; the others need no unpacking";
        return unsupported(format!("kernel {kernel} on target {target}"), supported);
    }
    let of_values =
        matches!(kernel, KernelKind::Merge | KernelKind::Finish | KernelKind::GatherRows | KernelKind::ScatterAdd);
    if (of_values || kernel.is_rows()) && Target::BF16.contains(&target) {
        let supported = "target avx512, which the same processors can run: the kernel multiplies no bf16";
        return unsupported(format!("kernel {kernel} on target {target}"), supported);
    }
    if target.is_cuda() && !kernel.on_cuda() || !target.is_cuda() && kernel.only_cuda() {
        let has = |k: &KernelKind| if target.is_cuda() { k.on_cuda() } else { !k.only_cuda() };
        let names: Vec<&str> = KernelKind::ALL.iter().filter(|k| has(k)).map(|k| k.as_str()).collect();
        return unsupported(format!("kernel {kernel} on target {target}"), &names.join(", "));
    }
    if kernel == KernelKind::GradientScale && dtype != Dtype::F16 {
        return unsupported(
            format!("kernel {kernel} for dtype {dtype}"),
            "dtype f16; the others have the range of f32",
        );
    }
    Ok(())
}

// The precision that the text depends on.
fn check_precision(
    kernel: KernelKind,
    target: Target,
    dtype: Dtype,
    precision: Option<Precision>,
) -> Result<Option<Precision>, SpecError> {
    let supported = "dtype bf16 or f16 without a precision, dtype f32 with precision tf32 or tf32x3";
    match (target.is_cuda(), dtype, precision) {
        (true, Dtype::F32, None) if kernel.is_product() => {
            unsupported(format!("dtype f32 without a precision for {kernel} on target {target}"), supported)
        }
        (true, Dtype::F32, precision) if precision.is_none_or(|p| p.is_on(target)) => {
            Ok(precision.filter(|_| kernel.is_product()))
        }
        (true, Dtype::F32, Some(precision)) => {
            unsupported(format!("precision {precision} for dtype f32 on target {target}"), supported)
        }
        (true, _, Some(precision)) => unsupported(format!("precision {precision} for dtype {dtype}"), supported),
        (false, Dtype::F32, Some(precision)) if precision.is_on(target) => {
            let what = format!("kernel {kernel} with precision {precision} on target {target}");
            let supported = "kernels of matrix products; those that see only f32 values run on avx512";
            if kernel.has_operands() { Ok(Some(precision)) } else { unsupported(what, supported) }
        }
        (false, _, Some(precision)) => {
            let what = format!("precision {precision} for dtype {dtype} on target {target}");
            unsupported(what, "no precision: products are exact; or dtype f32 with bf16x3 on avx512bf16 and amx")
        }
        (_, _, None) => Ok(None),
    }
}
