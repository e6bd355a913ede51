//! Emitted CUDA kernels, compiled by NVRTC and run by the PTX interpreter, against f64.

mod custom;
mod device;
mod gates;
mod host;
mod problem;
mod rows;
mod sums;

use device::Device;
use host::{Layout, Shard, Stages};
use problem::{Problem, error};
use std::ops::Range;
use vocabfuse_codegen::compile::nvrtc::Nvrtc;
use vocabfuse_codegen::{Dtype, Precision, cross_entropy};
use vocabfuse_testing::{Need, skipped};

/// The compiler; says that the test is skipped where there is none.
fn nvrtc() -> Option<Nvrtc> {
    Nvrtc::load().inspect_err(|missing| skipped(Need::Nvrtc, &missing.to_string())).ok()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Algorithm {
    One,
    Two,
}

#[derive(Clone)]
struct Case {
    dtype: Dtype,
    precision: Option<Precision>,
    algorithm: Algorithm,
    saved: bool,
    layout: Layout,
    shards: Vec<Range<usize>>,
    seed: u64,
}

// Shards begin and end at `bounds`.
fn case(dtype: Dtype, algorithm: Algorithm, saved: bool, bounds: &[usize]) -> Case {
    let shards = bounds.windows(2).map(|b| b[0]..b[1]).collect();
    Case { dtype, precision: None, algorithm, saved, layout: Layout::PLAIN, shards, seed: 1 }
}

/// Relative errors of the worst row of loss, lse, dX, dW and dbias.
fn run(case: &Case, problem: &Problem) -> [f64; 5] {
    let loss = cross_entropy().unwrap();
    let mut device = Device::new(case.dtype, case.precision, 512, loss, case.seed);
    let d = &mut device;
    let shards: Vec<Shard> =
        case.shards.iter().map(|s| Shard::new(d, problem, s.clone(), case.saved, case.layout)).collect();
    let (first, others) = shards.split_first().unwrap();
    let stages = if case.algorithm == Algorithm::Two { Stages::All } else { Stages::Statistics };
    for shard in &shards {
        shard.s_pass(d, stages);
    }
    others.iter().for_each(|other| first.merge(d, other, case.algorithm == Algorithm::Two));
    others.iter().for_each(|other| other.adopt(d, first));
    if case.algorithm == Algorithm::One {
        // Partial A are all relative to the merged reference: adding them is merging them.
        shards.iter().for_each(|shard| shard.accumulate_merged(d));
        let n = problem.tokens * problem.hidden;
        let mut total = d.read_floats(first.a, n);
        for other in others {
            total.iter_mut().zip(d.read_floats(other.a, n)).for_each(|(t, a)| *t += a);
        }
        let bytes: Vec<u8> = total.iter().flat_map(|v| v.to_le_bytes()).collect();
        d.memory.write(first.a, &bytes).unwrap();
    }
    let results = first.finish(d, problem);
    let expected = problem.expected();
    let (mut dw, mut dbias) = (vec![], vec![]);
    for shard in &shards {
        let (w, b) = shard.t_pass(d, &results, 0.25, None);
        dw.extend(w);
        dbias.extend(b);
    }
    for (name, t) in &device.traffic {
        if t.products > 0 {
            println!("{name}: {t:?}");
            assert_eq!(t.matrix_load_conflicts, 0, "{name}");
            assert_eq!(t.copy_conflicts, 0, "{name}");
        }
    }
    let h = problem.hidden;
    let [dx_terms, dw_terms, dbias_terms] = &expected.terms;
    let of_size = |values: &[f64]| values.iter().map(|v| v.abs().max(1.0)).collect::<Vec<_>>();
    let [loss, lse] = [0, 1].map(|output| device.read_floats(results.output(output), problem.tokens));
    let dx = device.read_floats(results.dx, problem.tokens * h);
    [
        error(&loss, &expected.loss, &of_size(&expected.loss), 1),
        error(&lse, &expected.lse, &of_size(&expected.lse), 1),
        error(&dx, &expected.dx, dx_terms, h),
        error(&dw, &expected.dw, dw_terms, h),
        error(&dbias, &expected.dbias, dbias_terms, 1),
    ]
}

fn check(case: &Case, problem: &Problem, bounds: [f64; 5]) {
    let errors = run(case, problem);
    println!(
        "{:?} {:?} {:?} saved {} {:?}: {errors:?}",
        case.dtype, case.precision, case.algorithm, case.saved, case.layout
    );
    for (i, (e, b)) in errors.iter().zip(bounds).enumerate() {
        assert!(e <= &b, "output {i}: error {e:.3e} above {b:.1e}");
    }
}

// bf16 rounds E and Q to 2^-9, f16 to 2^-12, tf32 every factor to 2^-12, tf32x3 next to nothing. Rows of dW and dbias have the errors
// of single probabilities, which are those of logits.
const BF16: [f64; 5] = [1e-6, 1e-6, 4e-3, 6e-3, 3e-3];
const F16: [f64; 5] = [1e-6, 1e-6, 6e-4, 1e-3, 5e-4];
const TF32: [f64; 5] = [2e-3, 2e-3, 2e-3, 2e-3, 2e-3];
const TF32X3: [f64; 5] = [1e-5, 1e-5, 1e-5, 3e-4, 2e-4];

const HALVES: [(Dtype, [f64; 5]); 2] = [(Dtype::Bf16, BF16), (Dtype::F16, F16)];

#[test]
fn one_shard_saved_and_recomputed() {
    if nvrtc().is_none() {
        return;
    }
    for (dtype, bounds) in HALVES {
        for seed in 1..3 {
            let problem = Problem::new(70, 136, 1000, dtype, seed);
            for saved in [true, false] {
                let case = Case { seed: 100 * seed, ..case(dtype, Algorithm::Two, saved, &[0, 1000]) };
                check(&case, &problem, bounds);
            }
        }
    }
}

#[test]
fn uneven_shards_of_all_algorithms() {
    if nvrtc().is_none() {
        return;
    }
    for (dtype, bounds) in HALVES {
        let problem = Problem::new(70, 136, 1000, dtype, 5);
        for algorithm in [Algorithm::One, Algorithm::Two] {
            for saved in [true, false] {
                check(&case(dtype, algorithm, saved, &[0, 3, 700, 1000]), &problem, bounds);
            }
        }
    }
}

#[test]
fn more_than_one_tile_each_way() {
    if nvrtc().is_none() {
        return;
    }
    let problem = Problem::new(150, 296, 600, Dtype::Bf16, 6);
    let ragged = Case { layout: Layout { extra: 8 }, ..case(Dtype::Bf16, Algorithm::Two, true, &[0, 600]) };
    check(&ragged, &problem, BF16);
}

#[test]
fn f32_as_tf32_and_as_three_products() {
    if nvrtc().is_none() {
        return;
    }
    let problem = Problem::new(70, 136, 1000, Dtype::F32, 8);
    for (precision, bounds) in [(Precision::Tf32, TF32), (Precision::Tf32x3, TF32X3)] {
        for saved in [true, false] {
            let case = Case { precision: Some(precision), ..case(Dtype::F32, Algorithm::Two, saved, &[0, 1000]) };
            check(&case, &problem, bounds);
        }
    }
}

// Logits that outgrow the reference within a chunk, between chunks and between shards, in both directions.
#[test]
fn references_that_move() {
    if nvrtc().is_none() {
        return;
    }
    for (dtype, bounds) in HALVES {
        let mut problem = Problem::new(20, 40, 1400, dtype, 9);
        let steps = [0.0, 35.0, 10.0, 70.0, -40.0, 300.0];
        let bias = (0..1400).map(|c| steps[c / 256] + (c % 7) as f32 / 4.0).collect();
        problem.bias = Some(bias);
        for algorithm in [Algorithm::One, Algorithm::Two] {
            for saved in [true, false] {
                for shards in [vec![0, 1400], vec![0, 600, 1400]] {
                    // The loss is a difference of logits near 300.
                    let bounds = [1e-5, 1e-5, bounds[2], bounds[3], bounds[4]];
                    check(&case(dtype, algorithm, saved, &shards), &problem, bounds);
                }
            }
        }
    }
}

#[test]
fn a_large_common_offset_loses_nothing() {
    if nvrtc().is_none() {
        return;
    }
    let mut problem = Problem::new(12, 40, 520, Dtype::Bf16, 10);
    problem.bias = Some(vec![4096.0; 520]);
    let mut without = problem.clone();
    without.bias = None;
    let errors = run(&case(Dtype::Bf16, Algorithm::Two, true, &[0, 520]), &problem);
    // Logits of 4096 have an ulp of 2^-12.
    assert!(errors[2] < 4e-3 && errors[3] < 6e-3, "{errors:?}");
    check(&case(Dtype::Bf16, Algorithm::Two, true, &[0, 520]), &without, BF16);
}

#[test]
fn odd_rows_stay_by_themselves() {
    if nvrtc().is_none() {
        return;
    }
    for saved in [true, false] {
        // All logits -inf: no distribution, no gradient.
        let mut problem = Problem::new(10, 40, 600, Dtype::Bf16, 11);
        problem.bias = Some(vec![f32::NEG_INFINITY; 600]);
        let errors = run(&case(Dtype::Bf16, Algorithm::Two, saved, &[0, 200, 600]), &problem);
        assert!(errors.iter().all(|e| *e == 0.0), "{errors:?}");
        // Some columns -inf.
        let mut problem = Problem::new(10, 40, 600, Dtype::Bf16, 12);
        let targets = problem.targets.clone();
        problem.bias.as_mut().unwrap().iter_mut().enumerate().for_each(|(c, b)| {
            if c % 3 == 0 && !targets.contains(&c) {
                *b = f32::NEG_INFINITY;
            }
        });
        check(&case(Dtype::Bf16, Algorithm::Two, saved, &[0, 200, 600]), &problem, BF16);
    }
    // A NaN makes its row's loss and dX NaN, and no other row's.
    let mut problem = Problem::new(10, 40, 600, Dtype::Bf16, 13);
    problem.x[3 * 40 + 5] = f64::NAN;
    let mut device = Device::new(Dtype::Bf16, None, 512, cross_entropy().unwrap(), 1);
    let shard = Shard::new(&mut device, &problem, 0..600, true, Layout::PLAIN);
    shard.s_pass(&mut device, Stages::All);
    let results = shard.finish(&mut device, &problem);
    for (row, loss) in device.read_floats(results.output(0), 10).into_iter().enumerate() {
        assert_eq!(loss.is_nan(), row == 3, "loss of row {row}: {loss}");
    }
    for (row, dx) in device.read_floats(results.dx, 400).chunks(40).enumerate() {
        assert!(dx.iter().all(|d| d.is_nan() == (row == 3)), "dX of row {row}");
    }
}

#[test]
fn tiles_under_the_threshold_are_left_out() {
    if nvrtc().is_none() {
        return;
    }
    let mut problem = Problem::new(140, 40, 1024, Dtype::Bf16, 14);
    // The second tile of columns has next to no mass, and no targets.
    problem.targets.iter_mut().for_each(|t| *t = if (256..512).contains(t) { *t - 256 } else { *t });
    problem.bias = Some((0..1024).map(|c| if (256..512).contains(&c) { -30.0 } else { 0.0 }).collect());
    let mut device = Device::new(Dtype::Bf16, None, 512, cross_entropy().unwrap(), 1);
    let d = &mut device;
    let shard = Shard::new(d, &problem, 0..1024, true, Layout::PLAIN);
    shard.s_pass(d, Stages::All);
    let results = shard.finish(d, &problem);
    let (flags, stride) = shard.filter(d, &results, -24.0);
    let mut skip = vec![0; 4 * stride];
    d.memory.read(flags, &mut skip).unwrap();
    assert_eq!(skip, [0, 0, 1, 1, 0, 0, 0, 0]);
    let (dw, _) = shard.t_pass(d, &results, 0.0, Some((flags, stride)));
    let expected = problem.expected();
    assert!(dw[256 * 40..512 * 40].iter().all(|v| *v == 0.0));
    for kept in [0..256 * 40, 512 * 40..1024 * 40] {
        let e = error(&dw[kept.clone()], &expected.dw[kept.clone()], &expected.terms[1][kept], problem.hidden);
        assert!(e < 6e-3, "{e}");
    }
}

#[test]
fn copies_are_coalesced_and_the_epilogues_free_of_conflicts() {
    if nvrtc().is_none() {
        return;
    }
    let problem = Problem::new(128, 128, 512, Dtype::Bf16, 15);
    let mut device = Device::new(Dtype::Bf16, None, 512, cross_entropy().unwrap(), 1);
    let d = &mut device;
    for saved in [true, false] {
        let shard = Shard::new(d, &problem, 0..512, saved, Layout::PLAIN);
        shard.s_pass(d, Stages::All);
        let results = shard.finish(d, &problem);
        shard.t_pass(d, &results, 0.0, None);
    }
    for (name, t) in &device.traffic {
        println!("{name}: {t:?}");
        // Every byte of every sector that moves is wanted; past the end of the inner dimension nothing moves.
        assert_eq!(t.copy_bytes, 32 * t.copy_sectors, "{name}");
        assert_eq!(t.matrix_load_conflicts + t.copy_conflicts + t.shared_conflicts, 0, "{name}");
    }
}
