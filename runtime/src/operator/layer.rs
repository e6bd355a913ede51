//! Operators of one rank, in an order that the types enforce.

use super::distribution::{Bits, Distribution};
use super::operation::{Asked, Ids, KlDirection, Operation, ValueGradients};
use super::passes::{DistributionGradients, GradientJob, NamedRows, RowJob};
use super::selection::Selection;
use super::state::{Block, MergeStatistics, RowState};
use super::sum::SumInputs;
use crate::buffer::Buffer;
use crate::check::{self, expect, fingerprint, shape};
use crate::comm::{Local, Pending, Turn};
use crate::debug::shown;
use crate::{Cpu, Device, Error, Result, ShardLayout};
use std::sync::Arc;
use vocabfuse_codegen::Operator;
use vocabfuse_codegen::program::NO_REFERENCE;

/// Operators on one rank, over the same shards as an [`OutputLayer`](crate::OutputLayer).
#[derive(Clone, Debug)]
pub struct Operators<D: Device = Cpu> {
    device: D,
    layout: ShardLayout,
    rank: usize,
}

/// Everything about an evaluation that outlives the first phase. Nothing of it points at memory of the caller.
struct Job<D: Device> {
    layer: Operators<D>,
    operator: Operator,
    asked: Asked,
    kernels: D::OperatorKernels,
    /// Tokens that take part.
    rows: Vec<u32>,
    selection: Selection,
    agreement: String,
}

/// After the first pass over the logits: statistics of the rank's own rows.
#[must_use = "dropped, it ends the collective for all ranks"]
pub struct Statistics<D: Device = Cpu> {
    job: Arc<Job<D>>,
    state: RowState,
    turn: Turn,
}

/// While the first collective runs.
#[must_use = "dropped, it ends the collective for all ranks"]
pub struct Evaluating<D: Device = Cpu> {
    job: Arc<Job<D>>,
    pending: Pending,
}

/// After the first collective.
#[must_use = "it holds the values"]
pub struct Evaluated<D: Device = Cpu> {
    /// The same on all ranks.
    pub values: Values,
    /// For [`Operators::backward`]; drop it where no gradient is wanted.
    pub ticket: Ticket<D>,
}

/// What an operator has found out; what it does not compute is empty. A token whose logits are all -inf has no distribution:
/// its values are NaN. A NaN logit makes the values of its own token NaN. Both have the id -1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// Log-probabilities, row-major: `[N, k]` of the selected ids ([`Ids::per_token`] is k, also where that is 1) or of the
    /// k largest, `[N]` of the sampled ones; 0 for ignored ids.
    pub logprobs: Vec<f32>,
    /// Entropies, N.
    pub entropy: Vec<f32>,
    /// Divergences, N; +inf where the first distribution has mass on an id that the second excludes.
    pub divergence: Vec<f32>,
    /// The largest ids `[N, k]`, or the sampled ones `[N]`.
    pub ids: Vec<i64>,
    /// Logits of those, in the same shape, after all options.
    pub logits: Vec<f32>,
}

/// What differentiating an evaluation needs besides its distributions. It holds no memory of the caller, and can be used any
/// number of times, on any thread.
pub struct Ticket<D: Device = Cpu> {
    job: Arc<Job<D>>,
    /// References and results.
    rows: NamedRows,
}

/// After the second pass: the rank's part of the gradients of X.
pub struct InputGradients<D: Device = Cpu> {
    own: OwnParts<D>,
    /// None of given logits.
    turn: Option<Turn>,
}

/// A rank's parts of dX, `[tokens, H]` of each distribution, and what ranks must agree on to sum them.
struct OwnParts<D: Device> {
    job: Arc<Job<D>>,
    parts: Vec<Option<Vec<f32>>>,
    agreement: String,
}

/// While the second collective runs.
#[must_use = "dropped, it ends the collective for all ranks"]
pub struct SummingInputs<D: Device = Cpu> {
    job: Arc<Job<D>>,
    wanted: Vec<bool>,
    pending: Option<Pending>,
}

shown!(
    Statistics of job,
    Evaluating of job,
    Evaluated of ticket.job,
    Ticket of job,
    InputGradients of own.job,
    SummingInputs of job,
);

impl<D: Device> Operators<D> {
    /// Operators of `rank` in `layout`.
    ///
    /// # Errors
    /// [`Error::Layout`] if there is no such rank.
    pub fn new(device: &D, layout: &ShardLayout, rank: usize) -> Result<Operators<D>> {
        check::rank(layout, rank)?;
        Ok(Operators { device: device.clone(), layout: layout.clone(), rank })
    }

