//! A loss whose kernels for GPUs were compiled by the build script and lie in this program. `gpu-build cuda:0` runs them on a GPU,
//! whose machine needs neither NVRTC nor a CUDA toolkit; without an argument they run in the PTX interpreter.

mod poly;
#[cfg(test)]
mod tests;

use half::bf16;
use std::collections::BTreeMap;
use vocabfuse_runtime::{
    Batch, CrossEntropy, Error, Gpu, Gradients, Local, Matrix, Operands, OutputLayer, Policy, Ptx, Reduction, RowLoss,
    Shard, ShardLayout, Upstream,
};

include!(concat!(env!("OUT_DIR"), "/cuda_kernels.rs"));

/// A device with the programs of the loss, and the kernels that the build script has made of them.
fn device(name: &str) -> Result<Gpu, Error> {
    let gpu = match name.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()) {
        Some(ordinal) => Gpu::cuda(ordinal)?,
        None => Gpu::ptx(&Ptx::new(name.trim_start_matches("ptx:"))?)?,
    };
    let loss = poly::poly().map_err(|e| Error::Compile(e.to_string()))?;
    gpu.with_loss(loss)?.with_kernels(CUDA_KERNELS)
}

/// X `[tokens, hidden]`, W `[vocab, hidden]` and a target for each token.
struct Problem<'a> {
    x: Matrix<'a>,
    w: Matrix<'a>,
    targets: &'a [i64],
    epsilon: f32,
}

/// A loss for each token, dX and dW.
struct Results {
    losses: Vec<f32>,
    dx: Vec<f32>,
    dw: Vec<f32>,
}

fn run(gpu: &Gpu, problem: &Problem<'_>) -> Result<Results, Error> {
    let Problem { x, w, targets, epsilon } = *problem;
    let options = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    let uniforms = BTreeMap::from([("epsilon".to_owned(), epsilon)]);
    let loss = RowLoss { name: poly::NAME.to_owned(), uniforms, options };
    let policy = Policy { chunk: Some(poly::CHUNK), ..Policy::default() };
    let layer = OutputLayer::with_loss(gpu, &ShardLayout::even(w.rows(), 1)?, 0, loss, policy)?;
    let comm = &Local::group(1)[0];
    let shard = Shard { weight: w, bias: None };
    let partial = layer.s_pass(comm, Batch::new(x, targets), shard)?;
    let done = partial.start_combine().wait()?;
    let mut dw = vec![0.0; w.rows() * w.columns()];
    let out = Gradients { dw: (&mut dw).into(), dbias: None };
    layer.t_pass(done.weight_grad, Operands::new(x, shard), out, Upstream::One)?;
    Ok(Results { losses: done.loss, dx: done.dx.to_vec(), dw })
}

fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "ptx:sm_80".to_owned());
    let gpu = device(&name)?;
    println!("{}: {} kernels, {} of them compiled", gpu.name(), CUDA_KERNELS.texts.len(), CUDA_KERNELS.artifacts.len());
    let (tokens, hidden, vocab) = (32, 24, 1500);
    let wave = |count: usize, step: f32| -> Vec<bf16> {
        (0..count).map(|i| bf16::from_f32((i as f32 * step).sin())).collect()
    };
    let (x, w) = (wave(tokens * hidden, 0.7), wave(vocab * hidden, 1.3));
    let targets: Vec<i64> = (0..tokens).map(|i| (i * 61 % vocab) as i64).collect();
    let (x, w) = (Matrix::new(&x, tokens, hidden)?, Matrix::new(&w, vocab, hidden)?);
    for epsilon in [0.0, 2.0] {
        let results = run(&gpu, &Problem { x, w, targets: &targets, epsilon })?;
        let mean = results.losses.iter().sum::<f32>() / tokens as f32;
        let norm = |values: &[f32]| values.iter().map(|v| v * v).sum::<f32>().sqrt();
        println!("ε = {epsilon}: mean loss {mean}, |dX| = {}, |dW| = {}", norm(&results.dx), norm(&results.dw));
    }
    Ok(())
}
