//! The output layer: passes S, C1 and T of one rank, in an order that the types enforce.

use crate::algorithm::{Exchange, blocks};
use crate::batch::{Batch, Later, Operands, Shard};
use crate::check;
use crate::comm::{Finish, Local, MergeRows, Merged, Pending, Turn};
use crate::debug::shown;
use crate::filter::{Filter, Filtered};
use crate::input_grad::InputGrad;
use crate::job::Job;
use crate::loss::{RowLoss, RowPrograms};
use crate::passes::{Extent, FinishJob};
use crate::plans::Plans;
use crate::ticket::{Factors, WeightGrad};
use crate::{Cpu, CrossEntropy, Device, Error, Policy, Result, Save, ShardLayout};
use std::sync::Arc;

/// The output layer on one rank.
#[derive(Clone, Debug)]
pub struct OutputLayer<D: Device = Cpu> {
    pub(crate) device: D,
    pub(crate) layout: Arc<ShardLayout>,
    pub(crate) rank: usize,
    pub(crate) loss: CrossEntropy,
    pub(crate) programs: Arc<RowPrograms>,
    pub(crate) policy: Policy,
    plans: Plans<D>,
}

/// After pass S: local statistics, A and B.
#[must_use = "dropped, it ends C1 for all ranks"]
pub struct Partial<'a, D: Device = Cpu> {
    job: Job<D>,
    operands: Operands<'a>,
    targets: &'a [i64],
    inputs: D::Inputs,
    rows: D::Rows,
    kept: Option<D::Rows>,
    saved: Option<D::Saved>,
    turn: Turn,
    comm: Local,
}

/// While the collective runs.
#[must_use = "dropped, it ends C1 for all ranks"]
pub struct Merging<'a, D: Device = Cpu> {
    job: Job<D>,
    operands: Operands<'a>,
    targets: &'a [i64],
    inputs: D::Inputs,
    saved: Option<D::Saved>,
    pending: Pending,
    kept: Option<D::Rows>,
    comm: Local,
}

/// After the collective: results, and the ticket for pass T.
#[must_use = "it holds the results and the ticket for pass T"]
pub struct Done<D: Device = Cpu> {
    /// The loss: one value, or N under reduction none. Ignored tokens have loss 0.
    pub loss: Vec<f32>,
    /// Log-sum-exp of the logits, N. Ignored tokens have 0.
    pub lse: Vec<f32>,
    /// Class of the largest logit, N, the lowest of equals; if it was asked for. Ignored tokens and those without a largest
    /// logit (a NaN, or all -inf) have -1.
    pub argmax: Option<Vec<i64>>,
    /// dX `[N, H]` row-major, shared by the ranks of a process; empty if X is frozen or upstream gradients come later.
    pub dx: Arc<Vec<f32>>,
    /// What dX is made of once its upstream gradients are known, if some come [later](Batch::later) and X is not frozen.
    pub input_grad: Option<InputGrad>,
    /// What the gradient filter left out of this rank's share of dX.
    pub filtered: Filtered,
    /// The ticket.
    pub weight_grad: WeightGrad<D>,
    accuracy: Option<f64>,
}

shown!(Partial<'_> of job, Merging<'_> of job, Done of weight_grad.job);

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
        let (layout, programs) = (Arc::new(layout.clone()), Arc::new(programs));
        Ok(OutputLayer { device: device.clone(), layout, rank, loss, programs, policy, plans: Plans::default() })
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
        let operands = Operands::new(batch.x, shard);
        let pass = || {
            check::member(&self.layout, self.rank, comm)?;
            batch.check(self.layout.vocab())?;
            shard.check(&self.layout, self.rank, &batch.x)?;
            let dtype = batch.x.dtype();
            let find = || self.device.kernels(&self.programs.name, dtype, self.policy.chunk);
            let kernels = self.plans.get(dtype, find)?;
            if self.loss.argmax && !D::gives(&kernels, "argmax") {
                let message = format!("expected false: loss {} gives none", self.programs.name);
                return Err(Error::Option { option: "argmax", message });
            }
            let rows = self.loss.active_rows(batch.targets, self.layout.vocab())?;
            let save = self.saves(&kernels, rows.len(), batch.x.columns())?;
            let job = Job::new(self.clone(), kernels, &batch, shard.bias.is_some(), rows);
            let pass = job.pass(&operands)?;
            let inputs = self.device.load(&job.kernels, &pass)?;
            let accumulate = self.policy.algorithm.accumulates() && !self.policy.frozen_input;
            let (rows, saved) = self.device.s_pass(&job.kernels, &inputs, &pass, accumulate, save)?;
            let (rows, kept) = self.policy.algorithm.first(&self.device, &job.kernels, rows)?;
            Ok((job, inputs, rows, kept, saved))
        };
        let (turn, (job, inputs, rows, kept, saved)) = comm.turn().after(pass)?;
        Ok(Partial { job, operands, targets: batch.targets, inputs, rows, kept, saved, turn, comm: comm.handle() })
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
        let Partial { job, operands, targets, inputs, rows, kept, saved, turn, comm } = self;
        let pending = MergeRows::<D>::start(turn, &job.agreement, rows);
        Merging { job, operands, targets, inputs, saved, pending, kept, comm }
    }
}

