//! f32 in bf16x3: the bound of its products, what it gains over bf16, extreme values, and what refuses it.

use crate::common::precision::BF16X3;
use crate::common::{Case, Run, Tensors, amx_bf16x3, bf16x3, composition, run, truth, worst_row};
use proptest::prelude::*;
use vocabfuse::problem::Outputs;
use vocabfuse_runtime::{Cpu, CrossEntropy, Dtype, Error, Gpu, Policy, Precision, Ptx, Reduction, Save};

fn everywhere(test: impl Fn(&Cpu)) {
    bf16x3(2).iter().chain(&amx_bf16x3(2)).for_each(test);
}

/// A case of one class, whose lse is its logit.
fn logits(tokens: usize, hidden: usize) -> Case {
    let loss = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    Case { loss, ..Case::new(tokens, hidden, 1).bf16x3() }
}

/// Every logit is within the bound of its products, and the roundings of f32 sums.
fn within_the_bound(cpu: &Cpu, case: &Case, tensors: &Tensors) {
    let lse = run(cpu, case, tensors).unwrap().out.lse;
    for (token, lse) in lse.iter().enumerate() {
        let x = &tensors.x[token * case.hidden..][..case.hidden];
        let products = x.iter().zip(&tensors.w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        let size: f64 = products.clone().map(f64::abs).sum();
        // Three sums of as many terms, added up one after the other at worst.
        let sums = 3.0 * case.hidden as f64 * f64::from(f32::EPSILON) / 2.0;
        let error = (f64::from(*lse) - products.sum::<f64>()).abs();
        assert!(error <= (BF16X3 + sums) * size, "{error:e} of {size:e} in row {token} on {} {case:?}", cpu.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn products_are_within_their_bound(
        tokens in 1..70usize,
        hidden in 1..140usize,
        exponents in prop::collection::vec(-20..20i32, 140),
        seed in any::<u64>(),
    ) {
        let case = Case { seed, ..logits(tokens, hidden) };
        let mut tensors = Tensors::random(&case);
        tensors.targets.fill(0);
        for (i, w) in tensors.w.iter_mut().enumerate() {
            *w *= 2.0f32.powi(exponents[i]);
        }
        bf16x3(2).iter().for_each(|cpu| within_the_bound(cpu, &case, &tensors));
    }
}

#[test]
fn the_bound_holds_where_all_parts_are_as_large_as_can_be() {
    // 1 + nearly half of the last bit of the high part, less nearly half of the last bit of the low part.
    let worst = f32::from_bits(0x3f80_7fbf);
    everywhere(|cpu| {
        for (x, w) in [(worst, worst), (-worst, worst), (1.0 + 1.0 / 256.0 + 1.0 / 65536.0, worst)] {
            let case = logits(3, 1);
            let tensors = Tensors { x: vec![x; 3], w: vec![w], targets: vec![0; 3], ..Tensors::random(&case) };
            within_the_bound(cpu, &case, &tensors);
        }
    });
}

#[test]
fn values_that_bf16_rounds_to_infinity_are_finite() {
    everywhere(|cpu| {
        for huge in [f32::MAX, -f32::MAX, f32::from_bits(0x7f7f_8000), 3.4e38] {
            let (case, half) = (logits(2, 2), 0.5f32.copysign(huge));
            let tensors = Tensors { targets: vec![0; 2], ..Tensors::random(&case) };
            // Rounded to the nearest bf16 all these would be infinite.
            let (x, w) = (vec![huge, 1.0, half / 2.0, huge], vec![half, half]);
            within_the_bound(cpu, &case, &Tensors { x, w, ..tensors.clone() });
            let (x, w) = (vec![half, 0.0, half / 2.0, half / 2.0], vec![huge, huge]);
            within_the_bound(cpu, &case, &Tensors { x, w, ..tensors });
        }
    });
}

#[test]
fn infinite_and_nan_factors_are_what_they_are_in_f32() {
    let (infinity, plain) = (f32::INFINITY, Cpu::new(Some(1)).unwrap());
    everywhere(|cpu| {
        for exact in [1.0, 1.0 + f32::EPSILON, -1.0 / 3.0] {
            for odd in [infinity, -infinity, f32::NAN] {
                let case = logits(1, 3);
                let tensors = Tensors { targets: vec![0], ..Tensors::random(&case) };
                for (x, w) in [([2.0, odd, 0.7], [0.3, exact, 0.1]), ([2.0, exact, 0.7], [0.3, odd, 0.1])] {
                    let tensors = Tensors { x: x.to_vec(), w: w.to_vec(), ..tensors.clone() };
                    let lse = |cpu: &Cpu| run(cpu, &case, &tensors).unwrap().out.lse[0];
                    let (got, want) = (lse(cpu), lse(&plain));
                    assert!(got == want || got.is_nan() && want.is_nan(), "{got} for {want} on {}", cpu.name());
                }
            }
        }
    });
}

/// Of the worst row of each output.
fn errors(out: &Outputs<f32>, truth: &Outputs<f64>, hidden: usize) -> [f64; 4] {
    let h = hidden;
    let rows =
        [(&out.loss, &truth.loss, 1), (&out.lse, &truth.lse, 1), (&out.dx, &truth.dx, h), (&out.dw, &truth.dw, h)];
    rows.map(|(got, want, width)| worst_row(got, want, width, 0.0))
}

#[test]
fn errors_are_fifty_times_smaller_than_those_of_bf16() {
    for save in [Save::Yes, Save::No] {
        let case = Case { policy: Policy { save, ..Policy::default() }, ..Case::new(96, 256, 1024) }.bf16x3();
        let tensors = Tensors::random(&case);
        let truth = truth(&case, &tensors);
        // The same tensors, rounded to bf16.
        let bf16 = composition(&Case { dtype: Dtype::Bf16, ..case.clone() }, &tensors);
        let bf16 = errors(&bf16, &truth, case.hidden);
        everywhere(|cpu| {
            let Run { out, kernels, .. } = run(cpu, &case, &tensors).unwrap();
            for ((error, bf16), name) in
                errors(&out, &truth, case.hidden).into_iter().zip(bf16).zip(["loss", "lse", "dx", "dw"])
            {
                assert!(error * 50.0 < bf16, "{name}: {error:e} beside {bf16:e} on {}", cpu.name());
            }
            let split = kernels.iter().filter(|k| k.contains("_bf16x3__"));
            assert!(split.count() >= 4 && kernels.iter().any(|k| k.starts_with("merge__")), "{kernels:?}");
        });
    }
}

#[test]
fn what_has_no_products_in_bf16x3_refuses_it() {
    let case = Case::new(4, 8, 40);
    let refused = |cpu: &Cpu, case: &Case| {
        let error = run(cpu, case, &Tensors::random(case)).unwrap_err();
        assert!(matches!(error, Error::Option { option: "precision", .. }), "{error}");
        error.to_string()
    };
    for target in Cpu::available_targets() {
        let cpu = Cpu::with_target(target, Some(1)).unwrap().with_precision(Some(Precision::Bf16x3));
        if target.multiplies_f32() {
            let error = refused(&cpu, &case);
            let named = ["bf16x3", "avx512bf16 and amx", &format!("on target {target}")];
            assert!(named.iter().all(|word| error.contains(word)), "{error}");
        }
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let error = refused(&cpu, &Case { dtype, ..case.clone() });
            assert!(error.contains("for dtype f32") && error.contains(&format!("dtype {dtype}")), "{error}");
        }
        for precision in [Precision::Tf32, Precision::Tf32x3] {
            let error = refused(&cpu.clone().with_precision(Some(precision)), &case);
            assert!(error.contains("exact") && error.contains(precision.as_str()), "{error}");
        }
    }
    let ptx = Ptx::new("sm_80").unwrap();
    let gpu = Gpu::ptx(&ptx).unwrap().with_precision(Some(Precision::Bf16x3));
    let error = run(&gpu, &case, &Tensors::random(&case)).unwrap_err().to_string();
    assert!(error.contains("bf16x3") && error.contains("tf32 or tf32x3"), "{error}");
}
