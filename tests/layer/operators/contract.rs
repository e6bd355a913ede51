//! Odd rows, odd shapes, errors, and what must not depend on threads or ranks.

use super::harness::{Case, Data, IGNORED, Run, Which, check, composition, draws, run};
use crate::common::targets::{amx, bf16x3, devices};
use crate::common::worst_row;
use vocabfuse_runtime::{
    Cpu, Distribution, DistributionGradients, Dtype, Error, Local, Matrix, Operators, ShardLayout, Target,
    ValueGradients,
};

const INF: f32 = f32::INFINITY;

pub fn given(which: Which, tokens: usize, vocab: usize) -> Case {
    Case { given: true, ..Case::new(which, tokens, 4, vocab) }
}

pub fn value(answer: &vocabfuse::operators::Answer<f32>) -> Vec<f32> {
    [&answer.logprobs, &answer.entropy, &answer.divergence].into_iter().flatten().copied().collect()
}

#[test]
fn a_row_without_a_distribution_is_nan_and_has_no_gradient() {
    for which in Which::DIFFERENTIABLE {
        for dead in 0..2 {
            let mut case = given(which, 5, 700);
            case.bounds = vec![0, 300, 700];
            let mut data = Data::random(&case);
            data.ids.fill(3);
            let clean = run(&Cpu::new(Some(2)).unwrap(), &case, &data).unwrap().answer;
            data.logits[dead][2 * 700..3 * 700].fill(-INF);
            for cpu in devices(2) {
                let run = run(&cpu, &case, &data).unwrap().answer;
                if dead == 1 && !which.is_kl() {
                    continue;
                }
                let per_row = value(&run).len() / 5;
                for g in run.gradients.iter() {
                    assert!(g.logits[2 * 700..3 * 700].iter().all(|g| *g == 0.0), "{which:?} {}", cpu.name());
                    assert!(g.logits.iter().all(|g| g.is_finite()));
                }
                let values = [&run.logprobs, &run.entropy, &run.divergence];
                for values in values.into_iter().filter(|v| !v.is_empty()) {
                    let k = values.len() / 5;
                    assert!(values[2 * k..3 * k].iter().all(|v| v.is_nan()), "{which:?} {values:?}");
                    assert_eq!(values.iter().filter(|v| v.is_nan()).count(), k, "{which:?}");
                }
                let [got, want] = [&run, &clean].map(|answer| &answer.gradients[0].logits[..1400]);
                assert!(per_row > 0 && worst_row(got, want, 700, 0.0) < 1e-5);
            }
        }
    }
}

#[test]
fn a_nan_stays_in_its_row() {
    for which in Which::DIFFERENTIABLE {
        let mut case = given(which, 4, 600);
        case.bounds = vec![0, 0, 100, 600];
        let mut data = Data::random(&case);
        data.ids.fill(7);
        data.logits[0][600 + 599] = f32::NAN;
        for cpu in devices(1) {
            let run = run(&cpu, &case, &data).unwrap().answer;
            for values in [&run.logprobs, &run.entropy, &run.divergence].into_iter().filter(|v| !v.is_empty()) {
                let k = values.len() / 4;
                assert!(values[k..2 * k].iter().all(|v| v.is_nan()), "{which:?} {values:?}");
                assert_eq!(values.iter().filter(|v| v.is_nan()).count(), k, "{which:?} {values:?}");
            }
            for g in &run.gradients {
                assert!(g.logits[..600].iter().chain(&g.logits[1200..]).all(|g| g.is_finite()), "{which:?}");
            }
        }
    }
}

/// A class that both distributions mask by an infinite weight, and the same by a bias, which is no product.
pub fn masked_by_weights(which: Which, tokens: usize, dtype: Dtype) -> (Case, [Data; 2]) {
    let bounds = vec![0, 1, 4];
    let case = Case { bounds, bias: true, hidden: [1, 1], dtypes: [dtype; 2], ..Case::new(which, tokens, 1, 4) };
    let mut by_weights = Data::random(&case);
    by_weights.ids.fill(3);
    let mut by_bias = by_weights.clone();
    for i in 0..2 {
        by_weights.x[i].fill(1.0);
        by_bias.x[i].fill(1.0);
        by_weights.w[i][1] = -INF;
        by_bias.bias[i][1] = -INF;
    }
    (case, [by_weights, by_bias])
}

/// Gradients of W and of the bias are the same in both ways. That of X is NaN by a weight: a probability of zero times it.
pub fn same_but_for_x(case: &Case, by_weights: &Run, by_bias: &Run) {
    for (got, want) in by_weights.answer.gradients.iter().zip(&by_bias.answer.gradients) {
        assert!(got.w[1] == 0.0 && got.bias[1] == 0.0, "{:?} {:?} in {case:?}", got.w, got.bias);
        assert_eq!((&got.w, &got.bias), (&want.w, &want.bias), "{case:?}");
    }
    assert_eq!(value(&by_weights.answer), value(&by_bias.answer), "{case:?}");
}

