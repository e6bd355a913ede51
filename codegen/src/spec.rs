//! What decides a kernel's text: everything, and nothing else does.

use crate::error::SpecError;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

macro_rules! spelled {
    ($(#[$doc:meta])* $name:ident, $option:literal { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
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
        /// x86-64 with AMX bf16 tiles beside AVX-512 and its bf16 conversions; Linux.
        Amx = "amx",
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
        /// A as plain rows, for targets whose pass S lays it out otherwise.
        UnpackAccumulator = "unpack_accumulator",
        /// Pass T from saved values.
        WeightGradSaved = "weight_grad_saved",
        /// Pass T that recomputes the logits.
        WeightGradRecompute = "weight_grad_recompute",
        /// Merge of two shards' statistics and A.
        Merge = "merge",
        /// Results and dX from merged statistics.
        Finish = "finish",
        /// Copy of rows of a table.
        GatherRows = "gather_rows",
        /// Sum of rows into a table.
        ScatterAdd = "scatter_add",
    }
}

impl KernelKind {
    /// Whether the text depends on the chunk.
    pub fn has_chunk(self) -> bool {
        matches!(self, KernelKind::LogitsSoftmax | KernelKind::WeightGradSaved)
    }

    /// Whether the text holds row programs of a loss.
    pub fn has_loss(self) -> bool {
        self.has_chunk() || matches!(self, KernelKind::WeightGradRecompute | KernelKind::Merge | KernelKind::Finish)
    }
}

/// Chunk sizes that a kernel can be specialised for: powers of two.
pub const CHUNKS: std::ops::RangeInclusive<usize> = 512..=65536;

/// Number of vocabulary entries that a kernel works on at a time.
///
/// # Errors
/// [`SpecError::Chunk`] if it is no power of two in [`CHUNKS`].
pub fn check_chunk(chunk: usize) -> Result<usize, SpecError> {
    if chunk.is_power_of_two() && CHUNKS.contains(&chunk) { Ok(chunk) } else { Err(SpecError::Chunk { chunk }) }
}

/// Description of one kernel. Equal specifications give equal text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct KernelSpec {
    /// Which kernel.
    pub kernel: KernelKind,
    /// Machine.
    pub target: Target,
    /// Element type of X, W and saved values.
    pub dtype: Dtype,
    /// Chunk of the vocabulary; only for kernels that depend on it.
    pub chunk: Option<usize>,
    /// Name of the loss; only for kernels that hold its programs.
    pub loss: Option<String>,
}

impl KernelSpec {
    /// A specification without the parts that the kernel does not depend on.
    ///
    /// # Errors
    /// [`SpecError::Chunk`], or [`SpecError::Unsupported`] for a pair that no template covers.
    pub fn new(kernel: KernelKind, target: Target, dtype: Dtype, chunk: usize, loss: &str) -> Result<Self, SpecError> {
        check_chunk(chunk)?;
        let unsupported = |what: String, supported: &str| Err(SpecError::Unsupported { what, supported: supported.to_owned() });
        if target == Target::Amx && dtype != Dtype::Bf16 {
            return unsupported(format!("dtype {dtype} on target amx"), "dtype bf16; f32 and f16 run on avx512");
        }
        if kernel == KernelKind::UnpackAccumulator && target != Target::Amx {
            return unsupported(format!("kernel {kernel} on target {target}"), "target amx; the others need no unpacking");
        }
        Ok(KernelSpec {
            kernel,
            target,
            // Statistics and A are f32 whatever the tensors are.
            dtype: if kernel == KernelKind::Merge && target != Target::Amx { Dtype::F32 } else { dtype },
            chunk: kernel.has_chunk().then_some(chunk),
            loss: kernel.has_loss().then(|| loss.to_owned()),
        })
    }

    /// The name: kernel, loss, dtype, chunk, target and tile, all that an expert needs to tell two kernels apart.
    pub fn name(&self) -> String {
        let tile = crate::plan::cpu::tile(self.target);
        let mut name = format!("{}__", self.kernel);
        if let Some(loss) = &self.loss {
            name += &format!("{loss}_");
        }
        name += self.dtype.as_str();
        if let Some(chunk) = self.chunk {
            name += &format!("_c{chunk}");
        }
        name + &format!("__{}_m{}n{}", self.target, tile.rows, tile.panel)
    }
}
