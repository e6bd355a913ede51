//! Steps whose tensors live on the device, recorded and replayed on the PTX interpreter.

use crate::common::{Case, Run, Tensors, check, interpreter, same};
use half::{bf16, f16};
use vocabfuse::problem::Outputs;
use vocabfuse_runtime::{CrossEntropy, Dtype, Element, Error, Filtered, Policy, Reduction, Save, Step, StepOptions};

fn case(dtype: Dtype, save: Save, reduction: Reduction) -> Case {
    let policy = Policy { save, chunk: Some(512), ..Policy::default() };
    let loss = CrossEntropy { reduction, logit_scale: 0.75, ..CrossEntropy::default() };
    Case { dtype, policy, loss, bias: true, upstream: true, ..Case::new(70, 40, 700) }
}

fn options(case: &Case, add: bool) -> StepOptions {
    let Case { tokens, hidden, vocab, bias, loss, policy, .. } = *case;
    StepOptions { tokens, hidden, vocab, bias, add, loss, policy }
}

fn put<T: Element + bytemuck::Pod>(step: &Step<T>, tensors: &Tensors, from: fn(f32) -> T) {
    let narrow = |values: &[f32]| values.iter().map(|v| from(*v)).collect::<Vec<T>>();
    step.x().upload(&narrow(&tensors.x)).unwrap();
    step.w().upload(&narrow(&tensors.w)).unwrap();
    step.targets().upload(&tensors.targets).unwrap();
    step.upstream().upload(tensors.upstream.as_ref().unwrap()).unwrap();
    step.bias().unwrap().upload(tensors.bias.as_ref().unwrap()).unwrap();
}

fn get<T: Element + bytemuck::Pod>(step: &Step<T>) -> Run {
    let out = Outputs {
        loss: step.loss().unwrap(),
        lse: step.lse().unwrap(),
        dx: step.dx().download().unwrap(),
        dw: step.dw().download().unwrap(),
        dbias: Some(step.dbias().unwrap().download().unwrap()),
        argmax: vec![],
    };
    Run { out, counters: vec![], kernels: vec![], filtered: [Filtered::default(); 2] }
}

fn same_run(a: &Run, b: &Run) -> bool {
    let pairs = [(&a.out.loss, &b.out.loss), (&a.out.lse, &b.out.lse), (&a.out.dx, &b.out.dx), (&a.out.dw, &b.out.dw)];
    pairs.iter().all(|(a, b)| same(a, b)) && same(a.out.dbias.as_ref().unwrap(), b.out.dbias.as_ref().unwrap())
}

fn replays<T: Element + bytemuck::Pod>(case: &Case, from: fn(f32) -> T) {
    let Some((ptx, gpu)) = interpreter() else { return };
    let step = Step::<T>::new(&gpu, options(case, false)).unwrap();
    // With a quarter of the tokens ignored, then with all, then with none: the host knows nothing of it.
    let first = Tensors::random(case);
    let mut nothing = Tensors::random(&Case { seed: 2, ..case.clone() });
    nothing.targets.fill(-100);
    let mut last = Tensors::random(&Case { seed: 3, ..case.clone() });
    last.targets.iter_mut().for_each(|t| *t = (*t).max(0));
    for (seed, tensors) in [&first, &nothing, &last].into_iter().enumerate() {
        ptx.reseed(seed as u64);
        put(&step, tensors, from);
        let before = gpu.traffic();
        step.run().unwrap();
        assert_eq!(gpu.traffic(), before, "a replay allocates and copies nothing");
        let found = ptx.take_report();
        assert!(found.is_clean(), "{:#?} {:#?}", found.races, found.uninitialized);
        let run = get(&step);
        check(case, tensors, &run).unwrap();
        // The same bits as from a step that has never seen anything else.
        let fresh = Step::<T>::new(&gpu, options(case, false)).unwrap();
        put(&fresh, tensors, from);
        fresh.run().unwrap();
        assert!(same_run(&run, &get(&fresh)), "replay {seed} of {case:?}");
        assert_eq!(step.unknown_targets(), Ok(0));
    }
}

#[test]
fn replays_with_other_contents_are_fresh_runs() {
    for save in [Save::Yes, Save::No] {
        replays(&case(Dtype::Bf16, save, Reduction::Mean), bf16::from_f32);
        replays(&case(Dtype::F16, save, Reduction::None), f16::from_f32);
    }
}

