//! Cross-entropy in any mix of its options.

use super::{Mask, Offset, bf16x3, bounds, check, count, devices, dtype, mask, offset};
use crate::common::{Case, Tensors, Yardstick, check_argmax, run};
use proptest::prelude::*;
use proptest::sample::select;
use vocabfuse_runtime::{Algorithm, Cpu, CrossEntropy, Dtype, Policy, Reduction, Save};

/// A case, and what its tensors are made of besides.
#[derive(Clone, Debug)]
struct Mix {
    case: Case,
    offset: Option<Offset>,
    mask: Mask,
    ignored: Ignored,
    /// Whether some weights of tokens and classes are zero.
    zeros: bool,
    threads: usize,
}

/// Which targets are ignored.
#[derive(Clone, Copy, Debug)]
enum Ignored {
    /// None can be.
    Never,
    Some,
    All,
}

fn loss() -> impl Strategy<Value = CrossEntropy> {
    (
        select(vec![Reduction::None, Reduction::Sum, Reduction::Mean]),
        select(vec![None, Some(12.5)]),
        select(vec![1.0, 1.0, 0.5, -2.0]),
        select(vec![None, None, Some(1.0), Some(30.0)]),
        select(vec![0.0, 0.0, 0.1, 0.5]),
        select(vec![0.0, 0.0, 1e-4, 0.5]),
        any::<bool>(),
    )
        .prop_map(|(reduction, normalizer, logit_scale, softcap, label_smoothing, z_loss, argmax)| CrossEntropy {
            reduction,
            normalizer: normalizer.filter(|_| reduction == Reduction::Mean),
            logit_scale,
            softcap,
            label_smoothing,
            z_loss,
            argmax,
            ..CrossEntropy::default()
        })
}

fn policy() -> impl Strategy<Value = Policy> {
    let algorithm = select(vec![Algorithm::Naive, Algorithm::One, Algorithm::Two, Algorithm::Two]);
    let save = select(vec![Save::Auto, Save::Yes, Save::No]);
    let chunk = select(vec![None, Some(512), Some(2048)]);
    (algorithm, save, chunk).prop_map(|(algorithm, save, chunk)| Policy { algorithm, save, chunk, ..Policy::default() })
}

fn mix() -> impl Strategy<Value = Mix> {
    // Few tokens share the vocabulary, in slices; one and two classes are odd ones.
    let tokens = prop_oneof![1 => Just(0usize), 3 => 1..4usize, 3 => 4..40usize, 1 => 60..90usize];
    let vocab = prop_oneof![2 => 1..4usize, 4 => 4..90usize, 1 => 500..700usize];
    let shape = (tokens, 1..40usize, vocab)
        .prop_flat_map(|(tokens, hidden, vocab)| (Just((tokens, hidden, vocab)), bounds(vocab)));
    let flags = (any::<bool>(), any::<bool>(), any::<[bool; 3]>(), any::<bool>(), 1..4usize);
    let ignored = select(vec![Ignored::Never, Ignored::Some, Ignored::Some, Ignored::Some, Ignored::All]);
    let tensors = (select(vec![0.1f32, 1.0, 8.0]), any::<u64>(), offset(), mask(), ignored);
    (shape, dtype(), loss(), policy(), flags, tensors).prop_map(
        |(((tokens, hidden, vocab), bounds), dtype, loss, policy, flags, (spread, seed, offset, mask, ignored))| {
            let (bias, upstream, extras, zeros, threads) = flags;
            let ignore_index = if matches!(ignored, Ignored::Never) { None } else { loss.ignore_index };
            let loss = CrossEntropy { ignore_index, ..loss };
            // Derivatives of smoothed targets under a softcap are made from logits, which cannot be saved.
            let logits = loss.softcap.is_some() && loss.label_smoothing > 0.0;
            let policy = Policy { save: if logits { Save::Auto } else { policy.save }, ..policy };
            let bias = bias || offset.is_some() || !matches!(mask, Mask::None);
            let case = Case {
                bounds,
                dtype,
                policy,
                loss,
                bias,
                upstream,
                extras,
                spread,
                seed,
                ..Case::new(tokens, hidden, vocab)
            };
            Mix { case, offset, mask, ignored, zeros, threads }
        },
    )
}

impl Mix {
    fn tensors(&self) -> Tensors {
        let (case, loss) = (&self.case, self.case.loss);
        let mut tensors = Tensors::random(case);
        if let (Some(offset), Some(bias)) = (self.offset, &mut tensors.bias) {
            offset.units(&mut tensors.x, case.hidden);
            offset.steps(&mut tensors.w, loss.logit_scale);
            offset.add(bias);
        }
        if let Some(bias) = &mut tensors.bias {
            self.mask.apply(bias);
        }
        if matches!(self.ignored, Ignored::All) {
            tensors.targets.fill(-100);
        }
        // A target that is masked has an infinite loss, which hides the others. The class before it is not, unless all are.
        let hidden = |target: &i64| *target > 0 && self.mask.hides(*target as usize);
        tensors.targets.iter_mut().filter(|target| hidden(target)).for_each(|target| *target -= 1);
        if self.zeros {
            let weights = [&mut tensors.token_weights, &mut tensors.class_weights];
            weights.into_iter().flatten().for_each(|weights| weights.iter_mut().step_by(4).for_each(|w| *w = 0.0));
        }
        // With smoothing a class that is masked by -inf must have no share.
        if loss.label_smoothing > 0.0 && matches!(self.mask, Mask::Third(f32::NEG_INFINITY)) {
            let weights = tensors.class_weights.get_or_insert_with(|| vec![1.0; case.vocab]);
            weights.iter_mut().enumerate().filter(|(class, _)| self.mask.hides(*class)).for_each(|(_, w)| *w = 0.0);
        }
        tensors
    }

    fn check(&self) -> Result<(), String> {
        let Mix { case, threads, .. } = self;
        let tensors = self.tensors();
        let dtype = self.offset.map_or(case.dtype, |offset| offset.yardstick(case.dtype));
        let yardstick = Yardstick::new(case, &tensors, dtype);
        let on = |name: &str, cpu: &Cpu, case: &Case, yardstick: &Yardstick<'_>| {
            let run = run(cpu, case, &tensors).map_err(|e| format!("{name}: {e}"))?;
            count(name);
            let ids = if case.loss.argmax { check_argmax(case, &tensors, &run) } else { Ok(()) };
            yardstick.check(&run).and(ids).map_err(|e| format!("{name}: {e}"))
        };
        for (name, cpu) in devices(*threads, case.dtype, case.seed) {
            on(&name, &cpu, case, &yardstick)?;
        }
        if case.dtype == Dtype::F32 {
            let in_pairs = case.bf16x3();
            let yardstick = Yardstick::new(&in_pairs, &tensors, Dtype::F32);
            for (name, cpu) in bf16x3(*threads) {
                on(&name, &cpu, &in_pairs, &yardstick)?;
            }
        }
        Ok(())
    }
}

#[test]
fn any_mix_of_the_options_of_cross_entropy_agrees_with_the_reference() {
    check("cross-entropy", 2000, &mix(), |mix| mix.check());
}
