//! Multiply-adds of vectors: enough independent sums to hide the latency of an FMA (8 to 10 vectors on x86, up to 16 on
//! Arm), few enough for the registers. With 24 of AVX-512 the compiler spills half of them, 32 registers or not.

use super::Loop;
use std::hint::black_box;

/// With the widest vectors that the machine has and this module knows.
#[cfg(target_arch = "x86_64")]
pub(super) fn f32() -> Option<Loop> {
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512 F, which is all that the function asks for.
        return Some(Loop { isa: "AVX-512", run: |steps| unsafe { avx512(steps) }, step: 12 * 16 * 2 });
    }
    let there = std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
    // SAFETY: the processor has AVX2 and FMA, which is all that the function asks for.
    there.then_some(Loop { isa: "AVX2", run: |steps| unsafe { avx2(steps) }, step: 12 * 8 * 2 })
}

/// With the widest vectors that the machine has and this module knows.
#[cfg(target_arch = "aarch64")]
pub(super) fn f32() -> Option<Loop> {
    // SAFETY: NEON is part of the baseline of this architecture.
    Some(Loop { isa: "NEON", run: |steps| unsafe { neon(steps) }, step: 16 * 4 * 2 })
}

/// No vectors are known for this architecture, and what is not the peak would pass for it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn f32() -> Option<Loop> {
    None
}

#[cfg(target_arch = "x86_64")]
pub(super) fn bf16_pairs() -> Option<Loop> {
    let there = std::arch::is_x86_feature_detected!("avx512bf16") && std::arch::is_x86_feature_detected!("avx512f");
    // SAFETY: the processor has AVX-512 F and BF16, which is all that the function asks for.
    there.then_some(Loop { isa: "AVX-512 BF16", run: |steps| unsafe { avx512bf16(steps) }, step: 12 * 32 * 2 })
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn bf16_pairs() -> Option<Loop> {
    None
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn avx512bf16(steps: usize) -> f32 {
    use std::arch::x86_64::{
        __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_reduce_add_ps, _mm512_set1_epi32, _mm512_set1_ps,
    };
    // Pairs of 2^-8, so that sums grow slowly.
    let pairs = _mm512_set1_epi32(black_box(0x3b80_3b80));
    // SAFETY: the types are names for the same 64 bytes.
    let pairs = unsafe { std::mem::transmute::<__m512i, __m512bh>(pairs) };
    let mut sums = [_mm512_set1_ps(black_box(1.0)); 12];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, pairs, pairs);
        }
    }
    sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(steps: usize) -> f32 {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_reduce_add_ps, _mm512_set1_ps};
    let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(1.0)));
    let mut sums = [b; 12];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, a, b);
        }
    }
    sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(steps: usize) -> f32 {
    use std::arch::x86_64::{_mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps};
    let (a, b) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(1.0)));
    let mut sums = [b; 12];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, a, b);
        }
    }
    sums.into_iter().map(|sum| _mm256_cvtss_f32(sum)).sum()
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn neon(steps: usize) -> f32 {
    use std::arch::aarch64::{vaddvq_f32, vdupq_n_f32, vfmaq_f32};
    let (a, b) = (vdupq_n_f32(black_box(0.5)), vdupq_n_f32(black_box(1.0)));
    let mut sums = [b; 16];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = vfmaq_f32(b, *sum, a);
        }
    }
    sums.into_iter().map(|sum| vaddvq_f32(sum)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocabfuse_testing::{Need, has};

    #[test]
    fn every_sum_reaches_its_limit() {
        // s = s / 2 + 1 tends to 2: all lanes of all sums take part.
        let (floats, pairs) = (f32(), bf16_pairs());
        has(floats.is_some(), Need::Avx2, "no vectors of f32 that could be measured");
        has(pairs.is_some(), Need::Avx512Bf16, "no pairs of bf16 that could be measured");
        if let Some(kernel) = floats {
            assert!(((kernel.run)(100) / 2.0).round() >= 12.0);
        }
        if let Some(kernel) = pairs {
            // Each step adds two products of 2^-16 to each of 12 x 16 sums, which begin at 1.
            let grown = (kernel.run)(1024) / (12.0 * 16.0) - 1.0;
            assert!((grown - 1024.0 / 32768.0).abs() < 1e-3, "{grown}");
        }
    }
}
