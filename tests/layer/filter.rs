//! The gradient filter: what it leaves out is counted and bounded, and nothing else changes.

use crate::common::filter::{bounds, check_within, every_option};
use crate::common::{Case, Run, Tensors, amx, amx_bf16x3, bf16x3, devices, run, same};
use vocabfuse_runtime::{Algorithm, Cpu, CrossEntropy, Dtype, OutputLayer, Policy, Save, ShardLayout, Target};

const THRESHOLD: f32 = 1e-3;

/// Rows with unlikely stretches, over two ranks.
fn case(policy: Policy, dtype: Dtype) -> Case {
    let base = Case::new(70, 40, 1500);
    let loss = CrossEntropy { logit_scale: 1.5, ..CrossEntropy::default() };
    Case { bounds: vec![0, 1000, 1500], dtype, policy, spread: 4.0, bias: true, upstream: true, loss, ..base }
}

/// Tensors with a bias that makes some columns unlikely.
fn tensors(case: &Case) -> Tensors {
    unlikely_columns(Tensors::random(case))
}

fn unlikely_columns(mut tensors: Tensors) -> Tensors {
    for (column, bias) in tensors.bias.iter_mut().flatten().enumerate() {
        if (200..600).contains(&column) || (1100..1400).contains(&column) {
            *bias -= 12.0;
        }
    }
    tensors
}

fn filtered(case: &Case, threshold: f32) -> Case {
    Case { policy: Policy { filter: Some(threshold), ..case.policy }, ..case.clone() }
}

/// All devices, policies and dtypes that have a filter.
fn everywhere(test: impl Fn(&Cpu, &Case)) {
    for cpu in bf16x3(2).into_iter().chain(amx_bf16x3(2)) {
        for (save, algorithm) in [(Save::Yes, Algorithm::One), (Save::No, Algorithm::Two)] {
            test(&cpu, &case(Policy { save, algorithm, ..Policy::default() }, Dtype::F32).bf16x3());
        }
    }
    for cpu in devices(2).into_iter().chain(amx(2)) {
        for save in [Save::Yes, Save::No] {
            for algorithm in [Algorithm::One, Algorithm::Two] {
                for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
                    if cpu.target() == Target::Amx && dtype != Dtype::Bf16 {
                        continue;
                    }
                    test(&cpu, &case(Policy { save, algorithm, ..Policy::default() }, dtype));
                }
            }
        }
    }
}

#[test]
fn what_is_left_out_is_bounded() {
    everywhere(|cpu, case| {
        let tensors = tensors(case);
        let all = run(cpu, case, &tensors).unwrap();
        let kept = run(cpu, &filtered(case, THRESHOLD), &tensors).unwrap();
        let what = format!("{} {case:?}", cpu.name());
        // 2 panels of 32 tokens that count by 47 strips of 32 columns is the coarsest grid.
        let [dx, dw] = kept.filtered;
        assert!(dx.tiles >= 2 * 47 && dw.tiles >= 2 * 47, "{what}: {dx:?} {dw:?}");
        assert!(dw.skipped > 0 && dw.skipped < dw.tiles, "{what}: {dw:?}");
        // Saved values are measured against the sums of all ranks, others against what a rank has seen.
        if case.policy.algorithm == Algorithm::One && case.policy.save == Save::Yes {
            assert!(dx.skipped > 0, "{what}: {dx:?}");
        }
        let Run { out, .. } = &kept;
        assert!(same(&out.loss, &all.out.loss) && same(&out.lse, &all.out.lse), "{what}");
        assert!(same(out.dbias.as_ref().unwrap(), all.out.dbias.as_ref().unwrap()), "{what}");
        let (dx, dw) = bounds(case, &tensors, THRESHOLD);
        check_within(&format!("dx of {what}"), &all.out.dx, &out.dx, &dx);
        check_within(&format!("dw of {what}"), &all.out.dw, &out.dw, &dw);
        assert!(!same(&all.out.dw, &out.dw), "{what}: tiles were counted but not left out");
        assert_eq!(all.filtered.map(|f| f.tiles), [0, 0], "{what}: no filter, no count");
    });
}

#[test]
fn the_bound_is_relative_to_the_derivatives_of_a_token() {
    for label_smoothing in [0.0, 0.1] {
        everywhere(|cpu, case| {
            let (case, tensors) = every_option(case, label_smoothing);
            let tensors = unlikely_columns(tensors);
            let all = run(cpu, &case, &tensors).unwrap();
            let kept = run(cpu, &filtered(&case, THRESHOLD), &tensors).unwrap();
            let what = format!("{} {case:?}", cpu.name());
            assert!(kept.filtered[1].skipped > 0, "{what}: {:?}", kept.filtered);
            let (dx, dw) = bounds(&case, &tensors, THRESHOLD);
            check_within(&format!("dx of {what}"), &all.out.dx, &kept.out.dx, &dx);
            check_within(&format!("dw of {what}"), &all.out.dw, &kept.out.dw, &dw);
        });
    }
}

