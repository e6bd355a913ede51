//! The output layer: passes S, C1 and T of one rank, in an order that the types enforce.

use crate::algorithm::{Exchange, blocks};
use crate::check::{self, expect, shape};
use crate::comm::{Finish, Local, Merged, Pending};
use crate::loss::scatter;
use crate::passes::{Extent, FinishJob, LayerInputs, SPass, Sums};
use crate::policy::DEFAULT_MEMORY_BUDGET as DEFAULT_BUDGET;
use crate::{Cpu, CrossEntropy, Device, Dtype, Error, Matrix, Policy, Result, Save, ShardLayout};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// One microbatch, the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// X `[N, H]`, the last hidden states.
    pub x: Matrix<'a>,
    /// Global target ids, N.
    pub targets: &'a [i64],
    /// Upstream gradient of each token's loss, N; multiplies gradients only. `None` is one.
    pub upstream: Option<&'a [f32]>,
}

/// The rows of the vocabulary that a rank holds.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a> {
    /// W_d `[V_d, H]`, of the dtype of X.
    pub weight: Matrix<'a>,
    /// Bias, V_d; added to the scaled logits.
    pub bias: Option<&'a [f32]>,
}

/// Where pass T adds its gradients.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// dW_d `[V_d, H]` row-major.
    pub dw: &'a mut [f32],
    /// Gradient of the bias, V_d.
    pub dbias: Option<&'a mut [f32]>,
}

/// Upstream gradient known only when pass T runs, on top of the reduction and of [`Batch::upstream`].
#[derive(Clone, Copy, Debug)]
pub enum Upstream<'a> {
    /// One.
    One,
    /// The same for all tokens, e.g. a loss scale.
    Scale(f32),
    /// One for each of the N tokens.
    Rows(&'a [f32]),
}

/// The output layer on one rank.
#[derive(Clone, Debug)]
pub struct OutputLayer<D: Device = Cpu> {
    device: D,
    layout: ShardLayout,
    rank: usize,
    loss: CrossEntropy,
    policy: Policy,
}

/// Everything about a microbatch that outlives pass S.
struct Job<'a, D: Device> {
    layer: OutputLayer<D>,
    kernels: D::Kernels,
    batch: Batch<'a>,
    shard: Shard<'a>,
    /// Rows of X that count.
    rows: Vec<u32>,
    /// Shard-local targets, padded to whole panels with -1.
    targets: Vec<i32>,
    /// Reduction times upstream of each token, padded with 0.
    upstream: Vec<f32>,
    agreement: String,
}

/// After pass S: local statistics, A and B.
pub struct Partial<'a, D: Device = Cpu> {
    job: Job<'a, D>,
    inputs: D::Inputs,
    rows: D::Rows,
    saved: Option<D::Saved>,
}

/// While the collective runs.
pub struct Merging<'a, D: Device = Cpu> {
    job: Job<'a, D>,
    inputs: D::Inputs,
    saved: Option<D::Saved>,
    pending: Pending,
    kept: Option<D::Rows>,
    comm: Local,
}

/// After the collective: results, and the ticket for pass T.
pub struct Done<'a, D: Device = Cpu> {
    /// The loss: one value, or N under reduction none. Ignored tokens have loss 0.
    pub loss: Vec<f32>,
    /// Log-sum-exp of the scaled logits, N. Ignored tokens have 0.
    pub lse: Vec<f32>,
    /// dX `[N, H]` row-major, shared by the ranks of a process.
    pub dx: Arc<Vec<f32>>,
    /// The ticket.
    pub weight_grad: WeightGrad<'a, D>,
}

/// The right to run pass T of a microbatch once. Many may be outstanding.
pub struct WeightGrad<'a, D: Device = Cpu> {
    job: Job<'a, D>,
    inputs: D::Inputs,
    saved: Option<D::Saved>,
    merged: D::Ticket,
}

impl<D: Device> OutputLayer<D> {
    /// The layer of `rank` in `layout`.
    ///
    /// # Errors
    /// [`Error::Layout`] if there is no such rank, [`Error::Option`] for an unusable option.
    pub fn new(
        device: &D,
        layout: &ShardLayout,
        rank: usize,
        loss: CrossEntropy,
        policy: Policy,
    ) -> Result<OutputLayer<D>> {
        check::rank(layout, rank)?;
        loss.validate()?;
        Ok(OutputLayer { device: device.clone(), layout: layout.clone(), rank, loss, policy })
    }