    /// Log-probabilities of given ids.
    ///
    /// This and all other operators take the rank's place in the first collective, without waiting; every rank of the group
    /// does so in the same order.
    ///
    /// # Errors
    /// Of this and of all other operators: [`Error::Shape`], [`Error::Dtype`] or [`Error::Id`] naming the tensor;
    /// [`Error::Option`] for an unusable option; [`Error::Kernel`] if there is no kernel; [`Error::Layout`] if `comm` is not
    /// this rank of a group of the layout's size. An error on one rank is that of the collective on all others.
    pub fn logprobs(&self, comm: &Local, of: Distribution<'_>, ids: Ids<'_>) -> Result<Statistics<D>> {
        self.evaluate(comm, Operation { ids: Some(ids), ..Operation::of("logprobs", vec![of]) })
    }

    /// Entropies.
    ///
    /// # Errors
    /// See [`Operators::logprobs`].
    pub fn entropy(&self, comm: &Local, of: Distribution<'_>) -> Result<Statistics<D>> {
        self.evaluate(comm, Operation::of("entropy", vec![of]))
    }

    /// Log-probabilities of given ids and entropies, in one pass.
    ///
    /// # Errors
    /// See [`Operators::logprobs`].
    pub fn logprobs_and_entropy(&self, comm: &Local, of: Distribution<'_>, ids: Ids<'_>) -> Result<Statistics<D>> {
        self.evaluate(comm, Operation { ids: Some(ids), ..Operation::of("logprobs_entropy", vec![of]) })
    }

    /// Divergence of two distributions over the same shards; they may have different H, dtypes and options.
    ///
    /// # Errors
    /// See [`Operators::logprobs`].
    pub fn kl_divergence(
        &self,
        comm: &Local,
        student: Distribution<'_>,
        teacher: Distribution<'_>,
        direction: KlDirection,
    ) -> Result<Statistics<D>> {
        let [p, q] = match direction {
            KlDirection::Forward => [teacher, student],
            KlDirection::Reverse => [student, teacher],
        };
        let swapped = direction == KlDirection::Forward;
        self.evaluate(comm, Operation { swapped, ..Operation::of("kl_divergence", vec![p, q]) })
    }

    /// The `k` largest logits of all shards, the largest first, with their ids; of equal ones the lowest ids.
    ///
    /// # Errors
    /// See [`Operators::logprobs`]; [`Error::Option`] unless `k` is 1 to V.
    pub fn top_k(&self, comm: &Local, of: Distribution<'_>, k: usize) -> Result<Statistics<D>> {
        self.evaluate(comm, Operation { top: k, ..Operation::of("top_k", vec![of]) })
    }

    /// One id a token, drawn from its distribution. The draw depends on the seed, on the position of the token and on its
    /// logits; on the number of ranks only as far as that changes the rounding of logits.
    ///
    /// # Errors
    /// See [`Operators::logprobs`]; [`Error::Layout`] for an empty vocabulary.
    pub fn sample(&self, comm: &Local, of: Distribution<'_>, seed: u64) -> Result<Statistics<D>> {
        self.evaluate(comm, Operation { top: 1, seed, ..Operation::of("sample", vec![of]) })
    }

    fn evaluate(&self, comm: &Local, operation: Operation<'_>) -> Result<Statistics<D>> {
        let (turn, (job, state)) = comm.turn().after(|| {
            check::member(&self.layout, self.rank, comm)?;
            self.statistics(operation)
        })?;
        Ok(Statistics { job, state, turn })
    }

    fn statistics(&self, operation: Operation<'_>) -> Result<(Arc<Job<D>>, RowState)> {
        operation.check(&self.layout, self.rank)?;
        let known = vocabfuse_codegen::operator::all().map_err(|e| Error::Compile(e.to_string()))?;
        let operator = known.into_iter().find(|o| o.name == operation.name);
        let operator = operator.ok_or_else(|| Error::Compile(format!("no operator {}", operation.name)))?;
        let kernels = self.device.operator_kernels(&operator, &operation.distributions)?;
        let rows = operation.rows();
        let (panel, classes) = (D::row_panel(&kernels), self.layout.classes(self.rank));
        let first = self.layout.range(self.rank).start;
        let stride = rows.len().next_multiple_of(panel);
        let selection = Selection::new(operation.ids, &rows, self.layout.class_range(self.rank), stride);
        let distributions =
            operation.distributions.iter().map(|d| d.classes(classes)).collect::<Result<Vec<Distribution<'_>>>>()?;
        let agreement = format!(
            "{}, rows {}, V {}, {} ranks with layout {:016x}",
            operation.agreement(),
            D::host_rows(&kernels).form(),
            self.layout.vocab(),
            self.layout.ranks(),
            fingerprint(&self.layout)
        );
        let layer = self.clone();
        let asked = operation.asked();
        let job = Arc::new(Job { layer, operator, asked, kernels, rows, selection, agreement });
        let mut state = self.device.statistics(&job.kernels, &job.rows(&distributions))?;
        if let Some(top) = &mut state.top {
            top.globalise(first)?;
        }
        Ok((job, state))
    }

