//! The ends of the range: logits as large as they may be, and results that a rounding would take past zero.

use super::contract::{given, value};
use super::harness::{Case, Data, Run, Which, composition, draws, run};
use crate::common::interpreter;
use crate::common::targets::devices;
use crate::gpu::operators::clean;
use vocabfuse_runtime::{Dtype, Precision};

/// A logit near the largest number, of either sign.
const LARGEST: f32 = 1e38;

#[test]
fn huge_logits_are_numbers() {
    // At these sizes f32 has few values: the largest logit has all the mass.
    for which in [Which::Logprobs, Which::Entropy, Which::Both] {
        let mut case = given(which, 2, 600);
        case.bounds = vec![0, 300, 600];
        let mut data = Data::random(&case);
        data.ids.fill(5);
        data.logits[0].fill(1e30);
        data.logits[0][5] = 2e30;
        data.logits[0][605] = 1e38;
        for cpu in devices(1) {
            let answer = run(&cpu, &case, &data).unwrap().answer;
            assert!(value(&answer).iter().all(|v| *v == 0.0), "{which:?} {} {:?}", cpu.name(), value(&answer));
            assert!(answer.gradients[0].logits.iter().all(|g| *g == 0.0));
        }
    }
}

/// Cases of tokens that fill no panel, behind which logits are the bias alone: most of it is one number, a third another.
fn at_the_limit(which: Which, test: impl Fn(&Case, &Data) -> Run) {
    let mixes = [
        (LARGEST, LARGEST),
        (-LARGEST, -LARGEST),
        (-LARGEST, LARGEST),
        (LARGEST, -LARGEST),
        (0.0, LARGEST),
        (0.0, -LARGEST),
    ];
    for (most, some) in mixes {
        let case = Case { bias: true, bounds: vec![0, 250, 600], ..Case::new(which, 5, 8, 600) };
        let mut data = Data::random(&case);
        data.bias[0].iter_mut().enumerate().for_each(|(id, b)| *b = if id.is_multiple_of(3) { some } else { most });
        // Where the first distribution has all its mass the second must not be as low: such a divergence may overflow.
        if which == Which::Forward && most != some {
            data.bias[1] = data.bias[0].clone();
        }
        let answer = test(&case, &data).answer;
        let truth = composition::<f64>(&case, &data);
        let wanted = [&truth.logprobs, &truth.entropy, &truth.divergence].into_iter().flatten();
        for (got, want) in value(&answer).iter().zip(wanted) {
            let error = (f64::from(*got) - want).abs();
            assert!(error <= 1e-5 * want.abs().max(1.0), "{got} for {want}: {which:?} {most:e} {some:e}");
        }
        for g in &answer.gradients {
            let finite = g.x.iter().chain(&g.w).chain(&g.bias).all(|v| v.is_finite());
            assert!(finite, "{which:?} {most:e} {some:e}");
        }
    }
}

#[test]
fn logits_at_the_documented_limit_are_numbers() {
    for which in Which::DIFFERENTIABLE {
        for cpu in devices(2) {
            at_the_limit(which, |case, data| run(&cpu, case, data).unwrap());
        }
    }
}

#[test]
fn logits_at_the_documented_limit_are_numbers_on_a_gpu() {
    let Some((ptx, gpu)) = interpreter() else { return };
    let gpu = gpu.with_precision(Some(Precision::Tf32x3));
    for which in [Which::Both, Which::Reverse] {
        at_the_limit(which, |case, data| clean(&ptx, &gpu, case, data));
    }
}

#[test]
fn roundings_do_not_cross_zero() {
    for which in Which::DIFFERENTIABLE.into_iter().chain([Which::TopK(2)]) {
        let case = given(which, 90, 40);
        let mut data = Data::random(&case);
        data.ids.fill(5);
        // One id has all the mass, by all kinds of distances.
        for (token, row) in data.logits[0].chunks_mut(40).enumerate() {
            row[5] += 12.0 + 0.37 * token as f32;
        }
        data.logits[1] = data.logits[0].clone();
        for cpu in devices(1) {
            let answer = run(&cpu, &case, &data).unwrap().answer;
            let what = format!("{which:?} {}", cpu.name());
            assert!(answer.logprobs.iter().all(|v| *v <= 0.0), "{what} {:?}", answer.logprobs);
            assert!(answer.entropy.iter().chain(&answer.divergence).all(|v| *v >= 0.0), "{what} {:?}", answer.entropy);
        }
    }
}

