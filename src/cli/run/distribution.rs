//! Operators on the distribution over the vocabulary: values, and the gradients of what they are computed from.

use super::check::{Expected, Named};
use super::convert;
use super::logits;
use super::measure::Meter;
use super::operator::{Op, Operator, Place, Results, Sizes, Tensor};
use std::path::Path;
use vocabfuse::bounds::{self, Arithmetic};
use vocabfuse::operators::{self, Answer, Query, Raw, Real};
use vocabfuse::ranks::{each, split_rows};
use vocabfuse::tensors::operators::{Distribution as Operand, Inputs, Source as Operands, TokenIds, Wanted, read};
use vocabfuse::{
    Device, Distribution, DistributionGradients, Dtype, Error, Ids, KlDirection, Local, Operators, ShardLayout,
    Statistics, ValueGradients, Values,
};

#[derive(Debug, clap::Args)]
#[group(id = "distribution")]
#[command(next_help_heading = "Options of kl, top-k and sample")]
pub struct Options {
    /// kl: KL(student || teacher) instead of KL(teacher || student)
    #[arg(long)]
    reverse: bool,
    /// top-k: how many logits of a token
    #[arg(long, value_name = "K", default_value = "1", value_parser = crate::cli::values::positive)]
    k: usize,
    /// sample: what the draws depend on, beside token and logits
    #[arg(long, value_name = "S", default_value = "0")]
    seed: u64,
}

impl Options {
    /// The operator on tensors of a file, matrices rounded to `dtype`.
    pub fn read(
        &self,
        op: Op,
        logits: &logits::Options,
        input: &Path,
        dtype: Option<Dtype>,
    ) -> anyhow::Result<OnDistribution> {
        let ids = matches!(op, Op::Logprobs | Op::LogprobsEntropy);
        let upstream = !matches!(op, Op::TopK | Op::Sample);
        let wanted = Wanted { teacher: op == Op::Kl, ids, upstream, entropy_upstream: op == Op::LogprobsEntropy };
        let mut inputs = read(input, wanted)?;
        let names = [["x", "w", "logits"], ["teacher_x", "teacher_w", "teacher_logits"]];
        for (operand, [x_name, w_name, logits_name]) in
            std::iter::once(&mut inputs.of).chain(&mut inputs.teacher).zip(names)
        {
            if let Operands::Linear { x, w, .. } = &operand.source
                && dtype.is_none()
                && x.dtype() != w.dtype()
            {
                let (x, w) = (x.dtype(), w.dtype());
                anyhow::bail!("tensor {w_name}: dtype {w}; expected {x} as {x_name} has, or --dtype to convert both");
            }
            operand.source = match operand.source.clone() {
                Operands::Linear { x, w, hidden } => {
                    Operands::Linear { x: convert(x_name, x, dtype)?, w: convert(w_name, w, dtype)?, hidden }
                }
                Operands::Logits(logits) => Operands::Logits(convert(logits_name, logits, dtype)?),
            };
        }
        let logits::Options { ignore_index, logit_scale, softcap } = *logits;
        let Options { reverse, k, seed } = *self;
        Ok(OnDistribution { op, inputs, ignore_index, logit_scale, softcap, reverse, k, seed })
    }
}

/// An operator with its tensors.
pub struct OnDistribution {
    op: Op,
    inputs: Inputs,
    ignore_index: i64,
    logit_scale: f32,
    softcap: Option<f32>,
    reverse: bool,
    k: usize,
    seed: u64,
}

/// Names of the gradients of a distribution: by x, w, bias and logits.
const GRADIENTS: [[&str; 4]; 2] =
    [["dx", "dw", "dbias", "dlogits"], ["teacher_dx", "teacher_dw", "teacher_dbias", "teacher_dlogits"]];

/// Gradients of one distribution, over all ranks.
struct Sums {
    dw: Vec<f32>,
    dbias: Vec<f32>,
}

/// A rank's parts of them, and of given logits.
struct Own<'a> {
    dw: &'a mut [f32],
    dbias: &'a mut [f32],
    dlogits: Vec<f32>,
}

