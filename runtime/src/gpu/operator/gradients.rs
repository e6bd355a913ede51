//! The second phase on one shard: Q of a chunk for all tokens, then its products with W and X.

use super::super::buffer::Buffer;
use super::super::driver::Argument::{I32, I64, Pointer};
use super::super::range::{Bound, bring_into_range};
use super::super::rows::pointer;
use super::inputs::{self, Input, Linear};
use super::kernels::OperatorKernels;
use super::{CHUNK, chunks};
use crate::operator::{Distribution, DistributionGradients, GradientJob, RowJob};
use crate::{Dtype, Result};
use std::ops::Range;
use vocabfuse_codegen::KernelKind;

/// Adds the gradients of a shard; gives its parts of dX, `[tokens, H]`.
pub(super) fn run(
    kernels: &OperatorKernels,
    job: &RowJob<'_>,
    gradient: &GradientJob<'_>,
    wanted: &mut [DistributionGradients<'_>],
) -> Result<Vec<Option<Vec<f32>>>> {
    for wanted in wanted.iter_mut() {
        // Rows that take no part and padded columns have no gradient.
        if let Some(dlogits) = &mut wanted.dlogits {
            dlogits.fill(0.0);
        }
    }
    if job.rows.is_empty() || job.classes == 0 {
        let nothing = |(wanted, of): (&DistributionGradients<'_>, &Distribution<'_>)| {
            of.hidden().filter(|_| wanted.dx).map(|hidden| vec![0.0; job.rows.len() * hidden])
        };
        return Ok(wanted.iter().zip(job.distributions).map(nothing).collect());
    }
    let inputs = inputs::load(kernels, job)?.into_iter().zip(&*wanted);
    let inputs = inputs.map(|(input, wanted)| if wanted.any() { input.with_slopes() } else { Ok(input) });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let pass = Pass::new(kernels, job, gradient, &inputs)?;
    let mut targets = vec![];
    for (index, wanted) in wanted.iter().enumerate().filter(|(_, wanted)| wanted.any()) {
        targets.push(Target::new(kernels, job, index, &inputs[index], wanted)?);
    }
    for chunk in chunks(job.classes) {
        inputs.iter().try_for_each(|input| input.fill(&chunk))?;
        for target in &targets {
            pass.gradient(target, &chunk)?;
            pass.columns(target, &chunk)?;
            if let (Some(products), Some(linear)) = (&target.products, inputs[target.index].linear()) {
                pass.multiply(products, linear, &chunk)?;
            }
            if let Some(dlogits) = &mut wanted[target.index].dlogits {
                pass.scatter(dlogits, job.distributions[target.index].tokens(), &chunk)?;
            }
        }
    }
    let mut parts: Vec<Option<Vec<f32>>> = wanted.iter().map(|_| None).collect();
    for target in &targets {
        parts[target.index] = pass.read(target, inputs[target.index].linear(), &mut wanted[target.index])?;
    }
    Ok(parts)
}

/// What becomes of Q of one distribution.
struct Target {
    /// Position among the distributions.
    index: usize,
    products: Option<Products>,
    /// Sums of the columns of Q.
    sums: Option<Buffer>,
}

/// What Q is multiplied into.
struct Products {
    /// Q of a chunk in the dtype of X and W.
    rounded: Buffer,
    scale: Option<Scale>,
    /// A `[tokens, width]`, if dX is wanted.
    a: Option<Buffer>,
    /// dW `[classes, width]`, if that is wanted.
    dw: Option<Buffer>,
}

/// What brings Q of a chunk into the range of f16.
struct Scale {
    /// Largest |Q| of each token.
    peaks: Buffer,
    /// A power of two, and its inverse.
    scale: Buffer,
}

/// Everything that all chunks share.
struct Pass<'a> {
    kernels: &'a OperatorKernels,
    job: &'a RowJob<'a>,
    inputs: &'a [Input<'a>],
    ids: Buffer,
    weights: Buffer,
    /// Row inputs of the gradient programs.
    rows: Vec<(&'a str, Buffer)>,
    /// Q of a chunk, f32 `[tokens][CHUNK]`.
    q: Buffer,
}

