//! The layer on the PTX interpreter: the CUDA kernels and the host code that a GPU runs, on any machine.
//!
//! Every launch is checked for races and for reads of memory that nothing wrote. The kernels are compiled by NVRTC, which
//! `cargo xtask test` installs into `target/nvrtc`.

mod common;

use common::filter::{bounds, check_within, every_option};
use common::{Case, Run, Tensors, check, run, same};
use std::path::Path;
use vocabfuse_runtime::{Algorithm, CrossEntropy, Dtype, Error, Gpu, Policy, Precision, Ptx, Reduction, Save};

const ALGORITHMS: [Algorithm; 3] = [Algorithm::Two, Algorithm::One, Algorithm::Naive];
const SAVES: [Save; 2] = [Save::No, Save::Yes];
const CHUNK: usize = 512;
const SCHEDULES: u64 = 8;

fn device() -> (Ptx, Gpu) {
    let ptx = Ptx::new("sm_80").unwrap();
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    let gpu = Gpu::ptx(&ptx).unwrap().with_cache(Path::new(cache));
    (ptx, gpu)
}

fn policy(algorithm: Algorithm, save: Save) -> Policy {
    Policy { algorithm, save, chunk: Some(CHUNK), ..Policy::default() }
}

fn per_token() -> CrossEntropy {
    CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() }
}

/// Runs a case and checks every launch.
fn clean(ptx: &Ptx, gpu: &Gpu, case: &Case, tensors: &Tensors) -> Run {
    let run = run(gpu, case, tensors).unwrap_or_else(|e| panic!("{e} in {case:?}"));
    let report = ptx.take_report();
    assert!(report.is_clean(), "{:#?} {:#?} in {case:?}", report.races, report.uninitialized);
    assert_eq!(report.bank_conflicts, 0, "{case:?}");
    assert!(report.products > 0, "{report:?}");
    // Lanes use what they move, but for the ends of rows.
    if case.hidden > 100 {
        assert!(report.copied_sectors * 32 <= report.copied_bytes * 21 / 20, "{report:?}");
    }
    run
}

fn same_outputs(a: &Run, b: &Run) -> bool {
    let (a, b) = (&a.out, &b.out);
    let dbias = a.dbias.iter().zip(&b.dbias).all(|(a, b)| same(a, b));
    same(&a.loss, &b.loss) && same(&a.lse, &b.lse) && same(&a.dx, &b.dx) && same(&a.dw, &b.dw) && dbias
}

/// Ragged sizes, every fifth token ignored, a bias, all algorithms, one to three uneven ranks; schedules change no bit.
fn every_way(dtype: Dtype) {
    let (ptx, gpu) = device();
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
    let (ptx, gpu) = device();
    for (precision, allowed) in [(Precision::Tf32, 2e-3), (Precision::Tf32x3, 2e-6)] {
        let gpu = gpu.clone().with_precision(Some(precision));
        for save in SAVES {
            let case = Case { bias: true, policy: policy(Algorithm::Two, save), ..Case::new(40, 50, 700) };
            let tensors = Tensors::random(&case);
            let out = run(&gpu, &case, &tensors).unwrap().out;
            assert!(ptx.take_report().is_clean());
            let truth = common::truth(&case, &tensors);
            for (name, got, want) in
                [("loss", &out.loss, &truth.loss), ("dx", &out.dx, &truth.dx), ("dw", &out.dw, &truth.dw)]
            {
                let error = vocabfuse::reference::largest_error(got, want);
                assert!(error < allowed, "{name}: {error:e} with {precision}");
            }
        }
    }
}

