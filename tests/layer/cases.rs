//! Inputs on which operators of this kind have gone wrong, with every form of cross-entropy.

use crate::common::{Case, Tensors, amx, bf16x3, check, devices, run, same, worst_row};
use half::bf16;
use vocabfuse_runtime::{
    Algorithm, Batch, Cpu, CrossEntropy, Dtype, Error, Gradients, Local, Matrix, Operands, OutputLayer, Policy,
    Reduction, Save, Shard, ShardLayout, Target, Upstream,
};

/// A class that no logit reaches.
const MASKED: usize = 7;

/// Cross-entropy with every combination of what has kernels of its own.
fn forms() -> impl Iterator<Item = CrossEntropy> {
    (0..8).map(|form: u32| {
        let has = |bit: u32| form >> bit & 1 == 1;
        CrossEntropy {
            reduction: Reduction::None,
            softcap: has(0).then_some(4.0),
            label_smoothing: if has(1) { 0.2 } else { 0.0 },
            argmax: has(2),
            z_loss: 1e-3,
            ..CrossEntropy::default()
        }
    })
}

fn cpu() -> Cpu {
    Cpu::new(Some(2)).unwrap()
}

/// The processors, and the same with products of f32 in bf16x3 where they have them.
fn every_precision() -> Vec<Cpu> {
    bf16x3(2).into_iter().chain([cpu()]).collect()
}

#[test]
fn smoothing_is_over_the_whole_vocabulary_for_any_number_of_ranks() {
    let loss = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
    let case = Case { loss, bias: true, ..Case::new(12, 16, 8) };
    let tensors = Tensors::random(&case);
    let one = run(&cpu(), &case, &tensors).unwrap();
    check(&case, &tensors, &one).unwrap();
    for bounds in [vec![0, 4, 8], vec![0, 1, 1, 8], vec![0, 2, 3, 5, 8]] {
        let many = run(&cpu(), &Case { bounds: bounds.clone(), ..case.clone() }, &tensors).unwrap();
        let (one, many) = (&one.out, &many.out);
        for (a, b, width) in [(&one.loss, &many.loss, 1), (&one.dx, &many.dx, 16), (&one.dw, &many.dw, 16)] {
            assert!(worst_row(a, b, width, 0.0) < 1e-6, "{bounds:?}");
        }
    }
}

#[test]
fn a_softcap_of_one_gives_padded_lanes_no_mass() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for bounds in [vec![0, 65537], vec![0, 65536, 65537]] {
            let loss = CrossEntropy { softcap: Some(1.0), ..CrossEntropy::default() };
            let case = Case { dtype, loss, bounds, ..Case::new(3, 8, 65537) };
            let tensors = Tensors::random(&case);
            check(&case, &tensors, &run(&cpu(), &case, &tensors).unwrap()).unwrap();
        }
    }
}

#[test]
fn every_form_leaves_padded_rows_of_the_vocabulary_alone() {
    every_precision().iter().for_each(leaves_padded_rows_alone);
}

fn leaves_padded_rows_alone(cpu: &Cpu) {
    let (tokens, hidden, vocab) = (9, 12, 21);
    let layout = ShardLayout::padded(vocab, 2).unwrap();
    for loss in forms() {
        for save in [Save::Auto, Save::No] {
            let policy = Policy { save, ..Policy::default() };
            let case = Case { loss, policy, ..Case::new(tokens, hidden, vocab) };
            let tensors = Tensors::random(&case);
            let expected = run(cpu, &case, &tensors).unwrap().out;
            let mut w = tensors.w.clone();
            w.resize(layout.stored() * hidden, f32::NAN);
            let mut dw = vec![7.0f32; w.len()];
            let parts = vocabfuse::ranks::split_rows(&mut dw, hidden, (0..2).map(|r| layout.range(r)));
            let items: Vec<_> = Local::group(2).into_iter().zip(parts).collect();
            vocabfuse::ranks::each(items, |rank, (comm, dw)| {
                let layer = OutputLayer::new(cpu, &layout, rank, loss, policy)?;
                let weight = Matrix::new(&w, layout.stored(), hidden)?.row_range(layout.range(rank))?;
                let batch = Batch::new(Matrix::new(&tensors.x, tokens, hidden)?, &tensors.targets);
                let shard = Shard { weight, bias: None };
                let done = layer.s_pass(&comm, batch, shard)?.start_combine().wait()?;
                assert!(worst_row(&done.loss, &expected.loss, 1, 0.0) < 1e-6, "{loss:?}");
                assert!(worst_row(&done.dx, &expected.dx, hidden, 0.0) < 1e-5, "{loss:?}");
                assert!(done.argmax.is_none_or(|ids| ids == expected.argmax), "{loss:?}");
                layer.t_pass(
                    done.weight_grad,
                    Operands::new(batch.x, shard),
                    Gradients { dw: dw.into(), dbias: None },
                    Upstream::One,
                )
            })
            .unwrap();
            let real: Vec<f32> = dw[..vocab * hidden].iter().map(|v| v - 7.0).collect();
            // Beside 7 the last place of a number is 5e-7.
            assert!(worst_row(&real, &expected.dw, hidden, 0.1) < 1e-5, "{loss:?}");
            assert!(dw[vocab * hidden..].iter().all(|v| *v == 7.0), "{loss:?}");
        }
    }
}