#[test]
fn an_infinite_weight_masks_its_class_and_no_other() {
    for which in Which::DIFFERENTIABLE {
        for (tokens, dtype) in [(1, Dtype::F32), (33, Dtype::F32), (33, Dtype::Bf16), (5, Dtype::F16)] {
            let (case, data) = masked_by_weights(which, tokens, dtype);
            for cpu in devices(2).iter().chain(&amx(2)) {
                let [by_weights, by_bias] = data.each_ref().map(|data| run(cpu, &case, data).unwrap());
                same_but_for_x(&case, &by_weights, &by_bias);
            }
            if dtype == Dtype::F32 {
                for cpu in bf16x3(2) {
                    let [by_weights, by_bias] = data.each_ref().map(|data| run(&cpu, &case.bf16x3(), data).unwrap());
                    same_but_for_x(&case, &by_weights, &by_bias);
                }
            }
        }
    }
}

#[test]
fn the_gradient_of_the_bias_is_as_exact_for_many_tokens_as_for_few() {
    const TOKENS: usize = 1 << 16;
    for given in [false, true] {
        let case = Case { given, bias: true, bounds: vec![0, 1, 3], ..Case::new(Which::Entropy, TOKENS, 2, 3) };
        let mut data = Data::random(&case);
        // Tokens that are all the same: the roundings of their sums do not cancel.
        data.x[0] = [0.7, -0.3].repeat(TOKENS);
        data.logits[0] = [0.1, 0.9, -0.6].repeat(TOKENS);
        data.rows.fill(0.3);
        let truth = composition::<f64>(&case, &data).gradients.swap_remove(0).bias;
        for cpu in devices(2) {
            let got = run(&cpu, &case, &data).unwrap().answer.gradients.swap_remove(0).bias;
            let error = worst_row(&got, &truth, 1, 0.0);
            assert!(error < 5e-6, "{error:e}, given {given}, on {}", cpu.name());
        }
    }
}

#[test]
fn masked_ids_add_nothing() {
    for which in Which::DIFFERENTIABLE {
        // Masked by the logits of both, in the same places: the rest is a smaller vocabulary.
        let (n, wide, kept) = (6, 640, 500);
        let mut case = given(which, n, kept);
        let mut data = Data::random(&case);
        data.ids.fill(11);
        let cpu = Cpu::new(Some(1)).unwrap();
        let narrow = run(&cpu, &case, &data).unwrap().answer;
        case.vocab = wide;
        case.bounds = vec![0, 250, wide];
        for logits in &mut data.logits {
            *logits = logits.chunks(kept).flat_map(|row| row.iter().copied().chain(vec![-INF; wide - kept])).collect();
        }
        for cpu in devices(2) {
            let run = run(&cpu, &case, &data).unwrap().answer;
            assert!(worst_row(&value(&run), &value(&narrow), 1, 0.0) < 2e-6, "{which:?} {}", cpu.name());
            for (wide_gradients, narrow) in run.gradients.iter().zip(&narrow.gradients) {
                for (row, narrow) in wide_gradients.logits.chunks(wide).zip(narrow.logits.chunks(kept)) {
                    assert!(worst_row(&row[..kept], narrow, kept, 0.0) < 2e-5, "{which:?}");
                    assert!(row[kept..].iter().all(|g| *g == 0.0));
                }
            }
        }
    }
}

#[test]
fn a_bias_masks_ids_of_linear_distributions() {
    for which in Which::DIFFERENTIABLE {
        let mut case = Case { bias: true, bounds: vec![0, 100, 300], ..Case::new(which, 9, 20, 300) };
        case.dtypes = [Dtype::Bf16; 2];
        let mut data = Data::random(&case);
        data.ids.iter_mut().filter(|id| **id >= 200).for_each(|id| *id -= 200);
        data.bias.iter_mut().for_each(|b| b[200..].fill(-INF));
        for cpu in devices(2) {
            let run = run(&cpu, &case, &data).unwrap();
            check(&case, &data, &run).unwrap();
            for (g, hidden) in run.answer.gradients.iter().zip(case.hidden) {
                assert!(g.w[200 * hidden..].iter().chain(&g.bias[200..]).all(|g| *g == 0.0), "{which:?}");
            }
        }
    }
}

