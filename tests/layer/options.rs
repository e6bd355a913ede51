//! Every mix of the options of cross-entropy against the f64 reference, on every CPU target.

use crate::common::{Case, Tensors, amx, amx_bf16x3, bf16x3, cases, check, devices, run};
use proptest::prelude::*;
use vocabfuse_runtime::{Algorithm, Cpu, CrossEntropy, Dtype, Policy, Reduction, Save};

fn any_case() -> impl Strategy<Value = Case> {
    let shape = (0..60usize, 1..80usize, 1..1300usize);
    let cuts = prop::collection::vec(0.0..1.0f64, 0..5);
    let dtype = prop_oneof![Just(Dtype::F32), Just(Dtype::Bf16), Just(Dtype::F16)];
    let algorithm = prop_oneof![1 => Just(Algorithm::Naive), 1 => Just(Algorithm::One), 3 => Just(Algorithm::Two)];
    let save = prop_oneof![Just(Save::Auto), Just(Save::No)];
    let chunk = prop_oneof![Just(512usize), Just(2048)];
    let reduction = prop_oneof![Just(Reduction::None), Just(Reduction::Sum), Just(Reduction::Mean)];
    let softcap = prop_oneof![Just(None), Just(Some(1.0f32)), Just(Some(30.0))];
    let smoothing = prop_oneof![Just(0.0f32), Just(0.1), Just(1.0)];
    let z_loss = prop_oneof![Just(0.0f32), Just(1e-4), Just(0.5)];
    let spread = prop_oneof![Just(0.1f32), Just(1.0), Just(8.0)];
    let options = (reduction, softcap, smoothing, z_loss, any::<bool>());
    let flags = (any::<bool>(), any::<bool>(), any::<[bool; 3]>());
    (shape, cuts, (dtype, algorithm, save, chunk), options, flags, spread, any::<u64>()).prop_map(
        |(
            (tokens, hidden, vocab),
            cuts,
            (dtype, algorithm, save, chunk),
            (reduction, softcap, label_smoothing, z_loss, argmax),
            (bias, upstream, extras),
            spread,
            seed,
        )| {
            let mut bounds: Vec<usize> = cuts.iter().map(|c| (c * (vocab + 1) as f64) as usize).collect();
            bounds.extend([0, vocab]);
            bounds.sort_unstable();
            // With nothing but smoothing, derivatives are differences of nearly equal numbers, which narrow types round first.
            let label_smoothing = if dtype == Dtype::F32 { label_smoothing } else { label_smoothing.min(0.5) };
            let loss = CrossEntropy { reduction, softcap, label_smoothing, z_loss, argmax, ..CrossEntropy::default() };
            let policy = Policy { algorithm, save, chunk: Some(chunk), ..Policy::default() };
            let case = Case { bounds, dtype, policy, loss, bias, upstream, extras, ..Case::new(tokens, hidden, vocab) };
            Case { spread, seed, ..case }
        },
    )
}

fn agrees(cpu: &Cpu, case: &Case) -> Result<(), TestCaseError> {
    let tensors = Tensors::random(case);
    let run = run(cpu, case, &tensors).map_err(|e| TestCaseError::fail(format!("{e} in {case:?}")))?;
    let barriers = match case.policy.algorithm {
        Algorithm::Naive => 3,
        Algorithm::One => 2,
        Algorithm::Two => 1,
    };
    prop_assert!(run.counters.iter().all(|c| c.barriers == barriers), "{:?}", run.counters);
    check(case, &tensors, &run).map_err(|e| TestCaseError::fail(format!("{}: {e}", cpu.name())))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(128), ..ProptestConfig::default() })]

    #[test]
    fn every_mix_agrees_with_the_reference(case in any_case()) {
        for cpu in devices(2) {
            agrees(&cpu, &case)?;
        }
        for cpu in bf16x3(2) {
            agrees(&cpu, &case.bf16x3())?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(12), ..ProptestConfig::default() })]

    #[test]
    fn amx_agrees_with_the_reference(case in any_case()) {
        if let Some(cpu) = amx(2) {
            let vocab = case.vocab.min(600);
            let bounds = case.bounds.iter().map(|b| *b.min(&vocab)).collect();
            let case = Case { vocab, bounds, ..case };
            let label_smoothing = case.loss.label_smoothing.min(0.5);
            let loss = CrossEntropy { label_smoothing, ..case.loss };
            agrees(&cpu, &Case { dtype: Dtype::Bf16, loss, ..case.clone() })?;
            if let Some(cpu) = amx_bf16x3(2) {
                agrees(&cpu, &case.bf16x3())?;
            }
        }
    }
}
