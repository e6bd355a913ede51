//! The output layer: passes S, C1 and T of one rank, in an order that the types enforce.

use crate::algorithm::{Exchange, blocks};
use crate::batch::{Batch, Gradients, Shard, Upstream};
use crate::check::{self, expect};
use crate::comm::{Finish, Local, MergeRows, Merged, Pending, Turn};
use crate::filter::{Filter, Filtered};
use crate::job::Job;
use crate::loss::{RowLoss, RowPrograms};
use crate::passes::{Extent, FinishJob, SPass, Sums, TPass};
use crate::{Cpu, CrossEntropy, Device, Dtype, Error, Policy, Result, Save, ShardLayout};
use std::sync::Arc;

/// The output layer on one rank.
#[derive(Clone, Debug)]
pub struct OutputLayer<D: Device = Cpu> {
    pub(crate) device: D,
    pub(crate) layout: ShardLayout,
    pub(crate) rank: usize,
    pub(crate) loss: CrossEntropy,
    pub(crate) programs: RowPrograms,
    pub(crate) policy: Policy,
}

/// After pass S: local statistics, A and B.
pub struct Partial<'a, D: Device = Cpu> {
    job: Job<'a, D>,
    inputs: D::Inputs,
    rows: D::Rows,
    kept: Option<D::Rows>,
    saved: Option<D::Saved>,
    turn: Turn,
    comm: Local,
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
    /// Log-sum-exp of the logits, N. Ignored tokens have 0.
    pub lse: Vec<f32>,
    /// Class of the largest logit, N, the lowest of equals; if it was asked for. Ignored tokens and those without a largest
    /// logit (a NaN, or all -inf) have -1.
    pub argmax: Option<Vec<i64>>,
    /// dX `[N, H]` row-major, shared by the ranks of a process; empty if X is frozen.
    pub dx: Arc<Vec<f32>>,
    /// What the gradient filter left out of this rank's share of dX.
    pub filtered: Filtered,
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
        let programs = loss.programs(layout.vocab());
        OutputLayer::of(device, layout, rank, loss, programs, policy)
    }

    /// The layer of `rank` in `layout` with a loss of one's own.
    ///
    /// # Errors
    /// As [`OutputLayer::new`], also for an option that only cross-entropy has. Whether there are kernels for the loss, and
    /// whether it gives an argmax, is known in pass S.
    pub fn with_loss(
        device: &D,
        layout: &ShardLayout,
        rank: usize,
        loss: RowLoss,
        policy: Policy,
    ) -> Result<OutputLayer<D>> {
        let mut programs = RowPrograms { name: loss.name, uniforms: loss.uniforms };
        loss.options.check_of_own_loss()?;
        programs.uniforms.insert("logit_scale".to_owned(), loss.options.logit_scale);
        OutputLayer::of(device, layout, rank, loss.options, programs, policy)
    }

    fn of(
        device: &D,
        layout: &ShardLayout,
        rank: usize,
        loss: CrossEntropy,
        programs: RowPrograms,
        policy: Policy,
    ) -> Result<OutputLayer<D>> {
        check::rank(layout, rank)?;
        loss.validate(layout.vocab())?;
        policy.validate()?;
        Ok(OutputLayer { device: device.clone(), layout: layout.clone(), rank, loss, programs, policy })
    }

    /// Pass S: local work. It takes the rank's place in C1, without waiting; every rank of the group does so in the same
    /// order. Every check of the inputs happens here.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Dtype`] or [`Error::Target`] naming the tensor; [`Error::Kernel`] or
    /// [`Error::Option`] if there is no kernel for dtype, chunk or loss, or the loss does not give what is asked for;
    /// [`Error::Budget`]; [`Error::Layout`] if `comm` is not this rank of a group of the layout's size. An error on one
    /// rank is that of C1 on all others.
    pub fn s_pass<'a>(&self, comm: &Local, batch: Batch<'a>, shard: Shard<'a>) -> Result<Partial<'a, D>> {
        let pass = || {
            check::member(&self.layout, self.rank, comm)?;
            batch.check(self.layout.vocab())?;
            shard.check(&self.layout, self.rank, &batch.x)?;
            let kernels = self.device.kernels(&self.programs.name, batch.x.dtype(), self.policy.chunk)?;
            if self.loss.argmax && !D::gives(&kernels, "argmax") {
                let message = format!("expected false: loss {} gives none", self.programs.name);
                return Err(Error::Option { option: "argmax", message });
            }
            let rows = self.loss.active_rows(batch.targets, self.layout.vocab())?;
            let save = self.saves(&kernels, rows.len(), batch.x.columns())?;
            let job = Job::new(self.clone(), kernels, batch, shard, rows);
            let pass = job.s_pass()?;
            let inputs = self.device.load(&job.kernels, &pass)?;
            let accumulate = self.policy.algorithm.accumulates() && !self.policy.frozen_input;
            let (rows, saved) = self.device.s_pass(&job.kernels, &inputs, &pass, accumulate, save)?;
            let (rows, kept) = self.policy.algorithm.first(&self.device, &job.kernels, rows)?;
            Ok((job, inputs, rows, kept, saved))
        };
        let (turn, (job, inputs, rows, kept, saved)) = comm.turn().after(pass)?;
        Ok(Partial { job, inputs, rows, kept, saved, turn, comm: comm.handle() })
    }

    /// Pass T: adds the weight gradient of a microbatch, and says what the gradient filter left out of it. No
    /// communication, any time, in any order.
    ///
    /// # Errors
    /// [`Error::Shape`] for an output or upstream of the wrong length, [`Error::Dtype`] if dW is neither f32 nor of the
    /// type of W, [`Error::Option`] if W is frozen.
    pub fn t_pass(
        &self,
        mut ticket: WeightGrad<'_, D>,
        mut out: Gradients<'_>,
        upstream: Upstream<'_>,
    ) -> Result<Filtered> {
        if self.policy.frozen_weight {
            let message = "expected a weight that is not frozen: pass S has kept nothing for pass T".to_owned();
            return Err(Error::Option { option: "frozen_weight", message });
        }
        let saved = ticket.saved.take();
        let job = &ticket.job;
        let (rows, hidden) = (job.shard.weight.rows(), job.batch.x.columns());
        expect("dw", rows * hidden, out.dw.len())?;
        if ![Dtype::F32, job.shard.weight.dtype()].contains(&out.dw.dtype()) {
            return Err(Error::Dtype { tensor: "dw", expected: job.shard.weight.dtype(), found: out.dw.dtype() });
        }
        if let Some(dbias) = &out.dbias {
            expect("dbias", rows, dbias.len())?;
        }
        let upstream = upstream.values(&job.rows, job.batch.targets.len(), job.targets.len())?;
        let filter = self.policy.filter.map(Filter::new);
        let pass = SPass { filter: filter.as_ref(), ..job.s_pass()? };
        // What the pass does not visit: padding, and everything if no token counts.
        let visited = if job.rows.is_empty() { 0 } else { job.classes() * hidden };
        out.dw.clear_from(visited);
        if visited == 0 {
            return Ok(Filtered::default());
        }
        let sums = Sums { dw: out.dw, dbias: out.dbias };
        let (inputs, merged) = (&ticket.inputs, &ticket.merged);
        let pass = TPass { pass, inputs, ticket: merged, saved, upstream: &upstream, sums };
        self.device.t_pass(&job.kernels, pass)?;
        Ok(filter.map_or_else(Filtered::default, |f| f.count()))
    }

    /// Whether pass S saves, within the memory budget.
    fn saves(&self, kernels: &D::Kernels, tokens: usize, hidden: usize) -> Result<bool> {
        let Policy { save, frozen_weight, memory_budget, .. } = self.policy;
        let can_save = D::can_save(kernels) && !frozen_weight;
        if save == Save::Yes && !can_save && !frozen_weight {
            let message = format!("expected auto or no: the gradient of {} is made from logits", self.programs.name);
            return Err(Error::Option { option: "save", message });
        }
        let extent = Extent { tokens, hidden, classes: self.layout.classes(self.rank) };
        let saved = D::saved_bytes(kernels, extent);
        let wanted = can_save && self.policy.saves(saved);
        let Some(budget) = memory_budget else { return Ok(wanted) };
        let needed = |saves: bool| {
            let demand = self.policy.demand(self.layout.ranks(), saves);
            self.device.working_set(kernels, extent, demand) + if saves { saved } else { 0 }
        };
        // Whoever leaves it to the layer wants no error where recomputing fits.
        let ways = if wanted && save == Save::Auto { vec![true, false] } else { vec![wanted] };
        let fits = ways.iter().copied().find(|saves| needed(*saves) <= budget);
        let least = || ways.iter().map(|saves| needed(*saves)).min().unwrap_or(0);
        fits.ok_or_else(|| Error::Budget { budget, needed: least() })
    }
}

