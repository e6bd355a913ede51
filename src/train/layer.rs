//! The vocabulary layer of the model, in its two forms.

use super::{Config, TrainError};
use std::time::{Duration, Instant};
use vocabfuse::plain::Composition;
use vocabfuse::problem::{self, Options, Outputs, Problem};
use vocabfuse::ranks::{each, split_rows};
use vocabfuse::tensors::Elements;
use vocabfuse::{
    Batch, Cpu, CrossEntropy, Dtype, Error, Filtered, Gradients, Local, Matrix, Operands, OutputLayer, Policy,
    Reduction, Shard, ShardLayout, Upstream, WeightGrad,
};

/// Hidden states and targets of one microbatch.
pub struct LayerBatch<'a> {
    /// X, `[N, H]`.
    pub x: &'a [f32],
    /// Targets, `[N]`.
    pub targets: &'a [i64],
}

/// A vocabulary layer with a summed loss.
pub trait VocabularyLayer {
    /// Runs the microbatches of a step with the weight `w` `[V, H]`, adds its gradient to `dw`, and returns the loss.
    /// Calls `on_dx` with the number of each microbatch and the gradient of its X.
    ///
    /// # Errors
    /// [`TrainError`] if the layer refuses its input.
    fn step(
        &mut self,
        w: &[f32],
        batches: &[LayerBatch<'_>],
        dw: &mut [f32],
        on_dx: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<f64, TrainError>;
}

/// Passes S, C1 and T over the ranks of this process.
pub struct Fused {
    layers: Vec<OutputLayer>,
    /// The same with the gradient filter, and the number of steps until they take over.
    filtering: Vec<OutputLayer>,
    unfiltered_steps: usize,
    layout: ShardLayout,
    comms: Vec<Local>,
    dtype: Dtype,
    hidden: usize,
    last: Cost,
}

/// What the passes of one step took, over all ranks and microbatches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Times of passes S, C1 and T.
    pub times: [Duration; 3],
    /// Tiles of dX and dW that the gradient filter left out.
    pub filtered: [Filtered; 2],
}

impl Fused {
    /// A layer of `vocab` classes split over the ranks.
    ///
    /// # Errors
    /// [`vocabfuse::Error`] if the options are unusable.
    pub fn new(cpu: &Cpu, vocab: usize, config: &Config) -> Result<Fused, Error> {
        let layout = ShardLayout::even(vocab, config.ranks)?;
        let loss = CrossEntropy { reduction: Reduction::Sum, ..CrossEntropy::default() };
        let layers = |policy: Policy| -> Result<Vec<OutputLayer>, Error> {
            (0..config.ranks).map(|rank| OutputLayer::new(cpu, &layout, rank, loss, policy)).collect()
        };
        Ok(Fused {
            layers: layers(Policy { filter: None, ..config.policy })?,
            filtering: layers(config.policy)?,
            unfiltered_steps: config.filter_from,
            comms: Local::group(config.ranks),
            layout,
            dtype: config.dtype,
            hidden: config.hidden,
            last: Cost::default(),
        })
    }

    /// What the last step took.
    pub fn cost(&self) -> Cost {
        self.last
    }

    /// Barriers that a rank has taken part in.
    pub fn barriers(&self) -> u64 {
        self.comms[0].counters().barriers
    }

    fn shard<'a>(&self, w: Matrix<'a>, rank: usize) -> Result<Shard<'a>, Error> {
        Ok(Shard { weight: w.row_range(self.layout.range(rank))?, bias: None })
    }

    /// Passes S and C1 of a microbatch: its loss, the gradient of X, and each rank's ticket for pass T.
    fn microbatch(&self, batch: Batch<'_>, w: Matrix<'_>) -> Result<MicrobatchResult, Error> {
        let start = Instant::now();
        let members = self.layers.iter().zip(&self.comms).collect();
        let partials = each(members, |rank, (layer, comm): (&OutputLayer, &Local)| {
            layer.s_pass(comm, batch, self.shard(w, rank)?)
        })?;
        let between = Instant::now();
        let done = each(partials, |_, partial| partial.start_combine().wait())?;
        let times = [between - start, between.elapsed()];
        let loss = f64::from(done[0].loss[0]);
        let dx = done[0].dx.clone();
        let mut filtered = Filtered::default();
        done.iter().for_each(|d| filtered += d.filtered);
        Ok(MicrobatchResult { loss, dx, filtered, times, tickets: done.into_iter().map(|d| d.weight_grad).collect() })
    }
}

struct MicrobatchResult {
    loss: f64,
    dx: std::sync::Arc<Vec<f32>>,
    filtered: Filtered,
    /// Of passes S and C1.
    times: [Duration; 2],
    tickets: Vec<WeightGrad>,
}

