//! The layer against the f64 reference over random shapes, layouts, dtypes and policies.

use crate::common::{Case, Tensors, amx, amx_bf16x3, bf16x3, cases, check, devices, run, same, worst_row};
use proptest::prelude::*;
use vocabfuse_runtime::{Algorithm, Cpu, CrossEntropy, Dtype, Policy, Reduction, Save};

fn any_case() -> impl Strategy<Value = Case> {
    let shape = (0..90usize, 1..150usize, 1..1300usize);
    let cuts = prop::collection::vec(0.0..1.0f64, 0..4);
    let dtype = prop_oneof![Just(Dtype::F32), Just(Dtype::Bf16), Just(Dtype::F16)];
    let algorithm = prop_oneof![Just(Algorithm::Naive), Just(Algorithm::One), Just(Algorithm::Two)];
    let save = prop_oneof![Just(Save::Yes), Just(Save::No)];
    let chunk = prop_oneof![Just(512usize), Just(2048), Just(8192)];
    let reduction = prop_oneof![Just(Reduction::None), Just(Reduction::Sum), Just(Reduction::Mean)];
    let scale = prop_oneof![Just(1.0f32), Just(0.5), Just(-2.0)];
    let spread = prop_oneof![Just(0.1f32), Just(1.0), Just(8.0)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (shape, cuts, (dtype, algorithm, save, chunk), (reduction, scale, spread), flags, any::<u64>()).prop_map(
        |(
            (tokens, hidden, vocab),
            cuts,
            (dtype, algorithm, save, chunk),
            (reduction, logit_scale, spread),
            flags,
            seed,
        )| {
            let (bias, upstream, ignore) = flags;
            // Uneven cuts; equal ones give empty shards.
            let mut bounds: Vec<usize> = cuts.iter().map(|c| (c * (vocab + 1) as f64) as usize).collect();
            bounds.extend([0, vocab]);
            bounds.sort_unstable();
            Case {
                bounds,
                dtype,
                policy: Policy { algorithm, save, chunk: Some(chunk), ..Policy::default() },
                loss: CrossEntropy {
                    reduction,
                    logit_scale,
                    ignore_index: ignore.then_some(-1),
                    ..CrossEntropy::default()
                },
                bias,
                upstream,
                spread,
                seed,
                ..Case::new(tokens, hidden, vocab)
            }
        },
    )
}

fn agrees(cpu: &Cpu, case: &Case) -> Result<(), TestCaseError> {
    let tensors = Tensors::random(case);
    let run = run(cpu, case, &tensors).map_err(|e| TestCaseError::fail(format!("{e} in {case:?}")))?;
    check(case, &tensors, &run).map_err(|e| TestCaseError::fail(format!("{}: {e}", cpu.name())))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(96), ..ProptestConfig::default() })]

    #[test]
    fn every_target_agrees_with_the_reference(case in any_case()) {
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
            let case = Case {
                dtype: Dtype::Bf16,
                vocab,
                bounds: case.bounds.iter().map(|b| *b.min(&vocab)).collect(),
                policy: Policy { chunk: Some(512), ..case.policy },
                ..case
            };
            agrees(&cpu, &case)?;
            if let Some(cpu) = amx_bf16x3(2) {
                agrees(&cpu, &case.bf16x3())?;
            }
        }
    }
}