impl<'a, D: Device> Partial<'a, D> {
    /// Names of the kernels that the passes of this microbatch call.
    pub fn kernels(&self) -> Vec<&'static str> {
        D::names(&self.job.kernels, self.saved.is_some())
    }

    /// Starts C1; does not wait.
    pub fn start_combine(self) -> Merging<'a, D> {
        let Partial { job, inputs, rows, kept, saved, turn, comm } = self;
        let pending = MergeRows::<D>::start(turn, &job.agreement, rows);
        Merging { job, inputs, saved, pending, kept, comm }
    }
}

impl<'a, D: Device> Merging<'a, D> {
    /// Waits for all ranks. They must wait for the microbatches of a group in one order, which may be any: a rank makes its
    /// block of the result while it waits.
    ///
    /// # Errors
    /// [`Error::Disagreement`] if a rank runs another job, [`Error::RankGone`] if one left or dropped its part, and the
    /// error of a rank that failed.
    pub fn wait(self) -> Result<Done<'a, D>> {
        let Merging { job, inputs, mut saved, pending, kept, comm } = self;
        let algorithm = job.layer.policy.algorithm;
        let finish = Finish {
            job: FinishJob {
                inputs: job.inputs(),
                hidden: job.batch.x.columns(),
                rows: &job.rows,
                tokens: &job.tokens,
            },
            dx_rows: (!job.layer.policy.frozen_input).then(|| job.batch.x.rows()),
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
    let output = |name| device.output(&job.kernels, &blocks, name);
    let lse = output("lse")?;
    let argmax = job.layer.loss.argmax.then(|| output("argmax")).transpose()?;
    Ok(Done {
        loss: job.losses(&output("loss")?),
        lse: job.scatter(lse, 0.0),
        argmax: argmax.map(|ids| job.scatter(ids.into_iter().map(|id| id as i64), -1)),
        dx: merged.output.clone().unwrap_or_default(),
        filtered: job.filter.as_ref().map_or_else(Filtered::default, Filter::count),
        weight_grad: WeightGrad { merged: device.ticket(&job.kernels, &blocks)?, inputs, saved, job },
    })
}

impl<D: Device> Done<'_, D> {
    /// Share of the tokens that count whose target has the largest logit, 0 to 1, if [`Done::argmax`] was asked for; 0 of
    /// none.
    pub fn accuracy(&self) -> Option<f64> {
        let job = &self.weight_grad.job;
        let right = |ids: &Vec<i64>| {
            let hit = |row: &&u32| ids[**row as usize] == job.batch.targets[**row as usize];
            job.rows.iter().filter(hit).count() as f64 / job.rows.len().max(1) as f64
        };
        self.argmax.as_ref().map(right)
    }
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
