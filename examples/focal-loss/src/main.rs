//! A loss that the library does not have: its row programs ([`focal`]), kernels for CPUs from the build script, kernels for
//! GPUs generated when they are called, and the layer that runs them. `focal-loss ptx:sm_80` runs the CUDA kernels in the
//! PTX interpreter, which needs NVRTC.

mod focal;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use vocabfuse_kernels::Registry;
use vocabfuse_runtime::{
    Batch, Cpu, CrossEntropy, Device, Error, Gpu, Gradients, Local, Matrix, Operands, OutputLayer, Policy, Ptx,
    Reduction, RowLoss, Shard, ShardLayout, Target, Upstream,
};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// A CPU with the kernels of the build script beside those of the library.
fn cpu() -> Result<Cpu, Error> {
    let mut registry = Registry::default();
    registry.extend(scalar::KERNELS);
    #[cfg(target_arch = "x86_64")]
    registry.extend(avx2::KERNELS);
    let target = if Cpu::available_targets().contains(&Target::Avx2) { Target::Avx2 } else { Target::Scalar };
    Ok(Cpu::with_target(target, None)?.with_registry(registry))
}

/// The PTX interpreter, with the programs from which it generates kernels.
fn ptx() -> Result<Gpu, Error> {
    let loss = focal::focal().map_err(|e| Error::Compile(e.to_string()))?;
    Gpu::ptx(&Ptx::new("sm_80")?)?.with_loss(loss)
}

/// X, W and targets of one rank or several.
struct Problem<'a> {
    x: Matrix<'a>,
    w: Matrix<'a>,
    targets: &'a [i64],
    gamma: f32,
    ranks: usize,
}

/// Losses, dX and dW.
struct Results {
    losses: Vec<f32>,
    dx: Vec<f32>,
    dw: Vec<f32>,
}

fn run<D: Device>(device: &D, problem: &Problem<'_>) -> Result<Results, Error> {
    let Problem { x, w, targets, gamma, ranks } = *problem;
    let layout = ShardLayout::even(w.rows(), ranks)?;
    let one = |(rank, comm): (usize, Local)| -> Result<Results, Error> {
        let options = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
        let uniforms = BTreeMap::from([("gamma".to_owned(), gamma)]);
        let loss = RowLoss { name: focal::NAME.to_owned(), uniforms, options };
        let policy = Policy { chunk: Some(512), ..Policy::default() };
        let layer = OutputLayer::with_loss(device, &layout, rank, loss, policy)?;
        let weight = w.row_range(layout.range(rank))?;
        let shard = Shard { weight, bias: None };
        let partial = layer.s_pass(&comm, Batch::new(x, targets), shard)?;
        let done = partial.start_combine().wait()?;
        let mut dw = vec![0.0; weight.rows() * weight.columns()];
        let out = Gradients { dw: (&mut dw).into(), dbias: None };
        layer.t_pass(done.weight_grad, Operands::new(x, shard), out, Upstream::One)?;
        Ok(Results { losses: done.loss, dx: done.dx.to_vec(), dw })
    };
    let parts: Vec<Results> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).zip(Local::group(ranks)).map(|rank| scope.spawn(move || one(rank))).collect();
        threads.into_iter().map(|t| t.join().expect("a rank does not panic")).collect::<Result<_, _>>()
    })?;
    let dw = parts.iter().flat_map(|part| part.dw.iter().copied()).collect();
    let first = parts.into_iter().next().expect("there is a rank");
    Ok(Results { dw, ..first })
}

fn main() -> Result<(), Error> {
    let (tokens, hidden, vocab) = (32, 24, 1500);
    let wave = |i: usize| (i as f32 * 0.7).sin();
    let x: Vec<f32> = (0..tokens * hidden).map(wave).collect();
    let w: Vec<f32> = (0..vocab * hidden).map(|i| 0.6 * wave(3 * i + 1)).collect();
    let targets: Vec<i64> = (0..tokens).map(|i| (i * 61 % vocab) as i64).collect();
    let (x16, w16) = (half_precision(&x), half_precision(&w));
    let on_gpu = std::env::args().nth(1).is_some_and(|device| device == "ptx:sm_80");
    for gamma in [0.5, 2.0] {
        let results = if on_gpu {
            let (x, w) = (Matrix::new(&x16, tokens, hidden)?, Matrix::new(&w16, vocab, hidden)?);
            run(&ptx()?, &Problem { x, w, targets: &targets, gamma, ranks: 2 })?
        } else {
            let (x, w) = (Matrix::new(&x, tokens, hidden)?, Matrix::new(&w, vocab, hidden)?);
            run(&cpu()?, &Problem { x, w, targets: &targets, gamma, ranks: 2 })?
        };
        let mean = results.losses.iter().sum::<f32>() / tokens as f32;
        let norm = |values: &[f32]| values.iter().map(|v| v * v).sum::<f32>().sqrt();
        println!("γ = {gamma}: mean loss {mean}, |dX| = {}, |dW| = {}", norm(&results.dx), norm(&results.dw));
    }
    Ok(())
}

fn half_precision(values: &[f32]) -> Vec<half::bf16> {
    values.iter().map(|v| half::bf16::from_f32(*v)).collect()
}
