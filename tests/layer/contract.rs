//! Odd rows and inputs: each test is an input that has broken an operator of this kind, with the right answer.

use crate::common::{Case, Tensors, amx, amx_bf16x3, bf16x3, check, devices, run, same, worst_row};
use vocabfuse_runtime::{
    Algorithm, Batch, Cpu, CrossEntropy, Dtype, Gradients, Local, Matrix, Operands, OutputLayer, Policy, Reduction,
    Save, Shard, ShardLayout, Upstream,
};

const SAVES: [Save; 2] = [Save::Yes, Save::No];
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Naive, Algorithm::One, Algorithm::Two];

/// Every device, policy and dtype that a contract has to hold on.
fn everywhere(case: &Case, test: impl Fn(&Cpu, &Case)) {
    for cpu in bf16x3(2).into_iter().chain(amx_bf16x3(2)) {
        for (save, algorithm) in [(Save::Yes, Algorithm::One), (Save::Yes, Algorithm::Two), (Save::No, Algorithm::Two)]
        {
            let policy = Policy { save, algorithm, ..case.policy };
            test(&cpu, &Case { policy, ..case.clone() }.bf16x3());
        }
    }
    for cpu in devices(2).into_iter().chain(amx(2)) {
        for save in SAVES {
            for algorithm in ALGORITHMS {
                for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
                    let emulated = cpu.target() == vocabfuse_runtime::Target::Amx;
                    // Emulated tiles are slow: one dtype and one algorithm of them.
                    if emulated && (dtype != Dtype::Bf16 || algorithm == Algorithm::Naive) {
                        continue;
                    }
                    let policy = Policy { save, algorithm, ..case.policy };
                    test(&cpu, &Case { policy, dtype, ..case.clone() });
                }
            }
        }
    }
}

fn two_ranks(case: Case) -> Case {
    let bounds = vec![0, case.vocab / 3, case.vocab];
    Case { bounds, ..case }
}

fn zero(values: &[f32]) -> bool {
    values.iter().all(|v| *v == 0.0)
}

#[test]
fn a_row_without_finite_logits_has_nan_loss_and_zero_gradients() {
    let case = two_ranks(Case {
        loss: CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() },
        ..Case::new(3, 16, 700)
    });
    everywhere(&case, |cpu, case| {
        let mut tensors = Tensors::random(case);
        tensors.targets = vec![1, 600, 2];
        tensors.bias = Some(vec![f32::NEG_INFINITY; case.vocab]);
        let out = run(cpu, case, &tensors).unwrap().out;
        assert!(out.loss.iter().all(|l| l.is_nan()), "{}", cpu.name());
        assert!(out.lse.iter().all(|l| *l == f32::NEG_INFINITY));
        assert!(zero(&out.dx) && zero(&out.dw) && zero(&out.dbias.unwrap()), "{}", cpu.name());
    });
}

#[test]
fn one_finite_logit_has_loss_zero() {
    // Whole chunks of -inf come before and after it.
    let case = two_ranks(Case::new(2, 8, 2500));
    everywhere(&case, |cpu, case| {
        let mut tensors = Tensors::random(case);
        let mut bias = vec![f32::NEG_INFINITY; case.vocab];
        bias[1700] = 0.5;
        tensors.bias = Some(bias);
        tensors.targets = vec![1700, 1700];
        let out = run(cpu, case, &tensors).unwrap().out;
        assert_eq!(out.loss, [0.0], "{}", cpu.name());
        assert!(zero(&out.dx) && zero(&out.dw), "{}", cpu.name());
    });
}

#[test]
fn a_masked_target_has_infinite_loss_and_finite_gradients() {
    let case = two_ranks(Case::new(2, 8, 100));
    everywhere(&case, |cpu, case| {
        let mut tensors = Tensors::random(case);
        let mut bias = vec![0.0; case.vocab];
        bias[7] = f32::NEG_INFINITY;
        tensors.bias = Some(bias);
        tensors.targets = vec![7, 8];
        let out = run(cpu, case, &tensors).unwrap().out;
        assert_eq!(out.loss, [f32::INFINITY]);
        assert!(out.dx.iter().chain(&out.dw).all(|v| v.is_finite()), "{}", cpu.name());
    });
}

