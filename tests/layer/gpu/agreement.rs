//! Cross-entropy of the CUDA kernels against the f64 reference: every way of running, every option.

use super::{ALGORITHMS, SAVES, SCHEDULES, clean, policy, same_outputs};
use crate::common::{Case, Tensors, check, interpreter, run, truth, worst_row};
use vocabfuse_runtime::{Algorithm, CrossEntropy, Dtype, Policy, Precision, Save};

/// Ragged sizes, every fifth token ignored, a bias, all algorithms, one to three uneven ranks; schedules change no bit.
fn every_way(dtype: Dtype) {
    let Some((ptx, gpu)) = interpreter() else { return };
    for bounds in [vec![0, 1000], vec![0, 263, 1000], vec![0, 137, 650, 1000]] {
        for algorithm in ALGORITHMS {
            for save in SAVES {
                let case = Case {
                    dtype,
                    bounds: bounds.clone(),
                    bias: true,
                    upstream: true,
                    policy: policy(algorithm, save),
                    ..Case::new(70, 136, 1000)
                };
                let tensors = Tensors::random(&case);
                ptx.reseed(0);
                let first = clean(&ptx, &gpu, &case, &tensors);
                check(&case, &tensors, &first).unwrap();
                let barriers = [Algorithm::Two, Algorithm::One, Algorithm::Naive].iter().position(|a| *a == algorithm);
                assert!(first.counters.iter().all(|c| Some(c.barriers as usize) == barriers.map(|b| b + 1)));
                for seed in 1..SCHEDULES {
                    ptx.reseed(seed);
                    let other = clean(&ptx, &gpu, &case, &tensors);
                    assert!(same_outputs(&first, &other), "schedule {seed} of {case:?}");
                }
            }
        }
    }
}

#[test]
fn every_way_of_running_agrees_in_bf16() {
    every_way(Dtype::Bf16);
}

#[test]
fn every_way_of_running_agrees_in_f16() {
    every_way(Dtype::F16);
}

#[test]
fn tf32_agrees_with_f32_to_its_precision() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for (precision, allowed) in [(Precision::Tf32, 2e-3), (Precision::Tf32x3, 2e-6)] {
        let gpu = gpu.clone().with_precision(Some(precision));
        for save in SAVES {
            let case = Case { bias: true, policy: policy(Algorithm::Two, save), ..Case::new(40, 50, 700) };
            let tensors = Tensors::random(&case);
            let out = run(&gpu, &case, &tensors).unwrap().out;
            assert!(ptx.take_report().is_clean());
            let truth = truth(&case, &tensors);
            let outputs =
                [("loss", &out.loss, &truth.loss, 1), ("dx", &out.dx, &truth.dx, 50), ("dw", &out.dw, &truth.dw, 50)];
            for (name, got, want, width) in outputs {
                let error = worst_row(got, want, width, 0.0);
                assert!(error < allowed, "{name}: {error:e} with {precision}");
            }
        }
    }
}

#[test]
fn growing_logits_repair_the_reference() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for algorithm in ALGORITHMS {
        for save in SAVES {
            // Every tile is far above the one before it.
            let base = Case { dtype: Dtype::Bf16, policy: policy(algorithm, save), ..Case::new(9, 8, 1300) };
            let case = Case { bounds: vec![0, 700, 1300], ..base };
            let mut tensors = Tensors::random(&case);
            tensors.bias = Some((0..case.vocab).map(|v| (v / 200) as f32 * 30.0).collect());
            tensors.targets = (0..9).map(|i| i * 140).collect();
            check(&case, &tensors, &clean(&ptx, &gpu, &case, &tensors)).unwrap();
        }
    }
}

/// Every form of cross-entropy on uneven ranks, one of them empty, all options at once.
#[test]
fn options_agree_with_the_reference() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for form in 0..8u32 {
        let has = |bit: u32| form >> bit & 1 == 1;
        for (dtype, algorithm) in [(Dtype::Bf16, Algorithm::Two), (Dtype::F16, Algorithm::One)] {
            let loss = CrossEntropy {
                softcap: has(0).then_some(2.0),
                label_smoothing: if has(1) { 0.1 } else { 0.0 },
                argmax: has(2),
                z_loss: 0.01,
                logit_scale: 0.7,
                ..CrossEntropy::default()
            };
            let case = Case {
                dtype,
                loss,
                bounds: if has(0) { vec![0, 700] } else { vec![0, 263, 263, 700] },
                bias: true,
                upstream: true,
                extras: [true; 3],
                policy: policy(algorithm, Save::Auto),
                ..Case::new(150, 24, 700)
            };
            let tensors = Tensors::random(&case);
            let run = clean(&ptx, &gpu, &case, &tensors);
            check(&case, &tensors, &run).unwrap();
        }
    }
}

#[test]
fn tokens_of_more_than_one_block_add_up_in_dw() {
    let Some((ptx, gpu)) = interpreter() else { return };
    let filtered = Policy { filter: Some(1e-3), ..policy(Algorithm::Two, Save::No) };
    for (dtype, policy) in [(Dtype::Bf16, filtered), (Dtype::F16, policy(Algorithm::Two, Save::No))] {
        let case = Case { dtype, policy, bias: true, ..Case::new(2 * 4096 + 70, 5, 40) };
        let tensors = Tensors::random(&case);
        check(&case, &tensors, &clean(&ptx, &gpu, &case, &tensors)).unwrap();
    }
}
