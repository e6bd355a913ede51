//! Runs an output layer on kernels that the build script of this crate generated, with a chunk of 1024.

use vocabfuse_kernels::Registry;
use vocabfuse_runtime::{
    Batch, Cpu, CrossEntropy, Error, Gradients, Local, Matrix, Operands, OutputLayer, Policy, Shard, ShardLayout,
    Target, Upstream,
};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.extend(scalar::KERNELS);
    #[cfg(target_arch = "x86_64")]
    registry.extend(avx2::KERNELS);
    registry
}

/// Loss and weight gradient of a small batch on one rank.
fn loss(cpu: &Cpu, chunk: usize) -> Result<(f32, Vec<f32>), Error> {
    let (tokens, hidden, vocab) = (48, 40, 3000);
    let wave = |i: usize| (i as f32 * 0.7).sin();
    let x: Vec<f32> = (0..tokens * hidden).map(wave).collect();
    let w: Vec<f32> = (0..vocab * hidden).map(|i| 0.3 * wave(3 * i + 1)).collect();
    let targets: Vec<i64> = (0..tokens).map(|i| (i * 61 % vocab) as i64).collect();

    let layout = ShardLayout::even(vocab, 1)?;
    let policy = Policy { chunk: Some(chunk), ..Policy::default() };
    let layer = OutputLayer::new(cpu, &layout, 0, CrossEntropy::default(), policy)?;
    let ranks = Local::group(1);
    let batch = Batch::new(Matrix::new(&x, tokens, hidden)?, &targets);
    let shard = Shard { weight: Matrix::new(&w, vocab, hidden)?, bias: None };

    let partial = layer.s_pass(&ranks[0], batch, shard)?;
    println!("{}", partial.kernels().join("\n"));
    let done = partial.start_combine().wait()?;
    let mut dw = vec![0.0; vocab * hidden];
    let out = Gradients { dw: (&mut dw).into(), dbias: None };
    layer.t_pass(done.weight_grad, Operands::new(batch.x, shard), out, Upstream::One)?;
    Ok((done.loss[0], dw))
}

fn main() -> Result<(), Error> {
    let target = if Cpu::available_targets().contains(&Target::Avx2) { Target::Avx2 } else { Target::Scalar };
    let cpu = Cpu::with_target(target, None)?.with_registry(registry());
    let (own, own_dw) = loss(&cpu, 1024)?;
    let (shipped, shipped_dw) = loss(&cpu, 512)?;
    let difference = own_dw.iter().zip(&shipped_dw).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("loss with chunk 1024: {own}, with chunk 512: {shipped}, largest difference of dW: {difference:e}");
    assert!((own - shipped).abs() < 1e-5 && difference < 1e-6, "both chunk sizes compute the same");
    Ok(())
}
