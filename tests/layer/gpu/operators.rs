//! Operators on the PTX interpreter: the CUDA kernels and the host code that a GPU runs. Every launch is checked for races
//! and for reads of memory that nothing wrote. The kernels are compiled by NVRTC, which `cargo xtask test` installs.

use crate::common::{interpreter, worst_row};
use crate::operators::contract::{masked_by_weights, same_but_for_x};
use crate::operators::harness::{Case, Data, Run, Which, check, composition, draws, run};
use vocabfuse_runtime::{
    Cpu, Device, Distribution, Dtype, Gpu, Local, Matrix, Operators, Precision, Ptx, ShardLayout, Target,
};

const INF: f32 = f32::INFINITY;

/// Runs a case, checks every launch, and that another schedule of the threads changes no bit.
pub fn clean(ptx: &Ptx, gpu: &Gpu, case: &Case, data: &Data) -> Run {
    let once = |seed| {
        ptx.reseed(seed);
        let run = run(gpu, case, data).unwrap_or_else(|e| panic!("{e} in {case:?}"));
        let report = ptx.take_report();
        assert!(report.is_clean(), "{:#?} {:#?} in {case:?}", report.races, report.uninitialized);
        run
    };
    let first = once(0);
    assert!(format!("{:?}", first.answer) == format!("{:?}", once(1).answer), "schedules differ in {case:?}");
    first
}

/// A rank on the CPU and one on the device, whose rows have panels of other sizes, unless the CPU runs the scalar kernels.
#[test]
fn ranks_of_unlike_devices_agree_or_get_one_error() {
    fn entropy<D: Device>(device: &D, comm: &Local, logits: &[f32]) -> Result<Vec<f32>, String> {
        let layout = ShardLayout::from_bounds(&[0, 30, 100]).unwrap();
        let range = layout.range(comm.rank());
        let shard = Matrix::with_stride(&logits[range.start..], 20, range.len(), 100).unwrap();
        let layer = Operators::new(device, &layout, comm.rank()).unwrap();
        let statistics = layer.entropy(comm, Distribution::logits(shard)).unwrap();
        statistics.start_combine().wait().map(|done| done.values.entropy).map_err(|e| e.to_string())
    }
    let logits: Vec<f32> = (0..20 * 100).map(|i| (i as f32 * 0.7).sin()).collect();
    let alone = entropy_of_one(&logits);
    for target in [Target::Scalar, Target::Avx512].into_iter().filter(|t| Cpu::available_targets().contains(t)) {
        let cpu = Cpu::with_target(target, Some(1)).unwrap();
        let Some((_, gpu)) = interpreter() else { return };
        let group = Local::group(2);
        let found = std::thread::scope(|scope| {
            let first = scope.spawn(|| entropy(&cpu, &group[0], &logits));
            let second = entropy(&gpu, &group[1], &logits);
            [first.join().unwrap(), second]
        });
        assert_eq!(found[0], found[1]);
        match &found[0] {
            Ok(values) => {
                assert!(target == Target::Scalar && worst_row(values, &alone, 1, 0.0) < 1e-6);
            }
            Err(error) => assert!(target != Target::Scalar && error.contains("ranks disagree"), "{error}"),
        }
    }
}

fn entropy_of_one(logits: &[f32]) -> Vec<f32> {
    let layer = Operators::new(&Cpu::new(Some(1)).unwrap(), &ShardLayout::even(100, 1).unwrap(), 0).unwrap();
    let of = Distribution::logits(Matrix::new(logits, 20, 100).unwrap());
    layer.entropy(&Local::group(1)[0], of).unwrap().start_combine().wait().unwrap().values.entropy
}

/// One to three shards, one of which has no classes.
fn layouts(vocab: usize) -> [Vec<usize>; 3] {
    [vec![0, vocab], vec![0, vocab / 3, vocab], vec![0, vocab / 2, vocab / 2, vocab]]
}

/// More tokens than a tile has rows, H of no whole number of sectors, all options.
fn case(which: Which, dtype: Dtype, bounds: Vec<usize>, vocab: usize) -> Case {
    Case { bounds, dtypes: [dtype; 2], bias: true, scale: 0.75, ..Case::new(which, 131, 13, vocab) }
}

fn agrees(dtype: Dtype) {
    let Some((ptx, gpu)) = interpreter() else { return };
    for which in Which::DIFFERENTIABLE.into_iter().chain([Which::TopK(7)]) {
        for (i, bounds) in layouts(300).into_iter().enumerate() {
            let softcap = (i == 1).then_some(3.0);
            let case = Case { softcap, given: i == 2, ..case(which, dtype, bounds, 300) };
            let data = Data::random(&case);
            check(&case, &data, &clean(&ptx, &gpu, &case, &data)).unwrap();
        }
    }
}

#[test]
fn every_operator_agrees_in_bf16() {
    agrees(Dtype::Bf16);
}

