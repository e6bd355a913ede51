//! Logits with a large common offset, and long sums over the vocabulary, against values worked out by hand: the bias holds the
//! logits, so that they are exact.

use crate::common::{Case, Run, Tensors, amx, devices, run};
use std::path::Path;
use vocabfuse_runtime::{Algorithm, CrossEntropy, Dtype, Gpu, Policy, Precision, Ptx, Reduction, Save};

/// Of logits 1, 2, 3.
const PROBABILITIES: [f64; 3] = [0.090_030_573_17, 0.244_728_471_05, 0.665_240_955_77];
const LSE: f64 = 3.407_605_964_44;

/// How a test runs its cases, which do not fail.
type OnDevice<'a> = &'a dyn Fn(&Case, &Tensors) -> Run;

/// Runs a test on the targets of this process, the name of each at hand.
fn on_every_cpu(test: impl Fn(OnDevice<'_>, &str)) {
    for cpu in devices(2).into_iter().chain(amx(2)) {
        test(&|case, tensors| run(&cpu, case, tensors).unwrap(), &cpu.name());
    }
}

/// Runs a test on the CUDA kernels, in the interpreter, and checks every launch.
fn on_a_gpu(test: impl Fn(OnDevice<'_>, &str)) {
    let ptx = Ptx::new("sm_80").unwrap();
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    let gpu = Gpu::ptx(&ptx).unwrap().with_cache(Path::new(cache));
    let split = gpu.clone().with_precision(Some(Precision::Tf32x3));
    let checked = |case: &Case, tensors: &Tensors| {
        let gpu = if case.dtype == Dtype::F32 { &split } else { &gpu };
        let run = run(gpu, case, tensors).unwrap();
        assert!(ptx.take_report().is_clean(), "{case:?}");
        run
    };
    test(&checked, "ptx:sm_80");
}

/// Logits that are the bias alone, the same for all tokens.
fn logits(case: Case, bias: &[f32], target: i64) -> (Case, Tensors) {
    let case = Case { vocab: bias.len(), bias: true, ..case };
    let case = Case { bounds: if case.bounds.len() > 2 { case.bounds } else { vec![0, bias.len()] }, ..case };
    let (x, w) = (vec![0.0; case.tokens * case.hidden], vec![0.0; case.vocab * case.hidden]);
    let tensors =
        Tensors { x, w, bias: Some(bias.to_vec()), targets: vec![target; case.tokens], ..Tensors::random(&case) };
    (case, tensors)
}

fn close(got: &[f32], want: f64, error: f64, what: &str) {
    for got in got {
        assert!((f64::from(*got) - want).abs() <= error * want.abs().max(1.0), "{got} for {want}: {what}");
    }
}

/// Few and many tokens, ranks, saved and recomputed, all algorithms. Many tokens take long in an interpreter.
fn ways(name: &str) -> impl Iterator<Item = Case> {
    let most = if name.contains("ptx") { 40 } else { usize::MAX };
    let loss = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    let ways = [
        (1, vec![0, 3], Save::Yes, Algorithm::Two),
        (5, vec![0, 1, 3], Save::No, Algorithm::Two),
        (40, vec![0, 1, 1, 2, 3], Save::Yes, Algorithm::One),
        (300, vec![0, 3], Save::No, Algorithm::Two),
        (300, vec![0, 2, 3], Save::Yes, Algorithm::Naive),
    ];
    ways.into_iter().filter(move |(tokens, ..)| *tokens <= most).map(move |(tokens, bounds, save, algorithm)| {
        let policy = Policy { save, algorithm, ..Policy::default() };
        Case { bounds, policy, loss, ..Case::new(tokens, 2, 3) }
    })
}

fn dtypes() -> [Dtype; 3] {
    [Dtype::F32, Dtype::Bf16, Dtype::F16]
}

#[test]
fn a_common_offset_of_the_logits_changes_nothing() {
    on_every_cpu(common_offsets);
}

#[test]
fn a_common_offset_of_the_logits_changes_nothing_on_a_gpu() {
    on_a_gpu(common_offsets);
}

fn common_offsets(run: OnDevice<'_>, name: &str) {
    let all = [1e7, -1e4, 1e4, 2.9e6, 0.0f32, 1e6, 6e6, -1e7];
    let offsets = if name.contains("ptx") { &all[..3] } else { &all };
    for dtype in dtypes() {
        for case in ways(name) {
            for offset in offsets {
                let bias = [1.0, 2.0, 3.0].map(|y| *offset + y);
                let (case, tensors) = logits(Case { dtype, ..case.clone() }, &bias, 1);
                let Run { out, .. } = run(&case, &tensors);
                let what = format!("{name} {case:?} {offset}");
                close(&out.loss, LSE - 2.0, 1e-6, &what);
                close(&out.lse, LSE + f64::from(*offset), 2e-7, &what);
                let narrow = if dtype == Dtype::F32 { 2e-6 } else { 4e-3 };
                for (class, got) in out.dbias.unwrap().iter().enumerate() {
                    let want = PROBABILITIES[class] - f64::from(u8::from(class == 1));
                    close(&[got / case.tokens as f32], want, narrow, &what);
                }
            }
        }
    }
}

#[test]
fn neighbours_of_any_size_are_told_apart() {
    on_every_cpu(neighbours);
}

#[test]
fn neighbours_of_any_size_are_told_apart_on_a_gpu() {
    on_a_gpu(neighbours);
}

fn neighbours(run: OnDevice<'_>, name: &str) {
    // 8 is the distance of neighbours at 1e8, 2^76 at 1e30, 2^103 at 1e38.
    let e8 = f64::exp(-8.0);
    let near = |y: f32, step: f32| [y, y + step, y + 2.0 * step];
    for case in ways(name) {
        let loss = |bias: &[f32; 3], target| {
            let (case, tensors) = logits(case.clone(), bias, target);
            run(&case, &tensors).out
        };
        let what = format!("{name} {case:?}");
        for y in [1e8f32, -1e8] {
            let out = loss(&near(y, 8.0), 1);
            close(&out.loss, 8.0 + (e8 + e8 * e8).ln_1p(), 1e-6, &what);
            close(&loss(&near(y, 8.0), 2).loss, (e8 + e8 * e8).ln_1p(), 1e-9, &what);
        }
        for (y, step) in [(1e30f32, 2f32.powi(76)), (-1e30, 2f32.powi(76)), (1e38, 2f32.powi(103))] {
            assert!(y + step > y);
            close(&loss(&near(y, step), 0).loss, 2.0 * f64::from(step), 1e-6, &what);
            close(&loss(&near(y, step), 2).loss, 0.0, 0.0, &what);
            close(&loss(&[y; 3], 1).loss, 3f64.ln(), 1e-6, &what);
        }
        close(&loss(&[f32::MAX; 3], 1).loss, 3f64.ln(), 1e-6, &what);
        close(&loss(&[f32::MIN; 3], 1).loss, 3f64.ln(), 1e-6, &what);
    }
}

// References move within a row, between chunks and between ranks, from one offset to quite another.
#[test]
fn rows_may_climb_from_one_offset_to_another() {
    on_every_cpu(climbing);
}

#[test]
fn rows_may_climb_from_one_offset_to_another_on_a_gpu() {
    on_a_gpu(climbing);
}

fn climbing(run: OnDevice<'_>, name: &str) {
    let climb = |offset: f32, vocab: usize| -> Vec<f32> {
        let mut bias: Vec<f32> = (0..vocab).map(|j| offset - 4096.0 + (j / 100) as f32).collect();
        (bias[0], bias[vocab / 2], bias[vocab - 1]) = (offset + 1.0, offset + 2.0, offset + 3.0);
        bias
    };
    for (tokens, offset) in [(3, 1e7f32), (300, 2e6), (40, 524_288.0), (40, 1_048_576.0), (300, -1_048_576.0)] {
        for bounds in [vec![0, 1500], vec![0, 700, 1400, 1500]] {
            let loss = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
            let case = Case { bounds, loss, ..Case::new(tokens, 2, 1500) };
            let (case, tensors) = logits(case, &climb(offset, 1500), 750);
            let out = run(&case, &tensors).out;
            let what = format!("{name} {case:?} {offset}");
            close(&out.loss, LSE - 2.0, 1e-6, &what);
            let dbias = out.dbias.unwrap();
            for (class, p) in [(0, PROBABILITIES[0]), (750, PROBABILITIES[1] - 1.0), (1499, PROBABILITIES[2])] {
                close(&[dbias[class] / tokens as f32], p, 2e-6, &what);
            }
        }
    }
}

#[test]
fn smoothed_targets_are_measured_from_the_reference() {
    on_every_cpu(smoothed);
}

#[test]
fn smoothed_targets_are_measured_from_the_reference_on_a_gpu() {
    on_a_gpu(smoothed);
}

fn smoothed(run: OnDevice<'_>, name: &str) {
    for case in ways(name) {
        let loss = CrossEntropy { label_smoothing: 0.1, ..case.loss };
        let bounds: Vec<usize> = case.bounds.iter().map(|b| *b.min(&2)).collect();
        for offset in [0.0f32, 1e3, 1e4, -1e4, 1e7] {
            let case = Case { loss, bounds: bounds.clone(), ..case.clone() };
            let (case, tensors) = logits(case, &[offset + 2.0, offset - 1.0], 0);
            let out = run(&case, &tensors).out;
            close(&out.loss, 0.198_587_351_5, 1e-6, &format!("{name} {case:?} {offset}"));
        }
        // The first rank may see masks alone.
        let bounds: Vec<usize> = case.bounds.iter().map(|b| b * 2).collect();
        let case = Case { loss, bounds, ..case };
        let masked = -3.4e38f32;
        for bias in [[1.0, 2.0, 3.0, masked, masked, masked], [masked, masked, masked, 1.0, 2.0, 3.0]] {
            let (case, tensors) = logits(case.clone(), &bias, if bias[0] == 1.0 { 0 } else { 4 });
            let out = run(&case, &tensors).out;
            close(&out.loss, 1.7e37, 1e-6, &format!("{name} {case:?} {bias:?}"));
        }
    }
}

#[test]
fn the_length_of_the_vocabulary_costs_no_digits() {
    let shapes =
        [(256, 128_256, vec![0, 128_256]), (300, 100_003, vec![0, 50_000, 100_003]), (2, 1 << 20, vec![0, 1 << 20])];
    on_every_cpu(|run, name| {
        // Emulated tiles take long.
        let shapes = if name.contains("amx") { &shapes[2..] } else { &shapes };
        shapes.iter().for_each(|(tokens, vocab, bounds)| uniform(run, name, *tokens, *vocab, bounds));
    });
}

#[test]
fn the_length_of_the_vocabulary_costs_no_digits_on_a_gpu() {
    on_a_gpu(|run, name| uniform(run, name, 2, 100_003, &[0, 50_000, 100_003]));
}

fn uniform(run: OnDevice<'_>, name: &str, tokens: usize, vocab: usize, bounds: &[usize]) {
    for smoothing in [0.0, 0.1] {
        let loss = CrossEntropy { reduction: Reduction::None, label_smoothing: smoothing, ..CrossEntropy::default() };
        let case = Case { bounds: bounds.to_vec(), loss, ..Case::new(tokens, 1, vocab) };
        let (case, tensors) = logits(case, &vec![0.1; vocab], 17);
        close(&run(&case, &tensors).out.loss, (vocab as f64).ln(), 1.5e-7, &format!("{name} {case:?}"));
    }
}
