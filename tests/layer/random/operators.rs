//! Operators on distributions in any mix of their options, and lookups.

use super::{Mask, Offset, bf16x3, bounds, check, count, devices, dtype, mask, offset};
use crate::common::embedding;
use crate::operators::harness::{Case, Data, Which, check_rows, composition, run};
use proptest::prelude::*;
use proptest::sample::select;
use vocabfuse::plain::round;
use vocabfuse_runtime::{Cpu, Dtype, ShardLayout};

/// A case, and what its operands are made of besides.
#[derive(Clone, Debug)]
struct Mix {
    case: Case,
    offset: Option<Offset>,
    /// Of each distribution.
    masks: [Mask; 2],
    /// How far the second distribution is from the first, if it is made from that.
    close: Option<f32>,
    threads: usize,
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        5 => select(Which::DIFFERENTIABLE.to_vec()),
        1 => (1..9usize).prop_map(Which::TopK),
        1 => any::<u64>().prop_map(Which::Sample),
    ]
}

fn mix() -> impl Strategy<Value = Mix> {
    let tokens = prop_oneof![1 => Just(0usize), 3 => 1..4usize, 3 => 4..40usize, 1 => 60..90usize];
    let vocab = prop_oneof![2 => 1..4usize, 4 => 4..90usize, 1 => 500..700usize];
    let shape = (tokens, 1..40usize, 1..40usize, vocab)
        .prop_flat_map(|(tokens, h, other, vocab)| (Just((tokens, [h, other], vocab)), bounds(vocab)));
    let logits = (
        select(vec![1.0f32, 0.5, -2.0]),
        select(vec![None, None, Some(1.0), Some(20.0)]),
        select(vec![0.1f32, 1.0, 8.0]),
    );
    let operands = (offset(), mask(), any::<bool>(), select(vec![None, None, Some(0.1), Some(1e-3)]));
    let flags = (any::<bool>(), any::<bool>(), 1..4usize, 1..4usize, any::<u64>());
    (which(), shape, dtype(), logits, operands, flags).prop_map(
        |(which, ((tokens, hidden, vocab), bounds), dtype, (scale, softcap, spread), operands, flags)| {
            let (offset, mask, both, close) = operands;
            let (bias, given, per_token, threads, seed) = flags;
            let which = if let Which::TopK(k) = which { Which::TopK(k.min(vocab)) } else { which };
            let hidden = if close.is_some() { [hidden[0]; 2] } else { hidden };
            // Operators have no padding in given logits.
            let bounds = bounds.into_iter().map(|bound| bound.min(vocab)).collect();
            // A divergence of more than about 1e35 may be infinite.
            let mask = if let Mask::Third(f32::MIN) = mask
                && !both
            {
                Mask::Third(-1e30)
            } else {
                mask
            };
            let masks = [mask, if both { mask } else { Mask::None }];
            let bias = bias || offset.is_some() || !matches!(mask, Mask::None);
            let case = Case {
                hidden,
                bounds,
                dtypes: [dtype; 2],
                scale,
                softcap,
                bias,
                given,
                spread,
                per_token,
                seed,
                ..Case::new(which, tokens, hidden[0], vocab)
            };
            Mix { case, offset, masks, close, threads }
        },
    )
}

impl Mix {
    fn data(&self) -> Data {
        let case = &self.case;
        let mut data = Data::random(case);
        if let Some(distance) = self.close {
            let near = |values: &mut [Vec<f32>; 2]| {
                let [first, second] = values;
                second.iter_mut().zip(first).for_each(|(second, first)| *second = *first + distance * *second);
                round(second, case.dtypes[1]);
            };
            data.x[1] = data.x[0].clone();
            [&mut data.w, &mut data.logits].into_iter().for_each(near);
            data.bias[1] = data.bias[0].clone();
        }
        for side in 0..2 {
            if let Some(offset) = self.offset {
                offset.units(&mut data.x[side], case.hidden[side]);
                offset.steps(&mut data.w[side], case.scale);
                offset.steps(&mut data.logits[side], case.scale);
                offset.add(&mut data.bias[side]);
            }
            self.masks[side].apply(&mut data.bias[side]);
        }
        data
    }

    fn check(&self) -> Result<(), String> {
        let data = self.data();
        let dtypes = self.case.dtypes.map(|dtype| self.offset.map_or(dtype, |offset| offset.yardstick(dtype)));
        let plain = composition::<f32>(&Case { dtypes, ..self.case.clone() }, &data);
        let on = |name: &str, cpu: &Cpu, case: &Case| {
            let run = run(cpu, case, &data).map_err(|e| format!("{name}: {e}"))?;
            count(name);
            check_rows(case, &data, &run.answer, &plain).map_err(|e| format!("{name}: {e}"))
        };
        for (name, cpu) in devices(self.threads, self.case.dtypes[0], self.case.seed) {
            on(&name, &cpu, &self.case)?;
        }
        if self.case.dtypes[0] == Dtype::F32 && !self.case.given {
            for (name, cpu) in bf16x3(self.threads) {
                on(&name, &cpu, &self.case.bf16x3())?;
            }
        }
        Ok(())
    }
}

#[test]
fn any_mix_of_the_options_of_operators_agrees_with_the_reference() {
    check("operators", 2000, &mix(), |mix| mix.check());
}

/// A lookup, what dW holds before, and threads.
fn lookup() -> impl Strategy<Value = (embedding::Case, f32, usize)> {
    let shape = (1..40usize, 1..90usize).prop_flat_map(|(hidden, vocab)| {
        let ids = prop::collection::vec(prop_oneof![0..vocab as i64, 0..vocab.min(3) as i64], 0..120);
        (Just(hidden), Just(vocab), ids, bounds(vocab))
    });
    let before = select(vec![0.0f32, 0.0, 1.5]);
    (shape, dtype(), dtype(), any::<bool>(), any::<bool>(), before, 1..4usize, any::<u64>()).prop_map(
        |((hidden, vocab, ids, bounds), dtype, gradient, padding, frozen, before, threads, seed)| {
            let ranges: Vec<_> = bounds.windows(2).map(|bounds| bounds[0]..bounds[1]).collect();
            let layout = ShardLayout::from_ranges(&ranges, vocab).expect("bounds in order");
            let padding = padding.then_some(vocab as i64 / 2);
            let case = embedding::Case { ids, hidden, layout, dtype, gradient, padding, frozen, seed };
            (case, before, threads)
        },
    )
}

#[test]
fn any_lookup_agrees_with_the_reference() {
    check("embedding", 500, &lookup(), |(case, before, threads)| {
        let tensors = embedding::Tensors { before, ..case.tensors() };
        for (name, cpu) in devices(threads, case.dtype, case.seed) {
            let run = embedding::run(&cpu, &case, &tensors).map_err(|e| format!("{name}: {e}"))?;
            count(&name);
            if case.frozen {
                let untouched = run.dw.iter().all(|v| *v == before);
                untouched.then_some(()).ok_or_else(|| format!("{name}: a frozen table has a gradient in {case:?}"))?;
            } else {
                embedding::check(&case, &tensors, &run).map_err(|e| format!("{name}: {e}"))?;
            }
        }
        Ok(())
    });
}