#[test]
fn divergence_is_infinite_where_the_second_has_no_mass() {
    for (which, p, q) in [(Which::Forward, 1, 0), (Which::Reverse, 0, 1)] {
        let mut case = given(which, 3, 520);
        case.bounds = vec![0, 513, 520];
        let mut data = Data::random(&case);
        // Mass that is zero in f32, on an id that the other one excludes.
        (data.logits[p][520 + 515], data.logits[q][520 + 515]) = (-3000.0, -INF);
        for cpu in devices(1) {
            let run = run(&cpu, &case, &data).unwrap().answer;
            let finite: Vec<bool> = run.divergence.iter().map(|v| v.is_finite()).collect();
            assert_eq!((finite, run.divergence[1]), (vec![true, false, true], INF), "{which:?} {}", cpu.name());
            assert!(run.gradients[p].logits[520..1040].iter().all(|g| *g == 0.0));
            assert!(run.gradients.iter().all(|g| g.logits.iter().all(|g| g.is_finite())));
            let truth = composition::<f64>(&case, &data);
            assert!(worst_row(&run.gradients[q].logits, &truth.gradients[q].logits, 520, 0.0) < 2e-5);
        }
    }
}

#[test]
fn a_common_offset_changes_nothing() {
    for which in Which::DIFFERENTIABLE {
        for offset in [4096.0, -4096.0, 1e6] {
            let mut case = given(which, 8, 900);
            case.bounds = vec![0, 450, 900];
            let mut data = Data::random(&case);
            // Multiples of 1/8 are exact beside all offsets.
            data.logits.iter_mut().flatten().for_each(|y| *y = (*y * 8.0).round() / 8.0);
            for cpu in devices(2) {
                let before = run(&cpu, &case, &data).unwrap().answer;
                let mut moved = data.clone();
                moved.logits.iter_mut().flatten().for_each(|y| *y += offset);
                let after = run(&cpu, &case, &moved).unwrap().answer;
                let error = worst_row(&value(&after), &value(&before), 1, 0.0);
                assert!(error < 2e-6, "{which:?} at {offset}: {error:e} {}", cpu.name());
                for (a, b) in after.gradients.iter().zip(&before.gradients) {
                    assert!(worst_row(&a.logits, &b.logits, 900, 0.0) < 2e-5, "{which:?} at {offset}");
                }
            }
        }
    }
}

#[test]
fn ignored_ids_have_nothing() {
    let mut case = Case { bias: true, bounds: vec![0, 40, 90], ..Case::new(Which::Logprobs, 10, 12, 90) };
    for all in [false, true] {
        let mut data = Data::random(&case);
        if all {
            data.ids.fill(IGNORED);
        }
        // A token that nothing is asked of may be anything.
        data.x[0][3 * 12] = f32::NAN;
        let three = 3 * case.per_token;
        data.ids[three..three + case.per_token].fill(IGNORED);
        for cpu in devices(2) {
            let run = run(&cpu, &case, &data).unwrap().answer;
            for (value, id) in run.logprobs.iter().zip(&data.ids) {
                assert!(*id != IGNORED || *value == 0.0);
            }
            assert!(value(&run).iter().chain(&run.gradients[0].x).chain(&run.gradients[0].w).all(|v| v.is_finite()));
            assert!(run.gradients[0].x[3 * 12..4 * 12].iter().all(|g| *g == 0.0));
            if all {
                assert!(run.gradients[0].w.iter().chain(&run.gradients[0].bias).all(|g| *g == 0.0));
            }
        }
        case.per_token = 1;
    }
}

