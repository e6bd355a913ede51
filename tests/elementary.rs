//! Elementary functions of the preludes against f64, over a dense sample of f32; with `VOCABFUSE_TEST_ALL`, which
//! `cargo xtask test --all` sets, exp over every one of them.
//!
//! A program of its own: it needs the preludes and nothing of the crate, and is built and run without it.
#![cfg(target_arch = "x86_64")]

use rayon::prelude::*;
use vocabfuse_testing::{Need, has};

#[derive(Clone, Copy, Debug)]
enum Function {
    Exp,
    Exp2,
    Ln,
    Ln1p,
    Tanh,
}

impl Function {
    fn exact(self, a: f32) -> f64 {
        let a = f64::from(a);
        match self {
            // Far outside the range of f32 no library has to be asked, which is most of all numbers.
            Function::Exp if a.abs() > 110.0 => {
                if a > 0.0 {
                    f64::INFINITY
                } else {
                    0.0
                }
            }
            Function::Exp if a.abs() < 1e-9 => 1.0 + a,
            Function::Exp => a.exp(),
            Function::Exp2 => a.exp2(),
            Function::Ln => a.ln(),
            Function::Ln1p => a.ln_1p(),
            Function::Tanh => a.tanh(),
        }
    }

    /// What the text of the preludes promises, in units of the last place of the result.
    fn promise(self) -> f64 {
        match self {
            Function::Exp | Function::Ln => 1.0,
            Function::Exp2 | Function::Ln1p | Function::Tanh => 1.5,
        }
    }
}

