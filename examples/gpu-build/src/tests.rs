//! The kernels of the build script against the definition of the loss.

use super::*;
use vocabfuse_codegen::compile::nvrtc::Nvrtc;
use vocabfuse_testing::{Need, has, skipped};

const TOKENS: usize = 5;
const HIDDEN: usize = 4;
const VOCAB: usize = 11;
const TARGETS: [i64; TOKENS] = [0, 10, 3, 7, 3];
const EPSILON: f64 = 1.5;

fn wave(count: usize, step: f64) -> Vec<f64> {
    // Values that bf16 holds exactly.
    (0..count).map(|i| ((i as f64 * step).sin() * 64.0).round() / 32.0).collect()
}

/// The loss of each token by the definition.
fn losses(x: &[f64], w: &[f64]) -> Vec<f64> {
    let one = |token: usize| {
        let y = |class: usize| (0..HIDDEN).map(|h| x[token * HIDDEN + h] * w[class * HIDDEN + h]).sum::<f64>();
        let total: f64 = (0..VOCAB).map(|class| y(class).exp()).sum();
        let p = y(TARGETS[token] as usize).exp() / total;
        -p.ln() + EPSILON * (1.0 - p)
    };
    (0..TOKENS).map(one).collect()
}

/// Derivatives of the sum of all losses by central differences.
fn derivatives(at: &[f64], losses: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let moved = |i: usize, step: f64| {
        let mut values = at.to_vec();
        values[i] += step;
        losses(&values).iter().sum::<f64>()
    };
    (0..at.len()).map(|i| (moved(i, 1e-5) - moved(i, -1e-5)) / 2e-5).collect()
}

fn assert_close(name: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        // E and the derivatives are bf16 between products.
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= 8e-3 * largest, "{name}[{i}]: {found}, expected {expected}");
    }
}

#[test]
fn what_the_build_script_compiled_is_what_runs() {
    let compiled = !CUDA_KERNELS.artifacts.is_empty();
    if !has(compiled, Need::Nvrtc, "the build script found no compiler, so that texts are embedded alone")
        && let Err(missing) = Nvrtc::load()
    {
        return skipped(Need::Nvrtc, &missing.to_string());
    }
    let cache = tempfile::tempdir().unwrap();
    let gpu = device("ptx:sm_80").unwrap().with_cache(cache.path());
    let (x, w) = (wave(TOKENS * HIDDEN, 0.9), wave(VOCAB * HIDDEN, 1.7));
    let narrow = |values: &[f64]| values.iter().map(|v| bf16::from_f64(*v)).collect::<Vec<_>>();
    let (x16, w16) = (narrow(&x), narrow(&w));
    let (x_view, w_view) = (Matrix::new(&x16, TOKENS, HIDDEN).unwrap(), Matrix::new(&w16, VOCAB, HIDDEN).unwrap());
    let problem = Problem { x: x_view, w: w_view, targets: &TARGETS, epsilon: EPSILON as f32 };
    let found = run(&gpu, &problem).unwrap();
    assert_close("loss", &found.losses, &losses(&x, &w));
    assert_close("dX", &found.dx, &derivatives(&x, |x| losses(x, &w)));
    assert_close("dW", &found.dw, &derivatives(&w, |w| losses(&x, w)));
    // A machine without NVRTC at build time has texts alone, which are compiled when they are called.
    assert_eq!(
        std::fs::read_dir(cache.path()).unwrap().count() == 0,
        compiled,
        "compiled here, or in the build script"
    );
}

#[test]
fn the_bundle_has_texts_and_code_for_the_gpus_that_were_named() {
    let names: Vec<&str> = CUDA_KERNELS.texts.iter().map(|(name, _)| *name).collect();
    assert!(names.iter().any(|name| name.starts_with("finish__poly_bf16")), "{names:?}");
    // Machine code for each of the two, and PTX for newer ones, if there was a compiler.
    assert!([0, 3 * names.len()].contains(&CUDA_KERNELS.artifacts.len()), "{}", CUDA_KERNELS.artifacts.len());
}