// Rows of the batch: an ordinary one, one whose logits are all -inf, one with a NaN, another ordinary one.
#[test]
fn every_form_keeps_odd_rows_to_themselves() {
    every_precision().iter().for_each(keeps_odd_rows_to_themselves);
}

fn keeps_odd_rows_to_themselves(cpu: &Cpu) {
    for loss in forms() {
        for save in [Save::Auto, Save::No] {
            for algorithm in [Algorithm::Two, Algorithm::One] {
                let policy = Policy { save, algorithm, ..Policy::default() };
                let case = Case { loss, policy, bounds: vec![0, 11, 30], ..Case::new(4, 6, 30) };
                let mut tensors = Tensors::random(&case);
                tensors.targets = vec![3, 4, 20, 21];
                // The last column of X is for the odd logits: W is 1 there, and X is 0 for ordinary rows.
                for row in tensors.w.chunks_mut(6) {
                    row[5] = 1.0;
                }
                for (row, value) in [0.0, f32::NEG_INFINITY, f32::NAN, 0.0].into_iter().enumerate() {
                    tensors.x[row * 6 + 5] = value;
                }
                let out = run(cpu, &case, &tensors).unwrap().out;
                let row = |i: usize| &out.dx[i * 6..][..6];
                // A softcap makes finite logits of infinite ones.
                if loss.softcap.is_none() {
                    assert!(out.loss[1].is_nan() && row(1).iter().all(|v| *v == 0.0), "{loss:?} {:?}", row(1));
                    assert!(!loss.argmax || out.argmax[1] == -1, "{loss:?}");
                }
                assert!(out.loss[2].is_nan() && row(2).iter().all(|v| v.is_nan()), "{loss:?} {:?}", row(2));
                assert!(!loss.argmax || out.argmax[2] == -1, "{loss:?}");
                for i in [0, 3] {
                    assert!(out.loss[i].is_finite() && row(i).iter().all(|v| v.is_finite()), "{loss:?} row {i}");
                }
            }
        }
    }
}

#[test]
fn a_masked_class_is_impossible_unless_targets_are_smoothed_onto_it() {
    for loss in forms().filter(|loss| loss.softcap.is_none()) {
        let case = Case { loss, bias: true, ..Case::new(5, 6, 20) };
        let mut tensors = Tensors::random(&case);
        tensors.targets = vec![1, 2, 3, 4, 5];
        tensors.bias.as_mut().unwrap()[7] = f32::NEG_INFINITY;
        let out = run(&cpu(), &case, &tensors).unwrap().out;
        if loss.label_smoothing > 0.0 {
            assert!(out.loss.iter().all(|l| *l == f32::INFINITY), "{:?}", out.loss);
        } else {
            check(&case, &tensors, &run(&cpu(), &case, &tensors).unwrap()).unwrap();
            assert!(out.dw[7 * 6..8 * 6].iter().all(|v| *v == 0.0) && out.dbias.unwrap()[7] == 0.0);
        }
    }
}