impl OnDistribution {
    fn operands(&self) -> impl Iterator<Item = &Operand> {
        std::iter::once(&self.inputs.of).chain(&self.inputs.teacher)
    }

    fn room(&self, of: &Operand) -> Sums {
        let vocab = self.inputs.vocab;
        Sums { dw: vec![0.0; vocab * of.hidden()], dbias: vec![0.0; of.bias.as_ref().map_or(0, |_| vocab)] }
    }

    fn differentiable(&self) -> bool {
        !matches!(self.op, Op::TopK | Op::Sample)
    }

    /// Ids of a token that have a value.
    fn slots(&self) -> usize {
        match self.op {
            Op::TopK => self.k,
            _ => self.inputs.ids.as_ref().map_or(1, TokenIds::per_token),
        }
    }

    fn shard<'a>(&self, of: &'a Operand, layout: &ShardLayout, rank: usize) -> Result<Distribution<'a>, Error> {
        let (tokens, vocab, range) = (self.inputs.tokens, self.inputs.vocab, layout.range(rank));
        let bare = match &of.source {
            Operands::Linear { x, w, hidden } => {
                Distribution::linear(x.matrix(tokens, *hidden)?, w.matrix(vocab, *hidden)?.row_range(range.clone())?)
            }
            Operands::Logits(logits) => Distribution::logits(logits.columns(tokens, vocab, range.clone())?),
        };
        let bias = of.bias.as_ref().map(|bias| &bias[range]);
        Ok(Distribution { bias, logit_scale: self.logit_scale, softcap: self.softcap, ..bare })
    }

    fn evaluate<D: Device>(
        &self,
        device: &D,
        layout: &ShardLayout,
        comm: &Local,
    ) -> Result<(Operators<D>, Statistics<D>), Error> {
        let rank = comm.rank();
        let layer = Operators::new(device, layout, rank)?;
        let of = self.shard(&self.inputs.of, layout, rank)?;
        let ids = self.inputs.ids.as_ref().map(|ids| Ids {
            ids: &ids.values,
            per_token: ids.per_token(),
            ignore_index: Some(self.ignore_index),
        });
        let statistics = match (self.op, ids, &self.inputs.teacher) {
            (Op::Logprobs, Some(ids), _) => layer.logprobs(comm, of, ids)?,
            (Op::LogprobsEntropy, Some(ids), _) => layer.logprobs_and_entropy(comm, of, ids)?,
            (Op::Kl, _, Some(teacher)) => {
                let direction = if self.reverse { KlDirection::Reverse } else { KlDirection::Forward };
                layer.kl_divergence(comm, of, self.shard(teacher, layout, rank)?, direction)?
            }
            (Op::TopK, ..) => layer.top_k(comm, of, self.k)?,
            (Op::Sample, ..) => layer.sample(comm, of, self.seed)?,
            _ => layer.entropy(comm, of)?,
        };
        Ok((layer, statistics))
    }

    /// Upstream gradients of log-probabilities, entropies and divergences; one where the file has none.
    fn upstreams(&self) -> [Vec<f32>; 3] {
        let (tokens, slots) = (self.inputs.tokens, self.slots());
        let ones = |count| vec![1.0; count];
        let first = |count| self.inputs.upstream.clone().unwrap_or_else(|| ones(count));
        let entropy = if self.op == Op::Entropy {
            first(tokens)
        } else {
            self.inputs.entropy_upstream.clone().unwrap_or_else(|| ones(tokens))
        };
        [first(tokens * slots), entropy, first(tokens)]
    }

    fn value_tensors(&self, values: Values) -> Vec<Tensor> {
        let tokens = self.inputs.tokens;
        let per_slot = match (self.op, &self.inputs.ids) {
            (Op::TopK, _) => vec![tokens, self.k],
            (_, Some(ids)) => ids.shape.clone(),
            (_, None) => vec![tokens],
        };
        let mut outputs = vec![];
        let picks = matches!(self.op, Op::TopK | Op::Sample);
        if picks {
            outputs.push(Tensor { ids: Some(values.ids), ..Tensor::floats("ids", per_slot.clone(), vec![]) });
        }
        let has = |ops: &[Op]| ops.contains(&self.op);
        for (given, name, shape, values) in [
            (picks || has(&[Op::Logprobs, Op::LogprobsEntropy]), "logprobs", &per_slot, values.logprobs),
            (picks, "logits", &per_slot, values.logits),
            (has(&[Op::Entropy, Op::LogprobsEntropy]), "entropy", &vec![tokens], values.entropy),
            (has(&[Op::Kl]), "divergence", &vec![tokens], values.divergence),
        ] {
            if given {
                outputs.push(Tensor::floats(name, shape.clone(), values));
            }
        }
        outputs
    }

    /// A distribution of the composition over the tensors of an operand: x and w, or logits and nothing, then the bias.
    fn materialised<'a, T>(
        &self,
        operand: &Operand,
        [first, second, bias]: &'a [Vec<T>; 3],
    ) -> operators::Distribution<'a, T> {
        operators::Distribution {
            raw: match operand.source {
                Operands::Linear { hidden, .. } => Raw::Linear { x: first, w: second, hidden },
                Operands::Logits(_) => Raw::Logits(first),
            },
            bias: operand.bias.as_ref().map(|_| bias.as_slice()),
            logit_scale: f64::from(self.logit_scale),
            softcap: self.softcap.map(f64::from),
        }
    }

    /// What `with` makes of the query and the upstream gradients in the type of a computation.
    fn in_type<T: Real, R>(&self, with: impl FnOnce(&Query<'_, T>, &operators::Upstream<'_, T>) -> R) -> R {
        let typed = |v: &[f32]| -> Vec<T> { v.iter().map(|v| T::from_f64(f64::from(*v))).collect() };
        let tensors: Vec<[Vec<T>; 3]> = self
            .operands()
            .map(|of| {
                let bias = typed(of.bias.as_deref().unwrap_or_default());
                match &of.source {
                    Operands::Linear { x, w, .. } => [typed(&x.to_f32()), typed(&w.to_f32()), bias],
                    Operands::Logits(logits) => [typed(&logits.to_f32()), vec![], bias],
                }
            })
            .collect();
        let of: Vec<operators::Distribution<'_, T>> =
            self.operands().zip(&tensors).map(|(operand, tensors)| self.materialised(operand, tensors)).collect();
        let query = match (self.op, &self.inputs.ids) {
            (Op::Kl, _) if self.reverse => Query::KlDivergence { p: of[0], q: of[1] },
            (Op::Kl, _) => Query::KlDivergence { p: of[1], q: of[0] },
            (Op::TopK, _) => Query::TopK(of[0], self.k),
            (Op::Sample, _) => Query::Sample(of[0], self.seed),
            (op, Some(ids)) => Query::Logprobs {
                of: of[0],
                ids: &ids.values,
                per_token: ids.per_token(),
                ignore_index: Some(self.ignore_index),
                entropy: op == Op::LogprobsEntropy,
            },
            (_, None) => Query::Entropy(of[0]),
        };
        let [logprobs, entropy, divergence] = self.upstreams().map(|u| typed(&u));
        let upstream =
            operators::Upstream { logprobs: Some(&logprobs), entropy: Some(&entropy), divergence: Some(&divergence) };
        with(&query, &upstream)
    }

    fn evaluated<T: Real>(&self) -> Answer<T> {
        self.in_type(|query, upstream| operators::evaluate(query, upstream, self.inputs.vocab, self.coarser()))
    }

    /// Values and gradients by name; those of a divergence are of the teacher first, if that is P.
    fn named<T>(&self, mut answer: Answer<T>) -> Named<T> {
        if self.op == Op::Kl && !self.reverse {
            answer.gradients.reverse();
        }
        named(answer, self.operands())
    }

    fn expected_picks(&self, outputs: &[Tensor], arithmetic: Arithmetic) -> Vec<Expected> {
        let ids = outputs.iter().find(|output| output.name == "ids").and_then(|output| output.ids.as_deref());
        let ids = ids.unwrap_or_default();
        let vocab = self.inputs.vocab;
        let picks = self.in_type(|query, _| bounds::picks(query, vocab, ids, arithmetic, |_| true));
        let [logits, logprobs] = self.plain_of(ids);
        let expected = Expected::ids("ids", &picks);
        let want = vec![("logprobs", picks.logprobs), ("logits", picks.logits)];
        let bounds = vec![("logprobs", picks.of_logprobs), ("logits", picks.of_logits)];
        let mut all = vec![expected];
        all.extend(Expected::values(want, vec![("logprobs", logprobs), ("logits", logits)], bounds));
        all
    }

    /// Logits and log-probabilities of ids by the plain composition; NaN where there is none.
    fn plain_of(&self, ids: &[i64]) -> [Vec<f32>; 2] {
        let vocab = self.inputs.vocab;
        let all = self.in_type(|query: &Query<'_, f32>, upstream| match *query {
            Query::TopK(of, _) | Query::Sample(of, _) => {
                operators::evaluate(&Query::TopK(of, vocab), upstream, vocab, self.coarser())
            }
            _ => Answer::default(),
        });
        let position = |(slot, id): (usize, &i64)| {
            let first = slot / self.slots() * vocab;
            all.ids.get(first..first + vocab)?.iter().position(|other| other == id).map(|at| first + at)
        };
        let positions: Vec<Option<usize>> = ids.iter().enumerate().map(position).collect();
        let of = |values: &[f32]| positions.iter().map(|at| at.map_or(f32::NAN, |at| values[at])).collect();
        [of(&all.logits), of(&all.logprobs)]
    }

    /// The coarser of the dtypes of two distributions.
    fn coarser(&self) -> Dtype {
        let dtypes = self.operands().map(|of| match &of.source {
            Operands::Linear { x, .. } => x.dtype(),
            Operands::Logits(logits) => logits.dtype(),
        });
        let fineness = |dtype: &Dtype| [Dtype::Bf16, Dtype::F16, Dtype::F32].iter().position(|other| other == dtype);
        dtypes.min_by_key(fineness).unwrap_or(Dtype::F32)
    }

    fn dtype(&self) -> Dtype {
        match &self.inputs.of.source {
            Operands::Linear { x, .. } => x.dtype(),
            Operands::Logits(logits) => logits.dtype(),
        }
    }
}

