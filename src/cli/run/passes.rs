//! The three passes over all ranks, timed and with their memory measured.

use crate::MEMORY;
use std::sync::Arc;
use std::time::Instant;
use vocabfuse::ranks::{each, split_rows};
use vocabfuse::tensors::Inputs;
use vocabfuse::{
    Batch, Counters, CrossEntropy, Device, Error, Gradients, Local, OutputLayer, Policy, Shard, ShardLayout, Upstream,
};

/// What to run.
pub struct Job<'a, D: Device> {
    pub inputs: &'a Inputs,
    pub layout: &'a ShardLayout,
    pub device: &'a D,
    pub loss: CrossEntropy,
    pub policy: Policy,
}

/// Outputs of the layer, and what they cost.
pub struct Results {
    pub loss: Vec<f32>,
    pub lse: Vec<f32>,
    pub dx: Arc<Vec<f32>>,
    pub dw: Vec<f32>,
    pub dbias: Option<Vec<f32>>,
    /// Names of the kernels that ran.
    pub kernels: Vec<&'static str>,
    /// Barriers and launches of a rank, bytes of all ranks.
    pub counters: Counters,
    /// Milliseconds of S, combine and T.
    pub ms: [f64; 3],
    /// Most bytes that the process allocated at a time, besides inputs and outputs.
    pub peak_extra_bytes: usize,
}

pub fn run<D: Device>(job: &Job<'_, D>) -> Result<Results, Error> {
    let Job { inputs, layout, device, loss, policy } = *job;
    let (tokens, hidden, vocab) = (inputs.tokens(), inputs.hidden, inputs.vocab);
    let x = inputs.x.matrix(tokens, hidden)?;
    let w = inputs.w.matrix(vocab, hidden)?;
    let batch = Batch { upstream: inputs.upstream.as_deref(), ..Batch::new(x, &inputs.targets) };
    let ranks = 0..layout.ranks();
    let layers: Vec<OutputLayer<D>> =
        ranks.clone().map(|rank| OutputLayer::new(device, layout, rank, loss, policy)).collect::<Result<_, _>>()?;
    let mut dw = vec![0.0; vocab * hidden];
    let mut dbias = inputs.bias.as_ref().map(|_| vec![0.0; vocab]);

    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    // A pass ends on all ranks before the next begins, so that a rank that fails leaves nobody waiting.
    let start = Instant::now();
    let partials = each(layers.iter().collect(), |rank, layer: &OutputLayer<D>| {
        let rows = layout.range(rank);
        let bias = inputs.bias.as_ref().map(|b| &b[rows.clone()]);
        layer.s_pass(batch, Shard { weight: w.row_range(rows)?, bias })
    })?;
    let mut kernels: Vec<&str> = partials.iter().flat_map(|p| p.kernels()).collect();
    kernels.sort_unstable();
    kernels.dedup();
    let after_s = Instant::now();

    let group = partials.into_iter().zip(Local::group(layout.ranks())).collect();
    let combined = each(group, |_, (partial, comm)| {
        let done = partial.start_combine(&comm)?.wait()?;
        Ok::<_, Error>((done, comm.counters()))
    })?;
    let after_combine = Instant::now();

    let counters = total(combined.iter().map(|(_, counters)| *counters));
    let (mut tickets, mut results) = (vec![], None);
    for (done, _) in combined {
        tickets.push(done.weight_grad);
        // All ranks have the same loss, lse and dX.
        results.get_or_insert((done.loss, done.lse, done.dx));
    }
    let (loss, lse, dx) = results.unwrap_or_default();
    let dws = split_rows(&mut dw, hidden, ranks.clone().map(|r| layout.range(r)));
    let dbiases: Vec<Option<&mut [f32]>> = match &mut dbias {
        Some(dbias) => split_rows(dbias, 1, ranks.map(|r| layout.range(r))).into_iter().map(Some).collect(),
        None => ranks.map(|_| None).collect(),
    };
    let work = tickets.into_iter().zip(dws).zip(dbiases).collect();
    each(work, |rank, ((ticket, dw), dbias)| layers[rank].t_pass(ticket, Gradients { dw, dbias }, Upstream::One))?;
    let after_t = Instant::now();

    let outputs = (loss.len() + lse.len() + dx.len()) * size_of::<f32>();
    let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
    Ok(Results {
        peak_extra_bytes: MEMORY.peak_usage().saturating_sub(before + outputs),
        ms: [ms(start, after_s), ms(after_s, after_combine), ms(after_combine, after_t)],
        loss,
        lse,
        dx,
        dw,
        dbias,
        kernels,
        counters,
    })
}

fn total(ranks: impl Iterator<Item = Counters>) -> Counters {
    ranks.fold(Counters::default(), |all, rank| Counters {
        barriers: all.barriers.max(rank.barriers),
        launches: all.launches.max(rank.launches),
        bytes: all.bytes + rank.bytes,
    })
}
