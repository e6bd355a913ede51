//! The memory budget, against what an allocator counts: nothing else may allocate meanwhile.

use super::alone;
use crate::MEMORY;
use crate::common::{Case, Tensors, devices};
use half::bf16;
use vocabfuse::ranks::{each, split_rows};
use vocabfuse_runtime::{
    Algorithm, Batch, Cpu, CrossEntropy, Dtype, Element, Error, Gradients, Local, Matrix, Operands, OutputLayer,
    Policy, Save, Shard, ShardLayout, Upstream,
};

/// Inputs in their dtype, and memory for dW.
struct Data<T> {
    x: Vec<T>,
    w: Vec<T>,
    dw: Vec<f32>,
}

/// Runs S, C1 and T of all ranks.
fn run<T: Element>(cpu: &Cpu, case: &Case, targets: &[i64], data: &mut Data<T>) -> Result<(), Error> {
    let layout = ShardLayout::from_bounds(&case.bounds)?;
    let (x, w) = (Matrix::new(&data.x, case.tokens, case.hidden)?, Matrix::new(&data.w, case.vocab, case.hidden)?);
    let parts = split_rows(&mut data.dw, case.hidden, (0..layout.ranks()).map(|r| layout.range(r)));
    let items = Local::group(layout.ranks()).into_iter().zip(parts).collect();
    each(items, |rank, (comm, dw): (Local, &mut [f32])| {
        let layer = OutputLayer::new(cpu, &layout, rank, case.loss, case.policy)?;
        let shard = Shard { weight: w.row_range(layout.range(rank))?, bias: None };
        let done = layer.s_pass(&comm, Batch::new(x, targets), shard)?.start_combine().wait()?;
        if !case.policy.frozen_weight {
            layer.t_pass(
                done.weight_grad,
                Operands::new(x, shard),
                Gradients { dw: dw.into(), dbias: None },
                Upstream::One,
            )?;
        }
        Ok(())
    })
    .map(|_: Vec<()>| ())
}

/// Bytes that all ranks together may use, and those that they have used, over inputs and outputs.
fn needed_and_used<T: Element>(cpu: &Cpu, case: &Case, from: fn(f32) -> T) -> (usize, usize) {
    let Tensors { x, w, targets, .. } = Tensors::random(case);
    let typed = |values: Vec<f32>| values.into_iter().map(from).collect::<Vec<T>>();
    let mut data = Data { x: typed(x), w: typed(w), dw: vec![0.0; case.vocab * case.hidden] };
    let with = |budget| Case { policy: Policy { memory_budget: Some(budget), ..case.policy }, ..case.clone() };
    let needed = match run(cpu, &with(1), &targets, &mut data) {
        Err(Error::Budget { needed, .. }) => needed,
        other => panic!("{other:?}"),
    };
    cpu.release_memory();
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    run(cpu, &with(needed), &targets, &mut data).expect("what was asked for is enough");
    let used = MEMORY.peak_usage() - before;
    let dx = if case.policy.frozen_input { 0 } else { case.tokens * case.hidden * size_of::<f32>() };
    (needed * (case.bounds.len() - 1), used.saturating_sub(dx))
}

#[test]
fn the_budget_is_kept_and_not_far_from_what_is_used() {
    alone(budgets);
}

fn budgets() {
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
    let shapes = [
        (2000, 256, 1200, whole(1200)),
        (30, 256, 20_000, whole(20_000)),
        (1000, 40, 3000, whole(3000)),
        (2000, 256, 1200, vec![0, 600, 1200]),
    ];
    for cpu in &devices(2) {
        for (loss, policy) in policies {
            for (tokens, hidden, vocab, bounds) in &shapes {
                for dtype in [Dtype::F32, Dtype::Bf16] {
                    let base = Case::new(*tokens, *hidden, *vocab);
                    let case = Case { dtype, loss, policy, bounds: bounds.clone(), ..base };
                    let (needed, used) = match dtype {
                        Dtype::F32 => needed_and_used::<f32>(cpu, &case, |v| v),
                        _ => needed_and_used::<bf16>(cpu, &case, bf16::from_f32),
                    };
                    let what = format!("{needed} bytes needed, {used} used on {} in {case:?}", cpu.name());
                    // Ranks need not be at their peaks at the same time, and get memory of each other.
                    let expected = if bounds.len() > 2 { 0..=needed + needed / 8 } else { needed / 10 * 6..=needed };
                    assert!(expected.contains(&used), "{what}");
                }
            }
        }
    }
}
