//! The layers on the PTX interpreter: the CUDA kernels and the host code that a GPU runs, on any machine.
//!
//! Every launch is checked for races and for reads of memory that nothing wrote. The kernels are compiled by NVRTC, which
//! `cargo xtask test` installs into `target/nvrtc`.

mod agreement;
mod contract;
mod filter;
mod kernels;
pub mod operators;
mod step;

use crate::common::{Case, Run, Tensors, run, same};
use vocabfuse_runtime::{Algorithm, CrossEntropy, Gpu, Policy, Ptx, Reduction, Save};

const ALGORITHMS: [Algorithm; 3] = [Algorithm::Two, Algorithm::One, Algorithm::Naive];
const SAVES: [Save; 2] = [Save::No, Save::Yes];
const CHUNK: usize = 512;
const SCHEDULES: u64 = 8;

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