/// Logits of two classes before they are capped at 1, and the derivative of the first one's log-probability by it.
const AT_THE_CAP: [(f32, f32); 3] = [(9.0, 7.262e-9), (10.0, 9.828e-10), (20.0, 2.026e-18)];

/// Where logits reach their cap, gradients are small, and have all digits nevertheless.
fn at_the_cap(test: impl Fn(&Case, &Data) -> Run) {
    for which in Which::DIFFERENTIABLE {
        for (given, dtype, bounds) in [
            (true, Dtype::F32, vec![0, 2]),
            (true, Dtype::F16, vec![0, 1, 2]),
            (false, Dtype::Bf16, vec![0, 2]),
            (false, Dtype::F16, vec![0, 1, 2]),
        ] {
            for (z, derivative) in AT_THE_CAP {
                let hidden = [1, 1];
                let base = Case { softcap: Some(1.0), given, bias: true, hidden, ..Case::new(which, 1, 1, 2) };
                let case = Case { dtypes: [dtype; 2], per_token: 1, bounds: bounds.clone(), ..base };
                let mut data = Data::random(&case);
                (data.ids, data.slots, data.rows) = (vec![0], vec![1.0], vec![1.0]);
                (data.bias, data.x) = ([vec![0.0; 2], vec![0.0; 2]], [vec![z], vec![z]]);
                // Another distribution, with a first logit that is not at the cap.
                (data.logits, data.w) = ([vec![z, -z], vec![0.5, -z]], [vec![1.0, -1.0], vec![0.5 / z, -1.0]]);
                if !given {
                    vocabfuse::plain::round(&mut data.w[1], dtype);
                }
                let gradients = test(&case, &data).answer.gradients;
                let wanted = composition::<f64>(&case, &data).gradients;
                let what = format!("{which:?} of {z}, {dtype}, given {given}");
                for (got, want) in gradients.iter().zip(&wanted) {
                    // Of X there is one value, a difference of what has been rounded.
                    let tensors = [(&got.bias, &want.bias), (&got.logits, &want.logits), (&got.w, &want.w)];
                    for (got, want) in tensors.into_iter().flat_map(|(got, want)| got.iter().zip(want)) {
                        let rounding = if given { 1e-4 } else { 1e-2 };
                        let error = (f64::from(*got) - want).abs();
                        assert!(error <= rounding * want.abs(), "{got:e} for {want:e}: {what}");
                    }
                }
                if which == Which::Logprobs && given {
                    let got = gradients[0].logits[0];
                    assert!((got - derivative).abs() < 1e-3 * derivative, "{got:e} for {derivative:e}: {what}");
                }
            }
        }
    }
}

#[test]
fn the_slope_of_a_cap_has_its_digits_where_logits_reach_it() {
    for cpu in devices(1) {
        at_the_cap(|case, data| run(&cpu, case, data).unwrap());
    }
}

#[test]
fn the_slope_of_a_cap_has_its_digits_where_logits_reach_it_on_a_gpu() {
    let Some((ptx, gpu)) = interpreter() else { return };
    at_the_cap(|case, data| clean(&ptx, &gpu, case, data));
}

/// Logits 1, 2, 3 and far lower ones, with an offset, the same for all tokens.
fn with_offset(which: Which, offset: f32) -> (Case, Data) {
    let mut case = given(which, 3, 700);
    case.bounds = vec![0, 250, 700];
    let mut data = Data::random(&case);
    for logits in &mut data.logits {
        for row in logits.chunks_mut(700) {
            row.fill(offset - 1000.0);
            (row[0], row[300], row[699]) = (offset + 1.0, offset + 2.0, offset + 3.0);
        }
    }
    data.ids.fill(300);
    (case, data)
}

#[test]
fn a_common_offset_of_the_logits_changes_nothing() {
    for cpu in devices(2).into_iter().chain(crate::common::targets::amx(2)) {
        common_offsets(|case, data| run(&cpu, case, data).unwrap(), &cpu.name());
    }
}