#[test]
fn a_nan_logit_stays_in_its_row() {
    let loss = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    let case = two_ranks(Case { loss, ..Case::new(40, 24, 600) });
    everywhere(&case, |cpu, case| {
        let mut tensors = Tensors::random(case);
        tensors.targets = (0..40).collect();
        let clean = run(cpu, case, &tensors).unwrap().out;
        tensors.x[5 * case.hidden] = f32::NAN;
        let out = run(cpu, case, &tensors).unwrap().out;
        for row in 0..case.tokens {
            let dx = |out: &vocabfuse::problem::Outputs<f32>| out.dx[row * case.hidden..][..case.hidden].to_vec();
            if row == 5 {
                assert!(out.loss[row].is_nan() && out.lse[row].is_nan() && dx(&out).iter().all(|v| v.is_nan()));
            } else {
                assert!(
                    same(&out.loss[row..=row], &clean.loss[row..=row]) && same(&dx(&out), &dx(&clean)),
                    "row {row}"
                );
            }
        }
    });
}

#[test]
fn an_infinite_logit_stays_in_its_row() {
    let loss = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    let case = Case { loss, ..Case::new(33, 8, 600) };
    everywhere(&case, |cpu, case| {
        let mut tensors = Tensors::random(case);
        tensors.w[100 * case.hidden] = 1.0;
        tensors.targets = (0..33).collect();
        tensors.x[4 * case.hidden] = f32::INFINITY;
        let out = run(cpu, case, &tensors).unwrap().out;
        assert!(out.loss[4].is_nan(), "{}", cpu.name());
        assert!(out.loss.iter().enumerate().all(|(row, l)| row == 4 || l.is_finite()), "{}", cpu.name());
        let others = out.dx.chunks(case.hidden).enumerate().filter(|(row, _)| *row != 4);
        assert!(others.flat_map(|(_, dx)| dx).all(|v| v.is_finite()), "{}", cpu.name());
    });
}

#[test]
fn a_common_offset_changes_nothing() {
    let case = two_ranks(Case { dtype: Dtype::F32, ..Case::new(58, 16, 700) });
    for cpu in devices(1) {
        for save in SAVES {
            let case = Case { policy: Policy { save, ..case.policy }, ..case.clone() };
            let mut tensors = Tensors::random(&case);
            tensors.bias = Some(vec![0.0; case.vocab]);
            let plain = run(&cpu, &case, &tensors).unwrap().out;
            // 4096 + y loses twelve bits of y, and nothing else may be lost.
            for offset in [4096.0, -4096.0] {
                tensors.bias = Some(vec![offset; case.vocab]);
                let out = run(&cpu, &case, &tensors).unwrap().out;
                for (a, b, width) in [(&plain.loss, &out.loss, 1), (&plain.dx, &out.dx, 16), (&plain.dw, &out.dw, 16)] {
                    let error = worst_row(b, a, width, 0.0);
                    assert!(error < 5e-4, "{error:e} with offset {offset} on {}", cpu.name());
                }
            }
        }
    }
}

#[test]
fn panels_that_are_not_full_add_nothing() {
    // The missing tokens of a panel see the bias alone; large ones once overflowed in them.
    let case = two_ranks(Case { bias: true, ..Case::new(13, 16, 600) });
    everywhere(&case, |cpu, case| {
        let mut tensors = Tensors::random(case);
        for bias in [200.0, -200.0] {
            tensors.bias = Some(vec![bias; case.vocab]);
            let run = run(cpu, case, &tensors).unwrap();
            check(case, &tensors, &run).unwrap();
        }
    });
}

