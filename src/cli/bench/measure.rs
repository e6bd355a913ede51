//! The passes, timed.

use super::data::{Data, room};
use crate::MEMORY;
use anyhow::{Context, Result};
use std::sync::Arc;
use std::time::Instant;
use vocabfuse::{
    Batch, CrossEntropy, Device, Filtered, Gpu, Gradients, Local, Operands, OutputLayer, Policy, Shard, ShardLayout,
    Upstream,
};

/// What is measured.
pub struct Setting<'a, D: Device> {
    pub data: &'a Data,
    pub device: &'a D,
    /// The same device, if it is a GPU: it has a clock and memory of its own.
    pub gpu: Option<&'a Gpu>,
    pub policy: Policy,
    pub rounds: usize,
}

/// Milliseconds of S, C1 and T.
pub type Times = [f64; 3];

/// Times, memory, and the results of the last round.
pub struct Measured {
    /// By the clock that counts: the device's where it has one.
    pub times: Vec<Times>,
    /// By the clock of the host, with copies from and to the device.
    pub host_times: Vec<Times>,
    pub events: bool,
    pub saved: bool,
    /// Tiles of dX and dW that the gradient filter left out in the last round.
    pub filtered: [Filtered; 2],
    pub kernels: Vec<&'static str>,
    /// Most bytes in use at a time, without x and w.
    pub peak_bytes: usize,
    /// Bytes of dX and dW.
    pub output_bytes: usize,
    pub lse: Vec<f32>,
    pub dx: Arc<Vec<f32>>,
    /// Of one round.
    pub dw: Vec<f32>,
}

/// What is left of a round.
struct Round {
    times: Times,
    host_times: Times,
    events: bool,
    saved: bool,
    filtered: [Filtered; 2],
    kernels: Vec<&'static str>,
    lse: Vec<f32>,
    dx: Arc<Vec<f32>>,
}

/// Runs one round that does not count, which starts threads and compiles kernels, and then the others.
pub fn measure<D: Device>(setting: &Setting<'_, D>) -> Result<Measured> {
    let Setting { data, gpu, .. } = *setting;
    let layout = ShardLayout::even(data.vocab, 1)?;
    let layer = OutputLayer::new(setting.device, &layout, 0, CrossEntropy::default(), setting.policy)?;
    let comm = Local::group(1).pop().context("a group of one")?;
    let mut dw = room("--vocab", data.vocab * data.hidden)?;
    let output_bytes = (data.tokens + data.vocab) * data.hidden * size_of::<f32>();

    // Before the first round: a CPU keeps its memory from then on.
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let mut last = round(setting, &layer, &comm, &mut dw)?;
    let (mut times, mut host_times) = (vec![], vec![]);
    if let Some(gpu) = gpu {
        gpu.take_peak_bytes();
    }
    for _ in 0..setting.rounds {
        // The results of a round are not there in the next one.
        (last.lse, last.dx) = Default::default();
        // Pass T adds: what is checked has to be the sum of one round.
        dw.fill(0.0);
        last = round(setting, &layer, &comm, &mut dw)?;
        times.push(last.times);
        host_times.push(last.host_times);
    }
    let peak_bytes = match gpu {
        // The device holds copies of x and w.
        Some(gpu) => gpu.take_peak_bytes().saturating_sub(data.input_bytes()),
        // dW was there before the rounds.
        None => (MEMORY.peak_usage() + dw.len() * size_of::<f32>()).saturating_sub(before),
    };
    let Round { events, saved, filtered, kernels, lse, dx, .. } = last;
    Ok(Measured { times, host_times, events, saved, filtered, kernels, peak_bytes, output_bytes, lse, dx, dw })
}

fn round<D: Device>(setting: &Setting<'_, D>, layer: &OutputLayer<D>, comm: &Local, dw: &mut [f32]) -> Result<Round> {
    let Setting { data, gpu, .. } = *setting;
    let batch = Batch::new(data.x.matrix(data.tokens, data.hidden)?, &data.targets);
    let shard = Shard { weight: data.w.matrix(data.vocab, data.hidden)?, bias: None };

    let operands = Operands::new(batch.x, shard);
    let (partial, s) = timed(gpu, || layer.s_pass(comm, batch, shard))?;
    let kernels = partial.kernels();
    let (done, c1) = timed(gpu, || partial.start_combine().wait())?;
    let saved = done.weight_grad.saved_bytes() > 0;
    let (filtered, t) = timed(gpu, || {
        layer.t_pass(done.weight_grad, operands, Gradients { dw: dw.into(), dbias: None }, Upstream::One)
    })?;
    let passes = [s, c1, t];
    Ok(Round {
        times: passes.map(|time| time.device.unwrap_or(time.host)),
        host_times: passes.map(|time| time.host),
        events: passes.iter().all(|time| time.device.is_some()),
        saved,
        filtered: [done.filtered, filtered],
        kernels,
        lse: done.lse,
        dx: done.dx,
    })
}

/// Milliseconds of one pass.
#[derive(Clone, Copy)]
struct Time {
    host: f64,
    device: Option<f64>,
}

fn timed<T>(gpu: Option<&Gpu>, work: impl FnOnce() -> vocabfuse::Result<T>) -> Result<(T, Time)> {
    gpu.map(Gpu::start_clock).transpose()?;
    let start = Instant::now();
    let result = work()?;
    let device = gpu.map(Gpu::stop_clock).transpose()?.flatten();
    Ok((result, Time { host: start.elapsed().as_secs_f64() * 1e3, device }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocabfuse::{Dtype, Ptx, Save};

    #[test]
    fn a_gpu_has_memory_and_a_clock_of_its_own() {
        let compiler = vocabfuse::codegen::compile::nvrtc::Nvrtc::load();
        if let Err(missing) = compiler {
            return vocabfuse_testing::skipped(vocabfuse_testing::Need::Nvrtc, &missing.to_string());
        }
        // The interpreter stands in for a GPU; it has no clock.
        let folder = tempfile::tempdir().unwrap();
        let gpu = Gpu::ptx(&Ptx::new("sm_80").unwrap()).unwrap().with_cache(folder.path());
        let data = Data::new([40, 16, 700], Dtype::Bf16, 1).unwrap();
        let peak = |save| {
            let policy = Policy { save, chunk: Some(512), ..Policy::default() };
            let setting = Setting { data: &data, device: &gpu, gpu: Some(&gpu), policy, rounds: 1 };
            let measured = measure(&setting).unwrap();
            assert_eq!((measured.events, measured.saved), (false, save == Save::Yes));
            assert_eq!(super::super::check::check(&data, &measured, None).failed(), [""; 0]);
            measured.peak_bytes
        };
        let (saved, recomputed) = (peak(Save::Yes), peak(Save::No));
        // dW lives on the device in pass T, and saved numerators with it.
        assert!(recomputed >= 700 * 16 * 4 + 40 * 512 * 2, "{recomputed}");
        assert!(saved >= 700 * 16 * 4 + 40 * 700 * 2, "{saved}");
        // All is freed again.
        gpu.take_peak_bytes();
        assert_eq!(gpu.take_peak_bytes(), 0);
    }
}
