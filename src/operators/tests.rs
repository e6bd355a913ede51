//! Gradients of the reference by numerical differentiation.

use super::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vocabfuse_codegen::Dtype;

const V: usize = 7;
const N: usize = 3;

/// Everything that gradients are taken by, one behind the other: x, w and bias, or logits and bias, of two distributions.
struct Operands {
    values: Vec<f64>,
    hidden: [usize; 2],
    given: bool,
}

impl Operands {
    fn random(given: bool, seed: u64) -> Operands {
        let hidden = [4, 3];
        let extent = |h: usize| if given { N * V } else { (N + V) * h } + V;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let values = (0..extent(hidden[0]) + extent(hidden[1])).map(|_| rng.random_range(-1.5..1.5)).collect();
        Operands { values, hidden, given }
    }

    fn distributions(&self, scale: f64, softcap: Option<f64>) -> [Distribution<'_, f64>; 2] {
        let mut rest = self.values.as_slice();
        let mut take = |count: usize| {
            let (first, others) = rest.split_at(count);
            rest = others;
            first
        };
        self.hidden.map(|hidden| {
            let raw = if self.given {
                Raw::Logits(take(N * V))
            } else {
                Raw::Linear { x: take(N * hidden), w: take(V * hidden), hidden }
            };
            Distribution { raw, bias: Some(take(V)), logit_scale: scale, softcap }
        })
    }
}

const IDS: [i64; 6] = [2, 5, 2, 2, -1, 0];

fn queries(d: [Distribution<'_, f64>; 2]) -> Vec<Query<'_, f64>> {
    let logprobs = |entropy| Query::Logprobs { of: d[0], ids: &IDS, per_token: 2, ignore_index: Some(-1), entropy };
    vec![logprobs(false), logprobs(true), Query::Entropy(d[0]), Query::KlDivergence { p: d[0], q: d[1] }]
}

fn weighed(answer: &Answer<f64>, u: &Upstream<'_, f64>) -> f64 {
    let dot = |a: &[f64], b: Option<&[f64]>| a.iter().zip(b.unwrap_or(&[])).map(|(a, b)| a * b).sum::<f64>();
    dot(&answer.logprobs, u.logprobs) + dot(&answer.entropy, u.entropy) + dot(&answer.divergence, u.divergence)
}

#[test]
fn every_gradient_is_a_derivative() {
    let (slots, rows) = ([0.7, -0.3, 1.1, 0.4, 9.0, -2.0], [0.9, -1.2, 0.5]);
    for given in [false, true] {
        for (scale, softcap) in [(1.0, None), (-0.7, None), (1.3, Some(1.5))] {
            let operands = Operands::random(given, 3);
            for which in 0..4 {
                let upstream = Upstream {
                    logprobs: (which < 2).then_some(&slots),
                    entropy: [1, 2].contains(&which).then_some(&rows),
                    divergence: (which == 3).then_some(&rows),
                };
                let value = |operands: &Operands| {
                    let query = queries(operands.distributions(scale, softcap))[which];
                    evaluate(&query, &upstream, V, Dtype::F32)
                };
                let mut got: Vec<f64> = vec![];
                for g in &value(&operands).gradients {
                    if given {
                        got.extend(&g.logits);
                    } else {
                        got.extend(&g.x);
                        got.extend(&g.w);
                    }
                    got.extend(&g.bias);
                }
                for (i, got) in got.iter().copied().enumerate() {
                    let at = |delta: f64| {
                        let mut moved = Operands { values: operands.values.clone(), ..operands };
                        moved.values[i] += delta;
                        weighed(&value(&moved), &upstream)
                    };
                    let numerical = (at(1e-5) - at(-1e-5)) / 2e-5;
                    assert!(
                        (got - numerical).abs() < 1e-7,
                        "query {which}, given {given}, softcap {softcap:?}, operand {i}: {got} for {numerical}"
                    );
                }
            }
        }
    }
}

#[test]
fn odd_rows() {
    let none = Upstream { logprobs: None, entropy: None, divergence: None };
    let inf = f64::INFINITY;
    let logits = [-inf, -inf, -inf, 0.0, f64::NAN, 1.0, 5.0, -inf, 5.0];
    let of = Distribution { raw: Raw::Logits(&logits), bias: None, logit_scale: 1.0, softcap: None };
    let entropy = evaluate(&Query::Entropy(of), &none, 3, Dtype::F32).entropy;
    assert!(entropy[0].is_nan() && entropy[1].is_nan());
    assert!((entropy[2] - 2f64.ln()).abs() < 1e-12);
    let top = evaluate(&Query::TopK(of, 3), &none, 3, Dtype::F32);
    assert_eq!(top.ids, [-1, -1, -1, -1, -1, -1, 0, 2, 1]);
    let uniform = Distribution { raw: Raw::Logits(&[0.0; 9]), ..of };
    let kl = |p, q| evaluate(&Query::KlDivergence { p, q }, &none, 3, Dtype::F32).divergence[2];
    assert_eq!(kl(uniform, of), inf);
    assert!((kl(of, uniform) - 1.5f64.ln()).abs() < 1e-12);
}