#[test]
fn an_infinite_weight_masks_its_class_and_no_other() {
    // One and more panels that are not full, whose missing tokens once were zeros: zero times an infinite weight is NaN.
    for tokens in [1, 33] {
        for (x, masked) in [(1.0, f32::NEG_INFINITY), (-1.0, f32::INFINITY)] {
            for (w, targets) in [(vec![0.0, masked], 1), (vec![0.25, masked, -0.5], 3)] {
                let bounds = vec![0, 1, w.len()];
                let case = Case { bounds, bias: true, ..Case::new(tokens, 1, w.len()) };
                everywhere(&case, |cpu, case| {
                    for filter in [None, Some(1e-3)] {
                        let case = Case { policy: Policy { filter, ..case.policy }, ..case.clone() };
                        let mut tensors = Tensors::random(&case);
                        tensors.x.fill(x);
                        tensors.targets = (0..tokens).map(|i| i as i64 % targets / 2 * 2).collect();
                        tensors.w = w.clone();
                        // The same by a bias, which is no product.
                        let mut by_bias = tensors.clone();
                        by_bias.w[1] = 0.0;
                        by_bias.bias.as_mut().unwrap()[1] = f32::NEG_INFINITY;
                        let (got, want) =
                            (run(cpu, &case, &tensors).unwrap().out, run(cpu, &case, &by_bias).unwrap().out);
                        let (dbias, want_dbias) = (got.dbias.unwrap(), want.dbias.unwrap());
                        assert!(got.dw[1] == 0.0 && dbias[1] == 0.0, "{:?} {dbias:?} on {}", got.dw, cpu.name());
                        assert!(
                            same(&got.loss, &want.loss) && same(&got.dw, &want.dw) && same(&dbias, &want_dbias),
                            "{:?} for {:?}, {dbias:?} for {want_dbias:?} on {} in {case:?}",
                            got.dw,
                            want.dw,
                            cpu.name()
                        );
                    }
                });
            }
        }
    }
}

#[test]
fn near_certainty_keeps_relative_precision() {
    // p(target) = 1 - 1e-5: a difference of rounded probabilities would have no digit left in bf16.
    let case = Case { spread: 0.5, ..Case::new(20, 16, 600) };
    everywhere(&case, |cpu, case| {
        let mut tensors = Tensors::random(case);
        let mut bias = vec![0.0; case.vocab];
        bias[3] = 18.0;
        tensors.bias = Some(bias);
        tensors.targets = vec![3; case.tokens];
        let run = run(cpu, case, &tensors).unwrap();
        let truth = crate::common::truth(case, &tensors);
        let rounding = match case.dtype {
            Dtype::F32 if case.precision.is_some() => 2e-5,
            Dtype::F32 => 2e-6,
            _ => 1e-2,
        };
        let (out, h) = (&run.out, case.hidden);
        let outputs =
            [("loss", &out.loss, &truth.loss, 1), ("dx", &out.dx, &truth.dx, h), ("dw", &out.dw, &truth.dw, h)];
        for (name, got, want, width) in outputs {
            let error = worst_row(got, want, width, 0.0);
            assert!(error < rounding, "{name}: {error:e} on {} with {:?}", cpu.name(), case.dtype);
        }
    });
}

#[test]
fn growing_logits_repair_the_reference() {
    // Every chunk is far above the one before it.
    let case = Case { tokens: 9, ..Case::new(9, 8, 2600) };
    everywhere(&case, |cpu, case| {
        let mut tensors = Tensors::random(case);
        tensors.bias = Some((0..case.vocab).map(|v| (v / 400) as f32 * 30.0).collect());
        tensors.targets = (0..9).map(|i| i * 280).collect();
        let run = run(cpu, case, &tensors).unwrap();
        check(case, &tensors, &run).unwrap();
    });
}

/// The documented limit of finite logits, of either sign.
const LARGEST: f32 = 1e38;

