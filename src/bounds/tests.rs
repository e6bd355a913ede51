//! Bounds hold what they should, and no more.

use super::*;
use crate::operators::{self, Distribution, Query, Raw, Upstream};
use crate::problem::{Options, Outputs, Problem};
use crate::reference;

const H: usize = 3;

fn values(count: usize, seed: usize) -> Vec<f64> {
    (0..count).map(|i| f64::from(((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0)).collect()
}

fn problem<'a>(x: &'a [f64], w: &'a [f64], targets: &'a [i64], bias: &'a [f64]) -> Problem<'a, f64> {
    Problem { bias: Some(bias), ..Problem::new(x, w, targets, H, Options::default()) }
}

fn bounds(problem: &Problem<'_, f64>, dtype: Dtype) -> (Outputs<f64>, Outputs<f64>) {
    let truth = reference::cross_entropy(problem).unwrap();
    let bounds = cross_entropy(problem, &truth, Arithmetic::new(dtype));
    (truth, bounds)
}

#[test]
fn a_bound_is_small_beside_its_row() {
    let (x, w, targets) = (values(7 * H, 1), values(40 * H, 2), [0, 5, 39, 5, 7, 8, 9]);
    let mut bias = values(40, 3);
    // Classes whose rows are smaller than the others by far.
    bias[10] = -9.0;
    bias[11] = -25.0;
    for (dtype, share) in [(Dtype::F32, 5e-5), (Dtype::Bf16, 0.05), (Dtype::F16, 0.02)] {
        let (truth, bounds) = bounds(&problem(&x, &w, &targets, &bias), dtype);
        let rows = truth.dw.chunks(H).zip(&bounds.dw).chain(truth.dx.chunks(H).zip(&bounds.dx)).enumerate();
        // In f16 what is small beside its token is lost.
        for (row, (want, bound)) in rows.filter(|(row, _)| dtype != Dtype::F16 || *row != 11) {
            assert!(*bound < share * largest(want), "row {row} in {dtype}: {bound:e} for {want:?}");
        }
        let values = truth.loss.iter().zip(&bounds.loss).chain(truth.lse.iter().zip(&bounds.lse));
        assert!(values.into_iter().all(|(want, bound)| *bound < 1e-5 * want.abs().max(1.0)));
    }
}

#[test]
fn terms_that_are_rounded_alike_may_have_errors_of_one_sign() {
    const TOKENS: usize = 64;
    let (w, bias) = (values(40 * H, 2), values(40, 3));
    let of_row = |x: &[f64]| {
        let (truth, bounds) = bounds(&problem(x, &w, &[7; TOKENS], &bias), Dtype::Bf16);
        bounds.dw[10] / largest(&truth.dw[10 * H..11 * H])
    };
    // The terms of equal tokens have one sign, and so may have their errors: a few units of the sum.
    let equal = of_row(&[0.5; TOKENS * H]);
    assert!(equal > 1.5 * 2.0f64.powi(-8) && equal < 6.0 * 2.0f64.powi(-8), "{equal:e}");
    let signs: Vec<f64> = (0..TOKENS * H).map(|i| if (i / H).is_multiple_of(2) { 0.5 } else { -0.5 }).collect();
    let different: Vec<f64> = signs.iter().zip(values(TOKENS * H, 9)).map(|(x, v)| x + v * 1e-3).collect();
    assert!(of_row(&signs) > 4.0 * of_row(&different), "{:e} {:e}", of_row(&signs), of_row(&different));
}

#[test]
fn an_offset_costs_what_f32_rounds_of_logits() {
    let (x, w, targets) = ([0.0; H], [0.0; 3 * H], [1]);
    let loss = |bias: [f64; 3]| bounds(&problem(&x, &w, &targets, &bias), Dtype::F32).1.loss[0];
    assert!(loss([1e7 + 1.0, 1e7 + 2.0, 1e7 + 3.0]) < 1e-5);
    assert!(loss([1e7 + 0.1, 1e7 + 2.0, 1e7 + 3.0]) > 0.1);
    // The sum is a number of f32, but what it is the sum of has more digits than f32 has.
    let one = |digit: i32, bias: f64| {
        let (x, w) = ([1.0, 0.0, 0.0], [8.0 + 2.0f64.powi(digit), 0.0, 0.0]);
        bounds(&problem(&x, &w, &[0], &[bias]), Dtype::F32).1.lse[0]
    };
    assert!(one(-21, -8.0) > 4.0 * one(-18, -8.0), "{} {}", one(-21, -8.0), one(-18, -8.0));
    // Also where nothing is left of it.
    assert!(one(-21, -8.0 - 2.0f64.powi(-21)) > 4.0 * one(-18, -8.0));
}

#[test]
fn what_the_filter_may_leave_out_is_small() {
    let (x, w, targets, bias) = (values(2 * H, 1), values(9 * H, 2), [0, 5], values(9, 3));
    let problem = problem(&x, &w, &targets, &bias);
    let truth = reference::cross_entropy(&problem).unwrap();
    let of = |filter| cross_entropy(&problem, &truth, Arithmetic { filter, ..Arithmetic::new(Dtype::F32) });
    let (without, little, much) = (of(None), of(Some(1e-9)), of(Some(0.2)));
    assert_eq!(without, little);
    assert!(without.dw[3] < 1e-3 * much.dw[3] && without.dbias == much.dbias && without.loss == much.loss);
    // Row 0 is that of a target, whose derivative is large.
    assert!(much.dw[0] < 0.5 * largest(&truth.dw[..H]));
}

#[test]
fn the_furthest_row_is_judged_by_its_own_bound() {
    let want = [1e3, 1e3, 1e-3, 1e-3];
    let plain = want.map(|v| v as f32);
    let of = |got: &[f32], bounds: &[f64]| worst(got, &plain, &want, bounds);
    assert!(of(&plain, &[1e-4, 1e-9]).passes());
    assert_eq!(of(&[1e3, 1e3, 1e-3, 0.0], &[1.0, 1e-9]).row, 1);
    assert!(!of(&[1e3, 1e3, 1e-3, 0.0], &[1.0, 1e-9]).passes());
    assert!(!of(&[1e3, f32::NAN, 1e-3, 1e-3], &[1e9, 1.0]).passes());
    assert!(!of(&[1e3], &[1e9, 1.0]).passes() && !of(&plain, &[]).passes());
    // Where the plain composition has no number, it allows nothing.
    assert!(!worst(&[2.0], &[f32::NAN], &[1.0], &[1e-3]).passes());
    assert!(worst(&[f32::INFINITY, f32::NAN], &[0.0; 2], &[f64::INFINITY, f64::NAN], &[0.0; 2]).passes());
}

fn picked(query: &Query<'_, f64>, ids: &[i64]) -> bool {
    picks(query, 4, ids, Arithmetic::new(Dtype::F32), |_| true).worst.passes()
}

#[test]
fn ids_of_exact_logits_are_those_of_the_reference() {
    let logits = [1.0, 3.0, 3.0, f64::NEG_INFINITY];
    let of = Distribution { raw: Raw::Logits(&logits), bias: None, logit_scale: 1.0, softcap: None };
    assert!(picked(&Query::TopK(of, 2), &[1, 2]) && picked(&Query::TopK(of, 4), &[1, 2, 0, 3]));
    for wrong in [[2, 1], [1, 1], [1, 0], [1, 3], [1, -1], [1, 4]] {
        assert!(!picked(&Query::TopK(of, 2), &wrong), "{wrong:?}");
    }
    assert!(!picked(&Query::TopK(of, 2), &[1]));
    let none = Distribution { raw: Raw::Logits(&[f64::NEG_INFINITY; 4]), ..of };
    assert!(picked(&Query::TopK(none, 1), &[-1]) && !picked(&Query::TopK(none, 1), &[0]));
}

#[test]
fn ids_that_f32_cannot_tell_apart_may_change_places() {
    let (x, w) = ([1.0, 0.1, 0.7], [1.0, 0.3, 0.3, 1.0 + 1e-8, 0.3, 0.3, 1.0 - 1e-4, 0.3, 0.3, 0.0, 0.0, 0.0]);
    let of = Distribution { raw: Raw::Linear { x: &x, w: &w, hidden: H }, bias: None, logit_scale: 1.0, softcap: None };
    let query = Query::TopK(of, 2);
    assert!(picked(&query, &[1, 0]) && picked(&query, &[0, 1]));
    assert!(!picked(&query, &[0, 2]) && !picked(&query, &[2, 0]) && !picked(&query, &[0, 0]));
}

#[test]
fn a_draw_is_judged_by_its_key() {
    let logits = values(4 * 50, 5);
    let of = Distribution { raw: Raw::Logits(&logits), bias: None, logit_scale: 1.0, softcap: None };
    let none = Upstream { logprobs: None, entropy: None, divergence: None };
    let right = operators::evaluate(&Query::Sample(of, 7), &none, 4, Dtype::F32).ids;
    assert!(picked(&Query::Sample(of, 7), &right));
    let mut wrong = right.clone();
    wrong[17] = (wrong[17] + 1) % 4;
    let found = picks(&Query::Sample(of, 7), 4, &wrong, Arithmetic::new(Dtype::F32), |_| true);
    assert!(!found.worst.passes() && found.worst.row == 17, "{:?}", found.worst);
}