    /// The second pass: adds the gradients of the rank's own rows, for any upstream gradients. `distributions` are those that
    /// were evaluated, with the same values, in memory that may be another one. `gradients` are theirs, in the same order:
    /// that in which the operator takes them. A frozen operand is left out of them.
    ///
    /// It takes the rank's place in the second collective, without waiting, unless there is none: that is so for given logits
    /// alone, which have no X.
    ///
    /// # Errors
    /// [`Error::Shape`] for an upstream gradient or output of the wrong length; [`Error::Option`] for one that the
    /// operator or the distribution does not have, for other distributions, or for a ticket of other operators;
    /// [`Error::Layout`] if `comm` is not this rank of a group of the layout's size. An error on one rank is that of the
    /// collective on all others.
    pub fn backward(
        &self,
        comm: &Local,
        ticket: &Ticket<D>,
        distributions: &[Distribution<'_>],
        upstream: ValueGradients<'_>,
        gradients: Vec<DistributionGradients<'_>>,
    ) -> Result<InputGradients<D>> {
        let from_x = ticket.job.asked.hidden.iter().any(Option::is_some);
        let work = || {
            check::member(&self.layout, self.rank, comm)?;
            let of = &ticket.job.layer;
            if (self.rank, &self.layout, self.device.place()) != (of.rank, &of.layout, of.device.place()) {
                let message = "expected a ticket of these operators: the same device, layout and rank".to_owned();
                return Err(Error::Option { option: "ticket", message });
            }
            ticket.differentiate(distributions, upstream, gradients)
        };
        if !from_x {
            return Ok(InputGradients { own: work()?, turn: None });
        }
        let (turn, own) = comm.turn().after(work)?;
        Ok(InputGradients { own, turn: Some(turn) })
    }
}

impl<D: Device> Ticket<D> {
    fn differentiate(
        &self,
        distributions: &[Distribution<'_>],
        upstream: ValueGradients<'_>,
        mut gradients: Vec<DistributionGradients<'_>>,
    ) -> Result<OwnParts<D>> {
        let (job, asked) = (&self.job, &self.job.asked);
        let mut distributions = distributions.to_vec();
        if asked.swapped {
            distributions.reverse();
        }
        asked.check(&distributions, &job.layer.layout, job.layer.rank)?;
        if gradients.len() != distributions.len() || job.operator.gradients.is_empty() {
            let (expected, found) = (job.operator.gradients.len(), gradients.len());
            let message = format!("expected those of {expected} distributions of {}, got {found}", asked.name);
            return Err(Error::Option { option: "gradients", message });
        }
        if asked.swapped {
            gradients.reverse();
        }
        job.check_outputs(&gradients, &distributions)?;
        let (weights, upstreams) = job.upstreams(&upstream)?;
        let mut rows = self.rows.clone();
        rows.extend(upstreams);
        let seen = [upstream.logprobs, upstream.entropy, upstream.divergence].map(|u| fingerprint(&u.map(Bits)));
        let wanted: Vec<bool> = gradients.iter().map(|g| g.dx).collect();
        let agreement = format!("{}, gradients of x {wanted:?}, upstream {:016x}", job.agreement, fingerprint(&seen));
        let gradient = GradientJob { rows: &rows, weights: &weights };
        let classes = job.layer.layout.classes(job.layer.rank);
        let distributions = distributions.iter().map(|d| d.classes(classes)).collect::<Result<Vec<_>>>()?;
        let parts = job.layer.device.gradients(&job.kernels, &job.rows(&distributions), &gradient, &mut gradients)?;
        Ok(OwnParts { job: Arc::clone(job), parts, agreement })
    }
}

impl<D: Device> Job<D> {
    /// For reports.
    fn summary(&self) -> String {
        format!("rank {} of {} of {} tokens", self.layer.rank, self.asked.name, self.asked.tokens)
    }