#[test]
fn a_masked_class_without_weight_costs_nothing() {
    let no_emulation = |cpu: &Cpu| cpu.target() != Target::Amx;
    for cpu in devices(2).into_iter().chain(amx(2)) {
        for loss in forms().filter(|loss| loss.softcap.is_none() || no_emulation(&cpu)) {
            // A masked class that no target names; then one that is a target, which has no weight either.
            for target in [1, MASKED as i64] {
                let case =
                    Case { dtype: Dtype::Bf16, loss, bias: true, extras: [false, false, true], ..Case::new(5, 6, 20) };
                let case = Case { bounds: vec![0, 9, 20], ..case };
                let mut tensors = Tensors::random(&case);
                tensors.targets = vec![target, 2, 3, 4, 5];
                tensors.bias.as_mut().unwrap()[MASKED] = f32::NEG_INFINITY;
                tensors.class_weights.as_mut().unwrap()[MASKED] = 0.0;
                let run = run(&cpu, &case, &tensors).unwrap();
                check(&case, &tensors, &run).unwrap_or_else(|e| panic!("{}: {e}", cpu.name()));
                assert!(run.out.dbias.unwrap()[MASKED] == 0.0 && run.out.loss.iter().all(|l| l.is_finite()));
            }
        }
    }
}

/// One token of one feature, two classes with smoothed targets: weights that are equal cancel in the mean.
#[test]
fn equal_class_weights_of_any_size_give_the_same_mean() {
    let loss = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
    for cpu in devices(2).into_iter().chain(amx(2)) {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            for (bounds, weight) in [(vec![0, 2], 65536.0), (vec![0, 2], 1e-7), (vec![0, 1, 2], 1e30)] {
                let case = Case { dtype, loss, bounds, ..Case::new(1, 1, 2) };
                let class_weights = Some(vec![weight; 2]);
                let (x, w, targets) = (vec![1.0], vec![1.0, 3.0], vec![0]);
                let tensors = Tensors { x, w, targets, class_weights, ..Tensors::random(&case) };
                let dx = run(&cpu, &case, &tensors).unwrap().out.dx;
                // Targets of bf16 round numerators of the softmax to it.
                let rounding = if dtype == Dtype::Bf16 { 6e-3 } else { 1e-6 };
                assert!((dx[0] - 1.661_594_2).abs() < rounding, "{} {dtype} {weight:e}: {dx:?}", cpu.name());
            }
        }
    }
}

// Unequal microbatches: the divisor is that of the whole step, so their gradients add up to its gradient.
#[test]
fn accumulated_microbatches_share_a_normalizer() {
    let whole = Case { extras: [false, true, true], ..Case::new(20, 12, 60) };
    let tensors = Tensors::random(&whole);
    let expected = run(&cpu(), &whole, &tensors).unwrap().out;
    let (weights, classes) = (tensors.token_weights.as_ref().unwrap(), tensors.class_weights.as_ref().unwrap());
    let counts = |i: usize| tensors.targets[i] != -100;
    let weight = |i: usize| f64::from(weights[i]) * f64::from(classes[tensors.targets[i] as usize]);
    let normalizer: f64 = (0..20).filter(|i| counts(*i)).map(weight).sum();
    let loss = CrossEntropy { normalizer: Some(normalizer as f32), ..CrossEntropy::default() };
    let (mut total, mut dw) = (0.0, vec![0.0; expected.dw.len()]);
    for part in [0..3, 3..20] {
        let case = Case { tokens: part.len(), loss, ..whole.clone() };
        let tensors = Tensors {
            x: tensors.x[part.start * 12..part.end * 12].to_vec(),
            targets: tensors.targets[part.clone()].to_vec(),
            token_weights: Some(weights[part.clone()].to_vec()),
            ..tensors.clone()
        };
        let out = run(&cpu(), &case, &tensors).unwrap().out;
        total += out.loss[0];
        dw.iter_mut().zip(&out.dw).for_each(|(sum, v)| *sum += v);
        assert!(worst_row(&out.dx, &expected.dx[part.start * 12..part.end * 12], 12, 0.0) < 1e-5);
    }
    assert!((total - expected.loss[0]).abs() < 1e-5 && worst_row(&dw, &expected.dw, 12, 0.0) < 1e-5);
}

