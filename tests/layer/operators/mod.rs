//! Operators against the f64 reference: random shapes, shards, dtypes, options, and the contract for odd rows.

pub mod contract;
mod errors;
pub mod harness;
mod limits;

use crate::common::targets::{amx, bf16x3, cases, devices};
use harness::{Case, Data, Which, check, run};
use proptest::prelude::*;
use vocabfuse_runtime::{Cpu, Dtype, Precision};

fn any_case() -> impl Strategy<Value = Case> {
    let which = prop::sample::select(Which::DIFFERENTIABLE.to_vec());
    let shape = (0..70usize, 1..90usize, 1..100usize, 1..1300usize);
    let cuts = prop::collection::vec(0.0..1.0f64, 0..5);
    let dtype = || prop_oneof![Just(Dtype::F32), Just(Dtype::Bf16), Just(Dtype::F16)];
    let scale = prop_oneof![Just(1.0f32), Just(0.5), Just(-2.0)];
    let softcap = prop_oneof![Just(None), Just(Some(1.0f32)), Just(Some(20.0))];
    let spread = prop_oneof![Just(0.1f32), Just(1.0), Just(8.0)];
    let flags = (any::<bool>(), any::<bool>(), 1..4usize);
    (which, shape, cuts, (dtype(), dtype()), (scale, softcap, spread), flags, any::<u64>()).prop_map(
        |(which, (tokens, h, other, vocab), cuts, dtypes, (scale, softcap, spread), (bias, given, per_token), seed)| {
            let mut bounds: Vec<usize> = cuts.iter().map(|c| (c * (vocab + 1) as f64) as usize).collect();
            bounds.extend([0, vocab]);
            bounds.sort_unstable();
            Case {
                hidden: [h, other],
                bounds,
                // The composition knows one dtype; of two, the bounds are those of the coarser one.
                dtypes: if which.is_kl() { [dtypes.0; 2] } else { [dtypes.0, dtypes.1] },
                scale,
                softcap,
                bias,
                given,
                spread,
                per_token,
                seed,
                ..Case::new(which, tokens, h, vocab)
            }
        },
    )
}

fn agrees(cpu: &Cpu, case: &Case) -> Result<(), TestCaseError> {
    let data = Data::random(case);
    let run = run(cpu, case, &data).map_err(|e| TestCaseError::fail(format!("{e} in {case:?}")))?;
    check(case, &data, &run).map_err(|e| TestCaseError::fail(format!("{}: {e}", cpu.name())))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(96), ..ProptestConfig::default() })]

    #[test]
    fn every_operator_agrees_with_the_reference(case in any_case()) {
        for cpu in devices(2).into_iter() {
            agrees(&cpu, &case)?;
        }
        for cpu in bf16x3(2) {
            agrees(&cpu, &case.bf16x3())?;
        }
    }

    #[test]
    fn the_largest_logits_are_those_of_the_reference(
        tokens in 0..40usize,
        vocab in 1..1300usize,
        k in 1..40usize,
        ranks in prop::sample::select(vec![1usize, 2, 3, 5]),
        seed in any::<u64>(),
    ) {
        let bounds = (0..=ranks).map(|r| r * r * vocab / (ranks * ranks)).collect();
        let case = Case { bounds, seed, given: true, ..Case::new(Which::TopK(k.min(vocab)), tokens, 8, vocab) };
        let mut data = Data::random(&case);
        // Few different logits: many are equal.
        data.logits[0].iter_mut().for_each(|y| *y = (*y * 2.0).round());
        let truth = harness::composition::<f64>(&case, &data);
        for cpu in devices(2).into_iter() {
            let run = run(&cpu, &case, &data).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(&run.answer.ids, &truth.ids, "{}", cpu.name());
            check(&case, &data, &run).map_err(|e| TestCaseError::fail(format!("{}: {e}", cpu.name())))?;
        }
    }
}

#[test]
fn a_row_that_is_wrong_fails_however_small_it_is() {
    let cpu = Cpu::new(Some(1)).unwrap();
    for which in Which::DIFFERENTIABLE {
        let case = Case { bias: true, ..Case::new(which, 9, 12, 200) };
        let mut data = Data::random(&case);
        data.bias.iter_mut().for_each(|bias| bias[7] = -20.0);
        data.ids.iter_mut().filter(|id| **id == 7).for_each(|id| *id = 8);
        let right = run(&cpu, &case, &data).unwrap();
        check(&case, &data, &right).unwrap();
        let mut wrong = harness::Run { answer: right.answer.clone(), kernels: vec![] };
        wrong.answer.gradients[0].w[7 * 12..8 * 12].fill(0.0);
        let error = check(&case, &data, &wrong).unwrap_err();
        assert!(error.starts_with("dw 0: row 7"), "{which:?}: {error}");
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
            agrees(&cpu, &Case { dtypes: [Dtype::Bf16; 2], given: false, ..case.clone() })?;
            agrees(&cpu.with_precision(Some(Precision::Bf16x3)), &case.bf16x3())?;
        }
    }
}