    fn rows<'a>(&'a self, distributions: &'a [Distribution<'a>]) -> RowJob<'a> {
        RowJob {
            operator: &self.operator,
            distributions,
            classes: self.layer.layout.classes(self.layer.rank),
            first_id: self.layer.layout.range(self.layer.rank).start,
            rows: &self.rows,
            selection: &self.selection,
            top: self.asked.top,
            seed: self.asked.seed,
        }
    }

    fn check_outputs(&self, gradients: &[DistributionGradients<'_>], distributions: &[Distribution<'_>]) -> Result<()> {
        let (owned, tokens) = (self.layer.layout.range(self.layer.rank).len(), self.asked.tokens);
        for ((gradient, distribution), names) in gradients.iter().zip(distributions).zip(self.asked.names()) {
            let given = distribution.hidden().is_none();
            let strange = if given { gradient.dx || gradient.dw.is_some() } else { gradient.dlogits.is_some() };
            if strange {
                let message = "expected dlogits of given logits, dx and dw of others".to_owned();
                return Err(Error::Option { option: "gradients", message });
            }
            let has = |name, len: usize, out: &Option<&mut [f32]>| match out {
                Some(out) => expect(name, len, out.len()),
                None => Ok(()),
            };
            has(names.dw, owned * distribution.hidden().unwrap_or(0), &gradient.dw)?;
            has(names.dbias, owned, &gradient.dbias)?;
            has(names.dlogits, tokens * owned, &gradient.dlogits)?;
            if gradient.dbias.is_some() && distribution.bias.is_none() {
                return Err(shape(names.dbias, "no gradient of a bias that is not there", "one"));
            }
        }
        Ok(())
    }

    /// Weights at the selected ids, and the upstream gradient of each result, by name.
    fn upstreams(&self, upstream: &ValueGradients<'_>) -> Result<(Buffer<f32>, NamedRows)> {
        let (slots, tokens) = (self.selection.slots, self.asked.tokens);
        let zeros = vec![0.0; tokens * slots];
        let logprobs = upstream.logprobs.unwrap_or(&zeros);
        expect("upstream of logprobs", tokens * slots, logprobs.len())?;
        let (weights, sums) = self.selection.weights(self.asked.ids(), &self.rows, logprobs);
        let mut named = vec![("logprob_upstream".to_owned(), sums)];
        let results: Vec<&str> = self.operator.results().into_iter().map(|(name, _)| name).collect();
        for (name, values) in [("entropy", upstream.entropy), ("divergence", upstream.divergence)] {
            let mut padded = vec![0.0; self.selection.stride];
            if let Some(values) = values {
                if !results.contains(&name) {
                    let message = format!("expected none of {name}, which {} does not compute", self.asked.name);
                    return Err(Error::Option { option: "upstream", message });
                }
                expect("upstream", tokens, values.len())?;
                padded.iter_mut().zip(&self.rows).for_each(|(to, row)| *to = values[*row as usize]);
            }
            named.push((format!("{name}_upstream"), padded));
        }
        Ok((weights, named))
    }

    /// Values at the tokens that take part, zero elsewhere; `count` a token.
    fn scatter<T: Copy>(&self, values: &[T], count: usize, zero: T) -> Vec<T> {
        let mut out = vec![zero; self.asked.tokens * count];
        for (values, row) in values.chunks(count).zip(&self.rows) {
            out[*row as usize * count..][..count].copy_from_slice(values);
        }
        out
    }

    /// A result of all blocks, in the order of tokens; `None` if the operator has none of that name.
    fn result(&self, blocks: &[Arc<Block>], name: &str) -> Option<Vec<f32>> {
        let position = self.operator.results().iter().position(|(known, _)| *known == name)?;
        Some(blocks.iter().flat_map(|block| block.results[position].iter().copied()).collect())
    }

    fn values(&self, blocks: &[Arc<Block>]) -> Values {
        let slots = self.asked.slots;
        let get = |name: &str, count| self.result(blocks, name).map_or(vec![], |v| self.scatter(&v, count, 0.0));
        let mut values = Values {
            logprobs: get("logprob", slots),
            entropy: get("entropy", 1),
            divergence: get("divergence", 1),
            logits: get("logit", slots),
            ids: vec![],
        };
        if let Some(Ids { ids, ignore_index: Some(ignored), .. }) = self.asked.ids() {
            values.logprobs.iter_mut().zip(ids).filter(|(_, id)| **id == ignored).for_each(|(value, _)| *value = 0.0);
        }
        if self.asked.top > 0 {
            let found: Vec<i64> = blocks.iter().flat_map(|b| b.ids.iter().map(|id| i64::from(*id))).collect();
            values.ids = self.scatter(&found, slots, -1);
            values.ids.iter_mut().zip(&values.logprobs).filter(|(_, v)| v.is_nan()).for_each(|(id, _)| *id = -1);
        }
        values
    }

    /// References and results of whole panels; what lies behind the last token weighs nothing beside a reference that is
    /// above all logits, which are the bias there.
    fn merged_rows(&self, blocks: &[Arc<Block>]) -> NamedRows {
        let stride = self.selection.stride;
        let padded = |mut values: Vec<f32>, with: f32| {
            values.resize(stride, with);
            values
        };
        let references = ["reference", "reference_1"].into_iter().take(self.operator.distributions()).enumerate();
        let mut rows: NamedRows = references
            .map(|(i, name)| {
                let values = blocks.iter().flat_map(|b| b.references[i].iter().copied()).collect();
                (name.to_owned(), padded(values, -NO_REFERENCE))
            })
            .collect();
        for (name, _) in self.operator.results().into_iter().filter(|(_, of_slot)| !of_slot) {
            rows.push((name.to_owned(), padded(self.result(blocks, name).unwrap_or_default(), 0.0)));
        }
        rows
    }
}