// bf16 tensors, a target of probability near 1: lse - y in bf16 would have no digit left.
#[test]
fn a_loss_near_zero_of_narrow_tensors_has_the_digits_of_f32() {
    let case = Case {
        dtype: Dtype::Bf16,
        loss: CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() },
        ..Case::new(4, 8, 40)
    };
    let mut tensors = Tensors::random(&case);
    tensors.targets = vec![0, 1, 2, 3];
    for (token, target) in tensors.targets.clone().into_iter().enumerate() {
        tensors.x[token * 8..][..8].fill(0.0);
        tensors.x[token * 8 + token] = 16.0;
        tensors.w[target as usize * 8..][..8].fill(0.0);
        tensors.w[target as usize * 8 + token] = 1.0;
    }
    let truth = crate::common::truth(&case, &tensors);
    for (got, want) in run(&cpu(), &case, &tensors).unwrap().out.loss.iter().zip(&truth.loss) {
        assert!(*want < 0.1 && (f64::from(*got) - want).abs() < 2e-6 * want, "{got} {want}");
    }
}

// Many chunks of the vocabulary: a sum over them that is rounded to bf16 each time would drift.
#[test]
fn dx_of_many_chunks_accumulates_in_f32() {
    let policy = Policy { chunk: Some(512), ..Policy::default() };
    let case = Case { dtype: Dtype::Bf16, policy, spread: 0.1, ..Case::new(8, 16, 40000) };
    let tensors = Tensors::random(&case);
    let out = run(&cpu(), &case, &tensors).unwrap().out;
    assert!(worst_row(&out.dx, &crate::common::truth(&case, &tensors).dx, 16, 0.0) < 2e-3);
    check(&case, &tensors, &run(&cpu(), &case, &tensors).unwrap()).unwrap();
}

#[test]
fn frozen_inputs_and_weights_change_nothing_else() {
    for algorithm in [Algorithm::Two, Algorithm::One, Algorithm::Naive] {
        let case = Case {
            bounds: vec![0, 10, 10, 50],
            policy: Policy { algorithm, ..Policy::default() },
            loss: CrossEntropy { label_smoothing: 0.1, argmax: true, ..CrossEntropy::default() },
            bias: true,
            ..Case::new(15, 10, 50)
        };
        let tensors = Tensors::random(&case);
        let all = run(&cpu(), &case, &tensors).unwrap();
        let frozen = Case { policy: Policy { frozen_input: true, ..case.policy }, ..case.clone() };
        let without_dx = run(&cpu(), &frozen, &tensors).unwrap();
        assert!(same(&all.out.loss, &without_dx.out.loss) && same(&all.out.dw, &without_dx.out.dw));
        assert_eq!(all.out.argmax, without_dx.out.argmax);
        assert!(without_dx.out.dx.is_empty());
        let barriers = |run: &crate::common::Run| run.counters[0].barriers;
        assert_eq!(barriers(&without_dx), barriers(&all).saturating_sub(u64::from(algorithm != Algorithm::Two)));
        assert!(without_dx.counters[0].bytes < all.counters[0].bytes);

        let policy = Policy { frozen_weight: true, save: Save::Yes, ..case.policy };
        let layout = ShardLayout::even(50, 1).unwrap();
        let layer = OutputLayer::new(&cpu(), &layout, 0, case.loss, policy).unwrap();
        let batch = Batch::new(Matrix::new(&tensors.x, 15, 10).unwrap(), &tensors.targets);
        let shard = Shard { weight: Matrix::new(&tensors.w, 50, 10).unwrap(), bias: tensors.bias.as_deref() };
        let comm = Local::group(1).remove(0);
        let done = layer.s_pass(&comm, batch, shard).unwrap().start_combine().wait().unwrap();
        assert_eq!(done.weight_grad.saved_bytes(), 0);
        assert!(worst_row(&done.dx, &all.out.dx, 10, 0.0) < 1e-6);
        let mut dw = vec![0.0; 500];
        let error = layer
            .t_pass(
                done.weight_grad,
                Operands::new(batch.x, shard),
                Gradients { dw: (&mut dw).into(), dbias: None },
                Upstream::One,
            )
            .unwrap_err();
        assert!(matches!(error, Error::Option { option: "frozen_weight", .. }), "{error}");
    }
}