#[test]
fn huge_logits_and_finite_masks_are_ordinary_numbers() {
    // Beyond 2^22 a reference in f32 is no exact integer multiple of anything near a logit any more.
    let loss = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    let case = two_ranks(Case { loss, ..Case::new(5, 8, 1100) });
    everywhere(&case, |cpu, case| {
        if case.dtype == Dtype::F16 {
            return; // f16 has no such numbers to save.
        }
        for huge in [5e6, 3e9, 1e10, 2e10, 1e12, 1e20, 1e30, 7e37, LARGEST] {
            let mut tensors = Tensors::random(case);
            tensors.targets = vec![600, 601, 700, 1000, 1099];
            // A chunk and more that is masked by a finite number, as some programs do.
            tensors.bias = Some((0..case.vocab).map(|v| if v < 600 { -huge } else { 0.0 }).collect());
            check(case, &tensors, &run(cpu, case, &tensors).unwrap())
                .unwrap_or_else(|e| panic!("{} {huge:e}: {e}", cpu.name()));
            // The whole row is far below or above zero, or one logit far above or below the others.
            for (everywhere, one) in [(-huge, 0.0), (huge, 0.0), (0.0, huge), (-huge, 2.0 * huge), (huge, -2.0 * huge)]
            {
                let bias = |v| if v == 601 { everywhere + one } else { everywhere };
                tensors.bias = Some((0..case.vocab).map(bias).collect());
                let out = run(cpu, case, &tensors).unwrap().out;
                let truth = crate::common::truth(case, &tensors);
                // The logits themselves are rounded to multiples of `huge` / 2^24, and so is what depends on them.
                for (got, want) in out.loss.iter().zip(&truth.loss).chain(out.lse.iter().zip(&truth.lse)) {
                    let error = (f64::from(*got) - want).abs();
                    assert!(error <= f64::from(huge) * 1e-6, "{got} for {want} with {huge:e} on {}", cpu.name());
                }
                let gradients = out.dx.iter().chain(&out.dw).chain(out.dbias.iter().flatten());
                assert!(gradients.into_iter().all(|v| v.is_finite()), "{huge:e} on {}", cpu.name());
            }
        }
    });
}

#[test]
fn ignored_tokens_count_for_nothing() {
    let loss = |reduction, normalizer| CrossEntropy {
        reduction,
        normalizer,
        ignore_index: Some(3),
        ..CrossEntropy::default()
    };
    let cpu = Cpu::new(Some(2)).unwrap();
    for (reduction, normalizer) in
        [(Reduction::None, None), (Reduction::Sum, None), (Reduction::Mean, None), (Reduction::Mean, Some(50.0))]
    {
        // The ignored id lies within the vocabulary.
        let case = two_ranks(Case { loss: loss(reduction, normalizer), upstream: true, ..Case::new(30, 20, 90) });
        let mut tensors = Tensors::random(&case);
        check(&case, &tensors, &run(&cpu, &case, &tensors).unwrap()).unwrap();

        tensors.targets = vec![3; 30];
        let out = run(&cpu, &case, &tensors).unwrap().out;
        assert!(zero(&out.loss) && zero(&out.lse) && zero(&out.dx) && zero(&out.dw), "all ignored, {reduction}");
    }
}

#[test]
fn equal_class_weights_cancel_in_a_mean_and_the_z_loss_has_none() {
    let mean = |label_smoothing| CrossEntropy { z_loss: 0.1, label_smoothing, ..CrossEntropy::default() };
    everywhere(&Case { bounds: vec![0, 1, 2], ..Case::new(1, 1, 2) }, |cpu, case| {
        for (weight, label_smoothing) in [(1e-4, 0.0), (1e-4, 0.1), (1e-38, 0.1), (1e30, 0.1)] {
            let case = Case { loss: mean(label_smoothing), ..case.clone() };
            let zeros = Tensors { x: vec![0.0], w: vec![0.0; 2], targets: vec![0], ..Tensors::random(&case) };
            let weighted = Tensors { class_weights: Some(vec![weight; 2]), ..zeros };
            let loss = run(cpu, &case, &weighted).unwrap().out.loss[0];
            assert!((loss - 0.741_192_5).abs() < 2e-7, "{}: {loss} {weight} {label_smoothing}", cpu.name());
        }
    });
    everywhere(&two_ranks(Case::new(21, 8, 90)), |cpu, case| {
        for label_smoothing in [0.0, 0.1] {
            let case = Case { loss: mean(label_smoothing), bias: true, extras: [true, true, false], ..case.clone() };
            let tensors = Tensors::random(&case);
            let without = run(cpu, &case, &tensors).unwrap().out;
            let weighted = Tensors { class_weights: Some(vec![3e-5; case.vocab]), ..tensors };
            let with = run(cpu, &case, &weighted).unwrap();
            check(&case, &weighted, &with).unwrap_or_else(|e| panic!("{}: {e}", cpu.name()));
            let outputs =
                [(&with.out.loss, &without.loss, 1), (&with.out.dx, &without.dx, 8), (&with.out.dw, &without.dw, 8)];
            for (with, without, width) in outputs {
                let error = worst_row(with, without, width, 0.0);
                assert!(error < 1e-6, "{error:e} on {}", cpu.name());
            }
        }
    });
}

