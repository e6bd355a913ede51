//! What the gradient filter may leave out, as it is documented.

use super::{Case, Tensors, problem, truth};

/// What may be missing from each element of dX and dW: `threshold` of the most that a derivative of each token can be.
pub fn bounds(case: &Case, tensors: &Tensors, threshold: f32) -> (Vec<f64>, Vec<f64>) {
    let (problem, lse) = (problem(case, tensors), truth(case, tensors).lse);
    let factors = problem.gradient_factors();
    let smoothing = f64::from(case.loss.label_smoothing);
    let mean_weight = (0..case.vocab).map(|class| problem.class_weight(class)).sum::<f64>() / case.vocab as f64;
    let largest = |token: usize| {
        let weight = |target| (1.0 - smoothing) * problem.class_weight(target) + 2.0 * smoothing * mean_weight;
        let by_lse = 2.0 * f64::from(case.loss.z_loss) * lse[token].abs();
        let by_loss = problem.target(token).map_or(0.0, |target| weight(target) + by_lse);
        let upstream = factors[token].abs() * by_loss + problem.lse_factor(token).abs();
        f64::from(threshold) * f64::from(case.loss.logit_scale.abs()) * upstream
    };
    let largest: Vec<f64> = (0..case.tokens).map(largest).collect();
    let column = |values: &[f32], h: usize, weight: &dyn Fn(usize) -> f64| -> f64 {
        values.iter().skip(h).step_by(case.hidden).enumerate().map(|(i, v)| f64::from(v.abs()) * weight(i)).sum()
    };
    let w: Vec<f64> = (0..case.hidden).map(|h| column(&tensors.w, h, &|_| 1.0)).collect();
    let dx = largest.iter().flat_map(|u| w.iter().map(move |w| u * w)).collect();
    let dw: Vec<f64> = (0..case.hidden).map(|h| column(&tensors.x, h, &|i| largest[i])).collect();
    (dx, dw.repeat(case.vocab))
}

/// Checks that no element of `kept` lacks more of that of `all` than its bound.
pub fn check_within(what: &str, all: &[f32], kept: &[f32], bound: &[f64]) {
    let rounding = all.iter().fold(0.0f32, |m, v| m.max(v.abs())) * f32::EPSILON * 16.0;
    for ((all, kept), bound) in all.iter().zip(kept).zip(bound) {
        let missing = f64::from((all - kept).abs());
        assert!(missing <= bound + f64::from(rounding), "{what}: {missing:e} is missing, at most {bound:e} may be");
    }
}

/// A case with every option that a derivative depends on, of which nothing is as large as the others.
pub fn every_option(case: &Case, label_smoothing: f32) -> (Case, Tensors) {
    let loss = vocabfuse_runtime::CrossEntropy {
        reduction: vocabfuse_runtime::Reduction::None,
        logit_scale: 1.5,
        z_loss: 0.05,
        label_smoothing,
        ..case.loss
    };
    let case = Case { loss, bias: true, upstream: true, extras: [true; 3], ..case.clone() };
    let mut tensors = Tensors::random(&case);
    tensors.class_weights.iter_mut().flatten().for_each(|w| *w *= 10.0);
    // Some tokens have a gradient of lse alone, some of the loss alone.
    tensors.upstream.iter_mut().flatten().step_by(7).for_each(|u| *u = 0.0);
    tensors.lse_upstream.iter_mut().flatten().skip(1).step_by(7).for_each(|u| *u = 0.0);
    (case, tensors)
}
