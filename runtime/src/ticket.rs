//! Tickets: what a microbatch leaves for pass T. They own all that they hold.

use crate::batch::{Gradients, Operands, Upstream, Upstreams};
use crate::debug::shown;
use crate::filter::{Filter, Filtered};
use crate::job::Job;
use crate::passes::{FinishJob, Finished, Numerators, SPass, Sums, TPass};
use crate::{Cpu, Device, Dtype, Error, OutputLayer, Result};

/// What pass T of a microbatch needs besides X, and W where numerators were not saved. It holds no memory of the caller, who
/// may free or move X and W in between. Many may be outstanding, on any thread.
pub struct WeightGrad<D: Device = Cpu> {
    pub(crate) job: Job<D>,
    pub(crate) kept: D::Kept,
    pub(crate) saved: Option<D::Saved>,
    pub(crate) factors: Factors<D>,
}

/// What C1 leaves of the merged rows.
pub(crate) enum Factors<D: Device> {
    /// Factors of known upstream gradients.
    Known(D::Ticket),
    /// The statistics of all tokens, of which the factors are made when the upstream gradients are known.
    Later(D::Rows),
}

/// A ticket that pass T is given: by value for the last time, by reference for another time.
pub enum Spent<'t, D: Device = Cpu> {
    /// The pass frees what the ticket holds, and may overwrite it before.
    Once(Box<WeightGrad<D>>),
    /// The ticket stays as it is.
    Again(&'t WeightGrad<D>),
}

impl<D: Device> From<WeightGrad<D>> for Spent<'_, D> {
    fn from(ticket: WeightGrad<D>) -> Self {
        Spent::Once(Box::new(ticket))
    }
}

impl<'t, D: Device> From<&'t WeightGrad<D>> for Spent<'t, D> {
    fn from(ticket: &'t WeightGrad<D>) -> Self {
        Spent::Again(ticket)
    }
}

shown!(WeightGrad of job);

impl<D: Device> WeightGrad<D> {
    /// Bytes of saved values that the ticket holds.
    pub fn saved_bytes(&self) -> usize {
        self.saved.as_ref().map_or(0, D::held)
    }

    /// Whether pass T reads W again: nothing was saved.
    pub fn needs_weight(&self) -> bool {
        self.saved.is_none()
    }

    /// Element type of the microbatch.
    pub fn dtype(&self) -> Dtype {
        self.job.dtype
    }
}

impl<D: Device> OutputLayer<D> {
    /// Pass T: adds the weight gradient of a microbatch, and says what the gradient filter left out of it. No
    /// communication, any time, in any order, and any number of times if the ticket is given by reference.
    ///
    /// `operands` are X, and the shard where nothing was saved, with the values that pass S was given. `upstream` multiplies
    /// the gradients: that of the loss, and of lse if it was to come [later](crate::Batch::later).
    ///
    /// # Errors
    /// [`Error::Shape`] for operands, an output or upstream of the wrong shape, or W that is missing; [`Error::Dtype`] if X or W are of
    /// another type than in pass S, or dW is neither f32 nor of the type of W; [`Error::Option`] if W is frozen, for a ticket of
    /// another layer, or an upstream gradient of lse that was not to come.
    pub fn t_pass<'t, 'u>(
        &self,
        ticket: impl Into<Spent<'t, D>>,
        operands: Operands<'_>,
        mut out: Gradients<'_>,
        upstream: impl Into<Upstreams<'u>>,
    ) -> Result<Filtered>
    where
        D: 't,
    {
        if self.policy.frozen_weight {
            let message = "expected a weight that is not frozen: pass S has kept nothing for pass T".to_owned();
            return Err(Error::Option { option: "frozen_weight", message });
        }
        let (spent, upstream) = (ticket.into(), upstream.into());
        let (mut once, again);
        let (ticket, saved) = match spent {
            Spent::Once(ticket) => {
                once = ticket;
                let saved = once.saved.take().map(Numerators::Once);
                (&*once, saved)
            }
            Spent::Again(ticket) => {
                again = ticket;
                (again, again.saved.as_ref().map(Numerators::Again))
            }
        };
        let job = &ticket.job;
        self.check_ticket(job)?;
        job.check_gradients((out.dw.len(), out.dw.dtype()), out.dbias.as_ref().map(|dbias| dbias.len()))?;
        job.check_upstreams(&upstream)?;
        if saved.is_none() && operands.shard.is_none() {
            let expected = "the rows of the vocabulary, as pass S has saved nothing".to_owned();
            return Err(Error::Shape { tensor: "w", expected, found: "none".to_owned() });
        }
        let filter = self.policy.filter.map(Filter::new);
        let pass = SPass { filter: filter.as_ref(), ..job.pass(&operands)? };
        // What the pass does not visit: padding, and everything if no token counts.
        let visited = if job.rows.is_empty() { 0 } else { job.classes() * job.hidden };
        out.dw.clear_from(visited);
        if visited == 0 {
            return Ok(Filtered::default());
        }
        let made;
        let (merged, upstream) = match &ticket.factors {
            Factors::Known(merged) => (merged, upstream.loss),
            Factors::Later(rows) => {
                made = job.factors(rows, upstream)?;
                (&made, Upstream::One)
            }
        };
        let upstream = upstream.values(&job.rows, job.targets.len());
        let sums = Sums { dw: out.dw, dbias: out.dbias };
        let pass = TPass { pass, kept: &ticket.kept, ticket: merged, saved, upstream: &upstream, sums };
        job.layer.device.t_pass(&job.kernels, pass)?;
        Ok(filter.map_or_else(Filtered::default, |f| f.count()))
    }

    fn check_ticket(&self, job: &Job<D>) -> Result<()> {
        let of = &job.layer;
        let same =
            (self.rank, &self.layout, &self.programs, self.policy) == (of.rank, &of.layout, &of.programs, of.policy);
        if same && self.device.place() == of.device.place() {
            return Ok(());
        }
        let message =
            "expected a ticket of this layer, or of one with the same device, layout, rank, loss and policy".to_owned();
        Err(Error::Option { option: "ticket", message })
    }
}

impl<D: Device> Job<D> {
    /// Factors from the statistics of all tokens, once the upstream gradients are known.
    fn factors(&self, rows: &D::Rows, upstreams: Upstreams<'_>) -> Result<D::Ticket> {
        let (device, values) = (&self.layer.device, self.with_upstreams(upstreams));
        let finish = FinishJob { inputs: self.inputs(None), hidden: self.hidden, rows: &self.rows, values: &values };
        let all = 0..self.rows.len();
        let results = device.finish(&self.kernels, rows, all.clone(), &finish, &[], None)?;
        device.ticket(&self.kernels, &[Finished { tokens: all, rows, results: &results }])
    }
}