#[test]
fn every_operator_agrees_in_f16() {
    agrees(Dtype::F16);
}

#[test]
fn many_chunks_and_products_of_f32_agree() {
    let Some((ptx, gpu)) = interpreter() else { return };
    let gpu = gpu.with_precision(Some(Precision::Tf32x3));
    for (which, dtype) in [(Which::Both, Dtype::Bf16), (Which::Forward, Dtype::F16), (Which::Reverse, Dtype::F32)] {
        let bounds = vec![0, 4500];
        let gpu = if dtype == Dtype::F32 { gpu.clone() } else { gpu.clone().with_precision(None) };
        let case = Case { spread: 4.0, bounds, dtypes: [dtype; 2], bias: true, ..Case::new(which, 9, 40, 4500) };
        let data = Data::random(&case);
        check(&case, &data, &clean(&ptx, &gpu, &case, &data)).unwrap();
    }
}

#[test]
fn odd_rows_stay_by_themselves() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for which in Which::DIFFERENTIABLE.into_iter().chain([Which::TopK(3)]) {
        let mut case = Case { given: true, bias: true, ..Case::new(which, 6, 4, 290) };
        case.bounds = vec![0, 0, 100, 290];
        let mut data = Data::random(&case);
        data.ids.fill(7);
        data.logits[0][290..580].fill(-INF);
        data.logits[0][3 * 290 + 289] = f32::NAN;
        let answer = clean(&ptx, &gpu, &case, &data).answer;
        let values = [&answer.logprobs, &answer.entropy, &answer.divergence, &answer.logits];
        for values in values.into_iter().filter(|v| !v.is_empty()) {
            for (token, values) in values.chunks(values.len() / 6).enumerate() {
                assert!(values.iter().all(|v| v.is_nan() == [1, 3].contains(&token)), "{which:?} {token} {values:?}");
            }
        }
        for g in &answer.gradients {
            for (token, row) in g.logits.chunks(290).enumerate() {
                assert!(token == 3 || row.iter().all(|g| g.is_finite()), "{which:?} {token}");
                assert!(token != 1 || row.iter().all(|g| *g == 0.0), "{which:?}");
            }
        }
        assert!(answer.ids.chunks(3).enumerate().all(|(t, ids)| ids.iter().all(|i| (*i < 0) == [1, 3].contains(&t))));
    }
}

#[test]
fn equal_logits_rank_by_id() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for k in [1, 20, 300] {
        let case = Case { bounds: vec![0, 120, 300], given: true, ..Case::new(Which::TopK(k), 5, 4, 300) };
        let mut data = Data::random(&case);
        data.logits[0].iter_mut().for_each(|y| *y = (*y * 2.0).round());
        data.logits[0][..200].fill(-INF);
        let run = clean(&ptx, &gpu, &case, &data);
        assert_eq!(run.answer.ids, composition::<f64>(&case, &data).ids, "k {k}");
        check(&case, &data, &run).unwrap();
    }
}

#[test]
fn samples_are_those_of_a_cpu() {
    let Some((ptx, gpu)) = interpreter() else { return };
    let (tokens, vocab) = (40, 700);
    let logits = Data::random(&Case { given: true, ..Case::new(Which::Entropy, tokens, 4, vocab) }).logits[0].clone();
    let cpu = Cpu::with_target(Target::Scalar, Some(1)).unwrap();
    for seed in 0..3 {
        let wanted = draws(&cpu, &logits, vocab, &[0, vocab], seed)[0].ids.clone();
        for bounds in [vec![0, vocab], vec![0, 200, 200, vocab]] {
            assert!(draws(&gpu, &logits, vocab, &bounds, seed).iter().all(|drawn| drawn.ids == wanted));
            assert!(ptx.take_report().is_clean());
        }
    }
}

#[test]
fn an_infinite_weight_masks_its_class_and_no_other() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for which in Which::DIFFERENTIABLE {
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let (case, data) = masked_by_weights(which, 5, dtype);
            let [by_weights, by_bias] = data.each_ref().map(|data| clean(&ptx, &gpu, &case, data));
            same_but_for_x(&case, &by_weights, &by_bias);
        }
    }
}

#[test]
fn the_gradient_of_the_bias_is_as_exact_for_many_tokens_as_for_few() {
    const TOKENS: usize = 1 << 13;
    let Some((_, gpu)) = interpreter() else { return };
    let case = Case { given: true, bias: true, ..Case::new(Which::Entropy, TOKENS, 2, 3) };
    let mut data = Data::random(&case);
    data.logits[0] = [0.1, 0.9, -0.6].repeat(TOKENS);
    data.rows.fill(0.3);
    let truth = composition::<f64>(&case, &data).gradients.swap_remove(0).bias;
    let got = run(&gpu, &case, &data).unwrap().answer.gradients.swap_remove(0).bias;
    let error = worst_row(&got, &truth, 1, 0.0);
    assert!(error < 1e-6, "{error:e}");
}