impl<D: Device> Statistics<D> {
    /// Names of the kernels that both phases call.
    pub fn kernels(&self) -> Vec<&'static str> {
        D::operator_kernel_names(&self.job.kernels)
    }

    /// Starts the first collective; does not wait.
    pub fn start_combine(self) -> Evaluating<D> {
        let Statistics { job, state, turn } = self;
        let bytes = state.bytes();
        let pending = turn.start(&job.agreement, state, bytes);
        Evaluating { job, pending }
    }
}

impl<D: Device> Evaluating<D> {
    /// Waits for all ranks.
    ///
    /// # Errors
    /// [`Error::Disagreement`] if a rank runs another job, [`Error::RankGone`] if one left or dropped its part, and the
    /// error of a rank that failed.
    pub fn wait(self) -> Result<Evaluated<D>> {
        let Evaluating { job, pending } = self;
        let host = *D::host_rows(&job.kernels);
        let slots = job.asked.slots;
        let outcome = pending.wait(&MergeStatistics { operator: &job.operator, host: &host, slots })?;
        debug_assert_eq!(outcome.blocks.last().map(|b| b.tokens.end), Some(job.rows.len()));
        let values = job.values(&outcome.blocks);
        let rows = job.merged_rows(&outcome.blocks);
        Ok(Evaluated { values, ticket: Ticket { job, rows } })
    }
}

impl<D: Device> InputGradients<D> {
    /// Starts the second collective, which sums the gradients of X; does not wait. Without X, on given logits alone, there
    /// is none.
    pub fn start_combine(self) -> SummingInputs<D> {
        let InputGradients { own: OwnParts { job, parts, agreement }, turn } = self;
        let wanted = parts.iter().map(Option::is_some).collect();
        let bytes = 4 * parts.iter().flatten().map(Vec::len).sum::<usize>();
        let pending = turn.map(|turn| turn.start(&agreement, parts, bytes));
        SummingInputs { job, wanted, pending }
    }
}

impl<D: Device> SummingInputs<D> {
    /// Waits for all ranks: dX `[N, H]` row-major of each distribution, in the order in which the operator takes them;
    /// `None` where it is not wanted. Tokens that take no part have zeros.
    ///
    /// # Errors
    /// [`Error::Disagreement`] if a rank runs another job, [`Error::RankGone`] if one left or dropped its part, and the
    /// error of a rank that failed.
    pub fn wait(self) -> Result<Vec<Option<Vec<f32>>>> {
        let SummingInputs { job, wanted, pending } = self;
        let Some(pending) = pending else { return Ok(wanted.iter().map(|_| None).collect()) };
        let hidden: Vec<usize> = job.asked.hidden.iter().map(|hidden| hidden.unwrap_or(0)).collect();
        let sum = SumInputs { rows: &job.rows, tokens: job.asked.tokens, hidden: &hidden, wanted: &wanted };
        let outcome = pending.wait(&sum)?;
        let all = outcome.output.unwrap_or_default();
        let mut dx: Vec<Option<Vec<f32>>> = sum.ranges().into_iter().map(|r| r.map(|r| all[r].to_vec())).collect();
        if job.asked.swapped {
            dx.reverse();
        }
        Ok(dx)
    }
}
