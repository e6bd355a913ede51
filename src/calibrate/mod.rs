//! Rates that no matrix product on this machine can exceed: multiplications of operands in registers, and for tiles in L1.

mod tiles;
mod vectors;

use std::hint::black_box;
use std::time::Instant;
use vocabfuse_runtime::Dtype;

/// Bursts that are timed; the median counts.
const BURSTS: usize = 5;
/// Time of a burst, in seconds.
const BURST: f64 = 0.01;
/// Steps between two looks at the clock.
const STEPS: usize = 20_000;

/// What matrix products are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Multiply-adds of vectors of f32, in registers.
    F32,
    /// Dot products of pairs of bf16 in vectors, in registers.
    Bf16Pairs,
    /// Products of tiles of bf16, which are loaded from L1: four loads for four products, the least there can be.
    Bf16Tiles,
    /// The same without loads. Far above [`Operation::Bf16Tiles`] it shows a machine that throttles loads of tiles.
    Bf16TilesInRegisters,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 4] =
        [Operation::F32, Operation::Bf16Pairs, Operation::Bf16Tiles, Operation::Bf16TilesInRegisters];

    /// What it is, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::F32 => "f32 multiply-adds from registers",
            Operation::Bf16Pairs => "dot products of bf16 pairs from registers",
            Operation::Bf16Tiles => "bf16 tiles from L1",
            Operation::Bf16TilesInRegisters => "bf16 tiles from registers",
        }
    }

    /// Whether a matrix product of operands of this type can be made of it. Tiles have to be loaded.
    pub fn multiplies(self, dtype: Dtype) -> bool {
        match self {
            Operation::F32 => true,
            Operation::Bf16Pairs | Operation::Bf16Tiles => dtype == Dtype::Bf16,
            Operation::Bf16TilesInRegisters => false,
        }
    }

    fn of_this_machine(self) -> Option<Loop> {
        match self {
            Operation::F32 => vectors::f32(),
            Operation::Bf16Pairs => vectors::bf16_pairs(),
            Operation::Bf16Tiles => tiles::from_l1(),
            Operation::Bf16TilesInRegisters => tiles::from_registers(),
        }
    }
}

/// How fast an operation is.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Of which operation.
    pub operation: Operation,
    /// Name of the instruction set.
    pub isa: &'static str,
    /// 10^9 multiplications and additions a second, of all threads that took part.
    pub gflops: f64,
}

/// How fast a machine loads tiles; shared ones may change between the two from one second to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileLoads {
    /// Products of tiles from L1 take about as long as from registers.
    FullRate,
    /// They take at least twice as long.
    Throttled,
}

impl TileLoads {
    /// What the rates of one run say; `None` if tiles are not among them.
    pub fn of(rates: &[Rate]) -> Option<TileLoads> {
        let gflops = |operation| rates.iter().find(|rate| rate.operation == operation).map(|rate| rate.gflops);
        let (l1, registers) = (gflops(Operation::Bf16Tiles)?, gflops(Operation::Bf16TilesInRegisters)?);
        Some(if 2.0 * l1 <= registers { TileLoads::Throttled } else { TileLoads::FullRate })
    }

    /// What it is, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            TileLoads::FullRate => "full rate",
            TileLoads::Throttled => "throttled",
        }
    }
}

/// Rates of everything that the machine has, of all of `threads` threads at the same time; none on an architecture whose
/// vectors are not known here.
pub fn rates(threads: usize) -> Vec<Rate> {
    let rate = |operation: Operation| {
        let kernel = operation.of_this_machine()?;
        Some(Rate { operation, isa: kernel.isa, gflops: together(&kernel, threads) })
    };
    Operation::ALL.into_iter().filter_map(rate).collect()
}

/// A loop over independent sums.
struct Loop {
    isa: &'static str,
    /// Runs a number of steps; the result is there to be looked at.
    run: fn(usize) -> f32,
    /// Floating-point operations of a step.
    step: usize,
}

fn together(kernel: &Loop, threads: usize) -> f64 {
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(|| median_rate(kernel))).collect();
        started.into_iter().map(|t| t.join().unwrap_or(0.0)).sum()
    })
}

fn median_rate(kernel: &Loop) -> f64 {
    let mut rates: Vec<f64> = (0..BURSTS).map(|_| burst(kernel)).collect();
    rates.sort_by(f64::total_cmp);
    rates[BURSTS / 2]
}

fn burst(kernel: &Loop) -> f64 {
    let start = Instant::now();
    let mut steps = 0;
    loop {
        black_box((kernel.run)(black_box(STEPS)));
        steps += STEPS;
        let seconds = start.elapsed().as_secs_f64();
        if seconds >= BURST {
            return (steps * kernel.step) as f64 / seconds / 1e9;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_the_machine_has() {
        let rates = rates(2);
        assert!(rates.iter().all(|rate| rate.gflops > 0.1), "{rates:?}");
        for operation in Operation::ALL {
            let found = rates.iter().any(|rate| rate.operation == operation);
            assert_eq!(found, operation.of_this_machine().is_some(), "{operation:?}");
        }
    }

    #[test]
    fn throttled_loads_are_told_by_their_rate() {
        let rate = |operation, gflops| Rate { operation, isa: "AMX", gflops };
        let of = |l1, registers| {
            TileLoads::of(&[rate(Operation::Bf16Tiles, l1), rate(Operation::Bf16TilesInRegisters, registers)])
        };
        assert_eq!(of(2600.0, 2500.0), Some(TileLoads::FullRate));
        assert_eq!(of(490.0, 2500.0), Some(TileLoads::Throttled));
        assert_eq!(TileLoads::of(&[rate(Operation::F32, 150.0)]), None);
    }

    #[test]
    fn operands_are_of_the_type() {
        let of = |dtype| Operation::ALL.into_iter().filter(|o| o.multiplies(dtype)).count();
        assert_eq!([of(Dtype::F32), of(Dtype::F16), of(Dtype::Bf16)], [1, 1, 3]);
    }
}