impl<D: Device> Merging<'_, D> {
    /// Waits for all ranks. They must wait for the microbatches of a group in one order, which may be any: a rank makes its
    /// block of the result while it waits.
    ///
    /// # Errors
    /// [`Error::Disagreement`] if a rank runs another job, [`Error::RankGone`] if one left or dropped its part, and the
    /// error of a rank that failed.
    pub fn wait(self) -> Result<Done<D>> {
        let Merging { job, operands, targets, inputs, mut saved, pending, kept, comm } = self;
        let algorithm = job.layer.policy.algorithm;
        let values: Vec<_> = job.later.parts().iter().map(|part| job.part(*part)).collect();
        let part = |values| FinishJob {
            inputs: job.inputs(operands.shard.and_then(|shard| shard.bias)),
            hidden: job.hidden,
            rows: &job.rows,
            values,
        };
        let finish = Finish {
            parts: values.iter().map(|values| part(values)).collect(),
            dx_rows: (!job.layer.policy.frozen_input).then_some(job.tokens),
        };
        let mut exchange = Exchange {
            device: &job.layer.device,
            kernels: &job.kernels,
            inputs: &inputs,
            pass: job.pass(&operands)?,
            agreement: &job.agreement,
            saved: saved.as_mut(),
        };
        let merged = algorithm.complete(&comm, pending, kept, &mut exchange, &finish)?;
        done(job, targets, D::keep(inputs), saved, &merged)
    }
}

fn done<D: Device>(
    job: Job<D>,
    targets: &[i64],
    kept: D::Kept,
    saved: Option<D::Saved>,
    merged: &Merged<D>,
) -> Result<Done<D>> {
    let device = &job.layer.device;
    let finished: Vec<_> = merged.blocks.iter().filter_map(|block| block.finished()).collect();
    let output = |name| device.output(&job.kernels, &finished, name);
    let lse = output("lse")?;
    let argmax = job.layer.loss.argmax.then(|| output("argmax")).transpose()?;
    let argmax = argmax.map(|ids| job.scatter(ids.into_iter().map(|id| id as i64), -1));
    let right = |ids: &Vec<i64>| {
        let hit = |row: &&u32| ids[**row as usize] == targets[**row as usize];
        job.rows.iter().filter(hit).count() as f64 / job.rows.len().max(1) as f64
    };
    let (dx, input_grad) = match (job.later, &merged.output) {
        (Later::Nothing, dx) => (dx.clone().unwrap_or_default(), None),
        (_, parts) => (Arc::default(), parts.clone().map(|parts| InputGrad::new(&job, parts))),
    };
    let factors = match job.later {
        Later::Nothing => Factors::Known(device.ticket(&job.kernels, &finished)?),
        _ => Factors::Later(device.concatenate(&job.kernels, &blocks(merged))?),
    };
    Ok(Done {
        loss: job.losses(&output("loss")?),
        lse: job.scatter(lse, 0.0),
        accuracy: argmax.as_ref().map(right),
        argmax,
        dx,
        input_grad,
        filtered: job.filter.as_ref().map_or_else(Filtered::default, Filter::count),
        weight_grad: WeightGrad { factors, kept, saved, job },
    })
}

impl<D: Device> Done<D> {
    /// Share of the tokens that count whose target has the largest logit, 0 to 1, if [`Done::argmax`] was asked for; 0 of
    /// none.
    pub fn accuracy(&self) -> Option<f64> {
        self.accuracy
    }
}
