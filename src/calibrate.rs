//! Rates of one thread from registers alone: what no matrix product on this machine can exceed.

use std::hint::black_box;
use std::time::Instant;

/// Bursts that are timed; the median counts.
const BURSTS: usize = 5;
/// Time of a burst, in seconds.
const BURST: f64 = 0.01;
/// Steps between two looks at the clock.
const STEPS: usize = 20_000;

/// Name of what every processor has.
const BASELINE: &str = "baseline";

/// A loop over independent sums: enough of them to hide the latency of an FMA (8 to 10 vectors on x86, up to 16 on Arm),
/// few enough for the registers. With 24 of AVX-512 the compiler spills half of them, 32 registers or not.
struct Loop {
    isa: &'static str,
    /// Runs a number of steps; the result is there to be looked at.
    run: fn(usize) -> f32,
    /// Floating-point operations of a step.
    step: usize,
}

/// GFLOP/s of f32 multiply-adds of all of `threads` threads at the same time, and the name of the instruction set. `None`
/// on an architecture whose vectors are not known here: half of a peak is none.
pub fn peak_of(threads: usize) -> Option<(f64, &'static str)> {
    let kernel = widest();
    (kernel.isa != BASELINE).then(|| (together(&kernel, threads), kernel.isa))
}

/// The same for dot products of pairs of bf16 in vectors, where the machine has them.
pub fn bf16_peak_of(threads: usize) -> Option<(f64, &'static str)> {
    let kernel = bf16()?;
    Some((together(&kernel, threads), kernel.isa))
}

/// GFLOP/s of f32 multiply-adds of one thread with the widest vectors of the machine, and the name of their instruction
/// set.
pub fn peak() -> (f64, &'static str) {
    let kernel = widest();
    (rate(&kernel), kernel.isa)
}

fn together(kernel: &Loop, threads: usize) -> f64 {
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(|| rate(kernel))).collect();
        started.into_iter().map(|t| t.join().unwrap_or(0.0)).sum()
    })
}

fn rate(kernel: &Loop) -> f64 {
    let mut rates: Vec<f64> = (0..BURSTS).map(|_| burst(kernel)).collect();
    rates.sort_by(f64::total_cmp);
    rates[BURSTS / 2]
}

fn burst(kernel: &Loop) -> f64 {
    let start = Instant::now();
    let mut steps = 0;
    loop {
        black_box((kernel.run)(black_box(STEPS)));
        steps += STEPS;
        let seconds = start.elapsed().as_secs_f64();
        if seconds >= BURST {
            return (steps * kernel.step) as f64 / seconds / 1e9;
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn widest() -> Loop {
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512 F, which is all that the function asks for.
        return Loop { isa: "AVX-512", run: |steps| unsafe { avx512(steps) }, step: 12 * 16 * 2 };
    }
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has AVX2 and FMA, which is all that the function asks for.
        return Loop { isa: "AVX2", run: |steps| unsafe { avx2(steps) }, step: 12 * 8 * 2 };
    }
    baseline()
}

#[cfg(target_arch = "aarch64")]
fn widest() -> Loop {
    // SAFETY: NEON is part of the baseline of this architecture.
    Loop { isa: "NEON", run: |steps| unsafe { neon(steps) }, step: 16 * 4 * 2 }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn widest() -> Loop {
    baseline()
}

#[cfg(target_arch = "x86_64")]
fn bf16() -> Option<Loop> {
    let there = std::arch::is_x86_feature_detected!("avx512bf16") && std::arch::is_x86_feature_detected!("avx512f");
    // SAFETY: the processor has AVX-512 F and BF16, which is all that the function asks for.
    there.then_some(Loop { isa: "AVX-512 BF16", run: |steps| unsafe { avx512bf16(steps) }, step: 12 * 32 * 2 })
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16() -> Option<Loop> {
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

/// Separate multiplications and additions, as wide as every processor of the architecture allows.
#[cfg(not(target_arch = "aarch64"))]
fn baseline() -> Loop {
    fn run(steps: usize) -> f32 {
        let (a, b) = (black_box(0.5_f32), black_box(1.0_f32));
        let mut sums = [b; 48];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = *sum * a + b;
            }
        }
        sums.iter().sum()
    }
    Loop { isa: BASELINE, run, step: 48 * 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sum_reaches_its_limit() {
        // s = s / 2 + 1 tends to 2: all lanes of all sums take part.
        let (kernel, sums) = (widest(), |total: f32| (total / 2.0).round());
        assert!(sums((kernel.run)(100)) >= 12.0);
        assert!(peak().0 > 0.1);
        assert!(peak_of(2).is_none_or(|(rate, _)| rate > 0.1));
        if let Some(kernel) = bf16() {
            // Each step adds two products of 2^-16 to each of 12 x 16 sums, which begin at 1.
            let grown = (kernel.run)(1024) / (12.0 * 16.0) - 1.0;
            assert!((grown - 1024.0 / 32768.0).abs() < 1e-3, "{grown}");
            assert!(bf16_peak_of(1).is_some_and(|(rate, _)| rate > 0.1));
        }
    }
}
