//! Sums over many tokens against their bounds: what each sum may be off by does not depend on luck.

use crate::common::{Case, Tensors, amx, bf16x3, devices, run, truth, worst_row};
use vocabfuse::plain;
use vocabfuse_runtime::{Cpu, CrossEntropy, Dtype, Policy, Reduction, Save};

const TOKENS: usize = 1 << 16;
/// What one rounding to f32 is off by at most.
const ROUNDING: f64 = f32::EPSILON as f64 / 2.0;

/// Tokens that are all the same: the roundings of their sums do not cancel.
fn equal_tokens(dtype: Dtype, tokens: usize, save: Save) -> (Case, Tensors) {
    let loss = CrossEntropy { reduction: Reduction::Sum, ..CrossEntropy::default() };
    let policy = Policy { save, ..Policy::default() };
    let case = Case { dtype, loss, policy, bounds: vec![0, 2, 3], ..Case::new(tokens, 2, 3) };
    let mut tensors = Tensors::random(&case);
    tensors.bias = Some(vec![0.0, 0.3, -0.4]);
    tensors.x = [0.7, -0.3].repeat(tokens);
    plain::round(&mut tensors.x, dtype);
    tensors.targets.fill(1);
    (case, tensors)
}

/// Every CPU target with every dtype whose derivatives are not rounded on the way to the sums that are looked at: saved ones
/// of 16 bits are.
fn everywhere(test: impl Fn(&Cpu, &Case, &Tensors)) {
    for (dtype, save) in
        [(Dtype::F32, Save::Yes), (Dtype::F32, Save::No), (Dtype::Bf16, Save::No), (Dtype::F16, Save::No)]
    {
        let (case, tensors) = equal_tokens(dtype, TOKENS, save);
        for cpu in devices(2) {
            test(&cpu, &case, &tensors);
        }
    }
    // Emulated tiles are slow.
    let (case, tensors) = equal_tokens(Dtype::Bf16, TOKENS / 8, Save::No);
    if let Some(cpu) = amx(2) {
        test(&cpu, &case, &tensors);
    }
}

#[test]
fn the_gradient_of_the_bias_is_as_exact_for_many_tokens_as_for_few() {
    everywhere(|cpu, case, tensors| {
        let dbias = run(cpu, case, tensors).unwrap().out.dbias.unwrap();
        let error = worst_row(&dbias, &truth(case, tensors).dbias.unwrap(), 1, 0.0);
        // Sixty-four terms of one lane in a block, and the roundings of a derivative.
        assert!(error < 80.0 * ROUNDING, "{error:e} on {} in {case:?}", cpu.name());
    });
}

#[test]
fn the_gradient_of_w_is_off_by_a_block_of_tokens_and_the_number_of_blocks() {
    everywhere(|cpu, case, tensors| {
        if !cpu.target().multiplies_f32() && case.dtype == Dtype::Bf16 {
            return; // Derivatives are rounded to bf16 before they are multiplied.
        }
        let dw = run(cpu, case, tensors).unwrap().out.dw;
        let error = worst_row(&dw, &truth(case, tensors).dw, case.hidden, 0.0);
        // Blocks of 128 to 1024 tokens.
        let allowed = (128 + TOKENS / 128).max(1024 + TOKENS / 1024) as f64 * ROUNDING;
        assert!(error < allowed, "{error:e} on {} in {case:?}", cpu.name());
    });
}

#[test]
fn many_tokens_add_up_in_three_products_of_bf16() {
    let (case, tensors) = equal_tokens(Dtype::F32, TOKENS, Save::No);
    for cpu in bf16x3(2) {
        let dbias = run(&cpu, &case.bf16x3(), &tensors).unwrap().out.dbias.unwrap();
        let error = worst_row(&dbias, &truth(&case, &tensors).dbias.unwrap(), 1, 0.0);
        // Logits have factors of two parts.
        assert!(error < 80.0 * ROUNDING + crate::common::precision::BF16X3, "{error:e} on {}", cpu.name());
    }
}
