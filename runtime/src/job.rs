//! Everything about a microbatch that outlives pass S.

use crate::batch::{Batch, Shard};
use crate::check::fingerprint;
use crate::filter::Filter;
use crate::loss::Averaging;
use crate::passes::{LayerInputs, SPass};
use crate::{Device, OutputLayer, Reduction, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;

pub(crate) struct Job<'a, D: Device> {
    pub(crate) layer: OutputLayer<D>,
    pub(crate) kernels: D::Kernels,
    pub(crate) batch: Batch<'a>,
    pub(crate) shard: Shard<'a>,
    /// Rows of X that count.
    pub(crate) rows: Vec<u32>,
    /// Shard-local targets, padded to whole panels with -1.
    pub(crate) targets: Vec<i32>,
    /// Values per token that finish programs read besides statistics, padded with 0.
    pub(crate) tokens: Vec<(&'static str, Vec<f32>)>,
    /// Scalars of the programs.
    uniforms: BTreeMap<String, f32>,
    /// Weight of each class of the shard, as the mean scales it, where the loss reads it.
    class_weights: Option<Cow<'a, [f32]>>,
    averaging: Averaging,
    pub(crate) agreement: String,
    /// Of A += E W.
    pub(crate) filter: Option<Filter>,
}

impl<'a, D: Device> Job<'a, D> {
    /// `rows` are those of tokens that count; batch and shard have been checked.
    pub(crate) fn new(
        layer: OutputLayer<D>,
        kernels: D::Kernels,
        batch: Batch<'a>,
        shard: Shard<'a>,
        rows: Vec<u32>,
    ) -> Job<'a, D> {
        let owned = layer.layout.range(layer.rank);
        let classes = layer.layout.classes(layer.rank);
        let padded = rows.len().next_multiple_of(D::panel(&kernels));
        let averaging = layer.loss.averaging(&batch, &rows);
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
        let tokens = vec![
            ("hard", per_token(&|row| (1.0 - layer.loss.label_smoothing) * class_weight(batch.class_weight(row)))),
            ("upstream", per_token(&upstream)),
            ("lse_upstream", per_token(&|row| batch.lse_upstream.map_or(0.0, |u| u[row]))),
        ];
        let of_shard = layer.layout.class_range(layer.rank);
        let class_weights = (layer.loss.label_smoothing > 0.0).then(|| match batch.class_weights {
            Some(weights) if averaging.class_factor == 1.0 => Cow::Borrowed(&weights[of_shard]),
            Some(weights) => weights[of_shard].iter().map(|weight| class_weight(*weight)).collect(),
            None => Cow::Owned(vec![1.0; classes]),
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
        let agreement = agreement(&layer, &form, &batch, shard.bias.is_some());
        let filter = layer.policy.filter.map(Filter::new);
        Job {
            filter,
            layer,
            kernels,
            batch,
            shard,
            rows,
            targets,
            tokens,
            uniforms,
            class_weights,
            averaging,
            agreement,
        }
    }

    pub(crate) fn classes(&self) -> usize {
        self.layer.layout.classes(self.layer.rank)
    }

    pub(crate) fn inputs(&self) -> LayerInputs<'_> {
        LayerInputs {
            classes: self.classes(),
            uniforms: &self.uniforms,
            bias: self.shard.bias,
            class_weight: self.class_weights.as_deref(),
        }
    }

    pub(crate) fn s_pass(&self) -> Result<SPass<'_>> {
        Ok(SPass {
            x: self.batch.x,
            // Padded rows of the vocabulary take no part.
            w: self.shard.weight.row_range(0..self.classes())?,
            inputs: self.inputs(),
            rows: &self.rows,
            targets: &self.targets,
            filter: self.filter.as_ref(),
        })
    }

    /// The result from the losses of the tokens that count, in f64 before the last rounding.
    pub(crate) fn losses(&self, losses: &[f32]) -> Vec<f32> {
        let weighted = losses.iter().zip(&self.rows).map(|(loss, row)| {
            let weight = f64::from(self.batch.token_weight(*row as usize));
            // A token without weight adds nothing, whatever its loss is.
            if weight == 0.0 { 0.0 } else { f64::from(*loss) * weight }
        });
        if self.layer.loss.reduction == Reduction::None {
            return self.scatter(weighted.map(|l| l as f32), 0.0);
        }
        // An empty sum of floats is -0.
        let mean = self.averaging.divisor.map_or(0.0, |divisor| weighted.fold(0.0, |sum, l| sum + l) / divisor);
        vec![mean as f32]
    }

    /// Values of the tokens that count at their rows, `rest` elsewhere.
    pub(crate) fn scatter<T: Clone>(&self, values: impl IntoIterator<Item = T>, rest: T) -> Vec<T> {
        let mut out = vec![rest; self.batch.x.rows()];
        for (value, row) in values.into_iter().zip(&self.rows) {
            out[*row as usize] = value;
        }
        out
    }
}

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
        fingerprint(&layer.layout),
        batch.x.dtype(),
        layer.policy.algorithm,
        if layer.policy.frozen_input { "not wanted" } else { "wanted" },
        layer.policy.filter,
        layer.loss,
        layer.programs,
    )
}