    /// Pass S: no communication.
    ///
    /// Every check of the inputs happens here, before any communication, from what all ranks see alike.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Dtype`] or [`Error::Target`] naming the tensor; [`Error::Kernel`] or
    /// [`Error::Option`] if there is no kernel for dtype or chunk; [`Error::Budget`].
    pub fn s_pass<'a>(&self, batch: Batch<'a>, shard: Shard<'a>) -> Result<Partial<'a, D>> {
        self.check(&batch, &shard)?;
        let kernels = self.device.kernels(batch.x.dtype(), self.policy.chunk)?;
        let rows = self.loss.active_rows(batch.targets, self.layout.vocab())?;
        let save = self.saves(&kernels, rows.len(), batch.x.columns())?;
        let job = self.job(kernels, batch, shard, rows);
        let pass = job.s_pass()?;
        let inputs = self.device.load(&job.kernels, &pass)?;
        let accumulate = self.policy.algorithm.accumulates();
        let (rows, saved) = self.device.s_pass(&job.kernels, &inputs, &pass, accumulate, save)?;
        Ok(Partial { job, inputs, rows, saved })
    }

    /// Pass T: adds the weight gradient of a microbatch. No communication, any time, in any order.
    ///
    /// # Errors
    /// [`Error::Shape`] for an output or upstream of the wrong length.
    pub fn t_pass(&self, mut ticket: WeightGrad<'_, D>, out: Gradients<'_>, upstream: Upstream<'_>) -> Result<()> {
        let saved = ticket.saved.take();
        let job = &ticket.job;
        let (rows, hidden) = (job.shard.weight.rows(), job.batch.x.columns());
        expect("dw", rows * hidden, out.dw.len())?;
        if let Some(dbias) = &out.dbias {
            expect("dbias", rows, dbias.len())?;
        }
        let mut scaled = job.upstream.clone();
        match upstream {
            Upstream::One => {}
            Upstream::Scale(scale) => scaled.iter_mut().for_each(|u| *u *= scale),
            Upstream::Rows(values) => {
                expect("upstream", job.batch.targets.len(), values.len())?;
                for (u, row) in scaled.iter_mut().zip(&job.rows) {
                    *u *= values[*row as usize];
                }
            }
        }
        let pass = job.s_pass()?;
        let sums = Sums { dw: out.dw, dbias: out.dbias };
        self.device.t_pass(&job.kernels, &ticket.inputs, &pass, &ticket.merged, saved, &scaled, sums)
    }

    fn check(&self, batch: &Batch<'_>, shard: &Shard<'_>) -> Result<()> {
        let (tokens, hidden) = (batch.x.rows(), batch.x.columns());
        if hidden == 0 {
            return Err(shape("x", "at least one column (H)", "0"));
        }
        let weight = &shard.weight;
        check::shard(&self.layout, self.rank, weight)?;
        if weight.columns() != hidden {
            return Err(shape("w", format!("{hidden} columns, as x has"), format!("{} columns", weight.columns())));
        }
        if weight.dtype() != batch.x.dtype() {
            return Err(Error::Dtype { tensor: "w", expected: batch.x.dtype(), found: weight.dtype() });
        }
        if let Some(bias) = shard.bias {
            expect("bias", weight.rows(), bias.len())?;
        }
        expect("targets", tokens, batch.targets.len())?;
        if let Some(upstream) = batch.upstream {
            expect("upstream", tokens, upstream.len())?;
        }
        if u32::try_from(tokens).is_err() {
            return Err(shape("x", "fewer than 2^32 rows", tokens.to_string()));
        }
        Ok(())
    }

    /// Whether pass S saves, within the memory budget.
    fn saves(&self, kernels: &D::Kernels, tokens: usize, hidden: usize) -> Result<bool> {
        let extent = Extent { tokens, hidden, classes: self.layout.classes(self.rank) };
        let saved = D::saved_bytes(kernels, extent);
        let needed = |save: bool| self.device.working_set(kernels, extent, save) + if save { saved } else { 0 };
        let budget = self.policy.memory_budget.unwrap_or(DEFAULT_BUDGET);
        let fits = |save: bool| self.policy.memory_budget.is_none() || needed(save) <= budget;
        let save = match self.policy.save {
            // From sizes alone: scratch depends on the number of threads, and results must not.
            Save::Auto => saved <= budget / 2,
            Save::Yes => true,
            Save::No => false,
        };
        if fits(save) { Ok(save) } else { Err(Error::Budget { budget, needed: needed(save) }) }
    }

    fn job<'a>(&self, kernels: D::Kernels, batch: Batch<'a>, shard: Shard<'a>, rows: Vec<u32>) -> Job<'a, D> {
        let owned = self.layout.range(self.rank);
        let classes = self.layout.classes(self.rank) as i64;
        let padded = rows.len().next_multiple_of(D::panel(&kernels));
        let factor = self.loss.token_factor(rows.len());
        let mut targets = vec![-1; padded];
        let mut upstream = vec![0.0; padded];
        for (token, row) in rows.iter().enumerate() {
            let local = batch.targets[*row as usize] - owned.start as i64;
            if (0..classes).contains(&local) {
                targets[token] = local as i32;
            }
            upstream[token] = factor * batch.upstream.map_or(1.0, |u| u[*row as usize]);
        }
        let agreement = self.agreement(&batch, shard.bias.is_some());
        Job { layer: self.clone(), kernels, batch, shard, rows, targets, upstream, agreement }
    }

