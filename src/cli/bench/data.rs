//! Random tensors of any size, made on all processors.

use anyhow::{Context, Result};
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use vocabfuse::Dtype;
use vocabfuse::tensors::Elements;

/// Standard deviation of the logits: a model that has learnt something, and far from overflow in f16.
const SPREAD: f32 = 2.0;

/// Values that share a random generator, whatever the number of processors.
const BLOCK: usize = 1 << 16;

/// One microbatch.
pub struct Data {
    pub tokens: usize,
    pub hidden: usize,
    pub vocab: usize,
    pub dtype: Dtype,
    pub x: Elements,
    pub w: Elements,
    pub targets: Vec<i64>,
}

impl Data {
    pub fn new([tokens, hidden, vocab]: [usize; 3], dtype: Dtype, seed: u64) -> Result<Data> {
        // Before the work, not after half of it: the largest of what is to come is dW, in f32.
        for (option, rows) in [("--tokens", tokens), ("--vocab", vocab)] {
            let bytes = rows.checked_mul(hidden).and_then(|count| count.checked_mul(size_of::<f32>()));
            let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
            bytes.with_context(|| format!("option {option} {rows}: too large with --hidden {hidden}"))?;
        }
        // Uniform values of variance one.
        let bound = 3.0_f32.sqrt();
        let x = matrix("--tokens", tokens, hidden, dtype, bound, seed)?;
        let w = matrix("--vocab", vocab, hidden, dtype, bound * SPREAD / (hidden as f32).sqrt(), !seed)?;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let targets = (0..tokens).map(|_| random.random_range(0..vocab as i64)).collect();
        Ok(Data { tokens, hidden, vocab, dtype, x, w, targets })
    }

    /// Bytes of x and w.
    pub fn input_bytes(&self) -> usize {
        (self.tokens + self.vocab) * self.hidden * self.dtype.size()
    }

    /// Operations of a product of three of N, V and H, in 10^9.
    pub fn gigaflop(&self, products: f64) -> f64 {
        products * self.tokens as f64 * self.hidden as f64 * self.vocab as f64 / 1e9
    }

    /// A row of x, exactly.
    pub fn x_row(&self, row: usize) -> Vec<f64> {
        self::row(&self.x, row, self.hidden)
    }

    /// A row of w, exactly.
    pub fn w_row(&self, row: usize) -> Vec<f64> {
        self::row(&self.w, row, self.hidden)
    }
}

fn row(values: &Elements, row: usize, width: usize) -> Vec<f64> {
    let range = row * width..(row + 1) * width;
    match values {
        Elements::F32(v) => v[range].iter().map(|e| f64::from(*e)).collect(),
        Elements::Bf16(v) => v[range].iter().map(|e| e.to_f64()).collect(),
        Elements::F16(v) => v[range].iter().map(|e| e.to_f64()).collect(),
    }
}

fn matrix(option: &str, rows: usize, columns: usize, dtype: Dtype, bound: f32, seed: u64) -> Result<Elements> {
    let count = rows * columns;
    Ok(match dtype {
        Dtype::F32 => Elements::F32(random(option, count, bound, seed, |v| v)?),
        Dtype::Bf16 => Elements::Bf16(random(option, count, bound, seed, bf16::from_f32)?),
        Dtype::F16 => Elements::F16(random(option, count, bound, seed, f16::from_f32)?),
    })
}

fn random<T: Copy + Default + Send>(
    option: &str,
    count: usize,
    bound: f32,
    seed: u64,
    from: fn(f32) -> T,
) -> Result<Vec<T>> {
    let mut values = room(option, count)?;
    values.par_chunks_mut(BLOCK).enumerate().for_each(|(block, values)| {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(block as u64);
        values.iter_mut().for_each(|value| *value = from(random.random_range(-bound..bound)));
    });
    Ok(values)
}

/// Memory for that many values; an error, not an abort, where there is none.
pub fn room<T: Copy + Default>(option: &str, count: usize) -> Result<Vec<T>> {
    let mut values = vec![];
    let bytes = count.saturating_mul(size_of::<T>());
    values.try_reserve_exact(count).with_context(|| format!("option {option}: no memory for {bytes} bytes"))?;
    values.resize(count, T::default());
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_depend_on_the_seed_alone() {
        let make = |seed| Data::new([3, 40_000, 5], Dtype::Bf16, seed).unwrap();
        let (a, b, other) = (make(1), make(1), make(2));
        assert!(a.x == b.x && a.w == b.w && a.targets == b.targets);
        assert!(a.x != other.x && a.w != other.w);
        let Elements::Bf16(x) = &a.x else { panic!("dtype") };
        // Blocks differ from each other.
        assert!(x[..100] != x[BLOCK..BLOCK + 100]);
        let variance = x.iter().map(|v| v.to_f64().powi(2)).sum::<f64>() / x.len() as f64;
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
        assert!(Data::new([usize::MAX, 2, 1], Dtype::F32, 1).is_err());
    }
}
