//! Pass T of one shard on a device.

use super::Gpu;
use super::buffer::Buffer;
use super::driver::Argument::{self, F32, I32, I64, Pointer};
use super::kernels::Kernels;
use super::range::{Bound, bring_into_range};
use super::rows::pointer;
use super::s_pass::{self, Inputs, Saved, chunks};
use crate::Result;
use crate::passes::{LayerInputs, Numerators, TPass};
use std::ops::Range;
use vocabfuse_codegen::{Dtype, KernelKind};

/// What pass T needs of the merged rows of all tokens.
#[derive(Debug)]
pub struct Ticket {
    /// References.
    pub(super) references: Buffer,
    /// Outputs of the finish program: `[outputs][tokens]`.
    pub(super) outputs: Buffer,
}

/// How often saved numerators are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// Q takes their place.
    Once,
    /// Q is made beside them.
    Again,
}

/// What pass T works on, all of it on the device.
pub(super) struct Gradients<'a> {
    /// What row programs read.
    pub(super) layer: LayerInputs<'a>,
    pub(super) ticket: &'a Ticket,
    /// Upstream gradients, f32 `[tokens]`.
    pub(super) upstream: &'a Buffer,
    /// Numerators, and how often they are read.
    pub(super) saved: Option<(&'a Saved, Reads)>,
    /// f32 `[classes, width]`.
    pub(super) dw: &'a Buffer,
    /// f32 `[classes]`.
    pub(super) dbias: Option<&'a Buffer>,
    /// Whether gradients are added to what is there.
    pub(super) add: bool,
}

/// One microbatch on its way through pass T. No launch waits for a value of another.
pub(super) struct Walk<'a> {
    kernels: &'a Kernels,
    inputs: &'a Inputs,
    to: Gradients<'a>,
    /// What Q is multiplied by, and its inverse; f16 only.
    scale: Option<Buffer>,
    /// Q of one chunk, where it does not replace saved E.
    q: Option<Buffer>,
    /// Column sums of Q.
    sums: Option<Buffer>,
    /// Flags of tiles that take no part in dW, `[tiles of columns][tiles of tokens]`; only for filtering.
    skip: Option<(f32, Buffer)>,
}

/// The probability under which tiles are left out. Beside the target a derivative is the probability times a factor that is
/// within the token's bound, unless the loss has a second operand: then there is more to it, and nothing is left out.
pub(super) fn threshold(filter: Option<f32>, kernels: &Kernels) -> Option<f32> {
    filter.filter(|_| kernels.loss().operand.is_none())
}

/// Adds the gradients of one shard.
pub(super) fn t_pass(kernels: &Kernels, work: TPass<'_, Gpu>) -> Result<()> {
    let TPass { pass, kept, ticket, saved, upstream, mut sums } = work;
    let (driver, tokens, classes) = (kernels.driver(), pass.rows.len(), pass.inputs.classes);
    if tokens == 0 || classes == 0 {
        return Ok(());
    }
    let inputs = &Inputs { peaks: kept.clone(), ..s_pass::load(kernels, &pass)? };
    let upstream = Buffer::with(driver, &upstream[..tokens])?;
    let dw = Buffer::new(driver, classes * inputs.width * 4)?;
    let dbias = sums.dbias.as_ref().map(|_| Buffer::new(driver, classes * 4)).transpose()?;
    let saved = saved.as_ref().map(|numerators| match numerators {
        Numerators::Once(saved) => (saved, Reads::Once),
        Numerators::Again(saved) => (*saved, Reads::Again),
    });
    let (layer, upstream) = (pass.inputs, &upstream);
    let to = Gradients { layer, ticket, upstream, saved, dw: &dw, dbias: dbias.as_ref(), add: false };
    let walk = Walk::new(kernels, inputs, to, threshold(pass.filter.map(|f| f.threshold), kernels))?;
    walk.run()?;
    // dW and dbias are read at the end.
    let hidden = pass.x.columns();
    dw.each_row(classes, inputs.width, |row, values| {
        sums.dw.put(row * hidden, &values[..hidden]);
    })?;
    if let (Some(to), Some(from)) = (sums.dbias, &dbias) {
        to.iter_mut().zip(from.floats(0, classes)?).for_each(|(sum, v)| *sum += v);
    }
    if let (Some(filter), Some((_, skip))) = (pass.filter, &walk.skip) {
        let mut flags = vec![0; skip.bytes()];
        skip.read(&mut flags)?;
        filter.add(flags.len() as u64, flags.iter().filter(|flag| **flag != 0).count() as u64);
    }
    Ok(())
}