#[test]
fn tiles_are_as_fine_as_the_products() {
    for cpu in devices(2) {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let case = Case { spread: 0.1, ..filtered(&case(Policy::default(), dtype), THRESHOLD) };
            let mut tensors = Tensors::random(&case);
            for (column, bias) in tensors.bias.iter_mut().flatten().enumerate() {
                *bias = if column % 8 == 0 { 12.0 } else { -12.0 };
            }
            let [dx, dw] = run(&cpu, &case, &tensors).unwrap().filtered;
            let what = format!("{} {dtype}: {dx:?} {dw:?}", cpu.name());
            // One of eight columns, or a pair with one, is likely for every token.
            let pairs = dtype == Dtype::Bf16 && cpu.target() == Target::Avx512Bf16;
            assert!((dx.share() - if pairs { 0.75 } else { 0.875 }).abs() < 0.01, "{what}");
            // So is one of the rows of most tiles of dW.
            let scalar = cpu.target() == Target::Scalar;
            assert!((dw.share() > 0.0) == (cpu.target() == Target::Avx2 || scalar) && dw.share() < 0.6, "{what}");
        }
    }
}

/// Without a filter threads share the vocabulary of so few tokens.
#[test]
fn few_tokens_have_a_filter() {
    for cpu in devices(2) {
        let case = case(Policy { chunk: Some(512), ..Policy::default() }, Dtype::F32);
        let case = Case { tokens: 8, vocab: 6000, bounds: vec![0, 4000, 6000], ..case };
        let tensors = tensors(&case);
        let all = run(&cpu, &case, &tensors).unwrap().out;
        let kept = run(&cpu, &filtered(&case, THRESHOLD), &tensors).unwrap();
        assert!(kept.filtered.iter().all(|f| f.skipped > 0), "{}: {:?}", cpu.name(), kept.filtered);
        for (all, kept) in all.loss.iter().zip(&kept.out.loss) {
            assert!((all - kept).abs() <= 1e-5 * all.abs(), "{}: loss {all} and {kept}", cpu.name());
        }
        let (dx, dw) = bounds(&case, &tensors, THRESHOLD);
        check_within(&format!("dx of {}", cpu.name()), &all.dx, &kept.out.dx, &dx);
        check_within(&format!("dw of {}", cpu.name()), &all.dw, &kept.out.dw, &dw);
    }
}

#[test]
fn a_threshold_that_nothing_is_under_changes_nothing() {
    everywhere(|cpu, case| {
        // Derivatives of zero are left out, rightly: nothing is so unlikely here, but what f16 cannot save.
        let tensors = Tensors::random(case);
        let all = run(cpu, case, &tensors).unwrap();
        let kept = run(cpu, &filtered(case, f32::MIN_POSITIVE), &tensors).unwrap();
        if !(case.dtype == Dtype::F16 && case.policy.save == Save::Yes) {
            assert_eq!(kept.filtered.map(|f| f.skipped), [0, 0], "{} {case:?}", cpu.name());
        }
        assert!(same(&all.out.dx, &kept.out.dx) && same(&all.out.dw, &kept.out.dw), "{} {case:?}", cpu.name());
    });
}

#[test]
fn a_row_that_is_nan_is_not_left_out() {
    everywhere(|cpu, case| {
        let case = filtered(case, 0.5);
        let mut tensors = tensors(&case);
        tensors.x[5 * case.hidden] = f32::NAN;
        let out = run(cpu, &case, &tensors).unwrap().out;
        assert!(out.dx[5 * case.hidden..][..case.hidden].iter().all(|v| v.is_nan()), "{} {case:?}", cpu.name());
        assert!(out.dw.iter().all(|v| v.is_nan()), "{} {case:?}", cpu.name());
    });
}

#[test]
fn thresholds_are_above_0_and_below_1() {
    let (cpu, layout) = (Cpu::new(Some(1)).unwrap(), ShardLayout::even(10, 1).unwrap());
    for filter in [0.0, -1e-3, 1.0, f32::NAN, f32::INFINITY] {
        let policy = Policy { filter: Some(filter), ..Policy::default() };
        let error = OutputLayer::new(&cpu, &layout, 0, CrossEntropy::default(), policy).unwrap_err().to_string();
        assert!(error.contains("filter") && error.contains("above 0 and below 1"), "{error}");
    }
}