#[test]
fn a_common_offset_of_the_logits_changes_nothing_on_a_gpu() {
    let Some((ptx, gpu)) = interpreter() else { return };
    common_offsets(|case, data| clean(&ptx, &gpu, case, data), "ptx:sm_80");
}

fn common_offsets(run: impl Fn(&Case, &Data) -> Run, name: &str) {
    let p = [0.090_030_573, 0.244_728_471, 0.665_240_956];
    for offset in [0.0f32, 1e4, -1e4, 2.9e6, 6e6, 1e7, -1e7] {
        for which in [Which::Logprobs, Which::Entropy, Which::Both, Which::Forward, Which::TopK(2)] {
            let (case, data) = with_offset(which, offset);
            let Run { answer, .. } = run(&case, &data);
            let close = |got: &[f32], want: f64| {
                for got in got {
                    let error = (f64::from(*got) - want).abs();
                    assert!(error <= 2e-6, "{got} for {want}: {which:?} at {offset} on {name}");
                }
            };
            match which {
                Which::TopK(_) => close(&answer.logprobs[..1], -0.407_605_964),
                _ => close(&answer.logprobs, -1.407_605_964),
            }
            close(&answer.entropy, 0.832_395_583);
            close(&answer.divergence, 0.0);
            if which == Which::Entropy {
                for (token, u) in data.rows.iter().enumerate() {
                    let by_y = |p: f64| -p * (p.ln() + 0.832_395_583) * f64::from(*u);
                    close(&answer.gradients[0].logits[token * 700 + 699..][..1], by_y(p[2]));
                    close(&answer.gradients[0].logits[token * 700..][..1], by_y(p[0]));
                }
            }
        }
    }
}

#[test]
fn draws_do_not_know_a_common_offset_on_a_gpu() {
    let Some((_, gpu)) = interpreter() else { return };
    let of = |logit: f32| draws(&gpu, &vec![logit; 800], 4, &[0, 1, 4], 1)[0].ids.clone();
    let ids = of(0.0);
    assert!((0..4).all(|id| (30..70).contains(&ids.iter().filter(|i| **i == id).count())), "{ids:?}");
    assert!([16_777_216.0, 1e30, -1e8].iter().all(|logit| of(*logit) == ids));
}

#[test]
fn draws_do_not_know_a_common_offset() {
    let at = |cpu: &vocabfuse_runtime::Cpu, logit: f32, bounds: &[usize]| {
        let values = draws(cpu, &vec![logit; 4000], 4, bounds, 1);
        assert!(values.iter().all(|v| v.ids == values[0].ids));
        values[0].ids.clone()
    };
    for cpu in devices(2) {
        let ids = at(&cpu, 0.0, &[0, 4]);
        for id in 0..4 {
            let count = ids.iter().filter(|i| **i == id).count();
            assert!((200..300).contains(&count), "{count} of {id}");
        }
        for logit in [16_777_216.0, 1e7, 1e30, -1e8, 3e38] {
            assert_eq!(at(&cpu, logit, &[0, 4]), ids, "{logit} on {}", cpu.name());
            assert_eq!(at(&cpu, logit, &[0, 1, 3, 4]), ids, "{logit} on {}", cpu.name());
        }
    }
}

#[test]
fn divergences_of_close_distributions_have_digits() {
    for cpu in devices(2) {
        close_distributions(|case, data| run(&cpu, case, data).unwrap(), &cpu.name(), 32_000);
    }
}

#[test]
fn divergences_of_close_distributions_have_digits_on_a_gpu() {
    let Some((ptx, gpu)) = interpreter() else { return };
    close_distributions(|case, data| clean(&ptx, &gpu, case, data), "ptx:sm_80", 3_000);
}

