//! Everything about a microbatch that outlives pass S. Nothing of it points at memory of the caller.

use crate::batch::{Batch, Later, Operands, Part, Shard, Upstream, Upstreams};
use crate::check::{expect, fingerprint};
use crate::filter::Filter;
use crate::loss::Averaging;
use crate::passes::{LayerInputs, SPass};
use crate::{Device, Dtype, Error, OutputLayer, Reduction, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values per token that finish programs read besides statistics, by name, padded with 0.
pub(crate) type TokenValues = Vec<(&'static str, Vec<f32>)>;

pub(crate) struct Job<D: Device> {
    pub(crate) layer: OutputLayer<D>,
    pub(crate) kernels: Arc<D::Kernels>,
    /// N.
    pub(crate) tokens: usize,
    /// H.
    pub(crate) hidden: usize,
    pub(crate) dtype: Dtype,
    /// Rows of X that count.
    pub(crate) rows: Vec<u32>,
    /// Shard-local targets, padded to whole panels with -1.
    pub(crate) targets: Vec<i32>,
    /// With the upstream gradients that are known.
    pub(crate) values: TokenValues,
    pub(crate) later: Later,
    /// Weights of the tokens that count, if they have any.
    weights: Option<Vec<f32>>,
    /// Scalars of the programs.
    uniforms: BTreeMap<String, f32>,
    /// Weight of each class of the shard, as the mean scales it, where the loss reads it.
    class_weights: Option<Vec<f32>>,
    averaging: Averaging,
    pub(crate) agreement: String,
    /// Of A += E W.
    pub(crate) filter: Option<Filter>,
}

impl<D: Device> Job<D> {
    /// `rows` are those of tokens that count; batch and shard have been checked.
    pub(crate) fn new(
        layer: OutputLayer<D>,
        kernels: Arc<D::Kernels>,
        batch: &Batch<'_>,
        bias: bool,
        rows: Vec<u32>,
    ) -> Job<D> {
        let owned = layer.layout.range(layer.rank);
        let classes = layer.layout.classes(layer.rank);
        let padded = rows.len().next_multiple_of(D::panel(&kernels));
        let averaging = layer.loss.averaging(batch, &rows);
        let class_weight = |weight: f32| (f64::from(weight) * averaging.class_factor) as f32;
        let per_token = |value: &dyn Fn(usize) -> f32| {
            let mut values: Vec<f32> = rows.iter().map(|row| value(*row as usize)).collect();
            values.resize(padded, 0.0);
            values
        };
        let local = |row: &u32| {
            let target = batch.targets[*row as usize] - owned.start as i64;
            if (0..classes as i64).contains(&target) { target as i32 } else { -1 }
        };
        let mut targets: Vec<i32> = rows.iter().map(local).collect();
        targets.resize(padded, -1);
        let upstream = |row: usize| {
            let weight = averaging.divisor.map_or(0.0, |divisor| f64::from(batch.token_weight(row)) / divisor);
            weight as f32 * batch.upstream.map_or(1.0, |u| u[row])
        };
        let values = vec![
            ("hard", per_token(&|row| (1.0 - layer.loss.label_smoothing) * class_weight(batch.class_weight(row)))),
            (UPSTREAM, per_token(&upstream)),
            (LSE_UPSTREAM, per_token(&|row| batch.lse_upstream.map_or(0.0, |u| u[row]))),
        ];
        let of_shard = layer.layout.class_range(layer.rank);
        let class_weights = (layer.loss.label_smoothing > 0.0).then(|| match batch.class_weights {
            Some(weights) => weights[of_shard].iter().map(|weight| class_weight(*weight)).collect(),
            None => vec![1.0; classes],
        });
        let mut uniforms = layer.programs.uniforms.clone();
        let weights: f64 = match batch.class_weights {
            Some(weights) => weights.iter().map(|w| f64::from(*w)).sum(),
            None => layer.layout.vocab() as f64,
        };
        let spread = f64::from(layer.loss.label_smoothing) / layer.layout.vocab().max(1) as f64
            * weights
            * averaging.class_factor;
        uniforms.insert("smoothing_total".to_owned(), spread as f32);
        uniforms.insert("first_class".to_owned(), owned.start as f32);
        let form = layer.device.form(&kernels, batch.x.columns());
        Job {
            agreement: agreement(&layer, &form, batch, bias),
            filter: layer.policy.filter.map(Filter::new),
            tokens: batch.x.rows(),
            hidden: batch.x.columns(),
            dtype: batch.x.dtype(),
            weights: batch.token_weights.map(|weights| rows.iter().map(|row| weights[*row as usize]).collect()),
            later: batch.later,
            layer,
            kernels,
            rows,
            targets,
            values,
            uniforms,
            class_weights,
            averaging,
        }
    }

    /// For reports.
    pub(crate) fn summary(&self) -> String {
        let Job { tokens, hidden, dtype, layer, .. } = self;
        format!("rank {} of N {tokens}, H {hidden}, V {}, {dtype}", layer.rank, layer.layout.vocab())
    }

    pub(crate) fn classes(&self) -> usize {
        self.layer.layout.classes(self.layer.rank)
    }

    pub(crate) fn inputs<'a>(&'a self, bias: Option<&'a [f32]>) -> LayerInputs<'a> {
        LayerInputs {
            classes: self.classes(),
            uniforms: &self.uniforms,
            bias,
            class_weight: self.class_weights.as_deref(),
        }
    }

    /// What pass S reads, or pass T of the same values.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Dtype`] if X or the shard are not what pass S was given.
    pub(crate) fn pass<'a>(&'a self, operands: &Operands<'a>) -> Result<SPass<'a>> {
        let Operands { x, shard } = *operands;
        if (x.rows(), x.columns()) != (self.tokens, self.hidden) {
            let expected = format!("[{}, {}], as pass S was given", self.tokens, self.hidden);
            return Err(Error::Shape { tensor: "x", expected, found: format!("[{}, {}]", x.rows(), x.columns()) });
        }
        if x.dtype() != self.dtype {
            return Err(Error::Dtype { tensor: "x", expected: self.dtype, found: x.dtype() });
        }
        let w = match &shard {
            Some(shard) => {
                shard.check(&self.layer.layout, self.layer.rank, &x)?;
                // Padded rows of the vocabulary take no part.
                shard.weight.row_range(0..self.classes())?
            }
            None => x.no_rows(),
        };
        Ok(SPass {
            x,
            w,
            inputs: self.inputs(shard.and_then(|shard: Shard<'a>| shard.bias)),
            rows: &self.rows,
            targets: &self.targets,
            filter: self.filter.as_ref(),
        })
    }

    /// The values per token for a part of dX.
    pub(crate) fn part(&self, part: Part) -> TokenValues {
        let value = |(name, values): &(&'static str, Vec<f32>)| {
            let values = match (part, *name) {
                (Part::Known, _) => values.clone(),
                (Part::Lse, UPSTREAM) => vec![0.0; values.len()],
                (Part::Lse, LSE_UPSTREAM) => vec![1.0; values.len()],
                (Part::Lse, _) => values.clone(),
            };
            (*name, values)
        };
        self.values.iter().map(value).collect()
    }

    /// The values per token with upstream gradients that were to come later.
    pub(crate) fn with_upstreams(&self, upstreams: Upstreams<'_>) -> TokenValues {
        let lse = upstreams.lse.unwrap_or(Upstream::Scale(0.0));
        let value = |(name, values): &(&'static str, Vec<f32>)| {
            let of_row = |(value, row): (&f32, &u32)| match *name {
                UPSTREAM => value * upstreams.loss.of(*row as usize),
                LSE_UPSTREAM if self.later == Later::LossAndLse => lse.of(*row as usize),
                // What is known of it belongs to the results as they are.
                _ => *value,
            };
            let mut new: Vec<f32> = values.iter().zip(&self.rows).map(of_row).collect();
            new.resize(values.len(), 0.0);
            (*name, new)
        };
        self.values.iter().map(value).collect()
    }

    /// Checks upstream gradients that come late.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of values than N, [`Error::Option`] for one of lse that was not to come.
    pub(crate) fn check_upstreams(&self, upstreams: &Upstreams<'_>) -> Result<()> {
        upstreams.loss.check(UPSTREAM, self.tokens)?;
        let Some(lse) = upstreams.lse else { return Ok(()) };
        if self.later != Later::LossAndLse {
            let message = "expected none that comes late: the batch of pass S says which do".to_owned();
            return Err(Error::Option { option: LSE_UPSTREAM, message });
        }
        lse.check(LSE_UPSTREAM, self.tokens)
    }

    /// The result from the losses of the tokens that count, in f64 before the last rounding.
    pub(crate) fn losses(&self, losses: &[f32]) -> Vec<f32> {
        let weighted = losses.iter().enumerate().map(|(token, loss)| {
            let weight = self.weights.as_ref().map_or(1.0, |weights| f64::from(weights[token]));
            // A token without weight adds nothing, whatever its loss is.
            if weight == 0.0 { 0.0 } else { f64::from(*loss) * weight }
        });
        let weighted = weighted.take(self.rows.len());
        if self.layer.loss.reduction == Reduction::None {
            return self.scatter(weighted.map(|l| l as f32), 0.0);
        }
        // An empty sum of floats is -0.
        let mean = self.averaging.divisor.map_or(0.0, |divisor| weighted.fold(0.0, |sum, l| sum + l) / divisor);
        vec![mean as f32]
    }

    /// Values of the tokens that count at their rows, `rest` elsewhere.
    pub(crate) fn scatter<T: Clone>(&self, values: impl IntoIterator<Item = T>, rest: T) -> Vec<T> {
        let mut out = vec![rest; self.tokens];
        for (value, row) in values.into_iter().zip(&self.rows) {
            out[*row as usize] = value;
        }
        out
    }

    /// Checks what pass T is to write.
    ///
    /// # Errors
    /// [`Error::Shape`] for an output of the wrong length, [`Error::Dtype`] if dW is neither f32 nor of the type of W.
    pub(crate) fn check_gradients(&self, dw: (usize, Dtype), dbias: Option<usize>) -> Result<()> {
        let rows = self.layer.layout.range(self.layer.rank).len();
        expect("dw", rows * self.hidden, dw.0)?;
        if ![Dtype::F32, self.dtype].contains(&dw.1) {
            return Err(Error::Dtype { tensor: "dw", expected: self.dtype, found: dw.1 });
        }
        expect("dbias", rows, dbias.unwrap_or(rows))
    }
}

/// Row inputs of finish programs.
const UPSTREAM: &str = "upstream";
const LSE_UPSTREAM: &str = "lse_upstream";

// X is not compared: that would cost a pass over it.
fn agreement<D: Device>(layer: &OutputLayer<D>, form: &str, batch: &Batch<'_>, bias: bool) -> String {
    let bits = |values: Option<&[f32]>| values.map(|v| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
    let data = fingerprint(&(
        batch.targets,
        bits(batch.upstream),
        bits(batch.lse_upstream),
        bits(batch.token_weights),
        bits(batch.class_weights),
    ));
    format!(
        "rows in {}, {form}, N {}, H {}, V {}, {} ranks with layout {:016x}, dtype {}, algorithm {}, dx {}, filter {:?}, {}, loss {}, \
         bias {bias}, targets, upstream and weights {data:016x}",
        layer.device.place(),
        batch.x.rows(),
        batch.x.columns(),
        layer.layout.vocab(),
        layer.layout.ranks(),
        fingerprint(&*layer.layout),
        batch.x.dtype(),
        layer.policy.algorithm,
        match (layer.policy.frozen_input, batch.later) {
            (true, _) => "not wanted".to_owned(),
            (false, Later::Nothing) => "wanted".to_owned(),
            (false, later) => format!("wanted with upstream gradients to come: {later:?}"),
        },
        layer.policy.filter,
        layer.loss,
        layer.programs,
    )
}