#[test]
fn odd_rows_stay_by_themselves() {
    let (ptx, gpu) = device();
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
    let (ptx, gpu) = device();
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
    let (ptx, gpu) = device();
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
    let (ptx, gpu) = device();
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
fn growing_logits_repair_the_reference() {
    let (ptx, gpu) = device();
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

#[test]
fn nothing_to_do_is_done() {
    let (ptx, gpu) = device();
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

#[test]
fn what_no_kernel_covers_is_refused_with_what_is() {
    let (_, gpu) = device();
    let case = Case { policy: policy(Algorithm::Two, Save::No), ..Case::new(4, 8, 40) };
    let error = |gpu: &Gpu, case: &Case| run(gpu, case, &Tensors::random(case)).unwrap_err();
    let exact = error(&gpu, &case).to_string();
    assert!(exact.contains("dtype f32 with precision tf32 or tf32x3"), "{exact}");
    let bf16 = Case { dtype: Dtype::Bf16, ..case };
    let tf32 = error(&gpu.clone().with_precision(Some(Precision::Tf32)), &bf16).to_string();
    assert!(tf32.contains("dtype bf16 or f16 without a precision"), "{tf32}");
    assert!(matches!(Ptx::new("sm_90a"), Err(Error::Option { option: "device", .. })));
}

#[test]
fn damaged_kernels_of_the_cache_are_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let case = Case { dtype: Dtype::Bf16, policy: policy(Algorithm::Two, Save::No), ..Case::new(9, 8, 40) };
    let tensors = Tensors::random(&case);
    let entries = || -> Vec<_> { std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect() };
    let fresh = || {
        let ptx = Ptx::new("sm_80").unwrap();
        let gpu = Gpu::ptx(&ptx).unwrap().with_cache(folder.path());
        clean(&ptx, &gpu, &case, &tensors)
    };
    let first = fresh();
    let whole: Vec<_> = entries().iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(whole.len() > 5);
    for (path, code) in entries().iter().zip(&whole) {
        let mut damaged = code.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        std::fs::write(path, damaged).unwrap();
    }
    assert!(same_outputs(&first, &fresh()));
    let rebuilt: Vec<_> = entries().iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(rebuilt == whole, "the entries are as they were");
}

#[test]
fn kernels_compile_ahead_for_a_gpu_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let names = Gpu::compile_ahead("sm_90", Dtype::F16, None, CHUNK, folder.path()).unwrap();
    assert!(names.iter().any(|n| n.starts_with("weight_grad__f16_c512")), "{names:?}");
    assert!(names.iter().any(|n| n.starts_with("row_statistics__kl_divergence")), "{names:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), names.len());
    assert!(Gpu::compile_ahead("sm_70", Dtype::F16, None, CHUNK, folder.path()).is_err());
}

#[test]
fn ranks_of_a_group_share_a_device() {
    use vocabfuse_runtime::{Batch, Local, Matrix, OutputLayer, Shard, ShardLayout};
    let layout = ShardLayout::even(4, 2).unwrap();
    let (x, w) = ([half::bf16::ONE; 8], [half::bf16::ONE; 16]);
    let results = vocabfuse::ranks::each(Local::group(2), |rank, comm| {
        let (_, gpu) = device();
        let policy = policy(Algorithm::Two, Save::No);
        let layer = OutputLayer::new(&gpu, &layout, rank, CrossEntropy::default(), policy)?;
        let weight = Matrix::new(&w, 2, 8)?;
        let batch = Batch::new(Matrix::new(&x, 1, 8)?, &[1]);
        layer.s_pass(&comm, batch, Shard { weight, bias: None })?.start_combine().wait().map(|_| ())
    });
    let error = results.unwrap_err();
    assert!(matches!(error, Error::Disagreement { .. }), "{error}");
}

#[test]
fn a_loss_without_argmax_refuses_to_give_one() {
    use vocabfuse_runtime::{Batch, Local, Matrix, OutputLayer, RowLoss, Shard, ShardLayout};
    let (x, w) = ([half::bf16::ONE; 8], [half::bf16::ONE; 32]);
    let options = CrossEntropy { argmax: true, ..CrossEntropy::default() };
    let loss = RowLoss { name: "cross_entropy".to_owned(), uniforms: [("z_loss".to_owned(), 0.0)].into(), options };
    let layout = ShardLayout::even(4, 1).unwrap();
    let layer = OutputLayer::with_loss(&device().1, &layout, 0, loss, policy(Algorithm::Two, Save::No)).unwrap();
    let batch = Batch::new(Matrix::new(&x, 1, 8).unwrap(), &[1]);
    let shard = Shard { weight: Matrix::new(&w, 4, 8).unwrap(), bias: None };
    let error = layer.s_pass(&Local::group(1)[0], batch, shard).map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, "option argmax: expected false: loss cross_entropy gives none");
}

/// What the layer asks for is what buffers on the device hold, over copies of inputs and outputs.
#[test]
fn the_budget_of_a_device_is_kept() {
    let smoothed = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
    let capped = CrossEntropy { softcap: Some(20.0), ..smoothed };
    for loss in [CrossEntropy::default(), smoothed, capped] {
        for save in if loss == capped { vec![Save::No] } else { vec![Save::No, Save::Yes] } {
            let (_, gpu) = device();
            let with = |budget| {
                let policy = Policy { memory_budget: Some(budget), ..policy(Algorithm::Two, save) };
                Case { dtype: Dtype::Bf16, loss, policy, ..Case::new(130, 48, 700) }
            };
            let tensors = Tensors::random(&with(1));
            let needed = match run(&gpu, &with(1), &tensors) {
                Err(Error::Budget { needed, .. }) => needed,
                other => panic!("{other:?}"),
            };
            gpu.take_peak_bytes();
            run(&gpu, &with(needed), &tensors).unwrap();
            // Copies of X and W, and in pass T dW.
            let [inputs, dw] = [(130 + 700) * 48 * 2, 700 * 48 * 4];
            let used = gpu.take_peak_bytes().saturating_sub(inputs);
            assert!(
                used <= needed + dw && used * 10 >= needed * 7,
                "{needed} bytes needed, {used} used: {loss:?}, {save}"
            );
        }
    }
}

#[test]
fn unlikely_tiles_take_no_part_in_dw() {
    let (ptx, gpu) = device();
    for dtype in [Dtype::Bf16, Dtype::F16] {
        for save in SAVES {
            // Two tiles of tokens; the second rank's tiles of columns begin at 300, 556 and 812.
            let bounds = vec![0, 300, 1000];
            let policy = policy(Algorithm::Two, save);
            let case = Case { dtype, policy, bounds, bias: true, ..Case::new(200, 40, 1000) };
            let mut tensors = Tensors::random(&case);
            let unlikely = 556..812;
            tensors.bias.iter_mut().for_each(|bias| bias[unlikely.clone()].iter_mut().for_each(|b| *b -= 12.0));
            tensors.targets.iter_mut().filter(|t| unlikely.contains(&(**t as usize))).for_each(|t| *t = 7);
            let all = clean(&ptx, &gpu, &case, &tensors);
            let filtered = Case { policy: Policy { filter: Some(1e-4), ..policy }, ..case.clone() };
            let kept = clean(&ptx, &gpu, &filtered, &tensors);
            // 160 tokens count: two tiles of them, by two and three tiles of columns.
            assert_eq!((kept.filtered[1].tiles, kept.filtered[1].skipped), (10, 2), "{case:?}");
            assert_eq!(all.filtered[1].tiles, 0);
            let rows = unlikely.start * case.hidden..unlikely.end * case.hidden;
            assert!(kept.out.dw[rows.clone()].iter().all(|v| *v == 0.0) && !all.out.dw[rows.clone()].contains(&0.0));
            let mut expected = all.clone();
            expected.out.dw[rows].fill(0.0);
            assert!(same_outputs(&kept, &expected), "nothing else changes in {case:?}");
        }
    }
}

#[test]
fn the_filter_keeps_to_its_bound_with_every_option() {
    let (ptx, gpu) = device();
    for (save, label_smoothing) in [(Save::Yes, 0.0), (Save::No, 0.0), (Save::No, 0.1)] {
        let policy = policy(Algorithm::Two, save);
        let base = Case { dtype: Dtype::Bf16, policy, bounds: vec![0, 300, 1000], ..Case::new(200, 40, 1000) };
        let (case, mut tensors) = every_option(&base, label_smoothing);
        tensors.bias.as_mut().unwrap()[556..812].iter_mut().for_each(|b| *b -= 12.0);
        tensors.targets.iter_mut().filter(|t| (556..812).contains(&**t)).for_each(|t| *t = 7);
        let all = clean(&ptx, &gpu, &case, &tensors);
        let filtered = Case { policy: Policy { filter: Some(1e-3), ..policy }, ..case.clone() };
        let kept = clean(&ptx, &gpu, &filtered, &tensors);
        // Smoothed targets leave no derivative small.
        assert_eq!(kept.filtered[1].skipped > 0, label_smoothing == 0.0, "{:?}", kept.filtered);
        let (dx, dw) = bounds(&case, &tensors, 1e-3);
        check_within("dx", &all.out.dx, &kept.out.dx, &dx);
        check_within("dw", &all.out.dw, &kept.out.dw, &dw);
    }
}

/// One token of one feature, two classes with smoothed targets: weights that are equal cancel in the mean.
#[test]
fn equal_class_weights_of_any_size_give_the_same_mean() {
    let (ptx, gpu) = device();
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
    let (ptx, gpu) = device();
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

/// Every form of cross-entropy on uneven ranks, one of them empty, all options at once.
#[test]
fn options_agree_with_the_reference() {
    let (ptx, gpu) = device();
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
fn an_infinite_weight_masks_its_class_and_no_other() {
    let (ptx, gpu) = device();
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
fn tokens_of_more_than_one_block_add_up_in_dw() {
    let (ptx, gpu) = device();
    let filtered = Policy { filter: Some(1e-3), ..policy(Algorithm::Two, Save::No) };
    for (dtype, policy) in [(Dtype::Bf16, filtered), (Dtype::F16, policy(Algorithm::Two, Save::No))] {
        let case = Case { dtype, policy, bias: true, ..Case::new(2 * 4096 + 70, 5, 40) };
        let tensors = Tensors::random(&case);
        check(&case, &tensors, &clean(&ptx, &gpu, &case, &tensors)).unwrap();
    }
}

#[test]
fn smoothed_targets_need_neither_classes_nor_tokens() {
    let (ptx, gpu) = device();
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
