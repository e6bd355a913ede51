//! The inputs that all competitors read: raw little-endian files in one folder.

use anyhow::{Context, Result, bail};
use bytemuck::Pod;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use vocabfuse::{Dtype, plain};

/// Standard deviation of the logits: a model that has learnt something, and far from overflow in f16.
const SPREAD: f32 = 2.0;

/// Values handled at a time, so that conversions need next to no memory.
const BLOCK: usize = 1 << 16;

/// One problem, and where its inputs are.
#[derive(Clone, Debug, Deserialize)]
pub struct Shape {
    /// Holds `x.bin` `[N, H]`, `w.bin` `[V, H]` (f32) and `targets.bin` `[N]` (i64).
    pub folder: PathBuf,
    pub tokens: usize,
    pub hidden: usize,
    pub vocab: usize,
    /// f32, bf16 or f16. The files hold f32 values that are exact in it.
    pub dtype: String,
    pub threads: usize,
}

impl Shape {
    pub fn dtype(&self) -> Result<Dtype> {
        Ok(self.dtype.parse()?)
    }

    pub fn x(&self) -> PathBuf {
        self.folder.join("x.bin")
    }

    pub fn w(&self) -> PathBuf {
        self.folder.join("w.bin")
    }

    pub fn targets(&self) -> PathBuf {
        self.folder.join("targets.bin")
    }
}

/// Writes the inputs. Returns rows of W for the error of dW: half of them targets, whose gradients are the largest, the
/// rest anywhere; sorted, each once.
pub fn make(shape: &Shape, seed: u64, samples: usize) -> Result<Vec<usize>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let dtype = shape.dtype()?;
    let mut matrix = |path: &Path, count: usize, scale: f32| -> Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for first in (0..count).step_by(BLOCK) {
            let mut block: Vec<f32> = (0..BLOCK.min(count - first)).map(|_| normal(&mut rng) * scale).collect();
            plain::round(&mut block, dtype);
            file.write_all(bytemuck::cast_slice(&block))?;
        }
        Ok(file.flush()?)
    };
    matrix(&shape.x(), shape.tokens * shape.hidden, 1.0)?;
    matrix(&shape.w(), shape.vocab * shape.hidden, SPREAD / (shape.hidden as f32).sqrt())?;
    let targets: Vec<i64> = (0..shape.tokens).map(|_| rng.random_range(0..shape.vocab as i64)).collect();
    write(&shape.targets(), &targets)?;

    let mut rows: Vec<usize> = (0..samples)
        .map(|i| match i % 2 {
            0 => targets[rng.random_range(0..targets.len())] as usize,
            _ => rng.random_range(0..shape.vocab),
        })
        .collect();
    rows.sort_unstable();
    rows.dedup();
    Ok(rows)
}

/// A sum of four uniform values, which is close to normal; of variance one.
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    (0..4).map(|_| rng.random_range(-1.0_f32..1.0)).sum::<f32>() * 0.866
}

/// Writes a file of raw values.
pub fn write<T: Pod>(path: &Path, values: &[T]) -> Result<()> {
    std::fs::write(path, bytemuck::cast_slice(values)).with_context(|| format!("writing {}", path.display()))
}

/// Reads a whole file of raw values.
pub fn read<T: Pod>(path: &Path) -> Result<Vec<T>> {
    let bytes = std::fs::metadata(path).with_context(|| format!("reading {}", path.display()))?.len() as usize;
    if !bytes.is_multiple_of(size_of::<T>()) {
        bail!("{} has {bytes} bytes, no multiple of {}", path.display(), size_of::<T>());
    }
    let mut values = vec![T::zeroed(); bytes / size_of::<T>()];
    File::open(path)?.read_exact(bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

/// Reads a file of f32 values as another type, without ever holding all of it as f32.
pub fn read_as<T>(path: &Path, count: usize, from: fn(f32) -> T) -> Result<Vec<T>> {
    let mut file = File::open(path).with_context(|| format!("reading {}", path.display()))?;
    let (mut values, mut block) = (Vec::with_capacity(count), vec![0.0_f32; BLOCK]);
    while values.len() < count {
        let block = &mut block[..BLOCK.min(count - values.len())];
        file.read_exact(bytemuck::cast_slice_mut(block)).with_context(|| format!("reading {}", path.display()))?;
        values.extend(block.iter().map(|v| from(*v)));
    }
    Ok(values)
}