#[test]
fn distributions_may_have_dtypes_of_their_own() {
    for which in [Which::Forward, Which::Reverse] {
        let case = Case {
            dtypes: [Dtype::Bf16, Dtype::F32],
            bounds: vec![0, 333, 333, 700],
            softcap: Some(5.0),
            ..Case::new(which, 40, 33, 700)
        };
        let data = Data::random(&case);
        for cpu in devices(2) {
            check(&case, &data, &run(&cpu, &case, &data).unwrap()).unwrap();
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for which in Which::DIFFERENTIABLE.into_iter().chain([Which::TopK(9)]) {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let case = Case { dtypes: [dtype; 2], bias: true, ..Case::new(which, 130, 40, 1500) };
            let data = Data::random(&case);
            let with = |threads| {
                let run = run(&Cpu::new(Some(threads)).unwrap(), &case, &data).unwrap();
                format!("{:?}", run.answer)
            };
            let one = with(1);
            assert!(one == with(2) && one == with(5), "{which:?} {dtype}");
        }
    }
}

#[test]
fn samples_depend_on_seed_and_token_alone() {
    let (tokens, vocab) = (70, 1100);
    let data = Data::random(&given(Which::Entropy, tokens, vocab));
    let mut logits = data.logits[0].clone();
    logits[5 * vocab..6 * vocab].fill(-INF);
    logits[6 * vocab + 1] = f32::NAN;
    let wanted = draws(&Cpu::with_target(Target::Scalar, Some(1)).unwrap(), &logits, vocab, &[0, vocab], 42)[0].clone();
    assert!(wanted.ids[..5].iter().all(|id| (0..vocab as i64).contains(id)));
    assert_eq!((wanted.ids[5], wanted.ids[6]), (-1, -1));
    assert!(wanted.logprobs[5].is_nan() && wanted.logprobs[6].is_nan());
    for cpu in devices(3) {
        for bounds in [vec![0, vocab], vec![0, 1, 1, vocab], vec![0, 512, 700, 701, 1000, vocab]] {
            for values in draws(&cpu, &logits, vocab, &bounds, 42) {
                assert_eq!(values.ids, wanted.ids, "{} {bounds:?}", cpu.name());
            }
        }
        assert_ne!(draws(&cpu, &logits, vocab, &[0, vocab], 43)[0].ids, wanted.ids);
    }
}

#[test]
fn samples_follow_the_distribution() {
    let tokens = 30_000;
    let row = [0.5f32, -1.0, 2.0, -INF, 0.0];
    let logits: Vec<f32> = row.into_iter().cycle().take(tokens * row.len()).collect();
    let total: f32 = row.iter().map(|y| y.exp()).sum();
    for cpu in devices(2) {
        let ids = draws(&cpu, &logits, 5, &[0, 2, 5], 9)[0].ids.clone();
        for (id, y) in row.iter().enumerate() {
            let share = ids.iter().filter(|drawn| **drawn == id as i64).count() as f32 / tokens as f32;
            // Five standard deviations at most.
            assert!((share - y.exp() / total).abs() < 0.0145, "{id}: {share} {}", cpu.name());
        }
    }
}

#[test]
fn no_tokens_no_columns_and_one_of_each() {
    for which in Which::DIFFERENTIABLE.into_iter().chain([Which::TopK(1)]) {
        for (tokens, bounds) in [(0, vec![0, 5]), (3, vec![0, 0, 5, 5]), (1, vec![0, 1]), (0, vec![0, 0, 1])] {
            for given in [false, true] {
                let vocab = *bounds.last().unwrap();
                let case = Case { bounds: bounds.clone(), given, bias: true, ..Case::new(which, tokens, 3, vocab) };
                let data = Data::random(&case);
                for cpu in devices(1) {
                    check(&case, &data, &run(&cpu, &case, &data).unwrap()).unwrap();
                }
            }
        }
    }
}

#[test]
fn padded_rows_are_no_classes() {
    // 10 classes in 4 shards of 4 rows.
    let layout = ShardLayout::padded(10, 4).unwrap();
    assert_eq!(layout.stored(), 16);
    let cpu = Cpu::new(Some(1)).unwrap();
    let mut logits = [0.0f32; 3 * 16];
    logits.chunks_mut(16).for_each(|row| row[10..].fill(f32::NAN));
    let entropy = vocabfuse::ranks::each(Local::group(4), |rank, comm| {
        let range = layout.range(rank);
        let of = Distribution::logits(Matrix::with_stride(&logits[range.start..], 3, range.len(), 16)?);
        let layer = Operators::new(&cpu, &layout, rank)?;
        let done = layer.entropy(&comm, of)?.start_combine().wait()?;
        let mut dlogits = vec![f32::NAN; 3 * range.len()];
        let wanted = DistributionGradients { dlogits: Some(&mut dlogits), ..Default::default() };
        let upstream = ValueGradients { entropy: Some(&[1.0; 3]), ..Default::default() };
        layer.backward(&comm, &done.ticket, &[of], upstream, vec![wanted])?;
        assert!(dlogits.iter().all(|d| d.abs() < 1e-6), "{dlogits:?}");
        Ok::<_, Error>(done.values.entropy)
    })
    .unwrap();
    assert!(entropy.iter().flatten().all(|e| (e - 10f32.ln()).abs() < 1e-6), "{entropy:?}");
}

#[test]
fn kernels_are_named() {
    let case = Case { dtypes: [Dtype::Bf16; 2], ..Case::new(Which::Entropy, 2, 8, 20) };
    let data = Data::random(&case);
    for cpu in crate::common::targets::devices(1) {
        let names = run(&cpu, &case, &data).unwrap().kernels;
        for kernel in
            ["logits__", "row_logits__affine", "row_statistics__entropy", "row_gradient__entropy", "input_grad__"]
        {
            assert!(names.iter().any(|n| n.starts_with(kernel)), "{kernel} in {names:?}");
        }
    }
}