fn close_distributions(run: impl Fn(&Case, &Data) -> Run, name: &str, vocab: usize) {
    for (offset, spread, bounds) in
        [(0.0f32, 2e-3, vec![0, vocab]), (0.3, 2e-3, vec![0, vocab / 3, vocab]), (-5.0, 1e-4, vec![0, vocab])]
    {
        for which in [Which::Forward, Which::Reverse] {
            let case = Case { bounds: bounds.clone(), spread, ..given(which, 3, vocab) };
            let mut data = Data::random(&case);
            data.logits[1].iter_mut().for_each(|y| *y += offset);
            // The first classes differ more, and weigh next to nothing.
            data.logits.iter_mut().for_each(|logits| logits.chunks_mut(vocab).for_each(|row| row[..64].fill(-20.0)));
            data.logits[1].chunks_mut(vocab).for_each(|row| row[..64].fill(-21.0));
            let truth = composition::<f64>(&case, &data).divergence;
            for (got, want) in run(&case, &data).answer.divergence.iter().zip(&truth) {
                let error = (f64::from(*got) - want).abs();
                assert!(error <= 3e-4 * want, "{got:e} for {want:e}: {which:?} {offset} on {name}");
            }
        }
    }
}

#[test]
fn the_length_of_the_vocabulary_costs_no_digits() {
    for cpu in devices(2) {
        uniform(|case, data| run(&cpu, case, data).unwrap(), &cpu.name());
    }
}

#[test]
fn the_length_of_the_vocabulary_costs_no_digits_on_a_gpu() {
    let Some((_, gpu)) = interpreter() else { return };
    uniform(|case, data| run(&gpu, case, data).unwrap(), "ptx:sm_80");
}

#[test]
fn divergences_survive_shards_and_chunks_that_hold_next_to_nothing() {
    for cpu in devices(2) {
        far_apart(|case, data| run(&cpu, case, data).unwrap(), &cpu.name());
    }
}

#[test]
fn divergences_survive_shards_and_chunks_that_hold_next_to_nothing_on_a_gpu() {
    let Some((ptx, gpu)) = interpreter() else { return };
    far_apart(|case, data| clean(&ptx, &gpu, case, data), "ptx:sm_80");
}

/// The first classes weigh next to nothing in one distribution, or in the other, by all sizes that f32 may lose.
fn far_apart(run: impl Fn(&Case, &Data) -> Run, name: &str) {
    for (vocab, bounds) in
        [(2, vec![0, 1, 2]), (513, vec![0, 513]), (2049, vec![0, 2049]), (600, vec![0, 150, 300, 600])]
    {
        for low in [50.0f32, 88.0, 95.0, 100.0, 103.0, 104.0, 110.0, 150.0, 1000.0, 1e4, 1e9, 1e34] {
            for which in [Which::Forward, Which::Reverse] {
                for side in [0, 1] {
                    let case = Case { bounds: bounds.clone(), ..given(which, 2, vocab) };
                    let mut data = Data::random(&case);
                    data.logits.iter_mut().for_each(|logits| logits.fill(0.0));
                    let last = vocab - if vocab == 600 { 300 } else { 1 };
                    data.logits[side].chunks_mut(vocab).for_each(|row| row[..last].fill(-low));
                    let answer = run(&case, &data).answer;
                    let truth = composition::<f64>(&case, &data);
                    let what = format!("{which:?} of {vocab} classes, {low} below on side {side}, on {name}");
                    for (got, want) in answer.divergence.iter().zip(&truth.divergence) {
                        assert!((f64::from(*got) - want).abs() <= 2e-6 * want, "{got} for {want}: {what}");
                    }
                    for (got, want) in answer.gradients.iter().zip(&truth.gradients) {
                        // A derivative is a difference of distances as large as the divergence.
                        let size =
                            want.logits.iter().chain(&truth.divergence).fold(0.0, |size: f64, v| size.max(v.abs()));
                        for (got, want) in got.logits.iter().zip(&want.logits) {
                            let error = (f64::from(*got) - want).abs();
                            assert!(error <= 1e-6 * size, "gradient {got} for {want}: {what}");
                        }
                    }
                }
            }
        }
    }
}

fn uniform(run: impl Fn(&Case, &Data) -> Run, name: &str) {
    for which in [Which::Logprobs, Which::Both] {
        let case = given(which, 2, 100_003);
        let mut data = Data::random(&case);
        data.logits[0].fill(0.1);
        data.ids.fill(5);
        let answer = run(&case, &data).answer;
        for (values, want, error) in [(&answer.logprobs, -11.512_955_5, 2e-6), (&answer.entropy, 11.512_955_5, 4e-6)] {
            for got in values {
                assert!((f64::from(*got) - want).abs() < error, "{got} on {name}");
            }
        }
    }
}