    fn agreement(&self, batch: &Batch<'_>, bias: bool) -> String {
        let mut hasher = DefaultHasher::new();
        batch.targets.hash(&mut hasher);
        // X is not compared: that would cost a pass over it.
        batch.upstream.map(|u| u.iter().map(|u| u.to_bits()).collect::<Vec<_>>()).hash(&mut hasher);
        let CrossEntropy { reduction, normalizer, ignore_index, logit_scale } = self.loss;
        format!(
            "rows in {}, N {}, H {}, V {}, {} ranks with layout {:016x}, dtype {}, algorithm {}, reduction {reduction}, \
             normalizer {normalizer:?}, ignore_index {ignore_index:?}, logit_scale {logit_scale}, bias {bias}, targets and upstream {:016x}",
            self.device.place(),
            batch.x.rows(),
            batch.x.columns(),
            self.layout.vocab(),
            self.layout.ranks(),
            check::fingerprint(&self.layout),
            batch.x.dtype(),
            self.policy.algorithm,
            hasher.finish(),
        )
    }
}

impl<'a, D: Device> Job<'a, D> {
    fn classes(&self) -> usize {
        self.layer.layout.classes(self.layer.rank)
    }

    fn inputs(&self) -> LayerInputs<'a> {
        LayerInputs { classes: self.classes(), logit_scale: self.layer.loss.logit_scale, bias: self.shard.bias }
    }

    fn s_pass(&self) -> Result<SPass<'_>> {
        Ok(SPass {
            x: self.batch.x,
            // Padded rows of the vocabulary take no part.
            w: self.shard.weight.row_range(0..self.classes())?,
            inputs: self.inputs(),
            rows: &self.rows,
            targets: &self.targets,
        })
    }
}

impl<'a, D: Device> Partial<'a, D> {
    /// Names of the kernels that the passes of this microbatch call.
    pub fn kernels(&self) -> Vec<&'static str> {
        D::names(&self.job.kernels, self.saved.is_some())
    }

    /// Starts C1; does not wait. Every rank of the group does so in the same order.
    ///
    /// # Errors
    /// [`Error::Layout`] if `comm` is not this rank of a group of the layout's size.
    pub fn start_combine(self, comm: &Local) -> Result<Merging<'a, D>> {
        let Partial { job, inputs, rows, saved } = self;
        let layer = &job.layer;
        check::member(&layer.layout, layer.rank, comm)?;
        let algorithm = layer.policy.algorithm;
        let (pending, kept) = algorithm.start(comm, &job.agreement, &layer.device, &job.kernels, rows)?;
        Ok(Merging { job, inputs, saved, pending, kept, comm: comm.handle() })
    }
}

impl<'a, D: Device> Merging<'a, D> {
    /// Waits for all ranks.
    ///
    /// # Errors
    /// [`Error::Disagreement`] if a rank runs another job, [`Error::RankGone`] if one left.
    pub fn wait(self) -> Result<Done<'a, D>> {
        let Merging { job, inputs, mut saved, pending, kept, comm } = self;
        let algorithm = job.layer.policy.algorithm;
        let finish = Finish {
            job: FinishJob {
                inputs: job.inputs(),
                hidden: job.batch.x.columns(),
                rows: &job.rows,
                upstream: &job.upstream,
            },
            rows: job.batch.x.rows(),
        };
        let mut exchange = Exchange {
            device: &job.layer.device,
            kernels: &job.kernels,
            inputs: &inputs,
            pass: job.s_pass()?,
            agreement: &job.agreement,
            saved: saved.as_mut(),
        };
        let merged = algorithm.complete(&comm, pending, kept, &mut exchange, &finish)?;
        done(job, inputs, saved, &merged)
    }
}

fn done<'a, D: Device>(
    job: Job<'a, D>,
    inputs: D::Inputs,
    saved: Option<D::Saved>,
    merged: &Merged<D>,
) -> Result<Done<'a, D>> {
    let (device, blocks) = (&job.layer.device, blocks(merged));
    let (tokens, loss) = (job.batch.x.rows(), job.layer.loss);
    let ticket = device.ticket(&job.kernels, &blocks)?;
    let losses = device.output(&job.kernels, &blocks, "loss")?;
    let lse = device.output(&job.kernels, &blocks, "lse")?;
    Ok(Done {
        loss: loss.reduce(&losses[..job.rows.len()], &job.rows, tokens),
        lse: scatter(&lse, &job.rows, tokens),
        dx: merged.output.clone().unwrap_or_default(),
        weight_grad: WeightGrad { inputs, saved, merged: ticket, job },
    })
}

impl<D: Device> WeightGrad<'_, D> {
    /// Bytes of saved values that the ticket holds.
    pub fn saved_bytes(&self) -> usize {
        self.saved.as_ref().map_or(0, D::held)
    }

    /// Element type of the microbatch.
    pub fn dtype(&self) -> Dtype {
        self.job.batch.x.dtype()
    }
}