#[test]
fn options_of_the_loss_are_those_of_the_layer() {
    for (save, softcap) in [(Save::Yes, None), (Save::Auto, Some(2.0))] {
        let base = case(Dtype::Bf16, save, Reduction::Mean);
        let loss = CrossEntropy { softcap, label_smoothing: 0.1, z_loss: 0.01, ..base.loss };
        replays(&Case { loss, ..base.clone() }, bf16::from_f32);
        replays(&Case { loss, dtype: Dtype::F16, ..base }, f16::from_f32);
    }
}

#[test]
fn gradients_are_added_if_asked_for() {
    let Some((_, gpu)) = interpreter() else { return };
    let case = case(Dtype::Bf16, Save::Yes, Reduction::Sum);
    let tensors = Tensors::random(&case);
    let step = Step::<bf16>::new(&gpu, options(&case, true)).unwrap();
    put(&step, &tensors, bf16::from_f32);
    step.run().unwrap();
    let once = get(&step);
    check(&case, &tensors, &once).unwrap();
    step.run().unwrap();
    let twice = step.dw().download().unwrap();
    assert!(once.out.dw.iter().zip(&twice).all(|(once, twice)| *twice == 2.0 * once), "the same sum, added to itself");
}

#[test]
fn tokens_that_do_not_count_cannot_harm() {
    let Some((_, gpu)) = interpreter() else { return };
    for save in [Save::Yes, Save::No] {
        let case = case(Dtype::Bf16, save, Reduction::None);
        let mut tensors = Tensors::random(&case);
        let step = Step::<bf16>::new(&gpu, options(&case, false)).unwrap();
        put(&step, &tensors, bf16::from_f32);
        step.run().unwrap();
        let clean = get(&step);
        // Token 3 is ignored; token 0 gets a target that does not exist.
        tensors.x[3 * case.hidden..4 * case.hidden].fill(f32::NAN);
        put(&step, &tensors, bf16::from_f32);
        step.run().unwrap();
        assert!(same_run(&clean, &get(&step)));
        tensors.targets[0] = case.vocab as i64;
        put(&step, &tensors, bf16::from_f32);
        step.run().unwrap();
        let out = get(&step).out;
        assert_eq!(step.unknown_targets(), Ok(1));
        assert!(out.loss[0].is_nan() && out.dx[..case.hidden].iter().all(|v| *v == 0.0));
        assert!(
            same(&out.loss[1..], &clean.out.loss[1..]) && same(&out.dx[case.hidden..], &clean.out.dx[case.hidden..])
        );
        assert!(out.dw.iter().all(|v| v.is_finite()));
    }
}

#[test]
fn memory_goes_with_the_step() {
    let Some((_, gpu)) = interpreter() else { return };
    let case = case(Dtype::Bf16, Save::Yes, Reduction::Mean);
    gpu.take_peak_bytes();
    let step = Step::<bf16>::new(&gpu, options(&case, false)).unwrap();
    let held = gpu.take_peak_bytes();
    // E and A, at least.
    assert!(held > case.tokens * 1024 * 2 + case.tokens * case.hidden * 4, "{held}");
    step.run().unwrap();
    assert_eq!(gpu.take_peak_bytes(), held, "scratch stays for the next replay");
    drop(step);
    gpu.take_peak_bytes();
    assert_eq!(gpu.take_peak_bytes(), 0);
}

#[test]
fn unusable_options_are_refused() {
    let Some((_, gpu)) = interpreter() else { return };
    let good = options(&case(Dtype::Bf16, Save::Yes, Reduction::Mean), false);
    let refused = |options: StepOptions| Step::<bf16>::new(&gpu, options).unwrap_err();
    assert!(matches!(refused(StepOptions { vocab: 0, ..good }), Error::Shape { tensor: "w", .. }));
    assert!(matches!(refused(StepOptions { tokens: 1 << 31, ..good }), Error::Shape { tensor: "x", .. }));
    let policy = Policy { chunk: Some(100), ..good.policy };
    assert!(matches!(refused(StepOptions { policy, ..good }), Error::Option { option: "chunk", .. }));
    let loss = CrossEntropy { argmax: true, ..good.loss };
    assert!(matches!(refused(StepOptions { loss, ..good }), Error::Option { option: "argmax", .. }));
    let f32 = Step::<f32>::new(&gpu, good).unwrap_err();
    assert!(matches!(f32, Error::Option { option: "precision", .. }), "{f32}");
    let step = Step::<bf16>::new(&gpu, good).unwrap();
    assert!(matches!(step.targets().upload(&[1]), Err(Error::Shape { .. })));
}