/// All that an answer holds, by name.
fn named<'a, T>(answer: Answer<T>, operands: impl Iterator<Item = &'a Operand>) -> Named<T> {
    let mut named: Named<T> = vec![
        ("logprobs", answer.logprobs),
        ("logits", answer.logits),
        ("entropy", answer.entropy),
        ("divergence", answer.divergence),
    ];
    for ((gradients, [dx, dw, dbias, dlogits]), of) in answer.gradients.into_iter().zip(GRADIENTS).zip(operands) {
        named.extend([(dx, gradients.x), (dw, gradients.w), (dbias, gradients.bias)]);
        if matches!(of.source, Operands::Logits(_)) {
            named.push((dlogits, gradients.logits));
        }
    }
    named.retain(|(_, values)| !values.is_empty());
    named
}

impl Operator for OnDistribution {
    fn sizes(&self) -> Sizes {
        let (tokens, vocab, hidden) = (self.inputs.tokens, self.inputs.vocab, self.inputs.of.hidden());
        Sizes { tokens, hidden, vocab, dtype: self.dtype().as_str() }
    }

    fn run<D: Device>(&self, place: &Place<'_, D>) -> anyhow::Result<Results> {
        let Place { device, layout, .. } = place;
        let (tokens, vocab) = (self.inputs.tokens, self.inputs.vocab);
        let mut meter = Meter::start();
        let comms = Local::group(layout.ranks());
        let evaluated = each(comms.iter().collect(), |_, comm: &Local| self.evaluate(*device, layout, comm))?;
        let kernels: Vec<&str> = evaluated.iter().flat_map(|(_, s)| s.kernels()).collect();
        meter.pass("statistics", "statistics");

        let combined =
            each(evaluated, |_, (layer, statistics)| Ok::<_, Error>((layer, statistics.start_combine().wait()?)))?;
        meter.pass("combine", "combine");

        let [logprobs, entropy, divergence] = self.upstreams();
        let upstream = ValueGradients {
            logprobs: matches!(self.op, Op::Logprobs | Op::LogprobsEntropy).then_some(&logprobs),
            entropy: matches!(self.op, Op::Entropy | Op::LogprobsEntropy).then_some(&entropy),
            divergence: (self.op == Op::Kl).then_some(&divergence),
        };
        let mut sums: Vec<Sums> = self.operands().filter(|_| self.differentiable()).map(|of| self.room(of)).collect();
        // By rank, then by distribution.
        let mut own: Vec<Vec<Own<'_>>> = (0..layout.ranks()).map(|_| vec![]).collect();
        for (sums, of) in sums.iter_mut().zip(self.operands()) {
            let ranges = || (0..layout.ranks()).map(|r| layout.range(r));
            let given = |columns: usize| if of.hidden() == 0 { tokens * columns } else { 0 };
            let dws = split_rows(&mut sums.dw, of.hidden(), ranges());
            let dbiases = split_rows(&mut sums.dbias, usize::from(of.bias.is_some()), ranges());
            for (rank, (dw, dbias)) in dws.into_iter().zip(dbiases).enumerate() {
                own[rank].push(Own { dw, dbias, dlogits: vec![0.0; given(layout.range(rank).len())] });
            }
        }
        let work = combined.into_iter().zip(own).collect();
        let done = each(work, |rank, ((layer, done), mut own)| {
            let mut dx = vec![];
            if self.differentiable() {
                let wanted = own.iter_mut().zip(self.operands()).map(|(own, of)| {
                    let linear = of.hidden() > 0;
                    DistributionGradients {
                        dx: linear,
                        dw: linear.then_some(&mut *own.dw),
                        dbias: of.bias.as_ref().map(|_| &mut *own.dbias),
                        dlogits: (!linear).then_some(&mut own.dlogits),
                    }
                });
                let of = self.operands().map(|of| self.shard(of, layout, rank)).collect::<Result<Vec<_>, _>>()?;
                let gradients = layer.backward(&comms[rank], &done.ticket, &of, upstream, wanted.collect())?;
                dx = gradients.start_combine().wait()?;
            }
            let dlogits: Vec<Vec<f32>> = own.into_iter().map(|own| own.dlogits).collect();
            Ok::<_, Error>((done.values, dlogits, dx))
        })?;
        meter.pass("backward", "backward");

        let counters: Vec<_> = comms.iter().map(Local::counters).collect();
        let mut outputs = done.first().map_or(vec![], |(values, ..)| self.value_tensors(values.clone()));
        for (i, ((sums, of), [dx, dw, dbias, dlogits])) in
            sums.into_iter().zip(self.operands()).zip(GRADIENTS).enumerate()
        {
            if of.hidden() > 0 {
                let x = done.first().and_then(|rank| rank.2[i].clone()).unwrap_or_default();
                outputs.push(Tensor::floats(dx, vec![tokens, of.hidden()], x));
                outputs.push(Tensor::floats(dw, vec![vocab, of.hidden()], sums.dw));
            } else {
                let row = |token: usize| {
                    done.iter().enumerate().flat_map(move |(rank, found)| {
                        let width = layout.range(rank).len();
                        found.1[i][token * width..][..width].to_vec()
                    })
                };
                outputs.push(Tensor::floats(dlogits, vec![tokens, vocab], (0..tokens).flat_map(row).collect()));
            }
            if of.bias.is_some() {
                outputs.push(Tensor::floats(dbias, vec![vocab], sums.dbias));
            }
        }
        let bytes = outputs.iter().map(|o| o.values.len() * size_of::<f32>()).sum();
        Ok(Results { costs: meter.finish(bytes, kernels, counters), outputs })
    }

    fn expected(&self, outputs: &[Tensor], arithmetic: Arithmetic) -> anyhow::Result<Vec<Expected>> {
        let arithmetic = Arithmetic { dtype: self.coarser(), ..arithmetic };
        if !self.differentiable() {
            return Ok(self.expected_picks(outputs, arithmetic));
        }
        let truth: Answer<f64> = self.evaluated();
        let bounds =
            self.in_type(|query, upstream| bounds::operator(query, upstream, self.inputs.vocab, &truth, arithmetic));
        Ok(Expected::values(self.named(truth), self.named(self.evaluated()), self.named(bounds)))
    }
}
