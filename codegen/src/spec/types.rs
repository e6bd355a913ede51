//! Types of numbers: as tensors store them, as products multiply them, as results are written.

use super::spelled::spelled;
use serde::{Deserialize, Serialize};

spelled! {
    /// Element type of a tensor.
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
    /// What a matrix product multiplies. Sums are f32.
    Operand, "operand" {
        /// 32-bit float.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
        /// IEEE half.
        F16 = "f16",
        /// See [`Precision::Tf32`].
        Tf32 = "tf32",
        /// See [`Precision::Tf32x3`].
        Tf32x3 = "tf32x3",
        /// See [`Precision::Bf16x3`].
        Bf16x3 = "bf16x3",
    }
}

impl Operand {
    /// How it stands for f32, if it does so with an error; nobody gets that without asking for it.
    pub fn precision(self) -> Option<Precision> {
        match self {
            Operand::F32 | Operand::Bf16 | Operand::F16 => None,
            Operand::Tf32 => Some(Precision::Tf32),
            Operand::Tf32x3 => Some(Precision::Tf32x3),
            Operand::Bf16x3 => Some(Precision::Bf16x3),
        }
    }
}

spelled! {
    /// How products of f32 are computed where they are not exact: on targets that multiply narrower numbers only.
    Precision, "precision" {
        /// Factors rounded to tf32, eleven significant bits; CUDA.
        Tf32 = "tf32",
        /// Factors as sums of two tf32 numbers, three products: almost that of f32; CUDA. Tensor cores, which cut their sums, add
        /// up eight terms at a time.
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
    /// What a product is off by at most, as a part of it: 2 u, or 2 u² of two parts, where each is rounded by at most u.
    pub fn product_error(self) -> f64 {
        match self {
            Precision::Tf32 => 2.0f64.powi(-10),
            Precision::Tf32x3 => 2.0f64.powi(-21),
            Precision::Bf16x3 => 2.0f64.powi(-15),
        }
    }
}

/// The types that a kernel's text depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Types {
    /// Of X, W and saved values, in memory. f32 for kernels that see none of them.
    pub storage: Dtype,
    /// Of the products; none for kernels that neither multiply nor pack operands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operand: Option<Operand>,
    /// Of the tensor that the kernel writes for the caller: dX, dW, rows of a table. None for kernels that write none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Dtype>,
}
