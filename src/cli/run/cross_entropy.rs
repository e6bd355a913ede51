//! Cross-entropy: passes S, C1 and T.

use super::check::{Expected, Named, widen};
use super::convert;
use super::logits;
use super::measure::Meter;
use super::operator::{Operator, Place, Results, Sizes, Tensor};
use crate::cli::values;
use anyhow::bail;
use std::path::Path;
use std::sync::Arc;
use vocabfuse::bounds::{self, Arithmetic};
use vocabfuse::problem::{Outputs, Problem};
use vocabfuse::ranks::{each, split_rows};
use vocabfuse::tensors::{self, Inputs};
use vocabfuse::{
    Batch, CrossEntropy, Device, Dtype, Filtered, Gradients, Local, Operands, OutputLayer, Policy, Reduction, Shard,
    Upstream, operators, plain, reference,
};

#[derive(Debug, clap::Args)]
#[group(id = "cross-entropy")]
#[command(next_help_heading = "Options of cross-entropy")]
pub struct Options {
    /// What loss holds: one value per token, their sum, or their mean
    #[arg(long, default_value = "mean", value_parser = values::reduction())]
    reduction: Reduction,
    /// Divisor of the mean [default: the weights of the targets, for the z-loss the number of tokens]
    #[arg(long, value_name = "X", value_parser = values::above_zero)]
    normalizer: Option<f32>,
    /// Share of the target distribution that is spread over all classes, 0 to 1
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::part)]
    label_smoothing: f32,
    /// Factor on the square of lse, which is added to the loss of each token
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::at_least_zero)]
    z_loss: f32,
    /// Write argmax [N], the class of the largest logit
    #[arg(long)]
    argmax: bool,
    /// Leave out the gradients of x, or of w and the bias, as if they were constants
    #[arg(long, value_name = "TENSOR", value_parser = ["x", "w"])]
    frozen: Vec<String>,
}

impl Options {
    /// The operator on tensors of a file, x and w rounded to `dtype`.
    pub fn read(&self, logits: &logits::Options, input: &Path, dtype: Option<Dtype>) -> anyhow::Result<Loss> {
        let reduction = self.reduction;
        if self.normalizer.is_some() && reduction != Reduction::Mean {
            bail!(
                "option --normalizer: it divides the mean, but --reduction is {reduction}; expected --reduction mean"
            );
        }
        let logits::Options { ignore_index, logit_scale, softcap } = *logits;
        let Options { normalizer, label_smoothing, z_loss, argmax, .. } = *self;
        let loss = CrossEntropy {
            reduction,
            normalizer,
            ignore_index: Some(ignore_index),
            logit_scale,
            softcap,
            label_smoothing,
            z_loss,
            argmax,
        };
        let frozen = |tensor: &str| self.frozen.iter().any(|name| name == tensor);
        let inputs = tensors::read(input)?;
        let (x, w) = (inputs.x.dtype(), inputs.w.dtype());
        if dtype.is_none() && x != w {
            bail!("tensor w: dtype {w}; expected {x} as x has, or --dtype to convert both");
        }
        let inputs = Inputs { x: convert("x", inputs.x, dtype)?, w: convert("w", inputs.w, dtype)?, ..inputs };
        Ok(Loss { loss, inputs, frozen: [frozen("x"), frozen("w")] })
    }
}

/// Cross-entropy with its tensors.
pub struct Loss {
    loss: CrossEntropy,
    inputs: Inputs,
    /// X, and W with the bias.
    frozen: [bool; 2],
}

/// Tensors that there need not be, in the type of a computation.
struct Optional<T> {
    bias: Option<Vec<T>>,
    upstream: Option<Vec<T>>,
    lse_upstream: Option<Vec<T>>,
    token_weights: Option<Vec<T>>,
    class_weights: Option<Vec<T>>,
}

impl Loss {
    fn optional<T>(&self, of: impl Fn(&[f32]) -> Vec<T>) -> Optional<T> {
        let of = |tensor: &Option<Vec<f32>>| tensor.as_deref().map(&of);
        let Inputs { bias, upstream, lse_upstream, token_weights, class_weights, .. } = &self.inputs;
        Optional {
            bias: of(bias),
            upstream: of(upstream),
            lse_upstream: of(lse_upstream),
            token_weights: of(token_weights),
            class_weights: of(class_weights),
        }
    }

    fn problem<'a, T>(&'a self, [x, w]: [&'a [T]; 2], optional: &'a Optional<T>) -> Problem<'a, T>
    where
        T: Copy + Into<f64>,
    {
        let Inputs { targets, hidden, vocab, .. } = &self.inputs;
        Problem {
            bias: optional.bias.as_deref(),
            upstream: optional.upstream.as_deref(),
            lse_upstream: optional.lse_upstream.as_deref(),
            token_weights: optional.token_weights.as_deref(),
            class_weights: optional.class_weights.as_deref(),
            vocab: *vocab,
            ..Problem::new(x, w, targets, *hidden, self.loss.into())
        }
    }

    /// Whether the layer gives an output.
    fn gives(&self, name: &str) -> bool {
        let [x, w] = self.frozen;
        !(x && name == "dx" || w && ["dw", "dbias"].contains(&name))
    }

    fn named<T>(&self, out: Outputs<T>) -> Named<T> {
        let mut named = vec![("loss", out.loss), ("lse", out.lse), ("dx", out.dx), ("dw", out.dw)];
        named.extend(out.dbias.map(|dbias| ("dbias", dbias)));
        named.retain(|(name, _)| self.gives(name));
        named
    }
}

impl Operator for Loss {
    fn sizes(&self) -> Sizes {
        let Inputs { x, hidden, vocab, .. } = &self.inputs;
        Sizes { tokens: self.inputs.tokens(), hidden: *hidden, vocab: *vocab, dtype: x.dtype().as_str() }
    }

