//! Emitted CUDA kernels, compiled by NVRTC and run by the PTX interpreter, against f64.

mod device;
mod host;
mod problem;

use device::Device;
use host::{Layout, Shard, Stages};
use problem::{Problem, error};
use std::ops::Range;
use vocabfuse_codegen::{Dtype, Precision, cross_entropy};

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

fn case(dtype: Dtype, algorithm: Algorithm, saved: bool, shards: &[Range<usize>]) -> Case {
    Case { dtype, precision: None, algorithm, saved, layout: Layout::PLAIN, shards: shards.to_vec(), seed: 1 }
}

/// Largest relative errors of loss, lse, dX, dW and dbias.
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
    [
        error(&device.read_floats(results.output(0), problem.tokens), &expected.loss),
        error(&device.read_floats(results.output(1), problem.tokens), &expected.lse),
        error(&device.read_floats(results.dx, problem.tokens * problem.hidden), &expected.dx),
        error(&dw, &expected.dw),
        error(&dbias, &expected.dbias),
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

const HALF: [f64; 5] = [1e-4, 1e-4, 1e-2, 1e-2, 1e-2];

#[test]
fn one_shard_bf16() {
    let problem = Problem::new(70, 136, 1000, Dtype::Bf16, 1);
    check(&case(Dtype::Bf16, Algorithm::Two, true, &[0..1000]), &problem, HALF);
}
