//! The focal loss against its definition, on the CPU and on the PTX interpreter, and against the interpreter of row programs.

use super::*;
use std::collections::BTreeMap;
use vocabfuse_codegen::program::Tile;

const TOKENS: usize = 5;
const HIDDEN: usize = 4;
const VOCAB: usize = 11;
const TARGETS: [i64; TOKENS] = [0, 10, 3, 7, 3];

fn wave(count: usize, step: f64) -> Vec<f64> {
    // Values that bf16 holds exactly.
    (0..count).map(|i| ((i as f64 * step).sin() * 64.0).round() / 32.0).collect()
}

/// The sum of all losses by their definition, and the losses.
fn definition(x: &[f64], w: &[f64], gamma: f64) -> (f64, Vec<f64>) {
    let losses: Vec<f64> = (0..TOKENS)
        .map(|token| {
            let y = |class: usize| (0..HIDDEN).map(|h| x[token * HIDDEN + h] * w[class * HIDDEN + h]).sum::<f64>();
            let total: f64 = (0..VOCAB).map(|class| y(class).exp()).sum();
            let p = y(TARGETS[token] as usize).exp() / total;
            -(1.0 - p).powf(gamma) * p.ln()
        })
        .collect();
    (losses.iter().sum(), losses)
}

/// Derivatives of the sum of all losses by central differences.
fn derivatives(at: &[f64], sum: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let moved = |i: usize, step: f64| {
        let mut values = at.to_vec();
        values[i] += step;
        sum(&values)
    };
    (0..at.len()).map(|i| (moved(i, 1e-5) - moved(i, -1e-5)) / 2e-5).collect()
}

fn assert_close(name: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= tolerance * largest, "{name}[{i}]: {found}, expected {expected}");
    }
}

fn check(results: &Results, x: &[f64], w: &[f64], gamma: f64, tolerance: f64) {
    assert_close("loss", &results.losses, &definition(x, w, gamma).1, tolerance);
    assert_close("dX", &results.dx, &derivatives(x, |x| definition(x, w, gamma).0), tolerance);
    assert_close("dW", &results.dw, &derivatives(w, |w| definition(x, w, gamma).0), tolerance);
}

#[test]
fn the_cpu_computes_what_the_definition_says() {
    let (x, w) = (wave(TOKENS * HIDDEN, 0.9), wave(VOCAB * HIDDEN, 1.7));
    let narrow = |values: &[f64]| values.iter().map(|v| *v as f32).collect::<Vec<f32>>();
    let (x32, w32) = (narrow(&x), narrow(&w));
    for (gamma, ranks) in [(0.5, 1), (2.0, 1), (2.0, 3)] {
        let (x_view, w_view) = (Matrix::new(&x32, TOKENS, HIDDEN).unwrap(), Matrix::new(&w32, VOCAB, HIDDEN).unwrap());
        let problem = Problem { x: x_view, w: w_view, targets: &TARGETS, gamma: gamma as f32, ranks };
        check(&run(&cpu().unwrap(), &problem).unwrap(), &x, &w, gamma, 2e-6);
    }
}

#[test]
fn the_kernels_of_a_gpu_compute_the_same() {
    if let Err(missing) = vocabfuse_codegen::compile::nvrtc::Nvrtc::load() {
        return vocabfuse_testing::skipped(vocabfuse_testing::Need::Nvrtc, &missing.to_string());
    }
    let (x, w) = (wave(TOKENS * HIDDEN, 0.9), wave(VOCAB * HIDDEN, 1.7));
    let narrow = |values: &[f64]| half_precision(&values.iter().map(|v| *v as f32).collect::<Vec<f32>>());
    let (x16, w16) = (narrow(&x), narrow(&w));
    let (x_view, w_view) = (Matrix::new(&x16, TOKENS, HIDDEN).unwrap(), Matrix::new(&w16, VOCAB, HIDDEN).unwrap());
    let problem = Problem { x: x_view, w: w_view, targets: &TARGETS, gamma: 2.0, ranks: 2 };
    // E and the derivatives are bf16 between products.
    check(&run(&ptx().unwrap(), &problem).unwrap(), &x, &w, 2.0, 8e-3);
}

// One tile that is the whole vocabulary: statistics, finish and gradient in f64.
#[test]
fn the_programs_mean_the_focal_loss() {
    let loss = focal::focal().unwrap();
    let logits = wave(TOKENS * VOCAB, 0.37);
    let gamma = 1.5;
    let mut tile = Tile {
        rows: TOKENS,
        columns: VOCAB,
        logit: logits.clone(),
        classes: VOCAB as i64,
        target: TARGETS.to_vec(),
        reference: vec![1.0; TOKENS],
        uniform: BTreeMap::from([("logit_scale".to_owned(), 1.0), ("gamma".to_owned(), gamma)]),
        ..Tile::default()
    };
    let statistics = loss.statistics.interpret(&tile);
    tile.row = statistics.row;
    for name in ["hard", "upstream"] {
        tile.row.insert(name.to_owned(), vec![1.0; TOKENS]);
    }
    let finished = loss.finish.interpret(&Tile { columns: 1, ..tile.clone() });
    tile.row = finished.row.clone();
    tile.row.insert("upstream".to_owned(), vec![1.0; TOKENS]);
    let gradient = loss.gradient.interpret(&Tile { stored: statistics.store, ..tile });
    let sum = |logits: &[f64]| {
        let rows = logits.chunks(VOCAB).zip(TARGETS);
        let one = |(row, target): (&[f64], i64)| {
            let p = row[target as usize].exp() / row.iter().map(|y| y.exp()).sum::<f64>();
            -(1.0 - p).powf(gamma) * p.ln()
        };
        rows.map(one).sum::<f64>()
    };
    assert!((finished.row["loss"].iter().sum::<f64>() - sum(&logits)).abs() < 1e-12);
    for (found, expected) in gradient.store.iter().zip(derivatives(&logits, sum)) {
        assert!((found - expected).abs() < 1e-8, "{found} {expected}");
    }
}