impl<'a> Walk<'a> {
    /// Scratch for the pass; a filter's threshold is a share of a token's mass.
    pub(super) fn new(
        kernels: &'a Kernels,
        inputs: &'a Inputs,
        to: Gradients<'a>,
        filter: Option<f32>,
    ) -> Result<Walk<'a>> {
        let Inputs { tokens, classes, .. } = *inputs;
        let room = |bytes: usize, wanted: bool| wanted.then(|| Buffer::new(kernels.driver(), bytes)).transpose();
        let skip = room(kernels.column_tiles(classes) * kernels.token_tiles(tokens), filter.is_some())?;
        Ok(Walk {
            scale: room(8, kernels.dtype == Dtype::F16)?,
            q: room(s_pass::region(kernels, tokens), !matches!(to.saved, Some((_, Reads::Once))))?,
            sums: room(kernels.token_tiles(tokens) * kernels.chunk * 4, to.dbias.is_some())?,
            skip: filter.zip(skip),
            kernels,
            inputs,
            to,
        })
    }

    pub(super) fn run(&self) -> Result<()> {
        if let Some(scale) = &self.scale {
            let values = self.row("bound").unwrap_or(Pointer(0));
            let bound = Bound { values, upstream: self.to.upstream.from(0), count: self.inputs.tokens };
            bring_into_range(self.kernels, &bound, scale.from(0))?;
        }
        for (index, columns) in chunks(self.kernels, self.inputs.classes) {
            self.flag(&columns)?;
            let q = self.gradient(index, &columns)?;
            self.reduce(&columns)?;
            self.multiply(&columns, q)?;
        }
        Ok(())
    }

    fn row(&self, name: &str) -> Option<Argument> {
        if name == "upstream" {
            return Some(self.to.upstream.from(0));
        }
        let position = self.kernels.outputs().iter().position(|known| *known == name)?;
        Some(self.to.ticket.outputs.from(position * self.inputs.tokens * 4))
    }

    /// Where the flags of a chunk are.
    fn flags(&self, columns: &Range<usize>) -> Argument {
        let first = self.kernels.column_tiles(columns.start) * self.kernels.token_tiles(self.inputs.tokens);
        self.skip.as_ref().map_or(Pointer(0), |(_, flags)| flags.from(first))
    }

    /// Flags the tiles of a chunk in which no derivative is over the threshold.
    fn flag(&self, columns: &Range<usize>) -> Result<()> {
        let Some((threshold, _)) = &self.skip else { return Ok(()) };
        let (tokens, lse) = (self.inputs.tokens, self.row("lse").unwrap_or(Pointer(0)));
        let call = self.kernels.call(KernelKind::FilterTiles)?.set([
            ("peaks", self.inputs.peaks(self.kernels.column_tiles(columns.start))),
            ("peak_stride", I64(tokens as i64)),
            ("lse", lse),
            ("targets", self.inputs.targets.from(0)),
            ("tokens", I32(tokens as i32)),
            ("first_column", I32(columns.start as i32)),
            ("columns", I32(columns.len() as i32)),
            ("log2_threshold", F32(threshold.log2())),
            ("skip", self.flags(columns)),
            ("skip_stride", I64(self.kernels.token_tiles(tokens) as i64)),
        ]);
        call.launch()
    }

    /// Q of a chunk.
    fn gradient(&self, index: usize, columns: &Range<usize>) -> Result<Argument> {
        let (kernels, inputs, tokens, width) = (self.kernels, self.inputs, self.inputs.tokens, self.inputs.width);
        let kind = if self.to.saved.is_some() { KernelKind::SavedGradient } else { KernelKind::LogitsGradient };
        let call = kernels
            .call(kind)?
            .set([
                ("references", self.to.ticket.references.from(0)),
                ("tokens", I32(tokens as i32)),
                ("first_column", I32(columns.start as i32)),
                ("columns", I32(columns.len() as i32)),
                ("classes", I32(self.inputs.classes as i32)),
                ("targets", inputs.targets.from(0)),
                ("scale", pointer(self.scale.as_ref())),
                ("column_partials", pointer(self.sums.as_ref())),
            ])
            .uniforms(|name| self.to.layer.uniform(name))?
            .rows(|name| self.row(name))?
            .columns(|name| inputs.column(name))?;
        if let Some((saved, reads)) = self.to.saved {
            let (mut values, references) = saved.chunk(kernels, tokens, index);
            if let (Reads::Again, Some(q)) = (reads, &self.q) {
                let bytes = s_pass::region(kernels, tokens);
                q.copy(0, &saved.values, index * bytes, bytes)?;
                values = q.from(0);
            }
            let call = call.set([("values", values), ("saved_references", references)]);
            call.launch()?;
            return Ok(values);
        }
        let q = pointer(self.q.as_ref());
        let call = call.set([
            ("x", inputs.x.from(0)),
            ("x_stride", I64(width as i64)),
            ("w", inputs.w.from(columns.start * width * kernels.dtype.size())),
            ("w_stride", I64(width as i64)),
            ("hidden", I32(width as i32)),
            ("q", q),
        ]);
        call.launch()?;
        Ok(q)
    }

    /// The gradient of the bias from the column sums of a chunk.
    fn reduce(&self, columns: &Range<usize>) -> Result<()> {
        let (Some(sums), Some(dbias)) = (&self.sums, self.to.dbias) else { return Ok(()) };
        let call = self.kernels.call(KernelKind::ReduceColumns)?.set([
            ("column_partials", sums.from(0)),
            ("partial_stride", I64(self.kernels.chunk as i64)),
            ("row_tiles", I32(self.kernels.token_tiles(self.inputs.tokens) as i32)),
            ("columns", I32(columns.len() as i32)),
            ("gradient", dbias.from(columns.start * 4)),
            ("beta", I32(i32::from(self.to.add))),
        ]);
        call.launch()
    }

    /// dW of a chunk.
    fn multiply(&self, columns: &Range<usize>, q: Argument) -> Result<()> {
        let (inputs, width) = (self.inputs, self.inputs.width);
        let call = self.kernels.call(KernelKind::WeightGrad)?.set([
            ("q", q),
            ("x", inputs.x.from(0)),
            ("x_stride", I64(width as i64)),
            ("tokens", I32(self.inputs.tokens as i32)),
            ("hidden", I32(width as i32)),
            ("columns", I32(columns.len() as i32)),
            ("dw", self.to.dw.from(columns.start * width * 4)),
            ("dw_stride", I64(width as i64)),
            ("beta", I32(i32::from(self.to.add))),
            ("scale", pointer(self.scale.as_ref())),
            ("skip", self.flags(columns)),
            ("skip_stride", I64(self.kernels.token_tiles(self.inputs.tokens) as i64)),
        ]);
        call.launch()
    }
}