#[test]
fn the_mean_over_targets_without_weight_is_zero_and_so_are_its_gradients() {
    let loss = CrossEntropy { z_loss: 0.1, label_smoothing: 0.1, ..CrossEntropy::default() };
    everywhere(&two_ranks(Case { loss, bias: true, ..Case::new(7, 8, 90) }), |cpu, case| {
        let mut tensors = Tensors::random(case);
        tensors.targets.fill(5);
        let weights: Vec<f32> = (0..case.vocab).map(|class| if class == 5 { 0.0 } else { 2.0 }).collect();
        tensors.class_weights = Some(weights);
        let out = run(cpu, case, &tensors).unwrap().out;
        assert!(out.loss == [0.0] && out.lse.iter().all(|lse| *lse > 0.0), "{}: {:?}", cpu.name(), out.loss);
        assert!(zero(&out.dx) && zero(&out.dw) && zero(&out.dbias.unwrap()), "{}", cpu.name());
        // The gradient of lse does not go by the reduction.
        tensors.lse_upstream = Some(vec![0.5; case.tokens]);
        let by_lse = run(cpu, case, &tensors).unwrap();
        check(case, &tensors, &by_lse).unwrap_or_else(|e| panic!("{}: {e}", cpu.name()));
        assert!(!zero(&by_lse.out.dx) && !zero(&by_lse.out.dw), "{}", cpu.name());
    });
}

#[test]
fn upstream_is_folded_in_before_the_sum_over_tokens() {
    let loss = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    let case = two_ranks(Case { loss, upstream: true, bias: true, ..Case::new(50, 20, 90) });
    everywhere(&case, |cpu, case| {
        let tensors = Tensors::random(case);
        check(case, &tensors, &run(cpu, case, &tensors).unwrap()).unwrap();
    });
}

#[test]
fn many_tokens_and_few_classes() {
    let case = Case { dtype: Dtype::Bf16, ..Case::new(8192, 128, 32) };
    for save in SAVES {
        let case = Case { policy: Policy { save, ..case.policy }, ..case.clone() };
        let tensors = Tensors::random(&case);
        check(&case, &tensors, &run(&Cpu::new(Some(2)).unwrap(), &case, &tensors).unwrap()).unwrap();
    }
}

#[test]
fn a_vocabulary_that_nothing_divides() {
    let case = Case { bounds: vec![0, 25129, 50257], ..Case::new(5, 8, 50257) };
    let tensors = Tensors::random(&case);
    let cpu = Cpu::new(Some(2)).unwrap();
    check(&case, &tensors, &run(&cpu, &case, &tensors).unwrap()).unwrap();
}

