//! Odd rows and inputs on the CUDA kernels, as in the contract of the CPU.

use super::{ALGORITHMS, SAVES, clean, per_token, policy};
use crate::common::{Case, Tensors, check, interpreter, run, same};
use vocabfuse_runtime::{Algorithm, CrossEntropy, Dtype, Save};

#[test]
fn odd_rows_stay_by_themselves() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for dtype in [Dtype::Bf16, Dtype::F16] {
        for save in SAVES {
            // An empty shard, more than one tile of tokens, H of no whole number of 16-byte pieces.
            let base =
                Case { dtype, loss: per_token(), policy: policy(Algorithm::Two, save), ..Case::new(140, 13, 600) };
            let case = Case { bounds: vec![0, 200, 200, 600], ..base };
            let mut tensors = Tensors::random(&case);
            let plain = clean(&ptx, &gpu, &case, &tensors);
            check(&case, &tensors, &plain).unwrap();

            let (hidden, odd) = (case.hidden, 5);
            tensors.x[odd * hidden] = f32::NAN;
            let out = clean(&ptx, &gpu, &case, &tensors).out;
            for row in 0..case.tokens {
                let dx = |dx: &[f32]| dx[row * hidden..][..hidden].to_vec();
                if row == odd {
                    assert!(out.loss[row].is_nan() && out.lse[row].is_nan() && dx(&out.dx).iter().all(|v| v.is_nan()));
                } else {
                    assert!(same(&out.loss[row..=row], &plain.out.loss[row..=row]), "row {row}");
                    assert!(same(&dx(&out.dx), &dx(&plain.out.dx)), "row {row}");
                }
            }

            tensors = Tensors::random(&case);
            tensors.bias = Some(vec![f32::NEG_INFINITY; case.vocab]);
            let out = clean(&ptx, &gpu, &case, &tensors).out;
            let counts = |row: &usize| tensors.targets[*row] != -100;
            assert!((0..case.tokens).filter(counts).all(|row| out.loss[row].is_nan()));
            let zero = |values: &[f32]| values.iter().all(|v| *v == 0.0);
            assert!(zero(&out.dx) && zero(&out.dw) && zero(&out.dbias.unwrap()), "{dtype} {save}");
        }
    }
}

#[test]
fn a_masked_class_without_weight_costs_nothing() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for (softcap, target) in [(None, 1), (None, 7), (Some(2.0), 7)] {
        let loss = CrossEntropy { label_smoothing: 0.1, softcap, ..per_token() };
        let base =
            Case { dtype: Dtype::Bf16, loss, policy: policy(Algorithm::Two, Save::Auto), ..Case::new(9, 16, 300) };
        let case = Case { bias: true, extras: [false, false, true], bounds: vec![0, 100, 300], ..base };
        let mut tensors = Tensors::random(&case);
        tensors.targets.fill(target);
        tensors.bias.as_mut().unwrap()[7] = f32::NEG_INFINITY;
        tensors.class_weights.as_mut().unwrap()[7] = 0.0;
        let run = clean(&ptx, &gpu, &case, &tensors);
        check(&case, &tensors, &run).unwrap();
        assert!(run.out.loss.iter().all(|l| l.is_finite()) && run.out.dbias.unwrap()[7] == 0.0);
    }
}

