//! What ranks may do to each other: tickets in any order, errors instead of hangs, the same error everywhere.

use crate::common::{Case, Tensors, run, worst_row};
use std::time::Duration;
use vocabfuse::ranks::each;
use vocabfuse_runtime::{
    Batch, Cpu, CrossEntropy, Error, Gradients, Local, Matrix, Operands, OutputLayer, Policy, Save, Shard, ShardLayout,
    Upstream,
};

const HIDDEN: usize = 16;
const VOCAB: usize = 90;

fn layer(layout: &ShardLayout, rank: usize, loss: CrossEntropy) -> Result<OutputLayer, Error> {
    OutputLayer::new(&Cpu::new(Some(1))?, layout, rank, loss, Policy::default())
}

/// Runs a test that must not hang; a rank that waits for ever fails it.
fn within_a_minute(test: impl FnOnce() + Send + 'static) {
    let (done, finished) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        done.send(()).ok();
    });
    let result = finished.recv_timeout(Duration::from_secs(60));
    if result == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        panic!("a rank was left waiting");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn tensors(tokens: usize, seed: u64) -> Tensors {
    Tensors::random(&Case { seed, ..Case::new(tokens, HIDDEN, VOCAB) })
}

#[test]
fn tickets_may_be_used_late_and_in_any_order() {
    within_a_minute(|| {
        let batches: Vec<Tensors> = (0..4).map(|i| tensors(20 + i, i as u64)).collect();
        let w = batches[0].w.clone();
        let mut expected = vec![0.0f32; VOCAB * HIDDEN];
        for (i, batch) in batches.iter().enumerate() {
            let own = Tensors { w: w.clone(), ..batch.clone() };
            let out = run(&Cpu::new(Some(1)).unwrap(), &Case::new(20 + i, HIDDEN, VOCAB), &own).unwrap().out;
            expected.iter_mut().zip(&out.dw).for_each(|(e, d)| *e += 2.0 * d);
        }
        let layout = ShardLayout::from_bounds(&[0, 40, 90]).unwrap();
        let mut dw = vec![0.0f32; VOCAB * HIDDEN];
        let parts = vocabfuse::ranks::split_rows(&mut dw, HIDDEN, (0..2).map(|r| layout.range(r)));
        let items: Vec<_> = Local::group(2).into_iter().zip(parts).collect();
        each(items, |rank, (comm, dw)| {
            let layer = layer(&layout, rank, CrossEntropy::default())?;
            let shard = Shard { weight: Matrix::new(&w, VOCAB, HIDDEN)?.row_range(layout.range(rank))?, bias: None };
            let mut merging = vec![];
            for (i, batch) in batches.iter().enumerate() {
                let x = Matrix::new(&batch.x, 20 + i, HIDDEN)?;
                let partial = layer.s_pass(&comm, Batch::new(x, &batch.targets), shard)?;
                // The collective of this microbatch is under way while pass S of the next one runs.
                merging.push(partial.start_combine());
            }
            let mut tickets = vec![];
            for (m, (i, batch)) in merging.into_iter().zip(batches.iter().enumerate()) {
                tickets.push((m.wait()?.weight_grad, Matrix::new(&batch.x, 20 + i, HIDDEN)?));
            }
            assert_eq!(comm.counters().barriers, 4);
            tickets.rotate_left(rank + 1);
            while let Some((ticket, x)) = tickets.pop() {
                let out = Gradients { dw: (&mut *dw).into(), dbias: None };
                layer.t_pass(ticket, Operands::new(x, shard), out, Upstream::Scale(2.0))?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
        assert!(worst_row(&dw, &expected, HIDDEN, 0.0) < 1e-5);
    });
}

#[test]
fn upstream_of_pass_t_may_come_late() {
    let loss = CrossEntropy { reduction: vocabfuse_runtime::Reduction::None, ..CrossEntropy::default() };
    let case = Case { loss, upstream: true, ..Case::new(30, HIDDEN, VOCAB) };
    let tensors = Tensors::random(&case);
    let expected = run(&Cpu::new(Some(1)).unwrap(), &case, &tensors).unwrap().out.dw;
    let layout = ShardLayout::even(VOCAB, 1).unwrap();
    let layer = layer(&layout, 0, loss).unwrap();
    let x = Matrix::new(&tensors.x, 30, HIDDEN).unwrap();
    let weight = Matrix::new(&tensors.w, VOCAB, HIDDEN).unwrap();
    let batch = Batch::new(x, &tensors.targets);
    let ranks = Local::group(1);
    let shard = Shard { weight, bias: None };
    let partial = layer.s_pass(&ranks[0], batch, shard).unwrap();
    let done = partial.start_combine().wait().unwrap();
    let mut dw = vec![0.0; VOCAB * HIDDEN];
    let upstream = Upstream::Rows(tensors.upstream.as_deref().unwrap());
    layer
        .t_pass(done.weight_grad, Operands::new(x, shard), Gradients { dw: (&mut dw).into(), dbias: None }, upstream)
        .unwrap();
    assert!(worst_row(&dw, &expected, HIDDEN, 0.0) < 1e-6);
}

/// Runs two ranks, each on its own inputs, and returns both results.
fn two_ranks(inputs: [(Tensors, CrossEntropy, usize); 2]) -> Vec<Result<Vec<f32>, Error>> {
    let layout = ShardLayout::from_bounds(&[0, 40, 90]).unwrap();
    let items: Vec<_> = Local::group(2).into_iter().zip(inputs).collect();
    each(items, |rank, (comm, (tensors, loss, tokens))| {
        let run = || {
            let layer = layer(&layout, rank, loss)?;
            let x = Matrix::new(&tensors.x, tokens, HIDDEN)?;
            let rows = tensors.w.len() / HIDDEN;
            let weight = Matrix::new(&tensors.w, rows, HIDDEN)?;
            let weight = if rows == VOCAB { weight.row_range(layout.range(rank))? } else { weight };
            let partial = layer.s_pass(&comm, Batch::new(x, &tensors.targets), Shard { weight, bias: None })?;
            Ok(partial.start_combine().wait()?.loss)
        };
        let result = run();
        drop(comm);
        Ok::<_, Error>(result)
    })
    .unwrap()
}

#[test]
fn disagreement_is_the_same_error_on_all_ranks() {
    within_a_minute(|| {
        let good = tensors(20, 1);
        let mut other_targets = good.clone();
        other_targets.targets[0] = (other_targets.targets[0].max(0) + 1) % 90;
        let scaled = CrossEntropy { logit_scale: 0.5, ..CrossEntropy::default() };
        let cases = [
            (tensors(21, 1), CrossEntropy::default(), 21),
            (other_targets, CrossEntropy::default(), 20),
            (good.clone(), scaled, 20),
        ];
        for other in cases {
            let results = two_ranks([(good.clone(), CrossEntropy::default(), 20), other]);
            let Err(Error::Disagreement { rank: 1, .. }) = &results[0] else { panic!("{results:?}") };
            assert_eq!(results[0], results[1]);
        }
    });
}

#[test]
fn a_bad_target_is_the_same_error_on_all_ranks() {
    within_a_minute(|| {
        for bad in [90, 1 << 40, -1, i64::MIN, i64::MAX] {
            let mut tensors = tensors(20, 1);
            tensors.targets[7] = bad;
            let input = (tensors, CrossEntropy::default(), 20);
            let results = two_ranks([input.clone(), input]);
            let Err(Error::Target { row: 7, target, vocab: 90, .. }) = results[0] else { panic!("{results:?}") };
            assert_eq!(target, bad);
            assert_eq!(results[0], results[1]);
        }
    });
}

#[test]
fn a_rank_that_fails_alone_does_not_leave_the_other_waiting() {
    within_a_minute(|| {
        let good = tensors(20, 1);
        let mut broken = good.clone();
        // Half of the shard's rows are missing.
        broken.w.truncate(25 * HIDDEN);
        let results = two_ranks([(good, CrossEntropy::default(), 20), (broken, CrossEntropy::default(), 20)]);
        let Err(Error::Shape { tensor: "w", .. }) = &results[1] else { panic!("{results:?}") };
        assert_eq!(results[0], results[1]);
    });
}

#[test]
fn a_rank_that_panics_or_never_waits_does_not_leave_the_other_waiting() {
    within_a_minute(|| {
        let layout = ShardLayout::from_bounds(&[0, 40, 90]).unwrap();
        let tensors = tensors(20, 1);
        for contributes in [false, true] {
            let results = each(Local::group(2), |rank, comm| {
                let layer = layer(&layout, rank, CrossEntropy::default()).unwrap();
                let x = Matrix::new(&tensors.x, 20, HIDDEN).unwrap();
                let weight = Matrix::new(&tensors.w, VOCAB, HIDDEN).unwrap().row_range(layout.range(rank)).unwrap();
                let batch = Batch::new(x, &tensors.targets);
                if rank == 1 && !contributes {
                    return Ok(None);
                }
                let merging = layer.s_pass(&comm, batch, Shard { weight, bias: None })?.start_combine();
                if rank == 1 {
                    return Ok(None);
                }
                Ok::<_, Error>(merging.wait().err())
            });
            assert_eq!(results.unwrap()[0], Some(Error::RankGone { rank: 1 }));
        }
    });
}

#[test]
fn wrong_shapes_name_the_tensor() {
    let layout = ShardLayout::from_bounds(&[0, 40, 90]).unwrap();
    let layer = layer(&layout, 0, CrossEntropy::default()).unwrap();
    let t = tensors(20, 1);
    let x = Matrix::new(&t.x, 20, HIDDEN).unwrap();
    let full = Matrix::new(&t.w, VOCAB, HIDDEN).unwrap();
    let shard = full.row_range(0..40).unwrap();
    let bias = vec![0.0; 39];
    let half_w = vec![half::bf16::ONE; 40 * HIDDEN];
    let group = Local::group(2);
    let message = |batch, shard| layer.s_pass(&group[0], batch, shard).map(|_| ()).unwrap_err().to_string();
    let batch = Batch::new(x, &t.targets);
    let good = Shard { weight: shard, bias: None };
    let cases = [
        (
            message(batch, Shard { weight: full, bias: None }),
            "tensor w: expected the 40 rows 0..40 of rank 0, got 90 rows",
        ),
        (
            message(batch, Shard { weight: Matrix::new(&t.w[..40 * 8], 40, 8).unwrap(), bias: None }),
            "tensor w: expected 16 columns",
        ),
        (
            message(batch, Shard { weight: Matrix::new(&half_w, 40, HIDDEN).unwrap(), bias: None }),
            "tensor w: expected dtype f32, got bf16",
        ),
        (message(batch, Shard { bias: Some(&bias), ..good }), "tensor bias: expected 40 elements, got 39"),
        (message(Batch { targets: &t.targets[1..], ..batch }, good), "tensor targets: expected 20 elements, got 19"),
        (message(Batch { upstream: Some(&[1.0]), ..batch }, good), "tensor upstream: expected 20 elements, got 1"),
    ];
    for (message, expected) in cases {
        assert!(message.starts_with(expected), "{message}");
    }
    assert!(Matrix::with_stride(&t.x, 20, HIDDEN, HIDDEN - 1).is_err());
    assert!(Matrix::new(&t.x, usize::MAX, HIDDEN).is_err());
    assert!(full.row_range(80..91).is_err());
}

#[test]
fn layouts_and_options_are_checked() {
    let error = |bounds: &[usize]| ShardLayout::from_bounds(bounds).unwrap_err().to_string();
    assert!(error(&[]).contains("no bounds"));
    assert!(error(&[0]).contains("0 ranks"));
    assert!(error(&[3, 9]).contains("begin at 3"));
    assert!(error(&[0, 9, 4]).contains("go backwards"));
    assert!(ShardLayout::from_ranges(&[0..4, 5..9], 9).unwrap_err().to_string().contains("a gap"));
    assert!(ShardLayout::from_ranges(&[0..4, 3..9], 9).unwrap_err().to_string().contains("an overlap"));
    assert!(ShardLayout::from_ranges(&[0..4, 4..8], 9).unwrap_err().to_string().contains("end at row 8"));
    assert!(ShardLayout::even(9, 0).is_err() && ShardLayout::padded(9, 0).is_err());

    let layout = ShardLayout::even(9, 1).unwrap();
    let cpu = Cpu::new(Some(1)).unwrap();
    let option = |loss| OutputLayer::new(&cpu, &layout, 0, loss, Policy::default()).unwrap_err().to_string();
    let base = CrossEntropy::default();
    assert!(option(CrossEntropy { logit_scale: 0.0, ..base }).contains("option logit_scale"));
    assert!(option(CrossEntropy { normalizer: Some(-1.0), ..base }).contains("option normalizer"));
    assert!(OutputLayer::new(&cpu, &layout, 1, base, Policy::default()).is_err());
    assert!(Cpu::new(Some(0)).unwrap_err().to_string().contains("option threads"));
}

#[test]
fn the_memory_budget_decides_and_is_kept() {
    let case = Case::new(64, 32, 20_000);
    let tensors = Tensors::random(&case);
    let cpu = Cpu::new(Some(1)).unwrap();
    let with = |budget, save| {
        let policy = Policy { memory_budget: Some(budget), save, ..Policy::default() };
        run(&cpu, &Case { policy, ..case.clone() }, &tensors).map(|r| r.kernels.iter().any(|k| k.contains("saved")))
    };
    assert_eq!(with(64 << 20, Save::Auto), Ok(true));
    assert_eq!(with(4 << 20, Save::Auto), Ok(false));
    assert!(matches!(with(4 << 20, Save::Yes), Err(Error::Budget { .. })));
    assert!(matches!(with(1000, Save::Auto), Err(Error::Budget { budget: 1000, .. })));
}

#[test]
fn recomputing_is_no_error_where_saving_does_not_fit() {
    // Numerators take less than half of the budget, and everything with them more than the whole.
    let case = Case::new(1000, 512, 512);
    let tensors = Tensors::random(&case);
    let cpu = Cpu::new(Some(1)).unwrap();
    let with = |budget, save| {
        let policy = Policy { memory_budget: Some(budget), save, ..Policy::default() };
        run(&cpu, &Case { policy, ..case.clone() }, &tensors).map(|r| r.kernels.iter().any(|k| k.contains("saved")))
    };
    let needed = |save| match with(1, save) {
        Err(Error::Budget { budget: 1, needed }) => needed,
        other => panic!("{other:?}"),
    };
    let [saved, recomputed] = [needed(Save::Yes), needed(Save::No)];
    assert!(recomputed < saved - 1 && 1000 * 512 * 4 <= (saved - 1) / 2, "{recomputed} {saved}");
    assert_eq!(with(saved, Save::Auto), Ok(true));
    assert_eq!(with(saved - 1, Save::Auto), Ok(false));
    assert_eq!(with(recomputed, Save::Auto), Ok(false));
    assert_eq!(with(recomputed - 1, Save::Auto), Err(Error::Budget { budget: recomputed - 1, needed: recomputed }));
}

#[test]
fn any_power_of_two_is_a_chunk() {
    let cpu = Cpu::new(Some(1)).unwrap();
    let case = |chunk| Case { policy: Policy { chunk: Some(chunk), ..Policy::default() }, ..Case::new(4, 8, 20) };
    let error = |chunk| run(&cpu, &case(chunk), &Tensors::random(&case(chunk))).unwrap_err().to_string();
    assert!(error(1000).contains("option chunk: expected a power of two"), "{}", error(1000));
    assert!(run(&cpu, &case(1024), &Tensors::random(&case(1024))).is_ok());
}
