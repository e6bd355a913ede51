//! Random mixes of all that can be asked of the layers, against the f64 reference, row by row.
//!
//! `cargo xtask test --cases 10000` runs as many cases; otherwise there are a few hundred. `PROPTEST_CASES` sets the number,
//! `PROPTEST_RNG_SEED` another seed than the fixed one, and `VOCABFUSE_ISA` one target in place of all that the machine has.

mod loss;
mod operators;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};
use vocabfuse_runtime::{Cpu, Dtype, Precision, ShardLayout, Target};

const SEED: u64 = 20_261_129;

/// Cases on each device.
static RAN: LazyLock<Mutex<BTreeMap<String, usize>>> = LazyLock::new(Mutex::default);

/// Runs `test` on random cases, and says how many there were on which device.
fn check<S: Strategy>(name: &str, cases: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), String>) {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(SEED);
    }
    println!("{name}: {} cases, {:?}", config.cases, config.rng_seed);
    let ended = TestRunner::new(config).run(strategy, |case| test(case).map_err(TestCaseError::fail));
    for (device, count) in std::mem::take(&mut *RAN.lock().unwrap()) {
        println!("{name}: {count} on {device}");
    }
    if let Err(error) = ended {
        panic!("{name}: {error}");
    }
}

fn count(device: &str) {
    *RAN.lock().unwrap().entry(device.to_owned()).or_default() += 1;
}

/// The target that `VOCABFUSE_ISA` forces, or all that the machine can run.
fn cpus(threads: usize) -> (bool, Vec<Cpu>) {
    if std::env::var_os("VOCABFUSE_ISA").is_some_and(|target| !target.is_empty()) {
        return (true, vec![Cpu::new(Some(threads)).expect("the target can run here")]);
    }
    let all = Cpu::available_targets().into_iter();
    (false, all.map(|target| Cpu::with_target(target, Some(threads)).expect("the target can run here")).collect())
}

/// Devices with kernels of their own for a dtype, each with its name. Tiles that have to be emulated take long, and are left
/// out of most cases.
fn devices(threads: usize, dtype: Dtype, seed: u64) -> Vec<(String, Cpu)> {
    let (forced, mut cpus) = cpus(threads);
    if !forced {
        cpus.retain(|cpu| dtype == Dtype::Bf16 || cpu.target().multiplies_f32());
        let tiles = cpus.iter().any(|cpu| cpu.target() == Target::Amx);
        if dtype == Dtype::Bf16 && !tiles && seed.is_multiple_of(16) {
            cpus.extend(crate::common::amx(threads));
        }
    }
    cpus.into_iter().map(|cpu| (format!("{} in {dtype}", cpu.target()), cpu)).collect()
}

/// Devices that multiply f32 in bf16x3.
fn bf16x3(threads: usize) -> Vec<(String, Cpu)> {
    let pairs = cpus(threads).1.into_iter().filter(|cpu| !cpu.target().multiplies_f32());
    let with = |cpu: Cpu| (format!("{} in bf16x3", cpu.target()), cpu.with_precision(Some(Precision::Bf16x3)));
    pairs.map(with).collect()
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::F32), Just(Dtype::Bf16), Just(Dtype::F16)]
}

/// Bounds of shards: even, padded, or cut anywhere, where equal cuts leave a shard empty.
fn bounds(vocab: usize) -> impl Strategy<Value = Vec<usize>> {
    let of = |layout: ShardLayout| {
        let ends = (0..layout.ranks()).map(|rank| layout.range(rank).end);
        std::iter::once(0).chain(ends).collect::<Vec<usize>>()
    };
    let cut = prop::collection::vec(0..=vocab, 0..4).prop_map(move |mut cuts| {
        cuts.extend([0, vocab]);
        cuts.sort_unstable();
        cuts
    });
    prop_oneof![
        3 => Just(vec![0, vocab]),
        3 => cut,
        1 => (1..4usize).prop_map(move |ranks| of(ShardLayout::even(vocab, ranks).unwrap())),
        2 => (1..4usize).prop_map(move |ranks| of(ShardLayout::padded(vocab, ranks).unwrap())),
    ]
}

/// What is added to all logits. Logits are then whole multiples of a step that f32 holds beside the offset, so that no
/// implementation has anything to round before it subtracts.
#[derive(Clone, Copy, Debug)]
pub struct Offset {
    offset: f32,
    step: f32,
}

fn offset() -> impl Strategy<Value = Option<Offset>> {
    let of = |offset, step| Just(Some(Offset { offset, step }));
    prop_oneof![
        4 => Just(None),
        1 => of(0.0, 0.25),
        1 => of(1e4, 0.25),
        1 => of(-1e4, 0.25),
        1 => of(1e7, 1.0),
        1 => of(-1e7, 1.0),
        1 => of(1e8, 8.0),
    ]
}

impl Offset {
    /// Hidden states of zeros and ones with a sign.
    fn units(self, x: &mut [f32], hidden: usize) {
        for row in x.chunks_mut(hidden.max(1)) {
            // Few of them, or the logits would be far from each other.
            row.iter_mut().enumerate().for_each(|(i, x)| *x = if i < 3 { x.signum() } else { 0.0 });
        }
    }

    /// Weights or logits of small multiples of the step. A factor of 1/2 on what becomes of them needs twice of that.
    fn steps(self, values: &mut [f32], scale: f32) {
        values.iter_mut().for_each(|v| *v = (*v * 2.0).round().clamp(-2.0, 2.0) * self.step / scale.abs().min(1.0));
    }

    /// The dtype of the plain composition: logits far from zero are no numbers of a narrow type.
    fn yardstick(self, dtype: Dtype) -> Dtype {
        if self.offset == 0.0 { dtype } else { Dtype::F32 }
    }

    fn add(self, bias: &mut [f32]) {
        bias.iter_mut().for_each(|b| *b = self.offset + (*b * 4.0).round() * self.step);
    }
}

/// What classes are masked with.
#[derive(Clone, Copy, Debug)]
pub enum Mask {
    /// Nothing.
    None,
    /// Of one class in three.
    Third(f32),
    /// Of all.
    All,
}

fn mask() -> impl Strategy<Value = Mask> {
    let values = [f32::NEG_INFINITY, -1e4, -1e30, f32::MIN];
    prop_oneof![
        6 => Just(Mask::None),
        4 => prop::sample::select(values.to_vec()).prop_map(Mask::Third),
        1 => Just(Mask::All),
    ]
}

impl Mask {
    fn hides(self, class: usize) -> bool {
        match self {
            Mask::None => false,
            Mask::Third(_) => class % 3 == 1,
            Mask::All => true,
        }
    }

    fn apply(self, bias: &mut [f32]) {
        let value = if let Mask::Third(value) = self { value } else { f32::NEG_INFINITY };
        bias.iter_mut().enumerate().filter(|(class, _)| self.hides(*class)).for_each(|(_, bias)| *bias = value);
    }
}