#[test]
fn unusable_options_and_weights_are_named() {
    let layout = ShardLayout::even(20, 1).unwrap();
    let refused =
        |loss: CrossEntropy| OutputLayer::new(&cpu(), &layout, 0, loss, Policy::default()).unwrap_err().to_string();
    let base = CrossEntropy::default();
    for cap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(refused(CrossEntropy { softcap: Some(cap), ..base }).contains("option softcap"), "{cap}");
    }
    for smoothing in [-0.1, 1.1, f32::NAN] {
        assert!(refused(CrossEntropy { label_smoothing: smoothing, ..base }).contains("option label_smoothing"));
    }
    for z_loss in [-1.0, f32::INFINITY, f32::NAN] {
        assert!(refused(CrossEntropy { z_loss, ..base }).contains("option z_loss"));
    }
    let (x, w) = (vec![0.0f32; 3 * 4], vec![0.0f32; 20 * 4]);
    let layer = OutputLayer::new(&cpu(), &layout, 0, base, Policy::default()).unwrap();
    let targets = [1, 2, 3];
    let batch = Batch::new(Matrix::new(&x, 3, 4).unwrap(), &targets);
    let shard = Shard { weight: Matrix::new(&w, 20, 4).unwrap(), bias: None };
    let comm = Local::group(1).remove(0);
    let message = |batch: Batch<'_>| layer.s_pass(&comm, batch, shard).err().unwrap().to_string();
    let short = [1.0];
    assert!(message(Batch { token_weights: Some(&short), ..batch }).contains("tensor token_weights: expected 3"));
    assert!(message(Batch { class_weights: Some(&short), ..batch }).contains("tensor class_weights: expected 20"));
    assert!(message(Batch { lse_upstream: Some(&short), ..batch }).contains("tensor lse_upstream: expected 3"));
    let negative = [1.0, -2.0, 1.0];
    assert!(message(Batch { token_weights: Some(&negative), ..batch }).contains("-2 at position 1"));

    // What cannot be saved is refused, not recomputed in silence.
    let loss = CrossEntropy { softcap: Some(2.0), label_smoothing: 0.1, ..base };
    let policy = Policy { save: Save::Yes, ..Policy::default() };
    let layer = OutputLayer::new(&cpu(), &layout, 0, loss, policy).unwrap();
    assert!(layer.s_pass(&comm, batch, shard).err().unwrap().to_string().contains("option save"));
}

/// Rows of X and W far apart, in memory of which only the pages that are touched exist.
#[test]
#[cfg(target_pointer_width = "64")]
fn rows_may_lie_beyond_32_bits() {
    let (tokens, hidden, vocab) = (3, 8, 5);
    let case = Case { dtype: Dtype::Bf16, ..Case::new(tokens, hidden, vocab) };
    let tensors = Tensors::random(&case);
    let expected = run(&cpu(), &case, &tensors).unwrap().out;
    let far = |values: &[f32], rows: usize, stride: usize| {
        // An allocator may write its zeros, the system does not.
        let mut memory = memmap2::MmapMut::map_anon(((rows - 1) * stride + hidden) * size_of::<bf16>()).unwrap();
        let out: &mut [bf16] = bytemuck::cast_slice_mut(&mut memory);
        for row in 0..rows {
            let values = values[row * hidden..][..hidden].iter().map(|v| bf16::from_f32(*v));
            out[row * stride..][..hidden].iter_mut().zip(values).for_each(|(to, v)| *to = v);
        }
        memory
    };
    let (x_stride, w_stride) = ((1 << 31) + 8, (1 << 30) + 24);
    let (x, w) = (far(&tensors.x, tokens, x_stride), far(&tensors.w, vocab, w_stride));
    let (x, w): (&[bf16], &[bf16]) = (bytemuck::cast_slice(&x), bytemuck::cast_slice(&w));
    let layout = ShardLayout::even(vocab, 1).unwrap();
    let comm = Local::group(1).remove(0);
    for save in [Save::Yes, Save::No] {
        let policy = Policy { save, ..Policy::default() };
        let layer = OutputLayer::new(&cpu(), &layout, 0, case.loss, policy).unwrap();
        let batch = Batch::new(Matrix::with_stride(x, tokens, hidden, x_stride).unwrap(), &tensors.targets);
        let weight = Matrix::with_stride(w, vocab, hidden, w_stride).unwrap();
        let shard = Shard { weight, bias: None };
        let done = layer.s_pass(&comm, batch, shard).unwrap().start_combine().wait().unwrap();
        assert!(same(&done.loss, &expected.loss) && same(&done.dx, &expected.dx));
        let mut dw = vec![0.0; vocab * hidden];
        layer
            .t_pass(
                done.weight_grad,
                Operands::new(batch.x, shard),
                Gradients { dw: (&mut dw).into(), dbias: None },
                Upstream::One,
            )
            .unwrap();
        assert!(worst_row(&dw, &expected.dw, hidden, 0.0) < 1e-2);
    }
}