/// Operands in the layer's dtype; f32 is not copied.
enum Operand<'a> {
    Borrowed(&'a [f32]),
    Rounded(Elements),
}

impl<'a> Operand<'a> {
    fn new(values: &'a [f32], dtype: Dtype) -> Operand<'a> {
        if dtype == Dtype::F32 {
            return Operand::Borrowed(values);
        }
        Operand::Rounded(Elements::from_f32(values.to_vec(), dtype))
    }

    fn matrix(&self, columns: usize) -> Result<Matrix<'_>, Error> {
        match self {
            Operand::Borrowed(values) => Matrix::new(values, values.len() / columns, columns),
            Operand::Rounded(elements) => elements.matrix(elements.len() / columns, columns),
        }
    }
}

impl VocabularyLayer for Fused {
    fn step(
        &mut self,
        w: &[f32],
        batches: &[LayerBatch<'_>],
        dw: &mut [f32],
        on_dx: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<f64, TrainError> {
        match self.unfiltered_steps.checked_sub(1) {
            Some(left) => self.unfiltered_steps = left,
            None => self.layers.clone_from(&self.filtering),
        }
        let w = Operand::new(w, self.dtype);
        let w = w.matrix(self.hidden)?;
        let xs: Vec<Operand<'_>> = batches.iter().map(|b| Operand::new(b.x, self.dtype)).collect();
        let mut tickets: Vec<Vec<WeightGrad>> = self.layers.iter().map(|_| vec![]).collect();
        let (mut loss, mut cost) = (0.0, Cost::default());
        for (i, (x, batch)) in xs.iter().zip(batches).enumerate() {
            let batch = Batch::new(x.matrix(self.hidden)?, batch.targets);
            let result = self.microbatch(batch, w)?;
            cost.times.iter_mut().zip(result.times).for_each(|(all, time)| *all += time);
            cost.filtered[0] += result.filtered;
            loss += result.loss;
            on_dx(i, &result.dx);
            tickets.iter_mut().zip(result.tickets).for_each(|(of_rank, ticket)| of_rank.push(ticket));
        }
        // Pass T of all microbatches, at the end of the step.
        let shards = split_rows(dw, self.hidden, (0..self.layers.len()).map(|r| self.layout.range(r)));
        let start = Instant::now();
        let work = tickets.into_iter().zip(shards).collect();
        let of_ranks = each(work, |rank, (tickets, dw): (Vec<WeightGrad>, &mut [f32])| {
            let mut filtered = Filtered::default();
            let shard = self.shard(w, rank)?;
            for (ticket, x) in tickets.into_iter().zip(&xs) {
                filtered += self.layers[rank].t_pass(
                    ticket,
                    Operands::new(x.matrix(self.hidden)?, shard),
                    Gradients { dw: (&mut *dw).into(), dbias: None },
                    Upstream::One,
                )?;
            }
            Ok::<_, Error>(filtered)
        })?;
        cost.times[2] = start.elapsed();
        of_ranks.into_iter().for_each(|of_rank| cost.filtered[1] += of_rank);
        self.last = cost;
        Ok(loss)
    }
}

/// The plain composition in f32: one rank, materialised logits of the whole step.
pub struct Plain {
    composition: Composition,
    out: Outputs<f32>,
    hidden: usize,
}

impl Plain {
    /// A layer with hidden size `hidden`.
    pub fn new(hidden: usize) -> Plain {
        Plain { composition: Composition::new(Dtype::F32), out: Outputs::default(), hidden }
    }
}

impl VocabularyLayer for Plain {
    fn step(
        &mut self,
        w: &[f32],
        batches: &[LayerBatch<'_>],
        dw: &mut [f32],
        on_dx: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<f64, TrainError> {
        let x: Vec<f32> = batches.iter().flat_map(|b| b.x).copied().collect();
        let targets: Vec<i64> = batches.iter().flat_map(|b| b.targets).copied().collect();
        let options = Options { reduction: problem::Reduction::Sum, ..Options::default() };
        let problem = Problem::new(&x, w, &targets, self.hidden, options);
        self.composition.input_gradient(&problem, &mut self.out)?;
        self.composition.weight_gradient(&problem, &mut self.out)?;
        let mut dx = self.out.dx.as_slice();
        for (i, batch) in batches.iter().enumerate() {
            let (part, rest) = dx.split_at(batch.x.len());
            on_dx(i, part);
            dx = rest;
        }
        dw.iter_mut().zip(&self.out.dw).for_each(|(to, from)| *to += from);
        Ok(f64::from(self.out.loss[0]))
    }
}