#[test]
fn a_mean_divides_by_the_weights_of_targets_all_but_the_z_loss() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for (dtype, label_smoothing) in [(Dtype::Bf16, 0.0), (Dtype::Bf16, 0.1), (Dtype::F16, 0.1)] {
        let loss = CrossEntropy { z_loss: 0.1, label_smoothing, ..CrossEntropy::default() };
        let base = Case { dtype, loss, policy: policy(Algorithm::Two, Save::Auto), ..Case::new(1, 16, 2) };
        for weight in [1e-4, 1e-30, 65536.0] {
            let mut tensors = Tensors::random(&base);
            tensors.x.fill(0.0);
            tensors.class_weights = Some(vec![weight; 2]);
            let out = clean(&ptx, &gpu, &base, &tensors).out;
            assert!((out.loss[0] - 0.741_192_5).abs() < 2e-7, "{dtype} {weight}: {:?}", out.loss);
        }
        let case = Case { bounds: vec![0, 100, 300], extras: [true; 3], tokens: 9, vocab: 300, ..base };
        let mut tensors = Tensors::random(&case);
        check(&case, &tensors, &clean(&ptx, &gpu, &case, &tensors)).unwrap();
        tensors.class_weights.as_mut().unwrap()[7] = 0.0;
        tensors.targets.fill(7);
        tensors.lse_upstream = None;
        let out = clean(&ptx, &gpu, &case, &tensors).out;
        let zero = |values: &[f32]| values.iter().all(|v| *v == 0.0);
        assert!(out.loss == [0.0] && zero(&out.dx) && zero(&out.dw), "{dtype}: {:?}", out.loss);
    }
}

#[test]
fn logits_at_the_documented_limit_are_numbers() {
    const LARGEST: f32 = 1e38;
    let Some((ptx, gpu)) = interpreter() else { return };
    for (most, some) in [(LARGEST, 0.0), (-LARGEST, 0.0), (-LARGEST, LARGEST), (LARGEST, -LARGEST)] {
        for save in SAVES {
            // Ragged tiles of tokens and of columns.
            let base = Case {
                dtype: Dtype::Bf16,
                loss: per_token(),
                policy: policy(Algorithm::Two, save),
                ..Case::new(9, 16, 700)
            };
            let case = Case { bounds: vec![0, 300, 700], bias: true, ..base };
            let mut tensors = Tensors::random(&case);
            let at = |v: usize| if v.is_multiple_of(3) && some != 0.0 { some } else { most };
            tensors.bias = Some((0..case.vocab).map(at).collect());
            let run = clean(&ptx, &gpu, &case, &tensors);
            check(&case, &tensors, &run).unwrap_or_else(|e| panic!("{most:e} {some:e}: {e}"));
        }
    }
}

#[test]
fn nothing_to_do_is_done() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for (tokens, ignore) in [(0, -100), (6, 3)] {
        for algorithm in ALGORITHMS {
            let loss = CrossEntropy { ignore_index: Some(ignore), ..CrossEntropy::default() };
            let base =
                Case { dtype: Dtype::Bf16, loss, policy: policy(algorithm, Save::Yes), ..Case::new(tokens, 8, 40) };
            let case = Case { bounds: vec![0, 10, 40], bias: true, ..base };
            let mut tensors = Tensors::random(&case);
            tensors.targets = vec![ignore; tokens];
            let out = run(&gpu, &case, &tensors).unwrap().out;
            let zero = |values: &[f32]| values.iter().all(|v| *v == 0.0);
            assert!(zero(&out.loss) && zero(&out.lse) && zero(&out.dx) && zero(&out.dw) && zero(&out.dbias.unwrap()));
            assert!(ptx.take_report().is_clean());
        }
    }
}

/// One token of one feature, two classes with smoothed targets: weights that are equal cancel in the mean.
#[test]
fn equal_class_weights_of_any_size_give_the_same_mean() {
    let Some((ptx, gpu)) = interpreter() else { return };
    let loss = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
    for bounds in [vec![0, 2], vec![0, 1, 2]] {
        for weight in [1.0, 65536.0, 1e-7, 1e30, 1e-30] {
            let case = Case { dtype: Dtype::F16, loss, bounds: bounds.clone(), ..Case::new(1, 1, 2) };
            let tensors = Tensors {
                x: vec![1.0],
                w: vec![1.0, 3.0],
                targets: vec![0],
                class_weights: Some(vec![weight; 2]),
                ..Tensors::random(&case)
            };
            let dx = clean(&ptx, &gpu, &Case { policy: policy(Algorithm::Two, Save::No), ..case }, &tensors).out.dx;
            // The numerators of the softmax are rounded to f16.
            assert!((dx[0] - 1.661_594_2).abs() < 1.5e-3, "{weight:e}: {dx:?}");
        }
    }
}

