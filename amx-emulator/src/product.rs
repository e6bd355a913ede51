//! The arithmetic of the tile products: one row of the accumulator at a time.

use std::arch::asm;

/// What the 16-bit elements of the factors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Bf16,
    Fp16,
}

/// Single-precision numbers of one vector row, as bits: nothing in Rust computes with them.
pub(crate) type Lanes = [u32; 16];

/// A tile row of 16 pairs, widened to single precision and split into first and second elements.
///
/// The assembly below relies on the layout.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Pairs {
    even: Lanes,
    odd: Lanes,
}

impl Pairs {
    pub(crate) const ZERO: Self = Self { even: [0; 16], odd: [0; 16] };

    pub(crate) fn widen(row: &[u8; 64], element: Element) -> Self {
        let widen = match element {
            Element::Bf16 => |bits: u16| u32::from(bits) << 16,
            Element::Fp16 => half_to_single,
        };
        let mut pairs = Self::ZERO;
        let lanes = pairs.even.iter_mut().zip(&mut pairs.odd);
        for (pair, (even, odd)) in row.as_chunks::<4>().0.iter().zip(lanes) {
            *even = widen(u16::from_le_bytes([pair[0], pair[1]]));
            *odd = widen(u16::from_le_bytes([pair[2], pair[3]]));
        }
        pairs
    }
}

/// Exact: every half-precision number, denormals included, is a normal single-precision one.
fn half_to_single(half: u16) -> u32 {
    let bits = u32::from(half);
    let (sign, exponent, mantissa) = ((bits & 0x8000) << 16, (bits >> 10) & 31, bits & 0x3ff);
    sign | match (exponent, mantissa) {
        (0, 0) => 0,
        (0, _) => {
            // Moves the leading one to the place of the implicit bit.
            let shift = mantissa.leading_zeros() - 21;
            (113 - shift) << 23 | ((mantissa << shift) & 0x3ff) << 13
        }
        (31, 0) => 0x7f80_0000,
        // The conversion makes a signalling NaN quiet.
        (31, _) => 0x7fc0_0000 | mantissa << 13,
        _ => (exponent + 112) << 23 | mantissa << 13,
    }
}

/// All exceptions masked, round to nearest even, denormals are zero (bit 6), flush to zero (bit 15).
/// In memory because `ldmxcsr` takes no other operand.
static MXCSR: u32 = 0x9fc0;

/// Adds the product of one row of the left factor with the whole right factor to one accumulator
/// row. The right factor has at most 16 rows; lanes beyond the configured columns hold rubbish
/// afterwards.
///
/// # Safety
///
/// The processor must have FMA.
pub(crate) unsafe fn add_row(accumulator: &mut Lanes, left: &Pairs, right: &[Pairs]) {
    let mut saved = 0_u32;
    // The arithmetic is assembly because it has to run under its own MXCSR, which compiled Rust
    // must never see, and because flushing has to look at the result before it is rounded to the
    // coarse spacing of the denormals, which software cannot do after the fact.
    //
    // SAFETY: reads one `Pairs` at `left` (64 bytes further for the odd lanes, 15 lanes at most as
    // `right` has at most 16 rows), the `Pairs` of `right` and 64 bytes at `accumulator`, writes the
    // latter and `saved`; all are live, laid out by `repr(C)` or arrays, and none needs alignment.
    // MXCSR is back to its old value at the end. The caller answers for FMA, which implies AVX.
    unsafe {
        asm!(
            "stmxcsr [{saved}]",
            "ldmxcsr [{mxcsr}]",
            "vxorps xmm0, xmm0, xmm0",
            "vxorps xmm1, xmm1, xmm1",
            "vxorps xmm2, xmm2, xmm2",
            "vxorps xmm3, xmm3, xmm3",
            "test {rows}, {rows}",
            "jz 3f",
            "2:",
            "vbroadcastss ymm4, dword ptr [{left}]",
            "vbroadcastss ymm5, dword ptr [{left} + 64]",
            "vfmadd231ps ymm0, ymm4, [{right}]",
            "vfmadd231ps ymm1, ymm4, [{right} + 32]",
            "vfmadd231ps ymm2, ymm5, [{right} + 64]",
            "vfmadd231ps ymm3, ymm5, [{right} + 96]",
            "add {left}, 4",
            "add {right}, 128",
            "dec {rows}",
            "jnz 2b",
            "3:",
            "vaddps ymm0, ymm0, ymm2",
            "vaddps ymm1, ymm1, ymm3",
            "vmovups ymm2, [{accumulator}]",
            "vmovups ymm3, [{accumulator} + 32]",
            "vaddps ymm2, ymm2, ymm0",
            "vaddps ymm3, ymm3, ymm1",
            "vmovups [{accumulator}], ymm2",
            "vmovups [{accumulator} + 32], ymm3",
            "ldmxcsr [{saved}]",
            saved = in(reg) &raw mut saved,
            mxcsr = in(reg) &raw const MXCSR,
            rows = inout(reg) right.len().min(16) => _,
            left = inout(reg) left => _,
            right = inout(reg) right.as_ptr() => _,
            accumulator = in(reg) accumulator,
            out("xmm0") _, out("xmm1") _, out("xmm2") _,
            out("xmm3") _, out("xmm4") _, out("xmm5") _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_widens_like_the_processor() {
        let f16c = std::arch::is_x86_feature_detected!("f16c");
        if !vocabfuse_testing::has(f16c, vocabfuse_testing::Need::Avx2, "no F16C here") {
            return;
        }
        for half in 0..=u16::MAX {
            let wide: u32;
            // SAFETY: F16C was detected, and the block touches the named registers only.
            unsafe {
                asm!(
                    "vmovd xmm0, {half:e}",
                    "vcvtph2ps xmm0, xmm0",
                    "vmovd {wide:e}, xmm0",
                    half = in(reg) u32::from(half),
                    wide = out(reg) wide,
                    out("xmm0") _,
                );
            }
            assert_eq!(half_to_single(half), wide, "{half:#06x}");
        }
    }
}
