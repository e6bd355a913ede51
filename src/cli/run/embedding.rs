//! The input embedding: lookup, the one collective, and the gradient of the table.

use super::check::{Expected, Named, widen};
use super::convert;
use super::measure::Meter;
use super::operator::{Operator, Place, Results, Sizes, Tensor};
use crate::cli::values;
use std::path::Path;
use vocabfuse::bounds::{self, Arithmetic};
use vocabfuse::problem::embedding::{Embedded, Embedding};
use vocabfuse::ranks::{each, split_rows};
use vocabfuse::tensors::embedding::{self, Inputs};
use vocabfuse::{Device, Dtype, InputLayer, Local, Lookup, plain, reference};

#[derive(Debug, clap::Args)]
#[group(id = "embedding")]
#[command(next_help_heading = "Options of embedding")]
pub struct Options {
    /// Id whose row has no gradient
    #[arg(long, value_name = "I", allow_negative_numbers = true, value_parser = values::id)]
    padding_idx: Option<i64>,
}

impl Options {
    /// The operator on tensors of a file, w rounded to `dtype`.
    pub fn read(&self, input: &Path, dtype: Option<Dtype>) -> anyhow::Result<Table> {
        let inputs = embedding::read(input)?;
        let w = convert("w", inputs.w, dtype)?;
        Ok(Table { padding: self.padding_idx, inputs: Inputs { w, ..inputs } })
    }
}

/// The embedding with its tensors.
pub struct Table {
    padding: Option<i64>,
    inputs: Inputs,
}

impl Table {
    fn problem<'a, T>(&'a self, w: &'a [T], upstream: Option<&'a [T]>) -> Embedding<'a, T> {
        let Inputs { ids, hidden, vocab, .. } = &self.inputs;
        Embedding { w, ids, upstream, padding: self.padding, hidden: *hidden, vocab: *vocab }
    }
}

fn named<T>(out: Embedded<T>) -> Named<T> {
    let mut named = vec![("y", out.y)];
    named.extend(out.dw.map(|dw| ("dw", dw)));
    named
}

impl Operator for Table {
    fn sizes(&self) -> Sizes {
        let Inputs { ids, w, hidden, vocab, .. } = &self.inputs;
        Sizes { tokens: ids.len(), hidden: *hidden, vocab: *vocab, dtype: w.dtype().as_str() }
    }

    fn run<D: Device>(&self, place: &Place<'_, D>) -> anyhow::Result<Results> {
        let (Inputs { ids, w, dy, hidden, vocab }, Place { device, layout, .. }) = (&self.inputs, place);
        let table = w.matrix(*vocab, *hidden)?;
        let dy = dy.as_ref().map(|dy| dy.matrix(ids.len(), *hidden)).transpose()?;
        let ranks = 0..layout.ranks();
        let layer = |rank| InputLayer::new(*device, layout, rank, self.padding);
        let layers: Vec<InputLayer<D>> = ranks.clone().map(layer).collect::<Result<_, _>>()?;
        let mut dw = dy.map(|_| vec![0.0; vocab * hidden]);

        let mut meter = Meter::start();
        let comms = Local::group(layout.ranks());
        let members = layers.iter().zip(&comms).collect();
        let lookups = each(members, |rank, (layer, comm): (&InputLayer<D>, &Local)| {
            layer.lookup(comm, ids, table.row_range(layout.range(rank))?)
        })?;
        let mut kernels: Vec<&str> = lookups.iter().map(Lookup::kernel).collect();
        meter.pass("lookup", "lookup");

        let embedded = each(lookups, |_, lookup| lookup.start_select().wait())?;
        meter.pass("combine", "combine");

        let counters: Vec<_> = comms.iter().map(Local::counters).collect();
        let x = embedded.first().map(|embedded| embedded.x.clone());
        let bytes = x.as_ref().map_or(0, |x| x.rows() * x.columns() * x.dtype().size());
        if let (Some(dy), Some(dw)) = (dy, &mut dw) {
            kernels.push(layers[0].backward_kernel(dy.dtype())?);
            let tickets = embedded.into_iter().map(|embedded| embedded.table_grad);
            let work = tickets.zip(split_rows(dw, *hidden, ranks.map(|r| layout.range(r)))).collect();
            each(work, |rank, (ticket, dw)| layers[rank].backward(&ticket, dy, dw))?;
            meter.pass("backward", "backward");
        }
        let costs = meter.finish(bytes, kernels, counters);
        let y = x.map_or(vec![], |x| x.to_f32());
        let mut outputs = vec![Tensor::floats("y", vec![ids.len(), *hidden], y)];
        outputs.extend(dw.map(|dw| Tensor::floats("dw", vec![*vocab, *hidden], dw)));
        Ok(Results { outputs, costs })
    }

    fn expected(&self, _: &[Tensor], _: Arithmetic) -> anyhow::Result<Vec<Expected>> {
        let (w, dtype) = (self.inputs.w.to_f32(), self.inputs.w.dtype());
        let dy = self.inputs.dy.as_ref().map(|dy| dy.to_f32());
        let (wide, wide_dy) = (widen(&w), dy.as_deref().map(widen));
        let problem = self.problem(&wide, wide_dy.as_deref());
        let plain = plain::embedding(&self.problem(&w, dy.as_deref()), dtype)?;
        let bounds = bounds::embedding(&problem);
        Ok(Expected::values(named(reference::embedding(&problem)?), named(plain), named(bounds)))
    }
}