    fn run<D: Device>(&self, place: &Place<'_, D>) -> anyhow::Result<Results> {
        let (Loss { inputs, loss, .. }, Place { device, layout, policy }) = (self, place);
        let [frozen_input, frozen_weight] = self.frozen;
        let policy = Policy { frozen_input, frozen_weight, ..*policy };
        let (tokens, hidden, vocab) = (inputs.tokens(), inputs.hidden, inputs.vocab);
        let x = inputs.x.matrix(tokens, hidden)?;
        let w = inputs.w.matrix(vocab, hidden)?;
        let batch = Batch {
            upstream: inputs.upstream.as_deref(),
            lse_upstream: inputs.lse_upstream.as_deref(),
            token_weights: inputs.token_weights.as_deref(),
            class_weights: inputs.class_weights.as_deref(),
            ..Batch::new(x, &inputs.targets)
        };
        let ranks = 0..layout.ranks();
        let layer = |rank| OutputLayer::new(*device, layout, rank, *loss, policy);
        let layers: Vec<OutputLayer<D>> = ranks.clone().map(layer).collect::<Result<_, _>>()?;
        let mut dw = vec![0.0; vocab * hidden];
        let mut dbias = inputs.bias.as_ref().map(|_| vec![0.0; vocab]);

        let mut meter = Meter::start();
        let comms = Local::group(layout.ranks());
        let members = layers.iter().zip(&comms).collect();
        let shard = |rank| {
            let rows = layout.range(rank);
            let bias = inputs.bias.as_ref().map(|b| &b[rows.clone()]);
            Ok::<_, vocabfuse::Error>(Shard { weight: w.row_range(rows)?, bias })
        };
        let partials =
            each(members, |rank, (layer, comm): (&OutputLayer<D>, &Local)| layer.s_pass(comm, batch, shard(rank)?))?;
        let kernels = partials.iter().flat_map(|p| p.kernels()).collect();
        meter.pass("s", "pass S");

        let combined = each(partials, |_, partial| partial.start_combine().wait())?;
        meter.pass("combine", "combine");

        let counters: Vec<_> = comms.iter().map(Local::counters).collect();
        let (mut tickets, mut results) = (vec![], None);
        let mut filtered = [Filtered::default(); 2];
        for done in combined {
            filtered[0] += done.filtered;
            tickets.push(done.weight_grad);
            // All ranks have the same loss, lse and dX.
            results.get_or_insert((done.loss, done.lse, done.dx, done.argmax));
        }
        let (loss, lse, dx, argmax) = results.unwrap_or_default();
        let dws = split_rows(&mut dw, hidden, ranks.clone().map(|r| layout.range(r)));
        let dbiases: Vec<Option<&mut [f32]>> = match &mut dbias {
            Some(dbias) => split_rows(dbias, 1, ranks.map(|r| layout.range(r))).into_iter().map(Some).collect(),
            None => ranks.map(|_| None).collect(),
        };
        let tickets = tickets.into_iter().filter(|_| !frozen_weight);
        let work = tickets.zip(dws).zip(dbiases).collect();
        let of_ranks = each(work, |rank, ((ticket, dw), dbias)| {
            let operands = Operands::new(x, shard(rank)?);
            layers[rank].t_pass(ticket, operands, Gradients { dw: dw.into(), dbias }, Upstream::One)
        })?;
        of_ranks.into_iter().for_each(|of_rank| filtered[1] += of_rank);
        meter.pass("t", "pass T");

        let mut costs = meter.finish((loss.len() + lse.len() + dx.len()) * size_of::<f32>(), kernels, counters);
        costs.filtered = filtered.iter().any(|f| f.tiles > 0).then(|| filtered.map(Filtered::share));
        let tensor = Tensor::floats;
        let mut outputs = vec![
            tensor("loss", vec![loss.len()], loss),
            tensor("lse", vec![tokens], lse),
            tensor("dx", vec![tokens, hidden], Arc::unwrap_or_clone(dx)),
            tensor("dw", vec![vocab, hidden], dw),
        ];
        outputs.extend(dbias.map(|dbias| tensor("dbias", vec![vocab], dbias)));
        outputs.retain(|output| self.gives(output.name));
        outputs.extend(argmax.map(|ids| Tensor { ids: Some(ids), ..tensor("argmax", vec![tokens], vec![]) }));
        Ok(Results { outputs, costs })
    }

    fn expected(&self, outputs: &[Tensor], arithmetic: Arithmetic) -> anyhow::Result<Vec<Expected>> {
        let [x, w] = [&self.inputs.x, &self.inputs.w].map(|tensor| tensor.to_f32());
        let ([wide_x, wide_w], optional) = ([widen(&x), widen(&w)], self.optional(widen));
        let problem = self.problem([&wide_x, &wide_w], &optional);
        let truth = reference::cross_entropy(&problem)?;
        let bounds = bounds::cross_entropy(&problem, &truth, arithmetic);
        let optional = self.optional(<[f32]>::to_vec);
        let plain = plain::cross_entropy(&self.problem([&x, &w], &optional), self.inputs.x.dtype())?;
        let mut expected = Expected::values(self.named(truth), self.named(plain), self.named(bounds));
        if self.loss.argmax {
            let ids = outputs.iter().find(|output| output.name == "argmax").and_then(|output| output.ids.as_deref());
            let largest = operators::Query::TopK(problem.distribution(), 1);
            let of_token = |token| problem.target(token).is_some();
            let picks = bounds::picks(&largest, problem.vocab, ids.unwrap_or_default(), arithmetic, of_token);
            expected.push(Expected::ids("argmax", &picks));
        }
        Ok(expected)
    }
}