#[test]
fn sizes_of_one_and_none() {
    for (tokens, hidden, vocab, bounds) in [
        (0, 4, 9, vec![0, 9]),
        (1, 1, 1, vec![0, 1]),
        (1, 1, 1, vec![0, 0, 1, 1]),
        (3, 1, 2, vec![0, 1, 2]),
        (0, 4, 9, vec![0, 0, 9]),
    ] {
        let case = Case { bounds, bias: true, ..Case::new(tokens, hidden, vocab) };
        everywhere(&case, |cpu, case| {
            let tensors = Tensors::random(case);
            let run = run(cpu, case, &tensors).unwrap();
            if case.dtype == Dtype::F32 {
                return check(case, &tensors, &run).unwrap();
            }
            // With two classes the roundings of the plain composition cancel; measure by the terms of the sum instead.
            let truth = crate::common::truth(case, &tensors);
            assert!(worst_row(&run.out.loss, &truth.loss, 1, 0.0) < 1e-5);
            let largest = tensors.w.iter().chain(&tensors.x).fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
            for (got, want) in run.out.dx.iter().zip(&truth.dx).chain(run.out.dw.iter().zip(&truth.dw)) {
                assert!((f64::from(*got) - want).abs() <= largest / 256.0, "{got} for {want} on {}", cpu.name());
            }
        });
    }
}

#[test]
fn padded_vocabulary_rows_have_no_mass_and_no_gradient() {
    let (tokens, hidden, vocab) = (10, 12, 21);
    let case = Case::new(tokens, hidden, vocab);
    let tensors = Tensors::random(&case);
    let expected = run(&Cpu::new(Some(1)).unwrap(), &case, &tensors).unwrap().out;
    let layout = ShardLayout::padded(vocab, 2).unwrap();
    assert_eq!((layout.stored(), layout.classes(0), layout.classes(1)), (24, 12, 9));
    let mut w = tensors.w.clone();
    w.resize(layout.stored() * hidden, f32::NAN);
    let mut dw = vec![7.0f32; w.len()];
    let parts = vocabfuse::ranks::split_rows(&mut dw, hidden, (0..2).map(|r| layout.range(r)));
    let items: Vec<_> = Local::group(2).into_iter().zip(parts).collect();
    vocabfuse::ranks::each(items, |rank, (comm, dw)| {
        let layer = OutputLayer::new(&Cpu::new(Some(1))?, &layout, rank, CrossEntropy::default(), Policy::default())?;
        let w = Matrix::new(&w, layout.stored(), hidden)?.row_range(layout.range(rank))?;
        let x = Matrix::new(&tensors.x, tokens, hidden)?;
        let shard = Shard { weight: w, bias: None };
        let done = layer.s_pass(&comm, Batch::new(x, &tensors.targets), shard)?.start_combine().wait()?;
        assert!(worst_row(&done.loss, &expected.loss, 1, 0.0) < 1e-6);
        layer.t_pass(done.weight_grad, Operands::new(x, shard), Gradients { dw: dw.into(), dbias: None }, Upstream::One)
    })
    .unwrap();
    let real: Vec<f32> = dw[..vocab * hidden].iter().map(|v| v - 7.0).collect();
    // Beside 7 the last place of a number is 5e-7.
    assert!(worst_row(&real, &expected.dw, hidden, 0.1) < 1e-5, "dW is added to what was there");
    assert!(dw[vocab * hidden..].iter().all(|v| *v == 7.0), "padding is not touched");
}

#[test]
fn a_token_without_weight_has_no_loss_whatever_its_logits_are() {
    for reduction in [Reduction::None, Reduction::Sum, Reduction::Mean] {
        for masked in [-3e38f32, f32::NEG_INFINITY] {
            let loss = CrossEntropy { reduction, ..CrossEntropy::default() };
            let case = Case { bias: true, loss, ..Case::new(2, 1, 2) };
            let tensors = Tensors {
                x: vec![0.0; 2],
                w: vec![0.0; 2],
                bias: Some(vec![3e38, masked]),
                targets: vec![1, 0],
                token_weights: Some(vec![0.0, 1.0]),
                ..Tensors::random(&case)
            };
            for cpu in devices(1) {
                let out = run(&cpu, &case, &tensors).unwrap().out;
                assert!(out.loss.iter().all(|loss| *loss == 0.0), "{reduction:?} {masked}: {:?}", out.loss);
            }
        }
    }
}