#[test]
fn amx_slices_agree_with_the_reference() {
    let Some(cpu) = amx(2) else { return };
    // More of H than one product takes and than stays near, with one block of the vocabulary and with some; more tokens than
    // one block of pass T.
    for (tokens, hidden, vocab) in [(33, 520, 20), (70, 1056, 330), (1030, 40, 70)] {
        for save in [Save::Yes, Save::No] {
            let policy = Policy { save, chunk: Some(512), ..Policy::default() };
            let case = Case { dtype: Dtype::Bf16, bias: true, policy, ..Case::new(tokens, hidden, vocab) };
            agrees(&cpu, &case).unwrap();
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    // Few tokens share the vocabulary, in slices; many share their panels.
    for tokens in [1, 33, 64, 200, 330] {
        let mut case = Case { bias: true, ..Case::new(tokens, 70, 2900) };
        for (dtype, save) in [(Dtype::F32, Save::Yes), (Dtype::Bf16, Save::Yes), (Dtype::F16, Save::No)] {
            case.dtype = dtype;
            case.policy.save = save;
            let tensors = Tensors::random(&case);
            let with = |threads| run(&Cpu::new(Some(threads)).unwrap(), &case, &tensors).unwrap();
            let one = with(1);
            check(&case, &tensors, &one).unwrap();
            for threads in [2, 3, 7] {
                let (one, many) = (&one.out, with(threads).out);
                let equal = same(&one.loss, &many.loss) && same(&one.dx, &many.dx) && same(&one.dw, &many.dw);
                assert!(equal, "{tokens} tokens, {threads} threads");
                assert!(same(&one.dbias.clone().unwrap(), &many.dbias.unwrap()), "{tokens} tokens");
            }
        }
    }
}

#[test]
fn the_number_of_ranks_changes_rounding_only() {
    let mut case = Case::new(65, 50, 1000);
    let tensors = Tensors::random(&case);
    let cpu = Cpu::new(Some(2)).unwrap();
    let one = run(&cpu, &case, &tensors).unwrap().out;
    for bounds in [vec![0, 500, 1000], vec![0, 1, 1, 1000], vec![0, 0, 333, 900, 1000, 1000]] {
        case.bounds = bounds;
        let many = run(&cpu, &case, &tensors).unwrap().out;
        for (a, b, width) in [(&one.loss, &many.loss, 1), (&one.dx, &many.dx, 50), (&one.dw, &many.dw, 50)] {
            let error = worst_row(a, b, width, 0.0);
            assert!(error < 1e-6, "{error:e} with {:?}", case.bounds);
        }
    }
}

#[test]
fn barriers_are_one_two_and_three() {
    let mut case = Case { bounds: vec![0, 300, 600], ..Case::new(40, 32, 600) };
    for (algorithm, barriers) in [(Algorithm::Two, 1), (Algorithm::One, 2), (Algorithm::Naive, 3)] {
        for save in [Save::Yes, Save::No] {
            case.policy = Policy { algorithm, save, ..case.policy };
            let tensors = Tensors::random(&case);
            let run = run(&Cpu::new(Some(1)).unwrap(), &case, &tensors).unwrap();
            for counters in &run.counters {
                assert_eq!((counters.barriers, counters.launches), (barriers, barriers), "{algorithm}");
                assert!(counters.bytes > 0);
            }
            check(&case, &tensors, &run).unwrap();
        }
    }
}

#[test]
fn a_row_that_is_wrong_fails_however_small_it_is() {
    let cpu = Cpu::new(Some(1)).unwrap();
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let case = Case { dtype, bias: true, ..Case::new(9, 12, 200) };
        let mut tensors = Tensors::random(&case);
        // A class without a target, which is unlikely: its row is far smaller than others. In f16 it would be lost.
        tensors.bias.as_mut().unwrap()[7] = if dtype == Dtype::F16 { -3.0 } else { -9.0 };
        tensors.targets.iter_mut().filter(|target| **target == 7).for_each(|target| *target = 8);
        let right = run(&cpu, &case, &tensors).unwrap();
        check(&case, &tensors, &right).unwrap();
        let mut wrong = right.clone();
        wrong.out.dw[7 * 12..8 * 12].fill(0.0);
        let error = check(&case, &tensors, &wrong).unwrap_err();
        assert!(error.starts_with("dw: row 7"), "{error}");
        let mut wrong = right;
        wrong.out.dbias.as_mut().unwrap()[7] *= 2.0;
        let error = check(&case, &tensors, &wrong).unwrap_err();
        assert!(error.starts_with("dbias"), "{error}");
    }
}