macro_rules! target {
    ($name:ident $(, $features:literal)?) => {
        // A generated file, of which this test needs a few functions.
        #[allow(dead_code, unused_imports, missing_docs, clippy::all)]
        mod $name {
            include!(concat!("../kernels-gen/src/cpu/", stringify!($name), "/prelude.rs"));

            /// A function of whole vectors.
            $(#[target_feature(enable = $features)])?
            pub unsafe fn apply(function: super::Function, values: &[f32], out: &mut [f32]) {
                for (value, out) in values.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)) {
                    // SAFETY: each is a whole vector; the caller has looked at the processor.
                    unsafe {
                        let value = load(value.as_ptr());
                        let result = match function {
                            super::Function::Exp => exp(value),
                            super::Function::Exp2 => exp2(value),
                            super::Function::Ln => ln(value),
                            super::Function::Ln1p => ln_1p(value),
                            super::Function::Tanh => tanh(value),
                        };
                        store(out.as_mut_ptr(), result);
                    }
                }
            }

            /// Values rounded to bf16 and to f16.
            $(#[target_feature(enable = $features)])?
            pub unsafe fn round(values: &[f32], bf16: &mut [u16], f16: &mut [u16]) {
                for (i, value) in values.chunks_exact(LANES).enumerate() {
                    // SAFETY: each is a whole vector; the caller has looked at the processor.
                    unsafe {
                        let value = load(value.as_ptr());
                        store_bf16(bf16[i * LANES..][..LANES].as_mut_ptr(), value);
                        store_f16(f16[i * LANES..][..LANES].as_mut_ptr(), value);
                    }
                }
            }
        }
    };
}
target!(scalar);
target!(avx2, "avx2,fma,f16c");
target!(avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");

type Apply = unsafe fn(Function, &[f32], &mut [f32]);
type Round = unsafe fn(&[f32], &mut [u16], &mut [u16]);

/// Those that run here, the fastest last.
fn targets() -> Vec<(&'static str, Apply, Round)> {
    let mut targets: Vec<(&str, Apply, Round)> = vec![("scalar", scalar::apply, scalar::round)];
    let pairs = is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    if has(is_x86_feature_detected!("avx2") && pairs, Need::Avx2, "no AVX2 with FMA and F16C here") {
        targets.push(("avx2", avx2::apply, avx2::round));
    }
    let needed = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512dq");
    let needed = needed && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
    if has(needed, Need::Avx512, "no AVX-512 here") {
        targets.push(("avx512", avx512::apply, avx512::round));
    }
    targets
}

/// Distance in units of the last place of f32 at the exact value; infinite where one is NaN or infinite and the other not.
fn ulps(got: f32, exact: f64) -> f64 {
    if got.is_nan() && exact.is_nan() {
        return 0.0;
    }
    // What rounds to infinity may be infinite.
    let exact = if exact.abs() >= f64::from(f32::MAX) * (1.0 + 2f64.powi(-25)) {
        exact.signum() * f64::INFINITY
    } else {
        exact
    };
    if got.is_infinite() && f64::from(got) == exact {
        return 0.0;
    }
    let place = (((exact.abs().to_bits() >> 52) as i32) - 1023).max(-126) - 23;
    let distance = (f64::from(got) - exact).abs() * 2f64.powi(-place);
    if distance.is_finite() { distance } else { f64::INFINITY }
}

const BLOCK: u64 = 1 << 16;

/// The largest error over bit patterns `step` apart, and where.
fn worst(function: Function, apply: Apply, step: u64) -> (f64, f32) {
    let blocks = (1u64 << 32).div_ceil(BLOCK * step);
    let of_block = |block: u64| {
        let bits = (0..BLOCK).map(|i| (block * BLOCK + i) * step).take_while(|bits| *bits < 1 << 32);
        let mut values: Vec<f32> = bits.map(|bits| f32::from_bits(bits as u32)).collect();
        values.resize(BLOCK as usize, 1.0);
        let mut out = vec![0.0; values.len()];
        // SAFETY: the target runs here, and both are whole vectors.
        unsafe { apply(function, &values, &mut out) };
        let errors = values.iter().zip(&out).map(|(value, out)| (ulps(*out, function.exact(*value)), *value));
        errors.fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
    };
    (0..blocks).into_par_iter().map(of_block).reduce(|| (0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
}

fn check(name: &str, function: Function, apply: Apply, step: u64) {
    let (error, value) = worst(function, apply, step);
    println!("{name} {function:?}: {error:.3} ulp at {value:e}");
    assert!(error <= function.promise(), "{name} {function:?}: {error} ulp at {value:e} ({:#x})", value.to_bits());
}

#[test]
fn exp_of_every_number() {
    // One target over all of them; the others differ from it in their primitives alone, and are sampled.
    let all = std::env::var_os("VOCABFUSE_TEST_ALL").is_some_and(|value| !value.is_empty());
    let (step, targets) = (if all { 1 } else { 61 }, targets());
    for (i, (name, apply, _)) in targets.iter().enumerate() {
        check(name, Function::Exp, *apply, if i + 1 == targets.len() { step } else { 251 });
    }
}

#[test]
fn other_functions_over_a_dense_sample() {
    for (name, apply, _) in targets() {
        for function in [Function::Exp2, Function::Ln, Function::Ln1p, Function::Tanh] {
            check(name, function, apply, 1009);
        }
    }
}

#[test]
fn special_values_are_those_of_the_library() {
    let inputs =
        [0.0, -0.0, 1.0, -1.0, -2.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-45, 3e38];
    let mut values = [1.0; 16];
    values[..inputs.len()].copy_from_slice(&inputs);
    for (name, apply, _) in targets() {
        for function in [Function::Exp, Function::Exp2, Function::Ln, Function::Ln1p, Function::Tanh] {
            let mut out = [7.0; 16];
            // SAFETY: the target runs here, and 16 are whole vectors.
            unsafe { apply(function, &values, &mut out) };
            for (value, out) in values.iter().zip(out) {
                let exact = function.exact(*value);
                assert!(
                    ulps(out, exact) <= function.promise(),
                    "{name} {function:?}({value:e}) = {out:e}, not {exact:e}"
                );
                let signed = matches!(function, Function::Ln1p | Function::Tanh);
                assert!(
                    !signed || *value != 0.0 || out.is_sign_negative() == value.is_sign_negative(),
                    "{name} {function:?}"
                );
            }
        }
    }
}

/// Rounds the floats of some bit patterns on every target, as the library does.
fn rounds_as_the_library(patterns: impl Iterator<Item = u32>) {
    let mut values: Vec<f32> = patterns.map(f32::from_bits).collect();
    values.resize(values.len().next_multiple_of(16), 0.0);
    let (mut to_bf16, mut to_f16) = (vec![7; values.len()], vec![7; values.len()]);
    for (name, _, round) in targets() {
        // SAFETY: the target runs here, and all are whole vectors of the same length.
        unsafe { round(&values, &mut to_bf16, &mut to_f16) };
        for (value, (bf16, f16)) in values.iter().zip(to_bf16.iter().zip(&to_f16)) {
            let bits = value.to_bits();
            assert_eq!(*bf16, half::bf16::from_f32(*value).to_bits(), "{name} bf16 of {bits:#x}");
            assert_eq!(*f16, half::f16::from_f32(*value).to_bits(), "{name} f16 of {bits:#x}");
        }
    }
}

#[test]
fn numbers_round_as_in_the_library() {
    rounds_as_the_library((0..u32::MAX / 509).map(|i| i * 509));
}

#[test]
fn every_nan_stays_one() {
    // All payloads whose low bits are at an end, which is where rounding carries, and a sample of the others.
    let mantissas =
        (1..0x80_0000u32).filter(|m| m.is_multiple_of(61) || [0, 1, 0x1fff, 0x7fff, 0xffff].contains(&(m & 0xffff)));
    let payloads: Vec<u32> = mantissas.chain([0x7f_ffff, 0x7f_8000, 0x7f_7fff, 1]).collect();
    for sign in [0, 0x8000_0000] {
        rounds_as_the_library(payloads.iter().map(|mantissa| sign | 0x7f80_0000 | mantissa));
    }
}
