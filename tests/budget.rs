//! The memory budget, against what an allocator counts. One test, so that nothing else allocates meanwhile.

mod common;

use common::{Case, Tensors, devices, run};
use peak_alloc::PeakAlloc;
use vocabfuse_runtime::{Algorithm, Cpu, CrossEntropy, Dtype, Error, Policy, Save};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Bytes that the layer asks for, from its error.
fn needed(cpu: &Cpu, case: &Case, tensors: &Tensors) -> usize {
    let policy = Policy { memory_budget: Some(1), ..case.policy };
    match run(cpu, &Case { policy, ..case.clone() }, tensors) {
        Err(Error::Budget { needed, .. }) => needed,
        other => panic!("{other:?}"),
    }
}

/// What a run takes at most, and what of it inputs and outputs are that the harness copies and allocates.
fn measured(cpu: &Cpu, case: &Case, tensors: &Tensors) -> (usize, usize) {
    cpu.release_memory();
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let out = run(cpu, case, tensors).unwrap();
    let peak = MEMORY.peak_usage() - before;
    drop(out);
    let inputs = (case.tokens * (case.hidden + 3) + case.vocab * (case.hidden + 1)) * (case.dtype.size() + 4);
    let outputs = (case.tokens + case.vocab) * case.hidden * 4 + case.tokens * 3 * 4;
    (peak, inputs + outputs)
}

#[test]
fn the_budget_is_kept_and_not_far_from_what_is_used() {
    let smoothed = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
    let capped = CrossEntropy { softcap: Some(20.0), ..smoothed };
    let plain = CrossEntropy::default();
    let two = Policy::default();
    let policies = [
        (plain, Policy { save: Save::Yes, ..two }),
        (plain, Policy { save: Save::No, ..two }),
        (plain, Policy { save: Save::No, frozen_input: true, ..two }),
        (plain, Policy { save: Save::No, frozen_weight: true, ..two }),
        (plain, Policy { save: Save::No, filter: Some(1e-3), ..two }),
        (plain, Policy { save: Save::Yes, algorithm: Algorithm::One, ..two }),
        (plain, Policy { save: Save::No, algorithm: Algorithm::Naive, ..two }),
        (smoothed, Policy { save: Save::No, ..two }),
        (capped, Policy { save: Save::No, ..two }),
    ];
    let whole = |v: usize| vec![0, v];
    // Many tokens with one rank, and few, whose vocabulary threads share.
    let shapes = [(2000, 256, 1200, whole(1200)), (30, 256, 20_000, whole(20_000))];
    let cpus: Vec<Cpu> = devices(2).into_iter().rev().take(2).collect();
    for cpu in &cpus {
        for (loss, policy) in policies {
            for (tokens, hidden, vocab, bounds) in &shapes {
                for dtype in [Dtype::F32, Dtype::Bf16] {
                    let base = Case::new(*tokens, *hidden, *vocab);
                    let case = Case { dtype, loss, policy, bounds: bounds.clone(), ..base };
                    let tensors = Tensors::random(&case);
                    let needed = needed(cpu, &case, &tensors);
                    let (peak, allocated) = measured(cpu, &case, &tensors);
                    let used = peak.saturating_sub(allocated);
                    println!("{} {dtype} {tokens} {policy:?} {loss:?}: needs {needed}, used {used}", cpu.name());
                }
            }
        }
    }
}