impl Target {
    fn new(
        kernels: &OperatorKernels,
        job: &RowJob<'_>,
        index: usize,
        input: &Input<'_>,
        wanted: &DistributionGradients<'_>,
    ) -> Result<Target> {
        let (driver, tokens) = (kernels.driver(), job.rows.len());
        let room = |wanted: bool, bytes: usize| wanted.then(|| Buffer::new(driver, bytes)).transpose();
        let products = |linear: &Linear<'_>| {
            let (dtype, width) = (linear.kernels.dtype, linear.width);
            let scale = || Ok(Scale { peaks: Buffer::new(driver, tokens * 4)?, scale: Buffer::new(driver, 8)? });
            Ok(Products {
                rounded: Buffer::new(driver, tokens * CHUNK * dtype.size())?,
                scale: (dtype == Dtype::F16).then(scale).transpose()?,
                a: room(wanted.dx, tokens * width * 4)?,
                dw: room(wanted.dw.is_some(), job.classes * width * 4)?,
            })
        };
        let multiplied = wanted.dx || wanted.dw.is_some();
        Ok(Target {
            index,
            products: input.linear().filter(|_| multiplied).map(products).transpose()?,
            sums: room(wanted.dbias.is_some(), job.classes * 4)?,
        })
    }

    fn scale(&self) -> Option<&Scale> {
        self.products.as_ref()?.scale.as_ref()
    }
}