/// Powers of two on weights or upstream gradients, far outside of what f16 holds, come out as factors of the gradients, bit
/// for bit.
#[test]
fn a_common_factor_of_weights_or_upstream_gradients_changes_no_digit_of_f16() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for (softcap, bounds) in [(None, vec![0, 263, 700]), (Some(2.0), vec![0, 700])] {
        let case = Case {
            dtype: Dtype::F16,
            loss: CrossEntropy { label_smoothing: 0.1, softcap, ..per_token() },
            bounds,
            bias: true,
            upstream: true,
            extras: [false, true, true],
            policy: policy(Algorithm::Two, Save::Auto),
            ..Case::new(30, 24, 700)
        };
        let tensors = Tensors::random(&case);
        let plain = clean(&ptx, &gpu, &case, &tensors);
        check(&case, &tensors, &plain).unwrap();
        let plain = plain.out;
        for factor in [2.0f32.powi(-100), 2.0f32.powi(-24), 2.0f32.powi(20), 2.0f32.powi(100)] {
            let times = |values: &Option<Vec<f32>>| values.as_ref().map(|v| v.iter().map(|v| v * factor).collect());
            for scaled in [
                Tensors { class_weights: times(&tensors.class_weights), ..tensors.clone() },
                Tensors { token_weights: times(&tensors.token_weights), ..tensors.clone() },
                Tensors { upstream: times(&tensors.upstream), ..tensors.clone() },
            ] {
                let out = clean(&ptx, &gpu, &case, &scaled).out;
                let all = |values: &[f32]| values.iter().map(|v| v * factor).collect::<Vec<_>>();
                assert!(same(&out.dx, &all(&plain.dx)), "dx {factor:e} {softcap:?}");
                assert!(same(&out.dw, &all(&plain.dw)), "dw {factor:e} {softcap:?}");
                assert!(same(&out.dbias.unwrap(), &all(plain.dbias.as_ref().unwrap())), "dbias {factor:e}");
            }
        }
    }
}

#[test]
fn an_infinite_weight_masks_its_class_and_no_other() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for dtype in [Dtype::Bf16, Dtype::F16] {
        for save in SAVES {
            for tokens in [1, 33] {
                let policy = policy(Algorithm::Two, save);
                let case = Case { dtype, policy, bias: true, bounds: vec![0, 1, 3], ..Case::new(tokens, 1, 3) };
                let mut by_weight = Tensors::random(&case);
                by_weight.x.fill(1.0);
                by_weight.targets.fill(2);
                by_weight.w = vec![0.25, f32::NEG_INFINITY, -0.5];
                let mut by_bias = by_weight.clone();
                by_bias.w[1] = 0.0;
                by_bias.bias.as_mut().unwrap()[1] = f32::NEG_INFINITY;
                let [got, want] = [by_weight, by_bias].map(|tensors| run(&gpu, &case, &tensors).unwrap().out);
                assert!(ptx.take_report().is_clean());
                assert!(got.dw[1] == 0.0 && same(&got.dw, &want.dw), "{:?} for {:?}", got.dw, want.dw);
                assert!(same(&got.dbias.unwrap(), &want.dbias.unwrap()) && same(&got.loss, &want.loss), "{case:?}");
            }
        }
    }
}

#[test]
fn smoothed_targets_need_neither_classes_nor_tokens() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for softcap in [None, Some(2.0)] {
        for bounds in [vec![0, 1, 1], vec![0, 0, 1]] {
            let loss =
                CrossEntropy { label_smoothing: 0.1, ignore_index: Some(-100), softcap, ..CrossEntropy::default() };
            let case = Case { dtype: Dtype::Bf16, bounds, loss, ..Case::new(3, 1, 1) };
            let tensors = Tensors { targets: vec![-100; 3], ..Tensors::random(&case) };
            let out = run(&gpu, &case, &tensors).unwrap().out;
            assert!(ptx.take_report().is_clean());
            assert!(out.loss == [0.0] && out.dx == [0.0; 3] && out.dw == [0.0], "{out:?}");
        }
    }
}