impl<'a> Pass<'a> {
    fn new(
        kernels: &'a OperatorKernels,
        job: &'a RowJob<'a>,
        gradient: &'a GradientJob<'a>,
        inputs: &'a [Input<'a>],
    ) -> Result<Pass<'a>> {
        let driver = kernels.driver();
        let row = |(name, values): &'a (String, Vec<f32>)| Ok((name.as_str(), Buffer::with(driver, values)?));
        Ok(Pass {
            kernels,
            job,
            inputs,
            ids: Buffer::with(driver, job.selection.ids.as_ref())?,
            weights: Buffer::with(driver, gradient.weights.as_ref())?,
            rows: gradient.rows.iter().map(row).collect::<Result<_>>()?,
            q: Buffer::new(driver, job.rows.len() * CHUNK * 4)?,
        })
    }

    /// Q of a chunk.
    fn gradient(&self, target: &Target, chunk: &Range<usize>) -> Result<()> {
        let of = &self.job.distributions[target.index];
        let call = self
            .kernels
            .row_gradient(target.index)?
            .set([
                ("logits", self.inputs[0].logits.from(0)),
                ("logits_1", self.inputs[self.inputs.len() - 1].logits.from(0)),
                ("stride", I64(CHUNK as i64)),
                ("first_column", I32(chunk.start as i32)),
                ("columns", I32(chunk.len() as i32)),
                ("slots", I32(self.job.selection.slots as i32)),
                ("ids", self.ids.from(0)),
                ("token_stride", I64(self.job.selection.stride as i64)),
                ("weights", self.weights.from(0)),
                ("slopes", pointer(self.inputs[target.index].slopes.as_ref())),
                ("q", self.q.from(0)),
                ("peaks", target.scale().map_or(Pointer(0), |scale| scale.peaks.from(0))),
            ])
            .uniforms(|name| (name == "logit_scale").then_some(of.logit_scale))?
            .rows(|name| self.rows.iter().find(|(known, _)| *known == name).map(|(_, values)| values.from(0)))?;
        call.launch_rows(self.job.rows.len())
    }

    /// Sums of the columns of Q: each token is a tile of its own.
    fn columns(&self, target: &Target, chunk: &Range<usize>) -> Result<()> {
        let Some(sums) = &target.sums else { return Ok(()) };
        let call = self.kernels.rows.call(KernelKind::ReduceColumns)?.set([
            ("column_partials", self.q.from(0)),
            ("partial_stride", I64(CHUNK as i64)),
            ("row_tiles", I32(self.job.rows.len() as i32)),
            ("columns", I32(chunk.len() as i32)),
            ("gradient", sums.from(chunk.start * 4)),
            ("beta", I32(0)),
        ]);
        call.launch()
    }

    /// A += Q W and dW = transposed Q X.
    fn multiply(&self, to: &Products, linear: &Linear<'_>, chunk: &Range<usize>) -> Result<()> {
        let (kernels, tokens, width) = (linear.kernels, self.job.rows.len(), linear.width);
        let scale = pointer(to.scale.as_ref().map(|s| &s.scale));
        if let Some(of) = &to.scale {
            let bound = Bound { values: of.peaks.from(0), upstream: Pointer(0), count: tokens };
            bring_into_range(kernels, &bound, scale)?;
        }
        let call = kernels.call(KernelKind::RoundRows)?.set([
            ("q", self.q.from(0)),
            ("stride", I64(CHUNK as i64)),
            ("columns", I32(chunk.len() as i32)),
            ("scale", scale),
            ("rounded", to.rounded.from(0)),
        ]);
        call.launch_rows(tokens)?;
        if let Some(a) = &to.a {
            let call = kernels.call(KernelKind::Accumulate)?.set([
                ("e", to.rounded.from(0)),
                ("w", linear.w_from(chunk.start)),
                ("w_stride", I64(width as i64)),
                ("tokens", I32(tokens as i32)),
                ("hidden", I32(width as i32)),
                ("columns", I32(chunk.len() as i32)),
                ("a", a.from(0)),
                ("a_stride", I64(width as i64)),
                ("first", I32(i32::from(chunk.start == 0))),
                ("previous", Pointer(0)),
                ("references", Pointer(0)),
                ("e_references", Pointer(0)),
                ("scale", scale),
            ]);
            call.launch()?;
        }
        let Some(dw) = &to.dw else { return Ok(()) };
        let call = kernels.call(KernelKind::WeightGrad)?.set([
            ("q", to.rounded.from(0)),
            ("x", linear.x.from(0)),
            ("x_stride", I64(width as i64)),
            ("tokens", I32(tokens as i32)),
            ("hidden", I32(width as i32)),
            ("columns", I32(chunk.len() as i32)),
            ("dw", dw.from(chunk.start * width * 4)),
            ("dw_stride", I64(width as i64)),
            ("beta", I32(0)),
            ("scale", scale),
            ("skip", Pointer(0)),
            ("skip_stride", I64(0)),
        ]);
        call.launch()
    }

    /// Q of a chunk to the gradient of given logits `[tokens of the caller, columns]`.
    fn scatter(&self, dlogits: &mut [f32], tokens: usize, chunk: &Range<usize>) -> Result<()> {
        let owned = dlogits.len().checked_div(tokens).unwrap_or(0);
        self.q.each_row(self.job.rows.len(), CHUNK, |token, values| {
            let first = self.job.rows[token] as usize * owned + chunk.start;
            dlogits[first..][..chunk.len()].copy_from_slice(&values[..chunk.len()]);
        })
    }

    /// Adds what the chunks gave; dX is returned.
    fn read(
        &self,
        target: &Target,
        linear: Option<&Linear<'_>>,
        wanted: &mut DistributionGradients<'_>,
    ) -> Result<Option<Vec<f32>>> {
        let classes = self.job.classes;
        if let (Some(dbias), Some(sums)) = (&mut wanted.dbias, &target.sums) {
            // The bias is added after the scale.
            let factor = self.job.distributions[target.index].logit_scale.recip();
            dbias.iter_mut().zip(sums.floats(0, classes)?).for_each(|(to, sum)| *to += sum * factor);
        }
        let (Some(products), Some(linear)) = (&target.products, linear) else { return Ok(None) };
        let (hidden, width) = (linear.hidden, linear.width);
        if let (Some(dw), Some(from)) = (&mut wanted.dw, &products.dw) {
            from.each_row(classes, width, |row, values| {
                dw[row * hidden..][..hidden].iter_mut().zip(values).for_each(|(to, value)| *to += value);
            })?;
        }
        let Some(a) = &products.a else { return Ok(None) };
        let mut dx = Vec::with_capacity(self.job.rows.len() * hidden);
        a.each_row(self.job.rows.len(), width, |_, values| dx.extend_from_slice(&values[..hidden]))?;
        Ok(Some(dx))
    }
}
